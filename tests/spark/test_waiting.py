"""Sources that wait for a row before they report that there is none, without Spark."""

from __future__ import annotations

import base64
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable
from redis import Redis

from headgate import files
from headgate.loads import Load, Steady, Steps
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers
from headgate.spark.sources.load import BEGAN, LoadReader
from headgate.spark.sources.redis import RedisReader

LONG_S = 20.0
"""A wait that no test waits for: what ends before it has ended early."""


def load_reader(place: Path, load: Load, wait_s: float, begun_s: float = 0.0) -> LoadReader:
    levers.write(place, Levers(wait_s=wait_s))
    files.replace(place / BEGAN, repr(time.time() - begun_s).encode())
    return LoadReader({"place": str(place), "load": base64.b64encode(pickle.dumps(load)).decode()})


@contextmanager
def lasting(at_least_s: float, less_than_s: float) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    assert at_least_s <= time.monotonic() - begun_s < less_than_s


def ask(reader: DataSourceStreamReader, offset: dict[str, object]) -> dict[str, object]:
    return reader.latestOffset(offset, ReadAllAvailable())


def test_load_answers_a_start_at_once_and_then_waits_for_a_row(tmp_path: Path) -> None:
    reader = load_reader(tmp_path, Steady(0), LONG_S)
    with lasting(0.0, LONG_S):
        ask(reader, {"rows": 0})
    levers.write(tmp_path, Levers(wait_s=0.3))
    with lasting(0.3, LONG_S):
        assert ask(reader, {"rows": 0}) == {"rows": 0}


def test_load_stops_waiting_when_a_row_arrives(tmp_path: Path) -> None:
    reader = load_reader(tmp_path, Steps([(0, 0), (1, 10)]), LONG_S)
    ask(reader, {"rows": 0})
    with lasting(0.0, LONG_S):
        assert ask(reader, {"rows": 0})["rows"] >= 1  # type: ignore[operator]


def test_load_with_rows_does_not_wait(tmp_path: Path) -> None:
    reader = load_reader(tmp_path, Steps([(0, 100), (1, 0)]), LONG_S, begun_s=5.0)
    ask(reader, {"rows": 0})
    with lasting(0.0, LONG_S):
        assert ask(reader, {"rows": 0}) == {"rows": 100}


@pytest.fixture
def redis_reader(redis_url: str, redis_client: Redis, tmp_path: Path) -> RedisReader:
    redis_client.delete("waited")
    options = {"streams": '["waited"]', "url": redis_url, "place": str(tmp_path), "operator": "in", "on_loss": "fail"}
    return RedisReader(options, T.StructType())


def test_redis_waits_for_an_entry(redis_reader: RedisReader, redis_client: Redis, tmp_path: Path) -> None:
    levers.write(tmp_path, Levers(wait_s=0.3))
    offset = redis_reader.initialOffset()
    assert ask(redis_reader, offset) == offset
    with lasting(0.3, LONG_S):
        assert ask(redis_reader, offset) == offset


def test_redis_stops_waiting_when_an_entry_arrives(
    redis_reader: RedisReader, redis_client: Redis, tmp_path: Path
) -> None:
    levers.write(tmp_path, Levers(wait_s=LONG_S))
    offset = redis_reader.initialOffset()
    ask(redis_reader, offset)
    later = threading.Timer(0.2, lambda: redis_client.xadd("waited", {"id": 1}))
    later.start()
    with lasting(0.0, LONG_S):
        found = ask(redis_reader, offset)
    later.join()
    if found == offset:  # it was added between the first look and the wait
        found = ask(redis_reader, offset)
    assert found["waited"]["rows"] == 1  # type: ignore[index]
