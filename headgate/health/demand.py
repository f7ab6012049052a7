"""How many lanes an operator needs: from the input when nothing holds it back, and the measured time per row.

While input is held back, what an operator gets says little about what it should get. The rate of the sources, had they never been
stopped, and the rows that each operator makes of a row do: so the operators behind the one that holds back are sized with it, before
they hold back in their turn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum

from headgate.core.metrics import Span, epoch_s, span_of
from headgate.core.model import OUTSIDE, JobReading, spread_evenly
from headgate.core.sizing import lanes_for, most_lanes, needed_work, selectivity
from headgate.health.outliers import above
from headgate.health.records import Patient
from headgate.state.placement.routing import best_places, imbalance, lane_loads, rebalanced

BUSIEST_S = 60.0
"""Lanes are taken away only if the rest will do for the busiest part of the window, of this length."""
CATCH_UP_ROWS_S = 1.0
"""Rows of less than this many seconds that wait at a source are no backlog."""
MOST_TRIES = 64
"""More lanes than this beyond what the mean needs do not help against one hot slice."""


def needed_lanes(patient: Patient, headroom: float, part_s: float | None = None) -> dict[str, int]:
    """For each operator but the sources, the least lanes of which the busiest keeps up with `headroom` times its input.

    The input is that of the whole window, or of its busiest part of length `part_s`. An operator of which nothing is known is
    not there. Where the stages of an epoch share its time, the scheduler's own sizing says how few will do.
    """
    span = patient.span
    if span is None:
        return {}
    if epoch_s(span) is not None:
        return _for_epochs(patient, span)
    rates = offered_rows_s(patient, span, part_s)
    graph = patient.view.job.graph
    needed = {}
    for name in patient.view.allocation.lanes:
        rows, busy_s = span.rows_in(name), sum(span.busy_s(name))
        if graph.operators[name].inputs and rows > 0 and busy_s > 0:
            work = rates[name] * busy_s / rows * headroom
            needed[name] = _enough(span, name, work)
    return needed


def _for_epochs(patient: Patient, span: Span) -> dict[str, int]:
    graph = patient.view.job.graph
    work = needed_work(graph, span, patient.settings)
    lanes = lanes_for(patient.view, span, work, patient.settings.target_busy)
    return {name: count for name, count in lanes.items() if graph.operators[name].inputs and work[name] is not None}


def spare_lanes(patient: Patient) -> dict[str, int]:
    """How few lanes would do for the busiest part of a long window; operators that need all of theirs are not there.

    Lanes that are unlike say little about what fewer of them would do.
    """
    now, settings = patient.view.allocation.lanes, patient.settings
    longer = dataclasses.replace(patient, samples=patient.view.samples)
    span = longer.span
    if span is None or span.seconds < settings.spare_window_s - settings.round_s - 1e-6:
        return {}
    needed = needed_lanes(longer, 1 / settings.spare_below, BUSIEST_S)
    unlike = {name for name in needed if above(span.busy_s(name), settings.alike, settings.outlier_cut)}
    return {name: lanes for name, lanes in needed.items() if lanes < now[name] and name not in unlike}


def _enough(span: Span, name: str, work: float) -> int:
    """The least lanes for so many busy lane-seconds per second, if slices are spread over them as well as can be."""
    least = max(1, math.ceil(work - 1e-9))
    loads = span.of_lanes(name, "slice_rows")
    if not loads or sum(loads) <= 0:
        return least
    for lanes in range(least, least + MOST_TRIES):
        if work * imbalance(lane_loads(loads, best_places(loads, lanes), lanes)) <= lanes + 1e-9:
            return lanes
    return least


def places_now(patient: Patient, operator: str, slices: int) -> tuple[int, ...]:
    """The lane of each slice: as the allocation says, or as the engine has spread them.

    While slices move between hosts there may be more lanes than there should be: then it is told when they are there.
    """
    now = patient.view.allocation
    lanes = now.lanes[operator]
    told = now.slices.get(operator) or patient.samples[-1].reading.operators[operator].slice_lanes
    return told if told and len(told) == slices and max(told) < lanes else spread_evenly(slices, lanes)


class Evening(Enum):
    """What makes the busiest lane of a keyed operator less busy."""

    SLICES = "other lanes for some slices"
    LANES = "more lanes"
    NOTHING = "nothing: too few keys, or one that is too hot"


def evening(patient: Patient, operator: str) -> Evening | None:
    """What evens out the rows of an operator's lanes, by what its slices got; None if it has no slices that are known."""
    span = patient.span
    loads = span.of_lanes(operator, "slice_rows") if span is not None else None
    if not loads or sum(loads) <= 0:
        return None
    lanes = patient.view.allocation.lanes[operator]
    before = places_now(patient, operator, len(loads))
    enough = max(lane_loads(loads, before, lanes)) * (1 - patient.settings.improvement)
    if max(lane_loads(loads, rebalanced(loads, before, lanes), lanes)) <= enough:
        return Evening.SLICES
    more = lanes * 2
    return Evening.LANES if max(lane_loads(loads, best_places(loads, more), more)) <= enough else Evening.NOTHING


def offered_rows_s(patient: Patient, span: Span, part_s: float | None = None) -> dict[str, float]:
    """Rows per second that each operator would get if nothing held back the sources."""
    graph = patient.view.job.graph
    parts = (span,) if part_s is None else patient.sub_spans(part_s)
    rates: dict[str, float] = {}
    for name, operator in graph.operators.items():
        if not operator.inputs:
            rates[name] = max((_unheld_rows_s(patient, part, name) for part in parts), default=0.0)
            if part_s is None:
                rates[name] = _newest_if_moved(patient, name, rates[name])
            continue
        rates[name] = sum(rates[parent] * selectivity(span, parent, name) for parent in operator.inputs)
    return rates


def _newest_if_moved(patient: Patient, source: str, rate: float) -> float:
    """The rate of the newest minute, if the input moved since the window began; else the window's, which is less noisy."""
    newest = tuple(sample for sample in patient.samples if sample.at_s >= patient.samples[-1].at_s - BUSIEST_S - 1e-6)
    part = span_of(newest)
    if part is None:
        return rate
    now = _unheld_rows_s(patient, part, source)
    return now if abs(now - rate) > patient.settings.load_change * rate else rate


def works_off_backlog(patient: Patient) -> bool:
    """Whether rows that wait at the sources become fewer, fast enough to be left alone with them."""
    span = patient.span
    if span is None:
        return False
    before, left = (_at_sources(sample.reading) for sample in (span.first, span.last))
    if left <= CATCH_UP_ROWS_S * span.arrival_rows_s() or left >= before:
        return False
    return left * span.seconds / (before - left) <= patient.settings.patience_s


def waits_s(span: Span) -> float | None:
    """How long rows wait at the sources, at the rate at which they were processed; None if it is not known."""
    rows_s = sum(span.rows_in(source) for source in span.last.reading.arrived) / span.seconds
    if span.last.reading.backlog is None or rows_s <= 0:
        return None
    return max(0.0, _at_sources(span.last.reading)) / rows_s


def _at_sources(reading: JobReading) -> float:
    return sum(rows - reading.operators[source].processed[OUTSIDE] for source, rows in reading.arrived.items())


def _unheld_rows_s(patient: Patient, span: Span, source: str) -> float:
    """What arrives and the backlog; a source that makes its rows itself has none, and only stops while it is held back."""
    settings = patient.settings
    arriving = span.arrived(source) / span.seconds
    reading = span.last.reading
    backlog = reading.arrived[source] - reading.operators[source].processed[OUTSIDE]
    if backlog > CATCH_UP_ROWS_S * arriving:
        return arriving + min(backlog / settings.patience_s, settings.catch_up_limit * arriving)
    return arriving / max(1 - _held(span), LEAST_UNHELD)


LEAST_UNHELD = 0.05
"""Input that was held back nearly always says little about its rate: at most twenty times what came is taken for it."""


def _held(span: Span) -> float:
    first, last = span.first.reading.held_s, span.last.reading.held_s
    return 0.0 if first is None or last is None else min(1.0, (last - first) / span.seconds)


def reads_to_its_limit(span: Span) -> bool:
    """Whether some source reads as many rows in an epoch as it may: then that is what holds back the input, and no lane."""
    first, last = span.first.reading, span.last.reading
    if last.read_limit is None or first.epochs is None or last.epochs is None:
        return False
    most = last.read_limit * (last.epochs - first.epochs)
    return most > 0 and any(span.rows_in(source) >= AT_LIMIT * most for source in last.arrived)


AT_LIMIT = 0.9
"""An epoch that reads this share of its read limit might have read more."""


def sources_held_short(patient: Patient) -> bool:
    """Whether the sources' lanes mostly wait for rows: more lanes would not put out more."""
    span = patient.span
    if span is None or reads_to_its_limit(span):
        return False
    busy = [max(span.busy_s(source), default=0.0) / span.seconds for source in patient.view.job.graph.sources]
    return max(busy, default=0.0) < IDLE_SOURCE


IDLE_SOURCE = 0.5
"""A source whose busiest lane is busy for less than this share of the time waits for rows."""


def capped(patient: Patient, wanted: Mapping[str, int]) -> dict[str, int]:
    """The lanes that these operators may have of those that they should."""
    graph = patient.view.job.graph
    return {name: most_lanes(graph, name, lanes, patient.settings) for name, lanes in wanted.items()}
