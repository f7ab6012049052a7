"""What tests do with Kafka beside the code under test: write rows, read all rows, and plan and read epochs without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headgate.spark.connections.patience import KafkaPatience, Patience
from headgate.spark.sources import levers
from headgate.spark.sources.kafka import KafkaTopics, columns_of
from headgate.spark.sources.kafka_reader import KafkaReader
from headgate.spark.sources.levers import Levers

WITHIN_S = 60.0


def new_topic(name: str = "orders") -> str:
    return f"{name}-{uuid4().hex[:8]}"


def order(number: int) -> bytes:
    return json.dumps({"id": number, "user": f"user-{number % 7}", "amount": number / 2}).encode()


def write(servers: str, topic: str, values: Iterable[bytes | None], partitions: int = 1, **more: Any) -> None:
    """Rows go to partitions 0, 1, ... in turns."""
    client = Producer({"bootstrap.servers": servers, "log_level": 2, "queue.buffering.max.messages": 500_000})
    for number, value in enumerate(values):
        client.produce(topic, value, partition=number % partitions, **more)
    assert client.flush(WITHIN_S) == 0


def read_all(servers: str, topic: str, partitions: int = 4) -> list[Any]:
    """Every row that a reader of committed rows gets, by partition and offset."""
    settings = {"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True, "log_level": 2}
    client = Consumer(settings | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    rows, ended, until_s = list[Any](), set[int](), time.monotonic() + WITHIN_S
    while len(ended) < partitions:
        assert time.monotonic() < until_s, f"{topic} could not be read"
        for message in client.consume(10_000, 0.1):
            if message.error() is None:
                rows.append(message)
            else:
                ended.add(message.partition() or 0)
    client.close()
    return sorted(rows, key=lambda message: (message.partition(), message.offset()))


def committed(servers: str, topic: str, group: str, partitions: int) -> list[int | None]:
    """The offsets that Kafka has for a consumer group, as a tool for lag sees them."""
    client = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 2})
    found = client.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=WITHIN_S)
    client.close()
    return [one.offset if one.offset >= 0 else None for one in found]


class Epochs:
    """Plans and reads epochs of a source as Spark would, in this process."""

    def __init__(self, source: KafkaTopics, home: Path, schema: T.StructType | None = None) -> None:
        self.source, self.place = source, home / "source"
        self.place.mkdir(parents=True, exist_ok=True)
        self.levers()
        source.begin(self.place)
        self.schema = columns_of(None) if schema is None else schema
        self.reader = self.restarted()
        self.at: dict[str, Any] = self.reader.initialOffset()

    def levers(self, lanes: int = 1, read_limit: int | None = None) -> None:
        patience = Patience(kafka=KafkaPatience(answer_s=20.0, look_s=20.0, discovery_s=0.0))
        levers.write(self.place, Levers(lanes, read_limit, patience))

    def restarted(self) -> KafkaReader:
        self.reader = KafkaReader(self.source.reader_options(self.place), self.schema)
        return self.reader

    def plan(self) -> list[Any]:
        """The shares of the lanes of the next epoch; none if there is nothing to read."""
        self.start, self.at = self.at, self.reader.latestOffset(self.at, ReadAllAvailable())
        return self.again()

    def again(self) -> list[Any]:
        return list(self.reader.partitions(self.start, self.at))

    def read(self, shares: list[Any]) -> list[list[dict[str, Any]]]:
        """The rows of each lane."""
        return [pa.Table.from_batches(self.reader.read(share)).to_pylist() if share.ranges else [] for share in shares]

    def rows(self) -> list[dict[str, Any]]:
        return [row for lane in self.read(self.plan()) for row in lane]

    @property
    def backlog(self) -> float:
        arrived = self.source.arrived(self.place)
        assert arrived is not None
        return arrived
