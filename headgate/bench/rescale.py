"""Benchmark of other lanes for a keyed operator with large state: between two epochs, against Spark's way (stop, repartition, start).

Spark ties state to the number of partitions it began with. Its own tool rewrites a stopped query's state for another number; the query
is then started again. With Headgate, slices are grouped into other lanes, and no state moves. The state of Headgate is put in place
beforehand, Spark's state is filled by epochs. Each epoch reads one file. The delay is from the decision to the output of the next file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from headgate.bench import Figure, Result, native
from headgate.bench.workers import MEASURES, Feed, Outputs, keys_of, put_in_place, stream, topology
from headgate.bench.workload import engine, home, wait_for
from headgate.config import SparkSettings
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.sim.reports.bars import Bar
from headgate.spark.engine import SparkEngine

STATE_MB = 1024
LANES = (1, 4, 2)
FILLS = 16
"""Epochs that bring Spark's own state to its size."""
SETTINGS = SparkSettings(slots=4, driver_memory_mb=4096, retries=0)
PATIENCE_S = 1800.0
SHORTER = 20.0
NAME = "rescale"


@dataclass(frozen=True, slots=True)
class RescaleForm:
    """The lanes to change to, and the epochs between changes."""

    lanes: tuple[int, ...]
    settle: int
    """The number of epochs before each change."""


SHORT, FULL = RescaleForm(LANES[:2], settle=6), RescaleForm(LANES, settle=10)
"""Both forms have the same size of state, because the delay of Spark's way grows with the state."""


def measure(full: bool = False, state_mb: int = STATE_MB) -> Result:
    """Measure the seconds from the decision to the next output, both ways, and whether other lanes changed the output."""
    keys, form = keys_of(state_mb), FULL if full else SHORT
    with engine(SETTINGS) as spark:
        live, rescaled = _live(spark, keys, form.lanes, form.settle)
        _, steady = _live(spark, keys, form.lanes[:1] * len(form.lanes), form.settle)
        restarted = _restarted(spark, keys, form.lanes, form.settle)
    figures = [Figure("state", state_mb, "MB"), Figure("keys", keys, "")]
    for (before, after), here, there in zip(pairwise(form.lanes), live, restarted, strict=True):
        figures += [
            Figure(f"lanes {before} to {after}, live: delay until the next output", here, "s"),
            Figure(
                f"partitions {before} to {after}, stop, repartition, start: delay until the next output", there, "s"
            ),
        ]
    shorter = min(there / here for here, there in zip(live, restarted, strict=True))
    differing = sum(rescaled.digests[epoch] != digest for epoch, digest in steady.digests.items())
    return Result(
        tuple(figures),
        (
            Bar("delay of Spark's own way, times the live one, the least", shorter, ">=", SHORTER),
            Bar("epochs whose output differs from a run without other lanes", float(differing), "<=", 0),
        ),
    )


def _live(spark: SparkEngine, keys: int, lanes: tuple[int, ...], settle: int) -> tuple[list[float], Outputs]:
    """Return the delay of each change from one number of lanes to the next, and all outputs."""
    outputs, delays = Outputs(), []
    with home() as place:
        feed = Feed(place / "in", keys, ahead=0)
        put_in_place(spark, NAME, keys)
        spark.submit(topology(NAME, feed.folder, outputs, lanes[0]))
        done = _go_on(feed, outputs, settle)
        for count in lanes[1:]:
            before_s = time.time()
            _change(spark, count)
            done = _go_on(feed, outputs, done + 1)
            delays.append(outputs.at_s[-1] - before_s)
            done = _go_on(feed, outputs, done + settle - 1)
        spark.remove(NAME)
    return delays, outputs


def _go_on(feed: Feed, outputs: Outputs, upto: int) -> int:
    """Write files one by one until `upto` epochs are put out."""
    for number in range(len(outputs.at_s) + 1, upto + 1):
        feed.ahead_of(number)
        wait_for(lambda number=number: len(outputs.at_s) >= number, PATIENCE_S)  # type: ignore[misc]
    return upto


def _change(spark: SparkEngine, lanes: int) -> None:
    has = spark.observe().allocation[NAME]
    wanted = JobAllocation({**has.lanes, "count": lanes}, has.pace_s)
    spark.apply(Action(ActionKind.RECONFIGURE, NAME, {NAME: wanted}, Cause("measured")))


def _restarted(spark: SparkEngine, keys: int, lanes: tuple[int, ...], settle: int) -> list[float]:
    outputs, delays = Outputs(), []
    with home() as place:
        feed = Feed(place / "in", keys, FILLS, ahead=0)
        query = _started(spark, feed, place, lanes[0], outputs)
        done = _go_on(feed, outputs, FILLS + settle)
        for partitions in lanes[1:]:
            query.processAllAvailable()  # Spark refuses to repartition uncommitted state
            before_s = time.time()
            query.stop()
            native.repartition(spark.spark, place / "checkpoint", partitions)
            query = _started(spark, feed, place, partitions, outputs)
            done = _go_on(feed, outputs, done + 1)
            delays.append(outputs.at_s[-1] - before_s)
            done = _go_on(feed, outputs, done + settle - 1)
        query.stop()
    return delays


def _started(spark: SparkEngine, feed: Feed, place: Path, partitions: int, outputs: Outputs) -> Any:
    session = spark.spark
    rows = stream(session, feed.folder)
    return native.measured(session, rows, MEASURES, place / "checkpoint", partitions, outputs.write)
