"""Hosts of lanes: each lane belongs to a host, and a new allocation moves lanes between two epochs.

Spark runs a task on any host, unless a partition that the task reads prefers a host; then Spark waits a while for a slot on that host. So
the rows of each lane are put beside an empty partition that lies on the lane's host: rows of a source directly, rows of an exchange by a
union of two sides with the same partitioning. The empty side adds neither a row nor a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headgate.spark import jvm
from headgate.spark.epochs.labels import labels
from headgate.spark.quoting import column_of
from headgate.state.placement.routing import in_turn, lane_hosts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LANE = "_lane"
"""Column by which rows without a key are partitioned into lanes."""

Hosts = Sequence[str]
"""The host of each lane."""


class Places:
    """Puts the partitions of DataFrames on hosts, through Spark's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        java = jvm.packages(spark)
        catalyst = java.org.apache.spark.sql.catalyst
        self._context = jvm.context(spark)
        self._sequence = java.org.apache.spark.api.python.PythonUtils.toSeq
        self._pair = java.scala.Tuple2
        self._tag = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName(INTERNAL_ROW))
        self._row = catalyst.InternalRow.fromSeq
        self._attributes = catalyst.types.DataTypeUtils.toAttributes
        self._hashed = catalyst.plans.physical.HashPartitioning
        self._single = getattr(getattr(catalyst.plans.physical, "SinglePartition$"), "MODULE$")
        self._union = java.org.apache.spark.rdd.SQLPartitioningAwareUnionRDD
        self._relation = java.org.apache.spark.sql.execution.LogicalRDD
        self._nothing = java.scala.Option.empty()
        self._frame = java.org.apache.spark.sql.classic.Dataset.ofRows
        self._empty_on: dict[tuple[str, ...], Any] = {}
        """Empty partitions by their hosts, cached because each epoch has the same."""
        self._turns: dict[int, Column] = {}
        """The column of labels in turn, by the number of lanes."""

    def source(self, batch: DataFrame, hosts: Hosts) -> DataFrame:
        """Locate each partition of an epoch's input, which Spark passes as an RDD, on the host named for the partition."""
        plan = jvm.input_plan(batch)
        both = self._sequence([self._empty(hosts), plan.rdd()])
        placed = self._union(self._context, both, len(hosts), self._tag)
        return self._framed(batch.sparkSession, plan.output(), placed, plan.outputPartitioning())

    def in_lanes(self, rows: DataFrame, by: Sequence[str], hosts: Hosts, ordered: bool) -> DataFrame:
        """Partition rows into one lane per host: rows with the same values of `by` together, or without `by` in turn.

        `ordered` says that Spark reads the rows in the same order again, as with rows of a source. Other rows are sorted first, so that
        each row goes to the same lane again.
        """
        lanes = len(hosts)
        keys = tuple(by) or (LANE,)
        if not by:
            rows = (rows if ordered else _in_order(rows)).withColumn(LANE, self._turn(lanes))
        beside = self._beside(rows, keys, hosts).union(rows.repartition(lanes, *keys))
        # Spark removes unread columns as early as possible. Without this filter, which is always true, Spark would remove the keys before
        # the union and no longer know that both sides have the same partitioning.
        kept = beside.where(" + ".join(f"int(isnull(`{key}`))" for key in keys) + " + spark_partition_id() >= 0")
        return kept if by else kept.drop(LANE)

    def marks(self, session: SparkSession, schema: str, rows: Sequence[Sequence[int]], hosts: Hosts) -> DataFrame:
        """One row of numbers on each of these hosts, partitioned by the first number, which hashes to the index of the row."""
        output = self._attributes(jvm.dataset(session.createDataFrame([], schema)).schema())
        located = self._located([self._row(self._sequence(list(row))) for row in rows], hosts)
        return self._framed(session, output, located, self._by([output.head()], len(hosts)))

    def _beside(self, rows: DataFrame, keys: Sequence[str], hosts: Hosts) -> DataFrame:
        """The same columns without any row, on the hosts; any partitioning is true of no rows.

        All columns are nullable: for a column without nulls, Spark would know the result of the filter in `in_lanes`.
        """
        output = self._attributes(jvm.dataset(rows).schema().asNullable())
        names = [name.casefold() for name in rows.columns]
        by = [output.apply(names.index(key.casefold())) for key in keys]
        return self._framed(rows.sparkSession, output, self._empty(hosts), self._by(by, len(hosts)))

    def _by(self, keys: Sequence[Any], lanes: int) -> Any:
        """The partitioning that Spark's exchange has: one lane is a single partition without keys."""
        return self._single if lanes == 1 else self._hashed(self._sequence(list(keys)), lanes)

    def _turn(self, lanes: int) -> Column:
        if lanes not in self._turns:
            self._turns[lanes] = _in_turn(lanes)
        return self._turns[lanes]

    def _empty(self, hosts: Hosts) -> Any:
        """Empty partitions on these hosts, as an empty sample of rows: Spark gives no host to partitions that are empty from the start."""
        key = tuple(hosts)
        if key not in self._empty_on:
            if len(self._empty_on) >= MOST_KEPT:
                self._empty_on.clear()
            self._empty_on[key] = self._located([self._row(self._sequence([]))] * len(hosts), hosts).sample(
                False, 0.0, 0
            )
        return self._empty_on[key]

    def _located(self, rows: Sequence[Any], hosts: Hosts) -> Any:
        pairs = [self._pair(row, self._sequence([host])) for row, host in zip(rows, hosts, strict=True)]
        return self._context.makeRDD(self._sequence(pairs), self._tag)

    def _framed(self, session: SparkSession, output: Any, rdd: Any, partitioning: Any) -> DataFrame:
        inner, nothing = jvm.session(session), self._nothing
        unordered = self._sequence([])
        plan = self._relation(output, rdd, partitioning, unordered, False, nothing, inner, nothing, nothing, False)
        return jvm.dataframe(self._frame(inner, plan), session)


@dataclass(frozen=True, slots=True)
class AvailableHosts:
    """The hosts that the lanes of a job may run on, at this moment."""

    cores: Mapping[str, float] = field(default_factory=dict)
    places: Places | None = None
    """None on the embedded Spark, which is one host."""
    first: int = 0
    """Index of the host at which the lanes of the job begin."""
    vacated: frozenset[str] = frozenset()
    """Hosts that no lane of any job should be on."""
    started_s: float = 0.0
    """Monotonic time at which Spark started, in seconds; a host that is missing soon afterwards is gone."""
    problems: tuple[str, ...] = ()
    """A sentence for each host that the job cannot use."""

    def hosts(self, lanes: int, avoided: Sequence[str]) -> Hosts:
        """The host of each lane; empty on the embedded Spark and with fewer than two hosts."""
        if self.places is None or len(self.cores) < 2:
            return ()
        return lane_hosts(lanes, self.cores, in_turn(self.cores, {*avoided, *self.vacated}, self.first))


ONE_HOST = AvailableHosts()

INTERNAL_ROW = "org.apache.spark.sql.catalyst.InternalRow"
MOST_KEPT = 100


def _in_turn(lanes: int) -> Column:
    """The column of labels in turn; partitions begin with different lanes."""
    names = F.expr(f"array({','.join(map(str, labels(lanes)))})")
    return F.get(names, F.pmod(F.monotonically_increasing_id() + F.spark_partition_id(), F.lit(lanes)).cast("int"))


def _in_order(rows: DataFrame) -> DataFrame:
    known = [column_of(name) for name, kind in rows.dtypes if "map<" not in kind and kind != "variant"]
    return rows.sortWithinPartitions(F.xxhash64(*known)) if known else rows
