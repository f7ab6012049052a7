"""`headgate run`: reads the options, runs the service and prints its summary."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from headgate.cli.output import (
    as_json,
    complain,
    console_of_stdout,
    home_option,
    pairs,
    plain_table,
    show,
    verbatim,
)
from headgate.config import FAST, FAST_HOSTS, FAST_SPARK
from headgate.config.settings import all_settings_from
from headgate.core.hosts import HostPlace, HostSource, HostType
from headgate.core.quantities import choice, seconds, show_seconds
from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.alerts import Webhook
    from headgate.cli.json_log import JsonLog
    from headgate.config import ServiceSettings, Settings, SparkSettings
    from headgate.config.settings import RunSettings
    from headgate.health.isolation.processes import IsolatedPolicy
    from headgate.hosts.provision import ProvisionerName, Terms
    from headgate.jobfile import ClusterFile
    from headgate.ports import Jobs
    from headgate.server.home import Home
    from headgate.server.listening import Tls
    from headgate.server.run import Plan
    from headgate.server.status import JobStatus, Summary
    from headgate.server.supervise import ServiceStart
    from headgate.server.tenants import Tenant

HEADGATE = "headgate"
POLICIES = (HEADGATE, "lanes-only", "static", "threshold")
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
    metavar="PLACE",
    help="Lease hosts when the utility gained is worth the price: local:N, executors:N of --master, or command:FILE.",
)
@click.option(
    "--provisioner",
    metavar="NAME",
    default=HEADGATE,
    show_default=True,
    help="With --hosts, who decides about lanes and hosts: headgate, or a baseline: btu, threshold, fixed.",
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
    help="Policy that decides: headgate, lanes-only, static or threshold.",
)
@click.option("--observe-only", is_flag=True, help="Record decisions, but apply none.")
@click.option("--for", "duration", metavar="DURATION", help="Stop the service after this time, such as 10m.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of the API [default: any free port]."
)
@click.option(
    "--listen",
    "address",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address of the API; other machines reach it only under TLS.",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate of the API, as PEM.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate, as PEM.")
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
    files: tuple[str, ...], home: str, master: str | None, hosts: str | None, provisioner: str, slots: str | None, fast: bool,
    settings: tuple[str, ...], params: tuple[str, ...], policy: str, observe_only: bool, duration: str | None, port: int,
    address: str, tls_cert: str | None, tls_key: str | None, no_restart: bool, log_format: str, json_too: bool,
) -> None:  # fmt: skip
    """Run jobs on Spark, each held to its intent.

    FILE is a job file (.py) or a cluster file (.toml). Without FILE, the jobs that ran last in this home run again.
    """
    from headgate.server.home import Home

    read = read_files(files, params)
    for_s = None if duration is None else seconds(duration, "--for")
    every = all_settings_from(_values(read, fast, slots, settings))
    choice(policy, "--policy", POLICIES)
    terms, source = (None, HostSource()) if hosts is None else _hosts(hosts, master, every)
    baseline = _baseline(provisioner, hosts, policy)
    tenants = _tenants(read)
    tls = _tls(address, tls_cert, tls_key)
    place = Home(Path(home))
    with place.held():
        log = _json_log() if log_format == JSON else None
        life = _life(place, every, for_s, no_restart, log.complain if log is not None else complain)
        # From here on, the code runs in the process of the service; the parent stays small and has no threads.
        from headgate.server.run import Plan
        from headgate.server.service import Loop

        plan = Plan(
            home=place,
            requests=[request for file in read for request in file.jobs],
            loop=Loop(
                every.loop,
                policy if baseline is None else "static",
                observe_only,
                _user_policies(read, every.loop),
                _webhook(read, every.service),
                every.service,
                tenants,
            ),
            spark=every.spark,
            master=master,
            port=port,
            address=address,
            tls=tls,
            shows_login=log is None,
            for_s=for_s,
            hosts=terms,
            host_source=source,
            provisioner=baseline,
            service=every.service,
            life=life,
        )
        done = _run(plan) if log is None else _run_logged(plan, log)
        if json_too:
            _echo_json(done)


def _tls(address: str, certificate: str | None, key: str | None) -> Tls | None:
    """Return the checked certificate of the API; None for plain HTTP."""
    from headgate.server.listening import Tls, check_listening

    if (certificate is None) != (key is None):
        raise InputError("--tls-cert and --tls-key belong together; give both, or none")
    tls = None if certificate is None or key is None else Tls(Path(certificate), Path(key))
    check_listening(address, tls)
    return tls


def _tenants(read: Sequence[ClusterFile]) -> tuple[Tenant, ...]:
    from headgate.server.tenants import tenants_from

    return tenants_from([table for file in read for table in file.tenants])


def _json_log() -> JsonLog:
    from headgate.cli.json_log import JsonLog

    return JsonLog()


def _echo_json(done: Summary) -> None:
    import msgspec

    click.echo(msgspec.json.encode(done).decode())


def _life(
    home: Home, every: RunSettings, for_s: float | None, no_restart: bool, tell: Callable[[str], None]
) -> ServiceStart:
    """Return in the process of the service; the supervising parent stays here and exits with the last exit code."""
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


def _baseline(provisioner: str, hosts: str | None, policy: str) -> ProvisionerName | None:
    """The baseline that decides about lanes and hosts in place of Headgate; None if Headgate decides."""
    from headgate.hosts.provision import ProvisionerName

    choice(provisioner, "--provisioner", (HEADGATE, *ProvisionerName))
    if provisioner == HEADGATE:
        return None
    if hosts is None:
        raise InputError(f"--provisioner {provisioner} decides about leased hosts; give --hosts as well")
    if policy not in (HEADGATE, "static"):
        raise InputError(f"--provisioner {provisioner} decides about lanes alone; take out --policy {policy}")
    return ProvisionerName(provisioner)


def _hosts(hosts: str, master: str | None, every: RunSettings) -> tuple[Terms, HostSource]:
    """Return the terms and the source of the hosts that `--hosts` leases; all hosts have the type of the settings."""
    from headgate.hosts.leases import Budget
    from headgate.hosts.provision import Terms

    name, _, what = hosts.partition(":")
    place = next((one for one in HostPlace if one.value == name), None)
    if place is None or not (what if place is HostPlace.COMMAND else what.isdecimal()):
        raise InputError(
            f'--hosts is "{hosts}"; it must be local:N or executors:N with the most hosts to lease, such as local:3, or command:FILE'
        )
    if place is HostPlace.LOCAL and master is not None:
        raise InputError("--hosts local:N leases hosts for a Spark of its own; take out --master, or --hosts")
    if place is not HostPlace.LOCAL and (master is None or master.startswith("local")):
        raise InputError(f"--hosts {name}:{what} leases hosts of a cluster; give its master with --master URL")
    source = HostSource(place, what) if place is HostPlace.COMMAND else HostSource(place)
    pool = every.pool
    kind = HostType(name, pool.host_cores, pool.host_memory_mb, pool.host_price, pool.btu_s, pool.startup_s)
    limit = pool.most_per_hour if math.isfinite(pool.most_per_hour) else None
    most = pool.most_hosts if place is HostPlace.COMMAND else int(what)
    return Terms((kind,), Budget(most, limit), every.hosts), source


def _run(plan: Plan) -> Summary:
    from headgate.cli.live import ServiceScreen, Steadfast
    from headgate.server.run import run as run_service

    with ServiceScreen(console_of_stdout(), plan.loop.settings.round_s) as screen:
        done = run_service(plan, open_engine, Steadfast(screen, complain))
    show(*_summary(done))
    return done


def _run_logged(plan: Plan, log: JsonLog) -> Summary:
    """Run the service with only lines of JSON on standard output."""
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
    """Start Spark; the import is late, because other commands do not need Spark."""
    from headgate.spark.engine import open_engine as open_spark

    return open_spark(home, settings, master, extra)


def read_files(files: Sequence[str], params: Sequence[str]) -> list[ClusterFile]:
    """Read job files and cluster files; parameters go to every job file."""
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
    """Parse a parameter as JSON; anything that is not JSON stays text, as do NaN and Infinity."""

    def text_after_all(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=text_after_all)
    except ValueError:
        return text


def _values(read: Sequence[ClusterFile], fast: bool, slots: str | None, settings: Sequence[str]) -> Mapping[str, Any]:
    """Merge the settings; later sources win: the files, `--fast`, `--slots`, `--set`."""
    of_files = {name: value for file in read for name, value in file.settings.items()}
    of_slots = {} if slots is None else {"slots": slots}
    return {**of_files, **({**FAST, **FAST_HOSTS, **FAST_SPARK} if fast else {}), **of_slots, **pairs(settings)}


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


COMMANDS = (run,)
