"""Sizing: how many lanes a job that misses its intent should get, by the paper's rule or by measured true rates.

Both sizings only add lanes. `paper` is eq. 4 of Henge. `model` follows DS2 (OSDI '18): a lane's true rate is rows per second of
useful work, so one measurement of a congested job yields the lanes that every operator needs once its parents keep up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from headgate.config import Settings, SizingMethod
from headgate.core.intents import Intent
from headgate.core.metrics import JobView, capacities
from headgate.core.model import MOST_SHARE, OUTSIDE, Graph, JobReading
from headgate.core.windows import ENOUGH_EPOCHS, Span, epoch_s, grace_s, newest, period_s, span_of

Lanes = Mapping[str, int]


def more_lanes(view: JobView, settings: Settings, congested: bool = False) -> Lanes:
    """The lanes that the job should have; equal to the current lanes if more lanes would not help.

    On a congested cluster steps are smaller, because contention for cores lowers the measured rates.
    """
    now = view.allocation.lanes
    span = span_of(newest(view.samples, 2))
    if span is None or not has_finished_epoch(view):
        return now
    wanted = _SIZINGS[settings.sizing](
        view, span, settings, settings.crowded_growth if congested else settings.growth_limit
    )
    return {name: max(lanes, min(wanted[name], lane_limit(view, name, settings))) for name, lanes in now.items()}


def lane_limit(view: JobView, name: str, settings: Settings) -> int:
    """The most lanes that an operator may have: the smallest of the configured limits and, for a keyed operator, its slices."""
    own = view.job.graph.operators[name].max_lanes
    slice_rows = view.samples[-1].reading.operators[name].slice_rows if view.samples else None
    limits = (settings.max_lanes, own, None if slice_rows is None else len(slice_rows))
    return min(limit for limit in limits if limit is not None)


def _paper(view: JobView, span: Span, settings: Settings, _: float) -> Lanes:
    """Lanes by eq. 4: in proportion to the excess of an operator's capacity over the threshold."""
    capacity = capacities(view.job.graph, span)
    threshold = settings.capacity_threshold

    def lanes(name: str, now: int) -> int:
        if capacity[name] <= threshold:
            return now
        return now + max(1, round((capacity[name] / threshold - 1) * settings.lanes_per_congestion))

    return {name: lanes(name, now) for name, now in view.allocation.lanes.items()}


def _model(view: JobView, span: Span, settings: Settings, growth_limit: float) -> Lanes:
    """Lanes for input plus backlog at `target_busy`; if the job has these already, at `capacity_threshold` where that is lower."""
    now = view.allocation.lanes
    most = {name: math.ceil(lanes * growth_limit) for name, lanes in now.items()}
    work = needed_work(view.job.graph, span, settings)
    for target in (settings.target_busy, min(settings.capacity_threshold, settings.target_busy)):
        wanted = {name: min(lanes, most[name]) for name, lanes in lanes_for(view, span, work, target).items()}
        if any(wanted[name] > lanes * (1 + settings.smallest_step) for name, lanes in now.items()):
            return wanted
    return now


def lanes_for(view: JobView, span: Span, work: Mapping[str, float | None], target: float) -> Lanes:
    """Lanes with which each lane is busy for the share `target`; with epochs, with which the job is busy for that share."""
    factor = 1.0
    root: Callable[[float], float] = lambda busy: busy  # noqa: E731
    if epoch_s(span) is not None:
        # Stages share the epoch: the fewest lanes whose stage times add up to the target scale with the square root of the work.
        root = math.sqrt
        factor = sum(math.sqrt(busy) for busy in work.values() if busy)
    return {
        name: lanes if (busy := work[name]) is None else max(1, math.ceil(root(busy) * factor / target - 1e-9))
        for name, lanes in view.allocation.lanes.items()
    }


def needed_work(graph: Graph, span: Span, settings: Settings) -> dict[str, float | None]:
    """Busy lane-seconds per second that each operator needs to keep up and clear its backlog; None without measured rows."""
    rate: dict[str, float] = {}
    work: dict[str, float | None] = {}
    for name, operator in graph.operators.items():
        offered = span.arrived(name) / span.seconds if not operator.inputs else 0.0
        for parent in operator.inputs:
            offered += rate[parent] * selectivity(span, parent, name)
        backlog_rows_s = waiting(graph, span.last.reading, name) / settings.catch_up_s
        rate[name] = offered + min(backlog_rows_s, settings.catch_up_limit * offered)
        rows, busy_s = span.rows_in(name), sum(span.busy_s(name))
        work[name] = rate[name] * busy_s / rows if rows > 0 else None
    return work


def selectivity(span: Span, parent: str, child: str) -> float:
    """Rows sent to a child per row processed by the parent."""
    rows = span.rows_in(parent)
    return span.sent(parent, child) / rows if rows > 0 else 0.0


def waiting(graph: Graph, reading: JobReading, name: str) -> float:
    """Backlog of an operator in rows: rows sent to the operator minus rows processed."""
    processed = reading.operators[name].processed
    inputs = graph.operators[name].inputs
    if not inputs:
        return max(0.0, reading.arrived[name] - processed[OUTSIDE])
    return max(0.0, sum(reading.operators[parent].sent[name] - processed[parent] for parent in inputs))


def catching_up(view: JobView, settings: Settings) -> bool:
    """Whether the job clears its backlog within `patience_s`, or has just cleared a backlog."""
    if view.span is None:
        return False
    span = view.span
    lately, left = (_all_waiting(view, sample.reading) for sample in (view.samples[-2], span.last))
    few = span.arrival_rows_s() * max(1.0, grace_s(span))
    if left <= few:
        return lately > few
    before, after = _waiting_at_ends(view, span)
    return after < before and after * span.whole_epochs_s / (before - after) <= settings.patience_s


def has_finished_epoch(view: JobView) -> bool:
    """Whether an epoch with the current lanes ended in the window; without epochs, whether there is a window.

    Without a finished epoch, as during a cold start or an outage, the need for lanes is unknown and Headgate adds no lanes.
    """
    if view.span is None:
        return False
    first, last = view.span.first.reading.epochs, view.span.last.reading.epochs
    return first is None or last is None or (last > first and view.span.last.reading.epochs_as_given != 0)


def adds_lanes(before: Lanes, after: Lanes) -> bool:
    """Whether any operator has more lanes after than before."""
    return any(lanes > before.get(name, 0) for name, lanes in after.items())


def unmeasured(view: JobView, settings: Settings) -> bool:
    """Whether no epoch of the job ended in the window, as during a cold start or an outage, so that its work is unknown.

    A job whose last epoch ended more than `patience_s` ago no longer counts as unmeasured.
    """
    if view.span is None or view.span.last.reading.epochs is None:
        return False
    first, last = view.span.first.reading, view.span.last.reading
    return first.epochs == last.epochs and (last.epoch_age_s or 0.0) <= settings.patience_s


def recovering(view: JobView, share: float) -> bool:
    """Whether the job recovers: by more than `share`, it processes more rows than arrive, or its latency falls."""
    if view.span is None:
        return False
    before, after = _waiting_at_ends(view, view.span)
    if before - after > share * view.span.arrival_rows_s() * view.span.whole_epochs_s:
        return True
    if view.latency_s is None or view.recent_latency_s is None:
        return False
    return view.recent_latency_s < view.latency_s * (1 - share)


def _waiting_at_ends(view: JobView, span: Span) -> tuple[float, float]:
    """Backlog in rows at both ends of the span, without rows that arrived after the last epoch: counters change at its end."""
    rows_s = span.arrival_rows_s()
    before, after = (
        max(0.0, _all_waiting(view, sample.reading) - rows_s * age_s)
        for sample, age_s in zip((span.first, span.last), span.ages_s(), strict=True)
    )
    return before, after


def _all_waiting(view: JobView, reading: JobReading) -> float:
    return sum(waiting(view.job.graph, reading, name) for name in view.job.graph.operators)


def fewer_lanes(view: JobView, settings: Settings) -> Lanes:
    """The lanes left after a reduction (Henge, section 5.2): sources and congested operators keep their lanes.

    With `model` sizing an operator also keeps the lanes that its measured work needs, so that the job still meets its intent.
    """
    if view.span is None:
        return view.allocation.lanes
    graph, span = view.job.graph, view.span
    capacity = capacities(graph, span)
    work = (
        needed_work(graph, span, settings) if settings.sizing == SizingMethod.MODEL else dict.fromkeys(graph.operators)
    )
    needed = (
        lanes_for(view, span, work, settings.target_busy)
        if settings.sizing == SizingMethod.MODEL
        else dict.fromkeys(graph.operators, 1)
    )

    def left(name: str, lanes: int) -> int:
        if not graph.operators[name].inputs or capacity[name] > settings.capacity_threshold:
            return lanes
        return min(lanes, max(1, needed[name], math.ceil(lanes * (1 - settings.reduction) - 1e-9)))

    return {name: left(name, lanes) for name, lanes in view.allocation.lanes.items()}


def raised_share(view: JobView, settings: Settings) -> int | None:
    """The share of an urgent job; None if its share was raised before, cannot rise, or the engine has no shares."""
    declared = view.share
    if declared is None or view.allocation.share is not None:
        return None
    raised = min(MOST_SHARE, math.floor(declared * settings.share_step))
    return raised if raised > declared else None


def longest_pace_s(view: JobView, settings: Settings) -> float | None:
    """The longest pace, in seconds between epoch starts, that meets the intent with a margin; None without a finished epoch.

    A row waits half a period on average, a whole period at worst, and then for the end of its epoch. An epoch has a fixed cost and a
    cost for each row that arrived in the previous period.
    """
    duration_s = epoch_s(view.span) if view.span is not None else None
    if view.span is None or duration_s is None:
        return None
    intent = view.job.intent
    limit_s = settings.pace_margin * _filling_s(view.span)
    if intent.latency_s is None:
        return min(settings.round_s, limit_s)
    # Juice is measured per sub-window, latency per window: each must contain enough epochs.
    most_s = min(limit_s, settings.round_s if intent.juice is not None else settings.window_s / ENOUGH_EPOCHS)
    per_second = _stages_s(view.span) / view.span.seconds
    fixed_s = max(0.0, duration_s - per_second * period_s(view.span))
    waits = 0.5 if intent.percentile is None else 1.0
    return max(0.0, min(most_s, (settings.pace_margin * intent.latency_s - fixed_s) / (waits + per_second)))


def _filling_s(span: Span) -> float:
    """Seconds in which as many rows arrive at a source as an epoch may read: with longer pauses, the job falls behind."""
    limit = span.last.reading.read_limit
    most_rows = max((span.arrived(source) for source in span.last.reading.arrived), default=0.0)
    return math.inf if limit is None or most_rows <= 0 else limit * span.seconds / most_rows


def first_pace_s(intent: Intent, limit_s: float) -> float:
    """The pace, in seconds, of a job without measurements, at most `limit_s`.

    Rows wait for `FIRST_SHARE` of the latency intent, and longer where the intent leaves much more time than an epoch takes: a job
    with a long intent need not run many epochs until it is measured.

    >>> [round(first_pace_s(Intent(latency=latency), 20.0), 3) for latency in (1, 2, 10, 60)]
    [0.7, 1.4, 11.0, 20.0]
    """
    if intent.latency_s is None:
        return 0.0
    waits = 0.5 if intent.percentile is None else 1.0
    wait_s = max(FIRST_SHARE * intent.latency_s, LONGEST_SHARE * intent.latency_s - FIRST_EPOCH_S)
    return min(limit_s, wait_s / waits)


FIRST_SHARE = 0.35
"""Least share of the latency intent for which rows of a new job wait for their epoch."""
LONGEST_SHARE = 0.7
"""Share of the latency intent that rows of a new job wait for their epoch and its end, if the epoch takes `FIRST_EPOCH_S`."""
FIRST_EPOCH_S = 1.5
"""Assumed duration of an epoch without measurements: the first epochs of a job run code that the JVM has not compiled yet."""


def keeps_pace(view: JobView) -> bool:
    """Whether epochs start on time, instead of late because the previous epoch overran the pace."""
    pace_s, span = view.allocation.pace_s, view.span
    return pace_s is not None and span is not None and period_s(span) <= pace_s * (1 + LATE_START)


LATE_START = 0.2
"""Share of the pace by which epochs may start late, on average, and still count as on time."""


def _stages_s(span: Span) -> float:
    """Summed seconds of all stages, each with its busiest lane."""
    return sum(max(span.busy_s(name), default=0.0) for name in span.last.reading.operators)


_SIZINGS: Mapping[str, Callable[[JobView, Span, Settings, float], Lanes]] = {
    SizingMethod.PAPER: _paper,
    SizingMethod.MODEL: _model,
}
