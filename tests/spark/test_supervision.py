"""Spark, then the service, is killed: everything is started again, and the output is as if nothing had happened."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from headgate.server.client import Client
from headgate.server.home import Home

from .builders import column
from .conftest import Start, Until
from .processes import Run

JOB = """
from headgate import Intent, Topology, sinks, sources


def same(batches):
    yield from batches


def topology(out):
    job = Topology("copy", Intent(latency="30s"), pace_s=0.0)
    read = job.source("in", sources.load(200))
    job.sink("out", sinks.files(out), job.batches("same", same, read, schema="row long, arrived timestamp", lanes=2))
    return job
"""
HEADGATE = [sys.executable, "-c", "from headgate.cli import main; main()"]


def java_of(run: Run) -> list[psutil.Process]:
    """Spark's own process, wherever it hangs in the tree."""
    everything = psutil.Process(run.process.pid).children(recursive=True)
    return [one for one in everything if one.is_running() and one.name() == "java"]


def await_another(home: Home, before: int, until: Until) -> int:
    """The process of the next service that answers in this home."""
    until(lambda: (found := home.read_address()) is not None and found.pid != before, "the service is back")
    address = home.read_address()
    assert address is not None
    return address.pid


@pytest.mark.slow
def test_killed_spark_and_killed_service_are_started_again_without_a_wrong_row(
    tmp_path: Path, start: Start, until: Until
) -> None:
    (tmp_path / "copy.py").write_text(JOB)
    home, out = Home(tmp_path / "home"), tmp_path / "out"
    quick = ["--fast", "--set", "restart_s=0.2"]
    run = start(
        [*HEADGATE, "run", str(tmp_path / "copy.py"), "--param", f"out={out}", "--home", str(home.path), *quick]
    )
    first = await_another(home, 0, until)
    until(lambda: len(column(out)) > 200, "the first rows")
    (java,) = java_of(run)
    killed_s = time.monotonic()
    java.kill()
    until(lambda: home.read_address() is None, "the loss is noticed")
    assert time.monotonic() - killed_s < 10
    second = await_another(home, first, until)
    before = len(column(out))
    until(lambda: len(column(out)) > before, "rows after Spark was killed")
    os.kill(second, signal.SIGKILL)
    await_another(home, second, until)
    before = len(column(out))
    until(lambda: len(column(out)) > before, "rows after the service was killed")
    job = Client(home).status().jobs["copy"]
    assert (job.state, job.reason) == ("running", "")
    address = home.read_address()
    assert address is not None
    until(lambda: httpx.get(f"{address.url}/health").status_code == 200, "the service is healthy")
    assert len(java_of(run)) == 1
    run.process.send_signal(signal.SIGTERM)
    said = "".join(run.lines())
    assert run.wait() == 0, run.errors()
    assert "the Java process of Spark ended" in run.errors()
    assert "the service ended with exit code 75; it starts again in" in run.errors()
    assert "the service was ended by SIGKILL; it starts again in" in run.errors()
    assert "ran for" in said and "headgate: the output" not in run.errors()
    rows = column(out)
    assert rows == list(range(len(rows)))
