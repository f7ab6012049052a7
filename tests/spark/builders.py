"""Small jobs, and what they wrote: read without Spark, epoch by epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate import Intent
from headgate.core.latency import Latency, merge
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, JobReading, Snapshot
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.sources.load import Generator
from headgate.spark.topology import Topology

ROWS = "row long, arrived timestamp"
PATIENCE_S = 180.0


def burst(rows: int) -> Generator:
    """So many rows in the first tenth of a second, and none after."""
    return sources.load(sources.Steps([(0, 10 * rows), (0.1, 0)]))


def topology(name: str = "job", latency: str = "30s", pace_s: float = 0.0, **options: Any) -> Topology:
    return Topology(name, Intent(latency=latency), pace_s=pace_s, **options)


def copied(name: str, out: Path, load: Generator | float, **options: Any) -> Topology:
    """From a load to files, by way of a lane."""
    job = topology(name, **options)
    rows = job.source("in", sources.load(load) if isinstance(load, int | float) else load)
    job.sink("out", sinks.files(out), job.batches("copy", same, rows, schema=ROWS))
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


def put_in(engine: SparkEngine, source: str = "in", name: str = "job") -> float:
    """Rows that a source's job is done with."""
    return sum(reading(engine, name).operators[source].processed.values())


def epochs(engine: SparkEngine, name: str = "job") -> int:
    return reading(engine, name).epochs or 0


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
    """The epochs that were written as a whole."""
    done = sorted(out.glob("epoch=*/_SUCCESS"))
    return {int(mark.parent.name.removeprefix("epoch=")): _table(mark.parent) for mark in done}


def _table(epoch: Path) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(part).read() for part in sorted(epoch.glob("*.parquet"))])


def column(out: Path, name: str = "row") -> list[Any]:
    """The values of a column in all epochs, sorted."""
    return sorted(value for table in written(out).values() for value in table.column(name).to_pylist())


def finished_s(out: Path, epoch: int) -> float:
    return (out / f"epoch={epoch}" / "_SUCCESS").stat().st_mtime


def waited_s(out: Path) -> list[float]:
    """From the arrival of each row to the end of its epoch."""
    found: list[float] = []
    for epoch, table in written(out).items():
        nanos = pc.cast(pc.cast(table.column("arrived"), pa.timestamp("ns")), pa.int64()).to_pylist()
        found += [finished_s(out, epoch) - at / 1e9 for at in nanos]
    return found
