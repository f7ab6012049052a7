"""A job's counters: what its epochs add up to, and the reading that the controller takes of them. No Spark in here."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.core.latency import Latency, merge
from headgate.core.model import OUTSIDE, Graph, JobAllocation, JobReading, OperatorReading

Slices = tuple[tuple[float, ...], tuple[int, ...]]
"""Rows of each slice of a keyed operator so far, and its lane."""

MOST_UNREAD = 10_000
"""Epochs that are remembered while no reading is taken."""


@dataclass(frozen=True, slots=True)
class FinishedEpoch:
    """One finished epoch."""

    version: int
    tag: str
    stages: Mapping[str, tuple[tuple[tuple[str, int], ...], ...]]
    """Per sink, the stages that were planned."""
    rows: int
    """Rows read by all sources."""


@dataclass(slots=True)
class Counters:
    """Everything a job has counted since it started; safe to use from several threads."""

    graph: Graph
    version: int
    lanes: Mapping[str, int]
    processed_before: Mapping[str, float] = field(default_factory=dict)
    """Rows that each source's earlier runs had processed."""
    epochs: int = 0
    _as_given: int = 0
    """Epochs finished with the allocation of this version."""
    _sent: dict[str, float] = field(default_factory=dict)
    _busy: dict[str, list[float]] = field(default_factory=dict)
    _rows: dict[str, list[float]] = field(default_factory=dict)
    _hosts: dict[str, list[str]] = field(default_factory=dict)
    _in_epochs_s: float = 0.0
    _latency: list[Latency] = field(default_factory=list)
    _done: list[FinishedEpoch] = field(default_factory=list)
    _started_s: float | None = None
    _ended_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- written by the job's own thread

    def started(self, at_s: float, overhead_s: float) -> None:
        """An epoch has started; it took `overhead_s` before it got here."""
        with self._lock:
            self._started_s = at_s - overhead_s

    def finished(
        self,
        at_s: float,
        sent: Mapping[str, int],
        latency: Iterable[Latency | None],
        done: FinishedEpoch,
        lanes: Mapping[str, int],
    ) -> None:
        """It is done: `sent` are the rows that each operator put out, `lanes` what it ran on."""
        with self._lock:
            assert self._started_s is not None
            self._in_epochs_s += at_s - self._started_s
            self._started_s, self._ended_s = None, at_s
            self.epochs += 1
            if done.version != self.version:
                self.version, self.lanes, self._busy, self._rows, self._hosts = done.version, lanes, {}, {}, {}
                self._done.clear()
                self._as_given = 0
            self._as_given += 1
            self._done.append(done)
            for name, rows in sent.items():
                self._sent[name] = self._sent.get(name, 0.0) + rows
            self._latency += [part for part in latency if part is not None]
            del self._latency[:-MOST_UNREAD], self._done[:-MOST_UNREAD]

    def given_up(self) -> None:
        """The epoch in flight will never be done."""
        with self._lock:
            self._started_s = None

    def processed(self, source: str) -> float:
        """Rows of a source that are done, in this run and before."""
        return self.processed_before.get(source, 0.0) + self._sent.get(source, 0.0)

    # -- read by the controller's

    def epochs_of(self, version: int) -> int:
        """Epochs finished with the allocation of this version, if it is the newest one that any epoch had."""
        with self._lock:
            return self._as_given if version == self.version else 0

    def take_done(self) -> list[FinishedEpoch]:
        """The epochs that finished since the last time."""
        with self._lock:
            done, self._done = self._done, []
            return done

    def add_busy(self, version: int, busy_s: Mapping[str, Mapping[int, float]]) -> None:
        """Seconds that lanes were busy, by operator and lane."""
        self._add(self._busy, version, busy_s)

    def add_rows(self, version: int, rows: Mapping[str, Mapping[int, float]]) -> None:
        """Rows that lanes were given, by operator and lane."""
        self._add(self._rows, version, rows)

    def _add(self, counted: dict[str, list[float]], version: int, more: Mapping[str, Mapping[int, float]]) -> None:
        with self._lock:
            if version != self.version:
                return
            for name, by_lane in more.items():
                lanes = counted.setdefault(name, [0.0] * self._lanes_of(name))
                for lane, amount in by_lane.items():
                    lanes[lane % len(lanes)] += amount

    def ran_on(self, version: int, hosts: Mapping[str, Mapping[int, str]]) -> None:
        """The hosts that lanes ran on the last time, by operator and lane."""
        with self._lock:
            if version == self.version:
                for name, by_lane in hosts.items():
                    known = self._hosts.setdefault(name, [""] * self._lanes_of(name))
                    for lane, host in by_lane.items():
                        known[lane % len(known)] = host

    def reading(
        self, now_s: float, arrived: Mapping[str, float | None], slices: Mapping[str, Slices] | None = None
    ) -> JobReading:
        """Everything at one moment; latency since the reading before. The backlog is unknown if one source cannot tell."""
        with self._lock:
            processed = {source: self.processed(source) for source in self.graph.sources}
            known = {source: max(done, arrived.get(source) or 0.0) for source, done in processed.items()}
            waiting = sum(known[source] - processed[source] for source in processed)
            latency, self._latency = merge(self._latency), []
            in_flight_s = now_s - self._started_s if self._started_s is not None else 0.0
            return JobReading(
                version=self.version,
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
        busy = self._busy.get(name) or [0.0] * self._lanes_of(name)
        rows, hosts = self._rows.get(name), self._hosts.get(name)
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
        """A source that decides itself counts as one lane; other operators without lanes are part of those before them."""
        return self.lanes.get(name, 0 if self.graph.operators[name].inputs else 1)


def start_of(graph: Graph, allocation: JobAllocation, version: int, before: Mapping[str, float]) -> Counters:
    """Counters of a job that starts now."""
    return Counters(graph, version, allocation.lanes, before)
