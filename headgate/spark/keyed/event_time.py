"""Event time of a keyed operator: the watermark of each epoch, and the wait for the next timer while no row arrives.

The watermark is the latest event time seen, less the lateness. While no row arrives, the watermark advances with the clock, from the moment
when the latest event was read. A row that is late by no more than the lateness is never behind the watermark, even if no other
row arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headgate.state.checkpoint import NO_CLOCK, EpochWatermark


@dataclass(slots=True)
class EventTime:
    """The watermark and the next timer of a keyed operator: event times in milliseconds, clock times in seconds of `time.monotonic()`.

    Owner: the thread of the query.
    """

    lateness_ms: int
    follows_clock: bool
    epoch: int = -1
    clock: EpochWatermark = NO_CLOCK
    """The watermark of epoch `epoch`, and the watermark of the next epoch."""
    _next_s: float = 0.0
    """Clock time at which the watermark was `clock.next_ms`."""
    _begun_s: float = 0.0
    _timer_ms: int | None = None
    """The earliest timer that is set."""

    def resume(self, epoch: int, clock: EpochWatermark, now_s: float) -> None:
        """Continue from the clock of an earlier run; how long ago that run ended is not known."""
        self.epoch, self.clock, self._next_s = epoch, clock, now_s

    def watermark_ms(self, epoch: int) -> int | None:
        """The watermark of the epoch that runs, or runs again."""
        return self.clock.watermark_ms if epoch == self.epoch else self.clock.next_ms

    def begin(self, epoch: int, now_s: float) -> bool:
        """Begin an epoch; return whether the clock has moved its watermark, which must be written down before the epoch runs."""
        self._begun_s = now_s
        timer_ms, known_ms = self._timer_ms, self.clock.next_ms
        if epoch == self.epoch or timer_ms is None or known_ms is None or self.wait_s(now_s) != 0:
            return False
        # Taken once: an epoch that is tried again in this process has the watermark of the first try.
        self._timer_ms = None
        if timer_ms <= known_ms:
            return False
        self.clock, self._next_s = replace(self.clock, next_ms=known_ms + self._passed_ms(now_s)), now_s
        return True

    def end(self, epoch: int, latest_ms: Sequence[int], timer_ms: int | None) -> None:
        """End an epoch, with the latest event times of its lanes and the earliest timer that is left."""
        before = self.watermark_ms(epoch)
        known = [at_ms - self.lateness_ms for at_ms in latest_ms] + ([] if before is None else [before])
        after = max(known, default=None)
        if after != before:
            self._next_s = self._begun_s
        self.epoch, self.clock, self._timer_ms = epoch, EpochWatermark(before, after), timer_ms

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next timer is due; None without a timer, or if the timer waits for another row."""
        if self._timer_ms is None or self.clock.next_ms is None:
            return None
        left_ms = self._timer_ms - self.clock.next_ms - self._passed_ms(now_s)
        if left_ms > 0 and not self.follows_clock:
            return None
        return max(0.0, left_ms / 1000)

    def _passed_ms(self, now_s: float) -> int:
        return round(1000 * (now_s - self._next_s)) if self.follows_clock else 0
