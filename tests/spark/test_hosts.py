"""A job on hosts that come, go and are killed: its rows are exact, it is never restarted, and nothing is left over."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from headgate.core.hosts import HostPhase, HostType
from headgate.hosts.leases import Budget
from headgate.hosts.provision import Terms
from headgate.spark import security, session
from headgate.spark.hosts.pool import LocalPool
from tests.contract.pool_promises import phase_of
from tests.spark.strangers import arguments_with, beyond_loopback

from .conftest import Start
from .processes import Run
from .test_classes import maps_archive

KIND = HostType("small", cores=1, memory_mb=512, price=1.0, btu_s=60)
TERMS = Terms((KIND,), Budget(3))

SCRIPT = """
import json, sys, time
from pathlib import Path
from headgate import Intent, Topology
from headgate.config import SparkSettings
from headgate.spark import sinks, sources
from headgate.spark.engine import open_engine

place, master, extra = Path(sys.argv[1]), sys.argv[2], json.loads(Path(sys.argv[3]).read_text())


def slowly(batches):
    for batch in batches:
        time.sleep(0.002 * batch.num_rows)
        yield batch


engine = open_engine(place / "home", SparkSettings(driver_memory_mb=512), master, extra)
try:
    topology = Topology("exact", Intent(latency="30s"), pace_s=0.0)
    read = topology.source("in", sources.load(100), lanes=2)
    work = topology.batches("work", slowly, read, schema="row long, arrived timestamp", lanes=4)
    topology.sink("out", sinks.files(place / "out"), work)
    engine.submit(topology)
    query = engine.job("exact").query
    while not (place / "enough").exists():
        jobs, states = engine.observe().jobs, engine.states()
        same = engine.job("exact").query is query and states["exact"].phase.value == "running"
        reading = jobs.get("exact")
        if reading is not None:
            hosts = {host for one in reading.operators.values() for host in one.hosts or ()}
            print(json.dumps({"rows": reading.operators["in"].processed["*"], "hosts": sorted(hosts), "same": same}), flush=True)
        time.sleep(0.2)
finally:
    engine.close()
"""


class Application:
    """What the application last said."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.said: list[dict] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.run.lines():
            self.said.append(json.loads(line))

    @property
    def hosts(self) -> list[str]:
        return self.said[-1]["hosts"] if self.said else []

    @property
    def rows(self) -> float:
        return self.said[-1]["rows"] if self.said else 0.0

    def finish(self) -> None:
        assert self.run.wait() == 0, self.run.errors()
        self._reader.join()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[LocalPool]:
    opened = LocalPool(tmp_path / "pool")
    yield opened
    opened.close()


def eventually(holds: Callable[[], object], what: str) -> None:
    """Looks now and then: a pool looks at all processes each time."""
    until_s = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < until_s, f"{what} did not happen"
        time.sleep(0.5)


def kill(pool: LocalPool, name: str) -> None:
    """`kill -9` for the worker of a host."""
    (worker,) = pool._workers()[name]
    worker.kill()


def java_of(pool: LocalPool) -> list[psutil.Process]:
    """The master, and the worker and the executor of its only host."""
    (master,), (worker,) = pool._masters(), *pool._workers().values()
    (executor,) = worker.children()
    return [master, worker, executor]


def agree(pool: LocalPool) -> bool:
    """What is on file is what runs, each once."""
    running = {name: len(found) for name, found in pool._workers().items()}
    return running == dict.fromkeys(pool._leases(), 1)


@pytest.mark.slow
def test_rows_are_exact_whoever_is_killed_while_hosts_come_and_go(pool: LocalPool, start: Start, tmp_path):
    pool.lease("a", KIND)
    configured = pool.application(TERMS)
    configured["spark.executor.extraJavaOptions"] += " -XX:TieredStopAtLevel=1"
    (tmp_path / "application.json").write_text(json.dumps(configured))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), pool.master_url, str(tmp_path / "application.json")]
    application = Application(start(command))
    eventually(lambda: application.hosts == ["127.0.0.11"], "the job ran on the first host")
    assert all(map(maps_archive, java_of(pool))) or not session.ARCHIVE.exists()
    assert arguments_with(configured[security.SECRET]) == []
    assert not beyond_loopback()

    pool.lease("b", KIND)
    (master,) = pool._masters()
    master.kill()
    eventually(
        lambda: phase_of(pool, "b") is HostPhase.READY, "a host came up although the master was killed meanwhile"
    )
    eventually(lambda: "127.0.0.12" in application.hosts, "the new host ran lanes")

    kill(pool, "b")
    eventually(lambda: phase_of(pool, "b") is HostPhase.FAILED, "the death of a host was seen")
    pool.lease("c", KIND)
    pool.release("b")
    eventually(lambda: list(pool.hosts()) == ["a", "c"], "the dead host was given back")
    eventually(lambda: phase_of(pool, "c") is HostPhase.READY, "another took its place")

    pool.release("c")
    kill(pool, "c")
    eventually(lambda: list(pool.hosts()) == ["a"], "a host that was killed while it went was gone")
    assert agree(pool)

    before = application.rows
    eventually(lambda: application.rows > before, "the job went on")
    (tmp_path / "enough").touch()
    application.finish()
    written = pq.read_table(tmp_path / "out")["row"].to_pylist()
    assert sorted(written) == list(range(len(written))) and len(written) >= before
    assert all(one["same"] for one in application.said)
