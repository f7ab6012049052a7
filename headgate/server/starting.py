"""Starts the jobs of a starting service beside the control loop, the most valuable jobs first."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headgate.core.model import Action, Job, JobAllocation, Outcome, Snapshot
from headgate.ports import Engine, JobPhase, JobState
from headgate.server.registry import Registered
from headgate.topology import Topology

TOLD_S = 10.0
"""Seconds between two messages about how many jobs have started."""
TOLD_JOBS = 2
"""Least number of starting jobs for messages about how many jobs have started."""
ENDS_S = 20.0
"""Longest wait in seconds for all starts in flight when the service ends; the engine then ends the starts."""


class StartQueue:
    """A queue of starts of jobs, each a function that raises nothing. Owner: its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        """A heap of starts: the greatest worth first, then in the order of arrival."""
        self._closed = False

    def add(self, worth: float, start: Callable[[], None]) -> None:
        """Queue the start of a job."""
        with self._lock:
            heapq.heappush(self._waiting, (-worth, next(self._numbers), start))

    def run(self) -> None:
        """Start jobs until no job waits, or the queue is closed."""
        while (start := self._next()) is not None:
            start()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            return heapq.heappop(self._waiting)[2] if self._waiting and not self._closed else None

    @contextmanager
    def running(self, at_once: int) -> Iterator[None]:
        """Start jobs on `at_once` threads while the block runs; after the block, no further start begins."""
        threads = [threading.Thread(target=self.run, name="headgate-start", daemon=True) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._closed = True
            until_s = time.monotonic() + ENDS_S
            for thread in threads:
                thread.join(max(0.0, until_s - time.monotonic()))


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits for its start, with its allocation in the journal."""

    registered: Registered
    topology: Topology
    allocation: JobAllocation | None


class QueuedEngine:
    """The engine of a controller that resumes before jobs start: queued jobs start with the allocations of applied actions."""

    def __init__(self, engine: Engine, queued: MutableMapping[str, QueuedJob]) -> None:
        self._engine, self._queued = engine, queued

    def jobs(self) -> Mapping[str, Job]:
        return {name: one.topology.job() for name, one in self._queued.items()}

    def observe(self) -> Snapshot:
        return self._engine.observe()

    def apply(self, action: Action) -> Outcome:
        gone = action.changes.keys() - self._queued.keys()
        if gone:
            return Outcome(False, f"{', '.join(sorted(gone))} does not run any more")
        for name, allocation in action.changes.items():
            self._queued[name] = replace(self._queued[name], allocation=allocation)
        return Outcome(True)


class StartProgress:
    """Reports how many jobs have started, until all jobs have started. Only the control loop uses a `StartProgress`."""

    def __init__(self) -> None:
        self._sentence = ""
        self._next_s = 0.0

    def sentence(self, states: Mapping[str, JobState], now_s: float) -> str:
        """Return the next message; empty if the last message is recent, or if nothing has changed."""
        text = starts_in_words(states)
        if not self._sentence and sum(state.phase is JobPhase.STARTING for state in states.values()) < TOLD_JOBS:
            return ""
        if not text:
            done, self._sentence = bool(self._sentence), ""
            return f"all {len(wanted(states))} jobs started" if done else ""
        if text == self._sentence or (self._sentence and now_s < self._next_s):
            return ""
        self._sentence, self._next_s = text, now_s + TOLD_S
        return text


def wanted(states: Mapping[str, JobState]) -> list[JobState]:
    """Return the states of all jobs that are not paused."""
    return [state for state in states.values() if state.phase is not JobPhase.PAUSED]


def starts_in_words(states: Mapping[str, JobState]) -> str:
    """How many jobs have started; empty if all have.

    >>> starts_in_words({"a": JobState(JobPhase.RUNNING), "b": JobState(JobPhase.STARTING)})
    '1 of 2 jobs started'
    """
    jobs = wanted(states)
    starting = sum(state.phase is JobPhase.STARTING for state in jobs)
    return f"{len(jobs) - starting} of {len(jobs)} jobs started" if starting else ""
