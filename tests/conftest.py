"""What several suites share: a Redis of their own, and laws that are checked without looking at the clock."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from redis import Redis
from redis.exceptions import RedisError

PATIENCE_S = 10.0

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis on a free port, for as long as the tests run."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.fail("these tests need a real Redis; install redis-server", pytrace=False)
    port, place = _free_port(), tmp_path_factory.mktemp("redis")
    with (place / "redis.log").open("wb") as log:
        process = subprocess.Popen([server, *_options(port, place)], stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_answer(process, port, place / "redis.log")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Redis]:
    """The same Redis, empty."""
    with Redis.from_url(redis_url) as client:
        client.flushall()
        yield client


def _options(port: int, place: Path) -> list[str]:
    kept = ["--save", "", "--appendonly", "no", "--dir", str(place)]
    return ["--port", str(port), "--bind", "127.0.0.1", *kept]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    with Redis(port=port) as client:
        while process.poll() is None and time.monotonic() < deadline_s:
            try:
                client.ping()
                return
            except RedisError:
                time.sleep(0.02)
    pytest.fail(f"redis-server does not answer:\n{log.read_text()}", pytrace=False)
