"""What Spark is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headgate.config import SparkSettings
from headgate.spark import session
from headgate.spark.quoting import column_of


@pytest.mark.parametrize(("megabytes", "told"), [(0, 2**31 - 1), (64, 64 * 2**20), (2047, 2047 * 2**20)])
def test_batches_are_cut_by_their_size_only_if_asked(tmp_path: Path, megabytes: int, told: int) -> None:
    found = session._configuration(tmp_path, SparkSettings(largest_batch_mb=megabytes), embedded=True)
    assert found["spark.sql.execution.arrow.maxBytesPerBatch"] == str(told)


@pytest.mark.slow
def test_plans_of_many_jobs_stay_compiled(spark: SparkSession) -> None:
    """By default, Spark keeps 100 compiled plans."""
    jvm: Any = spark.sparkContext._jvm
    compilations = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    queries = [spark.range(3).selectExpr(f"id + {number} AS sum").where(f"sum > {number}") for number in range(150)]
    for query in queries:
        query.collect()
    before = compilations.getCount()
    for query in queries[:40]:
        query.collect()
    assert compilations.getCount() - before < 20


def test_columns_are_found_whatever_characters_their_names_have(spark: SparkSession) -> None:
    name = "a.b`c d"
    assert spark.range(3).withColumnRenamed("id", name).select(column_of(name)).count() == 3
