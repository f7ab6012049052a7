"""Adds up the measurements of the epochs of one start: rows, arrival times, latency, progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.spark.epochs.carrying import Epoch
from headgate.spark.epochs.grants import Grant
from headgate.spark.epochs.pace import Moment
from headgate.spark.epochs.plan import Observing, PlanShape
from headgate.spark.jobs.context import JobContext
from headgate.spark.jobs.standing import About, Notices
from headgate.spark.measuring import progress
from headgate.spark.measuring.counters import FinishedEpoch, start_of
from headgate.spark.measuring.lag import Lags, Units
from headgate.spark.measuring.metering import ArrivalTimes, Counted
from headgate.spark.measuring.progress import Progress
from headgate.spark.measuring.sampling import EpochRows, Sampling


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one epoch."""

    sent: Mapping[str, int]
    """Rows that every operator put out."""
    observed: Mapping[str, ArrivalTimes]
    """Arrival times of rows, by the operator that observed the rows."""


class EpochCounting:
    """Measures and counts the epochs of one start. Owner: the thread of the query; `counters` and `lags` have locks of their own."""

    def __init__(
        self,
        context: JobContext,
        notices: Notices,
        grant: Grant,
        streams: Mapping[str, tuple[Units, ...]],
        before: Mapping[str, float],
    ) -> None:
        """`before` are the rows of each source that earlier starts processed."""
        self.counters = start_of(context.graph, grant.allocation, grant.version, before)
        self.lags = Lags(streams, before, int(context.topology.has_timers))
        self._context = context
        self._notices = notices
        self._sampling = Sampling()
        self._read_to_s = time.time()
        """Wall time at which the previous epoch was read, or at which the query started."""

    def query_starts(self) -> None:
        """Note the start of the query: rows that arrive from now on wait for its first epoch."""
        self._read_to_s = time.time()

    def observing(self) -> Observing:
        """Which arrival times to observe in the next epoch."""
        return self._sampling.observing()

    def measure(self, epoch: Epoch) -> Measured:
        """Measure an epoch; must be called after the sinks are written and before the epoch is released."""
        counted = epoch.counted()
        return Measured(self._sent(epoch, counted), counted.observed)

    def count(self, epoch: Epoch, measured: Measured, started: Moment, grant: Grant) -> float:
        """Add a finished epoch and return its duration in seconds."""
        graph, sent, shape = self._context.graph, measured.sent, epoch.blueprint.shape
        self._notice_unknown(measured.observed, shape)
        rows = sum(sent[source] for source in graph.sources)
        before = {source: self.counters.processed(source) for source in graph.sources}
        arrivals = self._sampling.arrivals(measured.observed, started.wall_s)
        put = EpochRows(graph, shape, sent, arrivals, started.wall_s, self._read_to_s)
        latency = [put.latency(sink, epoch.finished_s[sink]) for sink in graph.sinks]
        done = FinishedEpoch(grant.version, epoch.spec.tag, epoch.stages, rows)
        ended_s = time.monotonic()
        self.counters.end_epoch(ended_s, sent, latency, done, grant.allocation.lanes)
        self._sampling.note_epoch(rows, ended_s - started.at_s)
        self._read_to_s = started.wall_s
        self._save_progress(epoch.spec.number, before, {name: before[name] + sent[name] for name in before})
        return ended_s - started.at_s

    def _save_progress(self, epoch: int, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        self.lags.add_epoch(epoch, after)
        progress.save(self._context.place, Progress(epoch, before, after))

    def _sent(self, epoch: Epoch, counted: Counted) -> dict[str, int]:
        plan, sent = epoch.plan, dict[str, int]()
        for name, operator in self._context.graph.operators.items():
            if name in epoch.blueprint.shape.keeping:
                sent[name] = sent[operator.inputs[0]]
            elif name in plan.observed:
                sent[name] = counted.observed[name].rows if name in counted.observed else 0
            else:
                sent[name] = counted.rows.get(plan.meters.get(name, -1), 0)
        return sent

    def _notice_unknown(self, observed: Mapping[str, ArrivalTimes], shape: PlanShape) -> None:
        """Notify people of rows without an arrival time, which have no latency."""
        timed = [found for name, found in observed.items() if shape.observed[name] is not None]
        rows, unknown = sum(found.rows for found in timed), sum(found.rows - found.known for found in timed)
        text = f"{unknown:,} of {rows:,} rows of an epoch do not say when they arrived: their latency is not known"
        if rows:
            self._notices.set(About.ARRIVALS, text if unknown else "")
