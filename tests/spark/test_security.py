"""What other users of the machine can reach of an embedded Spark: nothing that does anything."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from headgate.config import SparkSettings
from headgate.errors import EngineError
from headgate.spark import security, session
from headgate.spark.engine import SparkEngine
from tests.spark.builders import burst, column, copied
from tests.spark.conftest import Until
from tests.spark.strangers import arguments_with, beyond_loopback, heard_by_stranger, listening


def gateway() -> Any:
    return SparkContext._gateway


class Victim:
    """Something of the driver's that Java may call."""

    def __init__(self) -> None:
        self.called = False

    def touch(self) -> str:
        self.called = True
        return "touched"


def call(target: str, method: str) -> bytes:
    return f"c\n{target}\n{method}\ne\n".encode()


@pytest.fixture
def victim(engine: SparkEngine) -> Iterator[Victim]:
    ensure_callback_server_started(gateway())  # PySpark's own, if it is not guarded
    found, pool = Victim(), gateway().gateway_property.pool
    pool.put(found, "victim")
    yield found
    del pool["victim"]


def test_other_user_cannot_call_objects_of_the_driver(victim: Victim) -> None:
    port = gateway()._callback_server.port
    assert heard_by_stranger(port, call("victim", "touch")) == b""
    assert not victim.called


def test_other_user_with_a_wrong_token_is_refused_too(victim: Victim) -> None:
    port = gateway()._callback_server.port
    assert not heard_by_stranger(port, b"A\nguess\ne\n" + call("victim", "touch")).startswith(b"!y")
    assert not victim.called


def test_other_user_cannot_call_java(engine: SparkEngine) -> None:
    heard = heard_by_stranger(gateway().gateway_parameters.port, call("z:java.lang.System", "currentTimeMillis"))
    assert b"Authentication error" in heard


def test_other_user_cannot_speak_to_the_driver_of_embedded_spark(engine: SparkEngine) -> None:
    body = b"hello"
    request = struct.pack(">BqI", 3, 1, len(body)) + body  # an RpcRequest of Spark's network layer
    port = int(engine.spark.sparkContext.getConf().get("spark.driver.port", ""))
    heard = heard_by_stranger(port, struct.pack(">Q", len(request) + 8) + request, enough=60)
    assert b"Unknown challenge message" in heard


def test_embedded_spark_encrypts_what_it_sends(engine: SparkEngine) -> None:
    told = dict(engine.spark.sparkContext.getConf().getAll())
    assert told["spark.authenticate"] == told["spark.network.crypto.enabled"] == "true"


def test_lanes_take_no_work_without_their_secret(engine, out, until) -> None:
    copy(engine, out, until)
    for port in daemons():
        guess = b"guess"
        heard = heard_by_stranger(port, struct.pack(">I", len(guess)) + guess, enough=11)
        assert heard[4:] == struct.pack(">I", 3) + b"err"  # after the number of the process


def copy(engine: SparkEngine, out: Path, until: Until) -> None:
    """Let a job with a lane and a checkpoint make an epoch."""
    engine.submit(copied("job", out, burst(10)))
    until(lambda: column(out) == list(range(10)), "the rows were written")


def daemons() -> list[int]:
    return [port for (_, port), who in listening().items() if "headgate.spark.processes.daemon pyspark.worker" in who]


def test_embedded_spark_listens_on_loopback_only(engine, out, until) -> None:
    copy(engine, out, until)
    assert daemons()
    assert not beyond_loopback()


def test_secret_of_the_gateway_is_no_argument(engine: SparkEngine) -> None:
    assert arguments_with(gateway().gateway_parameters.auth_token) == []


def test_secret_is_not_among_what_may_be_an_argument() -> None:
    told = security.encrypted(security.new_secret())
    assert security.SECRET in told and security.SECRET not in security.public(told)
    assert security.public(told)["spark.authenticate"] == "true"


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_missing_java_is_one_sentence(monkeypatch, tmp_path: Path, home: str | None) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(EngineError, match=r"^Spark needs Java 17 or later, but .*; install a JDK or set JAVA_HOME$"):
        session.start(tmp_path, SparkSettings())


def test_what_spark_and_lanes_write_is_for_their_user_only(engine, out, until) -> None:
    """Spark of these tests was started as the service starts it, with a mask that everything in it must keep to."""
    before = os.umask(0o077)
    try:
        copy(engine, out, until)
    finally:
        os.umask(before)
    place = engine.place_of("job")
    written = (*place.rglob("*"), *out.rglob("*"), *place.parents[1].glob("spark.*"))
    assert [path for path in written if path.lstat().st_mode & 0o077] == []
