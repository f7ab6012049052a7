"""Durations of the parts of each epoch: measured by Headgate, and completed from Spark's report on request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.core.model import EpochPart, EpochSpan, EpochTiming
from headgate.spark.epochs.pace import Moment

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

RUN = "addBatch"
"""Spark's name for the duration of the callback; a report without this duration is of a query without new rows."""
BEFORE = {EpochPart.READ: ("latestOffset", "getBatch", "queryPlanning"), EpochPart.LOG: ("walCommit",)}
AFTER = {EpochPart.COMMIT: ("commitOffsets", "commitBatch")}
"""Spark's names for durations before and after the callback, by part of an epoch."""


class Stopwatch:
    """Cuts the time of one epoch into parts, one after another. Owner: the thread of the query."""

    def __init__(self, started: Moment, overhead_s: float) -> None:
        """`overhead_s` is Spark's own time before the epoch, as far as known; 0 for the first epoch."""
        self.spans = [EpochSpan(EpochPart.READ, overhead_s)] if overhead_s else []
        self._since_s = started.at_s
        self._attempt_at: int | None = None
        """Index in `spans` of the first span of the current attempt."""

    def lap(self, part: EpochPart, operator: str = "") -> None:
        """End a part of the epoch now."""
        now_s = time.monotonic()
        self.spans.append(EpochSpan(part, now_s - self._since_s, operator))
        self._since_s = now_s

    def begin_attempt(self) -> None:
        """Begin another attempt; the spans of a failed attempt become one span."""
        if self._attempt_at is not None:
            self.lap(EpochPart.FAILED)
            failed_s = sum(span.took_s for span in self.spans[self._attempt_at :])
            self.spans[self._attempt_at :] = [EpochSpan(EpochPart.FAILED, failed_s)]
        self._attempt_at = len(self.spans)


class EpochTimings:
    """The last epochs of one job. Owner: its lock."""

    def __init__(self, kept: int) -> None:
        self._lock = threading.Lock()
        self._epochs: deque[EpochTiming] = deque(maxlen=kept)

    def add(self, timing: EpochTiming) -> None:
        with self._lock:
            self._epochs.append(timing)

    def all(self) -> tuple[EpochTiming, ...]:
        with self._lock:
            return tuple(self._epochs)


def with_reports(epochs: Iterable[EpochTiming], reports: Iterable[StreamingQueryProgress]) -> tuple[EpochTiming, ...]:
    """Return the epochs with the parts that only Spark knows; an epoch that Spark no longer reports is unchanged."""
    durations = {report.batchId: report.durationMs for report in reports if RUN in report.durationMs}
    newest_first = [_with_report(one, durations.pop(one.number, None)) for one in reversed(tuple(epochs))]
    return tuple(reversed(newest_first))


def _with_report(epoch: EpochTiming, durations_ms: Mapping[str, int] | None) -> EpochTiming:
    if durations_ms is None:
        return epoch
    before, after = _spans(BEFORE, durations_ms), _spans(AFTER, durations_ms)
    started_s = epoch.started_s + epoch.seconds_of(EpochPart.READ) - sum(span.took_s for span in before)
    measured = (span for span in epoch.spans if span.part is not EpochPart.READ)
    return replace(epoch, started_s=started_s, spans=(*before, *measured, *after))


def _spans(parts: Mapping[EpochPart, tuple[str, ...]], durations_ms: Mapping[str, int]) -> list[EpochSpan]:
    return [EpochSpan(part, sum(durations_ms.get(name, 0) for name in names) / 1000) for part, names in parts.items()]
