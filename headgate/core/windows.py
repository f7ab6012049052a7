"""Windows: the readings of each job over a time, and what happened between two readings.

Engines report counters that only grow. A window is the difference of two readings, so a lost reading does no harm and Headgate
never sums a window again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.latency import Latency, merge
from headgate.core.model import HostReading, JobReading, Snapshot

ENOUGH_EPOCHS = 3
"""Fewest epochs per measurement: with fewer, the result depends on when between two epochs the reading was taken."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A reading of a job and its time in seconds."""

    at_s: float
    reading: JobReading


@dataclass(frozen=True, slots=True)
class Span:
    """Activity of a job between two readings of the same allocation."""

    first: Sample
    last: Sample
    latency: Latency | None

    @property
    def seconds(self) -> float:
        """Length of the span in seconds."""
        return self.last.at_s - self.first.at_s

    def ages_s(self) -> tuple[float, float]:
        """Seconds since the last epoch ended, at both ends of the span: counters change only when an epoch ends.

        Each age is capped at the mean time between epochs, so that a stuck epoch does not hide a backlog.
        """
        first, last = self.first.reading, self.last.reading
        if first.epochs == last.epochs:
            return 0.0, 0.0
        before_s, after_s = (min(one.epoch_age_s or 0.0, period_s(self)) for one in (first, last))
        return (before_s, after_s) if self.seconds + before_s > after_s else (0.0, 0.0)

    @property
    def whole_epochs_s(self) -> float:
        """Seconds from the last epoch end before the span to the last epoch end in the span; without epochs, the span."""
        before_s, after_s = self.ages_s()
        return self.seconds + before_s - after_s

    def arrived(self, source: str) -> float:
        """Rows that arrived at a source."""
        return self.last.reading.arrived[source] - self.first.reading.arrived.get(source, 0.0)

    def processed(self, operator: str, parent: str) -> float:
        """Rows from one parent that an operator processed."""
        before = self.first.reading.operators[operator].processed
        return self.last.reading.operators[operator].processed[parent] - before.get(parent, 0.0)

    def sent(self, operator: str, child: str) -> float:
        """Rows an operator sent to one child."""
        before = self.first.reading.operators[operator].sent
        return self.last.reading.operators[operator].sent[child] - before.get(child, 0.0)

    def busy_s(self, operator: str) -> tuple[float, ...]:
        """Seconds each lane of an operator was busy."""
        before = self.first.reading.operators[operator].busy_s
        now = self.last.reading.operators[operator].busy_s
        return tuple(b - a for a, b in zip(before, now, strict=True))

    def of_lanes(self, operator: str, counter: str) -> tuple[float, ...] | None:
        """Growth of an optional counter per lane or slice: `lane_rows`, `queued`, `held_s`, `slice_rows`; None if unknown.

        A counter that the first reading lacks, because nothing had run yet, counts from 0.
        """
        before = getattr(self.first.reading.operators[operator], counter)
        now = getattr(self.last.reading.operators[operator], counter)
        if now is None or (before is not None and len(before) != len(now)):
            return None
        if before is None:
            return tuple(now)
        return tuple(b - a for a, b in zip(before, now, strict=True))

    def rows_in(self, operator: str) -> float:
        """Rows that an operator processed, from all parents."""
        before = sum(self.first.reading.operators[operator].processed.values())
        return sum(self.last.reading.operators[operator].processed.values()) - before

    def arrival_rows_s(self) -> float:
        """Input of the job over all sources, in rows per second."""
        return sum(self.arrived(source) for source in self.last.reading.arrived) / self.seconds


# -- windows ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Windows:
    """The readings of each job in the last window."""

    samples: Mapping[str, tuple[Sample, ...]]
    unread: frozenset[str] = frozenset()
    """Running jobs without a reading in the last snapshot."""
    hosts: tuple[tuple[float, tuple[HostReading, ...]], ...] = ()
    """Time and host readings of each snapshot in the last window."""

    def push(self, snapshot: Snapshot, window_s: float, longer_s: Mapping[str, float] | None = None) -> Windows:
        """Add one snapshot, and drop readings older than the window and readings of removed jobs.

        `longer_s` maps jobs to a window length other than `window_s`. A reading that is not newer than the last reading of its job
        is ignored.
        """
        own = longer_s or {}
        kept = {
            name: self._appended(name, reading, snapshot.at_s, own.get(name, window_s))
            for name, reading in snapshot.jobs.items()
        }
        unread = frozenset(name for name, reading in snapshot.jobs.items() if reading is None)
        hosts = tuple(one for one in self.hosts if snapshot.at_s - window_s - 1e-6 <= one[0] < snapshot.at_s)
        return Windows(kept, unread, (*hosts, (snapshot.at_s, snapshot.hosts)))

    def _appended(self, name: str, reading: JobReading | None, at_s: float, window_s: float) -> tuple[Sample, ...]:
        old = self.samples.get(name, ())
        if reading is None or (old and at_s <= old[-1].at_s):
            return old
        oldest_s = at_s - window_s - 1e-6
        return (*(sample for sample in old if sample.at_s >= oldest_s), Sample(at_s, reading))


def span_of(samples: tuple[Sample, ...]) -> Span | None:
    """The span from the first to the last sample; None with fewer than two samples."""
    if len(samples) < 2:
        return None
    return Span(samples[0], samples[-1], merge(sample.reading.latency for sample in samples[1:]))


def newest(samples: tuple[Sample, ...], sub_windows: int) -> tuple[Sample, ...]:
    """Samples of the newest `sub_windows` sub-windows; with epochs, of enough sub-windows to hold three epochs."""
    for count in range(sub_windows + 1, len(samples)):
        first, last = samples[-count].reading.epochs, samples[-1].reading.epochs
        if first is None or last is None or last - first >= ENOUGH_EPOCHS:
            return samples[-count:]
    return samples


def grace_s(span: Span) -> float:
    """Seconds that a row may wait before it is late: two periods between epochs, at most half the span.

    The cap keeps a job that falls behind from extending its own grace time.
    """
    return min(2 * period_s(span), span.seconds / 2)


def period_s(span: Span) -> float:
    """Mean seconds between two epochs, at most the span; 0 without epochs."""
    first, last = span.first.reading.epochs, span.last.reading.epochs
    if first is None or last is None:
        return 0.0
    return span.seconds / max(1, last - first)


def in_epochs_s(span: Span) -> float | None:
    """Seconds of the span that epochs took; None without epochs."""
    first, last = span.first.reading.in_epochs_s, span.last.reading.in_epochs_s
    return None if first is None or last is None else last - first


def epoch_s(span: Span) -> float | None:
    """Mean duration of an epoch in seconds; None if no epoch ended in the span."""
    spent = in_epochs_s(span)
    first, last = span.first.reading.epochs, span.last.reading.epochs
    if spent is None or first is None or last is None or last <= first:
        return None
    return spent / (last - first)
