"""Kafka as a sink: each row once for readers of committed rows, whatever was tried before; and what an older start is told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from headgate.errors import GraphError
from headgate.spark.connections.patience import KafkaPatience, Patience
from headgate.spark.sinks import kafka as to_kafka
from headgate.spark.sinks.kafka import EPOCHS, WriterRecord
from headgate.spark.sinks.writing import JobStart, Writing
from tests.kafka import new_topic, read_all

pytestmark = pytest.mark.slow
PATIENCE = Patience(kafka=KafkaPatience(answer_s=20.0))


@pytest.fixture
def life(kafka_servers: str) -> str:
    """A job of its own, on a broker that has the topic of notes."""
    client = Producer({"bootstrap.servers": kafka_servers, "log_level": 2})
    client.produce(EPOCHS, b'{"start": 1, "epoch": 1}', b"another/out", partition=0)
    assert client.flush(30) == 0
    return uuid4().hex


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, numPartitions=3).selectExpr("id", "concat('user-', id % 7) AS user")


def written(servers: str, topic: str) -> Counter[int]:
    return Counter(json.loads(message.value())["id"] for message in read_all(servers, topic))


def last_note(servers: str, writer: str) -> WriterRecord:
    notes = [note for note in read_all(servers, EPOCHS, partitions=1) if note.key() == writer.encode()]
    return msgspec.json.decode(notes[-1].value(), type=WriterRecord)


def test_rows_become_json_with_a_key(spark: SparkSession, kafka_servers: str, life: str) -> None:
    topic = new_topic("alerts")
    with Writing(JobStart(life, 1), PATIENCE).by("out"):
        to_kafka(topic, servers=kafka_servers, key="user")(numbers(spark, 20), 0)
    rows = read_all(kafka_servers, topic)
    assert sorted(json.loads(row.value())["id"] for row in rows) == list(range(20))
    assert all(row.key() == json.loads(row.value())["user"].encode() for row in rows)
    assert len({row.partition() for row in rows if row.key() == b"user-3"}) == 1


def test_a_column_value_is_written_as_it_is(spark: SparkSession, kafka_servers: str, life: str) -> None:
    topic = new_topic("alerts")
    rows = spark.sql(
        "SELECT 'k' AS key, cast('v' AS binary) AS value, array(struct('h' AS key, cast('1' AS binary) AS value)) AS headers"
    )
    with Writing(JobStart(life, 1), PATIENCE).by("out"):
        to_kafka(topic, servers=kafka_servers)(rows, 0)
    (row,) = read_all(kafka_servers, topic)
    assert (row.key(), row.value(), row.headers()) == (b"k", b"v", [("h", b"1")])


def test_an_epoch_that_kafka_has_is_not_written_again(spark: SparkSession, kafka_servers: str, life: str) -> None:
    topic = new_topic("alerts")
    sink = to_kafka(topic, servers=kafka_servers)
    for start, epoch in (
        (1, 0),
        (1, 1),
        (2, 1),
        (3, 1),
        (3, 2),
    ):  # starts 2 and 3 come after a crash before Spark's commit
        with Writing(JobStart(life, start), PATIENCE).by("out"):
            sink(numbers(spark, 10), epoch)
    assert written(kafka_servers, topic) == dict.fromkeys(range(10), 3)
    assert last_note(kafka_servers, f"{life}/out") == WriterRecord(3, 2)
    assert last_note(kafka_servers, "another/out") == WriterRecord(1, 1)


def test_an_older_start_writes_no_more(spark: SparkSession, kafka_servers: str, life: str) -> None:
    topic = new_topic("alerts")
    sink = to_kafka(topic, servers=kafka_servers)
    with Writing(JobStart(life, 5), PATIENCE).by("out"):
        sink(numbers(spark, 10), 0)
    with (
        Writing(JobStart(life, 4), PATIENCE).by("out"),
        pytest.raises(Exception, match="written by a newer start of this job than number 4"),
    ):
        sink(numbers(spark, 10), 1)
    assert written(kafka_servers, topic) == dict.fromkeys(range(10), 1)


@pytest.mark.parametrize("delivery", ["exactly-once", "read-back"])
def test_an_epoch_is_written_once_however_often_it_is_tried(
    spark: SparkSession, kafka_servers: str, life: str, delivery: str
) -> None:
    topic = new_topic("alerts")
    sink = to_kafka(topic, servers=kafka_servers, key="user", delivery=delivery)
    for start, epoch in ((1, 0), (2, 0), (2, 1), (3, 1)):
        with Writing(JobStart(life, start), PATIENCE).by("out"):
            sink(numbers(spark, 30), epoch)
    assert written(kafka_servers, topic) == dict.fromkeys(range(30), 2)


def test_what_was_written_before_a_crash_is_read_back(spark: SparkSession, kafka_servers: str, life: str) -> None:
    topic = new_topic("alerts")
    sink = to_kafka(topic, servers=kafka_servers, delivery="read-back")
    with Writing(JobStart(life, 1), PATIENCE).by("out"):
        sink(numbers(spark, 10), 0)
    written_row = next(row.value() for row in read_all(kafka_servers, topic) if json.loads(row.value())["id"] == 3)
    ends = Counter(f"{topic}/{row.partition()}" for row in read_all(kafka_servers, topic))
    client = Producer({"bootstrap.servers": kafka_servers, "log_level": 2})
    note = {"start": 1, "epoch": 1, "begun": {f"{topic}/{number}": ends[f"{topic}/{number}"] for number in range(4)}}
    client.produce(EPOCHS, json.dumps(note).encode(), f"{life}/out".encode(), partition=0)
    client.produce(topic, written_row)  # then the lane died
    assert client.flush(30) == 0
    for start in (2, 3):
        with Writing(JobStart(life, start), PATIENCE).by("out"):
            sink(numbers(spark, 10), 1)
    assert written(kafka_servers, topic) == dict.fromkeys(range(10), 2)
    assert last_note(kafka_servers, f"{life}/out") == WriterRecord(2, 1)


def test_a_new_job_of_the_same_name_writes_from_its_first_epoch(
    spark: SparkSession, kafka_servers: str, life: str
) -> None:
    topic = new_topic("alerts")
    for each in (life, uuid4().hex):
        with Writing(JobStart(each, 1), PATIENCE).by("out"):
            to_kafka(topic, servers=kafka_servers)(numbers(spark, 10), 0)
    assert written(kafka_servers, topic) == dict.fromkeys(range(10), 2)


def test_at_least_once_writes_an_epoch_again(spark: SparkSession, kafka_servers: str, life: str) -> None:
    topic = new_topic("alerts")
    sink = to_kafka(topic, servers=kafka_servers, delivery="at-least-once")
    for start in (1, 2):
        with Writing(JobStart(life, start), PATIENCE).by("out"):
            sink(numbers(spark, 10), 0)
    assert written(kafka_servers, topic) == dict.fromkeys(range(10), 2)


def test_mistakes_are_told_in_one_sentence(spark: SparkSession, kafka_servers: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="name a topic"):
        to_kafka("no spaces allowed", servers=kafka_servers)
    with pytest.raises(GraphError, match="delivery"):
        to_kafka("alerts", servers=kafka_servers, delivery="once")
    with pytest.raises(GraphError, match="none of the columns: id, user"):
        to_kafka("alerts", servers=kafka_servers, key="name")(numbers(spark, 1), 0)
