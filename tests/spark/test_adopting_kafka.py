"""Queries that read Kafka are adopted without Spark's connector: they go on from the offsets of their checkpoint, each row once."""

from __future__ import annotations

import json
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from headgate.errors import GraphError, InputError, JobFileError
from headgate.spark.adoption import checkpoint
from headgate.spark.adoption.adopt import Adoption, Script, adoptions, found
from headgate.spark.adoption.kafka import KafkaRead, kafka_read
from headgate.spark.adoption.kafka_options import client_options
from headgate.spark.adoption.recording import record
from headgate.spark.connections.patience import KafkaPatience, Patience
from headgate.spark.engine import SparkEngine
from headgate.spark.sources import kafka_reading, levers
from headgate.spark.sources.kafka_offsets import Partition
from headgate.spark.sources.kafka_reader import BEGUN, marks_in
from headgate.spark.sources.levers import Levers
from tests.kafka import Epochs, new_topic, read_all, write

from .conftest import Until
from .old_kafka import Offsets, compact, old_checkpoint

PATIENCE = Patience(kafka=KafkaPatience(answer_s=20.0, look_s=20.0, discovery_s=0.0))


# -- options


SERVERS = {"kafka.bootstrap.servers": "host:9092"}


def read_of(**options: str) -> KafkaRead:
    return kafka_read(SERVERS | options, Path("jobs/job/sources/query/kafka-1"))


def test_options_of_spark_become_those_of_the_source() -> None:
    read = read_of(
        subscribe="orders, payments",
        startingOffsets="latest",
        failOnDataLoss="false",
        MaxOffsetsPerTrigger="500",
        minPartitions="6",
        includeHeaders="true",
        **{"kafka.group.id": "mine", "kafka.max.poll.records": "100", "kafka.fetch.min.bytes": "10"},
    )
    assert read.source.topics.names == ("orders", "payments") and read.source.on_loss == "skip"
    assert (read.most_rows, read.least_lanes, read.columns.names[-2:]) == (500, 6, ["timestampType", "headers"])
    assert dict(read.source.options) == {
        "bootstrap.servers": "host:9092",
        "fetch.min.bytes": "10",
        "isolation.level": "read_uncommitted",
    }
    assert read_of(subscribe="orders").source.on_loss == "fail"
    assert "headers" not in read_of(subscribe="orders").columns.names


class Topic:
    def __init__(self, topic: str) -> None:
        self.topic, self.partitions = topic, {0: None, 1: None}


def partitions_found(read: KafkaRead, *topics: str) -> list[str]:
    return list(map(str, read.source.topics.partitions({name: Topic(name) for name in topics})))


def test_pattern_is_looked_for_anywhere_in_the_name_as_spark_does() -> None:
    there = ("eu-orders-1", "__consumer_offsets", "payments")
    assert partitions_found(read_of(subscribePattern="orders"), *there) == ["eu-orders-1/0", "eu-orders-1/1"]
    assert partitions_found(read_of(subscribePattern="^orders"), *there) == []
    assert len(partitions_found(read_of(subscribePattern=".*"), *there)) == 4


def test_assigned_partitions_alone_are_read() -> None:
    read = read_of(assign='{"orders":[1],"payments":[0,7]}')
    assert partitions_found(read, "orders", "payments", "other") == ["orders/1", "payments/0"]


def test_login_names_the_variable_that_has_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", "xyzzy-17")
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="xyzzy-17";'
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    read = read_of(subscribe="orders", **options)
    given = dict(read.source.options)
    assert (given["sasl.username"], given["sasl.password"]) == ("ann", "env:ORDERS_PASSWORD")
    assert (given["security.protocol"], given["sasl.mechanisms"]) == ("sasl_ssl", "SCRAM-SHA-512")
    assert (given["ssl.ca.location"], given["ssl.endpoint.identification.algorithm"]) == ("/etc/ca.pem", "none")
    assert "xyzzy-17" not in str(read.source.reader_options(Path("place")))
    monkeypatch.delenv("ORDERS_PASSWORD")
    with pytest.raises(JobFileError, match="no environment variable has the password") as refusal:
        read_of(subscribe="orders", **options)
    assert "xyzzy-17" not in str(refusal.value)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({}, 'one of the options "subscribe"'),
        ({"subscribe": "a", "assign": "{}"}, 'one of the options "subscribe"'),
        ({"assign": "orders"}, "write it like"),
        ({"subscribe": "a", "endingOffsets": "latest"}, 'the option "endingoffsets" of Kafka has no counterpart'),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "many"}, "write a whole number above 0"),
        ({"subscribe": "a", "kafka.sasl.login.class": "x"}, 'the option "kafka.sasl.login.class" of Kafka'),
        ({"subscribe": "a", "kafka.ssl.truststore.location": "a.jks"}, "is JKS, which Headgate cannot read"),
        (
            {"subscribe": "a", "kafka.sasl.jaas.config": "com.example.OAuthBearerLoginModule required;"},
            "has OAuthBearerLoginModule",
        ),
        ({"subscribePattern": "("}, "cannot be read"),
    ],
)
def test_option_without_a_counterpart_gets_one_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises((JobFileError, GraphError)) as refusal:
        read_of(**options)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_query_without_the_address_of_kafka_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"without the option .kafka\.bootstrap\.servers"):
        client_options({})


# -- where a job begins


def test_checkpoint_says_where_the_first_batch_of_the_job_begins(tmp_path: Path) -> None:
    ends: list[Offsets] = [{"orders": {"0": 3}}, {"orders": {"0": 7}}]
    for name, batches, is_committed, start in (
        ("committed", ends, True, {"orders": {"0": 7}}),
        ("planned", ends, False, {"orders": {"0": 3}}),
        ("first", ends[:1], False, {"orders": {"0": 1}}),
    ):
        old = checkpoint.read(old_checkpoint(tmp_path / name, {"orders": {"0": 1}}, batches, is_committed))
        assert [json.loads(one or "") for one in old.starts] == [start], name


def test_checkpoint_that_does_not_say_where_the_query_began_is_refused(tmp_path: Path) -> None:
    place = old_checkpoint(tmp_path / "old", {}, [{"orders": {"0": 3}}], is_committed=False)
    (place / "sources/0/0").unlink()
    (start,) = checkpoint.read(place).starts
    with pytest.raises(JobFileError, match="does not say where the query stopped to read Kafka topics orders"):
        read_of(subscribe="orders").check(start)


class Continued(Epochs):
    """Epochs of a stream that Spark's own source read up to `start`."""

    def __init__(self, servers: str, place: Path, start: Offsets, **options: str) -> None:
        self.read_ = kafka_read({"kafka.bootstrap.servers": servers, **options}, place / "kafka-1")
        place.mkdir(parents=True, exist_ok=True)
        levers.write(place, Levers(1, 1000, PATIENCE))
        self.read_.begin(compact(start), place)
        self.source, self.place, self.schema = self.read_.source, self.read_.place, self.read_.columns
        self.reader = self.restarted()
        self.at: dict[str, Any] = dict(start)

    def offsets(self) -> dict[str, list[int]]:
        """By partition, the offsets of the next epoch."""
        return by_partition(self.rows())


def by_partition(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    parts = sorted({f"{row['topic']}/{row['partition']}" for row in rows})
    return {
        part: sorted(row["offset"] for row in rows if f"{row['topic']}/{row['partition']}" == part) for part in parts
    }


def values(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def test_rows_after_the_offsets_of_spark_are_read(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, values(30), partitions=3)
    job = Continued(kafka_servers, tmp_path, {topic: {"0": 4, "1": 10, "2": 0}}, subscribe=topic)
    assert job.backlog == 16
    rows = job.rows()
    assert by_partition(rows) == {f"{topic}/0": [4, 5, 6, 7, 8, 9], f"{topic}/2": list(range(10))}
    assert list(rows[0]) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert {row["timestampType"] for row in rows} == {0}
    write(kafka_servers, topic, values(3), partitions=3)
    assert job.offsets() == {f"{topic}/{number}": [10] for number in range(3)}
    assert job.offsets() == {}
    assert job.backlog == 19


def test_planned_batch_is_read_again_with_the_same_rows(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, values(30), partitions=3)
    start, end = {topic: {"0": 2, "1": 5}}, {topic: {"0": 7, "1": 5, "2": 3}}
    job = Continued(kafka_servers, tmp_path, start, subscribe=topic)
    for at in (job.at, job.reader.initialOffset()):  # with an earlier batch, and without
        again = job.read(list(job.reader.partitions(at, end)))
        assert by_partition([row for lane in again for row in lane]) == {
            f"{topic}/0": [2, 3, 4, 5, 6],
            f"{topic}/2": [0, 1, 2],
        }
    job.at = end
    assert job.offsets() == {
        f"{topic}/0": [7, 8, 9],
        f"{topic}/1": [5, 6, 7, 8, 9],
        f"{topic}/2": [3, 4, 5, 6, 7, 8, 9],
    }


def test_batch_is_limited_as_in_the_script(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, values(20), partitions=2)
    start = {topic: {"0": 1, "1": 1}}
    job = Continued(kafka_servers, tmp_path, start, subscribe=topic, maxOffsetsPerTrigger="6")
    assert job.offsets() == {f"{topic}/{number}": [1, 2, 3] for number in range(2)}
    assert len(job.plan()) == 2, "as many lanes as partitions"


def test_topic_that_a_pattern_finds_later_is_read_from_its_first_row(kafka_servers: str, tmp_path: Path) -> None:
    base = new_topic()
    write(kafka_servers, f"{base}-a", values(5))
    job = Continued(kafka_servers, tmp_path, {f"{base}-a": {"0": 3}}, subscribePattern=f"{base}-[ab]")
    assert job.offsets() == {f"{base}-a/0": [3, 4]}
    write(kafka_servers, f"eu-{base}-b", values(2))
    write(kafka_servers, f"{base}-c", values(2))
    assert job.offsets() == {f"eu-{base}-b/0": [0, 1]}


def test_rows_that_kafka_removed_fail_the_job_unless_the_script_goes_on_without_them(
    kafka_servers: str, tmp_path: Path
) -> None:
    topic = new_topic()
    write(kafka_servers, topic, values(5))
    beyond = {topic: {"0": 9}}  # of a topic that was deleted and created again
    with pytest.raises(Exception, match="deleted and created again"):
        Continued(kafka_servers, tmp_path / "fails", beyond, subscribe=topic).rows()
    skips = Continued(kafka_servers, tmp_path / "skips", beyond, subscribe=topic, failOnDataLoss="false")
    assert skips.offsets() == {f"{topic}/0": [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_end_of_a_partition_is_asked_for_at_the_isolation_level_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    asked: list[str] = []

    class Client:
        def list_offsets(self, wanted: Any, isolation_level: Any, **_: Any) -> dict[Any, Any]:
            asked.append(isolation_level.name)
            return {}

    monkeypatch.setattr(kafka_reading, "_client", lambda *_: Client())
    options = read_of(subscribe="orders", **{"kafka.isolation.level": level}).source.options
    kafka_reading.highest(options, PATIENCE.kafka, [Partition("orders", 0)])
    kafka_reading.highest((("bootstrap.servers", "host"),), PATIENCE.kafka, [Partition("orders", 0)])
    assert asked == [level.upper(), "READ_COMMITTED"]


def test_start_is_remembered_once(kafka_servers: str, tmp_path: Path) -> None:
    job = Continued(kafka_servers, tmp_path, {"orders": {"0": 4}}, subscribe="orders")
    job.read_.begin(compact({"orders": {"0": 9}}), tmp_path)
    assert [mark.offset for mark in marks_in(job.place, BEGUN).values()] == [4]


# -- jobs


SCRIPT = """
    import json, sys
    from pyspark.sql import SparkSession

    place, servers, topics = sys.argv[1:]

    def write(rows, batch):
        found = [row.asDict() for row in rows.collect()]
        with open(f"{place}/out/{batch}-{len(found)}.json", "w") as file:
            json.dump(found, file)

    spark = SparkSession.builder.getOrCreate()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    orders = reader.option(*topics.split("=")).option("startingOffsets", "latest").load()
    rows = orders.selectExpr("CAST(value AS STRING) AS value", "topic", "partition", "offset")
    query = rows.writeStream.queryName("copy").option("checkpointLocation", f"{place}/checkpoint").foreachBatch(write)
    query.start().awaitTermination()
"""


class KafkaQuery:
    """A query of a script with a checkpoint that Spark's connector would have written, and the job that it becomes."""

    def __init__(self, engine: SparkEngine, place: Path, servers: str, topics: str) -> None:
        self.engine, self.place = engine, place
        self.arguments = (str(place), servers, topics)
        (place / "out").mkdir()

    def adopt(self, text: str = SCRIPT) -> Adoption:
        path = self.place / "old.py"
        path.write_text(textwrap.dedent(text))
        script = Script(path, Path.cwd(), self.engine._home, self.arguments)
        (one,) = adoptions(script, record(self.engine.spark, path, self.arguments))
        one.run()
        self.engine.submit(runpy.run_path(str(one.file))["topology"]())
        return one

    def batches(self) -> dict[int, list[dict[str, Any]]]:
        """Rows by batch, of those that have any."""
        found = (path for path in self.place.glob("out/*.json") if not path.stem.endswith("-0"))
        return {int(path.stem.split("-")[0]): json.loads(path.read_text() or "[]") for path in found}

    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.batches().values() for row in rows]


@pytest.fixture
def adopting(
    engine: SparkEngine, kafka_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], KafkaQuery]:
    monkeypatch.chdir(tmp_path)
    return lambda topics: KafkaQuery(engine, tmp_path, kafka_servers, topics)


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "uncommitted"])
def test_job_continues_after_the_last_batch_with_each_row_once(
    adopting: Callable[[str], KafkaQuery], kafka_servers: str, until: Until, is_committed: bool
) -> None:
    topic = new_topic()
    write(kafka_servers, topic, values(60), partitions=3)
    query = adopting(f"subscribe={topic}")
    ends: list[Offsets] = [{topic: {"0": 5, "1": 4, "2": 1}}, {topic: {"0": 11, "1": 9, "2": 1}}]
    old_checkpoint(query.place / "checkpoint", {topic: {"0": 2, "1": 0, "2": 1}}, ends, is_committed)
    one = query.adopt()
    assert found(one)["reads"] == f"Kafka topics {topic} at {kafka_servers}"
    first = ends[1 if is_committed else 0][topic]
    until(lambda: len(query.rows()) >= 60 - sum(first.values()), "all rows")
    reading = query.engine.observe().jobs["copy"]
    assert reading is not None
    until(lambda: query.engine.observe().jobs["copy"].backlog == 0, "a backlog of 0")  # type: ignore[union-attr]
    query.engine.pause("copy")
    query.engine.resume("copy")
    write(kafka_servers, topic, values(6), partitions=3)
    until(lambda: len(query.rows()) >= 66 - sum(first.values()), "rows that came later")
    assert by_partition(query.rows()) == {f"{topic}/{part}": list(range(at, 22)) for part, at in first.items()}
    if not is_committed:
        assert by_partition(query.batches()[1]) == {f"{topic}/0": list(range(5, 11)), f"{topic}/1": list(range(4, 9))}


@pytest.mark.slow
def test_first_batch_that_was_never_committed_begins_where_the_query_began(
    adopting: Callable[[str], KafkaQuery], kafka_servers: str, until: Until
) -> None:
    base = new_topic()
    write(kafka_servers, f"{base}-a", values(20), partitions=2)
    write(kafka_servers, f"eu-{base}-b", values(3))
    query = adopting(f"subscribePattern={base}-.")
    begun, ends = {f"{base}-a": {"0": 2, "1": 3}}, {f"{base}-a": {"0": 6, "1": 3}}
    old_checkpoint(query.place / "checkpoint", begun, [ends], is_committed=False)
    query.adopt()
    until(lambda: len(query.rows()) >= 18, "all rows")
    assert by_partition(query.batches()[0]) == {f"{base}-a/0": [2, 3, 4, 5]}
    assert by_partition(query.rows()) == {
        f"{base}-a/0": list(range(2, 10)),
        f"{base}-a/1": list(range(3, 10)),
        f"eu-{base}-b/0": [0, 1, 2],
    }


TO_KAFKA = """
    import sys
    from pyspark.sql import SparkSession

    place, servers, topics = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.readStream.load(format="kafka", **kafka, subscribe=topics).selectExpr("value")
    writer = rows.writeStream.format("kafka").options(**kafka).option("topic", topics + "-copies")
    writer.option("checkpointLocation", f"{place}/checkpoint").queryName("copy").start().awaitTermination()
"""


@pytest.mark.slow
def test_query_that_writes_to_kafka_needs_no_connector_either(
    adopting: Callable[[str], KafkaQuery], kafka_servers: str, until: Until
) -> None:
    topic = new_topic()
    write(kafka_servers, topic, values(10))
    query = adopting(topic)
    old_checkpoint(query.place / "checkpoint", {topic: {"0": 0}}, [{topic: {"0": 4}}])
    assert found(query.adopt(TO_KAFKA))["writes"].startswith("kafka (append); at least once")

    def copies() -> list[bytes]:
        return sorted(message.value() for message in read_all(kafka_servers, f"{topic}-copies"))

    until(lambda: len(copies()) >= 6, "all rows")
    assert copies() == values(10)[4:]


@pytest.mark.slow
def test_stream_that_a_query_reads_twice_is_refused(
    adopting: Callable[[str], KafkaQuery], engine: SparkEngine, tmp_path: Path
) -> None:
    query = adopting("orders")
    old_checkpoint(query.place / "checkpoint", {}, [{"orders": {"0": 4}}])
    with pytest.raises(InputError, match="reads the same Kafka stream twice"):
        query.adopt(TO_KAFKA.replace('.selectExpr("value")', '\n    rows = rows.union(rows).selectExpr("value")'))
