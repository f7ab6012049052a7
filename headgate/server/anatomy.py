"""The inside of a running job, measured over its window: operators, edges, lanes and slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from headgate.core.metrics import JobView, capacities
from headgate.core.model import OUTSIDE, Graph, spread_evenly
from headgate.core.windows import Sample, Span

SHOWN_KEYS = 10


@dataclass(frozen=True, slots=True)
class LaneDetail:
    """One lane of an operator; fields are None if the engine does not report them."""

    rows_s: float | None
    busy: float | None
    """Share of the window in which the lane was busy; the busiest lane has the value of its operator."""
    host: str | None


@dataclass(frozen=True, slots=True)
class SliceDetail:
    """One slice of the keys of an operator."""

    lane: int
    host: str | None
    rows_s: float
    bytes: int | None = None
    """Size of the newest snapshot of the slice; None before the first snapshot."""


@dataclass(frozen=True, slots=True)
class HotKeyDetail:
    """One of the keys of an operator that receive the most rows."""

    key: str
    share: float
    """Lower bound of the key's share of the operator's rows; recent rows weigh most."""


@dataclass(frozen=True, slots=True)
class OperatorDetail:
    """An operator and its lanes."""

    name: str
    role: str
    """`source`, `sink` or `operator`."""
    inputs: tuple[str, ...]
    lanes: int | None
    """Number of lanes; None for a fused operator, which runs in the tasks of its input."""
    rows_s: float | None
    busy: float | None
    """Share of the window in which the busiest lane was busy; None for a fused operator, because its input includes its time."""
    backlog: float | None
    per_lane: tuple[LaneDetail, ...]
    slices: tuple[SliceDetail, ...]
    hot_keys: tuple[HotKeyDetail, ...] = ()


@dataclass(frozen=True, slots=True)
class EdgeDetail:
    """The rows per second that one operator sends to another."""

    source: str
    target: str
    rows_s: float | None


@dataclass(frozen=True, slots=True)
class KeyedDetail:
    """Hot keys and snapshot sizes of the keyed state of a job, by operator."""

    hot_keys: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    slice_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


NOTHING_KEYED = KeyedDetail()


def finished(span: Span | None) -> Span | None:
    """Return the span if an epoch ended in it, else None: unchanged counters before the end of an epoch do not mean idle lanes."""
    if span is None or (span.last.reading.epochs is not None and span.last.reading.epochs == span.first.reading.epochs):
        return None
    return span


def operators_of(view: JobView, keyed: KeyedDetail = NOTHING_KEYED) -> tuple[OperatorDetail, ...]:
    """All operators of a job, sources first."""
    graph, span = view.job.graph, finished(view.span)
    busy = capacities(graph, span) if span is not None else {}
    found = (_operator(view, name, busy.get(name)) for name in graph.operators)
    return tuple(_with_state(one, keyed) for one in found)


def _with_state(operator: OperatorDetail, keyed: KeyedDetail) -> OperatorDetail:
    sizes = keyed.slice_bytes.get(operator.name, {})
    hot = list(keyed.hot_keys.get(operator.name, {}).items())[:SHOWN_KEYS]
    return replace(
        operator,
        slices=tuple(replace(one, bytes=sizes.get(number)) for number, one in enumerate(operator.slices)),
        hot_keys=tuple(HotKeyDetail(key, share) for key, share in hot),
    )


def _operator(view: JobView, name: str, busy: float | None) -> OperatorDetail:
    graph, span = view.job.graph, finished(view.span)
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
        backlog=_backlog(graph, view.span.last, name) if view.span is not None else None,
        per_lane=tuple(_lanes(span, name, busy)) if span is not None else (),
        slices=tuple(_slices(view, span, name)) if span is not None else (),
    )


def _backlog(graph: Graph, sample: Sample, name: str) -> float:
    """Return the rows queued in front of the lanes or, if not reported, the rows sent to the operator and not processed."""
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
    """Return the edges of a job with their rows per second."""
    span = finished(view.span)
    return tuple(
        EdgeDetail(parent, child, span.sent(parent, child) / span.seconds if span is not None else None)
        for parent, children in view.job.graph.children.items()
        for child in children
    )
