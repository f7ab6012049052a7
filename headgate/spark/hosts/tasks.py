"""Running and waiting tasks, and the silence and memory of each executor, from a listener inside Spark's JVM.

To ask Spark's scheduler from Python costs a call through the gateway for each stage and each figure. The listener `TaskWatch.java` adds up
task seconds where they happen, so that a reading is one call (0.2 ms), and misses nothing between two readings.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from headgate.spark import jvm

SOURCE = Path(__file__).with_name("TaskWatch.java")
DRIVER = "driver"
HEARTBEAT = "spark.executor.heartbeatInterval"
PYTHON_MEMORY = "spark.executor.processTreeMetrics.enabled"
"""Executors measure their Python processes only with this option."""


class Executor(msgspec.Struct, frozen=True):
    """One executor, or the embedded Spark."""

    running: int = 0
    running_s: float = 0.0
    """Task seconds since Headgate watches it (counter)."""
    silent_s: float | None = None
    """Since its last heartbeat; None before it was first heard of."""
    heap_bytes: int = 0
    """Heap in use, mostly without garbage: the least at its last heartbeats after a collection; 0 before the first collection."""
    python_bytes: int = 0
    """Memory of its Python processes at its last heartbeat with tasks."""

    def heard_later(self, by_s: float) -> Executor:
        """The same, but its last heartbeat came so much later."""
        if self.silent_s is None or by_s == 0:
            return self
        return msgspec.structs.replace(self, silent_s=max(0.0, self.silent_s - by_s))


class TaggedJobs(msgspec.Struct, frozen=True):
    """Spark jobs that run with the same tags, and the executors that have had tasks of theirs."""

    tags: str
    executors: str

    def touches(self, executors: frozenset[str]) -> bool:
        return not executors.isdisjoint(self.executors.split(","))

    def has(self, tag: str) -> bool:
        return tag in self.tags.split(",")


class TaskSnapshot(msgspec.Struct, frozen=True):
    """All tasks at one moment."""

    at_s: float
    """Since the listener was added."""
    waiting: int
    """Tasks that are ready and have no slot."""
    waiting_s: float
    """Task seconds that tasks have waited (counter)."""
    executors: dict[str, Executor]
    """All executors with the driver, which sends heartbeats too."""
    works: list[TaggedJobs]

    def heard(self, heartbeat_s: float) -> dict[str, Executor]:
        """The executors, each silent only for as long as Spark itself was not: after a pause of the driver, all seem silent."""
        own = self.executors.get(DRIVER, Executor()).silent_s or 0.0
        late_s = max(0.0, own - heartbeat_s)
        return {name: one.heard_later(late_s) for name, one in self.executors.items() if name != DRIVER}


class TaskWatch:
    """Reads the listener, which Spark's listener thread alone changes; any thread may read it."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = jvm.context(spark)
        self._listener = jvm.instance_of(spark, SOURCE, "TaskWatch")
        self._context.addSparkListener(self._listener)
        self.heartbeat_s = heartbeat_s(spark)
        self.limits = MemoryLimits.of(spark)

    def read(self) -> TaskSnapshot:
        return msgspec.json.decode(self._listener.told(), type=TaskSnapshot)

    def close(self) -> None:
        """Have Spark forget the listener; a JVM that is gone has."""
        with suppress(Exception):  # whatever the gateway raises
            self._context.removeSparkListener(self._listener)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Most memory of an executor, as Spark is configured."""

    heap_mb: float
    python_mb: float | None
    """None where nothing limits the Python processes of an executor but the memory of its host."""

    @staticmethod
    def of(spark: SparkSession) -> MemoryLimits:
        conf = jvm.context(spark).conf()
        heap_mb = conf.getSizeAsMb("spark.executor.memory", "1g")
        if conf.contains("spark.executor.pyspark.memory"):
            return MemoryLimits(heap_mb, conf.getSizeAsMb("spark.executor.pyspark.memory"))
        if not jvm.context(spark).master().startswith(LIMITING):
            return MemoryLimits(heap_mb, None)
        factor = float(conf.get("spark.executor.memoryOverheadFactor", "0.1"))
        least_mb = max(LEAST_OVERHEAD_MB, round(heap_mb * factor))
        return MemoryLimits(heap_mb, conf.getSizeAsMb("spark.executor.memoryOverhead", f"{least_mb}m"))

    def used(self, executor: Executor) -> float | None:
        """The larger share of heap and Python memory in use; None before the first collection of garbage."""
        if not executor.heap_bytes:
            return None
        python = executor.python_bytes / 2**20 / self.python_mb if self.python_mb else 0.0
        return max(executor.heap_bytes / 2**20 / self.heap_mb, python)


LIMITING = ("yarn", "k8s")
"""Masters that end an executor whose processes take more than its heap and its overhead."""
LEAST_OVERHEAD_MB = 384


def heartbeat_s(spark: SparkSession) -> float:
    """Time between two heartbeats of an executor, as Spark is configured."""
    return float(jvm.context(spark).conf().getTimeAsMs(HEARTBEAT, "10s")) / 1000
