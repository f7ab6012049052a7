"""The contract of a pool of executors: with a cluster manager of a few lines, and with a real standalone master."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from headgate.config import HostSettings
from headgate.core.hosts import HostPhase
from headgate.errors import EngineError
from headgate.hosts.leases import Budget
from headgate.hosts.provision import Terms
from headgate.spark.hosts.executors import ExecutorPool
from tests.contract.pool_promises import KIND, PoolPromises, World, phase

from .processes import ROOT

URL = "spark://cluster:7077"


class Cluster:
    """A cluster manager that gives an executor per request 5 s later, and whose executors take 3 s to leave."""

    def __init__(self, machines: int = 10) -> None:
        self.now_s, self.total, self.machines, self.refuses, self.stays = 0.0, 0, machines, False, False
        self.count = 0
        self.running: dict[str, str] = {}
        self.leaving: dict[str, float] = {}
        self.killed: list[str] = []
        self._short_s = 0.0

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.leaving = {one: at_s for one, at_s in self.leaving.items() if self.stays or self.now_s < at_s + 3.0}
        self._short_s = self._short_s + seconds if len(self.running) < self.total else 0.0
        if self._short_s >= 5.0:
            self.give()

    def give(self) -> None:
        self.running[str(self.count)] = f"10.0.0.{self.count % self.machines}"
        self.count += 1
        self._short_s = 0.0

    def alive(self) -> Mapping[str, str]:
        return dict(self.running)

    def remaining(self) -> frozenset[str]:
        return frozenset(self.running) | frozenset(self.leaving)

    def request(self, total: int) -> bool:
        self.total = total
        return not self.refuses

    def decommission(self, executor: str, why: str) -> None:
        del self.running[executor]
        self.leaving[executor] = self.now_s

    def kill(self, executor: str) -> None:
        self.running.pop(executor, None)
        self.leaving.pop(executor, None)
        self.killed.append(executor)


def world_of(cluster: Cluster, pool: ExecutorPool) -> World:
    def wait_until(holds: Callable[[], bool]) -> None:
        for _ in range(600):
            if holds():
                return
            cluster.pass_s(1.0)
        raise AssertionError("it did not happen within 10 minutes")

    return World(pool, wait_until)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def pool(cluster: Cluster) -> ExecutorPool:
    return ExecutorPool(URL, lambda: cluster.now_s, patience_s=60.0, drain_s=20.0, client=lambda: cluster)


@pytest.fixture
def world(cluster: Cluster, pool: ExecutorPool) -> World:
    return world_of(cluster, pool)


class TestExecutorPool(PoolPromises):
    """All promises of a pool."""


def ready(world: World, *names: str) -> None:
    world.wait_until(lambda: {phase(world, name) for name in names} == {HostPhase.READY})


def test_lost_executor_is_replaced_under_the_same_lease(world: World, cluster: Cluster) -> None:
    world.pool.lease("a", KIND)
    ready(world, "a")
    before, leased_s = world.pool.hosts()["a"].address, world.pool.hosts()["a"].leased_s
    cluster.running.clear()
    assert phase(world, "a") is HostPhase.STARTING
    ready(world, "a")
    assert world.pool.hosts()["a"].address != before and world.pool.hosts()["a"].leased_s == leased_s


def test_host_without_an_executor_for_too_long_has_failed_and_can_be_released(world: World, cluster: Cluster) -> None:
    world.pool.lease("a", KIND)
    ready(world, "a")
    cluster.running.clear()
    assert phase(world, "a") is HostPhase.STARTING
    cluster.now_s += 61.0
    assert world.pool.hosts()["a"].reason == "the cluster manager has given no executor for 61 s"
    world.pool.release("a")
    assert not world.pool.hosts() and cluster.total == 0


def test_executor_that_the_cluster_manager_takes_away_does_not_fail_its_host(world: World, cluster: Cluster) -> None:
    world.pool.lease("a", KIND)
    ready(world, "a")
    cluster.now_s += 600.0
    cluster.decommission("0", "the machine is serviced")
    assert phase(world, "a") is HostPhase.STARTING
    ready(world, "a")


def test_pool_whose_jvm_is_gone_closes(cluster: Cluster) -> None:
    pool = ExecutorPool(URL, lambda: cluster.now_s, client=lambda: cluster)
    pool.lease("a", KIND)

    def gone(total: int) -> bool:
        raise ConnectionError("the JVM is gone")

    cluster.request = gone  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="Spark's allocation client failed"):
        pool.lease("b", KIND)
    pool.close()


def test_executor_that_does_not_leave_in_time_is_killed_once(world: World, cluster: Cluster) -> None:
    world.pool.lease("a", KIND)
    ready(world, "a")
    cluster.stays = True
    world.pool.release("a")
    cluster.pass_s(19.0)
    assert phase(world, "a") is HostPhase.RELEASING and not cluster.killed
    cluster.pass_s(2.0)
    world.wait_until(lambda: not world.pool.hosts())
    assert cluster.killed == ["0"]


def test_executors_beyond_the_leases_end(world: World, cluster: Cluster) -> None:
    """A standalone master gives all executors that fit when the application starts."""
    cluster.give()
    cluster.give()
    world.pool.lease("a", KIND)
    world.pool.hosts()
    assert list(cluster.running) == ["0"] and cluster.killed == ["1"] and cluster.total == 1


def test_executors_are_asked_for_once_spark_runs(cluster: Cluster) -> None:
    running: list[Cluster] = []
    pool = ExecutorPool(URL, lambda: cluster.now_s, client=lambda: running[0] if running else None)
    pool.lease("a", KIND)
    assert pool.hosts()["a"].phase is HostPhase.STARTING and cluster.total == 0
    running.append(cluster)
    pool.hosts()
    assert cluster.total == 1


def test_machine_that_executors_share_is_not_emptied(cluster: Cluster, pool: ExecutorPool, world: World) -> None:
    cluster.machines = 1
    pool.lease("a", KIND)
    ready(world, "a")
    assert pool.hosts()["a"].address == "10.0.0.0"
    pool.lease("b", KIND)
    ready(world, "a", "b")
    assert [host.address for host in pool.hosts().values()] == ["", ""]


def test_refused_request_is_one_sentence(cluster: Cluster, pool: ExecutorPool) -> None:
    cluster.refuses = True
    with pytest.raises(EngineError, match=f"^the cluster manager of {URL} did not take a request for 1 executors$"):
        pool.lease("a", KIND)
    cluster.refuses = False
    assert not pool.hosts()


def test_application_never_has_more_executors_than_may_be_leased(pool: ExecutorPool) -> None:
    found = pool.application(Terms((KIND,), Budget(3), HostSettings()))
    wanted = {"spark.executor.cores": "1", "spark.cores.max": "3", "spark.executor.memory": "1024m"}
    assert wanted.items() <= found.items()
    assert found["spark.dynamicAllocation.enabled"] == "false" and found["spark.decommission.enabled"] == "true"


@pytest.mark.slow
def test_pool_of_executors_keeps_its_promises_on_a_standalone_master() -> None:
    """In a process of its own, because a process has one Spark session."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "tests/spark/on_executors.py",
    ]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
