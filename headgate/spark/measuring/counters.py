"""Counters of a job: sums over its epochs, and the reading that the controller takes. This module does not use Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headgate.core.latency import Latency, merge
from headgate.core.model import OUTSIDE, Graph, JobAllocation, JobReading, OperatorReading

Slices = tuple[tuple[float, ...], tuple[int, ...]]
"""Rows of each slice of a keyed operator so far, and the lane of each slice."""

MOST_UNREAD = 10_000
"""Most finished epochs that are remembered until the next reading."""


@dataclass(frozen=True, slots=True)
class FinishedEpoch:
    """The lanes, stages and rows of one finished epoch."""

    version: int
    tag: str
    stages: Mapping[str, tuple[tuple[tuple[str, int], ...], ...]]
    """The planned stages, by sink."""
    rows: int
    """Rows read by all sources."""


@dataclass(slots=True)
class LaneCounters:
    """Counts per lane under one version of the allocation. Owner: the lock of the `Counters`."""

    version: int
    lanes: Mapping[str, int]
    epochs: int = 0
    """Epochs finished with this version."""
    busy_s: dict[str, list[float]] = field(default_factory=dict)
    rows: dict[str, list[float]] = field(default_factory=dict)
    hosts: dict[str, list[str]] = field(default_factory=dict)
    unread: list[FinishedEpoch] = field(default_factory=list)
    """Epochs with tasks that have not been read."""


@dataclass(slots=True)
class Counters:
    """Counts of a job since its start. Owner: its lock."""

    graph: Graph
    _of_lanes: LaneCounters
    processed_before: Mapping[str, float] = field(default_factory=dict)
    """Rows that each source had processed before this start."""
    epochs: int = 0
    _sent: dict[str, float] = field(default_factory=dict)
    _in_epochs_s: float = 0.0
    _latency: list[Latency] = field(default_factory=list)
    _started_s: float | None = None
    _ended_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- written by the job's own thread

    def begin_epoch(self, at_s: float, overhead_s: float) -> None:
        """Note the start of an epoch, `overhead_s` before `at_s`."""
        with self._lock:
            self._started_s = at_s - overhead_s

    def end_epoch(
        self,
        at_s: float,
        sent: Mapping[str, int],
        latency: Iterable[Latency | None],
        done: FinishedEpoch,
        lanes: Mapping[str, int],
    ) -> None:
        """Count a finished epoch: `sent` has the rows that each operator put out, `lanes` the lanes of each operator."""
        with self._lock:
            assert self._started_s is not None
            self._in_epochs_s += at_s - self._started_s
            self._started_s, self._ended_s = None, at_s
            self.epochs += 1
            if done.version != self._of_lanes.version:
                self._of_lanes = LaneCounters(done.version, lanes)
            self._of_lanes.epochs += 1
            self._of_lanes.unread.append(done)
            for name, rows in sent.items():
                self._sent[name] = self._sent.get(name, 0.0) + rows
            self._latency += [part for part in latency if part is not None]
            del self._latency[:-MOST_UNREAD], self._of_lanes.unread[:-MOST_UNREAD]

    def abandon_epoch(self) -> None:
        """Forget the epoch in flight, which will not be finished."""
        with self._lock:
            self._started_s = None

    def processed(self, source: str) -> float:
        """The number of rows of a source that this start and earlier starts have processed."""
        return self.processed_before.get(source, 0.0) + self._sent.get(source, 0.0)

    # -- read by the controller's

    def epochs_of(self, version: int) -> int:
        """The number of epochs that finished with this version of the allocation; 0 unless it is the newest version of an epoch."""
        with self._lock:
            return self._of_lanes.epochs if version == self._of_lanes.version else 0

    def take_done(self) -> list[FinishedEpoch]:
        """Return the epochs that finished since the last call."""
        with self._lock:
            done, self._of_lanes.unread = self._of_lanes.unread, []
            return done

    def add_busy(self, version: int, busy_s: Mapping[str, Mapping[int, float]]) -> None:
        """Add seconds that lanes were busy, by operator and lane."""
        self._add(version, busy_s, lambda counted: counted.busy_s)

    def add_rows(self, version: int, rows: Mapping[str, Mapping[int, float]]) -> None:
        """Add rows that lanes were given, by operator and lane."""
        self._add(version, rows, lambda counted: counted.rows)

    def _add(
        self,
        version: int,
        more: Mapping[str, Mapping[int, float]],
        of: Callable[[LaneCounters], dict[str, list[float]]],
    ) -> None:
        with self._lock:
            if version != self._of_lanes.version:
                return
            counted = of(self._of_lanes)
            for name, by_lane in more.items():
                lanes = counted.setdefault(name, [0.0] * self._lanes_of(name))
                for lane, amount in by_lane.items():
                    lanes[lane % len(lanes)] += amount

    def set_hosts(self, version: int, hosts: Mapping[str, Mapping[int, str]]) -> None:
        """Set the hosts on which lanes ran last, by operator and lane."""
        with self._lock:
            if version == self._of_lanes.version:
                for name, by_lane in hosts.items():
                    known = self._of_lanes.hosts.setdefault(name, [""] * self._lanes_of(name))
                    for lane, host in by_lane.items():
                        known[lane % len(known)] = host

    def reading(
        self, now_s: float, arrived: Mapping[str, float | None], slices: Mapping[str, Slices] | None = None
    ) -> JobReading:
        """Return all counters, and the latency since the previous reading. The backlog is None if a source does not report its rows."""
        with self._lock:
            processed = {source: self.processed(source) for source in self.graph.sources}
            known = {source: max(done, arrived.get(source) or 0.0) for source, done in processed.items()}
            waiting = sum(known[source] - processed[source] for source in processed)
            latency, self._latency = merge(self._latency), []
            in_flight_s = now_s - self._started_s if self._started_s is not None else 0.0
            return JobReading(
                version=self._of_lanes.version,
                operators={name: self._operator(name, (slices or {}).get(name)) for name in self.graph.operators},
                arrived=known,
                backlog=None if any(arrived.get(source) is None for source in processed) else waiting,
                latency=latency,
                in_epochs_s=self._in_epochs_s + in_flight_s,
                epochs=self.epochs,
                epoch_age_s=None if self._ended_s is None else now_s - self._ended_s,
            )

    def _operator(self, name: str, slices: Slices | None) -> OperatorReading:
        inputs = self.graph.operators[name].inputs
        processed = {parent: self._sent.get(parent, 0.0) for parent in inputs} or {OUTSIDE: self.processed(name)}
        sent = dict.fromkeys(self.graph.children[name], self._sent.get(name, 0.0))
        busy = self._of_lanes.busy_s.get(name) or [0.0] * self._lanes_of(name)
        rows, hosts = self._of_lanes.rows.get(name), self._of_lanes.hosts.get(name)
        return OperatorReading(
            processed,
            sent,
            tuple(busy),
            lane_rows=tuple(rows) if rows else None,
            hosts=tuple(hosts) if hosts and all(hosts) else None,
            slice_rows=None if slices is None else slices[0],
            slice_lanes=None if slices is None else slices[1],
        )

    def _lanes_of(self, name: str) -> int:
        """The number of lanes of an operator: 1 for a source without lanes, 0 for another operator that runs in the lanes of its inputs."""
        return self._of_lanes.lanes.get(name, 0 if self.graph.operators[name].inputs else 1)


def start_of(graph: Graph, allocation: JobAllocation, version: int, before: Mapping[str, float]) -> Counters:
    """Counters of a job that starts now."""
    return Counters(graph, LaneCounters(version, allocation.lanes), before)
