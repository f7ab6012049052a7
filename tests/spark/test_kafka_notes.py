"""The notes of a Kafka sink: what a lane believes of them while transactions of other sinks are open, and which starts it refuses."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from confluent_kafka import Producer

from headgate.spark.connections.kafka import COMMITTED
from headgate.spark.connections.patience import KafkaPatience, Patience
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.reasons import FailureKind, cause_of
from headgate.spark.sinks import kafka as to_kafka
from headgate.spark.sinks.kafka import EPOCHS, NOTES, KafkaTopic, Turn, WriterRecord, send_once, send_rest
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.spark.sources import kafka_reading
from headgate.spark.sources.kafka_offsets import Partition
from tests.kafka import new_topic, read_all

PATIENCE = Patience(kafka=KafkaPatience(answer_s=20.0))
module = importlib.import_module("headgate.spark.sinks.kafka")
LANES: dict[str, Callable[..., Any]] = {"exactly-once": send_once, "read-back": send_rest}


@dataclass(frozen=True, slots=True)
class Writer:
    """One start of a job, which calls the lane of its sink as Spark would."""

    sink: KafkaTopic
    life: str
    start: int = 1

    def write(self, epoch: int, looked: int = 0) -> int:
        """Writes the rows 0 to 9, and returns up to which offset the lane read the notes."""
        turn = Turn(f"{self.life}/out", Writing(JobStart(self.life, self.start), PATIENCE, "out"), epoch, looked)
        rows = [{"topic": self.sink.topic, "key": b"k", "value": b"%d" % row, "headers": None} for row in range(10)]
        (done,) = LANES[self.sink.delivery](self.sink, turn, iter([pa.RecordBatch.from_pylist(rows)]))
        return int(done.column("looked")[0].as_py())

    def written(self) -> set[int]:
        """How often each row is in the topic."""
        servers = dict(self.sink.options)["bootstrap.servers"]
        found = Counter(row.value() for row in read_all(servers, self.sink.topic))
        assert len(found) == 10
        return set(found.values())


@pytest.fixture(params=LANES)
def writer(request: pytest.FixtureRequest, kafka_servers: str) -> Writer:
    """The first start of a job, on a broker with the topic of notes."""
    client = Producer({"bootstrap.servers": kafka_servers, "log_level": 2})
    client.produce(EPOCHS, b'{"start": 1, "epoch": 1}', b"another/out", partition=0)
    assert client.flush(30) == 0
    return Writer(to_kafka(new_topic("alerts"), servers=kafka_servers, delivery=request.param), uuid4().hex)


class OpenTransaction:
    """The transaction of another sink, which hides every later note from readers of committed rows for so many looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, begun: int, looks: int) -> None:
        self.begun, self.looks, self.ask = begun, looks, kafka_reading._listed
        monkeypatch.setattr(kafka_reading, "_listed", self.listed)

    def listed(
        self, options: Any, patience: KafkaPatience, wanted: Mapping[Partition, Any], isolation: str | None = None
    ) -> dict[Partition, int]:
        found = self.ask(options, patience, wanted, isolation)
        is_hidden = isolation is None and wanted == {NOTES: kafka_reading.LATEST} and self.looks > 0
        self.looks -= is_hidden
        return {one: min(at, self.begun) if is_hidden else at for one, at in found.items()}


def test_a_note_behind_an_open_transaction_of_another_sink_is_waited_for(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = writer.write(0)
    other = OpenTransaction(monkeypatch, begun, looks=3)
    replace(writer, start=2).write(0)
    assert (writer.written(), other.looks) == ({1}, 0)


def test_an_open_transaction_that_does_not_end_is_an_outage(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = writer.write(0)
    OpenTransaction(monkeypatch, begun, looks=1_000_000)
    ticks = itertools.count(step=PATIENCE.kafka.answer_s / 2)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda wait_s: None))
    with pytest.raises(LaneError, match=r'operator "out": Kafka at .* did not end a transaction') as found:
        replace(writer, start=2).write(0)
    assert cause_of(found.value) is FailureKind.TRANSIENT
    assert writer.written() == {1}


def test_an_open_transaction_of_another_sink_does_not_hold_up_a_later_epoch(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = writer.write(0)
    other = OpenTransaction(monkeypatch, looked, looks=1_000_000)
    writer.write(1, looked)
    replace(writer, start=2).write(2)
    other.looks = 0
    assert writer.written() == {3}


def test_a_start_that_has_written_is_refused_once_a_newer_one_has_written_too(writer: Writer) -> None:
    looked = writer.write(0)
    newer = replace(writer, start=2)
    newer.write(1)
    with pytest.raises(LaneError, match="by a newer start of this job than number 1"):
        writer.write(1, looked)
    newer.write(2, looked)
    assert writer.written() == {3}


def test_the_note_of_an_aborted_transaction_is_not_believed(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = WriterRecord(1, 0)
    client = Producer({"bootstrap.servers": dict(writer.sink.options)["bootstrap.servers"], "log_level": 2})
    client.produce(EPOCHS, msgspec.json.encode(aborted), f"{writer.life}/out".encode(), partition=0)
    assert client.flush(30) == 0
    read = module.notes_of

    def notes_of(*given: Any) -> dict[int, WriterRecord]:
        """The mock broker shows rows of aborted transactions to all readers."""
        found: dict[int, WriterRecord] = read(*given)
        return {at: note for at, note in found.items() if given[-1] != COMMITTED or note != aborted}

    monkeypatch.setattr(module, "notes_of", notes_of)
    writer.write(0)
    assert writer.written() == {1}
