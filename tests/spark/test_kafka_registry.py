"""Avro values from Kafka whose schema is in a registry: read in lanes, with a login, and while the registry is away."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')
pytest.importorskip("fastavro", reason='tests of Kafka need pip install "headgate[kafka]"')

import fastavro
from pyspark.sql import types as T

from headgate.errors import EngineError
from headgate.spark.reasons import FailureKind, cause_of
from headgate.spark.sources import kafka as from_kafka
from headgate.spark.sources.decoding import registered
from headgate.spark.sources.kafka_reader import OWN
from tests.kafka import Epochs, new_topic, write

LOGIN = "shop:marker-5c1d-secret"
NUMBER, ROWS = 12, 40
FIELDS = [{"name": "id", "type": "long"}, {"name": "user", "type": "string"}]
AVRO = {"type": "record", "name": "order", "fields": FIELDS}
SCHEMA = T.StructType([T.StructField("id", T.LongType()), T.StructField("user", T.StringType()), *OWN])


class Registry(ThreadingHTTPServer):
    """Answers with one schema, or with a status that stands for an outage."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.status = HTTPStatus.OK

    def status_of(self, path: str, login: str) -> HTTPStatus:
        if login != f"Basic {base64.b64encode(LOGIN.encode()).decode()}":
            return HTTPStatus.UNAUTHORIZED
        return self.status if path == f"/schemas/ids/{NUMBER}" else HTTPStatus.NOT_FOUND


class _Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        status = self.server.status_of(self.path, self.headers.get("Authorization", ""))
        body = json.dumps({"schema": json.dumps(AVRO)} if status is HTTPStatus.OK else {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    registered.cache_clear()
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def value(row: int, schema: int = NUMBER) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, AVRO, {"id": row, "user": f"user-{row % 7}"})
    return struct.pack(">bI", 0, schema) + written.getvalue()


@pytest.fixture
def epochs(kafka_servers: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Epochs:
    """A job that reads a topic with Avro values."""
    monkeypatch.setenv("REGISTRY_LOGIN", LOGIN)
    topic = new_topic()
    write(kafka_servers, topic, map(value, range(ROWS)), partitions=2)
    return reading(topic, kafka_servers, registry.address, tmp_path)


def reading(topic: str, servers: str, registry: str, home: Path) -> Epochs:
    named: dict[str, Any] = {"format": "avro", "registry": registry, "registry_login": "env:REGISTRY_LOGIN"}
    return Epochs(from_kafka(topic, servers=servers, schema="id long, user string", **named), home, SCHEMA)


def found(lanes: list[list[dict[str, Any]]]) -> list[tuple[int, str]]:
    return sorted((row["id"], row["user"]) for lane in lanes for row in lane)


def test_lanes_decode_avro_with_a_schema_behind_a_login(epochs: Epochs) -> None:
    epochs.levers(lanes=3)
    lanes = epochs.read(epochs.plan())
    assert len(lanes) == 3 and found(lanes) == [(row, f"user-{row % 7}") for row in range(ROWS)]


def test_a_login_that_the_registry_refuses_is_told_and_not_shown(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", f"{LOGIN}-wrong")
    with pytest.raises(
        EngineError, match="refused the login: HTTP 401; name user:password with registry_login="
    ) as told:
        epochs.rows()
    assert "marker" not in str(told.value) and cause_of(told.value) is FailureKind.DETERMINISTIC


@pytest.mark.parametrize("status", [HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS])
def test_an_epoch_waits_for_a_registry_that_is_away(epochs: Epochs, registry: Registry, status: HTTPStatus) -> None:
    registry.status, shares = status, epochs.plan()
    with pytest.raises(EngineError, match=f"is away: ConnectionError: HTTP {status}") as away:
        epochs.read(shares)
    assert cause_of(away.value) is FailureKind.TRANSIENT
    registry.status = HTTPStatus.OK
    assert len(found(epochs.read(shares))) == ROWS


def test_a_registry_that_cannot_be_reached_is_away(epochs: Epochs, registry: Registry) -> None:
    shares = epochs.plan()
    registry.shutdown()
    registry.server_close()
    with pytest.raises(EngineError, match="cannot be reached: ConnectionError") as away:
        epochs.read(shares)
    assert cause_of(away.value) is FailureKind.TRANSIENT


def test_a_schema_that_the_registry_does_not_have_is_named(
    epochs: Epochs, registry: Registry, kafka_servers: str, tmp_path: Path
) -> None:
    topic = new_topic()
    write(kafka_servers, topic, [value(1, schema=13)])
    with pytest.raises(EngineError, match="has no schema 13") as told:
        reading(topic, kafka_servers, registry.address, tmp_path / "other").rows()
    assert cause_of(told.value) is FailureKind.DETERMINISTIC
