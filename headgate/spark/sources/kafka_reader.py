"""The reader that Spark calls for Kafka: plans epochs in the driver, reads ranges of offsets in lanes, and counts offsets without a row."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from headgate import files
from headgate.spark.connections.failing import failure
from headgate.spark.connections.kafka import Options, address, admin, asking_kafka, consumer
from headgate.spark.connections.patience import KafkaPatience
from headgate.spark.sources import levers
from headgate.spark.sources.declared import remembered
from headgate.spark.sources.decoding import Decoding, Format
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
    spark_offsets,
    within_limit,
)
from headgate.spark.sources.kafka_reading import Reading, Topics, bounds_of, highest, lost_text, partitions_of
from headgate.spark.sources.redis import SKIP

BEGUN = "kafka-begun.json"
"""File with the position at which the job began to read each partition."""
PLANNED = "kafka.json"
"""File with the position up to which each partition was planned."""
MISSING = "missing"
"""A folder with a file for each range in which a lane found fewer rows than offsets."""
ARRIVED = "arrived"
TIMESTAMP_TYPE = "timestampType"
"""Column of Spark's own Kafka source: 0 for the time of the producer, 1 for the time of the broker, -1 for none."""
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
"""Columns in addition to the columns of the value."""
VALUE = T.StructField("value", T.BinaryType())


# -- what is remembered


def marks_in(place: Path, file: str = PLANNED) -> dict[Partition, PartitionPosition]:
    """Return positions by partition; empty if there is no such file yet."""
    found = remembered(place / file, PartitionPosition, file == PLANNED)
    return {Partition.of(name): mark for name, mark in found.items()}


def remember(place: Path, marks: Mapping[Partition, PartitionPosition], file: str = PLANNED) -> None:
    """Store the planned offsets, for the counts of arrived and lost rows only: epochs use the offsets that Spark keeps."""
    files.replace(place / file, msgspec.json.encode(_named(marks)), durable=file == BEGUN)


def patience_in(place: Path) -> KafkaPatience:
    """Return the time limits of the service's settings."""
    return levers.read(place).patience.kafka


def _named(marks: Mapping[Partition, PartitionPosition]) -> dict[str, Any]:
    return {str(partition): msgspec.to_builtins(mark) for partition, mark in marks.items()}


def loss_text(lost: int, gaps: int) -> str:
    """Say what a partition lost, without the name of the partition."""
    parts = [lost_text(lost)] if lost else []
    if gaps:
        parts.append("its topic was deleted and created again" + ("" if gaps == 1 else f", {gaps} times"))
    return " and ".join(parts)


def _missing_files(place: Path) -> Iterator[tuple[Path, OffsetRange]]:
    for path in place.glob(f"{MISSING}/*/*/*@*"):
        if not path.name.endswith(files.PART):
            first, last = path.name.split("@")
            yield path, OffsetRange(Partition(path.parent.parent.name, int(path.parent.name)), int(first), int(last))


def uncounted(place: Path, marks: Mapping[Partition, PartitionPosition]) -> dict[Partition, tuple[int, int]]:
    """Return holes and lost rows that lanes found and that the positions do not include yet."""
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


# -- offsets of a consumer group


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A commit of offsets for a consumer group, possibly still without an answer of Kafka."""

    marks: dict[Partition, PartitionPosition]
    answer: Future[Any]

    @staticmethod
    def begun(
        options: Options, patience: KafkaPatience, group: str, marks: dict[Partition, PartitionPosition]
    ) -> GroupCommit:
        """Send a commit to Kafka without waiting for the answer."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        offsets = [TopicPartition(one.topic, one.number, mark.offset) for one, mark in marks.items()]
        asking = admin(options, patience, os.getpid()).alter_consumer_group_offsets
        answers = asking([ConsumerGroupTopicPartitions(group, offsets)], request_timeout=patience.answer_s)
        return GroupCommit(marks, answers[group])

    def is_answered(self) -> bool:
        return self.answer.done()

    def is_taken(self) -> bool:
        """Whether Kafka has taken all of these offsets."""
        if not self.answer.done() or self.answer.exception() is not None:
            return False
        return all(one.error is None for one in self.answer.result().topic_partitions)


# -- what Spark sees


class KafkaDataSource(DataSource):
    """Makes the readers of this source for Spark."""

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
        """End of each partition for Spark's trigger `availableNow`; empty for other triggers."""
        self.seen: dict[Partition, int] = {}
        """Last known end of each partition."""
        self.committed: dict[Partition, PartitionPosition] = {}
        """Positions that Kafka has accepted last for the group."""
        self.group_commit: GroupCommit | None = None
        """The last commit for the group; None before the first one."""
        self.partitions_known: list[Partition] = []
        self.discovered_s: float | None = None

    # -- in the driver

    def initialOffset(self) -> Offset:
        return _named(marks_in(self.place, BEGUN))

    def prepareForTriggerAvailableNow(self) -> None:
        with asking_kafka(self.kafka, self.operator):
            self.horizon = highest(self.kafka, self._patience, self._discovered([]))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan an epoch within the limits of the levers; Spark's `limit` is ignored."""
        before = self._marks(start)
        self._commit_for_group(before)
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
        """Divide the offsets of an epoch into equal shares, one for each lane."""
        ends = self._marks(end)
        begins = {one: self._marks(start).get(one, PartitionPosition(ends[one].begin or 0)) for one in ends}
        ranges = ranges_between(begins, ends)
        self._forget_missing(ranges)
        return share_out(ranges, levers.read(self.place).lanes)

    def _commit_for_group(self, done: Mapping[Partition, PartitionPosition]) -> None:
        """Commit the positions of finished epochs for the group. A failed commit does not end the job: only people use the group's lag.

        Spark calls `commit` only with the next epoch that has rows, so that the lag of an idle job would never be zero. Each call checks
        the previous commit, and commits again if Kafka did not accept it.
        """
        if not self.group:
            return
        from confluent_kafka import KafkaException

        if self.group_commit is not None and self.group_commit.is_taken():
            self.committed = self.group_commit.marks
        if (self.group_commit is None or self.group_commit.is_answered()) and done != self.committed:
            with suppress(KafkaException):
                self.group_commit = GroupCommit.begun(self.kafka, self._patience, self.group, dict(done))

    @property
    def _patience(self) -> KafkaPatience:
        return patience_in(self.place)

    def _marks(self, offset: Offset) -> dict[Partition, PartitionPosition]:
        taken_over = spark_offsets(offset)
        if taken_over is not None:
            return self._taken_over(taken_over)
        try:
            return {Partition.of(name): msgspec.convert(mark, PartitionPosition) for name, mark in offset.items()}
        except (msgspec.ValidationError, ValueError):
            sentence = f"the checkpoint has the offset {offset!r}, which is not of a Kafka source"
            raise failure(f"{sentence}; remove the job and submit it again", self.operator) from None

    def _taken_over(self, offsets: Mapping[Partition, int]) -> dict[Partition, PartitionPosition]:
        """Marks for the offsets of a query that Spark's own Kafka source read before; its rows count from where the job began."""
        begun = marks_in(self.place, BEGUN) if offsets else {}
        begins = {one: begun[one].offset if one in begun else 0 for one in offsets}
        return {one: PartitionPosition(at, rows=max(0, at - begins[one]), counted=at) for one, at in offsets.items()}

    def _discovered(self, known: Iterable[Partition]) -> list[Partition]:
        """Return the existing partitions and the known ones; the list of topics is refreshed every `discovery_s`."""
        now_s = time.monotonic()
        if self.discovered_s is None or now_s - self.discovered_s >= self._patience.discovery_s:
            self.partitions_known = partitions_of(self.kafka, self._patience, self.topics)
            self.discovered_s = now_s
        return sorted({*self.partitions_known, *known})

    def _news(self, before: dict[Partition, PartitionPosition]) -> list[UnreadPartition]:
        """Return partitions with unread or lost rows after these positions; add new partitions to `before`."""
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
            raise self._loss(one, loss_text(lost, gaps))
        if is_new:  # no epoch before has it: the range says itself where it begins
            begin = replace(begin, begin=begin.offset)
        high = bounds.high if gaps else min(bounds.high, self.horizon.get(one, bounds.high))
        if high <= begin.offset and not lost and not gaps:
            return UnreadPartition(one, mark, mark)
        return UnreadPartition.up_to(one, begin, high)

    def _loss(self, one: Partition, what: str) -> Exception:
        sentence = f'partition {one.number} of topic "{one.topic}" of Kafka at {address(self.kafka)}: {what}'
        return failure(f'{sentence}; set on_loss="skip" to go on with what is left', self.operator)

    # -- offsets without a row

    def _with_missing(self, before: Mapping[Partition, PartitionPosition]) -> dict[Partition, PartitionPosition]:
        """Add holes and losses that lanes have found to the positions; delete the files that earlier positions include."""
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
        """Delete the counts of ranges that are read again: the new read counts again."""
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
    """Return the end of an epoch, including what was not found before its begin."""
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
        own[TIMESTAMP_TYPE] = lambda: pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32())
    fields = [one for one in schema if one.name not in own]
    decoded = dict(zip((one.name for one in fields), decoding.columns(values, fields), strict=True)) if fields else {}
    arrays = [own[one.name]() if one.name in own else decoded[one.name] for one in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _micros(message: Any) -> int | None:
    kind, millis = message.timestamp()
    return millis * 1000 if kind else None
