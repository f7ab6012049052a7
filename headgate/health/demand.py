"""Lanes that an operator needs, from the unthrottled input rate and the measured time per row.

While input is held back, an operator receives fewer rows than it should. Headgate therefore derives the demand from the unthrottled rate
of the sources and the selectivity of each operator. Operators downstream of the bottleneck are sized together with the bottleneck,
before they become the next bottleneck.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum

from headgate.core.model import OUTSIDE, JobReading, spread_evenly
from headgate.core.sizing import lane_limit, lanes_for, needed_work, selectivity
from headgate.core.windows import Span, epoch_s, span_of
from headgate.health.outliers import above
from headgate.health.records import ObservedJob
from headgate.state.placement.routing import best_places, imbalance, lane_loads, rebalance

BUSIEST_S = 60.0
"""Length, in seconds, of the busiest part of the window, which the lanes left after a reduction must sustain."""
CATCH_UP_ROWS_S = 1.0
"""Seconds of input that may wait at a source before the waiting rows count as a backlog."""
MOST_TRIES = 64
"""Number of lane counts tried to spread the slices; more lanes do not help against one hot slice."""


def needed_lanes(observed: ObservedJob, headroom: float, part_s: float | None = None) -> dict[str, int]:
    """The fewest lanes, for each operator except sources, whose busiest lane keeps up with `headroom` times its input.

    The input is that of the whole window, or of its busiest part of `part_s` seconds. Operators without measurements are left out.
    For a job with epochs, the scheduler's `model` sizing yields the lanes.
    """
    span = observed.span
    if span is None:
        return {}
    if epoch_s(span) is not None:
        return _for_epochs(observed, span)
    rates = offered_rows_s(observed, span, part_s)
    graph = observed.view.job.graph
    needed = {}
    for name in observed.view.allocation.lanes:
        rows, busy_s = span.rows_in(name), sum(span.busy_s(name))
        if graph.operators[name].inputs and rows > 0 and busy_s > 0:
            work = rates[name] * busy_s / rows * headroom
            needed[name] = _enough(span, name, work)
    return needed


def _for_epochs(observed: ObservedJob, span: Span) -> dict[str, int]:
    graph = observed.view.job.graph
    work = needed_work(graph, span, observed.settings)
    lanes = lanes_for(observed.view, span, work, observed.settings.target_busy)
    return {name: count for name, count in lanes.items() if graph.operators[name].inputs and work[name] is not None}


def spare_lanes(observed: ObservedJob) -> dict[str, int]:
    """Lanes that would sustain the busiest part of a long window, for operators that have more lanes than that.

    Operators with unevenly loaded lanes are left out, because their need cannot be predicted.
    """
    now, settings = observed.view.allocation.lanes, observed.settings
    longer = dataclasses.replace(observed, samples=observed.view.samples)
    span = longer.span
    if span is None or span.seconds < settings.spare_window_s - settings.round_s - 1e-6:
        return {}
    needed = needed_lanes(longer, 1 / settings.spare_below, BUSIEST_S)
    uneven = {name for name in needed if above(span.busy_s(name), settings.alike, settings.outlier_cut)}
    return {name: lanes for name, lanes in needed.items() if lanes < now[name] and name not in uneven}


def _enough(span: Span, name: str, work: float) -> int:
    """The fewest lanes that sustain `work` busy lane-seconds per second with the best placement of slices."""
    least = max(1, math.ceil(work - 1e-9))
    loads = span.of_lanes(name, "slice_rows")
    if not loads or sum(loads) <= 0:
        return least
    for lanes in range(least, least + MOST_TRIES):
        if work * imbalance(lane_loads(loads, best_places(loads, lanes), lanes)) <= lanes + 1e-9:
            return lanes
    return least


def places_now(observed: ObservedJob, operator: str, slices: int) -> tuple[int, ...]:
    """The lane of each slice, by the allocation or, without an entry there, by the engine's placement.

    While slices move between hosts, the engine may report lanes beyond the allocation: then the even placement counts.
    """
    now = observed.view.allocation
    lanes = now.lanes[operator]
    places = now.slices.get(operator) or observed.samples[-1].reading.operators[operator].slice_lanes
    return places if places and len(places) == slices and max(places) < lanes else spread_evenly(slices, lanes)


class Evening(Enum):
    """The change that relieves the busiest lane of a keyed operator."""

    SLICES = "other lanes for some slices"
    LANES = "more lanes"
    NOTHING = "nothing: too few keys, or one that is too hot"


def evening(observed: ObservedJob, operator: str) -> Evening | None:
    """The change that evens out the rows of an operator's lanes, by the load of its slices; None if the slices are unknown."""
    span = observed.span
    loads = span.of_lanes(operator, "slice_rows") if span is not None else None
    if not loads or sum(loads) <= 0:
        return None
    lanes = observed.view.allocation.lanes[operator]
    before = places_now(observed, operator, len(loads))
    enough = max(lane_loads(loads, before, lanes)) * (1 - observed.settings.improvement)
    if max(lane_loads(loads, rebalance(loads, before, lanes), lanes)) <= enough:
        return Evening.SLICES
    more = lanes * 2
    return Evening.LANES if max(lane_loads(loads, best_places(loads, more), more)) <= enough else Evening.NOTHING


def offered_rows_s(observed: ObservedJob, span: Span, part_s: float | None = None) -> dict[str, float]:
    """Rows per second that each operator would receive if no lane held back the sources."""
    graph = observed.view.job.graph
    parts = (span,) if part_s is None else observed.sub_spans(part_s)
    rates: dict[str, float] = {}
    for name, operator in graph.operators.items():
        if not operator.inputs:
            rates[name] = max((_unheld_rows_s(observed, part, name) for part in parts), default=0.0)
            if part_s is None:
                rates[name] = _newest_if_moved(observed, name, rates[name])
            continue
        rates[name] = sum(rates[parent] * selectivity(span, parent, name) for parent in operator.inputs)
    return rates


def _newest_if_moved(observed: ObservedJob, source: str, rate: float) -> float:
    """The window's rate, or that of the newest minute if the input changed since; the window's rate is less noisy."""
    newest = tuple(sample for sample in observed.samples if sample.at_s >= observed.samples[-1].at_s - BUSIEST_S - 1e-6)
    part = span_of(newest)
    if part is None:
        return rate
    now = _unheld_rows_s(observed, part, source)
    return now if abs(now - rate) > observed.settings.load_change * rate else rate


def works_off_backlog(observed: ObservedJob) -> bool:
    """Whether the backlog at the sources shrinks fast enough to be gone within `patience_s`."""
    span = observed.span
    if span is None:
        return False
    before, left = (_at_sources(sample.reading) for sample in (span.first, span.last))
    if left <= CATCH_UP_ROWS_S * span.arrival_rows_s() or left >= before:
        return False
    return left * span.seconds / (before - left) <= observed.settings.patience_s


def waits_s(span: Span) -> float | None:
    """Seconds that rows wait at the sources, by the current processing rate; None if unknown."""
    rows_s = sum(span.rows_in(source) for source in span.last.reading.arrived) / span.seconds
    if span.last.reading.backlog is None or rows_s <= 0:
        return None
    return max(0.0, _at_sources(span.last.reading)) / rows_s


def _at_sources(reading: JobReading) -> float:
    return sum(rows - reading.operators[source].processed[OUTSIDE] for source, rows in reading.arrived.items())


def _unheld_rows_s(observed: ObservedJob, span: Span, source: str) -> float:
    """Unthrottled rate of a source, backlog included; a generating source has no backlog and only pauses while held back."""
    settings = observed.settings
    arriving = span.arrived(source) / span.seconds
    reading = span.last.reading
    backlog = reading.arrived[source] - reading.operators[source].processed[OUTSIDE]
    if backlog > CATCH_UP_ROWS_S * arriving:
        return arriving + min(backlog / settings.patience_s, settings.catch_up_limit * arriving)
    return arriving / max(1 - _held(span), LEAST_UNHELD)


LEAST_UNHELD = 0.05
"""Lower bound on the unthrottled share of time; caps the estimated unthrottled rate at 20 times the measured rate."""


def _held(span: Span) -> float:
    first, last = span.first.reading.held_s, span.last.reading.held_s
    return 0.0 if first is None or last is None else min(1.0, (last - first) / span.seconds)


def reads_to_its_limit(span: Span) -> bool:
    """Whether a source reads up to its read limit in each epoch, so that the limit throttles the input, not the lanes."""
    first, last = span.first.reading, span.last.reading
    if last.read_limit is None or first.epochs is None or last.epochs is None:
        return False
    most = last.read_limit * (last.epochs - first.epochs)
    return most > 0 and any(span.rows_in(source) >= AT_LIMIT * most for source in last.arrived)


AT_LIMIT = 0.9
"""Share of the read limit at which an epoch counts as limited."""


def sources_held_short(observed: ObservedJob) -> bool:
    """Whether the lanes of the sources are mostly idle, so that more lanes would not emit more rows."""
    span = observed.span
    if span is None or reads_to_its_limit(span):
        return False
    busy = [max(span.busy_s(source), default=0.0) / span.seconds for source in observed.view.job.graph.sources]
    return max(busy, default=0.0) < IDLE_SOURCE


IDLE_SOURCE = 0.5
"""Share of busy time of its busiest lane below which a source counts as idle."""


def capped(observed: ObservedJob, wanted: Mapping[str, int]) -> dict[str, int]:
    """The wanted lanes, capped at the lane limit of each operator."""
    return {name: min(lanes, lane_limit(observed.view, name, observed.settings)) for name, lanes in wanted.items()}
