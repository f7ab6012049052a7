"""Running and waiting tasks, heartbeats and work on silent executors, as Spark's scheduler has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from headgate.spark import session
from headgate.spark.engine import SparkEngine
from headgate.spark.hosts import readings as hosts
from headgate.spark.hosts.readings import Hosts
from headgate.spark.hosts.tasks import (
    HEARTBEAT,
    PYTHON_MEMORY,
    Executor,
    MemoryLimits,
    TaggedJobs,
    TaskSnapshot,
    TaskWatch,
)

from .conftest import SETTINGS, Until

TASKS = 3 * SETTINGS.slots


def napping(rows: Iterable[int]) -> Iterable[int]:
    time.sleep(0.3)
    return rows


@pytest.fixture
def watch(spark: SparkSession) -> Iterator[TaskWatch]:
    found = TaskWatch(spark)
    yield found
    found.close()


def test_tasks_beyond_the_slots_wait_and_none_is_left(spark: SparkSession, watch: TaskWatch, until: Until) -> None:
    context = spark.sparkContext
    seen: list[TaskSnapshot] = [watch.read()]
    nap = threading.Thread(target=lambda: context.parallelize(range(TASKS), TASKS).mapPartitions(napping).count())
    nap.start()
    while nap.is_alive():
        seen.append(watch.read())
        time.sleep(0.02)
    until(lambda: not watch.read().executors["driver"].running, "the end of the last task")
    seen.append(watch.read())
    running = [one.executors["driver"].running for one in seen if "driver" in one.executors]
    assert max(running) >= SETTINGS.slots and max(one.waiting for one in seen) >= TASKS - SETTINGS.slots
    assert min(one.waiting for one in seen) == 0 == seen[-1].waiting
    assert seen[-1].executors["driver"].running_s >= TASKS * 0.3
    assert seen[-1].waiting_s >= SETTINGS.slots * (0.3 + 0.6)
    assert seen[-1].works == []


def test_work_is_known_by_its_tag_and_its_executors_while_it_runs(
    spark: SparkSession, watch: TaskWatch, until: Until
) -> None:
    context = spark.sparkContext

    def work() -> None:
        context.addJobTag("some-epoch")
        context.parallelize(range(2), 2).mapPartitions(napping).count()

    thread = threading.Thread(target=work)
    thread.start()
    until(
        lambda: any(one.has("some-epoch") and one.touches(frozenset(["driver"])) for one in watch.read().works),
        "its tasks",
    )
    thread.join()
    until(lambda: not watch.read().works, "its end")


def test_executor_is_heard_of_at_every_heartbeat(watch: TaskWatch, until: Until) -> None:
    assert watch.heartbeat_s == SETTINGS.heartbeat_s
    until(lambda: "driver" in watch.read().executors, "a heartbeat")
    until(lambda: (watch.read().executors["driver"].silent_s or 9.0) < 1.0, "another heartbeat")


def test_embedded_host_tells_slots_tasks_and_pressure(engine: SparkEngine) -> None:
    (host,) = engine.observe().hosts
    assert host.slots == SETTINGS.slots and not host.suspect
    assert host.running is not None and host.running >= 0 and host.waiting is not None and host.waiting >= 0
    assert (host.pressure is None) is (not hosts.PRESSURE.exists())


# -- hosts of a cluster, as they would be told


class Told:
    """A listener and Spark's list of executors, both as a test says."""

    heartbeat_s = 2.0
    limits = MemoryLimits(1000.0, 200.0)

    def __init__(self, **executors: Executor) -> None:
        self.watched = TaskSnapshot(0.0, 0, 0.0, executors, [])
        self.on = {"one": ("1", "10.0.0.1", 2.0), "two": ("2", "10.0.0.2", 2.0), "three": ("3", "10.0.0.2", 2.0)}

    def read(self) -> TaskSnapshot:
        return self.watched

    def executors(self) -> list[tuple[str, str, float]]:
        return [one for one in self.on.values() if one[0] in self.watched.executors]

    def close(self) -> None: ...

    def then(self, seconds: float, waiting_s: float = 0.0, **changed: Executor | None) -> None:
        numbers = {"one": "1", "two": "2", "three": "3"}
        all_ = {**self.watched.executors, **{numbers[name]: found for name, found in changed.items()}}
        kept = {name: found for name, found in all_.items() if found is not None}
        now = self.watched
        self.watched = TaskSnapshot(now.at_s + seconds, 0, now.waiting_s + waiting_s, kept, now.works)


def cluster(told: Told) -> Hosts:
    return Hosts(told, told, False, 2.5)  # type: ignore[arg-type]


def executor(running_s: float, silent_s: float = 0.5) -> Executor:
    return Executor(0, running_s, silent_s)


def test_load_of_a_cluster_is_what_runs_and_waits() -> None:
    told = Told(**{"1": executor(100.0), "2": executor(50.0)})
    found = cluster(told)
    told.then(10.0, waiting_s=40.0, one=executor(120.0), two=executor(60.0))
    first, second = found.readings()
    assert (first.running, first.waiting, first.load, first.congested) == (2.0, 2.0, 4.0, True)
    assert (second.running, second.waiting, second.load) == (1.0, 2.0, 3.0)


def test_memory_of_a_host_is_that_of_its_executors() -> None:
    """Its share is the largest of all executors, of heap or Python memory."""
    unmeasured = executor(0.0)
    told = Told(**{"1": unmeasured, "2": Executor(heap_bytes=300 << 20, python_bytes=180 << 20), "3": unmeasured})
    first, second = cluster(told).readings()
    assert (first.memory_used, first.heap_mb, first.python_mb) == (None, None, None)
    assert (second.memory_used, second.heap_mb, second.python_mb) == (0.9, 300.0, 180.0)
    told.then(10.0, three=Executor(heap_bytes=950 << 20, python_bytes=1 << 20))
    second = cluster(told).readings()[1]
    assert (second.memory_used, second.heap_mb, second.python_mb) == (0.95, 1250.0, 181.0)


def test_no_more_tasks_run_than_there_are_slots() -> None:
    """Spark may tell the start of a task before the end of the one whose slot it has."""
    told = Told(**{"1": executor(0.0)})
    found = cluster(told)
    told.then(10.0, one=executor(21.0))
    (host,) = found.readings()
    assert (host.running, host.congested) == (2.0, False)


def test_load_is_never_negative_after_an_executor_was_replaced() -> None:
    told = Told(**{"1": executor(100.0), "2": executor(500.0)})
    found = cluster(told)
    told.then(10.0, one=executor(110.0), two=None, three=executor(5.0))
    assert [host.running for host in found.readings()] == [1.0, 0.5]


def test_host_is_suspect_once_all_its_executors_have_been_silent_for_too_long() -> None:
    told = Told(**{"1": executor(1.0), "2": executor(1.0, 6.0), "3": executor(1.0, 0.2)})
    found = cluster(told)
    assert not any(host.suspect for host in found.readings())
    told.then(4.0, three=executor(1.0, 5.1))
    first, second = found.readings()
    assert not first.suspect and second.suspect and second.silent_s == 5.1
    assert second.load is None and second.congested is None


def test_no_host_is_suspect_after_a_pause_of_spark_itself() -> None:
    told = Told(**{"1": executor(1.0, 21.0), "2": executor(1.0, 19.0), "driver": executor(0.0, 20.0)})
    found = cluster(told)
    assert [host.silent_s for host in found.readings()] == [3.0, 1.0]
    assert not any(host.suspect for host in found.readings())


def test_lanes_are_planned_without_suspect_hosts_unless_all_are() -> None:
    told = Told(**{"1": executor(1.0), "2": executor(1.0, 6.0)})
    assert cluster(told).cores() == {"10.0.0.1": 2.0}
    told.then(1.0, one=executor(1.0, 9.0))
    assert cluster(told).cores() == {"10.0.0.1": 2.0, "10.0.0.2": 2.0}


def test_only_work_that_touches_a_silent_executor_is_stuck_and_only_if_there_is_another() -> None:
    told = Told(**{"1": executor(1.0), "2": executor(1.0, 6.0)})
    works = [TaggedJobs("a,session", "1,2"), TaggedJobs("b,session", "1")]
    told.watched = TaskSnapshot(0.0, 0, 0.0, told.watched.executors, works)
    assert cluster(told).stuck() == ["a", "session"]
    told.watched = TaskSnapshot(0.0, 0, 0.0, {"2": executor(1.0, 6.0), "driver": executor(0.0)}, works)
    assert cluster(told).stuck() == []


# -- what Spark is told


def test_spark_has_few_partitions_and_frequent_heartbeats_unless_the_operator_says_otherwise(
    spark: SparkSession,
) -> None:
    assert spark.conf.get(session.PARTITIONS) == str(SETTINGS.slots)
    wanted = session._fallbacks(replace(SETTINGS, slots=6, heartbeat_s=1.5))
    assert wanted == {session.PARTITIONS: "6", HEARTBEAT: "1500ms", PYTHON_MEMORY: "true"}
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert session._unless_set(wanted) == wanted
    jvm.System.setProperty(session.PARTITIONS, "50")  # as spark-submit does with spark-defaults.conf
    try:
        assert session._unless_set(wanted) == {HEARTBEAT: "1500ms", PYTHON_MEMORY: "true"}
    finally:
        jvm.System.clearProperty(session.PARTITIONS)
