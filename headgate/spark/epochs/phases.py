"""Phases of all jobs of an engine: each job starts its next epoch at a moment at which few other jobs start."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headgate.core.phases import fair_gap_s, spread_start_s


@dataclass(frozen=True, slots=True)
class Phase:
    """The start of a job's next epoch, in monotonic time, and the pace of the job, in seconds."""

    next_s: float
    pace_s: float


class Phases:
    """The phase of each job. Owner: its lock."""

    def __init__(self, slack: float) -> None:
        """`slack` is the share of a job's pace by which an epoch may start before it is due."""
        self._slack = slack
        self._lock = threading.Lock()
        self._phases: dict[str, Phase] = {}

    def note_start(self, job: str, at_s: float, pace_s: float) -> None:
        """Note that an epoch of the job began: the next epoch is expected one pace later."""
        with self._lock:
            self._phases[job] = Phase(at_s + pace_s, pace_s)

    def choice_s(self, due_s: float, pace_s: float) -> float:
        """The earliest moment at which the start of an epoch that is due at `due_s` can be chosen."""
        return due_s - self._slack * pace_s

    def chosen_s(self, job: str, due_s: float, pace_s: float) -> float:
        """Choose a start, apart from the starts of other jobs, for an epoch that is due at `due_s`; other jobs avoid the choice."""
        with self._lock:
            others = [phase for other, phase in self._phases.items() if other != job]
            gap_s = fair_gap_s([pace_s, *(other.pace_s for other in others)])
            start_s = spread_start_s(due_s, self._slack * pace_s, gap_s, [other.next_s for other in others])
            self._phases[job] = Phase(start_s, pace_s)
            return start_s

    def forget(self, job: str) -> None:
        """Forget the phase of a job that is stopped."""
        with self._lock:
            self._phases.pop(job, None)
