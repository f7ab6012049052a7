"""Keyed state on a real cluster: lanes run where their slices are, slices leave a host that goes, and come up again if one is killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.spark.keyed_hosts import planned_anew
from headgate.spark.pool import LocalPool

from .conftest import Start
from .test_keyed import USERS, newest

ROWS = 4000
SCRIPT = """
import json, sys, time
from pathlib import Path
from headgate.config import SparkSettings, StateSettings
from headgate.core.hosts import HostPhase, HostType
from headgate.spark import session
from headgate.spark.engine import SparkEngine
from headgate.spark.pool import LocalPool
from headgate.state.inspect import read_opens
from tests.spark.test_keyed import counting
from tests.spark.test_keyed_hosts import ROWS

place = Path(sys.argv[1])
pool = LocalPool(place / "pool")
kind = HostType("small", cores=1, memory_mb=1024, price=1.0, btu_s=60)


def until(holds):
    until_s = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.1)


for name in ("a", "b", "c"):
    pool.lease(name, kind)
until(lambda: all(host.phase is HostPhase.READY for host in pool.hosts().values()))
settings = SparkSettings(read_limit=100, driver_memory_mb=1024, stop_s=60, state=StateSettings(backup_epochs=2))
local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}
spark = session.start(place / "home", settings, pool.master_url, local)
engine = SparkEngine(spark, place / "home", settings, embedded=False)
a, b, c = (f"127.0.0.{last}" for last in (11, 12, 13))


def opens():
    return read_opens(engine.place_of("job"), "count")


def epochs_more(count):
    before = opens().epoch
    until(lambda: opens().epoch >= before + count)


def hosting():
    return engine._jobs["job"].hosted["count"].hosting


def homes():
    return sorted(set(hosting().placement.homes()))


def settled(*hosts):
    placement = hosting().placement
    return homes() == sorted(hosts) and all(place.ready and place.migration is None for place in placement.places)


def say(what, **facts):
    print(json.dumps({"what": what, **facts}), flush=True)


try:
    until(lambda: len(engine.observe().hosts) == 3)
    engine.submit(counting(place / "out", lanes=3, rows=ROWS))
    until(lambda: engine._jobs["job"].hosted and opens() and settled(a, b, c))
    epochs_more(1)
    before = opens().all
    epochs_more(3)
    opened = {origin: count - before.get(origin, 0) for origin, count in opens().all.items()}
    say("steady", opened=opened, homes=homes())
    engine.vacate(c)
    until(lambda: engine.is_vacant(c) and settled(a, b))
    say("left", homes=homes(), rebuilt=opens().all.get("rebuilt", 0) - before.get("rebuilt", 0))
    engine.occupy(c)
    until(lambda: settled(a, b, c))
    epochs_more(1)
    (worker,) = pool._workers()["b"]
    for process in [worker, *worker.children(recursive=True)]:
        process.kill()
    rebuilt = opens().all.get("rebuilt", 0)
    until(lambda: b not in homes())
    epochs_more(2)
    say("lost", homes=homes(), rebuilt=opens().all.get("rebuilt", 0) - rebuilt, reason=engine.states()["job"].reason)
    until(lambda: sum(engine.observe().jobs["job"].operators["in"].processed.values()) == ROWS)
    say("done", phase=engine.states()["job"].phase.value)
finally:
    engine.close()
    pool.close()
"""


def test_an_epoch_is_planned_anew_as_long_as_a_host_was_lost_and_never_for_ever() -> None:
    for lost, attempts in (([], 1), ([True], 2), ([True, True], 3)):
        tried: list[int] = []
        answers = iter([*lost, False])

        def run(tried: list[int] = tried) -> None:
            tried.append(1)
            raise OSError

        with pytest.raises(OSError):
            planned_anew(run, lambda error, answers=answers: next(answers))  # type: ignore[misc]
        assert len(tried) == attempts


@pytest.fixture
def told(tmp_path: Path, start: Start) -> Iterator[dict[str, Any]]:
    """What the script said, by the name of the chapter."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    try:
        run = start([sys.executable, str(script), str(tmp_path)])
        lines = [json.loads(line) for line in run.lines()]
        assert run.wait() == 0, run.errors()
        yield {line["what"]: line for line in lines}
    finally:
        LocalPool(tmp_path / "pool").close()


def test_lanes_follow_their_slices_through_a_host_that_leaves_and_one_that_is_killed(
    told: dict[str, Any], tmp_path: Path
) -> None:
    opened = told["steady"]["opened"]
    assert opened.get("local", 0) >= 0.95 * sum(opened.values()) > 0
    assert told["left"]["homes"] == ["127.0.0.11", "127.0.0.12"]
    assert told["left"]["rebuilt"] == 0, "slices were there before their lanes"
    assert told["lost"]["homes"] == ["127.0.0.11", "127.0.0.13"]
    assert told["lost"]["rebuilt"] == 0, "backups were there"
    assert told["done"]["phase"] == "running"
    counted = {user: (row["n"], row["total"]) for user, row in newest(tmp_path / "out").items()}
    assert counted == {user: (len(range(user, ROWS, USERS)), sum(range(user, ROWS, USERS))) for user in range(USERS)}
