"""Questions to Kafka about partitions and offsets, and the reader of ranges of offsets."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from headgate.spark.connections.failing import failure
from headgate.spark.connections.kafka import (
    COMMITTED,
    UNCOMMITTED,
    Options,
    address,
    admin,
    asking_kafka,
    heard,
    is_passing,
    isolation_of,
    kafka_failure,
)
from headgate.spark.connections.patience import KafkaPatience
from headgate.spark.sources.kafka_offsets import Bounds, OffsetRange, Partition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

PAGE_ROWS = 8192
"""Messages per Arrow batch of a lane."""
PAGE_BYTES = 16_000_000
"""Bytes of values at which a lane puts out a batch with fewer messages."""
WAIT_S = 0.1
"""Time in seconds that a lane waits for messages before it checks its time-out."""
PARTITION_EOF, GONE = -191, (-140, 1)
"""Codes of librdkafka for the end of a partition, and for a removed offset; the library itself is imported only when it is used."""
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read: topics by name, or all topics with names that match a pattern as a whole."""

    names: tuple[str, ...]
    pattern: str = ""
    numbers: tuple[tuple[str, int], ...] = ()
    """The partitions to read, as topic and number; empty: all partitions."""

    def partitions(self, found: Mapping[str, Any]) -> list[Partition]:
        """Return the existing partitions of these topics."""
        chosen = [topic for name, topic in sorted(found.items()) if self._has(name)]
        every = [Partition(topic.topic, number) for topic in chosen for number in sorted(topic.partitions)]
        return [one for one in every if not self.numbers or (one.topic, one.number) in self.numbers]

    def _has(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None if self.pattern else name in self.names


# -- questions


def partitions_of(options: Options, patience: KafkaPatience, topics: Topics) -> list[Partition]:
    """Return the partitions that exist now."""
    client = _client(options, patience)
    with heard(client):
        return topics.partitions(client.list_topics(timeout=patience.answer_s).topics)


def lowest(options: Options, patience: KafkaPatience, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the first existing offset of each partition."""
    return _listed(options, patience, dict.fromkeys(partitions, EARLIEST))


def highest(
    options: Options, patience: KafkaPatience, partitions: Iterable[Partition], isolation: str | None = None
) -> dict[Partition, int]:
    """The offset after the last row that can be read: readers of committed rows cannot read beyond an open transaction."""
    return _listed(options, patience, dict.fromkeys(partitions, LATEST), isolation)


def since(
    options: Options, patience: KafkaPatience, partitions: Sequence[Partition], at: datetime
) -> dict[Partition, int]:
    """Return the offset of the first row at this time or later for each partition; the end of the partition if there is no such row."""
    found = _listed(options, patience, {partition: round(at.timestamp() * 1000) for partition in partitions})
    ends = highest(options, patience, [partition for partition, offset in found.items() if offset < 0])
    return found | ends


def _listed(
    options: Options, patience: KafkaPatience, wanted: Mapping[Partition, str | int], isolation: str | None = None
) -> dict[Partition, int]:
    """Ask each broker once, for all of its partitions."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin._listoffsets import OffsetSpec

    if not wanted:
        return {}
    spec: Any = OffsetSpec
    specs = {EARLIEST: spec.earliest, LATEST: spec.latest}
    asked = {
        TopicPartition(one.topic, one.number): spec.for_timestamp(what) if isinstance(what, int) else specs[what]()
        for one, what in wanted.items()
    }
    levels = {COMMITTED: IsolationLevel.READ_COMMITTED, UNCOMMITTED: IsolationLevel.READ_UNCOMMITTED}
    level = levels[isolation or isolation_of(options)]
    futures = _client(options, patience).list_offsets(asked, isolation_level=level, request_timeout=patience.answer_s)
    return {Partition(one.topic, one.partition): int(future.result().offset) for one, future in futures.items()}


def _client(options: Options, patience: KafkaPatience) -> Any:
    return admin(options, patience, os.getpid())


# -- reading


@dataclass(slots=True)
class Reading:
    """Reads the ranges of one lane page by page, and counts rows and lost offsets. Owner: the lane."""

    consumer: Consumer
    options: Options
    patience: KafkaPatience
    operator: str
    on_lost: Callable[[Partition, str], None]
    """Called when offsets were removed; raises, unless the job skips lost rows."""
    rows: dict[Partition, int] = field(default_factory=dict)
    """Number of rows read, by partition."""
    lost: dict[Partition, int] = field(default_factory=dict)
    """Number of offsets that were removed, by partition."""
    _open: dict[tuple[str, int], OffsetRange] = field(default_factory=dict)
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    def pages(self, ranges: Sequence[OffsetRange]) -> Iterator[list[Message]]:
        """Yield all rows of these ranges; the rows of a partition are in order."""
        self._open = {(one.partition.topic, one.partition.number): one for one in ranges}
        self._next = {key: one.first for key, one in self._open.items()}
        page, size = list[Any](), 0
        try:
            self._assign()
            for messages in self._arriving():
                page += messages
                size += sum(map(len, messages))
                if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
                    yield page
                    page, size = [], 0
            if page:
                yield page
        finally:
            self.consumer.unassign()

    def _assign(self) -> None:
        from confluent_kafka import TopicPartition

        for topic in {topic for topic, _ in self._open}:
            _introduce(self.consumer, topic, self.patience.answer_s)
        self.consumer.assign([TopicPartition(*key, self._next[key]) for key in self._open])

    def _arriving(self) -> Iterator[list[Message]]:
        until_s = time.monotonic() + self.patience.answer_s
        while self._open:
            messages = self.consumer.consume(PAGE_ROWS, 0) or self.consumer.consume(1, WAIT_S)
            kept = [message for message in messages if self._is_wanted(message)]
            if messages:
                until_s = time.monotonic() + self.patience.answer_s
                self._close_finished()
            if kept:
                yield kept
            elif time.monotonic() > until_s:
                raise failure(f"Kafka at {address(self.options)} sent no rows: TimeoutError", self.operator)

    def _is_wanted(self, message: Any) -> bool:
        key = (message.topic(), message.partition())
        one = self._open.get(key)
        if one is None:
            self._refuse(message.error())
            return False
        if message.error() is not None:
            self._note(key, message)
            return False
        offset = message.offset()
        self._next[key] = offset + 1
        if offset >= one.last:
            return False
        self.rows[one.partition] = self.rows.get(one.partition, 0) + 1
        return True

    def _refuse(self, error: Any) -> None:
        """Raise an error of the whole client, unless it can pass: such an error ends in the time-out."""
        if error is not None and error.code() != PARTITION_EOF and not is_passing(error):
            raise kafka_failure(error, self.options, self.operator)

    def _close_finished(self) -> None:
        from confluent_kafka import TopicPartition

        done = [key for key, one in self._open.items() if self._next[key] >= one.last]
        for key in done:
            del self._open[key]
        if done and self._open:
            self.consumer.incremental_unassign([TopicPartition(*key) for key in done])

    def _note(self, key: tuple[str, int], message: Any) -> None:
        """Note the end of a partition, or skip offsets that were removed."""
        error = message.error()
        if error.code() == PARTITION_EOF:
            self._next[key] = max(self._next[key], message.offset())
        elif error.code() in GONE:
            self._skip_lost(key)
        else:
            self._refuse(error)

    def _skip_lost(self, key: tuple[str, int]) -> None:
        one, at = self._open[key], self._next[key]
        with asking_kafka(self.options, self.operator):
            low = lowest(self.options, self.patience, [one.partition])[one.partition]
            high = highest(self.options, self.patience, [one.partition])[one.partition]
        if low <= at <= high:
            told = f"Kafka at {address(self.options)} did not find offset {at} of {one.partition}: ConnectionError"
            raise failure(told, self.operator)
        gone = one.last - at if low <= at else min(low, one.last) - at
        self.on_lost(one.partition, _loss_sentence(gone, low <= at))
        self.lost[one.partition] = self.lost.get(one.partition, 0) + gone
        self._next[key] = at + gone
        if self._next[key] < one.last:
            self._assign()


@cache
def _introduce(consumer: Consumer, topic: str, answer_s: float) -> None:
    """Ask for the assigned topics: a consumer would otherwise find an unknown topic only after up to a second."""
    consumer.list_topics(topic, timeout=answer_s)


def _loss_sentence(lost: int, began_again: bool) -> str:
    return "it was deleted and created again" if began_again else lost_text(lost)


def lost_text(lost: int) -> str:
    """Say how many rows retention has removed.

    >>> lost_text(1)
    '1 row was removed unread'
    """
    return f"{lost:,} {'row was' if lost == 1 else 'rows were'} removed unread"


def bounds_of(options: Options, patience: KafkaPatience, highs: Mapping[Partition, int]) -> dict[Partition, Bounds]:
    """Return the bounds of partitions: ask Kafka for the first offset of each partition in addition to `highs`."""
    lows = lowest(options, patience, highs)
    return {partition: Bounds(lows[partition], high) for partition, high in highs.items()}
