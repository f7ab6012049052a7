"""Count and sum by key with Spark's own APIs, as a comparison: one query per API, and all queries read the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headgate.topology import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "user long, amount double"
OUTPUT = "user long, n long, total double"
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""The fastest configuration of Spark's own state: only changes are made durable."""


def stream(spark: SparkSession, files: Path) -> DataFrame:
    """Read one file per epoch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))


def start(spark: SparkSession, way: str, files: Path, place: Path, partitions: int) -> StreamingQuery:
    """Start a query whose state has so many partitions, for good."""
    for name, value in {**ROCKSDB, "spark.sql.shuffle.partitions": str(partitions)}.items():
        spark.conf.set(name, value)
    counted = WAYS[way](stream(spark, files))
    writer = counted.writeStream.format("noop").outputMode("update")
    return writer.option("checkpointLocation", str(place)).start()


def _aggregation(rows: DataFrame) -> DataFrame:
    return rows.groupBy("user").agg({"*": "count", "amount": "sum"})


def _pandas(rows: DataFrame) -> DataFrame:
    grouped = rows.groupBy("user")
    return grouped.applyInPandasWithState(_counted, OUTPUT, "n long, total double", "update", "NoTimeout")


def _counted(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    count, total = state.get if state.exists else (0, 0.0)
    for part in parts:
        count, total = count + len(part), total + float(part["amount"].sum())
    state.update((count, total))
    yield pd.DataFrame({"user": [key[0]], "n": [count], "total": [total]})


def _transform_in_pandas(rows: DataFrame) -> DataFrame:
    def added(parts: Iterator[pd.DataFrame]) -> tuple[int, float]:
        every = [(len(part), float(part["amount"].sum())) for part in parts]
        return sum(count for count, _ in every), sum(total for _, total in every)

    def put_out(user: int, count: int, total: float) -> pd.DataFrame:
        return pd.DataFrame({"user": [user], "n": [count], "total": [total]})

    return rows.groupBy("user").transformWithStateInPandas(_processor(added, put_out), OUTPUT, "Update", "None")


def _transform(rows: DataFrame) -> DataFrame:
    from pyspark.sql import Row

    def added(parts: Iterator[Any]) -> tuple[int, float]:
        amounts = [row.amount for row in parts]
        return len(amounts), sum(amounts)

    def put_out(user: int, count: int, total: float) -> Any:
        return Row(user=user, n=count, total=total)

    return rows.groupBy("user").transformWithState(_processor(added, put_out), OUTPUT, "Update", "None")


def _processor(added: Callable[[Iterator[Any]], tuple[int, float]], put_out: Callable[[int, int, float], Any]) -> Any:
    """Return a processor for Spark's newest API, which needs the packages protobuf and grpcio: install `headgate[bench]`."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("state", "n long, total double")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            count, total = self._state.get() or (0, 0.0)
            more, amount = added(rows)
            self._state.update((count + more, total + amount))
            yield put_out(key[0], count + more, total + amount)

        def close(self) -> None:
            """Do nothing: the processor holds no resources."""

    return Counting()


WAYS = {
    "aggregation": _aggregation,
    "applyInPandasWithState": _pandas,
    "transformWithStateInPandas": _transform_in_pandas,
    "transformWithState": _transform,
}


def measured(
    spark: SparkSession,
    rows: DataFrame,
    measures: Mapping[str, str],
    place: Path,
    partitions: int,
    write: Writer,
) -> StreamingQuery:
    """Aggregate by the first column, with the column names of a keyed operator, and with a writer like a job's sink."""
    from pyspark.sql import functions as F

    for name, value in {**ROCKSDB, "spark.sql.shuffle.partitions": str(partitions)}.items():
        spark.conf.set(name, value)
    columns = [F.expr("count(*)" if what == "count" else what).alias(name) for name, what in measures.items()]
    counted = rows.groupBy(rows.columns[0]).agg(*columns)
    writer = counted.writeStream.foreachBatch(write).outputMode("update")
    return writer.option("checkpointLocation", str(place)).start()


def repartition(spark: SparkSession, place: Path, partitions: int) -> None:
    """Rewrite the state of a stopped query for another number of partitions, with Spark's own tool."""
    spark._streamingCheckpointManager.repartition(str(place), partitions)
