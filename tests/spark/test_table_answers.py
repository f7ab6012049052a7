"""A store that accepts connections and never answers is an outage: sources and sinks give up in time and name the store."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason='run: pip install "headgate[delta]"')
pytest.importorskip("pyiceberg", reason='run: pip install "headgate[iceberg]"')
pytest.importorskip("psycopg", reason='run: pip install "headgate[postgres]"')
pytest.importorskip("confluent_kafka", reason='run: pip install "headgate[kafka]"')

from headgate.bench.tables import servers, writer
from headgate.errors import EngineError
from headgate.spark import sinks, sources
from headgate.spark.connections.patience import KafkaPatience, Patience
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.reasons import FailureKind, cause_of
from headgate.spark.sinks import staged
from headgate.spark.sinks.kafka import Delivery, Turn, send, send_once, send_rest
from headgate.spark.sinks.staged import Claim
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers
from headgate.state import faults

SOON = Patience(table_s=1.0, kafka=KafkaPatience(answer_s=1.0, look_s=1.0))
LIMIT_S = 20.0
"""Well beyond the limit of one answer, as a library may ask more than once and the machine is busy."""
CLAIM = Claim(Writing(JobStart("one", 1), SOON, "out"), 0)
ROWS = pa.RecordBatch.from_pylist([{"topic": "orders", "key": b"1", "value": b"2", "headers": None}])


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts every connection and sends nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)  # the kernel accepts
        yield int(listener.getsockname()[1])


@contextmanager
def outage(named: str) -> Iterator[None]:
    """What happens in this block fails in time, as something that can pass, and names the store."""
    started_s = time.monotonic()
    with pytest.raises((EngineError, LaneError), match=named) as found:
        yield
    assert time.monotonic() - started_s < LIMIT_S
    assert cause_of(found.value) is FailureKind.TRANSIENT


def storage(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "env:LAKE_SECRET",
        "AWS_REGION": "here",
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    levers.write(tmp_path, Levers(patience=SOON))
    return tmp_path


def test_postgres(silent: int) -> None:
    with outage(r'table "t" of PostgreSQL at postgresql://127\.0\.0\.1'):
        sinks.postgres(f"postgresql://me@127.0.0.1:{silent}/shop", "t").begin(CLAIM, writer.COLUMNS)


def test_delta_sink(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "hidden")
    with outage('Delta table "s3://lake/t" could not be used: OSError: Generic S3 error Error'):
        sinks.delta("s3://lake/t", storage=storage(silent)).begin(CLAIM, writer.COLUMNS)


def test_delta_source(silent: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "hidden")
    with outage('Delta table "s3://lake/t" could not be used'):
        sources.delta("s3://lake/t", storage=storage(silent)).begin(place)


@pytest.mark.parametrize("more", [{}, {"credential": "env:LAKE_SECRET"}], ids=["open", "token"])
def test_iceberg_catalog(silent: int, more: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "me:hidden")
    with outage('Iceberg table "shop.orders" of catalog "prod" could not be used'):
        address = f"http://127.0.0.1:{silent}"
        catalog = {"type": "rest", "uri": address, "oauth2-server-uri": f"{address}/token", **more}
        sinks.iceberg("prod", "shop.orders", catalog).begin(CLAIM, writer.COLUMNS)


def test_kafka_source(silent: int, place: Path) -> None:
    with outage(rf"Kafka at 127\.0\.0\.1:{silent} could not be used"):
        sources.kafka("orders", servers=f"127.0.0.1:{silent}").begin(place)


@pytest.mark.parametrize("delivery", Delivery)
def test_kafka_sink(silent: int, delivery: Delivery) -> None:
    sink = sinks.kafka("orders", servers=f"127.0.0.1:{silent}", delivery=delivery)
    turn = Turn("one/out", CLAIM.writing, 0)
    lanes: dict[Delivery, Callable[[], Iterator[Any]]] = {
        Delivery.AT_LEAST_ONCE: lambda: send(sink, CLAIM.writing, iter([ROWS])),
        Delivery.EXACTLY_ONCE: lambda: send_once(sink, turn, iter([ROWS])),
        Delivery.READ_BACK: lambda: send_rest(sink, turn, iter([ROWS])),
    }
    with outage(rf'operator "out": Kafka at 127\.0\.0\.1:{silent}'):
        list(lanes[delivery]())


class Relay(socketserver.ThreadingTCPServer):
    """Passes bytes on to a server and back until it is frozen."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.flows, self.target = threading.Event(), ("127.0.0.1", port)
        self.flows.set()

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self.flows.set()
            self.shutdown()
            thread.join()
            self.server_close()


class _Passing(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as server:
            back = threading.Thread(target=self._pass, args=(server, self.request))
            back.start()
            self._pass(self.request, server)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.server.flows.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


POINTS = {"put": "sink: half", "commit": "sink: committing"}


def _freeze(relay: Relay, wanted: str, point: str) -> None:
    if point == wanted:
        relay.flows.clear()


@pytest.mark.slow
@pytest.mark.parametrize("when", POINTS)
def test_postgres_that_falls_silent_in_the_middle_of_an_epoch(when: str) -> None:
    if servers.postgres_folder() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with servers.postgres_server() as url, Relay(port := urlsplit(url).port or 0) as relay, relay.serving():
        sink = sinks.postgres(url.replace(f":{port}/", f":{relay.server_address[1]}/"), "rows_all")
        stage = sink.begin(CLAIM, writer.COLUMNS)
        assert stage is not None
        receipts = [] if when == "put" else writer._put(0, stage)
        with outage('table "rows_all" of PostgreSQL'), faults.watch_points(partial(_freeze, relay, POINTS[when])):
            stage.commit(receipts) if receipts else writer._put(0, stage)
        relay.flows.set()
        staged.write_epoch(sink, CLAIM, writer.COLUMNS, lambda stage: writer._put(0, stage))
        assert sorted(writer.TableUnderTest("postgres", Path(), (), url).rows()) == sorted(writer.expected(1, ()))
