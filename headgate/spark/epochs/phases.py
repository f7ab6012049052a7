"""When each job starts its next epoch, for all jobs of an engine: each job chooses a moment at which few others start."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headgate.core.phases import fair_gap_s, spread_start_s


@dataclass(frozen=True, slots=True)
class Phase:
    """When a job starts its next epoch, in monotonic time, and its pace."""

    next_s: float
    pace_s: float


class Phases:
    """The phase of each job. Owner: its lock."""

    def __init__(self, slack: float) -> None:
        """Epochs may start earlier than due by this share of the pace of their job."""
        self._slack = slack
        self._lock = threading.Lock()
        self._phases: dict[str, Phase] = {}

    def note_start(self, job: str, at_s: float, pace_s: float) -> None:
        """An epoch of the job began: the next one is expected after its pace."""
        with self._lock:
            self._phases[job] = Phase(at_s + pace_s, pace_s)

    def choice_s(self, due_s: float, pace_s: float) -> float:
        """From when on the start of an epoch that is due can be chosen."""
        return due_s - self._slack * pace_s

    def chosen_s(self, job: str, due_s: float, pace_s: float) -> float:
        """When the job is to start an epoch that is due; the other jobs take this into account."""
        with self._lock:
            others = [phase for other, phase in self._phases.items() if other != job]
            gap_s = fair_gap_s([pace_s, *(other.pace_s for other in others)])
            start_s = spread_start_s(due_s, self._slack * pace_s, gap_s, [other.next_s for other in others])
            self._phases[job] = Phase(start_s, pace_s)
            return start_s

    def forget(self, job: str) -> None:
        """The job is stopped."""
        with self._lock:
            self._phases.pop(job, None)
