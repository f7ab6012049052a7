"""TLS, passwords and added partitions of Kafka, through a proxy in front of the mock broker; secrets stay out of every text and file."""

from __future__ import annotations

import json
import signal
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from headgate.errors import EngineError
from headgate.spark import sinks, sources
from headgate.spark.connections.patience import KafkaPatience, Patience
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.sinks.kafka import send
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers
from tests.kafka import Epochs, new_topic, read_all, write
from tests.kafka_proxy import KafkaProxy, certificate
from tests.spark.conftest import Start, Until

USER, PASSWORD = "shop", "marker-7f3a-secret"
SOON = Patience(kafka=KafkaPatience(answer_s=3.0, look_s=1.0))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(kafka_servers: str, signed: tuple[Path, ssl.SSLContext]) -> Iterator[KafkaProxy]:
    with KafkaProxy(kafka_servers, signed[1], (USER, PASSWORD)) as proxy, proxy.serving():
        yield proxy


def options(authority: Path | None, **more: Any) -> dict[str, Any]:
    trusted = {} if authority is None else {"ssl.ca.location": str(authority)}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": "env:SHOP_PASSWORD"}
    return {"security.protocol": "SASL_SSL", **login, **trusted, **more}


def test_rows_are_read_and_written_with_tls_and_a_password(
    secure: KafkaProxy, kafka_servers: str, signed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    topic, out = new_topic(), new_topic("out")
    write(kafka_servers, topic, [b"1", b"2"])
    source = sources.kafka(topic, servers=secure.address, options=options(signed[0]))
    assert [row["value"] for row in Epochs(source, tmp_path).rows()] == [b"1", b"2"]
    sink = sinks.kafka(out, servers=secure.address, delivery="at-least-once", options=options(signed[0]))
    rows = pa.RecordBatch.from_pylist([{"topic": out, "key": b"k", "value": b"3", "headers": None}])
    list(send(sink, Writing(JobStart("one", 1), sink="out"), iter([rows])))
    assert [row.value() for row in read_all(kafka_servers, out)] == [b"3"]
    assert PASSWORD not in f"{source!r} {sink!r} {source.reader_options(tmp_path)}"


@pytest.mark.parametrize("mistake, reason", [("password", "wrong user or password"), ("certificate", "certificate")])
def test_a_refused_login_is_told_without_the_secret(
    mistake: str, reason: str, secure: KafkaProxy, signed: Any, until: Until, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    wrong = f"{PASSWORD}-wrong"
    monkeypatch.setenv("SHOP_PASSWORD", wrong if mistake == "password" else PASSWORD)
    levers.write(tmp_path, Levers(patience=SOON))
    authority = signed[0] if mistake == "password" else None
    source = sources.kafka("orders", servers=secure.address, options=options(authority))

    def is_named() -> bool:
        """Whether the reason is in the error; a slow machine breaks the connection before the broker answers the login."""
        with pytest.raises((EngineError, LaneError), match=f"Kafka at {secure.address} could not be used") as refused:
            source.begin(tmp_path)
        told = str(refused.value)
        assert PASSWORD not in told
        return reason in told

    until(is_named, f"an error that names {reason}")


def test_partitions_that_are_added_are_read_from_their_first_row(kafka_servers: str, tmp_path: Path) -> None:
    topic = new_topic()
    write(kafka_servers, topic, [b"0", b"1"], partitions=2)
    with KafkaProxy(kafka_servers) as proxy, proxy.serving():
        proxy.partitions = 1
        epochs = Epochs(sources.kafka(topic, servers=proxy.address, start="latest"), tmp_path)
        assert epochs.rows() == []
        proxy.partitions = 2
        assert [(row["partition"], row["value"]) for row in epochs.rows()] == [(1, b"1")]


JOB = """
from headgate import Intent, Topology, sinks, sources

def topology():
    job = Topology("locked-out", Intent(latency="30s"))
    rows = job.source("in", sources.kafka("orders", servers={servers!r}, options={options!r}))
    job.sink("out", sinks.console(), rows)
    return job
"""


@pytest.mark.slow
def test_a_secret_of_a_failing_connection_is_in_no_file_and_no_output(
    secure: KafkaProxy, signed: Any, start: Start, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", f"{PASSWORD}-wrong")
    job, home = tmp_path / "job.py", tmp_path / "home"
    job.write_text(JOB.format(servers=secure.address, options=options(signed[0])))
    headgate, where = [sys.executable, "-m", "headgate.cli"], ["--home", str(home)]
    run = start([*headgate, "run", str(job), *where, "--fast", "--set", "kafka_answer_s=2"])
    told: list[str] = []

    def is_told() -> bool:
        status = start([*headgate, "status", "--json", *where])
        told.append("".join(status.lines()))
        status.wait()
        return "could not be used" in told[-1]

    until(is_told, "the reason in status")
    run.signal(signal.SIGINT)
    told += run.lines()
    run.wait()
    told.append(run.errors())
    assert PASSWORD not in "".join(told)
    assert (home / "jobs.json").exists() and json.loads((home / "jobs.json").read_text())
    assert not [path for path in home.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
