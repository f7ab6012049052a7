"""Retries: when a failed job is started again, and which of its failures is shown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headgate.config import SparkSettings
from headgate.ports import JobPhase
from headgate.spark.reasons import Failure, FailureKind

JITTER = 0.5
"""Random share of a wait, which spreads the restarts of jobs that failed in one outage."""


@dataclass(slots=True)
class Retries:
    """The consecutive failures of one job. Owner: the holder of the job's guard."""

    settings: SparkSettings
    _chance: random.Random = field(default_factory=random.Random)
    _in_a_row: int = 0
    _deterministic: int = 0
    _only_starts: bool = False
    """Whether all failures in a row were starts that a busy machine could not finish: the job did not fail yet."""
    _shown: Failure | None = None
    _due_s: float | None = None
    is_restarting: bool = False
    """Whether a thread is restarting the job, or is about to."""

    @property
    def reason(self) -> str:
        """The reason to show: the first deterministic failure, else the newest outage, else the reason of the failed start."""
        return self._shown.reason if self._shown is not None else ""

    @property
    def trace(self) -> str:
        """The stack trace of the failure in `reason`."""
        return self._shown.trace if self._shown is not None else ""

    def failed(self, failure: Failure, now_s: float) -> JobPhase:
        """Count a failure and return the next phase of the job; schedule a restart unless the job has failed for good."""
        self._in_a_row += 1
        self._only_starts = failure.cause is FailureKind.START and (self._only_starts or self._in_a_row == 1)
        self._show(failure)
        if failure.cause is FailureKind.DETERMINISTIC:
            self._deterministic += 1
            if self._deterministic > self.settings.retries:
                self._due_s = None
                return JobPhase.FAILED
        self._due_s = now_s + self._wait_s(failure.cause)
        is_starting = self._only_starts and self._in_a_row <= self.settings.start_failures
        return JobPhase.STARTING if is_starting else JobPhase.RETRYING

    def take_due(self, now_s: float) -> bool:
        """Whether the job is due for a restart; true once per failure, and then marks the job as restarting."""
        if self._due_s is None or now_s < self._due_s:
            return False
        self._due_s, self.is_restarting = None, True
        return True

    @property
    def awaits(self) -> bool:
        """Whether the job waits for a restart."""
        return self._due_s is not None

    def clear(self) -> None:
        """Forget earlier failures, because an epoch was finished or a person started the job."""
        self._in_a_row = self._deterministic = 0
        self._shown = self._due_s = None

    def _show(self, failure: Failure) -> None:
        """Show this failure, unless the shown one is deterministic, or this one is a failed start and another failure is shown."""
        shown = self._shown
        if shown is None or (shown.cause is not FailureKind.DETERMINISTIC and failure.cause is not FailureKind.START):
            self._shown = failure

    def _wait_s(self, cause: FailureKind) -> float:
        settings = self.settings
        limit_s = settings.back_off_limit_s if cause is FailureKind.DETERMINISTIC else settings.outage_retry_s
        wait_s = min(limit_s, settings.back_off_s * 2.0 ** min(self._in_a_row - 1, 30))
        return wait_s * (1 - JITTER * self._chance.random())
