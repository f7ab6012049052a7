"""Sinks of Spark itself, and a sink that discards all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.spark import jvm
from headgate.spark.connections.secrets import all_revealed
from headgate.spark.sources.pass_through import kafka_options
from headgate.topology import Writer, once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def console(rows: int = 20, truncate: bool = True) -> Writer:
    """Print the first rows of each epoch; all of them are computed."""

    def write(frame: DataFrame, epoch: int) -> None:
        count = frame.count()
        if count:
            print(f"epoch {epoch}: {count} rows", flush=True)
            frame.show(rows, truncate)

    return write


def discard() -> Writer:
    """Compute every row and keep none: for measuring."""

    def write(frame: DataFrame, epoch: int) -> None:
        jvm.compute(frame)

    return once(write)


def spark_kafka(**options: Any) -> Writer:
    """Kafka through Spark's own connector: at least once, because Kafka stores the rows of a repeated epoch again.

    Rows need a column `value`: `sinks.spark_kafka(**{"kafka.bootstrap.servers": "host:9092", "topic": "alerts"})`. Secrets are written
    as "env:NAME" or "file:PATH".
    """
    given = kafka_options(options)

    def write(frame: DataFrame, epoch: int) -> None:
        frame.write.format("kafka").options(**all_revealed(given, "Spark's Kafka connector")).save()

    return once(write)
