"""How many lanes a job that misses its intent should get: by the paper's rule, or by measured true rates.

Both only add lanes. `paper` is eq. 4 of Henge. `model` follows DS2 (OSDI '18): a lane's true rate is rows per second of useful
work, so one look at a congested job tells what every operator of it will need once its parents keep up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.metrics import ENOUGH_EPOCHS, JobView, Span, capacities, epoch_s, grace_s, newest, period_s, span_of
from headgate.core.model import OUTSIDE, Graph, JobReading

Lanes = Mapping[str, int]


def more_lanes(view: JobView, settings: Settings, congested: bool = False) -> Lanes:
    """The lanes the job should have; equal to those it has when nothing would help.

    On a congested cluster measured rates are worse than lanes alone can mend, so steps are smaller.
    """
    now = view.allocation.lanes
    span = span_of(newest(view.samples, 2))
    if span is None or not has_finished_epoch(view):
        return now
    wanted = _SIZINGS[settings.sizing](
        view, span, settings, settings.crowded_growth if congested else settings.growth_limit
    )
    return {name: max(lanes, most_lanes(view.job.graph, name, wanted[name], settings)) for name, lanes in now.items()}


def most_lanes(graph: Graph, name: str, lanes: int, settings: Settings) -> int:
    """As many of these lanes as the operator may have."""
    own = graph.operators[name].max_lanes
    return min(lanes, settings.max_lanes, own if own is not None else settings.max_lanes)


def _paper(view: JobView, span: Span, settings: Settings, _: float) -> Lanes:
    """Eq. 4: lanes in proportion to how far an operator's capacity is above the threshold."""
    capacity = capacities(view.job.graph, span)
    threshold = settings.capacity_threshold

    def lanes(name: str, now: int) -> int:
        if capacity[name] <= threshold:
            return now
        return now + max(1, round((capacity[name] / threshold - 1) * settings.lanes_per_congestion))

    return {name: lanes(name, now) for name, now in view.allocation.lanes.items()}


def _model(view: JobView, span: Span, settings: Settings, growth_limit: float) -> Lanes:
    """Lanes for the input plus the backlog at the target share of busy time; if the job has those already, at the lowest share."""
    now = view.allocation.lanes
    most = {name: math.ceil(lanes * growth_limit) for name, lanes in now.items()}
    work = needed_work(view.job.graph, span, settings)
    for target in (settings.target_busy, min(settings.capacity_threshold, settings.target_busy)):
        wanted = {name: min(lanes, most[name]) for name, lanes in lanes_for(view, span, work, target).items()}
        if any(wanted[name] > lanes * (1 + settings.smallest_step) for name, lanes in now.items()):
            return wanted
    return now


def lanes_for(view: JobView, span: Span, work: Mapping[str, float | None], target: float) -> Lanes:
    """Lanes that are busy for `target` of their time; where stages follow one another, the job is."""
    factor = 1.0
    root: Callable[[float], float] = lambda busy: busy  # noqa: E731
    if epoch_s(span) is not None:
        # Stages share the epoch: the least lanes whose stage times add up to the target go with the root of the work.
        root = math.sqrt
        factor = sum(math.sqrt(busy) for busy in work.values() if busy)
    return {
        name: lanes if (busy := work[name]) is None else max(1, math.ceil(root(busy) * factor / target - 1e-9))
        for name, lanes in view.allocation.lanes.items()
    }


def needed_work(graph: Graph, span: Span, settings: Settings) -> dict[str, float | None]:
    """Busy lane-seconds per second each operator needs to keep up and work off what waits; None where nothing was measured."""
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
    """Rows that wait in front of an operator: all that were sent to it less all that it processed."""
    processed = reading.operators[name].processed
    inputs = graph.operators[name].inputs
    if not inputs:
        return max(0.0, reading.arrived[name] - processed[OUTSIDE])
    return max(0.0, sum(reading.operators[parent].sent[name] - processed[parent] for parent in inputs))


def catching_up(view: JobView, settings: Settings) -> bool:
    """Whether the job works off a backlog fast enough to be left alone with it, or has only just done so."""
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
    """Whether an epoch with the lanes of now ended in the window; without epochs, whether there is a window.

    Without one, as at a cold start or in an outage, the need for lanes is not known: none are added.
    """
    if view.span is None:
        return False
    first, last = view.span.first.reading.epochs, view.span.last.reading.epochs
    return first is None or last is None or (last > first and view.span.last.reading.epochs_as_given != 0)


def adds_lanes(before: Lanes, after: Lanes) -> bool:
    """Whether an operator has more lanes after than before."""
    return any(lanes > before.get(name, 0) for name, lanes in after.items())


def unmeasured(view: JobView, settings: Settings) -> bool:
    """Whether no epoch of the job ended in the window, as at a cold start or during an outage: nothing is known of its work.

    An epoch that has been in flight for longer than `patience_s` is no excuse.
    """
    if view.span is None or view.span.last.reading.epochs is None:
        return False
    first, last = view.span.first.reading, view.span.last.reading
    return first.epochs == last.epochs and (last.epoch_age_s or 0.0) <= settings.patience_s


def recovering(view: JobView, share: float) -> bool:
    """Whether the job works off a backlog: it gets more done than arrives, or its latency falls, by more than this share."""
    if view.span is None:
        return False
    before, after = _waiting_at_ends(view, view.span)
    if before - after > share * view.span.arrival_rows_s() * view.span.whole_epochs_s:
        return True
    if view.latency_s is None or view.recent_latency_s is None:
        return False
    return view.recent_latency_s < view.latency_s * (1 - share)


def _waiting_at_ends(view: JobView, span: Span) -> tuple[float, float]:
    """Rows that wait at both ends of the span, less those that arrived after the last epoch: an epoch counts when it ends."""
    rows_s = span.arrival_rows_s()
    before, after = (
        max(0.0, _all_waiting(view, sample.reading) - rows_s * age_s)
        for sample, age_s in zip((span.first, span.last), span.ages_s(), strict=True)
    )
    return before, after


def _all_waiting(view: JobView, reading: JobReading) -> float:
    return sum(waiting(view.job.graph, reading, name) for name in view.job.graph.operators)


def fewer_lanes(view: JobView, settings: Settings) -> Lanes:
    """The lanes left after a reduction (Henge, section 5.2): sources and congested operators keep theirs.

    With `model` sizing an operator also keeps what its measured work needs, so that a job that meets its intent goes on to.
    """
    if view.span is None:
        return view.allocation.lanes
    graph, span = view.job.graph, view.span
    capacity = capacities(graph, span)
    work = needed_work(graph, span, settings) if settings.sizing == "model" else dict.fromkeys(graph.operators)
    needed = (
        lanes_for(view, span, work, settings.target_busy)
        if settings.sizing == "model"
        else dict.fromkeys(graph.operators, 1)
    )

    def left(name: str, lanes: int) -> int:
        if not graph.operators[name].inputs or capacity[name] > settings.capacity_threshold:
            return lanes
        return min(lanes, max(1, needed[name], math.ceil(lanes * (1 - settings.reduction) - 1e-9)))

    return {name: left(name, lanes) for name, lanes in view.allocation.lanes.items()}


def longest_pace_s(view: JobView, settings: Settings) -> float | None:
    """The longest time between epoch starts that keeps the intent with a margin; None without epochs.

    A row waits half a period on average, a whole one at worst, and then for its epoch to end. An epoch takes something fixed
    and something for each row that arrived in the period before it.
    """
    duration_s = epoch_s(view.span) if view.span is not None else None
    if view.span is None or duration_s is None:
        return None
    intent = view.job.intent
    if intent.latency_s is None:
        return settings.round_s
    # Juice is judged on sub-windows, latency on the window: each must see enough epochs.
    most_s = settings.round_s if intent.juice is not None else settings.window_s / ENOUGH_EPOCHS
    per_second = _stages_s(view.span) / view.span.seconds
    fixed_s = max(0.0, duration_s - per_second * period_s(view.span))
    waits = 0.5 if intent.percentile is None else 1.0
    return max(0.0, min(most_s, (settings.pace_margin * intent.latency_s - fixed_s) / (waits + per_second)))


def first_pace_s(intent: Intent, limit_s: float) -> float:
    """The pace of a job that is not measured yet: half of what its intent allows is for waiting, half for the epoch."""
    if intent.latency_s is None:
        return 0.0
    waits = 0.5 if intent.percentile is None else 1.0
    return min(limit_s, FIRST_SHARE * intent.latency_s / waits)


FIRST_SHARE = 0.35
"""Share of its latency intent that a row of a new job waits for its epoch."""


def keeps_pace(view: JobView) -> bool:
    """Whether epochs start when the pace says, and not later because the one before takes longer."""
    pace_s, span = view.allocation.pace_s, view.span
    return pace_s is not None and span is not None and period_s(span) <= pace_s * (1 + LATE_START)


LATE_START = 0.2
"""Share of the pace by which epochs may start late on average."""


def _stages_s(span: Span) -> float:
    """Time that the stages took for their rows, one after another."""
    return sum(max(span.busy_s(name), default=0.0) for name in span.last.reading.operators)


_SIZINGS: Mapping[str, Callable[[JobView, Span, Settings, float], Lanes]] = {"paper": _paper, "model": _model}
