"""`headgate run`, and the commands that change what it runs: submit, intent, pause, resume, remove, restore, share, limit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from headgate.cli.output import as_json, complain, console_of_stdout, home_option, pairs, plain_table, show, verbatim
from headgate.config import FAST, FAST_HOSTS
from headgate.core.quantities import choice, seconds, show_seconds
from headgate.errors import InputError
from headgate.settings import all_settings_from

if TYPE_CHECKING:
    from headgate.alerts import Webhook
    from headgate.cli.json_log import JsonLog
    from headgate.config import ServiceSettings, Settings, SparkSettings
    from headgate.health.isolation.processes import IsolatedPolicy
    from headgate.hosts.provision import Terms
    from headgate.jobfile import ClusterFile
    from headgate.ports import Jobs
    from headgate.server.client import Client
    from headgate.server.home import Home
    from headgate.server.removed import RemovedJob
    from headgate.server.run import Plan
    from headgate.server.status import JobStatus, Summary
    from headgate.server.supervise import ServiceStart
    from headgate.settings import RunSettings

POLICIES = ("headgate", "lanes-only", "static", "threshold")
NONE = "none"
LOCAL = "local"
TEXT, JSON = "text", "json"

param_option = click.option(
    "--param",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    help="Pass this argument to topology() of a job file; may be repeated.",
)

# -- run ---------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1)
@home_option
@click.option("--master", metavar="URL", help="Run on this Spark cluster [default: embedded Spark].")
@click.option(
    "--hosts",
    metavar="local:N",
    help="Lease up to N hosts of this machine, when the utility gained is worth the price.",
)
@click.option("--slots", metavar="N", help="Embedded Spark: tasks of all jobs that run at once.")
@click.option("--fast", is_flag=True, help="Run the loop every 2 s instead of 10 s, for small machines and trials.")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="Change a setting; `headgate settings` lists them."
)
@param_option
@click.option(
    "--policy",
    metavar="P",
    default="headgate",
    show_default=True,
    help="Who decides: headgate, lanes-only, static or threshold.",
)
@click.option("--observe-only", is_flag=True, help="Record decisions, but apply none.")
@click.option("--for", "duration", metavar="DURATION", help="Stop the service after this time, such as 10m.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of the API [default: any free port]."
)
@click.option(
    "--no-restart", is_flag=True, help="Exit with 75 when Spark is lost, instead of restarting it and all jobs."
)
@click.option(
    "--log-format",
    type=click.Choice([TEXT, JSON]),
    default=TEXT,
    show_default=True,
    help="Format of the log: text, or one JSON object per line.",
)
@as_json
def run(
    files: tuple[str, ...], home: str, master: str | None, hosts: str | None, slots: str | None, fast: bool,
    settings: tuple[str, ...], params: tuple[str, ...], policy: str, observe_only: bool, duration: str | None, port: int,
    no_restart: bool, log_format: str, json_too: bool,
) -> None:  # fmt: skip
    """Run jobs on Spark, each held to its intent.

    FILE is a job file (.py) or a cluster file (.toml). Without FILE, the jobs that ran last in this home run again.
    """
    from headgate.server.home import Home

    read = _read(files, params)
    for_s = None if duration is None else seconds(duration, "--for")
    every = all_settings_from(_values(read, fast, slots, settings))
    choice(policy, "--policy", POLICIES)
    if hosts is not None and master is not None:
        raise InputError("--hosts leases hosts for a Spark of its own; take out --master, or --hosts")
    terms = None if hosts is None else _terms(hosts, every)
    place = Home(Path(home))
    with place.held():
        log = _json_log() if log_format == JSON else None
        life = _life(place, every, for_s, no_restart, log.complain if log is not None else complain)
        # From here on in the process of the service: its parent stays small, and has no threads.
        from headgate.server.run import Plan
        from headgate.server.service import Loop

        plan = Plan(
            home=place,
            requests=[request for file in read for request in file.jobs],
            loop=Loop(
                every.loop, policy, observe_only, _user_policies(read, every.loop), _webhook(read, every.service)
            ),
            spark=every.spark,
            master=master,
            port=port,
            for_s=for_s,
            hosts=terms,
            service=every.service,
            life=life,
        )
        done = _run(plan) if log is None else _run_logged(plan, log)
        if json_too:
            _echo_json(done)


def _json_log() -> JsonLog:
    from headgate.cli.json_log import JsonLog

    return JsonLog()


def _echo_json(done: Summary) -> None:
    import msgspec

    click.echo(msgspec.json.encode(done).decode())


def _life(
    home: Home, every: RunSettings, for_s: float | None, no_restart: bool, tell: Callable[[str], None]
) -> ServiceStart:
    """The life of a service, in its process; its parent exits here as the last one did."""
    from headgate.server.supervise import ServiceStart, Supervisor, can_supervise

    if no_restart or not can_supervise():
        return ServiceStart()
    life = Supervisor(every.service, for_s, tell).run()
    if isinstance(life, ServiceStart):
        return life
    if life != 0:
        from headgate.server.run import release_left_hosts

        release_left_hosts(home)
    raise SystemExit(life)  # the service has printed all that there is to say


def _terms(hosts: str, every: RunSettings) -> Terms:
    """What `local:N` leases: hosts of one type, as the settings have it."""
    from headgate.core.hosts import HostType
    from headgate.hosts.leases import Budget
    from headgate.hosts.provision import Terms

    place, _, most = hosts.partition(":")
    if place != LOCAL or not most.isdecimal():
        raise InputError(f'--hosts is "{hosts}"; it must be {LOCAL}:N with the most hosts to lease, such as {LOCAL}:3')
    pool = every.pool
    kind = HostType(LOCAL, pool.host_cores, pool.host_memory_mb, pool.host_price, pool.btu_s, pool.startup_s)
    limit = pool.most_per_hour if math.isfinite(pool.most_per_hour) else None
    return Terms((kind,), Budget(int(most), limit), every.hosts)


def _run(plan: Plan) -> Summary:
    from headgate.cli.live import ServiceScreen, Steadfast
    from headgate.server.run import run as run_service

    with ServiceScreen(console_of_stdout(), plan.loop.settings.round_s) as screen:
        done = run_service(plan, open_engine, Steadfast(screen, complain))
    show(*_summary(done))
    return done


def _run_logged(plan: Plan, log: JsonLog) -> Summary:
    """The same, with nothing on standard output but lines of JSON."""
    from headgate.cli.live import Steadfast
    from headgate.clock import now_s
    from headgate.server.run import run as run_service

    with log.taking_over():
        done = run_service(plan, open_engine, Steadfast(log, log.complain))
    log.line(now_s(), "info", "ended", seconds=done.seconds, rounds=done.rounds, satisfaction=done.satisfaction)
    return done


def open_engine(
    home: Path, settings: SparkSettings, master: str | None, extra: Mapping[str, str] | None = None
) -> Jobs:
    """Spark, which takes a while to start and is not needed by the other commands."""
    from headgate.spark.engine import open_engine as open_spark

    return open_spark(home, settings, master, extra)


def _read(files: Sequence[str], params: Sequence[str]) -> list[ClusterFile]:
    from headgate.jobfile import JOB_SUFFIX
    from headgate.jobfile import read as read_file

    parameters = _parameters(params)
    if parameters and not any(file.endswith(JOB_SUFFIX) for file in files):
        raise InputError("--param is for job files; in a cluster file, write parameters = {name = value}")
    return [read_file(file, parameters) for file in files]


def _user_policies(read: Sequence[ClusterFile], settings: Settings) -> dict[str, IsolatedPolicy]:
    from headgate.health.isolation.processes import guarded

    found: dict[str, IsolatedPolicy] = {}
    for file in read:
        found |= guarded(file.user_policies, file.directory, settings.policy_patience_s, start_wait_s=0.0)
    return found


def _webhook(read: Sequence[ClusterFile], settings: ServiceSettings) -> Webhook | None:
    from headgate.alerts import Webhook, WebhookFormat

    url = next((file.webhook for file in read if file.webhook is not None), None)
    return None if url is None else Webhook(url, WebhookFormat(settings.webhook_format))


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
    return {**of_files, **({**FAST, **FAST_HOSTS} if fast else {}), **of_slots, **pairs(settings)}


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
@click.option("--name", metavar="NAME", help="Run the job under this name.")
@param_option
@home_option
def submit(file: str, name: str | None, params: tuple[str, ...], home: str) -> None:
    """Add the jobs of a file to the running service."""
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


@click.command(short_help="Change the intent of a job.")
@click.argument("job")
@click.option("--latency", metavar="TIME", help="Latency goal, such as 2s.")
@click.option("--juice", metavar="SHARE", help="Share of the input that the job must keep up with, such as 0.95.")
@click.option("--worth", metavar="POINTS", help="Points for meeting the intent.")
@click.option(
    "--percentile", metavar="P", help="Percentile that the latency goal applies to, such as 99; the mean without it."
)
@click.option(
    "--policy", metavar="P", help="Let the job regulate itself: provision, throughput:500/s or a user policy."
)
@home_option
def intent(job: str, home: str, **given: str | None) -> None:
    """Change the intent of a job; goals that are not named stay, "none" removes a goal."""
    fields = {name: field_value(text) for name, text in given.items() if text is not None}
    if not fields:
        raise InputError(f"what should change? give {', '.join(f'--{name}' for name in given)}, or some of them")
    client = _client(home)
    client.change(job, {"intent": fields})
    now = client.status().jobs[job]
    click.echo(f"{job}: {now.intent}, worth {now.worth:g}")


def field_value(text: str) -> float | str | None:
    """What a person typed: a number if it is one, None for "none"; the service says what is wrong with the rest."""
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
    """Stop a job after the epoch in flight, until `headgate resume`."""
    _client(home).pause(job)
    click.echo(f"paused: {job}")


@click.command()
@click.argument("job")
@home_option
def resume(job: str, home: str) -> None:
    """Continue a paused job, or try a failed job again."""
    _client(home).resume(job)
    click.echo(f"resumed: {job}")


@click.command()
@click.argument("job")
@home_option
def remove(job: str, home: str) -> None:
    """Stop a job after the epoch in flight and remove it; `headgate restore` brings it back within `keep_removed_h` hours."""
    note = _client(home).remove(job)
    click.echo(f"removed: {job}" + (f"; {note}" if note else ""))


@click.command()
@home_option
@as_json
def removed(home: str, json_too: bool) -> None:
    """List removed jobs that can be restored, with their size and the time of their deletion."""
    import msgspec

    found = _client(home).removed()
    if json_too:
        click.echo(msgspec.json.encode(found).decode())
    elif found:
        show(plain_table(("job", "removed at", "size", "deleted at"), [_removed_row(one) for one in found]))
    else:
        click.echo("there is no removed job")


def _removed_row(one: RemovedJob) -> tuple[str, ...]:
    deleted = datetime.fromtimestamp(one.deleted_s).astimezone()
    return one.name, one.at, f"{one.bytes / 1e6:,.1f} MB", f"{deleted:%Y-%m-%d %H:%M}"


@click.command()
@click.argument("job")
@click.option("--at", metavar="TIME", help="Restore the removal of this time, as `headgate removed` lists it.")
@home_option
def restore(job: str, at: str | None, home: str) -> None:
    """Continue a removed job where it stopped."""
    _client(home).restore(job, at)
    click.echo(f"restored: {job}")


@click.command()
@click.argument("job")
@click.argument("share", metavar="N")
@home_option
def share(job: str, share: str, home: str) -> None:
    """Set the weight of a job when slots are short, 1 to 10."""
    _client(home).change(job, {"share": field_value(share)})
    click.echo(f"{job}: share {share}")


@click.command()
@click.argument("job")
@click.argument("rows", metavar="ROWS")
@home_option
def limit(job: str, rows: str, home: str) -> None:
    """Set the maximum number of rows that an epoch of a job reads; "none" returns to the settings."""
    _client(home).change(job, {"read_limit": field_value(rows)})
    click.echo(
        f"{job}: {'no read limit of its own' if field_value(rows) is None else f'at most {rows} rows per epoch'}"
    )


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@home_option
def ui(only_print: bool, home: str) -> None:
    """Open the dashboard of the running service in a browser, by a link that logs in once."""
    import webbrowser

    link = _client(home).login_link()
    opened = not only_print and webbrowser.open(link)
    click.echo(f"opened {link.partition('#')[0]}" if opened else link)


COMMANDS = (run, ui, submit, intent, pause, resume, remove, removed, restore, share, limit)
