"""One Spark for all tests of this directory; every test gets an engine without jobs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.config import SparkSettings, StateSettings
from headgate.spark import session
from headgate.spark.engine import SparkEngine

from .processes import Run

SETTINGS = SparkSettings(
    slots=8,
    back_off_s=0.2,
    outage_retry_s=1.0,
    retries=2,
    stop_s=30,
    first_pace_s=5.0,
    state=StateSettings(combine_rows=100),
)
REMEMBERED = {"spark.ui.retainedJobs": "150", "spark.ui.retainedStages": "150"}
"""Less than by default, so that Spark's memory of what it did comes to its level soon."""

# A JVM that lives for minutes is sooner done without its slow compiler and without verifying Spark's own classes: 40 % less
# processor time.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -Xverify:none"
)

Until = Callable[..., None]
Start = Callable[[Sequence[str]], Run]


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    home = tmp_path_factory.mktemp("headgate")
    before = os.umask(0o077)  # as the service does
    try:
        engine = SparkEngine(session.start(home, SETTINGS, extra=REMEMBERED), home, SETTINGS)
    finally:
        os.umask(before)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine: SparkEngine) -> Iterator[SparkEngine]:
    yield shared_engine
    for name in list(shared_engine.states()):
        shared_engine.remove(name)


@pytest.fixture
def spark(shared_engine: SparkEngine) -> SparkSession:
    return shared_engine.spark


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def until() -> Until:
    """Wait until something is true; fail with `what` if it never is."""

    def wait(condition: Callable[[], object], what: str, within_s: float = 180.0) -> None:
        deadline_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline_s, f"{what} did not happen within {within_s:g} s"
            time.sleep(0.05)

    return wait


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command in a session of its own; whatever is left of it at the end is killed."""
    runs: list[Run] = []

    def begin(command: Sequence[str]) -> Run:
        runs.append(Run(tmp_path, command))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.fixture
def schema_registry() -> Iterator[str]:
    """A schema registry with one schema, number 12."""
    schema = {
        "type": "record",
        "name": "order",
        "fields": [{"name": "id", "type": "long"}, {"name": "user", "type": "string"}],
    }

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/schemas/ids/12"
            body = json.dumps({"schema": json.dumps(schema)} if found else {}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
