"""Where a job stands: its phase with the reason, and what is wrong although it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum

from headgate import clock
from headgate.ports import JobPhase


@dataclass(frozen=True, slots=True)
class Standing:
    """The phase of a job, why it is in it, and since when."""

    phase: JobPhase
    reason: str = ""
    since_s: float = field(default_factory=clock.now_s)


class About(Enum):
    """What a notice is about; a job has at most one of each."""

    READING = "reading"
    UPKEEP = "upkeep"
    ARRIVALS = "arrivals"
    PROGRESS = "progress"
    LOSSES = "losses"


class Notices:
    """What is wrong with a job that runs, until it is no longer so. Owner: its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[About, str] = {}

    def set(self, about: About, text: str) -> None:
        """Empty: nothing is wrong any more."""
        with self._lock:
            if text:
                self._texts[about] = text
            else:
                self._texts.pop(about, None)

    def clear(self) -> None:
        """The job is started again: what was wrong before says nothing about it now."""
        with self._lock:
            self._texts.clear()

    def text(self) -> str:
        """All of them in one line."""
        with self._lock:
            return "; ".join(self._texts.values())
