"""VISP's table 3 on real Spark: what four provisioners pay for hosts under the same stepwise load, and how many rows are in time.

Each provisioner has a Spark cluster of its own on this machine, with a short BTU. The work waits instead of computing, so that slots
are scarce and not the cores of this machine. A row is in real time if its latency is within the intent; VISP uses the expected duration.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench import Figure, Result, ratio
from headgate.bench.workload import ROWS, Work, home, wait_for, watched
from headgate.config import FAST, FAST_HOSTS, FAST_SPARK, SparkSettings
from headgate.config.settings import host_settings_from, settings_from
from headgate.controller import Controller
from headgate.core.hosts import HostPhase, HostType
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.hosts.landlord import Landlord
from headgate.hosts.leases import Bill, Budget
from headgate.hosts.planners import SharedSlots
from headgate.hosts.provision import ProvisionerName, Terms
from headgate.hosts.reserved import ReservedSlots
from headgate.journal import MemoryJournal
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import Headgate, Static
from headgate.sim.models.service import LEVELS
from headgate.sim.reports.bars import Bar
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine, open_engine
from headgate.spark.hosts.pool import LocalPool
from headgate.topology import Topology

HEADGATE = "headgate"
PROVISIONERS = (HEADGATE, *(name.value for name in ProvisionerName))
JOB, WARM = "steps", "warm-up"
LOW, HIGH = 100, 500
"""Rows per second."""
WORK = Work(wait_s=0.004)
"""At the low rate 0.4 lanes are busy, at the high one 2: more than the slots of one host should be."""
LANES, PEAK_LANES = 2, 4
"""The fixed provisioner has the lanes of the highest load from the start."""
LATENCY_S = 3.0
MOST_HOSTS = 3
WARM_UP = 10
"""Epochs of another job before anything is measured: those of a JVM that has just started are slow."""
SETTINGS = settings_from({**FAST, "window_s": 12.0})
HOSTS = host_settings_from(
    {**FAST_HOSTS, "provision_s": 2.0, "lane_drain_s": 4.0, "point_price": 100.0, "queue_low": 20.0}
)
SPARK = SparkSettings(driver_memory_mb=1024, first_rows=1000, first_pace_s=FAST_SPARK["first_pace_s"])


@dataclass(frozen=True, slots=True)
class BillingForm:
    """The lengths of the parts of the load, and of a BTU, in seconds."""

    low_s: float
    high_s: float
    btu_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the whole load: low, high, and low again."""
        return self.low_s + self.high_s + self.low_s

    @property
    def load(self) -> sources.Load:
        """Return the load: a low rate, a high rate, the low rate again, and then no rows."""
        high_s, low_s = self.low_s, self.low_s + self.high_s
        return sources.Steps([(0, LOW), (high_s, HIGH), (low_s, LOW), (self.total_s, 0)])

    @property
    def rows(self) -> int:
        """The number of rows of the whole load."""
        return round(2 * LOW * self.low_s + HIGH * self.high_s)


SHORT, FULL = BillingForm(10.0, 20.0, 15.0), BillingForm(60.0, 180.0, 60.0)


@dataclass(slots=True)
class BillingCourse:
    """The events and measurements under one provisioner."""

    in_time: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.0))
    """The number of rows in time, by level."""
    rows: float = 0.0
    """The number of rows with a known latency."""
    hosts: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    """How long each delay took until rows were in real time again."""
    late_since_s: float | None = None
    lanes: list[int] = field(default_factory=list)
    wrong: float = 0.0
    bill: Bill | None = None

    def note(self, view: View, landlord: Landlord) -> None:
        """Count the rows of a round by latency."""
        self.hosts.append(len(landlord.hosts()))
        job = view.jobs.get(JOB)
        if job is None or not job.samples or job.samples[-1].at_s < view.at_s:
            return
        self.lanes.append(sum(job.allocation.lanes.values()))
        latency = job.samples[-1].reading.latency
        if latency is None:
            return
        self.rows += latency.rows
        for level, times in LEVELS.items():
            self.in_time[level] += sum(weight for took_s, weight in latency.points if took_s <= times * LATENCY_S)
        self._note_delay(latency.mean_s > LATENCY_S, view.at_s)

    def _note_delay(self, late: bool, at_s: float) -> None:
        if late and self.late_since_s is None:
            self.late_since_s = at_s
        elif not late and self.late_since_s is not None:
            self.delays_s.append(at_s - self.late_since_s)
            self.late_since_s = None

    def share(self, level: str) -> float:
        """Return the share of the rows in time at a level."""
        return self.in_time[level] / self.rows if self.rows else 0.0


def measure(full: bool = False) -> Result:
    """Run the same load under each provisioner, one after another."""
    form = FULL if full else SHORT
    courses = {name: course(name, form) for name in PROVISIONERS}
    figures = [figure for name, found in courses.items() for figure in _figures(name, found)]
    return Result(tuple(figures), _bars(courses))


def course(name: str, form: BillingForm) -> BillingCourse:
    """Run one provisioner from its first host until all rows of the load are put out."""
    print(f"bench: {name}, {form.total_s:.0f} s", file=sys.stderr)
    found = BillingCourse()
    with home() as place, cluster(place, name, form) as (engine, landlord):
        _warm_up(engine, landlord, place / WARM)
        lanes = PEAK_LANES if name == ProvisionerName.FIXED else LANES
        engine.submit(topology(JOB, place / "out", form.load, lanes))
        policy = Headgate(SETTINGS) if name == HEADGATE else Static()
        controller = Controller(engine, policy, None, SETTINGS)

        def each(view: View, decision: Decision) -> None:
            if landlord.look(view):
                policy.cluster_changed()
            found.note(view, landlord)

        watched(controller, form.total_s, each)
        found.bill = landlord.bill(time.time())
        wait_for(lambda: _drained(engine), within_s=300.0)
        engine.pause(JOB)
        found.wrong = _wrong_rows(engine, place / "out", form.rows)
    return found


@contextmanager
def cluster(place: Path, name: str, form: BillingForm) -> Iterator[tuple[SparkEngine, Landlord]]:
    """Yield an engine and a landlord with a pool of hosts, of which one is ready."""
    pool = LocalPool(place / "hosts", drain_s=HOSTS.lane_drain_s)
    try:
        kind = HostType("local", cores=2, memory_mb=768, price=1.0, btu_s=form.btu_s, startup_s=10.0)
        terms = Terms((kind,), Budget(MOST_HOSTS), HOSTS)
        planner = (
            SharedSlots(terms, SETTINGS) if name == HEADGATE else ReservedSlots(ProvisionerName(name), terms, SETTINGS)
        )
        landlord = Landlord(pool, planner, MemoryJournal())
        landlord.begin(time.time())
        engine = open_engine(place, SPARK, pool.master_url, pool.application(terms))
        landlord.serve(engine)
        try:
            wait_for(lambda: any(host.phase is HostPhase.READY for host in pool.hosts().values()))
            yield engine, landlord
        finally:
            engine.close()
    finally:
        pool.close()


def topology(name: str, out: Path, load: sources.Load, lanes: int) -> Topology:
    """Return a job that works on each row and keeps the row."""
    made = Topology(name, Intent(latency=LATENCY_S, worth=60))
    worked = made.batches("work", WORK, made.source("in", sources.load(load)), schema=ROWS, lanes=lanes)
    made.sink("out", sinks.files(out), worked)
    return made


def _warm_up(engine: SparkEngine, landlord: Landlord, out: Path) -> None:
    """Run epochs of another job, and let the landlord look at hosts meanwhile, so that ended BTUs are paid."""
    engine.submit(topology(WARM, out, sources.Steady(LOW), LANES))

    def warm() -> bool:
        landlord.refresh(time.time())
        return engine.job(WARM).epochs >= WARM_UP

    wait_for(warm, within_s=300.0)
    engine.remove(WARM)


def _drained(engine: SparkEngine) -> bool:
    time.sleep(1.0)
    reading = engine.observe().jobs.get(JOB)
    return reading is not None and reading.backlog == 0


def _wrong_rows(engine: SparkEngine, path: Path, expected: int) -> float:
    """Count lost and doubled rows: rows are numbered 0, 1, 2, … without a gap."""
    numbers = Counter(row.row for row in sinks.read_files(engine.spark, path).select("row").toLocalIterator())
    return float(sum(count - 1 for count in numbers.values()) + len(set(range(expected)) ^ numbers.keys()))


def _figures(name: str, found: BillingCourse) -> Iterator[Figure]:
    """Return the figures of VISP's table 3 and the cost."""
    assert found.bill is not None
    yield Figure(f"{name}: paid BTUs", found.bill.paid_btus, "")
    yield Figure(f"{name}: cost", found.bill.cost, "money")
    yield Figure(f"{name}: leases", found.bill.leases, "")
    yield Figure(f"{name}: paid time given away", found.bill.wasted_s, "s")
    for level in LEVELS:
        yield Figure(f"{name}: {level} compliance", found.share(level), "")
    if found.delays_s:
        yield Figure(f"{name}: time to adapt", statistics.fmean(found.delays_s), "s")
    yield Figure(f"{name}: mean hosts", statistics.fmean(found.hosts), "")
    yield Figure(f"{name}: most lanes", max(found.lanes, default=0), "")


def _bars(courses: Mapping[str, BillingCourse]) -> tuple[Bar, ...]:
    ours, fixed = courses[HEADGATE], courses[ProvisionerName.FIXED]
    assert ours.bill is not None and fixed.bill is not None
    return (
        Bar("headgate: cost, times the fixed provisioner's", ratio(ours.bill.cost, fixed.bill.cost), "<=", 1.0),
        Bar("most hosts at once (budget)", max(max(one.hosts) for one in courses.values()), "<=", MOST_HOSTS),
        Bar("rows lost or doubled", sum(one.wrong for one in courses.values()), "==", 0.0),
    )
