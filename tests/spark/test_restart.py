"""The whole process is killed in the middle of its work, again and again: no row is lost, none is written twice."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from .builders import column
from .conftest import Start
from .processes import Run
from .test_keyed import expected, newest

ROWS = 3000
JOBS = ("files", "redis", "state")
LANES = (3, 2)
"""Of the operators in each run that is killed."""

SCRIPT = """
import sys, time
from pathlib import Path
from typing import Any
from headgate import Intent, Topology
from headgate.config import SparkSettings
from headgate.spark import sinks, sources
from headgate.spark.engine import open_engine

place, url, rows, lanes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def same(batches):
    yield from batches


def copied(job, read):
    return job.batches("copy", same, read, schema="row long, arrived timestamp", lanes=lanes)


def counted(job, read):
    keys = job.transform("key", lambda rows: rows.selectExpr("row % 20 AS user", "row"), read)
    return job.keyed("count", {"n": "count", "total": "sum(row)"}, keys, key="user", lanes=lanes, slices=16)


def job(name, work, sink):
    topology = Topology(name, Intent(latency="30s"), pace_s=0.0)
    read = topology.source("in", sources.load(sources.Steps([(0, 10 * rows), (0.1, 0)])), lanes=2)
    topology.sink("out", sink, work(topology, read))
    return topology


engine = open_engine(place / "home", SparkSettings(slots=4, read_limit=200, stop_s=60))
try:
    engine.submit(job("files", copied, sinks.files(place / "out")))
    engine.submit(job("redis", copied, sinks.redis("rows", url=url)))
    engine.submit(job("state", counted, sinks.files(place / "counts")))
    while True:
        jobs = engine.observe().jobs
        done = [int(one.operators["in"].processed["*"]) if one else 0 for one in jobs.values()]
        print(*done, flush=True)
        if set(done) == {rows}:
            break
        if failed := {name: state.reason for name, state in engine.states().items() if state.phase.value == "failed"}:
            sys.exit(f"{done}: {failed}")
        time.sleep(0.1)
finally:
    engine.close()
"""


@pytest.mark.slow
def test_kill_in_the_middle_of_epochs_loses_and_doubles_no_row(
    tmp_path: Path, redis_url: str, redis_client: Redis, start: Start
) -> None:
    chance = random.Random(5)
    reached, in_flight = [0] * len(JOBS), 0
    for number, lanes in enumerate(LANES):
        run = start(_command(tmp_path, redis_url, lanes))
        reached = _await(run, reached, [count + chance.randrange(200, 500) for count in reached])
        time.sleep(chance.random() * 0.5)
        run.kill()
        in_flight += sum(_in_flight(tmp_path / "home" / "jobs" / name) for name in JOBS)
        assert max(reached) < ROWS, f"run {number} was killed too late to tell anything"
    assert in_flight > 0, "no epoch was in flight when it was killed"
    last = start(_command(tmp_path, redis_url, 4))
    assert list(_told(last))[-1] == [ROWS] * len(JOBS)
    assert last.wait() == 0, last.errors()
    assert column(tmp_path / "out") == list(range(ROWS))
    entries: Any = redis_client.xrange("rows")
    assert sorted(int(fields[b"row"]) for _, fields in entries) == list(range(ROWS))
    assert newest(tmp_path / "counts") == expected(ROWS)


def _command(place: Path, url: str, lanes: int) -> list[str]:
    script = place / "script.py"
    script.write_text(SCRIPT)
    return [sys.executable, str(script), str(place), url, str(ROWS), str(lanes)]


def _told(run: Run) -> Iterator[list[int]]:
    """Rows that each job is done with, as it goes on."""
    return ([int(word) for word in line.split()] for line in run.lines())


def _await(run: Run, reached: list[int], goal: list[int]) -> list[int]:
    """What the jobs are done with when all have reached the goal; it is never less than before the kill."""
    for done in _told(run):
        if len(done) == len(JOBS):
            assert all(now >= before for now, before in zip(done, reached, strict=True))
            if all(now >= wanted for now, wanted in zip(done, goal, strict=True)):
                return done
    raise AssertionError(run.errors())


def _in_flight(job: Path) -> bool:
    """Whether an epoch was begun and not finished."""
    begun, finished = (
        {int(path.name) for path in (job / "checkpoint" / log).glob("[0-9]*")} for log in ("offsets", "commits")
    )
    return bool(begun - finished)
