"""What an epoch measured: rows of every operator, when they arrived, and how long every lane was busy.

Rows are counted on their way by `observe`, which costs some 20 ns each and is exact. Busy time is read afterwards, from
Spark's own record of its tasks: a lane is a task, so nothing has to be measured inside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.core.latency import Latency

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headgate.spark.plan import Stage

WEIGHTS = (*((0.1 * step + 0.05, 0.1) for step in range(9)), (0.925, 0.05), (0.97, 0.04), (0.995, 0.01))
"""Quantiles of the arrival times that are asked for, and the share of the rows that each stands for."""
ACCURACY = 500
LATE_S = 5.0
"""How long counts may take after their action is done; later they are given up."""
FIRST_LOOK_S = 0.001


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows that passed a place, and when they had arrived."""

    rows: int
    arrived_sum_s: float = 0.0
    arrived_s: tuple[float, ...] = ()
    """At the quantiles of `WEIGHTS`; empty if the rows do not say."""

    def latency(self, finished_s: float, rows: float | None = None) -> Latency | None:
        """How long they took until then; of `rows` rows alike if it is given."""
        if not self.rows or not self.arrived_s or rows == 0:
            return None
        count = self.rows if rows is None else rows
        points = tuple((max(0.0, finished_s - at_s), share * count) for at_s, (_, share) in self._quantiles())
        mean_s = max(0.0, finished_s - self.arrived_sum_s / self.rows)
        return Latency(count, mean_s * count, points)

    def _quantiles(self) -> Iterator[tuple[float, tuple[float, float]]]:
        return zip(self.arrived_s, WEIGHTS, strict=True)


@dataclass(frozen=True, slots=True)
class Meter:
    """Counts the rows that pass one place in an epoch."""

    observation: Any
    gateway: Gateway
    timed: bool

    def read(self, until_s: float) -> Counted | None:
        """What it counted; None if no action ever ran through it."""
        look_s = FIRST_LOOK_S
        # Spark tells it by its listeners, a moment after the action; if there was no action it never does.
        while not self.observation.future().isCompleted():
            if time.time() > until_s:
                return None
            time.sleep(look_s)
            look_s = min(0.05, 2 * look_s)
        told = self.observation.getRow()
        if not told.length():
            return None  # Spark found out that it need not look at these rows
        values = self.gateway.row(told)
        if not self.timed or values[2] is None:
            return Counted(values[0])
        return Counted(values[0], values[1] / 1e6, tuple(at / 1e6 for at in values[2]))


class Gateway:
    """The JVM's side of metering, prepared once: built anew for every epoch, the same columns would cost more than the counting.

    PySpark's own `Observation` and `observe` do the same in some thirty calls more.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        self._observation = getattr(jvm, "org.apache.spark.sql.Observation")
        self._utils = getattr(jvm, "org.apache.spark.sql.api.python.PythonSQLUtils")
        self._sequence = getattr(jvm, "org.apache.spark.api.python.PythonUtils").toSeq
        self._count = F.count(F.lit(1)).alias("rows")._jc
        self._columns: dict[str | None, Any] = {None: self._sequence([])}

    def metered(self, rows: DataFrame, arrival: str | None) -> tuple[DataFrame, Meter]:
        """The same rows, counted as they pass; with their arrival times, if a column has them."""
        from pyspark.sql.classic.dataframe import DataFrame as Rows

        if arrival not in self._columns:
            self._columns[arrival] = self._sequence(_arrival_columns(str(arrival)))
        observation = self._observation()
        observed = rows._jdf.observe(observation, self._count, self._columns[arrival])
        return Rows(observed, rows.sparkSession), Meter(observation, self, arrival is not None)

    def row(self, row: Any) -> Any:
        """A row of the JVM's as Python has it."""
        return _PICKLED.loads(self._utils.toPyRow(row))  # type: ignore[no-untyped-call]


_PICKLED = CPickleSerializer()


def _arrival_columns(arrival: str) -> list[Any]:
    micros = F.unix_micros(F.col(f"`{arrival}`"))
    quantiles = F.percentile_approx(micros, [quantile for quantile, _ in WEIGHTS], ACCURACY).alias("arrived")
    return [F.sum(micros.cast("double")).alias("sum")._jc, quantiles._jc]


def read_all(meters: Mapping[str, Meter]) -> dict[str, Counted | None]:
    """What the meters of an epoch counted, after its sinks are done."""
    until_s = time.time() + LATE_S
    return {name: meter.read(until_s) for name, meter in meters.items()}


# -- tasks -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Spark jobs that start inside can be found by their tag."""
    context = spark.sparkContext
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)


@dataclass(frozen=True, slots=True)
class Task:
    """One lane in one epoch, as Spark recorded it."""

    operator: str
    lane: int
    host: str
    busy_s: float
    rows: int
    """Rows that it read from an exchange or a source."""


class TaskRecords:
    """Spark's record of tasks, read through the gateway: it is there whether or not the UI runs."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        jvm = context._jvm
        assert jvm is not None
        self._store = context._jsc.sc().statusStore()
        self._tracker = context._jsc.sc().statusTracker()
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        scala = getattr(jvm.com.fasterxml.jackson.module.scala, "DefaultScalaModule$")
        self._mapper.registerModule(getattr(scala, "MODULE$"))

    def tasks(self, tag: str, expected: Sequence[Stage]) -> list[Task]:
        """The tasks of the Spark jobs with this tag, each with the operator that owns it."""
        stages = sorted({stage for job in self._tracker.getJobIdsForTag(tag) for stage in self._stage_ids(job)})
        done = [records for stage in stages if (records := self._records(stage))]
        return [task for owners, records in owned(expected, done) for task in _tasks(owners, records)]

    def hosts(self) -> list[tuple[str, float, float]]:
        """(host, cores, task seconds so far) of every executor that runs tasks."""
        told = msgspec.json.decode(self._mapper.writeValueAsString(self._store.executorList(True)).encode())
        return [
            (one["hostPort"].rsplit(":", 1)[0], float(one["totalCores"]), one["totalDuration"] / 1000)
            for one in told
            if one["totalCores"] > 0
        ]

    def _stage_ids(self, job: int) -> list[int]:
        return list(msgspec.json.decode(self._mapper.writeValueAsString(self._store.job(job)).encode())["stageIds"])

    def _records(self, stage: int) -> list[dict[str, Any]]:
        """The finished tasks of a stage's first attempt; a stage that was skipped has none."""
        try:
            text = self._mapper.writeValueAsString(self._store.taskList(stage, 0, MOST_TASKS))
        except Exception:  # Spark forgets old stages: py4j then raises whatever the JVM raised
            return []
        return [record for record in msgspec.json.decode(text.encode()) if record["status"] == "SUCCESS"]


MOST_TASKS = 10_000


def owned(
    expected: Sequence[Stage], done: Sequence[list[dict[str, Any]]]
) -> Iterator[tuple[Stage, list[dict[str, Any]]]]:
    """Match the stages that ran with those that were planned, both in order.

    A stage that was not planned comes from an exchange of the user's own, inside a transform: it belongs to the operator
    whose stage came before.
    """
    at = 0
    for records in done:
        tasks = 1 + max(record["index"] for record in records)
        match = next((place for place in range(at, len(expected)) if _size(expected[place]) == tasks), None)
        if match is None:
            last = expected[min(at, len(expected) - 1)][-1][0]
            yield ((last, tasks),), records
            continue
        at = match + 1
        yield expected[match], records


def _size(stage: Stage) -> int:
    return sum(count for _, count in stage)


def _tasks(owners: Stage, records: list[dict[str, Any]]) -> Iterator[Task]:
    lanes = [(operator, lane) for operator, count in owners for lane in range(count)]
    for record in records:
        operator, lane = lanes[record["index"]]
        metrics = record["taskMetrics"]
        rows = metrics["shuffleReadMetrics"]["recordsRead"] or metrics["inputMetrics"]["recordsRead"]
        yield Task(operator, lane, record["host"], metrics["executorRunTime"] / 1000, rows)
