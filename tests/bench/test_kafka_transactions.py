"""Transactions of the Kafka sink: the proxy keeps Kafka's promises, and kills of lanes and driver lose and double no row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from confluent_kafka import KafkaException, Producer

from headgate.bench.brokers import mock_broker
from headgate.bench.kafka_kills import ROWS_PER_KILL, Kills, Victim, driver_of
from headgate.spark.connections.kafka import is_fenced
from headgate.spark.sinks.kafka import EPOCHS
from tests.kafka import read_all, write
from tests.kafka_transactions import END_TRANSACTION, PRODUCE, TransactionProxy


@pytest.fixture
def proxy() -> Iterator[TransactionProxy]:
    with mock_broker() as servers:
        proxy = TransactionProxy(servers)
        with proxy.serving():
            yield proxy


def transaction(proxy: TransactionProxy, *values: bytes) -> Producer:
    """One that is open, and whose rows the broker has confirmed."""
    client = Producer({"bootstrap.servers": proxy.address, "transactional.id": "sink", "log_level": 2})
    client.init_transactions(30)
    client.begin_transaction()
    for value in values:
        client.produce("out", value)
    assert client.flush(30) == 0
    return client


def seen(proxy: TransactionProxy) -> list[bytes]:
    return sorted(message.value() for message in read_all(proxy.address, "out"))


def test_rows_are_seen_when_their_transaction_is_committed(proxy: TransactionProxy) -> None:
    client = transaction(proxy, b"a", b"b")
    write(proxy.address, "out", [b"plain"])
    assert seen(proxy) == [b"plain"]
    client.commit_transaction(30)
    assert seen(proxy) == [b"a", b"b", b"plain"]
    client.begin_transaction()
    client.produce("out", b"c")
    client.abort_transaction(30)
    assert seen(proxy) == [b"a", b"b", b"plain"]


def test_newer_producer_ends_the_transaction_of_an_older_one_and_fences_it(proxy: TransactionProxy) -> None:
    older = transaction(proxy, b"old")
    newer = transaction(proxy, b"new")
    with pytest.raises(KafkaException) as refusal:
        older.commit_transaction(30)
    assert is_fenced(refusal.value.args[0])
    newer.commit_transaction(30)
    assert seen(proxy) == [b"new"] and proxy.dropped == 1 and proxy.refused


class Unkilled:
    """The proxy, which stays."""

    def __init__(self, proxy: TransactionProxy) -> None:
        self.address = proxy.address

    def restart_gateway(self) -> None:
        raise AssertionError("the proxy serves no reader")


@pytest.mark.slow
def test_kills_before_and_after_a_commit_lose_and_double_no_row(proxy: TransactionProxy, tmp_path: Path) -> None:
    write(proxy.address, EPOCHS, [b"{}"], key=b"nobody")
    driver = driver_of(tmp_path, "kafka_writer", proxy.address, "exactly-once")
    kills = Kills(Unkilled(proxy), driver, random.Random(1), longest_wait_s=0.0)
    try:
        kills._write()
        driver.start()
        for moment, victim in product((PRODUCE, END_TRANSACTION), (Victim.JOB, Victim.DRIVER)):
            kills._await(lambda: driver.done >= kills.written)
            proxy.halts_at = moment
            kills._write()
            assert proxy.halted.wait(60)
            kills._kill(victim)
            proxy.goes_on.set()
            for event in (proxy.halted, proxy.goes_on):
                event.clear()
        kills._await(lambda: driver.done >= kills.written)
        driver.kill()
        found = kills._outcome(0.0)
    finally:
        driver.kill()
    assert (found.rows, found.lost, found.doubled) == (5 * ROWS_PER_KILL, 0, 0)
    assert proxy.dropped == 2, "both kills before a commit left rows that a newer producer ended"
