"""Kafka as a sink: each row exactly once for readers of committed rows, or at least once.

Exactly once: one lane writes all rows of an epoch in one transaction, together with a note that the epoch is written. The note is a record
in the topic `headgate-epochs`, so that Kafka has both rows and note or neither. Each epoch reads the notes before it writes: an epoch
that Kafka has, but Spark has not committed, is not written again, and a start that finds the note of a newer start writes no more. The
lane first takes over the transactional id, which ends an open transaction of another start.

Exactly once without transactions: a note with the ends of all partitions is written before the rows of an epoch, and a note without ends
after the rows. A start that finds the first note, but not the second, reads back the rows written since, and writes the missing rows. The
topic must have no other writer.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.quantities import choice
from headgate.errors import GraphError
from headgate.spark.connections.extras import require
from headgate.spark.connections.failing import failure
from headgate.spark.connections.kafka import (
    COMMITTED,
    TOPIC,
    UNCOMMITTED,
    Options,
    address,
    admin,
    asking_kafka,
    checked_options,
    consumer,
    is_fenced,
    kafka_failure,
    producer,
)
from headgate.spark.connections.patience import KafkaPatience
from headgate.spark.quoting import column_of
from headgate.spark.sinks.writing import JobStart, Writing, writing_of
from headgate.spark.sources.kafka_offsets import OffsetRange, Partition
from headgate.spark.sources.kafka_reading import Reading, Topics, highest, lowest, partitions_of

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame

EPOCHS = "headgate-epochs"
"""The compacted topic, with one partition, that holds the last epoch of each sink."""
NOTES = Partition(EPOCHS, 0)
CREATE_S = 5.0
"""Time limit in seconds to create that topic; if the sink may not create it, the first record creates it."""
LOOK_S = 0.05
"""Interval at which a lane checks whether a transaction has ended."""
FULL_S = 0.05
"""Pause of a lane in seconds while librdkafka's queue is full."""
LONGEST_TRANSACTION_S = 900.0
"""Longest transaction in seconds that brokers accept by default."""
VALUE, KEY, HEADERS, TO = "value", "key", "headers", "topic"


class Delivery(StrEnum):
    """How often Kafka has a row after a crash."""

    EXACTLY_ONCE = "exactly-once"
    READ_BACK = "read-back"
    """Exactly once on brokers without transactions, if the topic has no other writer."""
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """The note of a sink in Kafka: its newest start and its last epoch."""

    start: int = 0
    epoch: int = -1
    begun: dict[str, int] | None = None
    """End of each partition before the rows of this epoch; None if all rows of the epoch are in Kafka."""


@dataclass(frozen=True, slots=True)
class LastEpoch:
    """The last epoch that a writer has written."""

    start: JobStart
    epoch: int
    looked: int
    """Offset up to which the lane of this epoch has read the notes."""


_written: dict[str, LastEpoch] = {}
"""The last epoch of each writer of this process. Owner: the thread of the job's query."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A sink that writes every row to a Kafka topic."""

    topic: str
    options: Options = field(repr=False)
    key: str | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    name: str | None = None
    reads_once: bool = field(default=True, init=False, repr=False)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        writing = writing_of(rows)
        messages = self._messages(rows)
        if self.delivery is Delivery.AT_LEAST_ONCE:
            messages.mapInArrow(partial(send, self, writing), "rows long").collect()
            return
        writer = f"{writing.start.life}/{self.name or writing.sink}"
        last = _written.pop(writer, None)  # a failed epoch may be in Kafka nevertheless
        goes_on = last is not None and last.start == writing.start and last.epoch < epoch
        turn = Turn(writer, writing, epoch, last.looked if last is not None and goes_on else 0)
        if not turn.looked:
            with asking_kafka(self.options):
                create_notes(self.options, writing.patience.kafka)
        lane = send_rest if self.delivery is Delivery.READ_BACK else send_once
        found = messages.repartition(1).mapInArrow(partial(lane, self, turn), "rows long, looked long").collect()
        _written[writer] = LastEpoch(writing.start, epoch, max((row.looked for row in found), default=turn.looked))

    def _messages(self, rows: DataFrame) -> DataFrame:
        """Select the columns `topic`, `key`, `value` and `headers`; rows without a column `value` become JSON."""
        kinds = {column.name: column.dataType for column in rows.schema.fields}
        key = self.key or (KEY if KEY in kinds else None)
        if key is not None and key not in kinds:
            raise GraphError(f'the key of the Kafka sink is "{key}", which is none of the columns: {", ".join(kinds)}')
        is_written_out = VALUE in kinds
        value = F.col(VALUE) if is_written_out else F.to_json(F.struct(*map(column_of, rows.columns)))
        headers = F.col(HEADERS) if is_written_out and HEADERS in kinds else F.lit(None)
        named = F.lit(None) if key is None else column_of(key)
        if key is not None and not isinstance(kinds[key], T.BinaryType):
            named = named.cast("string")
        columns = {TO: F.lit(self.topic), KEY: named.cast("binary"), VALUE: value.cast("binary"), HEADERS: headers}
        kept = {name: column.cast(HEADERS_TYPE) if name == HEADERS else column for name, column in columns.items()}
        return rows.select(*(column.alias(name) for name, column in kept.items()))

    def too_late(self, writing: Writing) -> str:
        return writing.too_late(f'topic "{self.topic}" of Kafka at {address(self.options)}')


HEADERS_TYPE = "array<struct<key: string, value: binary>>"


def kafka(
    topic: str,
    *,
    servers: str,
    key: str | None = None,
    delivery: str = Delivery.EXACTLY_ONCE,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> KafkaTopic:
    """Writes every row to a topic: its column `value`, or all of its columns as JSON.

    `job.sink("alerts", sinks.kafka("alerts", servers="host:9092", key="user"), large)`

    Readers with `isolation.level=read_committed` see each row exactly once. On brokers without transactions, `delivery="read-back"` does
    so if the topic has no other writer. `delivery="at-least-once"` repeats rows after a crash. Kafka notes the epochs of each sink
    operator by its name; with `name`, the operator can be renamed while its job goes on.
    """
    require("kafka", "a Kafka sink")
    if not isinstance(topic, str) or TOPIC.fullmatch(topic) is None:
        raise GraphError(f'a Kafka sink writes to {topic!r}; name a topic, such as kafka("alerts", ...)')
    wanted = Delivery(choice(delivery, "delivery of a Kafka sink", tuple(Delivery), GraphError))
    return KafkaTopic(topic, checked_options(servers, options), key, wanted, name)


# -- in a lane


@dataclass(frozen=True, slots=True)
class Turn:
    """One epoch of one writer."""

    writer: str
    writing: Writing
    epoch: int
    looked: int = 0
    """Offset up to which this start read the notes before its last epoch and found no later epoch; 0 if it has not read any."""


def send(sink: KafkaTopic, writing: Writing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one lane; all rows are in Kafka when the lane ends."""
    with asking_kafka(sink.options, writing.sink):
        sender = Sender.of(sink, writing)
        rows = sum(_produce(sender.client, batch, sender.note_error) for batch in batches)
        sender.flush()
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


@dataclass(slots=True)
class Sender:
    """A producer without transactions that keeps its errors until it is flushed. Owner: the lane."""

    sink: KafkaTopic
    writing: Writing
    client: Producer
    errors: list[Any] = field(default_factory=list)

    @staticmethod
    def of(sink: KafkaTopic, writing: Writing, **more: str) -> Sender:
        only_errors: dict[str, str | bool] = {"delivery.report.only.error": True}
        return Sender(sink, writing, producer(sink.options, writing.patience.kafka, **only_errors, **more))

    def note_error(self, error: Any, message: Any) -> None:
        self.errors.append(error)

    def flush(self) -> None:
        """Wait until all rows are in Kafka; raise if Kafka does not take a row."""
        options, operator = self.sink.options, self.writing.sink
        left = self.client.flush(self.writing.patience.kafka.answer_s)
        if self.errors:
            raise kafka_failure(self.errors[0], options, operator)
        if left:
            raise failure(f"Kafka at {address(options)} did not take {left:,} rows: TimeoutError", operator)

    def write_note(self, writer: str, note: WriterRecord) -> None:
        """Write a note and wait until it is in Kafka."""
        self.client.produce(
            EPOCHS, msgspec.json.encode(note), writer.encode(), partition=0, on_delivery=self.note_error
        )
        self.flush()


def send_once(sink: KafkaTopic, turn: Turn, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write all rows of an epoch in one transaction, unless Kafka has the epoch."""
    patience, operator = turn.writing.patience.kafka, turn.writing.sink
    with asking_kafka(sink.options, operator):
        client = producer(sink.options, patience, **_transactional(turn.writer, patience))
        try:
            client.init_transactions(
                patience.answer_s
            )  # the transaction of an earlier producer is committed or aborted now
            found = look(sink, turn)
            rows = 0 if found.note.epoch >= turn.epoch else _transact(client, sink, turn, batches)
        except _kafka_exception() as error:
            if is_fenced(error.args[0]):
                raise failure(sink.too_late(turn.writing), operator) from error
            raise
    for _ in batches:  # Kafka has the epoch: its rows are only counted
        pass
    yield pa.RecordBatch.from_pydict({"rows": [rows], "looked": [found.end]})


def _transact(client: Producer, sink: KafkaTopic, turn: Turn, batches: Iterator[pa.RecordBatch]) -> int:
    note = WriterRecord(turn.writing.start.number, turn.epoch)
    client.begin_transaction()
    try:
        rows = sum(_produce(client, batch) for batch in batches)
        client.produce(EPOCHS, msgspec.json.encode(note), turn.writer.encode(), partition=0)
        client.commit_transaction(turn.writing.patience.kafka.answer_s)
    except BaseException:
        with suppress(Exception):  # Kafka aborts the transaction after a while, or when the writer returns
            client.abort_transaction(turn.writing.patience.kafka.answer_s)
        raise
    return rows


def _produce(client: Producer, batch: pa.RecordBatch, on_error: Any = None) -> int:
    columns = (batch.column(name).to_pylist() for name in (TO, KEY, VALUE, HEADERS))
    for topic, key, value, headers in zip(*columns, strict=True):
        named = None if headers is None else [(one["key"], one["value"]) for one in headers]
        while True:
            try:
                client.produce(topic, value, key, on_delivery=on_error, headers=named)
                break
            except BufferError:
                client.poll(FULL_S)
    client.poll(0)
    return int(batch.num_rows)


def _transactional(writer: str, patience: KafkaPatience) -> dict[str, str]:
    timeout_s = min(LONGEST_TRANSACTION_S, max(60.0, patience.answer_s))
    delivery_s = min(timeout_s, patience.answer_s)
    return {
        "transactional.id": f"headgate/{writer}",
        "transaction.timeout.ms": str(round(timeout_s * 1000)),
        "delivery.timeout.ms": str(round(delivery_s * 1000)),
    }


def _kafka_exception() -> Any:
    from confluent_kafka import KafkaException

    return KafkaException


# -- without transactions

ONE_ATTEMPT = {"enable.idempotence": "false", "acks": "all", "message.send.max.retries": "0"}
"""Producer options for brokers without transactions: a resend could duplicate rows, so failed rows are read back instead."""


def send_rest(sink: KafkaTopic, turn: Turn, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of an epoch that Kafka does not have."""
    rows = 0
    with asking_kafka(sink.options, turn.writing.sink):
        found = look(sink, turn)
        note = found.note
        if note.epoch < turn.epoch or (note.epoch == turn.epoch and note.begun is not None):
            rows = _send_rest(sink, turn, note, batches)
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"rows": [rows], "looked": [found.end]})


def _send_rest(sink: KafkaTopic, turn: Turn, note: WriterRecord, batches: Iterator[pa.RecordBatch]) -> int:
    start, patience = turn.writing.start.number, turn.writing.patience.kafka
    sender = Sender.of(sink, turn.writing, **ONE_ATTEMPT)
    begun = note.begun if note.epoch == turn.epoch else None
    there = Counter[tuple[bytes | None, bytes | None]]()
    if begun is None:
        ends = highest(sink.options, patience, partitions_of(sink.options, patience, Topics((sink.topic,))))
        begun = {str(one): high for one, high in ends.items()}
    else:
        there = _written_since(sink, patience, begun)
    sender.write_note(turn.writer, WriterRecord(start, turn.epoch, begun))
    rows = sum(_produce(sender.client, _rest(batch, there), sender.note_error) for batch in batches)
    sender.flush()
    sender.write_note(turn.writer, WriterRecord(start, turn.epoch))
    return rows


def _written_since(
    sink: KafkaTopic, patience: KafkaPatience, begun: Mapping[str, int]
) -> Counter[tuple[bytes | None, bytes | None]]:
    """Count the keys and values after these offsets; a partition without an offset is new and read from its beginning."""
    ends = highest(sink.options, patience, partitions_of(sink.options, patience, Topics((sink.topic,))))
    ranges = [OffsetRange(one, begun.get(str(one), 0), high) for one, high in ends.items()]
    client = consumer(sink.options, patience, EPOCHS, os.getpid())
    reading = Reading(client, sink.options, patience, "", lambda *_: None)
    pages = reading.pages([one for one in ranges if one.rows > 0])
    return Counter((message.key(), message.value()) for page in pages for message in page)


def _rest(batch: pa.RecordBatch, there: Counter[tuple[bytes | None, bytes | None]]) -> pa.RecordBatch:
    """Return the rows that Kafka does not have; each row in Kafka stands for one equal row."""
    if not there:
        return batch
    missing = []
    for row in zip(batch.column(KEY).to_pylist(), batch.column(VALUE).to_pylist(), strict=True):
        found = there[row] > 0
        there[row] -= found
        missing.append(not found)
    return batch.filter(pa.array(missing))


# -- notes


def create_notes(options: Options, patience: KafkaPatience) -> None:
    """Create the topic of notes if there is none; compaction keeps the last note of each writer."""
    from confluent_kafka.cimpl import NewTopic

    client = admin(options, patience, os.getpid())
    if EPOCHS in client.list_topics(timeout=patience.answer_s).topics:
        return
    new = NewTopic(EPOCHS, 1, config={"cleanup.policy": "compact"})
    for future in client.create_topics([new], request_timeout=CREATE_S).values():
        with suppress(Exception):  # another sink was faster, or the broker creates topics itself
            future.result(CREATE_S)


@dataclass(frozen=True, slots=True)
class Look:
    """The result of reading the topic of notes."""

    note: WriterRecord
    """The last committed note of this epoch or of a later one."""
    end: int
    """Offset up to which the lane has read."""


def look(sink: KafkaTopic, turn: Turn) -> Look:
    """What Kafka knows of this epoch, unless a newer start has written.

    Notes of open and of aborted transactions are read too: they prove a newer start as well. Only if one of them is of this epoch, the
    lane waits until Kafka tells which ones are committed: an open transaction of another sink hides all notes after it until it ends.
    """
    options, patience, start = sink.options, turn.writing.patience.kafka, turn.writing.start.number
    end = highest(options, patience, [NOTES], UNCOMMITTED)[NOTES]
    first = turn.looked if 0 < turn.looked <= end else lowest(options, patience, [NOTES])[NOTES]
    found = notes_of(options, patience, turn.writer, (first, end), UNCOMMITTED)
    if any(note.start > start for note in found.values()):
        raise failure(sink.too_late(turn.writing), turn.writing.sink)
    doubtful = [offset for offset, note in found.items() if note.epoch >= turn.epoch]
    if not doubtful:
        return Look(WriterRecord(), end)
    until = doubtful[-1] + 1
    _await_committed(sink, turn, until)
    certain = notes_of(options, patience, turn.writer, (doubtful[0], until), COMMITTED)
    return Look(certain[max(certain)] if certain else WriterRecord(), end)


def notes_of(
    options: Options, patience: KafkaPatience, writer: str, between: tuple[int, int], isolation: str
) -> dict[int, WriterRecord]:
    """Return the notes of a writer between these offsets, by offset."""
    first, end = between
    if first >= end:
        return {}
    client = consumer(options, patience, EPOCHS, os.getpid(), isolation)
    reading = Reading(client, options, patience, "", lambda *_: None)
    messages: Iterator[Any] = (one for page in reading.pages([OffsetRange(NOTES, first, end)]) for one in page)
    own = (one for one in messages if one.key() == writer.encode())
    return {one.offset(): msgspec.json.decode(one.value(), type=WriterRecord) for one in own}


def _await_committed(sink: KafkaTopic, turn: Turn, until: int) -> None:
    """Wait until readers of committed rows can read up to this offset; raise if they cannot in time."""
    options, patience = sink.options, turn.writing.patience.kafka
    until_s = time.monotonic() + patience.answer_s
    while highest(options, patience, [NOTES])[NOTES] < until:
        if time.monotonic() > until_s:
            told = f'Kafka at {address(options)} did not end a transaction in topic "{EPOCHS}": TimeoutError'
            raise failure(f"{told} after {patience.answer_s:g} s", turn.writing.sink)
        time.sleep(LOOK_S)
