"""Benchmark of new lanes: the time until they take effect, live and by stopping and starting the query, on the same rows in one run."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.bench import Figure, Result, repeated
from headgate.bench.workload import ROWS, Work, engine, home, wait_for
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.sim.reports.bars import Bar
from headgate.spark import jvm, sinks, sources
from headgate.spark.sinks.files import Files
from headgate.spark.sources.load import Generator
from headgate.topology import Topology, once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headgate.spark.engine import SparkEngine

TIMES = 8
RATE = 2000
LANES = (2, 4)
WORK = Work(cpu_s=20e-6)
WARM_UP = 40
"""Epochs before anything is measured: those of a JVM that has just started are slow."""
APART_S = 1.3
"""Seconds between two changes, so that changes come at any point of an epoch."""


@dataclass(slots=True)
class SeenLanes:
    """The lanes of the last epoch, and when the first epoch with that number of lanes began its output."""

    lanes: int = 0
    at_s: float = 0.0

    def note(self, rows: DataFrame) -> None:
        """Record the lanes of an epoch; called at the beginning of each epoch's output."""
        lanes = jvm.partitions(rows)
        if lanes != self.lanes:
            self.lanes, self.at_s = lanes, time.time()


@dataclass(slots=True)
class Plain:
    """The same job as written without Headgate: lanes are fixed when the query starts."""

    spark: Any
    place: Path
    out: Files
    seen: SeenLanes = field(default_factory=SeenLanes)
    written: int = 0
    query: Any = None

    def start(self, lanes: int) -> None:
        rows = Generator(sources.Steady(RATE)).stream(self.spark, self.place)

        def epoch(batch: DataFrame, number: int) -> None:
            worked = batch.repartition(lanes).mapInArrow(WORK, ROWS)
            self.seen.note(worked)
            self.out(worked, number)
            self.written += 1

        writer = rows.writeStream.foreachBatch(epoch)
        self.query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()

    def settle(self) -> None:
        """Wait until two more epochs are written, and `APART_S` longer."""
        until = self.written + 2
        wait_for(lambda: self.written >= until)
        time.sleep(APART_S)


def measure() -> Result:
    """Seconds from the decision until an epoch with the new lanes is under way, and whether any row was lost or doubled."""
    with home() as place, engine(SparkSettings(slots=8)) as spark:
        live, live_rows = _live(spark, place / "live")
        restarted, restarted_rows = _restarted(spark, place / "restart")
    ratio = statistics.median(restarted) / statistics.median(live)
    figures = (
        repeated("live: until an epoch has the new lanes", live, "s"),
        repeated("stop and start: until an epoch has the new lanes", restarted, "s"),
        Figure("changes of each kind", TIMES, ""),
        Figure("rows checked, live", live_rows[0], ""),
        Figure("rows checked, stop and start", restarted_rows[0], ""),
    )
    return Result(
        figures,
        (
            Bar("new lanes take effect so many times faster live", ratio, ">=", 5.0),
            Bar("rows lost or doubled, live", live_rows[1], "<=", 0.0),
        ),
    )


def _live(spark: SparkEngine, place: Path) -> tuple[list[float], tuple[float, float]]:
    seen, out = SeenLanes(), sinks.files(place / "out")
    spark.submit(_topology(seen, out))
    wait_for(lambda: spark.job("live").epochs >= WARM_UP)
    spent = []
    for number in range(TIMES + 1):
        lanes = LANES[number % 2]
        allocation = JobAllocation({"in": 1, "work": lanes}, 0.0)
        decided_s = time.time()
        spark.apply(Action(ActionKind.RECONFIGURE, "live", {"live": allocation}, Cause("measured")))
        wait_for(lambda lanes=lanes: seen.lanes == lanes)  # type: ignore[misc]
        spent.append(seen.at_s - decided_s)
        time.sleep(APART_S)
    spark.pause("live")
    return spent[1:], _checked(spark, place / "out")


def _topology(seen: SeenLanes, out: Files) -> Topology:
    topology = Topology("live", Intent(latency="1s"), pace_s=0)
    rows = topology.source("in", sources.load(RATE))
    worked = topology.batches("work", WORK, rows, schema=ROWS, lanes=LANES[1])

    def write(frame: DataFrame, epoch: int) -> None:
        seen.note(frame)
        out(frame, epoch)

    topology.sink("out", once(write), worked)
    return topology


def _restarted(spark: SparkEngine, place: Path) -> tuple[list[float], tuple[float, float]]:
    plain = Plain(spark.spark, place, sinks.files(place / "out"))
    place.mkdir()
    plain.start(LANES[1])
    wait_for(lambda: plain.seen.lanes == LANES[1])
    spent = []
    for number in range(TIMES):
        plain.settle()
        lanes = LANES[number % 2]
        decided_s = time.time()
        plain.query.stop()
        plain.start(lanes)
        wait_for(lambda lanes=lanes: plain.seen.lanes == lanes)  # type: ignore[misc]
        spent.append(plain.seen.at_s - decided_s)
    plain.settle()
    plain.query.stop()
    return spent, _checked(spark, place / "out")


def _checked(spark: SparkEngine, path: Path) -> tuple[float, float]:
    """(rows written, rows lost or doubled): row numbers must be 0, 1, 2, … without a gap."""
    numbers = Counter(row.row for row in sinks.read_files(spark.spark, path).select("row").toLocalIterator())
    doubled = sum(count - 1 for count in numbers.values())
    lost = max(numbers) + 1 - len(numbers)
    return float(sum(numbers.values())), float(doubled + lost)
