"""What an epoch measured: rows of every operator, when they arrived, and how long every lane was busy.

Spark counts the rows of a scan, of a Python lane and of a filter anyway, inside the code it generates, and exactly. Where there is
none of them, the meter is a filter that lets every row pass. Only arrival times are observed, once on each way through the plan.
Busy time is read afterwards, from Spark's own record of its tasks: a lane is a task, so nothing has to be measured inside it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.core.latency import Latency
from headgate.spark import jvm
from headgate.spark.lanes import METERED, Batches, Metered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headgate.spark.plan import Stage

WEIGHTS = (*((0.1 * step + 0.05, 0.1) for step in range(9)), (0.925, 0.05), (0.97, 0.04), (0.995, 0.01))
"""Quantiles of the arrival times that are asked for, and the share of the rows that each stands for."""
ACCURACY = 200
SAMPLE = 16
"""Of many rows, every so many-th gives its arrival time to the quantiles; all give theirs to the mean."""
MANY_ROWS = 20_000
OBSERVED_EVERY = 8
"""Of epochs with many rows that are alike, every so many-th is observed; in between, rows have waited as long as then."""
LATE_S = 5.0
"""How long counts may take after their action is done; later they are given up."""
FIRST_LOOK_S = 0.001


@dataclass(frozen=True, slots=True)
class ArrivalTimes:
    """When rows had arrived."""

    rows: int
    known: int
    """Rows that say when they arrived; of the others nothing is known."""
    sum_s: float
    """Of these."""
    quantiles_s: tuple[float, ...]
    """At the quantiles of `WEIGHTS`; empty if no row says."""

    def latency(self, finished_s: float, rows: float | None = None) -> Latency | None:
        """How long those that say it took until then; of `rows` rows alike if it is given."""
        if not self.quantiles_s or rows == 0:
            return None
        count = self.known if rows is None else rows * self.known / self.rows
        points = tuple(
            (max(0.0, finished_s - at_s), share * count)
            for at_s, (_, share) in zip(self.quantiles_s, WEIGHTS, strict=True)
        )
        return Latency(count, max(0.0, finished_s - self.sum_s / self.known) * count, points)

    def moved(self, by_s: float) -> ArrivalTimes:
        """Rows that arrived so much later."""
        quantiles_s = tuple(at_s + by_s for at_s in self.quantiles_s)
        return ArrivalTimes(self.rows, self.known, self.sum_s + self.known * by_s, quantiles_s)


# -- arrival times ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observed:
    """Rows that are observed on their way."""

    observation: Any
    gateway: Gateway

    def read(self, until_s: float) -> ArrivalTimes | None:
        """What was observed; None if no action ever ran through it."""
        look_s = FIRST_LOOK_S
        # Spark tells it by its listeners, a moment after the action; if there was no action it never does.
        while not self.observation.future().isCompleted():
            if time.monotonic() > until_s:
                return None
            time.sleep(look_s)
            look_s = min(0.05, 2 * look_s)
        told = self.observation.getRow()
        if not told.length():
            return None  # Spark found out that it need not look at these rows
        rows, total, quantiles, known = (*self.gateway.row(told), None, None, 0)[:4]
        if not known or total is None:
            return ArrivalTimes(rows, 0, 0.0, ())
        mean_s = total / 1e6 / known
        spread = tuple(at / 1e6 for at in quantiles) if quantiles is not None else (mean_s,) * len(WEIGHTS)
        return ArrivalTimes(rows, known, total / 1e6, spread)


class Gateway:
    """The JVM's side of metering, prepared once: the same columns, built for every epoch, would cost more than the counting.

    PySpark's own `Observation` and `observe` do the same in some thirty calls more.
    """

    def __init__(self, spark: SparkSession) -> None:
        java = jvm.packages(spark)
        self._observation = getattr(java, "org.apache.spark.sql.Observation")
        self._to_row = getattr(java, "org.apache.spark.sql.api.python.PythonSQLUtils").toPyRow
        self._sequence = getattr(java, "org.apache.spark.api.python.PythonUtils").toSeq
        self._info = getattr(java, "org.apache.spark.sql.execution.SparkPlanInfo").fromSparkPlan
        accumulators = getattr(java, "org.apache.spark.util.AccumulatorContext")
        self._accumulator, self._new_id = accumulators.get, accumulators.newId
        self._json = _Json(spark)
        self._count = jvm.expression(F.count(F.lit(1).cast("long")).alias("rows"))
        self._arrivals: dict[tuple[str | None, bool], Any] = {}
        self._passes: dict[int, Any] = {}

    def counted(self, rows: DataFrame, meter: int) -> DataFrame:
        """The same rows; a `Counter` will know how many they were, by the number of the meter."""
        if meter not in self._passes:
            self._passes[meter] = jvm.expression(F.expr(f"{ALWAYS}{FIRST_METER + meter}"))
        return jvm.dataframe(jvm.dataset(rows).filter(self._passes[meter]), rows.sparkSession)

    @staticmethod
    def in_lanes(rows: DataFrame, lane: Batches, schema: StructType, meter: int) -> DataFrame:
        """What the lane puts out; a `Counter` will know how many rows, by the number of the meter."""
        return rows.mapInArrow(Metered(lane, FIRST_METER + meter), schema)

    def observed(self, rows: DataFrame, arrival: str | None, many: bool) -> tuple[DataFrame, Observed]:
        """The same rows, with their arrival times, if a column has them; of many rows, the quantiles are those of a sample."""
        key = arrival, many
        if key not in self._arrivals:
            self._arrivals[key] = self._sequence(_arrival_columns(arrival, many))
        observation = self._observation()
        observed = jvm.dataset(rows).observe(observation, self._count, self._arrivals[key])
        return jvm.dataframe(observed, rows.sparkSession), Observed(observation, self)

    def row(self, row: Any) -> Any:
        """A row of the JVM's as Python has it."""
        return _PICKLED.loads(self._to_row(row))  # type: ignore[no-untyped-call]

    def meters(self, execution: Any, scanned: str) -> list[tuple[int, int]]:
        """(meter, accumulator) of every meter in the plan that was carried out; `scanned` is the first column of its input."""
        plan = msgspec.json.decode(self._json(self._info(execution.executedPlan())), type=_Node)
        return [found for node in plan.all() for found in node.meters(scanned)]

    def value(self, accumulator: int) -> int:
        """What it has counted."""
        return int(self._accumulator(accumulator).get().value())

    def newest(self) -> int:
        """A number above those of all accumulators so far."""
        return int(self._new_id())


_PICKLED = CPickleSerializer()
ALWAYS = "spark_partition_id() >= -"
"""True of every row, but Spark does not see it: nothing is moved across such a filter, or merged with what comes after it."""
FIRST_METER = 1_000_000
METER = re.compile(f"(?:{re.escape(ALWAYS)}|{METERED})" + r"(\d{7,})", re.IGNORECASE)
METERS = frozenset(("Filter", "MapInArrow"))
SCAN = "Scan ExistingRDD"
SCANNED = -1
"""The meter of an epoch's whole input: the scan of it."""
COLUMN = re.compile(r"#(\d+)")
"""Spark numbers the columns of a plan; no two have the same number."""
ROWS_OUT = "number of output rows"


class _Metric(msgspec.Struct):
    name: str
    accumulatorId: int


class _Node(msgspec.Struct):
    """A node of Spark's physical plan, as Spark describes it."""

    nodeName: str
    simpleString: str
    children: list[_Node]
    metrics: list[_Metric]

    def all(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.all()

    def meters(self, scanned: str) -> Iterator[tuple[int, int]]:
        """(meter, accumulator), if this is one."""
        match = METER.search(self.simpleString) if self.nodeName in METERS else None
        if match is not None:
            yield int(match[1]) - FIRST_METER, self._rows_out
        elif self.nodeName.startswith(SCAN) and first_column(self.simpleString) == scanned:
            yield SCANNED, self._rows_out

    @property
    def _rows_out(self) -> int:
        return next(metric.accumulatorId for metric in self.metrics if metric.name == ROWS_OUT)


def first_column(plan: str) -> str:
    """Spark's number of the first column that it names."""
    found = COLUMN.search(plan)
    return found[1] if found is not None else ""


def _arrival_columns(arrival: str | None, many: bool) -> list[Any]:
    if arrival is None:
        return []
    micros = F.unix_micros(F.col(f"`{arrival}`"))
    some = F.when(F.pmod(F.hash(micros), F.lit(SAMPLE)) == 0, micros) if many else micros
    quantiles = F.percentile_approx(some, [quantile for quantile, _ in WEIGHTS], ACCURACY).alias("arrived")
    columns = F.sum(micros.cast("double")).alias("sum"), quantiles, F.count(micros).alias("known")
    return [jvm.expression(column) for column in columns]


# -- rows ------------------------------------------------------------------------------------------------------------------------


class Counter:
    """The meters of one job's query: Spark calls it after every action of the query's own session."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._manager: Any = None
        self._rows: dict[int, tuple[int, int]] = {}
        """By accumulator: (meter, rows). What was kept is seen again by later actions, with the same accumulator."""
        self._oldest = 0
        """Accumulators before this one belong to earlier epochs."""
        self._scanned = ""
        self._changed = threading.Condition()

    def attach(self, session: SparkSession) -> None:
        """Count what this session does, until it is detached."""
        if self._manager is None:
            self._manager = jvm.session(session).listenerManager()
            self._manager.register(self)

    def detach(self) -> None:
        """The query is at its end."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.clear()

    def begin(self, batch: DataFrame) -> None:
        """An epoch begins: what an earlier one, or an attempt that failed, has counted is not its own."""
        with self._changed:
            self._scanned = first_column(str(jvm.input_plan(batch).toString()))
            self._oldest = self._gateway.newest()
            self._rows.clear()

    def take(self, meters: Set[int], until_s: float) -> dict[int, int]:
        """Rows by meter, once all of these meters are known; what has not been told by then is missing."""
        with self._changed:
            while not meters <= {meter for meter, _ in self._rows.values()}:
                if not self._changed.wait(until_s - time.monotonic()):
                    break
            rows: dict[int, int] = {}
            for meter, count in self._rows.values():
                rows[meter] = max(
                    count, rows.get(meter, 0)
                )  # where Spark reads the same rows twice, each time counts them all
            return rows

    # -- called by Spark, in a thread of its own

    def onSuccess(self, function: str, execution: Any, nanos: int) -> None:
        """An action is done."""
        meters = self._gateway.meters(execution, self._scanned)
        counted = {number: (meter, self._gateway.value(number)) for meter, number in meters}
        with self._changed:
            self._rows |= {number: told for number, told in counted.items() if number > self._oldest}
            self._changed.notify_all()

    def onFailure(self, function: str, execution: Any, error: Any) -> None:
        """An action has failed: its rows did not get through."""

    class Java:
        """What it is to the JVM."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)


def read_all(observed: Mapping[str, Observed], until_s: float) -> dict[str, ArrivalTimes]:
    """When the rows of an epoch had arrived, by the operator they were observed at, after its sinks are done."""
    return {name: found for name, one in observed.items() if (found := one.read(until_s)) is not None}


class _Json:
    """The JVM's objects as JSON: one call instead of one for every field.

    It is fetched in pieces that fit into one packet: the gateway holds back the rest of a longer answer until the first part
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
        context = jvm.context(spark)
        self._store = context.statusStore()
        self._tracker = context.statusTracker()
        self._json = _Json(spark)

    def tasks(self, tag: str, expected: Sequence[Stage]) -> list[Task]:
        """The tasks of the Spark jobs with this tag, each with the operator that owns it."""
        stages = sorted({stage for job in self._tracker.getJobIdsForTag(tag) for stage in self._stage_ids(job)})
        done = [records for stage in stages if (records := self._records(stage))]
        return [task for owners, records in owned(expected, done) for task in _tasks(owners, records)]

    def executors(self) -> list[tuple[str, str, float]]:
        """(name, host, slots) of every executor that runs tasks."""
        told = msgspec.json.decode(self._json(self._store.executorList(True)))
        return [
            (one["id"], one["hostPort"].rsplit(":", 1)[0], float(one["totalCores"]))
            for one in told
            if one["totalCores"] > 0
        ]

    def _stage_ids(self, job: int) -> list[int]:
        return list(msgspec.json.decode(self._json(self._store.job(job)))["stageIds"])

    def _records(self, stage: int) -> list[dict[str, Any]]:
        """The finished tasks of a stage's first attempt; a stage that was skipped has none."""
        try:
            text = self._json(self._store.taskList(stage, 0, MOST_TASKS))
        except Exception:  # Spark forgets old stages: py4j then raises whatever the JVM raised
            return []
        return [record for record in msgspec.json.decode(text) if record["status"] == "SUCCESS"]


MOST_TASKS = 10_000


def owned(
    expected: Sequence[Stage], done: Sequence[list[dict[str, Any]]]
) -> Iterator[tuple[Stage, list[dict[str, Any]]]]:
    """Match the stages that ran with those that were planned, both in order.

    A stage that was not planned comes from an exchange of the user's own, inside a transform, or fills a table that is kept: it
    belongs to the operator whose stage came before.
    """
    sizes = [1 + max(record["index"] for record in records) for records in done]
    last = 0
    for tasks, place, records in zip(sizes, matched([_size(stage) for stage in expected], sizes), done, strict=True):
        if place is None:
            yield ((expected[last][-1][0], tasks),), records
            continue
        last = place
        yield expected[place], records


def matched(expected: Sequence[int], done: Sequence[int]) -> list[int | None]:
    """For each size of a stage that ran, the place of the planned stage it is: in order, and as many as can be found.

    A stage that was not planned may be as wide as a planned one that comes later, so that the first one that fits is not always right.

    >>> matched([2, 8, 3], [8, 2, 8, 3])
    [None, 0, 1, 2]
    """
    most = [[0] * (len(expected) + 1) for _ in range(len(done) + 1)]
    """Stages that can be found from each place of both on."""
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
