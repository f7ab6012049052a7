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
    """Few rows are all looked at; of many, a sample in every so many-th epoch. Owner: the thread of the job's query."""

    def __init__(self) -> None:
        self._waited: dict[str, ArrivalTimes] = {}
        """When rows had arrived, counted from the start of the epoch that was observed last."""
        self._unobserved: int | None = None
        """Epochs with many rows since then, all alike; None if the last one had few."""
        self._before: tuple[int, float] = (0, 0.0)
        """Rows and seconds of the last epoch."""

    def observing(self) -> Observing:
        """What the next epoch is looked at for."""
        if self._unobserved is None:
            return Observing.ALL
        return Observing.NONE if 0 < self._unobserved < OBSERVED_EVERY else Observing.SAMPLE

    def arrivals(self, observed: Mapping[str, ArrivalTimes], started_s: float) -> dict[str, ArrivalTimes]:
        """When the rows of an epoch that started then had arrived; rows that were seen not to say it are left out."""
        for name, found in observed.items():
            if found.quantiles_s:
                self._waited[name] = found.moved(-started_s)
            elif found.rows:
                self._waited.pop(name, None)
        return {name: waited.moved(started_s) for name, waited in self._waited.items()}

    def note_epoch(self, rows: int, took_s: float) -> None:
        """Epochs are alike while neither their rows nor their time differ much from one to the next."""
        before, self._before = self._before, (rows, took_s)
        if rows <= MANY_ROWS:
            self._unobserved = None
            return
        alike = all(1 / ALIKE <= now / then <= ALIKE for now, then in zip((rows, took_s), before, strict=True) if then)
        self._unobserved = (self._unobserved or 0) % OBSERVED_EVERY + 1 if alike else 0


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The rows of one epoch that give its latency. Times are wall time, as are those of producers."""

    graph: Graph
    shape: PlanShape
    sent: Mapping[str, int]
    """Rows that every operator put out."""
    arrivals: Mapping[str, ArrivalTimes]
    started_s: float
    read_to_s: float
    """When the epoch before was read, or the query started: rows that do not say when they arrived did so since then."""

    def latency(self, sink: str, finished_s: float) -> Latency | None:
        """By the rows at the sink if they still say when they arrived; else by those that went into the epoch."""
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
        """None if the rows of a source were to say when they arrived and do not."""
        if self.shape.observed.get(source) is not None:
            return self.arrivals.get(source)
        return self._evenly(rows)

    def _evenly(self, rows: int) -> ArrivalTimes:
        """Rows that do not say when they arrived did so evenly since the epoch before was read."""
        read_to_s = min(self.read_to_s, self.started_s)
        waited_s = self.started_s - read_to_s
        arrived_s = tuple(read_to_s + waited_s * quantile for quantile, _ in WEIGHTS)
        return ArrivalTimes(rows, rows, rows * (read_to_s + waited_s / 2), arrived_s)
