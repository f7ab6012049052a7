"""The routing table of a keyed operator in Spark, by which each row goes to the lane of its slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.spark.epochs.labels import labels
from headgate.spark.epochs.places import Places
from headgate.spark.keyed.lanes import LABEL
from headgate.spark.quoting import column_of
from headgate.state.aggregate import SLICE
from headgate.state.placement.routing import Routing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RoutingTable:
    """A routing table in Spark: one row per lane, in the partition of its lane."""

    routing: Routing
    marks: DataFrame
    """One row per lane: the label and the mark of the lane."""
    rows: DataFrame
    """The marks with the columns of the operator's input, all null."""
    columns: tuple[Any, ...]
    """The columns of an input row, followed by its slice and its label."""

    @staticmethod
    def of(rows: DataFrame, key: Sequence[str], routing: Routing, slices: int, marks: DataFrame) -> RoutingTable:
        from pyspark.sql import functions as F

        names = labels(len(routing.host_of))
        own = rows.schema.fields
        empty = [F.lit(None).cast(one.dataType).alias(one.name) for one in own]
        slice_ = F.pmod(F.xxhash64(*map(column_of, key)), F.lit(slices)).cast("int")
        # Spark's generated code reads an array literal as data, so that another table compiles no new code.
        label = F.get(F.expr(f"array({','.join(str(names[lane]) for lane in routing.lane_of)})"), slice_)
        columns = (*(column_of(one.name) for one in own), slice_.alias(SLICE), label.alias(LABEL))
        return RoutingTable(routing, marks, marks.select(*empty, SLICE, LABEL), columns)

    def beside(self, rows: DataFrame) -> DataFrame:
        """The rows of each lane after its mark: both have the same partitioning, so partitions are joined end to end."""
        return self.rows.union(rows)


def marks_of(spark: SparkSession, routing: Routing, places: Places | None) -> DataFrame:
    """The marks of all lanes, on the hosts of the lanes; cached on the embedded Spark."""
    schema, lanes = f"{LABEL} int, {SLICE} int", len(routing.host_of)
    each = [(label, -1 - lane) for lane, label in enumerate(labels(lanes))]
    if places is not None:
        return places.marks(spark, schema, each, routing.host_of)
    return spark.createDataFrame(each, schema).repartition(lanes, LABEL).persist()
