"""Runs queries that read or write Kafka through Spark's connector on Headgate's own source and sink, without the connector's jar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T
from pyspark.sql.streaming.readwriter import DataStreamReader

from headgate.errors import JobFileError
from headgate.spark import sinks, sources
from headgate.spark.adoption.kafka_options import SERVERS, client_options, options_of_reader
from headgate.spark.connections.kafka import ISOLATION, UNCOMMITTED
from headgate.spark.sources import levers
from headgate.spark.sources.kafka import KafkaTopics
from headgate.spark.sources.kafka_offsets import PartitionPosition, spark_offsets
from headgate.spark.sources.kafka_reader import BEGUN, HEADERS, TIMESTAMP_TYPE, KafkaDataSource, marks_in, remember
from headgate.spark.sources.kafka_reading import Topics
from headgate.spark.sources.redis import FAIL, SKIP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA = "kafka"
COLUMNS = (
    T.StructField("key", T.BinaryType()),
    T.StructField("value", T.BinaryType()),
    T.StructField("topic", T.StringType()),
    T.StructField("partition", T.IntegerType()),
    T.StructField("offset", T.LongType()),
    T.StructField("timestamp", T.TimestampType()),
    T.StructField(TIMESTAMP_TYPE, T.IntegerType()),
)
"""Columns of Spark's own Kafka source, in Spark's order; `headers` comes last if the script asks for this column."""
INTERNAL = ("__consumer_offsets", "__transaction_state")
"""Topics that Spark never finds by a pattern."""


@dataclass(frozen=True, slots=True)
class KafkaRead:
    """One `readStream.format("kafka")…load()` of a script. Owner of the files in `place`: the job."""

    source: KafkaTopics
    place: Path
    columns: T.StructType
    most_rows: int | None
    """Most rows that a batch reads; None: no limit."""
    least_lanes: int

    def frame(self, spark: SparkSession) -> DataFrame:
        """A frame with the columns of Spark's own Kafka source; Kafka is not asked for anything yet."""
        spark.dataSource.register(KafkaDataSource)
        options = self.source.reader_options(self.place.absolute()) | {"operator": self.place.parent.name}
        reader = DataStreamReader(spark).format(KafkaDataSource.name())
        return reader.schema(self.columns).options(**options).load()

    def check(self, start: str | None) -> None:
        """Refuse a checkpoint that does not say at which offsets this stream starts."""
        if _parsed(start) is None:
            raise JobFileError(
                f"the checkpoint does not say where the query stopped to read {self}; start the query once more, so that it"
                " commits a batch"
            )

    def begin(self, start: str | None, place: Path) -> None:
        """Continue at these Spark offsets with at least one lane per partition, as in Spark, and with the time-outs of the job."""
        self.place.mkdir(parents=True, exist_ok=True)
        if not (self.place / BEGUN).exists():
            offsets = _parsed(start) or {}
            remember(self.place, {one: PartitionPosition(at, counted=at) for one, at in offsets.items()}, BEGUN)
        lanes = max(1, self.least_lanes, len(marks_in(self.place, BEGUN)))
        levers.write(self.place, replace(levers.read(place), lanes=lanes, read_limit=self.most_rows))

    def __str__(self) -> str:
        topics = self.source.topics
        named = f"topics like {topics.pattern}" if topics.pattern else f"topics {', '.join(topics.names)}"
        return f"Kafka {named} at {dict(self.source.options)[SERVERS]}"


def _parsed(start: str | None) -> dict[Any, int] | None:
    try:
        found = json.loads(start or "")
    except ValueError:
        return None
    return spark_offsets(found) if isinstance(found, dict) else None


def kafka_read(options: Mapping[str, str], place: Path) -> KafkaRead:
    """Return the stream that Spark's own Kafka source would read; refuse options that have no counterpart in Headgate's source."""
    given = options_of_reader(options)
    more = dict(given.client)
    servers, isolation = (
        more.pop(SERVERS),
        more.pop(ISOLATION, UNCOMMITTED),
    )  # Spark reads uncommitted rows too by default
    on_loss = FAIL if given.flag("failOnDataLoss", True) else SKIP
    topics = _topics(given.text("subscribe"), given.text("subscribePattern"), given.text("assign"))
    source = sources.kafka("any", servers=servers, on_loss=on_loss, options=more)
    source = replace(source, topics=topics, options=tuple(sorted((*source.options, (ISOLATION, isolation)))))
    headers = [T.StructField("headers", HEADERS)] if given.flag("includeHeaders", False) else []
    limit, lanes = given.number("maxOffsetsPerTrigger"), given.number("minPartitions")
    return KafkaRead(source, place, T.StructType([*COLUMNS, *headers]), limit, lanes or 1)


def _topics(names: str | None, pattern: str | None, assigned: str | None) -> Topics:
    if sum(one is not None for one in (names, pattern, assigned)) != 1:
        raise JobFileError(
            'a query reads Kafka; give it one of the options "subscribe", "subscribePattern" and "assign"'
        )
    if names is not None:
        return sources.kafka(*(name.strip() for name in names.split(",") if name.strip()), servers="any").topics
    if pattern is not None:
        return _like(pattern)
    try:
        numbers = [(topic, int(one)) for topic, each in json.loads(assigned or "").items() for one in each]
    except (AttributeError, TypeError, ValueError):
        raise JobFileError(f'the option "assign" of Kafka is {assigned!r}; write it like {{"orders":[0,1]}}') from None
    return Topics(tuple(sorted({topic for topic, _ in numbers})), numbers=tuple(sorted(numbers)))


def _like(pattern: str) -> Topics:
    """Return topics for a pattern of Spark, which may match any part of a topic name; Headgate matches the whole name."""
    anywhere = f".*(?:{pattern}).*"
    sources.kafka(pattern=anywhere, servers="any")
    return Topics((), f"(?!(?:{'|'.join(INTERNAL)})$){anywhere}")


def kafka_write(options: Mapping[str, str], topic: str) -> Any:
    """Return Headgate's Kafka sink in place of Spark's; both deliver at least once."""
    more = client_options(options)
    servers = more.pop(SERVERS)
    return sinks.kafka(topic, servers=servers, delivery="at-least-once", options=more)
