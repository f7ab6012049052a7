"""Jobs that wait to be started when the service starts: beside the loop, the most valuable first."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headgate.core.model import Action, Job, JobAllocation, Outcome, Snapshot
from headgate.ports import Engine, JobPhase, JobState
from headgate.server.registry import Registered
from headgate.topology import Topology

TOLD_S = 10.0
"""Time between two sentences about how many jobs have started."""
TOLD_JOBS = 2
"""Fewer jobs than this start without a sentence about how many have started."""
ENDS_S = 20.0
"""Longest wait for the starts in flight when the service ends; the engine then ends them."""


class StartQueue:
    """Starts of jobs, each a function that raises nothing. Owner: its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        """A heap: the greatest worth first, then who came first."""
        self._closed = False

    def add(self, worth: float, start: Callable[[], None]) -> None:
        """Have a job started."""
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
        """Start so many jobs at once beside what goes on; at the end, no further start begins."""
        threads = [threading.Thread(target=self.run, name="headgate-start", daemon=True) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._closed = True
            for thread in threads:
                thread.join(ENDS_S)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits for its turn to start, with what the journal says that it had."""

    registered: Registered
    topology: Topology
    allocation: JobAllocation | None


class QueuedEngine:
    """Jobs that wait for their turn, as a controller sees them that resumes: what it applies, they start with."""

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
    """Tells how many jobs have started while some have not. Only the loop uses it."""

    def __init__(self) -> None:
        self._sentence = ""
        self._next_s = 0.0

    def sentence(self, states: Mapping[str, JobState], now_s: float) -> str:
        """What to tell now; empty if it was told lately, or has not changed."""
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
    """Jobs that are to run."""
    return [state for state in states.values() if state.phase is not JobPhase.PAUSED]


def starts_in_words(states: Mapping[str, JobState]) -> str:
    """How many jobs have started; empty if all have.

    >>> starts_in_words({"a": JobState(JobPhase.RUNNING), "b": JobState(JobPhase.STARTING)})
    '1 of 2 jobs started'
    """
    jobs = wanted(states)
    starting = sum(state.phase is JobPhase.STARTING for state in jobs)
    return f"{len(jobs) - starting} of {len(jobs)} jobs started" if starting else ""
