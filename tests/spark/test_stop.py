"""Ctrl-C ends a run in order: the epoch in flight is finished, nothing is left running, nothing is printed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .builders import column, written
from .test_restart import Run, runs

__all__ = ["runs"]


def test_ctrl_c_finishes_the_epoch_in_flight_and_stops_quietly(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, rows=100_000)
    runs.append(run)
    for done in run.told():
        if done and done[0] >= 300:
            break
    os.killpg(run.process.pid, signal.SIGINT)
    told = [done[0] for done in run.told() if done]
    assert run.wait() == 0, run.errors()
    for word in ("Traceback", "StackOverflowError", "Exception", "Error"):
        assert word not in run.errors()
    started = {int(path.name.removeprefix("epoch=")) for path in (tmp_path / "out").glob("epoch=*")}
    assert started == set(written(tmp_path / "out"))
    rows = column(tmp_path / "out")
    assert rows == list(range(len(rows)))
    assert len(rows) >= max([300, *told])
    committed = {int(path.name) for path in (tmp_path / "home/jobs/files/checkpoint/commits").glob("[0-9]*")}
    assert max(committed) == max(started)
