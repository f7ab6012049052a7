"""Ctrl-C ends a run in order: the epoch in flight is finished, nothing is left running, no stack trace is shown."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from .builders import column, written
from .conftest import Start, Until

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


@pytest.mark.slow
def test_ctrl_c_finishes_the_epoch_in_flight_and_stops_quietly(tmp_path: Path, start: Start, until: Until) -> None:
    (tmp_path / "copy.py").write_text(JOB)
    home, out = tmp_path / "home", tmp_path / "out"
    headgate = [sys.executable, "-c", "from headgate.cli import main; main()"]
    run = start([*headgate, "run", str(tmp_path / "copy.py"), "--param", f"out={out}", "--home", str(home)])
    until(lambda: len(written(out)) >= 3, "the first epochs")
    time.sleep(0.13)
    run.signal(signal.SIGINT)
    said = "".join(run.lines())
    assert run.wait() == 0, run.errors()
    for word in ("Traceback", "StackOverflowError", "Exception", "Error"):
        assert word not in said + run.errors()
    begun = {int(path.name.removeprefix("epoch=")) for path in out.glob("epoch=*")}
    committed = {int(path.name) for path in (home / "jobs/copy/checkpoint/commits").glob("[0-9]*")}
    assert begun == set(written(out))
    assert max(committed) == max(begun)
    rows = column(out)
    assert rows == list(range(len(rows)))
