"""Measurements of an epoch: rows of every operator, their arrival times, and the busy time of every lane.

Spark counts the rows of a scan, of a Python lane and of a filter anyway, inside the code it generates, and exactly. Where there is
none of them, the meter is a filter that lets every row pass. Only arrival times are observed, once on each way through the plan.
Busy time is read afterwards, from Spark's own record of its tasks: a lane is a task, so nothing has to be measured inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.core.latency import Latency
from headgate.spark import jvm
from headgate.spark.epochs.lanes import METERED, Batches, Metered
from headgate.spark.quoting import column_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headgate.spark.epochs.plan import Stage

WEIGHTS = (*((0.1 * step + 0.05, 0.1) for step in range(9)), (0.925, 0.05), (0.97, 0.04), (0.995, 0.01))
"""Quantiles of the arrival times that are asked for, and the share of the rows that each stands for."""
ACCURACY = 200
SAMPLE = 16
"""In an epoch with many rows, one of so many rows contributes to the quantiles; all rows contribute to the mean."""
MANY_ROWS = 20_000
OBSERVED_EVERY = 8
"""Of similar epochs with many rows, one of so many is observed; the others use the waiting times of the observed one."""


@dataclass(frozen=True, slots=True)
class ArrivalTimes:
    """Arrival times of rows, in seconds since the Unix epoch."""

    rows: int
    known: int
    """Number of rows with a known arrival time."""
    sum_s: float
    """Sum of the known arrival times."""
    quantiles_s: tuple[float, ...]
    """Arrival times at the quantiles of `WEIGHTS`; empty if no arrival time is known."""

    @staticmethod
    def of(rows: int, sum_us: float | None = None, at_us: list[int] | None = None, known: int = 0) -> ArrivalTimes:
        """Return the arrival times for sums and quantiles from Spark, in microseconds."""
        if not known or sum_us is None:
            return ArrivalTimes(rows, 0, 0.0, ())
        mean_s = sum_us / 1e6 / known
        spread = tuple(one / 1e6 for one in at_us) if at_us is not None else (mean_s,) * len(WEIGHTS)
        return ArrivalTimes(rows, known, sum_us / 1e6, spread)

    def latency(self, finished_s: float, rows: float | None = None) -> Latency | None:
        """The latency of the rows with known arrival times until `finished_s`, scaled to `rows` rows if given; None if not known."""
        if not self.quantiles_s or rows == 0:
            return None
        count = self.known if rows is None else rows * self.known / self.rows
        points = tuple(
            (max(0.0, finished_s - at_s), share * count)
            for at_s, (_, share) in zip(self.quantiles_s, WEIGHTS, strict=True)
        )
        return Latency(count, max(0.0, finished_s - self.sum_s / self.known) * count, points)

    def moved(self, by_s: float) -> ArrivalTimes:
        """Return the arrival times `by_s` seconds later."""
        quantiles_s = tuple(at_s + by_s for at_s in self.quantiles_s)
        return ArrivalTimes(self.rows, self.known, self.sum_s + self.known * by_s, quantiles_s)


# -- arrival times ---------------------------------------------------------------------------------------------------------------


class Gateway:
    """Prepares the metering columns in the JVM once, because building them for every plan would cost more than the counting."""

    def __init__(self, spark: SparkSession) -> None:
        java = jvm.packages(spark)
        self._sequence = getattr(java, "org.apache.spark.api.python.PythonUtils").toSeq
        self._plans = jvm.instance_of(spark, SOURCE, "EpochPlan$Maker")
        self._count = jvm.expression(F.count(F.lit(1).cast("long")).alias("rows"))
        self._arrivals: dict[tuple[str | None, bool], Any] = {}
        self._passes: dict[int, Any] = {}

    def count(self, rows: DataFrame, meter: int) -> DataFrame:
        """Return the same rows with a meter; `Counted` has the number of rows by the number of the meter."""
        if meter not in self._passes:
            self._passes[meter] = jvm.expression(F.expr(f"{ALWAYS}{FIRST_METER + meter}"))
        return jvm.dataframe(jvm.dataset(rows).filter(self._passes[meter]), rows.sparkSession)

    @staticmethod
    def in_lanes(rows: DataFrame, lane: Batches, schema: StructType, meter: int) -> DataFrame:
        """Return the rows that the lane puts out; `Counted` has their number by the number of the meter."""
        return rows.mapInArrow(Metered(lane, FIRST_METER + meter), schema)

    def observe(self, rows: DataFrame, name: str, arrival: str | None, many: bool) -> DataFrame:
        """Return the same rows, observed under this name, with arrival times if `arrival` names their column.

        With `many`, the quantiles are those of a sample.
        """
        key = arrival, many
        if key not in self._arrivals:
            self._arrivals[key] = self._sequence(_arrival_columns(arrival, many))
        return jvm.dataframe(jvm.dataset(rows).observe(name, self._count, self._arrivals[key]), rows.sparkSession)

    def partitions(self, batch: DataFrame) -> int:
        """Partitions of an epoch's input."""
        return int(self._plans.partitions(jvm.dataset(batch)))

    def plan(self, rows: DataFrame, batch: DataFrame) -> OperatorPlan:
        """Plan the rows that an operator puts out, built on the input of an epoch."""
        return OperatorPlan(self._plans.make(jvm.dataset(rows), jvm.dataset(batch), METER))


class OperatorPlan:
    """The plan of the rows that an operator puts out; each epoch has a copy of the plan. Owner: the thread of the job's query."""

    def __init__(self, made: Any) -> None:
        self._made = made

    @cached_property
    def is_lasting(self) -> bool:
        """Whether the plan depends on nothing but the rows of its epoch."""
        return bool(self._made.isLasting())

    def carry(self, batch: DataFrame) -> DataFrame:
        """Return the rows that the operator puts out in the epoch with this input."""
        return jvm.dataframe(self._made.carry(jvm.dataset(batch)), batch.sparkSession)

    def counted(self, batch: DataFrame) -> Counted:
        """Return the counts of the copy for this input, after its rows were computed."""
        found = msgspec.json.decode(self._made.counted(jvm.dataset(batch)), type=_EpochCounts)
        rows: dict[int, int] = {}
        for number, count in found.meters:
            meter = number if number == SCANNED else number - FIRST_METER
            # If Spark reads the same rows twice, each reading counts them all.
            rows[meter] = max(count, rows.get(meter, 0))
        return Counted(rows, {name: ArrivalTimes.of(*values) for name, values in found.observed.items()})


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of one epoch."""

    rows: Mapping[int, int]
    """Number of rows by the number of the meter."""
    observed: Mapping[str, ArrivalTimes]
    """Arrival times by the operator that observed the rows."""

    def __or__(self, other: Counted) -> Counted:
        """Merge with the counts of another sink's plan in the same epoch; both plans count rows that were kept."""
        rows = {meter: max(self.rows.get(meter, 0), other.rows.get(meter, 0)) for meter in {*self.rows, *other.rows}}
        return Counted(rows, {**self.observed, **other.observed})


class _EpochCounts(msgspec.Struct):
    """The JSON of `EpochPlan.java`."""

    meters: list[tuple[int, int]]
    observed: dict[str, list[Any]]


SOURCE = Path(__file__).with_name("EpochPlan.java")
ALWAYS = "spark_partition_id() >= -"
"""A condition that is true for every row, but not for Spark's optimizer, which neither moves such a filter nor merges it."""
FIRST_METER = 1_000_000
METER = f"(?i)(?:{re.escape(ALWAYS)}|{METERED})" + r"(\d{7,})"
SCANNED = -1
"""Number of the meter for the scan of an epoch's whole input."""


def _arrival_columns(arrival: str | None, many: bool) -> list[Any]:
    if arrival is None:
        return []
    micros = F.unix_micros(column_of(arrival))
    some = F.when(F.pmod(F.hash(micros), F.lit(SAMPLE)) == 0, micros) if many else micros
    quantiles = F.percentile_approx(some, [quantile for quantile, _ in WEIGHTS], ACCURACY).alias("arrived")
    columns = F.sum(micros.cast("double")).alias("sum"), quantiles, F.count(micros).alias("known")
    return [jvm.expression(column) for column in columns]


# -- JSON ------------------------------------------------------------------------------------------------------------------------


class _Json:
    """Reads objects of the JVM as JSON: one call instead of one for every field.

    The JSON is fetched in pieces that fit into one packet: the gateway holds back the rest of a longer answer until the first part
    is acknowledged, which takes 40 ms.
    """

    PIECE = 4000

    def __init__(self, spark: SparkSession) -> None:
        java = jvm.packages(spark)
        scala = getattr(java.com.fasterxml.jackson.module.scala, "DefaultScalaModule$")
        self._mapper = java.com.fasterxml.jackson.databind.ObjectMapper()
        self._mapper.registerModule(getattr(scala, "MODULE$"))
        self._writer = java.java.io.StringWriter

    def __call__(self, value: Any) -> bytes:
        writer = self._writer()
        self._mapper.writeValue(writer, value)
        text = writer.getBuffer()
        length = text.length()
        pieces = (text.substring(at, min(length, at + self.PIECE)) for at in range(0, length, self.PIECE))
        return "".join(pieces).encode()


# -- tasks -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def tag_jobs(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the Spark jobs that start inside this block."""
    context = spark.sparkContext
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one lane in one epoch, as Spark recorded it."""

    operator: str
    lane: int
    host: str
    busy_s: float
    rows: int
    """Rows that the task read from an exchange or a source."""


class TaskRecords:
    """Reads Spark's record of tasks through the gateway, whether or not Spark's UI runs."""

    def __init__(self, spark: SparkSession) -> None:
        context = jvm.context(spark)
        self._store = context.statusStore()
        self._tracker = context.statusTracker()
        self._json = _Json(spark)

    def tasks(self, tag: str, expected: Sequence[Stage]) -> list[Task]:
        """The tasks of the Spark jobs with this tag, each with the operator that owns it."""
        stages = sorted({stage for job in self._tracker.getJobIdsForTag(tag) for stage in self._stage_ids(job)})
        done = [records for stage in stages if (records := self._records(stage))]
        return [task for owners, records in assign_stages(expected, done) for task in _tasks(owners, records)]

    def executors(self) -> list[tuple[str, str, float]]:
        """(name, host, slots) of every executor that runs tasks."""
        answer = msgspec.json.decode(self._json(self._store.executorList(True)))
        return [
            (one["id"], one["hostPort"].rsplit(":", 1)[0], float(one["totalCores"]))
            for one in answer
            if one["totalCores"] > 0
        ]

    def _stage_ids(self, job: int) -> list[int]:
        return list(msgspec.json.decode(self._json(self._store.job(job)))["stageIds"])

    def _records(self, stage: int) -> list[dict[str, Any]]:
        """The finished tasks of the first attempt of a stage; empty for a skipped stage."""
        try:
            text = self._json(self._store.taskList(stage, 0, MOST_TASKS))
        except Exception:  # Spark forgets old stages: py4j then raises whatever the JVM raised
            return []
        return [record for record in msgspec.json.decode(text) if record["status"] == "SUCCESS"]


MOST_TASKS = 10_000


def assign_stages(
    expected: Sequence[Stage], done: Sequence[list[dict[str, Any]]]
) -> Iterator[tuple[Stage, list[dict[str, Any]]]]:
    """Match the stages that ran with the planned stages, both in order.

    A stage that was not planned comes from an exchange of the user's own, inside a transform, or fills a table that is kept: it
    belongs to the operator whose stage came before.
    """
    sizes = [1 + max(record["index"] for record in records) for records in done]
    last = 0
    for tasks, place, records in zip(
        sizes, match_stages([_size(stage) for stage in expected], sizes), done, strict=True
    ):
        if place is None:
            yield ((expected[last][-1][0], tasks),), records
            continue
        last = place
        yield expected[place], records


def match_stages(expected: Sequence[int], done: Sequence[int]) -> list[int | None]:
    """Return the position of the planned stage for each size of a stage that ran: in order, and for as many stages as possible.

    A stage that was not planned may be as wide as a planned one that comes later, so that the first one that fits is not always right.

    >>> match_stages([2, 8, 3], [8, 2, 8, 3])
    [None, 0, 1, 2]
    """
    most = [[0] * (len(expected) + 1) for _ in range(len(done) + 1)]
    """Most stages that can be matched from a position in `done` and a position in `expected` on."""
    for ran in reversed(range(len(done))):
        for planned in reversed(range(len(expected))):
            alike = done[ran] == expected[planned]
            without = max(most[ran + 1][planned], most[ran][planned + 1])
            most[ran][planned] = 1 + most[ran + 1][planned + 1] if alike else without
    places: list[int | None] = []
    next_ = 0
    for ran, size in enumerate(done):
        fits = (
            place
            for place in range(next_, len(expected))
            if expected[place] == size and 1 + most[ran + 1][place + 1] == most[ran][next_]
        )
        places.append(next(fits, None))
        next_ = next_ if places[-1] is None else places[-1] + 1
    return places


def _size(stage: Stage) -> int:
    return sum(count for _, count in stage)


def _tasks(owners: Stage, records: list[dict[str, Any]]) -> Iterator[Task]:
    lanes = [(operator, lane) for operator, count in owners for lane in range(count)]
    for record in records:
        operator, lane = lanes[record["index"]]
        metrics = record["taskMetrics"]
        rows = metrics["shuffleReadMetrics"]["recordsRead"] or metrics["inputMetrics"]["recordsRead"]
        yield Task(operator, lane, record["host"], metrics["executorRunTime"] / 1000, rows)
