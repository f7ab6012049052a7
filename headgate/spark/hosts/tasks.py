"""Running and waiting tasks, and the silence and memory of each executor, from a listener inside Spark's JVM.

Python would need one call through the gateway for each stage and each figure of Spark's scheduler. The listener `TaskWatch.java` adds up
task seconds inside the JVM, so that a reading is one call (0.2 ms) and misses nothing between two readings.
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
"""Option with which executors measure their Python processes."""


class Executor(msgspec.Struct, frozen=True):
    """One executor, or the driver."""

    running: int = 0
    running_s: float = 0.0
    """Task seconds since Headgate began to watch Spark; only grows."""
    silent_s: float | None = None
    """Seconds since the last heartbeat; None before the first one."""
    heap_bytes: int = 0
    """Heap in use, mostly without garbage: the least at its last heartbeats after a collection; 0 before the first collection."""
    python_bytes: int = 0
    """Memory of the executor's Python processes at its last heartbeat with tasks."""

    def heard_later(self, by_s: float) -> Executor:
        """Return the executor with its last heartbeat moved to `by_s` seconds later."""
        if self.silent_s is None or by_s == 0:
            return self
        return msgspec.structs.replace(self, silent_s=max(0.0, self.silent_s - by_s))


class TaggedJobs(msgspec.Struct, frozen=True):
    """Running Spark jobs with the same tags, and the executors that have had tasks of these jobs."""

    tags: str
    executors: str

    def touches(self, executors: frozenset[str]) -> bool:
        return not executors.isdisjoint(self.executors.split(","))

    def has(self, tag: str) -> bool:
        return tag in self.tags.split(",")


class TaskSnapshot(msgspec.Struct, frozen=True):
    """The tasks of all executors at one moment."""

    at_s: float
    """Seconds since the listener was added."""
    waiting: int
    """Tasks that are ready and have no slot."""
    waiting_s: float
    """Task seconds that tasks have waited; only grows."""
    executors: dict[str, Executor]
    """All executors with the driver, which sends heartbeats too."""
    works: list[TaggedJobs]

    def heard(self, heartbeat_s: float) -> dict[str, Executor]:
        """Return the executors without the driver, less the driver's own silence: after the driver pauses, all executors seem silent."""
        own = self.executors.get(DRIVER, Executor()).silent_s or 0.0
        late_s = max(0.0, own - heartbeat_s)
        return {name: one.heard_later(late_s) for name, one in self.executors.items() if name != DRIVER}


class TaskWatch:
    """Reads the listener. Owner of the listener's counts: Spark's listener thread; any thread may read them."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = jvm.context(spark)
        self._listener = jvm.instance_of(spark, SOURCE, "TaskWatch")
        self._context.addSparkListener(self._listener)
        self.heartbeat_s = heartbeat_s(spark)
        self.limits = MemoryLimits.of(spark)

    def read(self) -> TaskSnapshot:
        return msgspec.json.decode(self._listener.told(), type=TaskSnapshot)

    def close(self) -> None:
        """Remove the listener from Spark; ignore a JVM that is gone."""
        with suppress(Exception):  # whatever the gateway raises
            self._context.removeSparkListener(self._listener)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Memory limits of an executor in Spark's configuration, in megabytes."""

    heap_mb: float
    python_mb: float | None
    """Limit of the Python processes; None if only the memory of the host limits them."""

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
"""Masters that end an executor if its processes exceed heap and overhead memory."""
LEAST_OVERHEAD_MB = 384


def heartbeat_s(spark: SparkSession) -> float:
    """Seconds between two heartbeats of an executor in Spark's configuration."""
    return float(jvm.context(spark).conf().getTimeAsMs(HEARTBEAT, "10s")) / 1000
