"""Small jobs, and what they wrote: read without Spark, epoch by epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from headgate import Intent
from headgate.core.latency import Latency, merge
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, JobReading, Snapshot
from headgate.ports import JobPhase
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.sources.load import Generator
from headgate.topology import Topology

ROWS = "row long, arrived timestamp"
PATIENCE_S = 180.0


def burst(rows: int) -> Generator:
    """So many rows in the first tenth of a second, and none after."""
    return sources.load(sources.Steps([(0, 10 * rows), (0.1, 0)]))


def topology(name: str = "job", latency: str = "30s", pace_s: float = 0.0, **options: Any) -> Topology:
    return Topology(name, Intent(latency=latency), pace_s=pace_s, **options)


def copied(name: str, out: Path | Timed, load: Generator | float, **options: Any) -> Topology:
    """From a load to files, by way of a lane."""
    job = topology(name, **options)
    rows = job.source("in", sources.load(load) if isinstance(load, int | float) else load)
    sink = out if isinstance(out, Timed) else sinks.files(out)
    job.sink("out", sink, job.batches("copy", same, rows, schema=ROWS))
    return job


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def start(engine: SparkEngine, job: Topology, read_limit: int) -> None:
    """From its first epoch on, it reads no more than so many rows at once."""
    engine.submit(job, paused=True)
    engine.set_read_limit(job.name, read_limit)
    engine.resume(job.name)


# -- readings


def reading(engine: SparkEngine, name: str = "job") -> JobReading:
    found = engine.observe().jobs[name]
    assert found is not None, engine.states()[name].reason
    return found


def reading_or_none(engine: SparkEngine, name: str = "job") -> JobReading | None:
    """None while the job is started again, which on a busy machine may take some attempts; never of one that has failed."""
    found = engine.observe().jobs.get(name)
    state = engine.states()[name]
    assert found is not None or state.phase is not JobPhase.FAILED, state.reason
    return found


def put_in(engine: SparkEngine, source: str = "in", name: str = "job") -> float:
    """Rows that a source's job is done with."""
    now = reading_or_none(engine, name)
    return sum(now.operators[source].processed.values()) if now is not None else 0.0


def epochs(engine: SparkEngine, name: str = "job") -> int:
    now = reading_or_none(engine, name)
    return now.epochs or 0 if now is not None else 0


def latencies_until(engine: SparkEngine, done: Callable[[Snapshot], bool]) -> dict[str, Latency]:
    """The latency of all rows that each job put out until then."""
    parts: dict[str, list[Latency | None]] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        snapshot = engine.observe()
        for name, now in snapshot.jobs.items():
            parts.setdefault(name, []).append(now.latency if now is not None else None)
        if done(snapshot):
            break
        assert time.monotonic() < deadline_s, snapshot
        time.sleep(0.1)
    return {name: whole for name, some in parts.items() if (whole := merge(some)) is not None}


def latency_until(engine: SparkEngine, done: Callable[[JobReading], bool]) -> Latency:
    """The same for the one job that there is."""

    def is_done(snapshot: Snapshot) -> bool:
        now = snapshot.jobs["job"]
        return now is not None and done(now)

    return latencies_until(engine, is_done)["job"]


def change(engine: SparkEngine, lanes: Mapping[str, int] | None = None, pace_s: float | None = None) -> None:
    """Other lanes or another pace; the rest stays."""
    name = "job"
    has = engine.observe().allocation[name]
    wanted = JobAllocation({**has.lanes, **(lanes or {})}, has.pace_s if pace_s is None else pace_s)
    assert engine.apply(Action(ActionKind.RECONFIGURE, name, {name: wanted}, Cause("a test"))).applied


# -- files


def written(out: Path) -> dict[int, pa.Table]:
    """The epochs that are written as a whole at this moment."""
    folders = (mark.parent for mark in sorted(out.glob("epoch=*/_SUCCESS")))
    tables = {int(folder.name.removeprefix("epoch=")): _table(folder) for folder in folders}
    return {epoch: table for epoch, table in tables.items() if table is not None}


def _table(epoch: Path) -> pa.Table | None:
    """None for an epoch that its job is writing again: Spark removes the old files first."""
    try:
        parts = [pq.ParquetFile(part).read() for part in sorted(epoch.glob("*.parquet"))]
    except FileNotFoundError:
        return None
    return pa.concat_tables(parts) if parts and (epoch / "_SUCCESS").exists() else None


def column(out: Path, name: str = "row") -> list[Any]:
    """The values of a column in all epochs, sorted."""
    return sorted(value for table in written(out).values() for value in table.column(name).to_pylist())


class Timed:
    """A sink of files that notes when each epoch was written: on a busy machine that is later than the time of its files."""

    def __init__(self, out: Path) -> None:
        self._out, self._write = out, sinks.files(out)
        self.reads_once = True
        self._ended_s: dict[int, float] = {}

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        self._write(rows, epoch)
        self._ended_s[epoch] = time.time()

    def ended_s(self, epoch: int) -> float:
        """When the epoch was written; never before its files were."""
        assert self._ended_s[epoch] >= (self._out / f"epoch={epoch}" / "_SUCCESS").stat().st_mtime
        return self._ended_s[epoch]

    def waited_s(self) -> list[float]:
        """From the arrival of each row to the end of its epoch."""
        found: list[float] = []
        for epoch, table in written(self._out).items():
            nanos = pc.cast(pc.cast(table.column("arrived"), pa.timestamp("ns")), pa.int64()).to_pylist()
            found += [self.ended_s(epoch) - at / 1e9 for at in nanos]
        return found
