"""Executors of a real standalone master, leased and released through Spark's allocation client; run by `test_executors`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.config import HostSettings, SparkSettings
from headgate.core.hosts import HostPhase, HostType
from headgate.hosts.leases import Budget
from headgate.hosts.provision import Terms
from headgate.spark import sinks
from headgate.spark.engine import SparkEngine, open_engine
from headgate.spark.hosts.executors import ExecutorPool
from headgate.spark.hosts.pool import LocalPool, same_code
from tests.contract.pool_promises import KIND, PoolPromises, World, phase
from tests.spark.builders import burst, copied, put_in, start

PATIENCE_S = 120.0
ROWS = 1000


@dataclass(frozen=True)
class OnCluster:
    """A pool of executors, and the engine whose executors they are."""

    pool: ExecutorPool
    engine: SparkEngine


def wait_until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCluster]:
    """A master with one worker of two cores, which another pool runs: for the pool of executors, a cluster of others."""
    home = tmp_path_factory.mktemp("cluster")
    others = LocalPool(home / "cluster")
    try:
        others.lease("machine", HostType("machine", cores=2, memory_mb=4096, price=0.0, btu_s=600))
        wait_until(lambda: others.hosts()["machine"].phase is HostPhase.READY)
        pool = ExecutorPool(others.master_url, drain_s=10.0)
        extra = pool.application(Terms((KIND,), Budget(2), HostSettings())) | same_code()
        settings = SparkSettings(slots=2)
        engine = open_engine(home / "engine", settings, others.master_url, {**others.access(), **extra})
        try:
            yield OnCluster(pool, engine)
        finally:
            engine.close()
    finally:
        others.close()


@pytest.fixture
def world(cluster: OnCluster) -> Iterator[World]:
    yield World(cluster.pool, wait_until)
    for name in cluster.pool.hosts():
        cluster.pool.release(name)
    wait_until(lambda: not cluster.pool.hosts())


class TestExecutorPool(PoolPromises):
    """All promises of a pool."""


def test_job_goes_on_exactly_while_executors_come_and_go(world: World, cluster: OnCluster, tmp_path: Path) -> None:
    world.pool.lease("a", KIND)
    wait_until(lambda: phase(world, "a") is HostPhase.READY)
    start(cluster.engine, copied("job", tmp_path / "out", burst(ROWS)), read_limit=200)
    wait_until(lambda: put_in(cluster.engine) > 0)
    world.pool.lease("b", KIND)
    wait_until(lambda: phase(world, "b") is HostPhase.READY)
    world.pool.release("a")
    wait_until(lambda: list(world.pool.hosts()) == ["b"])
    wait_until(lambda: put_in(cluster.engine) >= ROWS)
    cluster.engine.pause("job")  # the epoch in flight ends
    written = sinks.read_files(cluster.engine.spark, tmp_path / "out").select("row")
    assert sorted(row.row for row in written.collect()) == list(range(ROWS))
    cluster.engine.remove("job")


def test_executors_report_their_heap_and_the_memory_of_their_python_processes(
    world: World, cluster: OnCluster, tmp_path: Path
) -> None:
    world.pool.lease("a", KIND)
    wait_until(lambda: phase(world, "a") is HostPhase.READY)
    start(cluster.engine, copied("measured", tmp_path / "out", burst(10 * ROWS)), read_limit=50)

    def is_measured() -> bool:
        (host,) = cluster.engine.observe().hosts
        return (host.heap_mb or 0) > 1 and (host.python_mb or 0) > 10 and 0 < (host.memory_used or 0) <= 1

    wait_until(is_measured)
    cluster.engine.remove("measured")
