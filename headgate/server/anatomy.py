"""The inside of a running job, measured over its window: operators, edges, lanes, slices, and where the time of an epoch goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from headgate.core.metrics import JobView, Sample, Span, capacities, epoch_s, period_s, span_of
from headgate.core.model import OUTSIDE, Graph, spread_evenly

SHOWN_EPOCHS = 30


@dataclass(frozen=True, slots=True)
class LaneDetail:
    """One lane of an operator; None where the engine does not say."""

    rows_s: float | None
    busy: float | None
    """Share of the window in which the lane was busy; the busiest lane has that of its operator."""
    host: str | None


@dataclass(frozen=True, slots=True)
class SliceDetail:
    """One slice of the keys of an operator."""

    lane: int
    host: str | None
    rows_s: float


@dataclass(frozen=True, slots=True)
class OperatorDetail:
    """An operator and its lanes."""

    name: str
    role: str
    """`source`, `sink` or `operator`."""
    inputs: tuple[str, ...]
    lanes: int | None
    """None for an operator that runs in the tasks of its input."""
    rows_s: float | None
    busy: float | None
    """Share of the window in which its busiest lane was busy; None if it is fused: its time counts for the operator before it."""
    backlog: float | None
    per_lane: tuple[LaneDetail, ...]
    slices: tuple[SliceDetail, ...]


@dataclass(frozen=True, slots=True)
class EdgeDetail:
    """Rows between two operators."""

    source: str
    target: str
    rows_s: float | None


@dataclass(frozen=True, slots=True)
class EpochPart:
    """Time of an epoch that one operator, or the engine, takes."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EpochDetail:
    """The mean epoch between two readings, from its start to the start of the next one."""

    at_s: float
    epochs: int
    seconds: float
    wait_s: float
    parts: tuple[EpochPart, ...]
    """By the busiest lane of each operator; the rest is planning, reading offsets and committing."""


def operators_of(view: JobView) -> tuple[OperatorDetail, ...]:
    """All operators of a job, sources first."""
    graph = view.job.graph
    busy = capacities(graph, view.span) if view.span is not None else {}
    return tuple(_operator(view, name, busy.get(name)) for name in graph.operators)


def _operator(view: JobView, name: str, busy: float | None) -> OperatorDetail:
    graph, span = view.job.graph, view.span
    role = "source" if name in graph.sources else "sink" if name in graph.sinks else "operator"
    rows_s = span.rows_in(name) / span.seconds if span is not None else None
    lanes = view.allocation.lanes.get(name)
    return OperatorDetail(
        name=name,
        role=role,
        inputs=graph.operators[name].inputs,
        lanes=lanes,
        rows_s=rows_s,
        busy=busy if lanes is not None else None,
        backlog=_backlog(graph, span.last, name) if span is not None else None,
        per_lane=tuple(_lanes(span, name, busy)) if span is not None else (),
        slices=tuple(_slices(view, span, name)) if span is not None else (),
    )


def _backlog(graph: Graph, sample: Sample, name: str) -> float:
    """Rows that wait in front of the lanes, or else rows that were sent to the operator and not processed."""
    reading = sample.reading
    operator = reading.operators[name]
    if operator.queued is not None:
        return sum(operator.queued)
    inputs = graph.operators[name].inputs
    if not inputs:
        return max(0.0, reading.arrived[name] - operator.processed[OUTSIDE])
    return sum(max(0.0, reading.operators[one].sent[name] - operator.processed[one]) for one in inputs)


def _lanes(span: Span, name: str, busy: float | None) -> Iterator[LaneDetail]:
    lanes_s, rows = span.busy_s(name), span.of_lanes(name, "lane_rows")
    busiest_s = max(lanes_s, default=0.0) or 1.0
    hosts = span.last.reading.operators[name].hosts
    for lane, busy_s in enumerate(lanes_s):
        yield LaneDetail(
            rows_s=rows[lane] / span.seconds if rows is not None and lane < len(rows) else None,
            busy=None if busy is None else busy * busy_s / busiest_s,
            host=_at(hosts, lane),
        )


def _slices(view: JobView, span: Span, name: str) -> Iterator[SliceDetail]:
    rows = span.of_lanes(name, "slice_rows")
    if rows is None:
        return
    reading = span.last.reading.operators[name]
    lanes = view.allocation.lanes.get(name, 1)
    places = reading.slice_lanes or view.allocation.slices.get(name) or spread_evenly(len(rows), lanes)
    for lane, count in zip(places, rows, strict=False):
        yield SliceDetail(lane, _at(reading.hosts, lane), count / span.seconds)


def _at(hosts: tuple[str, ...] | None, lane: int) -> str | None:
    return hosts[lane] if hosts is not None and lane < len(hosts) else None


def edges_of(view: JobView) -> tuple[EdgeDetail, ...]:
    """Which operator sends how many rows to which."""
    span = view.span
    return tuple(
        EdgeDetail(parent, child, span.sent(parent, child) / span.seconds if span is not None else None)
        for parent, children in view.job.graph.children.items()
        for child in children
    )


def epochs_of(view: JobView) -> tuple[EpochDetail, ...]:
    """The mean epoch of each sub-window in which an epoch ended, newest last; nothing where the engine has no epochs."""
    spans = (span_of(pair) for pair in pairwise(view.samples[-SHOWN_EPOCHS - 1 :]))
    found = (_epoch(view.job.graph, span) for span in spans if span is not None)
    return tuple(one for one in found if one is not None)


def _epoch(graph: Graph, span: Span) -> EpochDetail | None:
    seconds, first, last = epoch_s(span), span.first.reading.epochs, span.last.reading.epochs
    if seconds is None or first is None or last is None:
        return None
    count = last - first
    busiest = {name: max(span.busy_s(name), default=0.0) / count for name in graph.operators}
    # Operators of one stage overlap: what they take together never exceeds the epoch.
    scale = min(1.0, seconds / sum(busiest.values())) if any(busiest.values()) else 1.0
    parts = tuple(EpochPart(name, scale * busy_s) for name, busy_s in busiest.items() if busy_s > 0)
    return EpochDetail(span.last.at_s, count, seconds, max(0.0, period_s(span) - seconds), parts)
