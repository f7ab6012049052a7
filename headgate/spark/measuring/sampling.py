"""Sampling: which epochs are checked for the arrival times of their rows, and the latency of these rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.latency import Latency, merge
from headgate.core.model import Graph
from headgate.spark.epochs.plan import Observing, PlanShape, sources_of
from headgate.spark.measuring.metering import MANY_ROWS, OBSERVED_EVERY, WEIGHTS, ArrivalTimes

ALIKE = 1.5
"""Epochs that differ by no more than this factor count as alike."""


class Sampling:
    """Chooses the rows to observe: all rows of small epochs, a sample in some of the large epochs. Owner: the thread of the job's query."""

    def __init__(self) -> None:
        self._waited: dict[str, ArrivalTimes] = {}
        """Arrival times in the last observed epoch, relative to the start of that epoch."""
        self._unobserved: int | None = None
        """Similar epochs with many rows since the last observed one; None if the last epoch had few rows."""
        self._before: tuple[int, float] = (0, 0.0)
        """Rows and seconds of the last epoch."""

    def observing(self) -> Observing:
        """Which rows of the next epoch to observe."""
        if self._unobserved is None:
            return Observing.ALL
        return Observing.NONE if 0 < self._unobserved < OBSERVED_EVERY else Observing.SAMPLE

    def arrivals(self, observed: Mapping[str, ArrivalTimes], started_s: float) -> dict[str, ArrivalTimes]:
        """Arrival times of the rows of an epoch that began at `started_s`; omits operators that observed rows without arrival times."""
        for name, found in observed.items():
            if found.quantiles_s:
                self._waited[name] = found.moved(-started_s)
            elif found.rows:
                self._waited.pop(name, None)
        return {name: waited.moved(started_s) for name, waited in self._waited.items()}

    def note_epoch(self, rows: int, took_s: float) -> None:
        """Note an epoch; similar epochs differ little in rows and duration from one to the next."""
        before, self._before = self._before, (rows, took_s)
        if rows <= MANY_ROWS:
            self._unobserved = None
            return
        alike = all(1 / ALIKE <= now / then <= ALIKE for now, then in zip((rows, took_s), before, strict=True) if then)
        self._unobserved = (self._unobserved or 0) % OBSERVED_EVERY + 1 if alike else 0


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The rows of one epoch, from which its latency is computed. Times are wall time, like the times of producers."""

    graph: Graph
    shape: PlanShape
    sent: Mapping[str, int]
    """Rows that every operator put out."""
    arrivals: Mapping[str, ArrivalTimes]
    started_s: float
    read_to_s: float
    """Time at which the previous epoch was read, or the query started; rows without an arrival time have arrived since then."""

    def latency(self, sink: str, finished_s: float) -> Latency | None:
        """The latency at a sink: from the sink's own rows if their arrival times are known, else from the rows that the epoch read."""
        put_out = self.sent[self.graph.operators[sink].inputs[0]]
        if sink in self.shape.observed:
            return self.arrivals[sink].latency(finished_s, put_out) if sink in self.arrivals else None
        read = {name: self.sent[name] for name in sources_of(self.graph, sink) if self.sent[name]}
        parts = [
            found.latency(finished_s, put_out * rows / sum(read.values()))
            for name, rows in read.items()
            if (found := self._arrivals_at(name, rows)) is not None
        ]
        return merge(parts)

    def _arrivals_at(self, source: str, rows: int) -> ArrivalTimes | None:
        """The arrival times of a source's rows; None if its rows should have arrival times and do not."""
        if self.shape.observed.get(source) is not None:
            return self.arrivals.get(source)
        return self._evenly(rows)

    def _evenly(self, rows: int) -> ArrivalTimes:
        """Return arrival times spread evenly since the previous epoch was read, for rows without arrival times."""
        read_to_s = min(self.read_to_s, self.started_s)
        waited_s = self.started_s - read_to_s
        arrived_s = tuple(read_to_s + waited_s * quantile for quantile, _ in WEIGHTS)
        return ArrivalTimes(rows, rows, rows * (read_to_s + waited_s / 2), arrived_s)
