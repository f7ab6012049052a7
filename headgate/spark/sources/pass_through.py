"""Sources of Spark itself: files in a directory, and Spark's own Kafka connector. Options stay unchanged, except for Kafka secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.spark.connections.secrets import all_revealed, check_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class PassThrough:
    """A streaming source of Spark with its options."""

    format: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    schema: str | None = None
    arrival: str | None = None
    """Name of the column with the arrival time of a row; None if there is none."""
    stamp: str | None = None
    """SQL expression that computes this column; None if the source has the column."""
    names_secrets: bool = False
    """Whether options may refer to secrets by `env:NAME` or `file:PATH`."""
    elastic: bool = False

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        options = all_revealed(self.options, f'source "{self.format}" of Spark') if self.names_secrets else self.options
        reader = spark.readStream.format(self.format).options(**options)
        frame = (reader.schema(self.schema) if self.schema is not None else reader).load()
        if self.arrival is None or self.stamp is None:
            return frame
        from pyspark.sql import functions as F

        return frame.withColumn(self.arrival, F.expr(self.stamp))

    def arrived(self, place: Path) -> float | None:
        return None


def files(path: str | Path, *, schema: str, format: str = "json", **options: Any) -> PassThrough:
    """Files that appear in a directory; a row arrived when its file was written, as the column `arrived` says.

    `sources.files("in", schema="id long, amount double", format="json", maxFilesPerTrigger=100)`
    """
    given = {"path": str(path), **options}
    return PassThrough(format, given, schema, "arrived", "_metadata.file_modification_time")


def spark_kafka(**options: Any) -> PassThrough:
    """Kafka through Spark's own connector (`spark.jars.packages` must name spark-sql-kafka); a row arrived at its timestamp.

    Options have dots in their names: `sources.spark_kafka(**{"kafka.bootstrap.servers": "host:9092", "subscribe": "orders"})`. Secrets are
    written as "env:NAME" or "file:PATH", such as `kafka.sasl.jaas.config`.
    """
    return PassThrough("kafka", kafka_options(options), None, "timestamp", names_secrets=True)


def kafka_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Options of Spark's Kafka connector as texts; refuses secrets that are spelled out."""
    there = {name: value for name, value in options.items() if value is not None}
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in there.items()}
    check_options(given, "Spark's Kafka connector")
    return given
