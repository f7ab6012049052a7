"""The whole process is killed in the middle of its work, again and again: no row is lost, none is written twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from .builders import column

ROWS = 3000
KILLS = 3
ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0

SCRIPT = """
import sys, time
from pathlib import Path
from typing import Any
from headgate import Intent, Topology
from headgate.config import SparkSettings
from headgate.spark import sinks, sources
from headgate.spark.engine import open_engine

place, url, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def same(batches):
    yield from batches


def job(name, sink):
    topology = Topology(name, Intent(latency="30s"), pace_s=0.0)
    read = topology.source("in", sources.load(sources.Steps([(0, 10 * rows), (0.1, 0)])), lanes=2)
    copy = topology.batches("copy", same, read, schema="row long, arrived timestamp", lanes=3)
    topology.sink("out", sink, copy)
    return topology


engine = open_engine(place / "home", SparkSettings(slots=4, read_limit=200, stop_s=60))
try:
    engine.submit(job("files", sinks.files(place / "out")))
    if url != "none":
        engine.submit(job("redis", sinks.redis("rows", url=url)))
    while True:
        jobs = engine.observe().jobs
        done = [int(one.operators["in"].processed["*"]) if one else 0 for one in jobs.values()]
        print(*done, flush=True)
        if set(done) == {rows}:
            break
        time.sleep(0.1)
except KeyboardInterrupt:
    pass
finally:
    engine.close()
"""


class Run:
    """The script in a session of its own, so that everything it starts can be found."""

    def __init__(self, place: Path, url: str = "none", rows: int = ROWS) -> None:
        script = place / "script.py"
        script.write_text(SCRIPT)
        self._errors = (place / "stderr").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(place), url, str(rows)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )

    def told(self) -> Iterator[list[int]]:
        """Rows that each job is done with, as it goes on."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield [int(word) for word in line.split()]

    def kill(self) -> None:
        """`kill -9` for all of it at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        deadline_s = time.monotonic() + 30
        while (left := self.members()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not left, left
        return code

    def members(self) -> list[str]:
        """What still runs of it, whatever process group it has moved to."""
        return [f"{one.pid} {one.name()}" for one in psutil.process_iter() if _session_of(one) == self.process.pid]

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        for one in psutil.process_iter():
            if _session_of(one) == self.process.pid:
                one.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.close()


def test_kill_in_the_middle_of_epochs_loses_and_doubles_no_row(
    tmp_path: Path, redis_url: str, redis_client: Redis, runs: list[Run]
) -> None:
    chance = random.Random(5)
    reached, in_flight = [0, 0], 0
    for number in range(KILLS):
        run = Run(tmp_path, redis_url)
        runs.append(run)
        reached = _await(run, reached, [count + chance.randrange(200, 500) for count in reached])
        time.sleep(chance.random() * 0.5)
        run.kill()
        in_flight += sum(_in_flight(tmp_path / "home" / "jobs" / name) for name in ("files", "redis"))
        assert max(reached) < ROWS, f"run {number} was killed too late to tell anything"
    assert in_flight > 0, "no epoch was in flight when it was killed"
    last = Run(tmp_path, redis_url)
    runs.append(last)
    assert list(last.told())[-1] == [ROWS, ROWS]
    assert last.wait() == 0, last.errors()
    assert column(tmp_path / "out") == list(range(ROWS))
    entries: Any = redis_client.xrange("rows")
    assert sorted(int(fields[b"row"]) for _, fields in entries) == list(range(ROWS))


def _await(run: Run, reached: list[int], goal: list[int]) -> list[int]:
    """What both jobs are done with when they have reached the goal; it is never less than before the kill."""
    for done in run.told():
        if len(done) == 2:
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
