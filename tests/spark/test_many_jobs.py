"""Many jobs at once: all start, nothing grows but their counters, and nothing stays behind."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, replace

import psutil
import pytest
from pyspark.sql import SparkSession

from headgate.core.model import Action, ActionKind, Cause
from headgate.ports import JobPhase
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.measuring.inflow import ASKED_AT_ONCE
from headgate.topology import Topology

from .builders import ROWS, same, topology
from .conftest import Until

JOBS = 20
WARM_UP_EPOCHS = 6
"""By then Spark's own record of stages, 150 of them, has filled up."""
APART_EPOCHS = 12
"""Epochs of every job between the two looks."""


@dataclass(frozen=True)
class Held:
    """What a process and its JVM hold at one moment."""

    threads: int
    jvm_threads: int
    files: int
    jvm_files: int
    heap_mb: float
    kept: int
    """Rows kept by Spark for somebody, as a number of RDDs."""


def held(spark: SparkSession) -> Held:
    me = psutil.Process()
    (jvm,) = (child for child in me.children() if child.name() == "java")
    return Held(
        threads=threading.active_count(),
        jvm_threads=lasting_threads(spark),
        files=me.num_fds(),
        jvm_files=jvm.num_fds(),
        heap_mb=heap_mb(spark),
        kept=spark.sparkContext._jsc.getPersistentRDDs().size(),
    )


OF_TASKS = ("Worker Monitor for", "block-manager-", "Executor task")
"""Threads whose number follows the tasks of the last seconds: Spark ends a monitor up to 2 s after its task, and has at most 100 threads
in each pool of its block manager."""
IDLE_REAPER = "process reaper"
"""Waits for a minute for another process to end; the name of a busy one has the number of its process."""


def lasting_threads(spark: SparkSession) -> int:
    """Threads of the JVM that a job, and not a task, has."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet().toArray()
    names = (thread.getName() for thread in threads)
    return sum(name != IDLE_REAPER and not name.startswith(OF_TASKS) for name in names)


def heap_mb(spark: SparkSession) -> float:
    """In use by what can be reached: the least of several looks right after a collection."""
    gc.collect()
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    looks = []
    for _ in range(3):
        jvm.System.gc()
        memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        looks.append(memory.getHeapMemoryUsage().getUsed() / 2**20)
        time.sleep(0.2)
    return float(min(looks))


def small(number: int) -> Topology:
    """A lane in Python; in every fourth job, rows that are kept because two sinks read them."""
    job = topology(f"job-{number}", latency="60s", pace_s=600.0)
    rows = job.batches("copy", same, job.source("in", sources.load(5)), schema=ROWS)
    job.sink("out", sinks.discard(), rows)
    if number % 4 == 0:
        job.sink("again", sinks.discard(), rows)
    return job


def all_paced(engine: SparkEngine, pace_s: float) -> None:
    paced = {name: replace(has, pace_s=pace_s) for name, has in engine.observe().allocation.items()}
    assert engine.apply(Action(ActionKind.RELAX, None, paced, Cause("a test"))).applied


def quiet(engine: SparkEngine, spark: SparkSession, until: Until) -> Held:
    """What is held while no epoch is on its way: on a busy machine, those of twenty jobs hold tens of MB."""
    all_paced(engine, 600.0)
    seen: list[list[int | None]] = []

    def is_quiet() -> bool:
        seen.append([now.epochs if now is not None else None for now in engine.observe().jobs.values()])
        time.sleep(0.5)
        return seen[-3:] == [seen[-1]] * 3

    until(is_quiet, "the end of all epochs", within_s=120)
    found = held(spark)
    all_paced(engine, 1.0)
    return found


def fewest_epochs(engine: SparkEngine) -> int:
    return min((now.epochs or 0) if now is not None else 0 for now in engine.observe().jobs.values())


@pytest.mark.slow
def test_nothing_grows_while_twenty_jobs_run_and_nothing_stays_when_they_are_gone(
    engine: SparkEngine, spark: SparkSession, until: Until
) -> None:
    engine.submit(small(0))  # what the first job of a process leaves behind is there once
    until(lambda: bool(engine.jobs()) and fewest_epochs(engine) >= 1, "an epoch")
    engine.remove("job-0")
    before = held(spark)
    for number in range(JOBS):
        engine.submit(small(number))
    until(lambda: len(engine.jobs()) == JOBS and fewest_epochs(engine) >= 1, "an epoch of each", within_s=300)
    all_paced(engine, 1.0)
    until(lambda: fewest_epochs(engine) >= WARM_UP_EPOCHS, "the warm-up", within_s=300)
    first, since = quiet(engine, spark, until), fewest_epochs(engine)
    until(lambda: fewest_epochs(engine) >= since + APART_EPOCHS, "more epochs", within_s=300)
    last = quiet(engine, spark, until)
    assert len(engine.jobs()) == JOBS
    assert last.threads <= first.threads + 2
    assert last.jvm_threads <= first.jvm_threads + JOBS / 2
    assert last.files <= first.files + 5
    assert last.jvm_files <= first.jvm_files + 3 * JOBS, "a Python worker takes three, and they come and go"
    assert last.kept <= JOBS / 4
    assert last.heap_mb <= 1.1 * first.heap_mb + 10
    all_paced(engine, 600.0)
    for name in list(engine.states()):
        engine.remove(name)
    assert spark.streams.active == []
    most = before.threads + ASKED_AT_ONCE + 2  # threads that ask sources stay for the jobs to come
    until(lambda: held(spark).threads <= most, "the end of the threads", within_s=180)
    after = held(spark)
    assert after.jvm_threads <= before.jvm_threads + 1.5 * JOBS, (
        "Spark keeps an idle monitor for each source it ever started"
    )
    assert after.kept == before.kept
    assert after.files <= before.files + 5
    assert after.heap_mb <= before.heap_mb + 50


@pytest.mark.slow
def test_thirty_jobs_submitted_one_right_after_another_run_and_none_is_retried(
    engine: SparkEngine, until: Until
) -> None:
    for number in range(30):
        engine.submit(small(number))
    seen = {state.phase for state in engine.states().values()}
    until(lambda: fewest_epochs(engine) >= 1, "an epoch of each")
    seen |= {state.phase for state in engine.states().values()}
    assert (seen, len(engine.jobs())) == ({JobPhase.RUNNING}, 30)
