"""Benchmark of ten jobs of different urgency on one small machine, three ways: plain Spark, Spark with fair pools, and Headgate.

The long form also runs them under a Headgate that never raises a share.

Three urgent jobs (1.5 s, worth 100 each), six relaxed ones (15 s, worth 10 each), and one that waits on a slow look-up and
starts with too few lanes (5 s, worth 50). The load is steady, then one urgent job's input triples.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench import Figure, Result, ratio
from headgate.bench.workload import Work, engine, job, mean, satisfaction, watched
from headgate.config import FAST, Settings, SparkSettings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.scheduler.policies import policy_named
from headgate.sim.reports.bars import Bar
from headgate.spark import sources
from headgate.topology import Topology

SLOTS = 16


@dataclass(frozen=True, slots=True)
class TenantsForm:
    """The length of each way."""

    warm_up_s: float
    run_s: float
    """Seconds after the warm-up; the load of one job triples half-way."""


SHORT, FULL = TenantsForm(20.0, 50.0), TenantsForm(60.0, 200.0)
SETTINGS = settings_from({**FAST, "window_s": 24.0})
LANES, DEFAULT_LANES = 2, SLOTS
URGENT, RELAXED, LOOK_UP = "urgent", "relaxed", "look-up"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run the jobs."""

    name: str
    policy: str
    lanes: int
    pace_s: float | None
    spark: SparkSettings
    extra: Mapping[str, str] = field(default_factory=dict)
    """Spark options that replace the options of Headgate."""
    settings: Settings = SETTINGS


OURS = SparkSettings(slots=SLOTS, first_pace_s=SETTINGS.window_s / 3)
UNLIMITED = SparkSettings(slots=SLOTS, first_rows=1_000_000_000, read_limit=1_000_000_000, longest_epoch_s=1e9)
"""Settings with which an epoch reads all rows that have arrived, as without Headgate."""
SPARKS_WORKERS = {"spark.python.daemon.module": "pyspark.daemon", "spark.sql.streaming.pollingDelay": "10ms"}
WAYS = (
    Way("plain", "static", DEFAULT_LANES, 0.0, UNLIMITED, {**SPARKS_WORKERS, "spark.scheduler.mode": "FIFO"}),
    Way("fair", "static", LANES, 0.0, UNLIMITED, SPARKS_WORKERS),
    Way("headgate", "headgate", LANES, None, OURS),
)
WITHOUT_SHARES = Way(
    "headgate, equal shares", "headgate", LANES, None, OURS, settings=dataclasses.replace(SETTINGS, share_step=1.0)
)


@dataclass(frozen=True, slots=True)
class TenantsCourse:
    """The rounds and actions of one way."""

    views: list[View]
    actions: list[tuple[float, str]]
    begun_s: float
    run_s: float

    @property
    def half(self) -> list[View]:
        """The rounds of the second half, from the moment at which the load triples."""
        return self.views[len(self.views) // 2 :]

    def satisfaction(self) -> float:
        return mean([satisfaction(view) for view in self.half])

    def latency_s(self, kind: str) -> float:
        """Return the mean latency of the jobs of a kind over the second half."""
        found = [
            job.latency_s
            for view in self.half
            for name, job in view.jobs.items()
            if name.startswith(kind) and job.latency_s is not None
        ]
        return mean(found)


def topologies(way: Way, form: TenantsForm) -> list[Topology]:
    """Return the ten jobs; the look-up needs four lanes or more and starts with one, unless the way gives every job sixteen lanes."""
    tripled = sources.Steps([(0, 1000), (form.warm_up_s + form.run_s / 2, 3000)])
    urgent = [
        job(f"{URGENT}-{number}", Intent(latency="1.5s", worth=100), tripled if number == 1 else 1000, Work(cpu_s=30e-6),
            way.lanes, way.pace_s)
        for number in range(1, 4)
    ]  # fmt: skip
    relaxed = [
        job(f"{RELAXED}-{number}", Intent(latency="15s", worth=10), 1000, Work(cpu_s=10e-6), way.lanes, way.pace_s)
        for number in range(1, 7)
    ]
    lanes = 1 if way.lanes == LANES else way.lanes
    look_up = job(LOOK_UP, Intent(latency="5s", worth=50), 250, Work(wait_s=0.01), lanes, way.pace_s)
    return [*urgent, *relaxed, look_up]


def course(way: Way, form: TenantsForm) -> TenantsCourse:
    """Run the jobs one way from beginning to end."""
    print(f"bench: {way.name}, {form.warm_up_s + form.run_s:.0f} s", file=sys.stderr)
    with engine(way.spark, way.extra) as spark:
        begun_s = time.time()
        for topology in topologies(way, form):
            spark.submit(topology)
        controller = Controller(spark, policy_named(way.policy, way.settings), None, way.settings)
        warming_up = watched(controller, begun_s + form.warm_up_s - time.time())
        rounds = watched(controller, form.run_s)
    actions = [
        (view.at_s, decision.action.sentence)
        for view, decision in (*warming_up, *rounds)
        if decision.action is not None
    ]
    return TenantsCourse([view for view, _ in rounds], actions, begun_s + form.warm_up_s, form.run_s)


def measure(plot: Path | None = None, full: bool = False) -> Result:
    """Satisfaction of the cluster and latency of the urgent jobs over the second half, each way."""
    ways = (*WAYS, WITHOUT_SHARES) if full else WAYS
    courses = {way.name: course(way, FULL if full else SHORT) for way in ways}
    figures = [
        figure
        for name, found in courses.items()
        for figure in (
            Figure(f"{name}: satisfaction", found.satisfaction(), ""),
            *(
                Figure(f"{name}: mean latency, {kind}", found.latency_s(kind), "s")
                for kind in (URGENT, RELAXED, LOOK_UP)
            ),
        )
    ]
    figures.append(Figure("headgate: actions", len(courses["headgate"].actions), ""))
    if plot is not None:
        draw(courses, plot)
    return Result(tuple(figures), _bars(courses))


def _bars(courses: Mapping[str, TenantsCourse]) -> tuple[Bar, ...]:
    plain, fair, ours = (courses[way.name] for way in WAYS)
    return (
        Bar("headgate: satisfaction", ours.satisfaction(), ">=", 0.95),
        Bar("headgate: satisfaction, times plain's", ratio(ours.satisfaction(), plain.satisfaction()), ">=", 2.0),
        Bar("headgate: satisfaction, times fair's", ratio(ours.satisfaction(), fair.satisfaction()), ">=", 1.5),
        Bar(
            "urgent jobs' latency, times lower than plain's",
            ratio(plain.latency_s(URGENT), ours.latency_s(URGENT)),
            ">=",
            4.0,
        ),
    )


def draw(courses: Mapping[str, TenantsCourse], path: Path) -> None:
    """Draw satisfaction and the latency of each kind of job over time."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(9, 8), layout="constrained")
    top, *panels = picture.subplots(4, 1, sharex=True)
    kinds = ((URGENT, 1.5), (RELAXED, 15.0), (LOOK_UP, 5.0))
    for name, found in courses.items():
        times_s = [view.at_s - found.begun_s for view in found.views]
        top.plot(times_s, [satisfaction(view) for view in found.views], label=name)
        for panel, (kind, _) in zip(panels, kinds, strict=True):
            panel.plot(times_s, [_latency_s(view, kind) for view in found.views], label=name)
    top.set(
        ylabel="satisfaction", ylim=(0, 1.05), title="Ten jobs on two cores; one urgent job's input triples half-way"
    )
    top.legend(loc="center right")
    for panel, (kind, intent_s) in zip(panels, kinds, strict=True):
        panel.axhline(intent_s, color="grey", linestyle=":")
        panel.set(ylabel=f"{kind}, s", yscale="log")
    for panel in (top, *panels):
        panel.axvline(courses["headgate"].run_s / 2, color="grey", linewidth=0.8)
    for at_s, _ in courses["headgate"].actions:
        top.axvline(at_s - courses["headgate"].begun_s, color="C2", linewidth=0.5, alpha=0.5)
    panels[-1].set(xlabel="seconds")
    picture.savefig(path, dpi=120)


def _latency_s(view: View, kind: str) -> float:
    """Return the mean latency of a kind; NaN, which is not drawn, while no latency is known, as after a change."""
    known = [job.latency_s for name, job in view.jobs.items() if name.startswith(kind) and job.latency_s is not None]
    return mean(known) if known else math.nan
