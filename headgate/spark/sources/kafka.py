"""Kafka as a source, without a connector jar: an epoch is a range of offsets per partition, which can be read again exactly.

Offsets are shared out among lanes, so that a topic with 2 partitions can feed 8 lanes. Offsets that Kafka removed before they were read
fail the job, or are counted.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from headgate import files
from headgate.core.quantities import choice
from headgate.errors import GraphError
from headgate.spark import levers
from headgate.spark.connections import KafkaPatience, failure
from headgate.spark.extras import require
from headgate.spark.kafka import TOPIC, Options, address, asking_kafka, checked_options, consumer
from headgate.spark.sources.declared import declared_columns, remembered
from headgate.spark.sources.decoding import Decoding, Format, checked_avro
from headgate.spark.sources.kafka_offsets import (
    Bounds,
    LaneOffsets,
    OffsetRange,
    Partition,
    PartitionPosition,
    UnreadPartition,
    present,
    ranges_between,
    share_out,
    within_limit,
)
from headgate.spark.sources.kafka_reading import (
    EARLIEST,
    LATEST,
    Reading,
    Topics,
    bounds_of,
    highest,
    lost_text,
    lowest,
    partitions_of,
    since,
)
from headgate.spark.sources.redis import FAIL, ON_LOSS, SKIP

BEGUN = "kafka-begun.json"
"""Where the job began with each partition."""
PLANNED = "kafka.json"
"""How far each partition was planned."""
MISSING = "missing"
"""A folder with a file for each range in which a lane found fewer rows than offsets."""
ARRIVED = "arrived"
HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
OWN = (
    T.StructField("key", T.BinaryType()),
    T.StructField("headers", HEADERS),
    T.StructField("topic", T.StringType()),
    T.StructField("partition", T.IntegerType()),
    T.StructField("offset", T.LongType()),
    T.StructField("timestamp", T.TimestampType()),
    T.StructField(ARRIVED, T.TimestampType()),
)
"""Columns beside those of the value."""
VALUE = T.StructField("value", T.BinaryType())
RAW = Decoding(Format.RAW)
Start = str | datetime | Mapping[str, Mapping[int, int]]


# -- what its users see


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """The rows of Kafka topics. An epoch that is read again has the same rows, or fails, as some of them are gone."""

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
        """What Spark gives its readers; secrets are named in it, not spelled out."""
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
        return float(read - sum(sum(found) for found in _uncounted(place, marks).values()))

    def losses(self, place: Path) -> str:
        """What was lost so far, in a sentence; empty if nothing was."""
        marks = marks_in(place)
        late = _uncounted(place, marks)
        found = ((one, mark.lost + late.get(one, (0, 0))[1], mark.gaps) for one, mark in sorted(marks.items()))
        told = [f"partition {one}: {_told(lost, gaps)}" for one, lost, gaps in found if lost or gaps]
        return f"Kafka at {address(self.options)}: {'; '.join(told)}" if told else ""

    def begin(self, place: Path) -> None:
        """Partitions of a new job begin where its author wants; those that are found later, with their first row."""
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
    return Decoding(kind, "" if avro_schema is None else checked_avro(avro_schema), registry or "", login)


def columns_of(schema: str | None) -> T.StructType:
    """The columns of a source with this schema; needs a running Spark."""
    if schema is None:
        return T.StructType([OWN[0], VALUE, *OWN[1:]])
    own = {column.name for column in OWN}
    return T.StructType([*declared_columns(schema, own, "Kafka"), *OWN])


# -- what is remembered


def marks_in(place: Path, file: str = PLANNED) -> dict[Partition, PartitionPosition]:
    """Marks by partition; none if there is no such file yet."""
    found = remembered(place / file, PartitionPosition, file == PLANNED)
    return {Partition.of(name): mark for name, mark in found.items()}


def remember(place: Path, marks: Mapping[Partition, PartitionPosition], file: str = PLANNED) -> None:
    """What was planned is for whoever asks what has arrived and what was lost: epochs go by the offsets that Spark keeps."""
    files.replace(place / file, msgspec.json.encode(_named(marks)), durable=file == BEGUN)


def patience_in(place: Path) -> KafkaPatience:
    """As the settings of the service say."""
    return levers.read(place).patience.kafka


def _named(marks: Mapping[Partition, PartitionPosition]) -> dict[str, Any]:
    return {str(partition): msgspec.to_builtins(mark) for partition, mark in marks.items()}


def _told(lost: int, gaps: int) -> str:
    parts = [lost_text(lost)] if lost else []
    if gaps:
        parts.append("its topic was deleted and created again" + ("" if gaps == 1 else f", {gaps} times"))
    return " and ".join(parts)


def _missing_files(place: Path) -> Iterator[tuple[Path, OffsetRange]]:
    for path in place.glob(f"{MISSING}/*/*/*@*"):
        if not path.name.endswith(files.PART):
            first, last = path.name.split("@")
            yield path, OffsetRange(Partition(path.parent.parent.name, int(path.parent.name)), int(first), int(last))


def _uncounted(place: Path, marks: Mapping[Partition, PartitionPosition]) -> dict[Partition, tuple[int, int]]:
    """Holes and losses that lanes found beyond what the marks count already."""
    found: dict[Partition, tuple[int, int]] = {}
    for path, part in _missing_files(place):
        mark = marks.get(part.partition)
        # One that a power cut left empty, or that is forgotten at this moment, counts for nothing.
        with suppress(FileNotFoundError, ValueError):
            if mark is not None and part.first >= mark.counted:
                holes, lost = map(int, path.read_text().split())
                before = found.get(part.partition, (0, 0))
                found[part.partition] = before[0] + holes, before[1] + lost
    return found


# -- what Spark sees


class KafkaDataSource(DataSource):
    """What Spark makes its readers from."""

    @classmethod
    def name(cls) -> str:
        return "headgate-kafka"

    def streamReader(self, schema: T.StructType) -> KafkaReader:
        return KafkaReader(self.options, schema)


Offset = dict[str, Any]
"""A mark for each partition, as Spark keeps it."""


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs in the driver, and reads ranges in the lanes."""

    def __init__(self, options: Mapping[str, str], schema: T.StructType) -> None:
        self.kafka: Options = tuple((name, value) for name, value in json.loads(options["kafka"]))
        self.topics = msgspec.json.decode(options["topics"], type=Topics)
        self.decoding = msgspec.json.decode(options["decoding"], type=Decoding)
        self.place = Path(options["place"])
        self.operator = options["operator"]
        self.skips = options["on_loss"] == SKIP
        self.group = options["group"]
        self.schema = schema
        self.horizon: dict[Partition, int] = {}
        """Where `availableNow` ends."""
        self.seen: dict[Partition, int] = {}
        """Where each partition ended when it was last looked at."""
        self.partitions_known: list[Partition] = []
        self.discovered_s: float | None = None

    # -- in the driver

    def initialOffset(self) -> Offset:
        return _named(marks_in(self.place, BEGUN))

    def prepareForTriggerAvailableNow(self) -> None:
        with asking_kafka(self.kafka, self.operator):
            self.horizon = highest(self.kafka, self._patience, self._discovered([]))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """As far as the levers allow; they and not `limit` say how much an epoch reads."""
        before = self._marks(start)
        with asking_kafka(self.kafka, self.operator):
            news = self._news(before)
        if not news:
            return start
        counted = self._with_missing(before)
        ends = {new.partition: new.end for new in within_limit(news, levers.read(self.place).read_limit)}
        ends = before | {one: _counting(before[one], end, counted[one]) for one, end in ends.items()}
        remember(self.place, ends)
        return _named(ends)

    def reportLatestOffset(self) -> Offset | None:
        return {str(one): {"offset": high} for one, high in self.seen.items()} or None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Equal shares, one for each lane."""
        ends = self._marks(end)
        begins = {one: self._marks(start).get(one, PartitionPosition(ends[one].begin or 0)) for one in ends}
        ranges = ranges_between(begins, ends)
        self._forget_missing(ranges)
        return share_out(ranges, levers.read(self.place).lanes)

    def commit(self, end: Offset) -> None:
        """An epoch is finished: the consumer group may know. Its lag is for people, so that a failure does not end the job."""
        if not self.group:
            return
        from confluent_kafka import KafkaException, TopicPartition

        offsets = [TopicPartition(one.topic, one.number, mark.offset) for one, mark in self._marks(end).items()]
        with suppress(KafkaException):
            consumer(self.kafka, self._patience, self.group, os.getpid()).commit(offsets=offsets, asynchronous=True)

    @property
    def _patience(self) -> KafkaPatience:
        return patience_in(self.place)

    def _marks(self, offset: Offset) -> dict[Partition, PartitionPosition]:
        try:
            return {Partition.of(name): msgspec.convert(mark, PartitionPosition) for name, mark in offset.items()}
        except (msgspec.ValidationError, ValueError):
            told = f"the checkpoint has the offset {offset!r}, which is not of a Kafka source"
            raise failure(f"{told}; remove the job and submit it again", self.operator) from None

    def _discovered(self, known: Iterable[Partition]) -> list[Partition]:
        """Partitions that there are; asked for again every so often."""
        now_s = time.monotonic()
        if self.discovered_s is None or now_s - self.discovered_s >= self._patience.discovery_s:
            self.partitions_known = partitions_of(self.kafka, self._patience, self.topics)
            self.discovered_s = now_s
        return sorted({*self.partitions_known, *known})

    def _news(self, before: dict[Partition, PartitionPosition]) -> list[UnreadPartition]:
        """Partitions with rows after these marks, or with some that are missing there. Adds those that are new to `before`."""
        highs = highest(self.kafka, self._patience, self._discovered(before))
        moved = {
            one: high
            for one, high in highs.items()
            if one not in before or high != before[one].offset or high < self.seen.get(one, 0)
        }
        found = [self._new(one, before, bounds) for one, bounds in bounds_of(self.kafka, self._patience, moved).items()]
        self.seen = highs
        return [new for new in found if new.end != before[new.partition]]

    def _new(self, one: Partition, before: dict[Partition, PartitionPosition], bounds: Bounds) -> UnreadPartition:
        is_new = one not in before
        mark = before.setdefault(one, PartitionPosition(bounds.low, counted=bounds.low))
        begin = present(mark, bounds, self.seen.get(one, 0))
        lost, gaps = begin.lost - mark.lost, begin.gaps - mark.gaps
        if (lost or gaps) and not self.skips:
            raise self._loss(one, _told(lost, gaps))
        if is_new:  # no epoch before has it: the range says itself where it begins
            begin = replace(begin, begin=begin.offset)
        high = bounds.high if gaps else min(bounds.high, self.horizon.get(one, bounds.high))
        if high <= begin.offset and not lost and not gaps:
            return UnreadPartition(one, mark, mark)
        return UnreadPartition.up_to(one, begin, high)

    def _loss(self, one: Partition, what: str) -> Exception:
        told = f'partition {one.number} of topic "{one.topic}" of Kafka at {address(self.kafka)}: {what}'
        return failure(f'{told}; set on_loss="skip" to go on with what is left', self.operator)

    # -- offsets without a row

    def _with_missing(self, before: Mapping[Partition, PartitionPosition]) -> dict[Partition, PartitionPosition]:
        """The marks with what lanes did not find before them; what earlier marks counted is deleted."""
        found = dict(before)
        for path, part in list(_missing_files(self.place)):
            mark = before.get(part.partition)
            if mark is None or part.last <= mark.counted:
                path.unlink(missing_ok=True)
            elif part.last <= mark.offset:
                holes, lost = map(int, path.read_text().split())
                mark = found[part.partition]
                found[part.partition] = replace(mark, holes=mark.holes + holes + lost, lost=mark.lost + lost)
        return {one: replace(mark, counted=mark.offset) for one, mark in found.items()}

    def _forget_missing(self, ranges: Sequence[OffsetRange]) -> None:
        """An epoch that is read again counts again."""
        whole = {one.partition: one for one in ranges}
        for path, part in list(_missing_files(self.place)):
            one = whole.get(part.partition)
            if one is not None and one.first <= part.first and part.last <= one.last:
                path.unlink(missing_ok=True)

    # -- in a lane

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LaneOffsets)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        with asking_kafka(self.kafka, self.operator):
            client = consumer(self.kafka, self._patience, self.group or f"headgate-{self.operator}", os.getpid())
            reading = Reading(client, self.kafka, self._patience, self.operator, self._lost_in_lane)
            for page in reading.pages(partition.ranges):
                yield batch_of(page, schema, self.decoding)
        for one in partition.ranges:
            self._remember_missing(one, reading)

    def _lost_in_lane(self, one: Partition, what: str) -> None:
        if not self.skips:
            raise self._loss(one, what)

    def _remember_missing(self, one: OffsetRange, reading: Reading) -> None:
        lost = reading.lost.get(one.partition, 0)
        holes = one.rows - reading.rows.get(one.partition, 0) - lost
        if holes or lost:
            folder = self.place / MISSING / one.partition.topic / str(one.partition.number)
            files.replace(folder / f"{one.first}@{one.last}", f"{holes} {lost}".encode(), durable=False)


def _counting(before: PartitionPosition, end: PartitionPosition, counted: PartitionPosition) -> PartitionPosition:
    """The end of an epoch, with what was not found before its begin."""
    up_to = counted.counted if end.gaps == before.gaps else end.counted
    return replace(end, holes=counted.holes, counted=up_to, lost=end.lost + counted.lost - before.lost)


def batch_of(messages: Sequence[Any], schema: pa.Schema, decoding: Decoding) -> pa.RecordBatch:
    """Messages as rows."""
    times = pa.array([_micros(message) for message in messages], pa.int64()).cast(pa.timestamp("us", "UTC"))
    own = {
        "key": lambda: pa.array([message.key() for message in messages], pa.binary()),
        "headers": lambda: pa.array([message.headers() for message in messages], schema.field("headers").type),
        "topic": lambda: pa.array([message.topic() for message in messages], pa.string()),
        "partition": lambda: pa.array([message.partition() for message in messages], pa.int32()),
        "offset": lambda: pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": lambda: times,
        ARRIVED: lambda: times,
    }
    values = [message.value() for message in messages]
    if decoding.format is Format.RAW:
        own["value"] = lambda: pa.array(values, pa.binary())
    fields = [one for one in schema if one.name not in own]
    decoded = dict(zip((one.name for one in fields), decoding.columns(values, fields), strict=True)) if fields else {}
    arrays = [own[one.name]() if one.name in own else decoded[one.name] for one in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _micros(message: Any) -> int | None:
    kind, millis = message.timestamp()
    return millis * 1000 if kind else None
