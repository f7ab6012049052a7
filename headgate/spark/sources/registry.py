"""Python data sources, made known to a session once: Spark refuses a second time as soon as any source has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_KNOWN = "_headgate_sources"


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """From now on the session reads this format."""
    known: set[type[DataSource]] = spark.__dict__.setdefault(_KNOWN, set())
    if source not in known:
        spark.dataSource.register(source)
        known.add(source)
