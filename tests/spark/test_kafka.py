"""Kafka as a source, with a broker that speaks its protocol: what is planned, shared out, decoded, lost and kept secret."""

from __future__ import annotations

import io
import json
import struct
import sys
import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')
pytest.importorskip("fastavro", reason='tests of Kafka need pip install "headgate[kafka]"')

import fastavro
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from headgate.errors import EngineError, GraphError
from headgate.spark import sinks, sources
from headgate.spark.connections.kafka import checked_options, resolved
from headgate.spark.connections.patience import KafkaPatience
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.sinks import kafka as to_kafka
from headgate.spark.sources import kafka as from_kafka
from headgate.spark.sources import kafka_reader, kafka_reading
from headgate.spark.sources.decoding import Decoding, Format
from headgate.spark.sources.kafka_offsets import OffsetRange, Partition, share_out
from headgate.spark.sources.kafka_reader import OWN
from headgate.topology import Source
from tests.examples import examples
from tests.kafka import WITHIN_S, Epochs, committed, new_topic, order, write

JSON = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("user", T.StringType()),
        T.StructField("amount", T.DoubleType()),
        *OWN,
    ]
)
SCHEMA = "id long, user string, amount double"
AVRO = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "id", "type": "long"}, {"name": "user", "type": "string"}],
}


def offsets(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows]


# -- rows


def test_is_a_source(kafka_servers: str) -> None:
    source = from_kafka("orders", servers=kafka_servers)
    assert isinstance(source, Source)
    assert (source.arrival, source.elastic) == ("arrived", True)


def test_a_message_arrives_with_all_of_its_columns(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(
        kafka_servers, topic, [b"seven"], key=b"k", headers=[("trace", b"1"), ("none", None)], timestamp=1700000000123
    )
    (row,) = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path).rows()
    assert (row["key"], row["value"]) == (b"k", b"seven")
    assert row["headers"] == [{"key": "trace", "value": b"1"}, {"key": "none", "value": None}]
    assert (row["topic"], row["partition"], row["offset"]) == (topic, 0, 0)
    assert row["arrived"] == row["timestamp"] == datetime.fromtimestamp(1700000000.123, UTC)


def test_json_becomes_the_columns_of_the_schema(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    odd = [b'{"id": 8,\n "user": "x", "more": [1]}', b"broken", None, b'{"id": "nine", "user": 9, "amount": 9}']
    write(kafka_servers, topic, [order(7), *odd])
    rows = Epochs(from_kafka(topic, servers=kafka_servers, schema=SCHEMA), tmp_path, JSON).rows()
    assert [(row["id"], row["user"], row["amount"]) for row in rows] == [
        (7, "user-0", 3.5),
        (8, "x", None),
        (None, None, None),
        (None, None, None),
        (None, "9", 9.0),
    ]


def test_dates_times_and_decimals_are_parsed() -> None:
    schema = [
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
    ]
    value = b'{"day": "2026-05-06", "at": "2026-05-06T07:08:09Z", "price": "12.34"}'
    day, at, price = Decoding(Format.JSON).columns([value, b'{"day": "May"}'], schema)
    assert day.to_pylist() == [datetime(2026, 5, 6).date(), None]
    assert at.to_pylist() == [datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC), None]
    assert [str(one) for one in price.to_pylist()] == ["12.34", "None"]


def test_avro_becomes_the_columns_of_the_schema() -> None:
    decoding = from_kafka(
        "orders", servers="x", schema="id long, user string", format="avro", avro_schema=AVRO
    ).decoding
    written = io.BytesIO()
    fastavro.schemaless_writer(written, AVRO, {"id": 7, "user": "Zoë"})
    fields = [pa.field("id", pa.int64()), pa.field("user", pa.string())]
    identity, user = decoding.columns([written.getvalue(), b"\x07", None], fields)
    assert (identity.to_pylist(), user.to_pylist()) == ([7, None, None], ["Zoë", None, None])


def test_avro_asks_the_registry_for_its_schema(schema_registry: str) -> None:
    source = from_kafka("orders", servers="x", schema="id long, user string", format="avro", registry=schema_registry)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, AVRO, {"id": 7, "user": "Zoë"})
    framed = struct.pack(">bI", 0, 12) + written.getvalue()
    (identity,) = source.decoding.columns([framed, b"no frame"], [pa.field("id", pa.int64())])
    assert identity.to_pylist() == [7, None]


# -- epochs


def test_partitions_feed_more_lanes_than_there_are(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(1000)), partitions=2)
    epochs = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path)
    epochs.levers(lanes=8)
    lanes = epochs.read(epochs.plan())
    assert [len(lane) for lane in lanes] == [125] * 8
    assert sorted(json.loads(row["value"])["id"] for lane in lanes for row in lane) == list(range(1000))


def test_lanes_change_from_one_epoch_to_the_next(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    epochs = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path)
    for lanes in (1, 3, 2):
        epochs.levers(lanes=lanes)
        write(kafka_servers, topic, map(order, range(60)), partitions=2)
        assert [len(lane) for lane in epochs.read(epochs.plan())] == [60 // lanes] * lanes


@settings(examples(50))
@given(rows=st.lists(st.integers(0, 50), min_size=1, max_size=6), lanes=st.integers(1, 12))
def test_shares_are_equal_and_lose_and_double_nothing(rows: list[int], lanes: int) -> None:
    ranges = [OffsetRange(Partition("t", number), 5, 5 + count) for number, count in enumerate(rows)]
    shares = share_out(ranges, lanes)
    read = [(part.partition, at) for share in shares for part in share.ranges for at in range(part.first, part.last)]
    assert read == [(one.partition, at) for one in ranges for at in range(one.first, one.last)]
    sizes = [sum(part.rows for part in share.ranges) for share in shares]
    assert len(sizes) == min(lanes, sum(rows)) and (not sizes or max(sizes) - min(sizes) <= 1)


def test_an_epoch_reads_no_more_than_its_limit(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(100)), partitions=2)
    write(kafka_servers, topic, map(order, range(300)))
    epochs = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path)
    epochs.levers(read_limit=150)
    sizes = []
    while rows := epochs.rows():
        sizes.append(len(rows))
    assert sizes == [150, 150, 100]


def test_an_epoch_that_is_read_again_has_the_same_rows(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(100)), partitions=2)
    epochs = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path)
    before = epochs.rows()
    write(kafka_servers, topic, map(order, range(100)), partitions=2)
    epochs.levers(lanes=3)
    epochs.restarted()
    again = [row for lane in epochs.read(epochs.again()) for row in lane]
    assert sorted(offsets(again)) == sorted(offsets(before))


def test_offsets_of_a_finished_epoch_are_committed_for_the_group(kafka_servers: str, tmp_path: Path) -> None:
    topic, group = new_topic(), new_topic("group")
    write(kafka_servers, topic, map(order, range(10)), partitions=2)
    epochs = Epochs(from_kafka(topic, servers=kafka_servers, group=group), tmp_path)
    epochs.rows()
    assert committed(kafka_servers, topic, group, 2) != [5, 5]
    assert epochs.plan() == []
    until_s = time.monotonic() + WITHIN_S
    while (found := committed(kafka_servers, topic, group, 2)) != [5, 5]:
        assert time.monotonic() < until_s, found


@pytest.mark.parametrize("refused", ["request", "partition"])
def test_offsets_that_kafka_did_not_take_are_committed_again_while_the_job_is_idle(
    kafka_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    topic, group = new_topic(), new_topic("group")
    write(kafka_servers, topic, map(order, range(10)), partitions=2)
    epochs = Epochs(from_kafka(topic, servers=kafka_servers, group=group), tmp_path)
    epochs.rows()
    begun = epochs.reader.group_commit
    assert begun is not None and begun.answer.result(WITHIN_S)
    answer: Future[Any] = Future()
    if refused == "request":
        answer.set_exception(KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)))
    else:
        one = SimpleNamespace(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
        answer.set_result(SimpleNamespace(topic_partitions=[one]))
    with monkeypatch.context() as patch:
        broker = SimpleNamespace(alter_consumer_group_offsets=lambda *_, **__: {group: answer})
        patch.setattr(kafka_reader, "admin", lambda *_: broker)
        assert epochs.plan() == []
    assert committed(kafka_servers, topic, group, 2) == [0, 0]
    until_s = time.monotonic() + WITHIN_S
    while (found := committed(kafka_servers, topic, group, 2)) != [5, 5]:
        assert epochs.plan() == [] and time.monotonic() < until_s, found


def test_new_topics_of_a_pattern_are_found(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic("clicks")
    epochs = Epochs(from_kafka(pattern=f"{topic}-.*", servers=kafka_servers, start="latest"), tmp_path)
    assert epochs.plan() == []
    write(kafka_servers, f"{topic}-east", map(order, range(10)))
    assert len(epochs.rows()) == 10
    write(kafka_servers, f"{topic}-west", map(order, range(5)))
    write(kafka_servers, f"{topic}-east", map(order, range(3)))
    assert sorted(row["topic"] for row in epochs.rows()) == [f"{topic}-east"] * 3 + [f"{topic}-west"] * 5
    assert epochs.backlog == 18


def test_partitions_are_looked_for_at_an_interval(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic("clicks")
    epochs = Epochs(from_kafka(pattern=f"{topic}-.*", servers=kafka_servers), tmp_path)
    epochs.plan()
    assert epochs.reader.discovered_s is not None
    (epochs.place / "levers.json").unlink()  # the defaults apply: every 30 s
    assert KafkaPatience().discovery_s == 30.0
    write(kafka_servers, f"{topic}-east", [b"x"])
    assert epochs.plan() == []
    epochs.reader.discovered_s -= 31.0
    assert len(epochs.rows()) == 1


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), ("latest", 10), (datetime.now(UTC) + timedelta(days=1), 10), ({"T": {0: 7}}, 7)],
)
def test_a_new_job_begins_where_its_author_wants(kafka_servers: str, tmp_path: Path, start: Any, first: int) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(10)))
    given_start = {topic: start["T"]} if isinstance(start, dict) else start
    source = from_kafka(topic, servers=kafka_servers, start=given_start)
    epochs = Epochs(source, tmp_path)
    write(kafka_servers, topic, [b"last"])
    assert offsets(epochs.rows()) == [(0, at) for at in range(first, 11)]


def test_a_new_job_begins_with_the_first_row_of_a_time(
    kafka_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mock broker finds no offset by time, so the test answers such questions."""
    topic, begin = new_topic(), datetime(2026, 5, 6, 7, tzinfo=UTC)
    for minute in range(6):
        at_ms = round((begin + timedelta(minutes=minute)).timestamp() * 1000)
        write(kafka_servers, topic, [order(minute)], timestamp=at_ms)
    ask, first_ms = kafka_reading._listed, round(begin.timestamp() * 1000)

    def listed(options: Any, patience: Any, wanted: dict[Partition, Any], *more: Any) -> dict[Partition, int]:
        times = {one: at for one, at in wanted.items() if isinstance(at, int)}
        rest = {one: at for one, at in wanted.items() if one not in times}
        by_time = {one: -(-(at - first_ms) // 60_000) if one.number == 0 else -1 for one, at in times.items()}
        return by_time | ask(options, patience, rest, *more)

    monkeypatch.setattr(kafka_reading, "_listed", listed)
    source = from_kafka(topic, servers=kafka_servers, start="2026-05-06T07:03:30+00:00")
    rows = Epochs(source, tmp_path).rows()
    assert [(row["partition"], row["offset"], row["timestamp"].minute) for row in rows] == [(0, 4, 4), (0, 5, 5)]


# -- backlog


def test_what_has_arrived_is_what_was_read_and_what_waits(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(50)), partitions=2)
    epochs = Epochs(from_kafka(topic, servers=kafka_servers, start="latest"), tmp_path)
    write(kafka_servers, topic, map(order, range(30)), partitions=2)
    assert epochs.backlog == 30
    assert len(epochs.rows()) == 30
    write(kafka_servers, topic, map(order, range(12)), partitions=2)
    assert epochs.backlog == 42
    assert epochs.reader.reportLatestOffset() == {f"{topic}/{n}": {"offset": 40 if n < 2 else 0} for n in range(4)}


def test_offsets_without_rows_are_no_backlog(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    client = Producer({"bootstrap.servers": kafka_servers, "transactional.id": topic, "log_level": 2})
    client.init_transactions(20)
    epochs, read = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path), 0
    for transaction in range(4):
        client.begin_transaction()
        for number in range(5):
            client.produce(topic, order(number), partition=0)
        client.commit_transaction(20)
        read += len(epochs.rows())
        assert (read, epochs.backlog) == (5 * (transaction + 1), read)
        epochs.restarted()


# -- loss


def flood(servers: str, topic: str) -> None:
    """More than the broker keeps of a partition."""
    write(servers, topic, [b"x" * 100] * 120_000)


def test_rows_that_were_removed_unread_fail_the_job(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, [b"first"])
    epochs = Epochs(from_kafka(topic, servers=kafka_servers), tmp_path)
    flood(kafka_servers, topic)
    with pytest.raises(
        LaneError, match=rf'partition 0 of topic "{topic}".* rows were removed unread; set on_loss="skip"'
    ):
        epochs.plan()


def test_rows_that_were_removed_unread_are_left_out_and_counted(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, [b"first"])
    epochs = Epochs(from_kafka(topic, servers=kafka_servers, on_loss="skip"), tmp_path)
    flood(kafka_servers, topic)
    rows = epochs.rows()
    lost = 120_001 - len(rows)
    assert 0 < lost == rows[0]["offset"]
    assert epochs.source.losses(epochs.place).endswith(f"partition {topic}/0: {lost:,} rows were removed unread")
    assert epochs.backlog == len(rows)


def test_rows_that_are_removed_after_the_plan_are_noticed_in_the_lane(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(10)))
    sources = {loss: from_kafka(topic, servers=kafka_servers, on_loss=loss) for loss in ("fail", "skip")}
    planned = {loss: Epochs(source, tmp_path / loss) for loss, source in sources.items()}
    shares = {loss: epochs.plan() for loss, epochs in planned.items()}
    flood(kafka_servers, topic)
    with pytest.raises(LaneError, match="10 rows were removed unread"):
        planned["fail"].read(shares["fail"])
    assert planned["skip"].reader.read(shares["skip"][0]) is not None
    assert list(planned["skip"].reader.read(shares["skip"][0])) == []
    assert "10 rows were removed unread" in sources["skip"].losses(planned["skip"].place)


# -- mistakes and secrets


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: from_kafka(servers="x"), "name its topics"),
        (lambda: from_kafka("a", "a", servers="x"), "name each topic once"),
        (lambda: from_kafka("a", pattern="b", servers="x"), "both topics and a pattern"),
        (lambda: from_kafka(pattern="(", servers="x"), "cannot be read"),
        (lambda: from_kafka("a", servers=""), "host:9092"),
        (lambda: from_kafka("a", servers="x", start="soon"), "earliest"),
        (lambda: from_kafka("a", servers="x", on_loss="ignore"), "fail"),
        (lambda: from_kafka("a", servers="x", schema="id long", format="raw"), "raw has none"),
        (lambda: from_kafka("a", servers="x", format="json"), "need a schema"),
        (lambda: from_kafka("a", servers="x", schema="id long", format="avro"), "avro_schema"),
        (lambda: from_kafka("a", servers="x", options={"group.id": "mine"}), "set by Headgate"),
        (lambda: from_kafka("a", servers="x", options={"isolation.level": "read_uncommitted"}), "set by Headgate"),
        (lambda: to_kafka("a", servers="x", options={"isolation.level": "read_uncommitted"}), "set by Headgate"),
    ],
)
def test_mistakes_are_told_in_one_sentence(call: Any, told: str) -> None:
    with pytest.raises(GraphError, match=told):
        call()


def test_a_secret_that_is_spelled_out_is_refused() -> None:
    with pytest.raises(GraphError, match=r'"sasl\.password" of Kafka is a secret; write "env:NAME"') as refused:
        from_kafka("a", servers="x", options={"sasl.password": "hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("address", ["http://me:hunter2@registry:8081", "hunter2@registry:8081/"])
def test_a_login_in_the_address_of_the_registry_is_refused(address: str) -> None:
    with pytest.raises(
        GraphError, match='contains a login; write the address without it, and registry_login="env:'
    ) as refused:
        from_kafka("a", servers="x", schema="id long", format="avro", registry=address)
    assert "hunter2" not in str(refused.value)


JAAS = "kafka.sasl.jaas.config"


@pytest.mark.parametrize("made", [sources.spark_kafka, sinks.spark_kafka], ids=["source", "sink"])
def test_a_login_of_sparks_own_connector_is_refused_if_spelled_out(made: Any) -> None:
    with pytest.raises(GraphError, match=f'option "{JAAS}" of Spark\'s Kafka connector is a secret') as refused:
        made(**{JAAS: 'password="hunter2"'})
    assert "hunter2" not in str(refused.value)


def test_secrets_of_sparks_own_connector_are_named_until_the_query_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_LOGIN", "hunter2")
    options = {JAAS: "env:KAFKA_LOGIN", "subscribe": "orders", "includeHeaders": True, "failOnDataLoss": None}
    resolved_options = {JAAS: "hunter2", "subscribe": "orders", "includeHeaders": "true"}
    source = sources.spark_kafka(**options)
    assert "hunter2" not in f"{source!r} {source.options}" and JAAS not in repr(source)
    spark, frame = MagicMock(), MagicMock()
    source.stream(spark, tmp_path)
    spark.readStream.format.return_value.options.assert_called_once_with(**resolved_options)
    sinks.spark_kafka(**options)(frame, 0)
    frame.write.format.return_value.options.assert_called_once_with(**resolved_options)


def test_secrets_come_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    given_options = {"sasl.password": "env:KAFKA_PASSWORD", "ssl.key.password": f"file:{tmp_path / 'key'}"}
    source = from_kafka("a", servers="x", options=given_options | {"sasl.username": "me", "enable.metrics.push": False})
    assert resolved(source.options)["sasl.password"] == "hunter2"
    assert resolved(source.options)["ssl.key.password"] == "from a file"
    told = f"{source!r} {source.reader_options(tmp_path)} {source.options}"
    assert "hunter2" not in told and "from a file" not in told


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(GraphError, match=r'pip install "headgate\[kafka\]"'):
        from_kafka("a", servers="x")
    with pytest.raises(GraphError, match=r'pip install "headgate\[kafka\]"'):
        to_kafka("a", servers="x")


def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match='environment variable "NOT_SET_HERE", which is not set'):
        resolved(checked_options("x", {"sasl.password": "env:NOT_SET_HERE"}))


def test_a_broker_that_is_away_is_an_outage(tmp_path: Path) -> None:
    from headgate.spark.reasons import FailureKind, cause_of

    source = from_kafka("a", servers="127.0.0.1:1", options={"socket.connection.setup.timeout.ms": 1000})
    (tmp_path / "source").mkdir()
    with pytest.raises(EngineError, match=r"Kafka at 127\.0\.0\.1:1 could not be used") as away:
        Epochs.__init__(object.__new__(_Impatient), source, tmp_path)
    assert cause_of(away.value) is FailureKind.TRANSIENT


class _Impatient(Epochs):
    def levers(self, lanes: int = 1, read_limit: int | None = None) -> None:
        from headgate.spark.connections.patience import Patience
        from headgate.spark.sources import levers
        from headgate.spark.sources.levers import Levers

        levers.write(self.place, Levers(lanes, read_limit, Patience(kafka=KafkaPatience(answer_s=0.3))))
