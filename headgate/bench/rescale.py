"""Other lanes for a keyed operator with a lot of state: between two epochs, against Spark's own way (stop, repartition, start).

Spark ties state to the number of partitions it began with. Its own tool rewrites a stopped query's state for another number; the query
is then started again. Here slices are grouped into other lanes, and no state moves. Both start from the same state, written in one
large epoch, and both go through the same files; the delay is the time from the decision to the next output.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.bench import Figure, Result, native
from headgate.bench.keyed import some_keys
from headgate.bench.workload import engine, home, wait_for
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.sim.bars import Bar
from headgate.spark.engine import SparkEngine
from headgate.spark.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATE_BYTES = 1 << 30
KEY_BYTES = 48
"""A key with its tag, and two counts and a sum: what is stored of each."""
LANES = (1, 4, 2)
SLICES, ROWS = 64, 20_000
FILLS = 16
"""Epochs that bring the state to its size."""
SETTLE = 3
"""Epochs between two changes."""
SLOTS, MEMORY_MB = 4, 4096
PATIENCE_S = 1800.0
SHORTER = 20.0


@dataclass
class Outputs:
    """What was put out last of each key, and when."""

    at_s: list[float] = field(default_factory=list)
    sums: list[tuple[int, int, float]] = field(default_factory=list)
    """Of every epoch: rows, sum of counts, sum of sums."""

    def write(self, rows: DataFrame, epoch: int) -> None:
        """A writer."""
        found = rows.selectExpr("count(*)", "sum(n)", "round(sum(total), 3)").first()
        assert found is not None
        del self.sums[epoch:]
        self.sums.append((found[0], found[1], found[2]))
        self.at_s.append(time.time())


def measure(state_bytes: int = STATE_BYTES) -> Result:
    """Seconds from the decision to the next output, both ways; and whether other lanes changed what was put out."""
    keys = state_bytes // KEY_BYTES
    with home() as place:
        changes = len(LANES) - 1
        _write_files(place / "files", keys, FILLS + (changes + 1) * SETTLE)
        live, rescaled = _live(place / "files", place / "live", keys, LANES)
        _, steady = _live(place / "files", place / "steady", keys, LANES[:1])
        restarted = _restarted(place / "files", place / "restarted", keys)
    slowest, fastest = max(live), min(restarted)
    names = [f"{before} to {after}" for before, after in pairwise(LANES)]
    figures = [Figure("state", keys * KEY_BYTES / 2**20, "MB")]
    for name, here, there in zip(names, live, restarted, strict=True):
        figures += [
            Figure(f"lanes {name}, live: delay until the next output", here, "s"),
            Figure(f"partitions {name}, stop, repartition, start: delay until the next output", there, "s"),
        ]
    bars = (
        Bar("delay of Spark's own way, times the live one", fastest / slowest, ">=", SHORTER),
        Bar("epochs whose output differs from a run without other lanes", float(_differing(rescaled, steady)), "<=", 0),
    )
    return Result(tuple(figures), bars)


def _differing(one: Outputs, other: Outputs) -> int:
    return sum(mine != theirs for mine, theirs in zip(one.sums, other.sums, strict=True))


def _write_files(folder: Path, keys: int, epochs: int) -> None:
    folder.mkdir()
    fills = np.array_split(np.arange(keys), FILLS)
    for number in range(epochs):
        users = fills[number] if number < FILLS else some_keys(number, ROWS, keys)
        table = pa.table({"user": pa.array(users, pa.int64()), "amount": pa.array(np.full(len(users), 0.5))})
        pq.write_table(table, folder / f"{number:03d}.parquet")
        time.sleep(0.01)


def _released(files: Path, place: Path) -> Callable[[int], None]:
    """Files come in one by one: nothing arrives before it is wanted."""
    (place / "in").mkdir(parents=True)

    def release(upto: int) -> None:
        for path in sorted(files.glob("*.parquet"))[:upto]:
            link = place / "in" / path.name
            if not link.exists():
                link.hardlink_to(path)

    return release


# -- both ways ---------------------------------------------------------------------------------------------------------------


def _live(files: Path, place: Path, keys: int, lanes: tuple[int, ...]) -> tuple[list[float], Outputs]:
    release, outputs, delays = _released(files, place), Outputs(), []
    with engine(SparkSettings(slots=SLOTS, driver_memory_mb=MEMORY_MB, retries=0)) as spark:
        spark.submit(_topology(place / "in", outputs, lanes[0]))
        done = _go_on(release, outputs, 0, FILLS + SETTLE)
        for number in range(1, len(LANES)):
            before_s = time.time()
            if number < len(lanes):
                _change(spark, lanes[number])
            done = _go_on(release, outputs, done, done + 1)
            delays.append(outputs.at_s[-1] - before_s)
            done = _go_on(release, outputs, done, done + SETTLE - 1)
    return delays, outputs


def _go_on(release: Callable[[int], None], outputs: Outputs, done: int, upto: int) -> int:
    """File by file until so many epochs are put out."""
    for number in range(done + 1, upto + 1):
        release(number)
        wait_for(lambda number=number: len(outputs.sums) >= number, PATIENCE_S)  # type: ignore[misc]
    return upto


def _topology(files: Path, outputs: Outputs, lanes: int) -> Topology:
    job = Topology("rescale", Intent(latency="60s"), pace_s=0)
    rows = job.source("in", lambda session: native.stream(session, files))
    measures = {"n": "count", "total": "sum(amount)"}
    counted = job.keyed("count", measures, rows, key="user", lanes=lanes, max_lanes=SLICES, slices=SLICES)
    job.sink("out", outputs.write, counted)
    return job


def _change(spark: SparkEngine, lanes: int) -> None:
    has = spark.observe().allocation["rescale"]
    wanted = JobAllocation({**has.lanes, "count": lanes}, has.pace_s)
    spark.apply(Action(ActionKind.RECONFIGURE, "rescale", {"rescale": wanted}, Cause("measured")))


def _restarted(files: Path, place: Path, keys: int) -> list[float]:
    release, outputs, delays = _released(files, place), Outputs(), []
    with engine(SparkSettings(slots=SLOTS, driver_memory_mb=MEMORY_MB, retries=0)) as spark:
        query: Any = native.count(spark.spark, place / "in", place / "checkpoint", LANES[0], outputs.write)
        done = _go_on(release, outputs, 0, FILLS + SETTLE)
        for partitions in LANES[1:]:
            before_s = time.time()
            query.stop()
            native.repartition(spark.spark, place / "checkpoint", partitions)
            query = native.count(spark.spark, place / "in", place / "checkpoint", partitions, outputs.write)
            done = _go_on(release, outputs, done, done + 1)
            delays.append(outputs.at_s[-1] - before_s)
            done = _go_on(release, outputs, done, done + SETTLE - 1)
        query.stop()
    return delays
