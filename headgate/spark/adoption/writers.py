"""Turns the end of a recorded query into the sink of a job: each epoch is written as by Spark's own sink, with the same batch numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import JobFileError
from headgate.spark import jvm
from headgate.spark.adoption.kafka import KAFKA, kafka_write
from headgate.spark.adoption.kafka_options import PREFIX
from headgate.spark.adoption.recording import CHECKPOINT, RecordedQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = "org.apache.spark.sql.execution.datasources"
FILES = {
    "csv": f"{FORMATS}.csv.CSVFileFormat",
    "json": f"{FORMATS}.json.JsonFileFormat",
    "orc": f"{FORMATS}.orc.OrcFileFormat",
    "parquet": f"{FORMATS}.parquet.ParquetFileFormat",
    "text": f"{FORMATS}.text.TextFileFormat",
}
FILE_SINK = "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink"
CASELESS = "org.apache.spark.sql.catalyst.util.CaseInsensitiveMap"


@dataclass(frozen=True, slots=True)
class RecordedSink:
    """The target of a query, and its guarantee if a batch is written again."""

    write: Callable[[DataFrame, int], None]
    target: str
    guarantee: str
    reads_once: bool = False
    """Whether `write` is one action that Spark reports; otherwise the rows are computed, counted and kept before the write."""


def sink_of(query: RecordedQuery) -> RecordedSink:
    """The sink of a query; refuses formats that a job cannot write under the query's own batch numbers."""
    if query.batches is not None:
        again = (
            "a batch that runs again calls the function with the same number and rows: the function must be idempotent"
        )
        return RecordedSink(query.batches, "foreachBatch", again)
    if query.rows is not None:
        again = (
            "a batch that runs again calls open() with the same epoch: rows double unless the writer checks the epoch"
        )
        return RecordedSink(_foreach(query), "foreach", again)
    format = query.format
    if query.table is None and format in FILES:
        return _file_sink(query, format)
    if query.table is None and format in ("console", KAFKA, "noop"):
        again = "at least once: a batch that runs again writes its rows again"
        return RecordedSink(_writer(query, format), format, again, reads_once=format != "console")
    what = f'the table "{query.table}"' if query.table is not None else f'the format "{format}"'
    raise JobFileError(
        f"a query writes to {what}, which headgate adopt cannot continue under the query's batch numbers;"
        " write it in foreachBatch first, or write a job with a sink of its own"
    )


def _file_sink(query: RecordedQuery, format: str) -> RecordedSink:
    """Return Spark's own file sink; its log `_spark_metadata` records the batches that are written."""
    path = query.option("path")
    if path is None:
        raise JobFileError(f'a query writes files of the format "{format}", but names no path; give start() a path')
    absolute = path if ":/" in path else str(Path(path).absolute())

    def write(rows: DataFrame, epoch: int) -> None:
        kept = rows.select("*")  # planned now, so that it reads what was kept
        java = jvm.packages(rows.sparkSession)
        options = getattr(java, CASELESS)(java.PythonUtils.toScalaMap(dict(query.options)))
        columns = java.PythonUtils.toSeq(list(query.partition_by))
        files = getattr(java, FILES[format])()
        sink = getattr(java, FILE_SINK)(jvm.session(rows.sparkSession), absolute, files, columns, options)
        sink.addBatch(epoch, jvm.dataset(kept))

    again = "exactly once: _spark_metadata skips a batch that is written already"
    return RecordedSink(write, f"{format} files in {path}", again)


def _foreach(query: RecordedQuery) -> Callable[[DataFrame, int], None]:
    partition = jvm.foreach_partition(query.rows)

    def write(rows: DataFrame, epoch: int) -> None:
        rows.rdd.mapPartitionsWithIndex(partition).count()

    return write


def _writer(query: RecordedQuery, format: str) -> Callable[[DataFrame, int], None]:
    """Return a writer of batches: Kafka is written without Spark's connector, unless the rows choose the topic or the partition."""
    topic = query.option("topic")
    if format == KAFKA and topic is not None and "partition" not in query.frame.columns:
        kept = {name: value for name, value in query.options.items() if name.lower().startswith(PREFIX)}
        write: Callable[[DataFrame, int], None] = kafka_write(kept, topic)
        return write
    return _batch_writer(query, format)


def _batch_writer(query: RecordedQuery, format: str) -> Callable[[DataFrame, int], None]:
    options = {name: value for name, value in query.options.items() if name.lower() != CHECKPOINT.lower()}

    def write(rows: DataFrame, epoch: int) -> None:
        if format == "console":
            rows.show(int(query.option("numRows") or 20), query.option("truncate") != "false")
            return
        rows.write.format(format).options(**options).mode("append").save()

    return write
