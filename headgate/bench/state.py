"""Benchmark of durable keyed count and sum on Spark: Headgate's slices against Spark's own state, on the same files.

Spark's aggregation runs on RocksDB with changelog checkpointing, with each of several numbers of partitions, and the best
number counts. Spark's Python APIs are so much slower that they get fewer rows and an empty state, which is in their favour. Every way
runs in a process of its own, so that its memory can be measured.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.bench import Figure, Result, repeated
from headgate.bench.keyed import some_keys
from headgate.bench.workload import engine, home, wait_for
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.errors import EngineError
from headgate.sim.reports.bars import Bar
from headgate.spark import sinks
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology

PARTITIONS = (4, 16, 64)
LANES, SLICES = 2, 64
ROWS, FEW_ROWS = 1_000_000, 5_000
"""Rows of an epoch, and rows of an epoch of Spark's Python APIs."""
EPOCHS, LEAST_EPOCHS = 40, 6
"""The most and the least epochs of each way; the first half of the epochs is warm-up."""
SLOTS, MEMORY_MB = 4, 3072
PATIENCE_S = 900.0
NATIVE, PYTHON = 2.5, 20.0
HEADGATE, AGGREGATION = "headgate", "aggregation"
PYTHON_WAYS = ("applyInPandasWithState", "transformWithStateInPandas", "transformWithState")


@dataclass(frozen=True, slots=True)
class Workload:
    """A number of keys, and whether rows are skewed."""

    keys: int
    skewed: bool

    @property
    def name(self) -> str:
        """The name of the workload in figures."""
        return f"{self.keys / 1e6:g}M keys, {'skewed' if self.skewed else 'uniform'}"


WORKLOADS = tuple(Workload(keys, skewed) for keys in (500_000, 5_000_000) for skewed in (False, True))


@dataclass(frozen=True, slots=True)
class StateForm:
    """The workloads to measure, and for how long."""

    workloads: tuple[Workload, ...]
    long_s: float
    """Seconds for which every way runs, within the limits of `LEAST_EPOCHS` and `EPOCHS` epochs."""


SHORT, FULL = StateForm(WORKLOADS[:1], 10.0), StateForm(WORKLOADS, 40.0)


@dataclass(frozen=True, slots=True)
class MeasuredWorkload:
    """The throughput and memory of one way on one workload."""

    rows_s: float
    memory_mb: float


def measure(full: bool = False) -> Result:
    """Rows per second and memory of every way for every workload."""
    figures: list[Figure] = []
    bars: list[Bar] = []
    form = FULL if full else SHORT
    for workload in form.workloads:
        found = _all_ways(workload, form.long_s)
        for way, each in found.items():
            figures += [
                repeated(f"{workload.name}: {way}", [one.rows_s for one in each], "rows/s"),
                repeated(f"{workload.name}: {way}, memory", [one.memory_mb for one in each], "MB"),
            ]
        rates = {way: statistics.median(one.rows_s for one in each) for way, each in found.items()}
        bars += _bars(workload, rates)
    return Result(tuple(figures), tuple(bars))


def _bars(workload: Workload, rows_s: Mapping[str, float]) -> list[Bar]:
    native = max(rate for way, rate in rows_s.items() if way.startswith(AGGREGATION))
    python = max((rate for way, rate in rows_s.items() if way in PYTHON_WAYS), default=None)
    bars = [Bar(f"{workload.name}: times Spark's aggregation at its best", rows_s[HEADGATE] / native, ">=", NATIVE)]
    if python is not None:
        bars.append(Bar(f"{workload.name}: times Spark's best Python way", rows_s[HEADGATE] / python, ">=", PYTHON))
    return bars


def _all_ways(workload: Workload, long_s: float) -> dict[str, list[MeasuredWorkload]]:
    """Measure every way; Headgate comes first and last, so that a change of the machine's load shows in the spread of Headgate."""
    with home() as place:
        many, few = place / "many", place / "few"
        write_files(many, workload, ROWS, filled=True)
        found = {HEADGATE: [_apart(HEADGATE, many, LANES, long_s)]}
        for partitions in PARTITIONS:
            found[f"{AGGREGATION}, {partitions} partitions"] = [_apart(AGGREGATION, many, partitions, long_s)]
        if workload == WORKLOADS[0]:
            write_files(few, workload, FEW_ROWS, filled=False)
            found |= {way: [_apart(way, few, SLOTS, long_s)] for way in PYTHON_WAYS}
        found[HEADGATE].append(_apart(HEADGATE, many, LANES, long_s))
    return found


def write_files(folder: Path, workload: Workload, rows: int, filled: bool) -> None:
    """Write one file per epoch; with `filled`, the first file has every key once, so that the state has its full size afterwards."""
    folder.mkdir()
    for number in range(EPOCHS):
        first = filled and number == 0
        keys = np.arange(workload.keys) if first else some_keys(number, rows, workload.keys, workload.skewed)
        amounts = np.random.default_rng(number).random(len(keys))
        table = pa.table({"user": pa.array(keys, pa.int64()), "amount": pa.array(amounts)})
        # Spark reads files by name and time; several row groups would cut a file into partitions.
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=max(rows, len(keys)))
        time.sleep(0.01)


def _apart(way: str, files: Path, parts: int, long_s: float) -> MeasuredWorkload:
    """Measure one way in a process of its own."""
    command = [sys.executable, "-m", "headgate.bench.state", way, str(files), str(parts), str(long_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise EngineError(f"{way} could not be measured: {last}")
    return MeasuredWorkload(**json.loads(done.stdout.splitlines()[-1]))


# -- in that process ---------------------------------------------------------------------------------------------------------


def measure_one(way: str, files: Path, parts: int, long_s: float) -> MeasuredWorkload:
    """Measure rows per second of the epochs after the warm-up, by the times of Spark's commits."""
    rows = [pq.ParquetFile(path).metadata.num_rows for path in sorted(files.glob("*.parquet"))]
    with home() as place, engine(SparkSettings(slots=SLOTS, driver_memory_mb=MEMORY_MB, retries=0)) as spark:
        commits = _started(spark, way, files, parts, place)
        wait_for(lambda: _is_enough(_commit_times(commits), long_s) or _failed(spark), PATIENCE_S)
        memory_mb, at_s = _memory_mb(), _commit_times(commits)
    rates = [rows[epoch] / (at_s[epoch] - at_s[epoch - 1]) for epoch in range(len(at_s) // 2, len(at_s))]
    return MeasuredWorkload(statistics.median(rates), memory_mb)


def _commit_times(commits: Path) -> list[float]:
    """Return the time of the commit of each epoch."""
    files = (commits / str(epoch) for epoch in range(EPOCHS))
    return [file.stat().st_mtime for file in takewhile(Path.exists, files)]


def _is_enough(at_s: list[float], long_s: float) -> bool:
    return len(at_s) == EPOCHS or (len(at_s) >= LEAST_EPOCHS and at_s[-1] - at_s[0] > long_s)


def _started(spark: SparkEngine, way: str, files: Path, parts: int, place: Path) -> Path:
    from headgate.bench import native

    if way != HEADGATE:
        native.start(spark.spark, way, files, place, parts)
        return place / "commits"
    job = Topology("count", Intent(latency="60s"), pace_s=0)
    rows = job.source("in", lambda session: native.stream(session, files))
    counted = job.keyed("count", {"n": "count", "total": "sum(amount)"}, rows, key="user", lanes=parts, slices=SLICES)
    job.sink("out", sinks.discard(), counted)
    spark.submit(job)
    return spark.place_of("count") / "checkpoint" / "commits"


def _failed(spark: SparkEngine) -> bool:
    reason = next((state.reason for state in spark.states().values() if state.reason), "")
    reason = reason or next((str(query.exception()) for query in spark.spark.streams.active if query.exception()), "")
    if reason:
        raise EngineError(reason)
    return False


def _memory_mb() -> float:
    """Return the memory of the driver, the JVM and all lanes; memory shared by processes counts once."""
    this = psutil.Process()
    used = 0
    for process in (this, *this.children(recursive=True)):
        try:
            used += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return used / 2**20


def _main(arguments: list[str]) -> Any:
    way, files, parts, long_s = arguments
    print(json.dumps(asdict(measure_one(way, Path(files), int(parts), float(long_s)))))


if __name__ == "__main__":
    _main(sys.argv[1:])
