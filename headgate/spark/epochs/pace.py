"""Pace of one start: when each epoch begins, and when no epoch begins any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from headgate.spark.epochs.phases import Phases

SLOWER = 1.1
"""From one epoch to the next, Spark's own time is believed to grow by this factor at most."""


class Stopped(Exception):
    """Ends a query from inside its callback: `query.stop()` during a callback prints a stack trace."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by both clocks: arrivals of rows are in wall time, durations in monotonic time."""

    wall_s: float
    at_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())


class Pace:
    """The pace of one start. A start never gets the pace of another: a thread that outlives its start finds it stopped for ever.

    Owner: the thread of the query. Any thread may stop, cut off or wake.
    """

    def __init__(self, job: str = "", phases: Phases | None = None) -> None:
        """Without phases, an epoch starts when it is due, whatever other jobs do."""
        self._job, self._phases = job, phases or Phases(0.0)
        self.overhead_s = 0.0
        """Spark's own time per epoch, for offsets, log and commit."""
        self._ended_s: float | None = None
        """When the last epoch ended."""
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
        """An epoch begins, unless the start is stopped."""
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
        """The epoch in flight has ended, with or without an error."""
        self._ended_s = time.monotonic()
        self._idle.set()

    def wait(self, started: Moment, pace_s: Callable[[], float | None]) -> None:
        """Until the pace lets the next epoch begin; a new pace counts at once."""
        has_s = pace_s() or 0.0
        self._phases.note_start(self._job, started.at_s, has_s)
        start_s: float | None = None
        while not self.is_stopping:
            self._wake.clear()
            now_s, before_s, has_s = time.monotonic(), has_s, pace_s() or 0.0
            due_s = started.at_s + has_s - self.overhead_s
            until_s = start_s if start_s is not None and has_s == before_s else self._phases.choice_s(due_s, has_s)
            if until_s <= now_s and start_s != until_s and due_s > now_s:
                # Late, so that the other jobs have chosen by then: an epoch that is overdue starts at once.
                start_s = until_s = self._phases.chosen_s(self._job, due_s, has_s)
            if until_s <= now_s or self.is_stopping:
                return
            self._wake.wait(until_s - now_s)

    def wake(self) -> None:
        """The pace may have changed."""
        self._wake.set()

    def stop(self) -> None:
        """Let the epoch in flight finish, and begin no other."""
        self._stopping.set()
        self._phases.forget(self._job)
        self._wake.set()

    def cut_off(self) -> None:
        """The epoch in flight must not take effect any more."""
        self._cut_off.set()
        self.stop()

    def check_not_cut_off(self) -> None:
        if self._cut_off.is_set():
            raise Stopped
