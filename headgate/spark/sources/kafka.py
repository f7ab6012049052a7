"""Kafka as a source without a connector jar: an epoch is a range of offsets per partition, so that it can be read again exactly.

Lanes share the offsets of a partition, so that a topic with 2 partitions can feed 8 lanes. Offsets that Kafka removed before they were
read fail the job, or are counted as lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headgate.core.quantities import choice
from headgate.errors import GraphError
from headgate.spark.connections.extras import require
from headgate.spark.connections.kafka import TOPIC, Options, address, asking_kafka, checked_options
from headgate.spark.connections.patience import KafkaPatience
from headgate.spark.connections.secrets import has_login
from headgate.spark.sources.declared import declared_columns
from headgate.spark.sources.decoding import Decoding, Format, checked_avro
from headgate.spark.sources.kafka_offsets import (
    Partition,
    PartitionPosition,
)
from headgate.spark.sources.kafka_reader import (
    ARRIVED,
    BEGUN,
    OWN,
    VALUE,
    KafkaDataSource,
    loss_text,
    marks_in,
    patience_in,
    remember,
    uncounted,
)
from headgate.spark.sources.kafka_reading import (
    EARLIEST,
    LATEST,
    Topics,
    highest,
    lowest,
    partitions_of,
    since,
)
from headgate.spark.sources.redis import FAIL, ON_LOSS

RAW = Decoding(Format.RAW)
Start = str | datetime | Mapping[str, Mapping[int, int]]


# -- what its users see


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """A source with the rows of Kafka topics. A repeated epoch has the same rows, or fails if some of its rows were removed."""

    topics: Topics
    options: Options = field(repr=False)
    schema: str | None = None
    decoding: Decoding = RAW
    start: Start = EARLIEST
    on_loss: str = FAIL
    group: str | None = None
    arrival: str | None = field(default=ARRIVED, init=False)
    elastic: bool = field(default=True, init=False)

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        columns = columns_of(self.schema)
        self.begin(place)
        spark.dataSource.register(KafkaDataSource)
        reader = spark.readStream.format(KafkaDataSource.name()).schema(columns)
        return reader.options(**self.reader_options(place.absolute())).load()

    def reader_options(self, place: Path) -> dict[str, str]:
        """Return the options of the reader, with secrets as references, because Spark shows options."""
        return {
            "topics": msgspec.json.encode(self.topics).decode(),
            "kafka": json.dumps(self.options),
            "decoding": msgspec.json.encode(self.decoding).decode(),
            "place": str(place),
            "operator": place.name,
            "on_loss": self.on_loss,
            "group": self.group or "",
        }

    def arrived(self, place: Path) -> float | None:
        marks = marks_in(place, BEGUN) | marks_in(place)
        patience = patience_in(place).for_a_look()
        with asking_kafka(self.options):
            highs = highest(self.options, patience, marks)
        read = sum(mark.rows - mark.holes + max(0, highs[one] - mark.offset) for one, mark in marks.items())
        return float(read - sum(sum(found) for found in uncounted(place, marks).values()))

    def losses(self, place: Path) -> str:
        """Say which rows were lost so far; empty if no rows were lost."""
        marks = marks_in(place)
        late = uncounted(place, marks)
        found = ((one, mark.lost + late.get(one, (0, 0))[1], mark.gaps) for one, mark in sorted(marks.items()))
        sentences = [f"partition {one}: {loss_text(lost, gaps)}" for one, lost, gaps in found if lost or gaps]
        return f"Kafka at {address(self.options)}: {'; '.join(sentences)}" if sentences else ""

    def begin(self, place: Path) -> None:
        """Remember where the job begins to read: existing partitions at `start`, partitions that are found later at their first row."""
        if (place / BEGUN).exists():
            return
        patience = patience_in(place)
        with asking_kafka(self.options):
            partitions = partitions_of(self.options, patience, self.topics)
            offsets = self._beginnings(patience, partitions)
        remember(place, {one: PartitionPosition(offset, counted=offset) for one, offset in offsets.items()}, BEGUN)

    def _beginnings(self, patience: KafkaPatience, partitions: list[Partition]) -> dict[Partition, int]:
        if self.start == LATEST:
            return highest(self.options, patience, partitions)
        if isinstance(self.start, datetime):
            return since(self.options, patience, partitions, self.start)
        first = lowest(self.options, patience, partitions)
        if isinstance(self.start, Mapping):
            given = self.start
            return {one: int(given.get(one.topic, {}).get(one.number, offset)) for one, offset in first.items()}
        return first


def kafka(
    *topics: str,
    servers: str,
    schema: str | None = None,
    format: str | None = None,
    pattern: str | None = None,
    start: Start = EARLIEST,
    on_loss: str = FAIL,
    group: str | None = None,
    avro_schema: Any = None,
    registry: str | None = None,
    registry_login: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> KafkaTopics:
    """Reads Kafka topics by their names, or all topics whose names match `pattern`.

    `sources.kafka("orders", servers="host:9092", schema="id long, user string, amount double")`

    With `schema`, values are decoded as JSON or Avro into its columns; without, `value` is binary. Columns `key`, `headers`, `topic`,
    `partition`, `offset`, `timestamp` and `arrived` are added. A new job begins at `start`: "earliest", "latest", a time, or offsets such
    as `{"orders": {0: 17}}`. With `group`, the offsets of each finished epoch are committed for this consumer group. `options` are those
    of librdkafka, secrets as "env:NAME" or "file:PATH".
    """
    require("kafka", "a Kafka source")
    choice(on_loss, "on_loss of a Kafka source", ON_LOSS, GraphError)
    login = _login(registry_login)
    decoding = _decoding(schema, format, avro_schema, registry, login)
    return KafkaTopics(
        _topics(topics, pattern), checked_options(servers, options), schema, decoding, _start(start), on_loss, group
    )


def _topics(names: tuple[str, ...], pattern: str | None) -> Topics:
    if pattern is not None:
        if names:
            raise GraphError("a Kafka source has both topics and a pattern; give it one of them")
        try:
            re.compile(pattern)
        except re.error as error:
            raise GraphError(f"the pattern {pattern!r} of a Kafka source cannot be read: {error}") from None
        return Topics((), pattern)
    if not names or not all(isinstance(name, str) and TOPIC.fullmatch(name) for name in names):
        raise GraphError(f'a Kafka source reads {names!r}; name its topics, such as kafka("orders", ...)')
    if len(set(names)) < len(names):
        raise GraphError(f"a Kafka source reads {', '.join(names)}; name each topic once")
    return Topics(names)


def _start(start: Start) -> Start:
    if isinstance(start, str) and start not in (EARLIEST, LATEST):
        try:
            start = datetime.fromisoformat(start)
        except ValueError:
            raise GraphError(
                f'start of a Kafka source is {start!r}; write "earliest", "latest", a time such as "2026-05-06T07:00:00Z", or offsets'
            ) from None
    if isinstance(start, datetime) and start.tzinfo is None:
        return start.replace(tzinfo=UTC)
    return start


def _login(login: str | None) -> str:
    if login and not login.startswith(("env:", "file:")):
        raise GraphError('registry_login is a secret; write "env:NAME" or "file:PATH", where user:password is')
    return login or ""


def _decoding(schema: str | None, format: str | None, avro_schema: Any, registry: str | None, login: str) -> Decoding:
    kind = Format(choice(format or ("raw" if schema is None else "json"), "format", tuple(Format), GraphError))
    if (kind is Format.RAW) != (schema is None):
        raise GraphError(f'format is "{kind}"; json and avro need a schema, and raw has none')
    if kind is not Format.AVRO:
        return Decoding(kind)
    if (avro_schema is None) == (registry is None):
        raise GraphError('format is "avro"; give it avro_schema, or the address of a schema registry as registry')
    if registry and has_login(registry):
        raise GraphError(
            'the address of the schema registry contains a login; write the address without it, and registry_login="env:NAME"'
            ' or "file:PATH", where user:password is'
        )
    return Decoding(kind, "" if avro_schema is None else checked_avro(avro_schema), registry or "", login)


def columns_of(schema: str | None) -> T.StructType:
    """The columns of a source with this schema; needs a running Spark."""
    if schema is None:
        return T.StructType([OWN[0], VALUE, *OWN[1:]])
    own = {column.name for column in OWN}
    return T.StructType([*declared_columns(schema, own, "Kafka"), *OWN])
