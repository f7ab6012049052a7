"""Plans that last: built once for many epochs, and for each epoch where a plan depends on more than its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine

from .builders import change, column, epochs, same, topology, written
from .conftest import Until

EPOCHS = 6
ROWS = "row long, arrived timestamp"


class Called:
    """A transform that counts how often it is called."""

    def __init__(self, function: Any) -> None:
        self.times = 0
        self._function = function

    def __call__(self, rows: DataFrame) -> DataFrame:
        self.times += 1
        result: DataFrame = self._function(rows)
        return result


def run(engine: SparkEngine, out: Path, until: Until, function: Any) -> Called:
    """A job with this transform, until it has finished some epochs."""
    job, called = topology(), Called(function)
    rows = job.source("in", sources.load(300), lanes=2)
    job.sink("out", sinks.files(out), job.transform("changed", called, rows))
    engine.submit(job)
    until(lambda: epochs(engine) >= EPOCHS, "some epochs")
    return called


def test_function_is_called_once_for_many_epochs_and_again_after_a_change(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    called = run(engine, out, until, lambda rows: rows.where("row % 2 = 0"))
    before = called.times
    assert before <= 3  # before the first epoch, and by how many partitions an epoch has
    change(engine, {"in": 3})
    since = epochs(engine)
    until(lambda: epochs(engine) >= since + EPOCHS, "some epochs more")
    assert before < called.times <= before + 3
    rows = column(out)
    assert rows == list(range(0, 2 * len(rows), 2))


@pytest.mark.parametrize("drawn", [F.current_timestamp, F.rand], ids=["clock", "random number"])
def test_plan_with_the_clock_or_random_numbers_is_built_for_each_epoch(
    engine: SparkEngine, out: Path, until: Until, drawn: Any
) -> None:
    called = run(engine, out, until, lambda rows: rows.withColumn("drawn", drawn()))
    assert called.times > EPOCHS
    values = [{row["drawn"] for row in table.to_pylist()} for table in written(out).values()]
    assert sum(map(len, values)) == len(set().union(*values))


@pytest.mark.slow
def test_plan_that_reads_a_table_sees_its_changes(
    engine: SparkEngine, spark: SparkSession, out: Path, tmp_path: Path, until: Until
) -> None:
    table = str(tmp_path / "table")
    spark.createDataFrame([("old",)], "word string").write.parquet(table)
    run(engine, out, until, lambda rows: rows.crossJoin(rows.sparkSession.read.parquet(table)))
    spark.createDataFrame([("new",)], "word string").write.mode("append").parquet(table)
    until(lambda: "new" in last_words(out), "the new row")


def last_words(out: Path) -> set[str]:
    tables = written(out)
    return set(tables[max(tables)].column("word").to_pylist())


def test_lanes_of_an_exchange_get_the_rows_of_their_own_epoch(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = job.source("in", sources.load(300), lanes=2)
    worked = job.batches("work", same, rows, schema=ROWS, lanes=3)
    counted = job.transform(
        "count", lambda frame: frame.groupBy("row").agg(F.count("*").alias("times")), worked, lanes=2, by="row"
    )
    job.sink("out", sinks.files(out), counted)
    engine.submit(job)
    until(lambda: epochs(engine) >= EPOCHS, "some epochs")
    rows_out = column(out)
    assert rows_out == list(range(len(rows_out)))
    assert {row["times"] for table in written(out).values() for row in table.to_pylist()} == {1}
