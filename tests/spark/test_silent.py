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

from headgate.core.hosts import HostType
from headgate.hosts.leases import Budget
from headgate.hosts.provision import Terms
from headgate.spark.hosts.pool import LocalPool
from tests.spark.test_hosts import eventually
from tests.spark.test_keyed import USERS

from .conftest import Start
from .processes import Run

KIND = HostType("small", cores=2, memory_mb=512, price=1.0, btu_s=60)
TERMS = Terms((KIND,), Budget(2))
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
def test_jobs_of_a_frozen_executor_go_on_elsewhere_and_are_not_judged_until_it_is_back(
    pool: LocalPool, start: Start, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        pool.lease(name, KIND)
    configured = pool.application(TERMS)
    configured["spark.executor.extraJavaOptions"] += " -XX:TieredStopAtLevel=1"
    rounds = Rounds(start(command(tmp_path, pool.master_url, configured)))
    rounds.until(lambda one: on(one, "127.0.0.11", "127.0.0.12"), "both jobs ran on both hosts")
    executor = executor_of(pool, "b")
    executor.suspend()
    try:
        assert_nothing_is_decided(rounds, "127.0.0.12", silent_s=5.0)
    finally:
        executor.resume()
    assert_full_utility(rounds)
    end(rounds, tmp_path)


def command(place: Path, master: str, configured: dict[str, str]) -> list[str]:
    (place / "application.json").write_text(json.dumps(configured))
    return [sys.executable, "-m", "tests.spark.on_silent", str(place), master, str(place / "application.json")]


def on(one: dict[str, Any], *hosts: str) -> bool:
    """Whether both jobs have lanes on all of these hosts."""
    return one["jobs"].keys() == JOBS and all({*hosts} <= {*job["hosts"]} for job in one["jobs"].values())


def assert_nothing_is_decided(rounds: Rounds, host: str, silent_s: float) -> None:
    """From when the host is suspect until it has been silent for so long, while both jobs go on without it."""
    cut = rounds.until(lambda one: host in one["silent"], "the silent host was seen")
    assert any(f"host {host} has been silent for" in text for text in cut["advice"])
    rounds.until(
        lambda one: (
            all(epochs(one, job) > epochs(cut, job) + 1 for job in JOBS) and one["silent"].get(host, 0.0) > silent_s
        ),
        "both jobs went on",
    )
    during = rounds.all[rounds.all.index(cut) :]
    decided = [one for one in during if {*one["unjudged"]} != JOBS or one["action"] or one["silent"].keys() != {host}]
    assert decided == []
    assert all(one["jobs"][job]["lanes"] == cut["jobs"][job]["lanes"] for one in during for job in JOBS)


def assert_full_utility(rounds: Rounds) -> None:
    rounds.until(lambda one: not one["silent"], "the host was heard of again")
    rounds.until(
        lambda one: not one["unjudged"] and all(one["jobs"].get(job, {}).get("met") for job in JOBS),
        "both jobs were judged again and met their intents",
    )


def end(rounds: Rounds, place: Path) -> None:
    (place / "enough").touch()
    assert rounds.run.wait() == 0, rounds.run.errors()
    assert_exact(place)


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
