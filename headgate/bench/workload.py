"""Jobs for benchmarks: rows by a load pattern, a given time of work or waiting per row, and a sink that keeps no rows."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.errors import EngineError
from headgate.scheduler.memory import Decision
from headgate.spark import session, sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.controller import Controller

ROWS = "row long, arrived timestamp"


@dataclass(frozen=True, slots=True)
class Work:
    """A function that takes a given time per row, on a core or waiting as for another service."""

    cpu_s: float = 0.0
    wait_s: float = 0.0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._spend(batch.num_rows)
            yield batch

    def _spend(self, rows: int) -> None:
        if self.wait_s:
            time.sleep(rows * self.wait_s)
        until_s = time.thread_time() + rows * self.cpu_s
        while time.thread_time() < until_s:
            np.sqrt(np.arange(500.0))


def job(
    name: str, intent: Intent, load: sources.Load | float, work: Work, lanes: int, pace_s: float | None = None
) -> Topology:
    """Return a job that reads rows, filters out some rows, works on each other row, and keeps none."""
    topology = Topology(name, intent, pace_s=pace_s)
    rows = topology.source("in", sources.load(load))
    some = topology.transform("filter", lambda frame: frame.where("row % 10 > 0"), rows)
    worked = topology.batches("work", work, some, schema=ROWS, lanes=lanes)
    topology.sink("out", sinks.discard(), worked)
    return topology


Round = tuple[View, Decision]


def watched(
    controller: Controller, for_s: float, each: Callable[[View, Decision], None] = lambda view, decision: None
) -> list[Round]:
    """Run rounds of the controller for `for_s` seconds; return the rounds."""
    rounds: list[Round] = []
    begun_s = time.time()
    round_s = controller.settings.round_s
    while time.time() - begun_s + round_s <= for_s:
        time.sleep(max(0.0, begun_s + (len(rounds) + 1) * round_s - time.time()))
        rounds.append(controller.round())
        each(*rounds[-1])
    return rounds


def satisfaction(view: View) -> float:
    """Return the utility of all jobs as a share of their worth."""
    return sum(one.utility or 0.0 for one in view.jobs.values()) / sum(one.worth for one in view.jobs.values())


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 if there are no values."""
    return sum(values) / len(values) if values else 0.0


@contextmanager
def home() -> Iterator[Path]:
    """Yield a temporary directory for one benchmark."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        yield Path(name)


@contextmanager
def engine(settings: SparkSettings, extra: Mapping[str, str] | None = None) -> Iterator[SparkEngine]:
    """Yield an embedded Spark for one measurement; `extra` overrides the configuration of Headgate."""
    with home() as place:
        opened = SparkEngine(session.start(place, settings, extra=extra), place, settings)
        try:
            yield opened
        finally:
            opened.close()


def wait_for(condition: Callable[[], object], within_s: float = 120.0) -> None:
    """Return once the condition holds; raise an error if the condition does not hold in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise EngineError("the benchmark waited in vain; something else keeps this machine busy")
        time.sleep(0.002)


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that started processes end, too; handlers work only in the main thread of a process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
