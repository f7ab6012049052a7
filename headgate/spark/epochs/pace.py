"""Pace of one start of a job: when each epoch begins, and when no further epoch begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from headgate.spark.epochs.phases import Phases

SLOWER = 1.1
"""Largest growth of the estimate of Spark's own time from one epoch to the next, as a factor."""


class Stopped(Exception):
    """Raised inside a query's callback to end the query: `query.stop()` during a callback prints a stack trace."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by both clocks: arrivals of rows are in wall time, durations in monotonic time."""

    wall_s: float
    at_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())


class Pace:
    """The pace of one start of a job. Each start has its own pace: a thread that outlives its start finds that pace stopped for ever.

    Owner: the thread of the query. Any thread may stop, cut off or wake.
    """

    def __init__(self, job: str = "", phases: Phases | None = None) -> None:
        """Without phases, an epoch starts when the epoch is due, whatever other jobs do."""
        self._job, self._phases = job, phases or Phases(0.0)
        self.overhead_s = 0.0
        """Spark's own time per epoch, for offsets, log and commit, in seconds."""
        self._ended_s: float | None = None
        """Monotonic time at which the last epoch ended; None before the first one."""
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = threading.Event()
        self._cut_off = threading.Event()
        self._wake = threading.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no epoch is in flight."""
        return self._idle.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch begins."""
        return self._stopping.is_set()

    def begin(self) -> Moment:
        """Begin an epoch; raise `Stopped` if the start is stopped."""
        if self.is_stopping:
            raise Stopped
        self._idle.clear()
        now = Moment.now()
        if self._ended_s is not None:
            # Between two callbacks Spark also waits for rows: a long gap is not overhead.
            gap_s = now.at_s - self._ended_s
            self.overhead_s = gap_s if self.overhead_s == 0 else min(gap_s, SLOWER * self.overhead_s)
        return now

    def end(self) -> None:
        """End the epoch in flight, with or without an error."""
        self._ended_s = time.monotonic()
        self._idle.set()

    def wait(self, started: Moment, pace_s: Callable[[], float | None]) -> None:
        """Wait until the pace lets the next epoch begin; a new pace counts at once."""
        has_s = pace_s() or 0.0
        self._phases.note_start(self._job, started.at_s, has_s)
        start_s: float | None = None
        while not self.is_stopping:
            self._wake.clear()
            now_s, before_s, has_s = time.monotonic(), has_s, pace_s() or 0.0
            due_s = started.at_s + has_s - self.overhead_s
            until_s = start_s if start_s is not None and has_s == before_s else self._phases.choice_s(due_s, has_s)
            if until_s <= now_s and start_s != until_s and due_s > now_s:
                # Choose late, after the other jobs have chosen; an epoch that is overdue starts at once.
                start_s = until_s = self._phases.chosen_s(self._job, due_s, has_s)
            if until_s <= now_s or self.is_stopping:
                return
            self._wake.wait(until_s - now_s)

    def wake(self) -> None:
        """Wake a thread that waits, because the pace may have changed."""
        self._wake.set()

    def stop(self) -> None:
        """Let the epoch in flight finish, and begin no other."""
        self._stopping.set()
        self._phases.forget(self._job)
        self._wake.set()

    def cut_off(self) -> None:
        """Keep the epoch in flight from taking effect, and begin no other."""
        self._cut_off.set()
        self.stop()

    def check_not_cut_off(self) -> None:
        if self._cut_off.is_set():
            raise Stopped
