"""An engine without Spark: jobs that count rows by the clock, and do what a test says about their latency and failures."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.clock import now_s
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.model import (
    OUTSIDE,
    Action,
    EpochTiming,
    Graph,
    HostReading,
    Job,
    JobAllocation,
    JobReading,
    OperatorReading,
    Outcome,
    Snapshot,
)
from headgate.errors import EngineError, InputError
from headgate.ports import JobPhase, JobState
from headgate.topology import Topology

RATE_ROWS_S = 100.0


class FakeEngine:
    def __init__(self, *_: object, latency_s: float = 0.5, clock: Callable[[], float] = now_s) -> None:
        self.topologies: dict[str, Topology] = {}
        self.allocations: dict[str, JobAllocation] = {}
        self.latencies_s: dict[str, float] = {}
        self.latency_s = latency_s
        self.backlog: float | None = 0.0
        self.closed = False
        self.refuses = ""
        self.unreadable = ""
        self.gone = ""
        self.threads: set[str] = set()
        self._states: dict[str, JobState] = {}
        self._clock = clock
        self._started_s = clock()
        self._versions: Counter[str] = Counter()

    # -- the controller's side

    def jobs(self) -> Mapping[str, Job]:
        return {name: self.topologies[name].job() for name in self._running()}

    def observe(self) -> Snapshot:
        self.threads.add(threading.current_thread().name)
        if self.unreadable:
            raise EngineError(self.unreadable)
        now_s = self._clock()
        return Snapshot(
            at_s=now_s,
            jobs={name: self._reading(name, now_s) for name in self._running()},
            allocation={name: self.allocations[name] for name in self._running()},
            hosts=(HostReading("here", 2, 1.0),),
        )

    def apply(self, action: Action) -> Outcome:
        changes = {name: change for name, change in action.changes.items() if name in self.topologies}
        self.allocations.update(changes)
        self._versions.update(list(changes))
        return Outcome(True)

    def _running(self) -> list[str]:
        return [name for name, state in self._states.items() if state.phase is JobPhase.RUNNING]

    def _reading(self, name: str, now_s: float) -> JobReading:
        graph = self.topologies[name].graph()
        elapsed_s = now_s - self._started_s
        lanes = self.allocations[name].lanes
        latency_s = self.latencies_s.get(name, self.latency_s)
        return JobReading(
            version=self._versions[name],
            operators={one: _operator(graph, one, elapsed_s, lanes.get(one, 1)) for one in graph.operators},
            arrived=dict.fromkeys(graph.sources, RATE_ROWS_S * elapsed_s),
            backlog=self.backlog,
            latency=Latency.weighted([(latency_s, 10.0)]),
            in_epochs_s=0.9 * elapsed_s,
            epochs=self._epoch(),
        )

    # -- the service's side

    def submit(self, topology: Any, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        if self.refuses:
            raise EngineError(self.refuses)
        if topology.name in self.topologies:
            raise InputError(f'there is a job "{topology.name}" already')
        self.topologies[topology.name] = topology
        self.allocations[topology.name] = allocation or topology.allocation()
        phase = JobPhase.PAUSED if paused else JobPhase.RUNNING
        self._states[topology.name] = JobState(phase, share=topology.share, since_s=self._clock())

    def remove(self, name: str, keep: bool = False) -> None:
        self._set(name)
        for table in (self.topologies, self.allocations, self._states):
            table.pop(name, None)

    def pause(self, name: str) -> None:
        self._set(name, phase=JobPhase.PAUSED)

    def resume(self, name: str) -> None:
        self._set(name, phase=JobPhase.RUNNING, reason="", epoch=None)

    def fail(self, name: str, reason: str, phase: JobPhase = JobPhase.FAILED, trace: str = "") -> None:
        self._set(name, phase=phase, reason=reason, trace=trace, epoch=self._epoch())

    def set_intent(self, name: str, intent: Intent) -> None:
        self._set(name)
        self.topologies[name].intent = intent

    def set_share(self, name: str, share: int) -> None:
        if share > 10:
            raise InputError(f'job "{name}": share is {share}; it must be at most 10')
        self._set(name, share=share)

    def vacate(self, host: str) -> None:
        """Nothing of it is anywhere."""

    def occupy(self, host: str) -> None:
        """The same."""

    def is_vacant(self, host: str) -> bool:
        return True

    def set_read_limit(self, name: str, rows: int | None) -> None:
        self._set(name, read_limit=rows)

    def states(self) -> Mapping[str, JobState]:
        now = self._epoch()
        return {
            name: state if state.reason else dataclasses.replace(state, epoch=now)
            for name, state in dict(self._states).items()
        }

    def _epoch(self) -> int:
        """Epochs that each job has finished."""
        return int(20 * (self._clock() - self._started_s))

    def hot_keys(self, name: str) -> Mapping[str, Mapping[str, float]]:
        return {}

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        return ()

    def lost(self) -> str:
        return self.gone

    def close(self) -> None:
        self.closed = True

    def _set(self, name: str, **changes: Any) -> None:
        if name not in self._states:
            raise InputError(f'there is no job "{name}"')
        self._states[name] = dataclasses.replace(self._states[name], **changes)


def _operator(graph: Graph, name: str, elapsed_s: float, lanes: int) -> OperatorReading:
    inputs, rows = graph.operators[name].inputs, RATE_ROWS_S * elapsed_s
    return OperatorReading(
        processed=dict.fromkeys(inputs, rows) if inputs else {OUTSIDE: rows},
        sent=dict.fromkeys(graph.children[name], rows),
        busy_s=(0.8 * elapsed_s,) * lanes,
    )


JOB = """
from headgate import Intent, Topology

def topology(name="orders", latency="2s", lanes=2):
    job = Topology(name, Intent(latency=latency, worth=35))
    orders = job.source("in", lambda spark: None)
    large = job.transform("large", lambda df: df, orders, lanes=lanes)
    job.sink("out", lambda df, epoch: None, large)
    return job
"""


def job_file(directory: Path, name: str = "orders.py", text: str = JOB) -> Path:
    path = directory / name
    path.write_text(text)
    return path
