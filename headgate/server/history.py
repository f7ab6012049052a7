"""Time series for charts, sampled from the journal: the number of points does not depend on the length of the journal.

Only every n-th round is read, because a week of 200 jobs takes some gigabytes. The choice of rounds does not depend on the current
time, so that a line keeps its shape while the chart moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.ports import Effect, JobRecord, Past, RecordedAction, RoundRecord

Values = list[float | None]


@dataclass(frozen=True, slots=True)
class UtilitySeries:
    """Total utility over time, and its maximum."""

    at_s: list[float]
    score: list[float]
    max_score: list[float]


@dataclass(frozen=True, slots=True)
class JobSeries:
    """The measurements of a job at the times of a `JobList`; None where a value was not measured."""

    latency_s: Values
    latency_intent_s: Values
    juice: Values
    utility: Values
    lanes: list[int | None]
    pace_s: Values
    met: list[bool | None]


@dataclass(frozen=True, slots=True)
class LatencySeries:
    """Latency percentiles of a job, its input and its backlog over time."""

    at_s: list[float]
    intent_s: Values
    judged_s: Values
    """The latency that the intent limits: the mean, or the percentile of the intent."""
    p50_s: Values
    p95_s: Values
    p99_s: Values
    arrival_rows_s: Values
    backlog: Values
    lanes: list[int | None]


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """The verdict on an action, with score and utility before and after the action."""

    at_s: float
    verdict: str
    score_before: float | None
    score_after: float | None
    utility_before: float | None
    utility_after: float | None


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """An action with its cause and its effect."""

    id: int
    at_s: float
    job: str | None
    host: str
    kind: str
    what: str
    cause: str
    applied: bool | None
    """Whether the engine applied the action; None if not known yet."""
    detail: str
    effect: EffectEntry | None


def utility_series(journal: Past, since_s: float, points: int) -> UtilitySeries:
    """Return the total utility over time."""
    rounds = journal.sampled(since_s, points, ())
    return UtilitySeries([one.at_s for one in rounds], [one.score for one in rounds], [one.max_score for one in rounds])


def job_series(journal: Past, since_s: float, points: int) -> tuple[list[float], dict[str, JobSeries]]:
    """Return the times of the sampled rounds, and the measurements of each job at these times."""
    rounds = journal.sampled(since_s, points)
    names = dict.fromkeys(name for one in rounds for name in one.jobs)
    return [one.at_s for one in rounds], {name: _series(rounds, name) for name in names}


def _series(rounds: Sequence[RoundRecord], name: str) -> JobSeries:
    records = [one.jobs.get(name) for one in rounds]
    return JobSeries(
        _each(records, lambda one: one.latency_s),
        _each(records, lambda one: one.latency_intent_s),
        _each(records, lambda one: one.juice),
        _each(records, lambda one: one.utility),
        [_lanes(one) for one in records],
        _each(records, lambda one: one.pace_s),
        [None if one is None else one.met for one in records],
    )


def latency_series(rounds: Sequence[RoundRecord], name: str) -> LatencySeries:
    """Return the series of one job from rounds that were already read."""
    records = [one.jobs.get(name) for one in rounds]
    return LatencySeries(
        [one.at_s for one in rounds],
        _each(records, lambda one: one.latency_intent_s),
        _each(records, lambda one: one.latency_s),
        _each(records, lambda one: one.latency.p50_s if one.latency is not None else None),
        _each(records, lambda one: one.latency.p95_s if one.latency is not None else None),
        _each(records, lambda one: one.latency.p99_s if one.latency is not None else None),
        _each(records, lambda one: one.arrival_rows_s),
        _each(records, lambda one: one.backlog),
        [_lanes(one) for one in records],
    )


def _each(records: Iterable[JobRecord | None], value: Callable[[JobRecord], float | None]) -> Values:
    return [_short(value(one)) if one is not None else None for one in records]


def _short(value: float | None) -> float | None:
    """Round to five digits, which are enough for a chart and halve the size of the answer."""
    return None if value is None else float(f"{value:.5g}")


def _lanes(record: JobRecord | None) -> int | None:
    return None if record is None else total_lanes(record.lanes)


def total_lanes(lanes: Mapping[str, int]) -> int | None:
    """Lanes of all operators together; None if no operator has lanes of its own."""
    return sum(lanes.values()) if lanes else None


def action_entries(recorded: Iterable[RecordedAction]) -> list[ActionEntry]:
    """Return recorded actions as entries of the dashboard."""
    return [_entry(one) for one in recorded]


def _entry(one: RecordedAction) -> ActionEntry:
    action, outcome = one.action, one.outcome
    applied, detail = (None, "") if outcome is None else (outcome.applied, outcome.detail)
    return ActionEntry(
        one.id,
        one.at_s,
        action.job,
        action.host,
        action.kind.value,
        action.what,
        action.cause.text,
        applied,
        detail,
        None if one.effect is None else _effect(one.effect),
    )


def _effect(effect: Effect) -> EffectEntry:
    return EffectEntry(
        effect.at_s,
        effect.verdict,
        effect.score_before,
        effect.score_after,
        effect.utility_before,
        effect.utility_after,
    )
