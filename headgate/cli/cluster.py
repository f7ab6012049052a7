"""`headgate run`, and the commands that change what it runs: submit, intent, pause, resume, remove, share, limit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from headgate import config
from headgate.cli.output import as_json, console_of_stdout, home_option, pairs, plain_table, show, verbatim
from headgate.core.quantities import choice, seconds, show_seconds
from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.config import RunSettings, Settings, SparkSettings
    from headgate.core.provision import Terms
    from headgate.ports import Jobs
    from headgate.server.client import Client
    from headgate.server.run import Plan
    from headgate.server.status import JobStatus, Summary
    from headgate.spark.jobfile import ClusterFile
    from headgate.userpolicies import Guarded

POLICIES = ("headgate", "lanes-only", "static", "threshold")
NONE = "none"
LOCAL = "local"

param_option = click.option(
    "--param", "params", metavar="NAME=VALUE", multiple=True, help="Give a job file's topology() this parameter."
)

# -- run ---------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1)
@home_option
@click.option("--master", metavar="URL", help="Run on this Spark cluster [default: embedded].")
@click.option("--hosts", metavar="local:N", help="Lease up to N hosts of this machine, as intents are worth it.")
@click.option("--slots", metavar="N", help="Embedded Spark: tasks that run at once.")
@click.option("--fast", is_flag=True, help="A quicker loop, for a small machine.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="Change a setting.")
@param_option
@click.option(
    "--policy", metavar="P", default="headgate", show_default=True, help="headgate, lanes-only, static or threshold."
)
@click.option("--observe-only", is_flag=True, help="Decide, but carry nothing out.")
@click.option("--for", "duration", metavar="DURATION", help="Stop after this time, such as 10m.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of the API [default: any].")
@as_json
def run(
    files: tuple[str, ...], home: str, master: str | None, hosts: str | None, slots: str | None, fast: bool,
    settings: tuple[str, ...], params: tuple[str, ...], policy: str, observe_only: bool, duration: str | None, port: int, json_too: bool,
) -> None:  # fmt: skip
    """Run jobs on Spark, each held to its intent.

    A FILE is a job file (.py) or a cluster file (.toml). Without one, the jobs that ran here last run again.
    """
    from headgate.server.home import Home
    from headgate.server.run import Plan
    from headgate.server.service import Loop

    read = _read(files, params)
    for_s = None if duration is None else seconds(duration, "--for")
    every = config.all_settings_from(_values(read, fast, slots, settings))
    choice(policy, "--policy", POLICIES)
    if hosts is not None and master is not None:
        raise InputError("--hosts leases hosts for a Spark of its own; take out --master, or --hosts")
    plan = Plan(
        home=Home(Path(home)),
        requests=[request for file in read for request in file.jobs],
        loop=Loop(every.loop, policy, observe_only, _user_policies(read, every.loop), _webhook(read)),
        spark=every.spark,
        master=master,
        port=port,
        for_s=for_s,
        hosts=None if hosts is None else _terms(hosts, every),
    )
    _run(plan, json_too)


def _terms(hosts: str, every: RunSettings) -> Terms:
    """What `local:N` leases: hosts of one type, as the settings have it."""
    from headgate.core.hosts import Budget, HostType
    from headgate.core.provision import Terms

    place, _, most = hosts.partition(":")
    if place != LOCAL or not most.isdecimal():
        raise InputError(f'--hosts is "{hosts}"; it must be {LOCAL}:N with the most hosts to lease, such as {LOCAL}:3')
    pool = every.pool
    kind = HostType(LOCAL, pool.host_cores, pool.host_memory_mb, pool.host_price, pool.btu_s, pool.startup_s)
    limit = pool.most_per_hour if math.isfinite(pool.most_per_hour) else None
    return Terms((kind,), Budget(int(most), limit), every.hosts)


def _run(plan: Plan, json_too: bool) -> None:
    import msgspec

    from headgate.cli.live import ServiceScreen
    from headgate.server.run import run as run_service

    with ServiceScreen(console_of_stdout(), plan.loop.settings.round_s) as screen:
        done = run_service(plan, open_engine, screen)
    show(*_summary(done))
    if json_too:
        click.echo(msgspec.json.encode(done).decode())


def open_engine(
    home: Path, settings: SparkSettings, master: str | None, extra: Mapping[str, str] | None = None
) -> Jobs:
    """Spark, which takes a while to start and is not needed by the other commands."""
    from headgate.spark.engine import open_engine as open_spark

    return open_spark(home, settings, master, extra)


def _read(files: Sequence[str], params: Sequence[str]) -> list[ClusterFile]:
    from headgate.spark.jobfile import JOB_SUFFIX
    from headgate.spark.jobfile import read as read_file

    parameters = _parameters(params)
    if parameters and not any(file.endswith(JOB_SUFFIX) for file in files):
        raise InputError("--param is for job files; in a cluster file, write parameters = {name = value}")
    return [read_file(file, parameters) for file in files]


def _user_policies(read: Sequence[ClusterFile], settings: Settings) -> dict[str, Guarded]:
    from headgate.userpolicies import guarded

    found: dict[str, Guarded] = {}
    for file in read:
        found |= guarded(file.user_policies, file.directory, settings.policy_patience_s)
    return found


def _webhook(read: Sequence[ClusterFile]) -> str | None:
    return next((file.webhook for file in read if file.webhook is not None), None)


def _parameters(params: Sequence[str]) -> dict[str, Any]:
    return {name: _value(text) for name, text in pairs(params, "param", "rate=500").items()}


def _value(text: str) -> Any:
    """Numbers, true, false, lists and quoted text as JSON has them; anything else is text."""

    def text_after_all(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=text_after_all)
    except ValueError:
        return text


def _values(read: Sequence[ClusterFile], fast: bool, slots: str | None, settings: Sequence[str]) -> Mapping[str, Any]:
    """What was said last and closest counts: the files, then `--fast`, then single settings."""
    of_files = {name: value for file in read for name, value in file.settings.items()}
    of_slots = {} if slots is None else {"slots": slots}
    return {**of_files, **({**config.FAST, **config.FAST_HOSTS} if fast else {}), **of_slots, **pairs(settings)}


def _summary(done: Summary) -> Iterator[RenderableType]:
    share = "" if done.satisfaction is None else f"; the jobs got {done.satisfaction:.1%} of their utility"
    yield verbatim(f"\nran for {show_seconds(done.seconds)}, {_count(done.rounds, 'round')}{share}")
    rows = [_summary_row(name, job, done.met.get(name)) for name, job in done.status.jobs.items()]
    if rows:
        yield plain_table(("job", "intent", "state", "latency", "met"), rows)
    for kind, count in done.actions.items():
        yield verbatim(f"{_count(count, 'action')}: {kind}")
    if done.status.leases is not None:
        yield verbatim(f"hosts: {done.status.leases.bill.sentence()}")


def _summary_row(name: str, job: JobStatus, met: float | None) -> tuple[str, ...]:
    state = f"{job.state}: {job.reason}" if job.reason else job.state
    latency = "-" if job.latency_s is None else show_seconds(job.latency_s, 2)
    return name, job.intent, state, latency, "-" if met is None else f"{met:.0%} of the time"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# -- while it runs -----------------------------------------------------------------------------------------------------


def _client(home: str) -> Client:
    from headgate.server.client import Client
    from headgate.server.home import Home

    return Client(Home(Path(home)))


@click.command()
@click.argument("file")
@click.option("--name", metavar="NAME", help="Run it under this name.")
@param_option
@home_option
def submit(file: str, name: str | None, params: tuple[str, ...], home: str) -> None:
    """Add the jobs of a file to the service that runs."""
    import dataclasses

    (read,) = _read([file], params)
    if read.settings:
        raise InputError(f"{file}: settings are fixed when a service starts; take out [settings], or start another one")
    if name is not None and len(read.jobs) > 1:
        raise InputError(f"{file}: --name is for one job, and there are {len(read.jobs)} in it")
    client = _client(home)
    for request in read.jobs:
        named = request if name is None else dataclasses.replace(request, name=name)
        click.echo(f"submitted: {client.submit(named)}")


@click.command(short_help="Change what a job needs.")
@click.argument("job")
@click.option("--latency", metavar="TIME", help="Results within this time, such as 2s.")
@click.option("--juice", metavar="SHARE", help="Share of the input to keep up with, such as 0.95.")
@click.option("--worth", metavar="POINTS", help="What meeting it is worth.")
@click.option("--percentile", metavar="P", help="Which percentile of the latency is meant.")
@click.option("--policy", metavar="P", help="Let the job regulate itself, such as provision or throughput:500/s.")
@home_option
def intent(job: str, home: str, **given: str | None) -> None:
    """Change what a job needs; what is not named stays, "none" takes a goal away."""
    fields = {name: _field(text) for name, text in given.items() if text is not None}
    if not fields:
        raise InputError(f"what should change? give {', '.join(f'--{name}' for name in given)}, or some of them")
    client = _client(home)
    client.change(job, {"intent": fields})
    now = client.status().jobs[job]
    click.echo(f"{job}: {now.intent}, worth {now.worth:g}")


def _field(text: str) -> float | str | None:
    """A number if it is one; the service says what is wrong with what is none."""
    if text.lower() == NONE:
        return None
    try:
        return float(text)
    except ValueError:
        return text


@click.command()
@click.argument("job")
@home_option
def pause(job: str, home: str) -> None:
    """Stop a job after its epoch, until it is resumed."""
    _client(home).pause(job)
    click.echo(f"paused: {job}")


@click.command()
@click.argument("job")
@home_option
def resume(job: str, home: str) -> None:
    """Let a job go on that was paused, or that failed."""
    _client(home).resume(job)
    click.echo(f"resumed: {job}")


@click.command()
@click.argument("job")
@home_option
def remove(job: str, home: str) -> None:
    """Stop a job after its epoch, and forget it."""
    note = _client(home).remove(job)
    click.echo(f"removed: {job}" + (f"; {note}" if note else ""))


@click.command()
@click.argument("job")
@click.argument("share", metavar="N")
@home_option
def share(job: str, share: str, home: str) -> None:
    """Set a job's weight when slots are short."""
    _client(home).change(job, {"share": _field(share)})
    click.echo(f"{job}: share {share}")


@click.command()
@click.argument("job")
@click.argument("rows", metavar="ROWS")
@home_option
def limit(job: str, rows: str, home: str) -> None:
    """Set how many rows an epoch of a job reads at most; "none" is as the settings say."""
    _client(home).change(job, {"read_limit": _field(rows)})
    click.echo(f"{job}: {'no read limit of its own' if _field(rows) is None else f'at most {rows} rows per epoch'}")


COMMANDS = (run, submit, intent, pause, resume, remove, share, limit)
