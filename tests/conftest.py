"""What all suites share: the examples of properties, the order of modules, and a Redis."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest
from redis import Redis
from redis.exceptions import RedisError
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from headgate.bench.brokers import mock_broker

PATIENCE_S = 10.0
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile(
    "explore", deadline=None, derandomize=False, database=None, max_examples=500, print_blob=True
)
hypothesis.settings.load_profile("same")  # `make explore` asks for the other one

ON_ONE_SPARK = (
    ("carrying", "epochs", "failures", "keyed", "lag", "tasks"),
    (
        "adoption",
        "contract",
        "examples",
        "fencing",
        "health",
        "latency",
        "redis",
        "redis_loss",
        "removed",
        "security",
        "classes",
        "tracing",
        "log_context",
    ),
)
"""Modules of tests/spark that share a Spark, in two groups that take equally long: each Spark is slow for its first minute."""
LONGEST_FIRST = ("tests/spark/", "tests/scenarios/", "tests/server/", "tests/state/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take groups of tests in this order: the short ones come last, so that all workers end at the same time."""
    items.sort(key=_order)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return with_all_servers((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return with_all_servers((yield))


def with_all_servers(report: Report) -> Report:
    """Where all servers of Debian are installed (.ci/run), a test that is skipped because one is missing fails."""
    if report.skipped and not hasattr(report, "wasxfail") and "HEADGATE_ALL_SERVERS" in os.environ:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if "(Debian: " in reason:
            report.outcome, report.longrepr = (
                "failed",
                f"HEADGATE_ALL_SERVERS is set, but the test was skipped: {reason}",
            )
    return report


def _order(item: pytest.Item) -> tuple[bool, int]:
    place = next((at for at, begin in enumerate(LONGEST_FIRST) if item.nodeid.startswith(begin)), len(LONGEST_FIRST))
    return not _group(item.nodeid).startswith("spark-"), place


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of a group run in one worker, in their order. A module is a group, unless it shares a Spark with others."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def _group(nodeid: str) -> str:
    module = nodeid.partition("::")[0]
    names = ((number, f"tests/spark/test_{name}.py") for number, names in enumerate(ON_ONE_SPARK) for name in names)
    return next((f"spark-{number}" for number, name in names if name == module), module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups | None:
    return Groups(config, log) if config.getvalue("dist") == "loadscope" else None


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


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """A broker that speaks Kafka's protocol, for as long as the tests run; each test has topics of its own."""
    pytest.importorskip("confluent_kafka", reason="Kafka needs: pip install 'headgate[kafka]'")
    with mock_broker() as servers:
        yield servers


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
