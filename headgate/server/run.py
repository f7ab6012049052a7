"""A service from its start to its clean end: lock, jobs, engine, API, loop, signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from headgate.config import HostSettings, SparkSettings, snapshots_needed
from headgate.core.provision import Terms
from headgate.errors import JobFileError
from headgate.journal import SqliteJournal
from headgate.landlord import Landlord
from headgate.ports import HostPool, Jobs
from headgate.server.app import app_of, listen, served
from headgate.server.home import Home
from headgate.server.registry import Registry
from headgate.server.service import Built, Loop, Service, Watcher, by_name
from headgate.server.status import Summary, summary
from headgate.spark.jobfile import JobRequest, build, wants_spark
from headgate.spark.topology import Topology

TICK_S = 0.2
"""How long it may take until a stop, or a job that failed, is noticed."""

OpenEngine = Callable[..., Jobs]
"""Given a directory, settings and a master; and what else Spark is to be configured with, if there is anything."""


class ClusterPool(HostPool, Protocol):
    """A pool whose hosts are those of one Spark cluster."""

    @property
    def master_url(self) -> str:
        """What an application connects to."""

    def application(self, terms: Terms) -> Mapping[str, str]:
        """What it is configured with."""

    def close(self) -> None:
        """End all hosts."""


OpenPool = Callable[[Path, HostSettings], ClusterPool]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, where and how."""

    home: Home
    requests: Sequence[JobRequest]
    loop: Loop
    spark: SparkSettings
    master: str | None = None
    port: int = 0
    for_s: float | None = None
    """End by itself after so long; None: never."""
    hosts: Terms | None = None
    """Lease hosts of this machine on these terms; None: run on what is there."""


class Stop:
    """Whether somebody asked the service to end; whoever asks twice does not want to wait."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once: Callable[[], None] = lambda: None
        """What must be done even for those who do not want to wait: hosts would outlive this process."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            try:
                self.at_once()
            finally:
                os._exit(128 + number)
        self.asked = True

    def listen(self) -> None:
        """Take Ctrl-C and `kill` for a wish to end; again after Spark has started, which takes Ctrl-C for itself."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self)


@contextmanager
def _own_signals(stop: Stop) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop.listen()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def run(
    plan: Plan, open_engine: OpenEngine, watcher: Watcher, stop: Stop | None = None, open_pool: OpenPool | None = None
) -> Summary:
    """Run until somebody asks to stop, or the time is over; returns what came of it."""
    stop = stop or Stop()
    with ExitStack() as stack:
        stack.enter_context(plan.home.held())
        stack.enter_context(_own_signals(stop))
        registry = Registry(plan.home.jobs)
        early = [(request, _built_early(request)) for request in plan.requests]
        by_name((request, topology) for request, topology in early if topology is not None)
        listening = stack.enter_context(closing(listen(plan.port)))
        window = snapshots_needed(plan.loop.settings)
        journal = stack.enter_context(SqliteJournal(plan.home.journal, window=window))
        pool = _pool(plan, open_pool or _open_pool)
        if pool is not None:
            stop.at_once = pool.close
        landlord = _landlord(plan, pool, journal, watcher, stack)
        watcher.tell(time.time(), "", "starts Spark")
        engine = stack.enter_context(closing(_engine(plan, open_engine, pool)))
        if landlord is not None:
            landlord.occupants = engine
        stop.listen()
        for policy in plan.loop.user_policies.values():
            stack.callback(policy.close)
        service = Service(engine, registry, journal, plan.loop, watcher, landlord=landlord)
        stack.callback(service.alerts.close)
        service.start(_built(early), only_these=bool(plan.requests))
        url = stack.enter_context(served(app_of(service, plan.home.new_token()), listening))
        stack.enter_context(plan.home.announced(url))
        watcher.tell(service.now_s(), "", f"answers at {url}; the token is in {plan.home.token}")
        done = _loop(service, plan, stop)
        watcher.tell(service.now_s(), "", "stops when the epochs in flight are finished")
        return done


def _pool(plan: Plan, open_pool: OpenPool) -> ClusterPool | None:
    """Where hosts come from. Those that somebody left behind who was killed go if none are wanted."""
    if plan.hosts is None and plan.home.hosts.exists():
        from headgate.spark.pool import left_behind

        if left_behind(plan.home.hosts):
            open_pool(plan.home.hosts, HostSettings()).close()
    return None if plan.hosts is None else open_pool(plan.home.hosts, plan.hosts.settings)


def _open_pool(home: Path, settings: HostSettings) -> ClusterPool:
    """Processes of this machine; imported late, because most services need none of it."""
    from headgate.spark.pool import LocalPool

    return LocalPool(home, drain_s=settings.lane_drain_s)


def _landlord(
    plan: Plan, pool: ClusterPool | None, journal: SqliteJournal, watcher: Watcher, stack: ExitStack
) -> Landlord | None:
    """Who leases hosts; the first one starts while Spark does."""
    if pool is None or plan.hosts is None:
        return None
    loop = plan.loop
    landlord = Landlord(
        pool, plan.hosts, journal, loop.settings, lambda at_s, text: watcher.tell(at_s, "", text), loop.observe_only
    )
    stack.callback(lambda: landlord.end(time.time()))
    stack.callback(pool.close)
    landlord.begin(time.time())
    return landlord


def _engine(plan: Plan, open_engine: OpenEngine, pool: ClusterPool | None) -> Jobs:
    if pool is None or plan.hosts is None:
        return open_engine(plan.home.path, plan.spark, plan.master)
    return open_engine(plan.home.path, plan.spark, pool.master_url, pool.application(plan.hosts))


def _built_early(request: JobRequest) -> Topology | None:
    """Before Spark starts, so that a mistake is told at once; None if the file asks Spark for something."""
    try:
        return build(request)
    except JobFileError as error:
        if wants_spark(error):
            return None
        raise


def _built(early: Sequence[tuple[JobRequest, Topology | None]]) -> Iterator[Built]:
    return ((request, topology or build(request)) for request, topology in early)


def _loop(service: Service, plan: Plan, stop: Stop) -> Summary:
    """Rounds at their times; one that is late moves those after it."""
    round_s = plan.loop.settings.round_s
    begun_s = time.monotonic()
    next_s = begun_s + round_s
    while not stop.asked and not _over(plan, begun_s):
        service.look()
        if time.monotonic() >= next_s:
            service.round()
            next_s = max(next_s + round_s, time.monotonic())
        time.sleep(max(0.0, min(TICK_S, next_s - time.monotonic())))
    return summary(time.monotonic() - begun_s, service.tally, service.status())


def _over(plan: Plan, begun_s: float) -> bool:
    return plan.for_s is not None and time.monotonic() - begun_s >= plan.for_s
