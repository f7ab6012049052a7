"""Benchmark of leasing and releasing hosts under a running job: the time of each step, and lost or doubled rows.

The benchmark runs on a Spark standalone cluster on this machine. The work waits instead of computing, so that slots are scarce and not the
cores of this machine: a second host also helps on a machine with two cores.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench import Figure, Result
from headgate.bench.workload import ROWS, Work, home, mean, wait_for
from headgate.config import FAST, FAST_HOSTS, FAST_SPARK, SparkSettings
from headgate.config.settings import host_settings_from, settings_from
from headgate.controller import Controller
from headgate.core.hosts import HostPhase, HostType
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.hosts.landlord import Landlord
from headgate.hosts.leases import Budget
from headgate.hosts.planners import SharedSlots
from headgate.hosts.provision import Terms
from headgate.journal import MemoryJournal
from headgate.ports import JobPhase
from headgate.scheduler.policies import Headgate
from headgate.sim.reports.bars import Bar
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine, open_engine
from headgate.spark.hosts.pool import LocalPool
from headgate.topology import Topology

JOB = "steps"
LOW, HIGH = 100, 500
"""Rows per second."""
WORK = Work(wait_s=0.004)
"""At the low rate 0.4 lanes are busy, at the high one 2: more than the slots of one host."""
LATENCY_S = 4.0
KIND = HostType("local", cores=2, memory_mb=1024, price=1.0, btu_s=60.0)
MOST_HOSTS = 2
WARM_UP = 20
"""Epochs of another job before anything is measured: those of a JVM that has just started are slow."""
BEFORE_S, HIGH_S = 20.0, 120.0
"""Seconds of the low load at the start, and of the high load."""
LAST_S = 20.0
"""Seconds at the end of the high load, in which one host alone would be far too slow."""
AFTER_S = 100.0
"""Seconds after the load fell within which a host must be gone: its BTU ends within 60 s, and the rest is for decisions."""
SETTINGS = settings_from({**FAST, "window_s": 16.0})
SPARK = SparkSettings(driver_memory_mb=1024, first_rows=1000, first_pace_s=FAST_SPARK["first_pace_s"])


@dataclass(slots=True)
class HostsCourse:
    """The events and latencies of one run."""

    begun_s: float
    """The time at which the first row could arrive."""
    at_s: dict[str, float] = field(default_factory=dict)
    """The time at which each event was first seen, by name."""
    latency: list[tuple[float, float]] = field(default_factory=list)
    """(time, latency of the newest rows)"""
    most_hosts: int = 0
    restarts: int = 0

    def first(self, what: str, at_s: float) -> None:
        """Record the time of an event when it is seen for the first time."""
        self.at_s.setdefault(what, at_s)

    def between(self, start: str, end: str) -> float:
        """Return the seconds between two events; infinite if either event did not happen."""
        return self.at_s[end] - self.at_s[start] if start in self.at_s and end in self.at_s else math.inf

    def worst_latency_s(self) -> float:
        """Return the highest latency under the high load."""
        return max(self._under_load(0.0), default=0.0)

    def last_latency_s(self) -> float:
        """Return the mean latency at the end of the high load."""
        return mean(self._under_load(HIGH_S - LAST_S))

    def _under_load(self, from_s: float) -> list[float]:
        begun_s = self.begun_s + BEFORE_S
        return [late_s for at_s, late_s in self.latency if from_s < at_s - begun_s < HIGH_S]


def measure() -> Result:
    """Let the load rise until a host is leased and runs lanes, and fall until the host is released at the end of its BTU."""
    with home() as place, cluster(place) as (engine, landlord):
        course = _run(engine, landlord, place / "out")
        rows, wrong = _checked(engine, place / "out")
        bill = landlord.bill(time.time())
    figures = (
        Figure("load rises until a host is leased", course.between("high", "leased"), "s"),
        Figure("leased until its worker is ready", course.between("leased", "ready"), "s"),
        Figure("ready until it runs lanes", course.between("ready", "lanes"), "s"),
        Figure("leased until the intent is met", course.between("leased", "met"), "s"),
        Figure("load falls until a host is released", course.between("low", "released"), "s"),
        Figure("released until its process is gone", course.between("released", "gone"), "s"),
        Figure("paid time given away with it", bill.wasted_s, "s"),
        Figure("worst latency under load", course.worst_latency_s(), "s"),
        Figure(
            f"mean latency in the last {LAST_S:g} s of the load (intent: {LATENCY_S:g} s)", course.last_latency_s(), "s"
        ),
        Figure("paid BTUs", bill.paid_btus, ""),
        Figure("rows checked", rows, ""),
    )
    happened = tuple(one for one in figures if math.isfinite(one.value))
    return Result(happened, _bars(course, wrong, bill.wasted_s))


def _bars(course: HostsCourse, wrong: float, wasted_s: float) -> tuple[Bar, ...]:
    return (
        Bar(
            "hosts leased for the load, and released after it",
            float({"lanes", "gone"} <= course.at_s.keys()),
            "==",
            1.0,
        ),
        Bar("most hosts at once (budget)", course.most_hosts, "<=", MOST_HOSTS),
        Bar("latency in the end of the load, as a share of its worst", _recovered(course), "<=", 0.5),
        Bar("share of a BTU given away with the released host", wasted_s / KIND.btu_s, "<=", 0.5),
        Bar("rows lost or doubled", wrong, "==", 0.0),
        Bar("times the job was restarted", course.restarts, "==", 0.0),
    )


def _recovered(course: HostsCourse) -> float:
    """Return the last latency under load as a share of the worst; 1 if none was measured."""
    worst_s, last_s = course.worst_latency_s(), course.last_latency_s()
    return last_s / worst_s if worst_s and last_s else 1.0


@contextmanager
def cluster(place: Path) -> Iterator[tuple[SparkEngine, Landlord]]:
    """Yield an engine and a landlord with a pool of hosts, of which one is ready."""
    hosts = host_settings_from({**FAST_HOSTS, "point_price": 10.0})
    pool = LocalPool(place / "hosts", drain_s=hosts.lane_drain_s)
    try:
        terms = Terms((KIND,), Budget(MOST_HOSTS), hosts)
        landlord = Landlord(pool, SharedSlots(terms, SETTINGS), MemoryJournal())
        landlord.begin(time.time())
        engine = open_engine(place, SPARK, pool.master_url, pool.application(terms))
        landlord.occupants = engine
        try:
            wait_for(lambda: any(host.phase is HostPhase.READY for host in pool.hosts().values()))
            yield engine, landlord
        finally:
            engine.close()
    finally:
        pool.close()


COURSE = sources.Steps([(0, LOW), (BEFORE_S, HIGH), (BEFORE_S + HIGH_S, LOW), (BEFORE_S + HIGH_S + AFTER_S, 0)])
"""The load: a low rate, a high rate, the low rate again, and then no rows."""


def topology(out: Path, load: sources.Load = COURSE) -> Topology:
    """Return a job that works on each row and keeps the row."""
    made = Topology(JOB, Intent(latency=LATENCY_S, worth=60))
    worked = made.batches("work", WORK, made.source("in", sources.load(load)), schema=ROWS, lanes=2)
    made.sink("out", sinks.files(out), worked)
    return made


def _run(engine: SparkEngine, landlord: Landlord, out: Path) -> HostsCourse:
    _warm_up(engine, out.with_name("warm-up"))
    engine.submit(topology(out))
    policy = Headgate(SETTINGS)
    controller = Controller(engine, policy, None, SETTINGS)
    course = HostsCourse(time.time())
    query = engine.job(JOB).query
    ends_s = course.begun_s + BEFORE_S + HIGH_S + AFTER_S
    course.at_s |= {"high": course.begun_s + BEFORE_S, "low": course.begun_s + BEFORE_S + HIGH_S}
    while time.time() < ends_s and "gone" not in course.at_s:
        time.sleep(SETTINGS.round_s)
        view, _ = controller.round()
        if landlord.look(view):
            policy.cluster_changed()
        _note(course, view, landlord)
        course.restarts += engine.states()[JOB].phase is not JobPhase.RUNNING or engine.job(JOB).query is not query
    wait_for(lambda: time.time() > ends_s and _drained(engine), within_s=AFTER_S + 120.0)
    engine.pause(JOB)
    return course


def _warm_up(engine: SparkEngine, out: Path) -> None:
    engine.submit(topology(out, sources.Steady(LOW)))
    wait_for(lambda: engine.job(JOB).epochs >= WARM_UP, within_s=300.0)
    engine.remove(JOB)


def _note(course: HostsCourse, view: View, landlord: Landlord) -> None:
    """Record the first times of hosts beyond the first host, and of lanes on those hosts."""
    hosts, seen, now_s = landlord.hosts(), view.jobs.get(JOB), time.time()
    course.most_hosts = max(course.most_hosts, len(hosts))
    for host in hosts.values():
        if host.leased_s > course.at_s["high"]:
            course.first("leased", host.leased_s)
            if host.phase is HostPhase.READY:
                course.first("ready", now_s)
            if host.address in _places(view):
                course.first("lanes", now_s)
    if "lanes" in course.at_s and any(host.phase is HostPhase.RELEASING for host in hosts.values()):
        course.first("released", now_s)
    elif "lanes" in course.at_s and len(hosts) == 1:
        course.first("released", now_s)
        course.first("gone", now_s)
    if seen is not None and seen.recent_latency_s is not None:
        course.latency.append((now_s, seen.recent_latency_s))
        if "lanes" in course.at_s and seen.recent_latency_s <= LATENCY_S:
            course.first("met", now_s)


def _places(view: View) -> set[str]:
    samples = view.jobs[JOB].samples if JOB in view.jobs else ()
    operators = samples[-1].reading.operators.values() if samples else ()
    return {place for one in operators for place in one.hosts or ()}


def _drained(engine: SparkEngine) -> bool:
    time.sleep(1.0)
    reading = engine.observe().jobs.get(JOB)
    return reading is not None and reading.backlog == 0


def _checked(engine: SparkEngine, path: Path) -> tuple[float, float]:
    """Return (rows written, rows lost or doubled): rows are numbered 0, 1, 2, … without a gap."""
    numbers = Counter(row.row for row in sinks.read_files(engine.spark, path).select("row").toLocalIterator())
    doubled = sum(count - 1 for count in numbers.values())
    expected = round(LOW * (BEFORE_S + AFTER_S) + HIGH * HIGH_S)
    lost = len(set(range(expected)) - numbers.keys()) + len(numbers.keys() - set(range(expected)))
    return float(sum(numbers.values())), float(doubled + lost)
