"""What a service keeps for a while and then deletes: removed jobs, and dead letters."""

from __future__ import annotations

from pathlib import Path

from headgate.config import Settings
from headgate.server.dead_letters import DeadLetters
from headgate.server.removed import HOUR_S, RemovedJobs

EVERY_S = HOUR_S


class Retention:
    """Cleans up when the service starts and once per hour; only the loop calls `clean`."""

    def __init__(self, home: Path, settings: Settings) -> None:
        self.removed = RemovedJobs(home, settings.keep_removed_h)
        self.dead_letters = DeadLetters(home, settings.keep_dead_letters_h)
        self._next_s = 0.0

    def clean(self, now_s: float) -> list[str]:
        """Delete old removed jobs and dead letters, at most once per hour; returns the names of the deleted jobs."""
        if now_s < self._next_s:
            return []
        self._next_s = now_s + EVERY_S
        try:
            return self.removed.expire(now_s)
        finally:
            self.dead_letters.clean(now_s)
