"""Benchmark of diagnoses on real Spark: skewed keys and a slow host, each answered with more lanes, and with the remedy of the diagnosis.

Work on a row only waits, as for an answer of another service, so that two cores are enough for eight or sixteen lanes.

- *Skew*: four hot keys have 60 % of the rows, and all of them belong to the same one of four lanes. The operator may get eight lanes.
- *A slow host*: on one of four hosts (each a Spark worker with an executor of its own), lanes wait four times as long.

An epoch takes as long as its busiest lane. The waiting time of the busiest lane follows from the set-up, and so does the factor by
which the right remedy should be faster than more lanes; a measurement also includes Spark's fixed time per epoch.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.bench import Figure, Result, ratio
from headgate.bench.workers import cluster
from headgate.bench.workload import ROWS, Round, engine, watched
from headgate.config import FAST, Settings, SparkSettings, StateSettings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.hosts import HostType
from headgate.core.intents import Intent
from headgate.core.model import OUTSIDE, Action, JobReading
from headgate.health.records import DiagnosisKind
from headgate.health.resolving import ResolverName
from headgate.scheduler.policies import policy_named
from headgate.sim.reports.bars import Bar
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.state.hashing import slices_of
from headgate.state.operators import Batches, Changed, KeyedRows
from headgate.state.placement.routing import best_places, lane_loads, route_slices
from headgate.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class HealthForm:
    """The length of each way, and the settings of the controller."""

    settings: Settings
    run_s: float
    """Seconds of each way; remedies come in the first half."""
    measured_s: float
    """Seconds at the end of a way in which throughput is measured."""
    warm_up_s: float


SHORT = HealthForm(
    settings_from({**FAST, "window_s": 12.0, "warm_up_s": 6.0, "settle_min_s": 6.0, "settle_max_s": 18.0}),
    run_s=50.0,
    measured_s=16.0,
    warm_up_s=10.0,
)
FULL = HealthForm(
    settings_from({**FAST, "window_s": 20.0, "warm_up_s": 10.0, "settle_min_s": 10.0, "settle_max_s": 30.0}),
    run_s=110.0,
    measured_s=30.0,
    warm_up_s=15.0,
)
EPOCH_S = 2.5
INTENT = Intent(juice=0.95, worth=10)
LANES_ONLY, HEADGATE = "lanes-only", "headgate"
WORK = "work"

SLICES, LANES, MOST_LANES = 64, 4, 8
HOT, HOT_SHARE = 4, 60
"""Hot keys, and the percentage of rows that they have together."""
KEY_WAIT_S, KEY_RATE = 0.004, 1300

HOSTS, HOST_SLOTS, HOST_LANES = 4, 4, 8
SLOWER = 4.0
HOST_WAIT_S, HOST_RATE = 0.004, 1500
HOST_KIND = HostType("bench", cores=HOST_SLOTS, memory_mb=896, price=0.0, btu_s=3600)


# -- one way -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthCourse:
    """The readings and actions of one way."""

    readings: tuple[tuple[float, JobReading], ...]
    actions: tuple[tuple[float, Action], ...]
    lanes: int
    """The final number of lanes of the operator."""
    restarts: int
    measured_s: float
    """Seconds at the end in which throughput is measured."""

    def before_rows_s(self) -> float:
        """Return the rows per second before the first action; the first third of that time is warm-up."""
        until_s = self.actions[0][0] if self.actions else self.readings[-1][0]
        begun_s = self.readings[0][0]
        return self._rows_s(begun_s + (until_s - begun_s) / 3, until_s)

    def after_rows_s(self) -> float:
        """Return the rows per second at the end."""
        return self._rows_s(self.readings[-1][0] - self.measured_s, self.readings[-1][0])

    def _rows_s(self, from_s: float, to_s: float) -> float:
        some = [(at_s, _rows(reading)) for at_s, reading in self.readings if from_s - 1e-3 <= at_s <= to_s + 1e-3]
        return (some[-1][1] - some[0][1]) / (some[-1][0] - some[0][0]) if len(some) > 1 else 0.0

    @property
    def diagnosis(self) -> str:
        """The diagnosis of the first action."""
        causes = self.actions[0][1].cause.because if self.actions else ()
        return str(causes[0].facts.get("diagnosis", "")) if causes else ""

    @property
    def remedy(self) -> str:
        return self.actions[0][1].remedy if self.actions else ""

    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the operator's lanes in the last reading."""
        return self.readings[-1][1].operators[WORK].hosts or ()


def _rows(reading: JobReading) -> float:
    return reading.operators["in"].processed[OUTSIDE]


def course(spark: SparkEngine, topology: Topology, policy: str, form: HealthForm) -> HealthCourse:
    """Run the job under a policy from beginning to end."""
    print(f"bench: {topology.name}, {policy}, {form.run_s:.0f} s", file=sys.stderr)
    spark.submit(topology)
    query = spark.job(topology.name).query
    controller = Controller(spark, policy_named(policy, form.settings), None, form.settings)
    rounds = watched(controller, form.run_s)
    restarts = int(spark.job(topology.name).query is not query)
    lanes = spark.observe().allocation[topology.name].lanes[WORK]
    spark.remove(topology.name)
    readings, actions = tuple(_readings(rounds, topology.name)), tuple(_actions(rounds))
    return HealthCourse(readings, actions, lanes, restarts, form.measured_s)


def _readings(rounds: Sequence[Round], name: str) -> Iterator[tuple[float, JobReading]]:
    for view, _ in rounds:
        if name in view.jobs and view.jobs[name].samples:
            newest = view.jobs[name].samples[-1]
            yield newest.at_s, newest.reading


def _actions(rounds: Sequence[Round]) -> Iterator[tuple[float, Action]]:
    for view, decision in rounds:
        if decision.action is not None:
            print(f"bench:   {decision.action.sentence}", file=sys.stderr)
            yield view.at_s, decision.action


def _warm_up(spark: SparkEngine, topology: Topology, form: HealthForm) -> None:
    """Run a job for `warm_up_s`, because the first epochs of a JVM are slow."""
    spark.submit(topology)
    time.sleep(form.warm_up_s)
    spark.remove(topology.name)


# -- skew --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlowCounts:
    """Counts the rows of each key, and waits for every row."""

    wait_s: float

    def __call__(self, rows: KeyedRows) -> Changed:
        time.sleep(rows.rows.num_rows * self.wait_s)
        counts = np.diff(np.append(rows.starts, rows.rows.num_rows)) + rows.state["n"]
        return Changed({"n": counts}, pa.RecordBatch.from_arrays([rows.keys.column(0), pa.array(counts)], ["key", "n"]))


@dataclass(frozen=True, slots=True)
class Skew:
    """Keys of which a few are hot, with all hot keys on one lane."""

    hot: tuple[int, ...]
    cold: tuple[int, ...]
    """One key of every slice."""
    loads: tuple[float, ...]
    """The share of the rows of each slice."""

    @staticmethod
    def of() -> Skew:
        keys = np.arange(100 * SLICES)
        slices = slices_of([pa.array(keys, pa.int64())], SLICES)
        cold = tuple(int(keys[slices == slice_][0]) for slice_ in range(SLICES))
        crowded = random.Random(0).sample(range(0, SLICES, LANES), HOT)
        loads = [(100 - HOT_SHARE) / 100 / SLICES] * SLICES
        for slice_ in crowded:
            loads[slice_] += HOT_SHARE / 100 / HOT
        return Skew(tuple(int(keys[slices == slice_][1]) for slice_ in crowded), cold, tuple(loads))

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Give `HOT_SHARE` of every hundred rows hot keys in turn, and all other rows one key of every slice in turn."""
        hot, cold = (f"array({','.join(f'{key}L' for key in keys)})" for keys in (self.hot, self.cold))
        # A cold key's turn must not depend on its row's place among the hundred; otherwise some cold keys never get a row.
        turn = f"int((row div 100 * {100 - HOT_SHARE} + row % 100) % {SLICES})"
        key = f"if(row % 100 < {HOT_SHARE}, get({hot}, int(row % {HOT})), get({cold}, {turn}))"
        return rows.selectExpr(f"{key} as key")

    def busiest(self) -> tuple[float, float]:
        """Return the share of the rows on the busiest of `MOST_LANES` lanes: with slices spread evenly, and by load."""
        settings, even = StateSettings(), [1.0] * SLICES
        before = route_slices(even, [""] * SLICES, [""] * LANES, settings)
        spread = route_slices(even, [""] * SLICES, [""] * MOST_LANES, settings, before)
        return max(spread.loads(self.loads)), max(
            lane_loads(self.loads, best_places(self.loads, MOST_LANES), MOST_LANES)
        )


def skewed(name: str, skew: Skew) -> Topology:
    """Return a job that counts rows with skewed keys by key."""
    job = Topology(name, INTENT, pace_s=0)
    keyed = job.transform("key", skew.keyed, job.source("in", sources.load(KEY_RATE)))
    counting = Batches({"n": "int64"}, SlowCounts(KEY_WAIT_S))
    counted = job.keyed(
        WORK, counting, keyed, key="key", schema="key long, n long", lanes=LANES, max_lanes=MOST_LANES, slices=SLICES
    )
    job.sink("out", sinks.discard(), counted)
    return job


def _skew(form: HealthForm) -> tuple[HealthCourse, HealthCourse, float]:
    skew = Skew.of()
    with engine(SparkSettings(slots=MOST_LANES, longest_epoch_s=EPOCH_S)) as spark:
        _warm_up(spark, skewed("warm-up", skew), form)
        lanes, ours = (course(spark, skewed(f"skew-{way}", skew), way, form) for way in (LANES_ONLY, HEADGATE))
    evenly, by_load = skew.busiest()
    return lanes, ours, evenly / by_load


# -- a slow host -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits for every row, and longer on the host that a file names."""

    wait_s: float
    slow: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slow = Path(self.slow).read_text() == os.environ.get("SPARK_LOCAL_IP")
        for batch in batches:
            time.sleep(batch.num_rows * self.wait_s * (SLOWER if slow else 1.0))
            yield batch


def waiting(name: str, slow: Path) -> Topology:
    """Return a job that waits for every row."""
    job = Topology(name, INTENT, pace_s=0)
    work = Waiting(HOST_WAIT_S, str(slow))
    most = HOSTS * HOST_SLOTS
    rows = job.source("in", sources.load(HOST_RATE), lanes=2)
    job.sink("out", sinks.discard(), job.batches(WORK, work, rows, schema=ROWS, lanes=HOST_LANES, max_lanes=most))
    return job


def _slow_host(form: HealthForm) -> tuple[HealthCourse, HealthCourse, float, str]:
    settings = SparkSettings(slots=HOST_SLOTS, longest_epoch_s=EPOCH_S)
    with cluster(HOSTS, settings, HOST_KIND) as hosts:
        spark, slow, named = hosts.engine, max(hosts.slots()), hosts.place / "slow"
        named.write_text("")
        _warm_up(spark, waiting("warm-up", named), form)
        named.write_text(slow)
        lanes, ours = (course(spark, waiting(f"slow-{way}", named), way, form) for way in (LANES_ONLY, HEADGATE))
    all_lanes = HOSTS * HOST_SLOTS
    # With all lanes, a lane on the slow host has 1 in 16 rows and takes 4 times as long; without the slow host, a lane has 1 in 8 rows.
    return lanes, ours, (SLOWER / all_lanes) / (1 / HOST_LANES), slow


# -- both --------------------------------------------------------------------------------------------------------------------


def measure(full: bool = False) -> Result:
    """Measure the diagnosis of each trouble, the action, and the rows per second before and after."""
    form = FULL if full else SHORT
    lanes, ours, factor = _skew(form)
    slow_lanes, slow_ours, slow_factor, slow = _slow_host(form)
    left = sum(host == slow for host in slow_ours.hosts())
    figures = (
        *_figures("skew", lanes, ours, factor),
        *_figures("slow host", slow_lanes, slow_ours, slow_factor),
        Figure("slow host: lanes that run there after the remedy", left, ""),
    )
    skew, slow_host = (
        (DiagnosisKind.SKEW, ResolverName.REASSIGN_SLICES),
        (DiagnosisKind.SLOW_LANES, ResolverName.MOVE_LANES),
    )
    bars = (
        *bars_of("skew", lanes, ours, factor, skew),
        *bars_of("slow host", slow_lanes, slow_ours, slow_factor, slow_host),
        Bar("slow host: lanes that run there after the remedy", float(left), "<=", 0.0),
    )
    notes = (*notes_on("skew", ours, skew), *notes_on("slow host", slow_ours, slow_host))
    return Result(figures, bars, notes)


def notes_on(trouble: str, ours: HealthCourse, right: tuple[str, str]) -> Iterator[str]:
    """Yield sentences about a first action that is not the expected action."""
    if not ours.actions:
        yield f"{trouble}: the controller did nothing in {ours.readings[-1][0] - ours.readings[0][0]:.0f} s."
    elif (ours.diagnosis, ours.remedy) != right:
        first, remedy = ours.actions[0][1], ours.remedy or "none"
        found = f'"{ours.diagnosis}"' if ours.diagnosis else "no diagnosis"
        yield (
            f'{trouble}: the first action followed {found} with the remedy "{remedy}", '
            f'not "{right[0]}" with "{right[1]}": {first.sentence}'
        )
    if not ours.before_rows_s():
        yield f"{trouble}: the first action came before any throughput was measured, so there is nothing to compare it with."


def _figures(trouble: str, lanes: HealthCourse, ours: HealthCourse, factor: float) -> Iterator[Figure]:
    for way, found in ((LANES_ONLY, lanes), (HEADGATE, ours)):
        yield Figure(f"{trouble}, {way}: before", found.before_rows_s(), "rows/s")
        yield Figure(f"{trouble}, {way}: after", found.after_rows_s(), "rows/s")
        yield Figure(f"{trouble}, {way}: lanes in the end", found.lanes, "")
        yield Figure(f"{trouble}, {way}: actions", len(found.actions), "")
    if ours.actions:
        yield Figure(f"{trouble}: first action after", ours.actions[0][0] - ours.readings[0][0], "s")
    yield Figure(f"{trouble}: throughput, times that of lanes-only, by the set-up", factor, "")


SHARE = 0.75
"""Share of the factor of the set-up that must be reached, because an epoch also takes time in which no lane waits."""


def bars_of(
    trouble: str, lanes: HealthCourse, ours: HealthCourse, factor: float, right: tuple[str, str]
) -> Iterator[Bar]:
    """Yield the bars of one trouble; a figure that could not be measured fails its bar."""
    yield Bar(f'{trouble}: first diagnosis is "{right[0]}"', float(ours.diagnosis == right[0]), ">=", 1.0)
    yield Bar(f'{trouble}: first remedy is "{right[1]}"', float(ours.remedy == right[1]), ">=", 1.0)
    gained = ratio(ours.after_rows_s(), ours.before_rows_s())
    against = ratio(ours.after_rows_s(), lanes.after_rows_s())
    yield Bar(f"{trouble}: throughput after, times before", gained, ">=", 1.5)
    yield Bar(f"{trouble}: throughput, times that of lanes-only", against, ">=", SHARE * factor)
    yield Bar(f"{trouble}: restarts of the query", float(ours.restarts), "<=", 0.0)
