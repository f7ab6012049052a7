"""A service from its start to its clean end: jobs, engine, API, loop, signals. The caller holds the lock of the home."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

from headgate import clock, files
from headgate.alerts import ALERT
from headgate.config import HostSettings, ServiceSettings, SparkSettings, snapshots_needed
from headgate.core.hosts import HostPlace, HostSource
from headgate.core.quantities import about
from headgate.errors import EngineLostError, HeadgateError, IntentError, JournalDamagedError, NeedsSparkError
from headgate.health.policies import check_policy
from headgate.hosts.landlord import Landlord
from headgate.hosts.planners import SharedSlots
from headgate.hosts.provision import ProvisionerName, Terms
from headgate.hosts.reserved import ReservedSlots
from headgate.jobfile import JobRequest
from headgate.journal import SIDE_FILES, SqliteJournal
from headgate.ports import HostPool, Jobs
from headgate.server.app import app_of, listen, served
from headgate.server.home import Home, user_name
from headgate.server.jobs import Built, by_name
from headgate.server.listening import Tls, check_listening
from headgate.server.login_routes import login_path
from headgate.server.registry import Registry
from headgate.server.service import Loop, Service, Watcher
from headgate.server.sessions import Identity
from headgate.server.status import Summary, summary
from headgate.server.supervise import ServiceStart
from headgate.spark.processes.jobloader import build
from headgate.topology import Topology

PRIVATE_UMASK = 0o077
TICK_S = 0.2
"""Seconds between two checks for a stop or a failed job."""

LOADS_AT_ONCE = 4
"""Number of job files that are loaded in parallel when a service starts."""

OpenEngine = Callable[..., Jobs]
"""Opens the engine; takes a directory, settings, a master and, optionally, further configuration of Spark."""


class ClusterPool(HostPool, Protocol):
    """A pool of the hosts of one Spark cluster."""

    @property
    def master_url(self) -> str:
        """Return the URL of the master to which an application connects."""

    def application(self, terms: Terms) -> Mapping[str, str]:
        """Return the Spark configuration of an application."""

    def close(self) -> None:
        """End all hosts."""


OpenPool = Callable[[Path, HostSettings], ClusterPool]
MACHINES = "machines"
"""Name of the directory, inside the directory of hosts, with the files of the pool of `--hosts command:FILE`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, where and how."""

    home: Home
    requests: Sequence[JobRequest]
    loop: Loop
    spark: SparkSettings
    master: str | None = None
    port: int = 0
    address: str = "127.0.0.1"
    """Address on which the API listens; other machines reach the API only under TLS."""
    tls: Tls | None = None
    shows_login: bool = True
    """Whether the log shows a link that logs in once; False if log collectors would keep the link."""
    for_s: float | None = None
    """Seconds after which the service ends; None means never."""
    hosts: Terms | None = None
    """Terms on which hosts are leased; None if the service leases no hosts."""
    host_source: HostSource = field(default_factory=HostSource)
    provisioner: ProvisionerName | None = None
    """The baseline that decides about lanes and hosts; None if Headgate decides, by intents."""
    service: ServiceSettings = field(default_factory=ServiceSettings)
    life: ServiceStart = field(default_factory=ServiceStart)


class StopRequest:
    """Whether a signal asked the service to end; a second signal ends it without waiting."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once: Callable[[], None] = lambda: None
        """Called on a second signal before the process exits, to end hosts that would outlive the process."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            try:
                self.at_once()
            finally:
                os._exit(128 + number)
        self.asked = True

    def listen(self) -> None:
        """Handle SIGINT and SIGTERM; called again after Spark has started, because Spark replaces the handler of Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self)


@contextmanager
def _own_signals(stop: StopRequest) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop.listen()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def run(
    plan: Plan,
    open_engine: OpenEngine,
    watcher: Watcher,
    stop: StopRequest | None = None,
    open_pool: OpenPool | None = None,
) -> Summary:
    """Run until a signal asks to stop or the time is over; returns the outcome."""
    try:
        return _run(plan, open_engine, watcher, stop or StopRequest(), open_pool or partial(_open_pool, plan))
    except HeadgateError as error:
        if plan.life.begun_s is None or isinstance(error, EngineLostError):
            raise
        # The service has run before with the same input, so the cause, such as a full disk, may be temporary.
        raise EngineLostError(f"the service could not go on: {error}") from error


def _run(plan: Plan, open_engine: OpenEngine, watcher: Watcher, stop: StopRequest, open_pool: OpenPool) -> Summary:
    with ExitStack() as stack:
        plan.home.create()
        # Journal, state and logs may contain rows, so only their user may read them.
        stack.callback(os.umask, os.umask(PRIVATE_UMASK))
        stack.enter_context(_own_signals(stop))
        check_listening(plan.address, plan.tls)
        registry = Registry(plan.home.jobs)
        requests = _requests(plan, registry)
        limit_s = plan.loop.settings.load_job_s
        early = _built_early(requests, limit_s)
        for request, topology in early:
            if topology is not None:
                with about(f'{request.file}: job "{topology.name}": intent', IntentError):
                    check_policy(topology.intent, plan.loop.user_policies)
        by_name((request, topology) for request, topology in early if topology is not None)
        listening = stack.enter_context(closing(listen(plan.port, plan.address)))
        journal = stack.enter_context(_journal(plan, watcher))
        pool = _pool(plan, open_pool)
        if pool is not None:
            stop.at_once = pool.close
        landlord = _landlord(plan, pool, journal, watcher, stack)
        watcher.tell(clock.now_s(), "", "starts Spark")
        engine = stack.enter_context(_closed_unless_lost(_engine(plan, open_engine, pool)))
        if landlord is not None:
            landlord.serve(engine)
        stop.listen()
        for policy in plan.loop.user_policies.values():
            stack.callback(policy.close)
        service = Service(engine, registry, journal, plan.loop, watcher, landlord=landlord)
        stack.callback(service.alerts.close)
        service.prepare(_built(early, limit_s), only_these=bool(requests))
        stack.enter_context(service.jobs.starts.running(plan.spark.starts_at_once))
        begun_s = time.monotonic()
        plan.life.report(begun_s)  # before the API answers: from here on, changes by requests survive a restart
        announce = stack.enter_context(_answering(plan, service, listening))
        done = _loop(service, plan, stop, announce, begun_s)
        watcher.tell(service.now_s(), "", "stops when the epochs in flight are finished")
        return done


def _requests(plan: Plan, registry: Registry) -> Sequence[JobRequest]:
    """Return the jobs of the files; none for a restarted service with a sound registry, so that removed jobs stay removed."""
    started = plan.life.begun_s is not None
    return () if started and not registry.damage else plan.requests


def _journal(plan: Plan, watcher: Watcher) -> SqliteJournal:
    window = snapshots_needed(plan.loop.settings)
    return opened(plan.home.journal, window, lambda text: watcher.tell(clock.now_s(), "", f"{ALERT}{text}"))


def opened(path: Path, window: int, tell: Callable[[str], None]) -> SqliteJournal:
    """Open the journal of a service; a damaged file is set aside and replaced by a new journal."""
    try:
        with ExitStack() as stack:
            journal = stack.enter_context(SqliteJournal(path, window=window))
            journal.check()
            stack.pop_all()
            return journal
    except JournalDamagedError as error:
        aside = files.set_aside(path, *(f"{path.name}{suffix}" for suffix in SIDE_FILES))
        tell(f"{error}; it is kept as {aside}, and a new journal begins: lanes and pace are those of the job files")
        return SqliteJournal(path, window=window)


@contextmanager
def _answering(plan: Plan, service: Service, listening: socket.socket) -> Iterator[Callable[[], None]]:
    """Serve the API while the block runs; yields a function that writes the address file again if it was lost."""
    app = app_of(service, plan.home.new_token(), plan.service, plan.home.kept_metrics_token())

    def tell(text: str) -> None:
        service.watcher.tell(service.now_s(), "", text)

    certificate = plan.tls.certificate if plan.tls is not None else None
    with (
        served(app, listening, plan.service, tell, plan.tls) as url,
        plan.home.announced(url, certificate) as announce,
    ):
        tell(f"answers at {url}; the token is in {plan.home.token}")
        if plan.shows_login:
            link = login_path(app.state.sessions, Identity(user_name()))
            tell(f"dashboard: {url}{link} logs in once; `headgate ui` opens it")
        else:
            tell(f"dashboard: {url}; `headgate ui` opens it with a link that logs in once")
        yield announce


@contextmanager
def _closed_unless_lost(engine: Jobs) -> Iterator[Jobs]:
    """Close the engine when the block ends, unless the engine is lost: a lost engine has nothing left to close."""
    try:
        yield engine
    finally:
        if not engine.lost():
            _close(engine)


def _close(engine: Jobs) -> None:
    try:
        engine.close()
    except Exception as error:
        lost = engine.lost()
        if not lost:
            raise
        raise EngineLostError(f"{lost} while the jobs were being stopped") from error


def _pool(plan: Plan, open_pool: OpenPool) -> ClusterPool | None:
    """Open the pool of hosts, None if no hosts are leased; first release hosts of a killed service that are not taken over."""
    wanted = None if plan.hosts is None else plan.host_source.place
    release_left_hosts(plan.home, wanted, open_pool)
    if plan.hosts is None:
        return None
    return open_pool(plan.home.hosts, plan.hosts.settings)


def release_left_hosts(home: Home, wanted: HostPlace | None = None, open_pool: OpenPool | None = None) -> None:
    """End hosts that a service leased and could not release, unless the service takes over hosts of this kind."""
    if not home.hosts.exists():
        return
    from headgate.spark.hosts.machines import MachinePool, remembered
    from headgate.spark.hosts.pool import left_behind

    if wanted is not HostPlace.LOCAL and left_behind(home.hosts):
        (open_pool or _open_local)(home.hosts, HostSettings()).close()
    machines = remembered(home.hosts / MACHINES)
    if wanted is not HostPlace.COMMAND and machines is not None:
        MachinePool(home.hosts / MACHINES, Path(machines.command), machines.master_url).close()


def _open_pool(plan: Plan, home: Path, settings: HostSettings) -> ClusterPool:
    """Open the pool that `--hosts` names; imports are late, because most services lease no hosts."""
    source, master = plan.host_source, plan.master or ""
    if source.place is HostPlace.EXECUTORS:
        from headgate.spark.hosts.executors import ExecutorPool

        return ExecutorPool(master, clock.now_s, settings.lease_wait_s, settings.lane_drain_s)
    if source.place is HostPlace.COMMAND:
        from headgate.spark.hosts.machines import Limits, MachinePool

        limits = Limits(settings.command_s, settings.lease_wait_s)
        return MachinePool(home / MACHINES, Path(source.command), master, clock.now_s, limits)
    return _open_local(home, settings)


def _open_local(home: Path, settings: HostSettings) -> ClusterPool:
    """Open a pool of hosts that are processes of this machine."""
    from headgate.spark.hosts.pool import LocalPool
    from headgate.spark.logs import Logs

    logs = Logs(settings.host_log_mb, settings.host_log_files)
    return LocalPool(home, clock.now_s, drain_s=settings.lane_drain_s, logs=logs, released_logs=settings.released_logs)


def _landlord(
    plan: Plan, pool: ClusterPool | None, journal: SqliteJournal, watcher: Watcher, stack: ExitStack
) -> Landlord | None:
    """Return the landlord, which leases hosts, or None; the first host starts while Spark starts."""
    if pool is None or plan.hosts is None:
        return None
    loop = plan.loop
    planner = (
        SharedSlots(plan.hosts, loop.settings)
        if plan.provisioner is None
        else ReservedSlots(plan.provisioner, plan.hosts, loop.settings)
    )
    landlord = Landlord(pool, planner, journal, lambda at_s, text: watcher.tell(at_s, "", text), loop.observe_only)
    stack.push(partial(_end_hosts, plan, pool, landlord))
    landlord.begin(clock.now_s())
    return landlord


def _end_hosts(plan: Plan, pool: ClusterPool, landlord: Landlord, kind: type[BaseException] | None, *_: object) -> None:
    """End all hosts, unless the service starts again at once and takes the hosts over."""
    if plan.life.supervised and kind is not None and issubclass(kind, EngineLostError):
        return
    pool.close()
    landlord.end(clock.now_s())


def _engine(plan: Plan, open_engine: OpenEngine, pool: ClusterPool | None) -> Jobs:
    if pool is None or plan.hosts is None:
        return open_engine(plan.home.path, plan.spark, plan.master)
    return open_engine(plan.home.path, plan.spark, pool.master_url, pool.application(plan.hosts))


def _built_early(requests: Sequence[JobRequest], limit_s: float) -> list[tuple[JobRequest, Topology | None]]:
    """Load the files before Spark starts, so that errors appear at once; None for a file that needs Spark."""

    def built(request: JobRequest) -> Topology | None:
        try:
            return build(request, limit_s)
        except NeedsSparkError:
            return None

    with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
        return list(zip(requests, pool.map(built, requests), strict=True))


def _built(early: Sequence[tuple[JobRequest, Topology | None]], limit_s: float) -> Iterator[Built]:
    return ((request, topology or build(request, limit_s)) for request, topology in early)


def _loop(service: Service, plan: Plan, stop: StopRequest, announce: Callable[[], None], begun_s: float) -> Summary:
    """Run a round every `round_s`; a late round delays the rounds after it. `--for` counts from the loop of the first start."""
    round_s = plan.loop.settings.round_s
    first_s = begun_s if plan.life.begun_s is None else plan.life.begun_s
    next_s = begun_s + round_s
    while not stop.asked and not _over(plan, first_s):
        _check_engine(service)
        service.look()
        if time.monotonic() >= next_s:
            service.round()
            service.tried("the address", announce)
            next_s = max(next_s + round_s, time.monotonic())
        time.sleep(max(0.0, min(TICK_S, next_s - time.monotonic())))
    return summary(time.monotonic() - begun_s, service.tally, service.status())


def _check_engine(service: Service) -> None:
    lost = service.engine.lost()
    if lost:
        raise EngineLostError(lost)


def _over(plan: Plan, first_s: float) -> bool:
    return plan.for_s is not None and time.monotonic() - first_s >= plan.for_s
