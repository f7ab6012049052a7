"""A host that falls silent: its jobs go on elsewhere, nothing is decided on what is not known, and every row counts once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from headgate.core.hosts import Budget, HostType
from headgate.core.provision import Terms
from headgate.spark.pool import LocalPool
from tests.spark.test_hosts import eventually
from tests.spark.test_keyed import USERS

from .conftest import Start
from .processes import Run

KIND = HostType("small", cores=2, memory_mb=512, price=1.0, btu_s=60)
TERMS = Terms((KIND,), Budget(2))
FIRST, SECOND = "127.0.0.11", "127.0.0.12"
JOBS = {"copied", "counted"}


class Rounds:
    """What the control loop printed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.all: list[dict[str, Any]] = []
        self._lines = run.lines()

    def until(self, holds: Any, what: str) -> dict[str, Any]:
        """The first round from now on of which this is true."""

        def found() -> bool:
            line = next(self._lines, None)
            assert line is not None, f"it ended before {what}: {self.run.errors()}"
            self.all.append(json.loads(line))
            return bool(holds(self.all[-1]))

        eventually(found, what)
        return self.all[-1]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[LocalPool]:
    opened = LocalPool(tmp_path / "pool")
    yield opened
    opened.close()


def executor_of(pool: LocalPool, name: str) -> psutil.Process:
    (worker,) = pool._workers()[name]
    (executor,) = worker.children()
    return executor


def epochs(one: dict[str, Any], job: str) -> int:
    return one["jobs"].get(job, {}).get("epochs") or 0


@pytest.mark.slow
def test_silent_host_is_avoided_and_its_jobs_are_not_judged_until_it_is_back(
    pool: LocalPool, start: Start, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        pool.lease(name, KIND)
    configured = pool.application(TERMS)
    configured["spark.executor.extraJavaOptions"] += " -XX:TieredStopAtLevel=1"
    (tmp_path / "application.json").write_text(json.dumps(configured))
    command = [sys.executable, "-m", "tests.spark.on_silent", str(tmp_path), pool.master_url]
    rounds = Rounds(start([*command, str(tmp_path / "application.json")]))
    rounds.until(
        lambda one: (
            one["jobs"].keys() == JOBS and all({FIRST, SECOND} <= {*job["hosts"]} for job in one["jobs"].values())
        ),
        "both jobs ran on both hosts",
    )

    executor = executor_of(pool, "b")
    executor.suspend()
    try:
        cut = rounds.until(lambda one: SECOND in one["silent"], "the silent host was seen")
        assert cut["silent"][SECOND] > 5.0
        assert any(f"its host {SECOND} has been silent for" in text for text in cut["advice"])
        rounds.until(lambda one: all(epochs(one, job) > epochs(cut, job) + 1 for job in JOBS), "both jobs went on")
        during = rounds.all[rounds.all.index(cut) :]
    finally:
        executor.resume()
    assert all(one["silent"].keys() == {SECOND} for one in during)
    assert all({*one["unjudged"]} == JOBS and not one["action"] for one in during)
    assert all(one["jobs"][job]["lanes"] == cut["jobs"][job]["lanes"] for one in during for job in JOBS)

    rounds.until(lambda one: not one["silent"], "the host was heard of again")
    rounds.until(
        lambda one: not one["unjudged"] and all(one["jobs"].get(job, {}).get("met") for job in JOBS),
        "both jobs were judged again and met their intents",
    )
    (tmp_path / "enough").touch()
    assert rounds.run.wait() == 0, rounds.run.errors()
    assert_exact(tmp_path)


def assert_exact(place: Path) -> None:
    copied = pq.read_table(place / "copied")["row"].to_pylist()
    assert sorted(copied) == list(range(len(copied)))
    counted = pq.read_table(place / "counted", columns=["user", "n", "total"])
    last: dict[int, tuple[int, int]] = {}
    for user, n, total in zip(*(counted[name].to_pylist() for name in ("user", "n", "total")), strict=True):
        last[user] = max(last.get(user, (0, 0)), (n, total))
    rows = sum(n for n, _ in last.values())
    wanted = {user: [*range(user, rows, USERS)] for user in range(min(rows, USERS))}
    assert last == {user: (len(found), sum(found)) for user, found in wanted.items()}
