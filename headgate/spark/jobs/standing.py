"""Standing of a job: its phase with the reason, and notices about a running job."""

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
    trace: str = ""
    epoch: int | None = None
    """Number of the failed epoch; None without a failure."""


class About(Enum):
    """The subject of a notice; a job has at most one notice per subject."""

    READING = "reading"
    UPKEEP = "upkeep"
    ARRIVALS = "arrivals"
    PROGRESS = "progress"
    LOSSES = "losses"
    HOSTS = "hosts"


class Notices:
    """Current problems of a running job. Owner: its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[About, str] = {}
        self._until: dict[About, int] = {}
        """Last epoch for which each notice is shown."""

    def set(self, about: About, text: str, until_epoch: int | None = None) -> None:
        """Set the notice about a subject; an empty text removes the notice."""
        with self._lock:
            self._drop(about)
            if text:
                self._texts[about] = text
            if text and until_epoch is not None:
                self._until[about] = until_epoch

    def expire(self, epoch: int) -> None:
        """Remove the notices that end before this epoch."""
        with self._lock:
            for about in [about for about, until in self._until.items() if epoch > until]:
                self._drop(about)

    def _drop(self, about: About) -> None:
        self._texts.pop(about, None)
        self._until.pop(about, None)

    def clear(self) -> None:
        """Remove all notices: problems of an earlier start say nothing about the new one."""
        with self._lock:
            self._texts.clear()
            self._until.clear()

    def text(self) -> str:
        """All notices in one line."""
        with self._lock:
            return "; ".join(self._texts.values())
