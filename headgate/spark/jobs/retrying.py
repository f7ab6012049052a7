"""Retries: when a failed job is started again, and which of its failures is shown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headgate.config import SparkSettings
from headgate.ports import JobPhase
from headgate.spark.reasons import Failure, FailureKind

JITTER = 0.5
"""Part of a wait that is left to chance, so that jobs of one outage do not all come back at once."""


@dataclass(slots=True)
class Retries:
    """The failures of one job since something last went well. Owner: the holder of the job's guard."""

    settings: SparkSettings
    _chance: random.Random = field(default_factory=random.Random)
    _in_a_row: int = 0
    _deterministic: int = 0
    _only_starts: bool = False
    """Whether all failures in a row were starts that a busy machine could not finish: the job did not fail yet."""
    _shown: Failure | None = None
    _due_s: float | None = None
    is_restarting: bool = False
    """Whether a thread is about to start the job again, or does so now."""

    @property
    def reason(self) -> str:
        """The reason to show: the first deterministic failure, else the newest outage, else the reason of the failed start."""
        return self._shown.reason if self._shown is not None else ""

    @property
    def trace(self) -> str:
        """The stack trace of the failure in `reason`."""
        return self._shown.trace if self._shown is not None else ""

    def failed(self, failure: Failure, now_s: float) -> JobPhase:
        """Count a failure; returns the phase of the job, which is started again after a while unless it has failed for good."""
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
        """Whether it is time to start it again; true once for each failure, and then it is restarting."""
        if self._due_s is None or now_s < self._due_s:
            return False
        self._due_s, self.is_restarting = None, True
        return True

    @property
    def awaits(self) -> bool:
        """Whether the job waits to be started again."""
        return self._due_s is not None

    def clear(self) -> None:
        """An epoch was finished, or a person started the job: earlier failures do not count any more."""
        self._in_a_row = self._deterministic = 0
        self._shown = self._due_s = None

    def _show(self, failure: Failure) -> None:
        """A deterministic failure stays on show; one that says nothing about the job never replaces another."""
        shown = self._shown
        if shown is None or (shown.cause is not FailureKind.DETERMINISTIC and failure.cause is not FailureKind.START):
            self._shown = failure

    def _wait_s(self, cause: FailureKind) -> float:
        settings = self.settings
        limit_s = settings.back_off_limit_s if cause is FailureKind.DETERMINISTIC else settings.outage_retry_s
        wait_s = min(limit_s, settings.back_off_s * 2.0 ** min(self._in_a_row - 1, 30))
        return wait_s * (1 - JITTER * self._chance.random())
