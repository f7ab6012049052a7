"""Lines about measurements: changes of input, intent and lag, intents met or missed, and alerts about the job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headgate.explain.lines import Facts, JobRounds, Line
from headgate.explain.words import and_list, bracketed, goals, points, rate_text, share_text, utility_change
from headgate.ports import JobRecord

RATE_CHANGE = 0.25
"""Share by which the input must change, compared with the last reported input, to be reported again."""
RATE_SETTLED, RATE_STAYED_S = 0.1, 120.0
"""An input rate is reported once it has stayed within this share of itself for this many seconds: a ramp is reported when it ends."""
LAG_STAYED_S = 60.0
"""Seconds for which the lag of a job must stay unknown to be reported."""
ADVICE_AGAIN_S = 86400.0
"""Shortest time between two reports of the same advice, in seconds."""


@dataclass(slots=True)
class _Reported:
    """The values that were reported last."""

    met: bool | None = None
    utility: float | None = None
    rate_reported: float | None = None
    rate_since: tuple[float, float] | None = None
    """Time since which the input has been about the same, and the input at that time; None before the first measurement."""
    missed: JobRecord | None = None
    intent: tuple[str, float] | None = None
    lag_unknown_since_s: float | None = None
    lag_reported: bool = False


def measured_lines(view: JobRounds) -> Iterator[Line]:
    """A line for each relevant change in the measurements of the job."""
    reported = _Reported()
    for at_s, now in view.pairs():
        _follow_rate(reported, at_s, now.arrival_rows_s)
        moved = list(_input_changed(reported, at_s, now))
        sentences = [*_intent_changed(reported, now), *_goal_changed(reported, now), *_lag_changed(reported, at_s, now)]
        if moved and not sentences and reported.rate_since is not None:
            yield Line(reported.rate_since[0], moved[0], _job_facts(now))  # reported late, with the time of the change
        elif sentences:
            yield Line(at_s, "; ".join([*moved, *sentences]), _job_facts(now))
        _remember(reported, now)


def _lag_changed(reported: _Reported, at_s: float, now: JobRecord) -> Iterator[str]:
    """Report once that the lag stays unknown, and once that it is known again; the first readings of a job never contain the lag."""
    if not now.lag_unknown:
        if reported.lag_reported and now.juice is not None:
            yield f"lag is known again (juice {share_text(now.juice)})"
        reported.lag_unknown_since_s, reported.lag_reported = None, False
        return
    since_s = reported.lag_unknown_since_s if reported.lag_unknown_since_s is not None else at_s
    reported.lag_unknown_since_s = since_s
    if not reported.lag_reported and at_s - since_s >= LAG_STAYED_S:
        reported.lag_reported = True
        yield "lag unknown: a source does not say how many rows wait, so juice is unknown and not judged"


def _follow_rate(reported: _Reported, at_s: float, rate: float | None) -> None:
    if rate is not None and (reported.rate_since is None or _moved(reported.rate_since[1], rate, RATE_SETTLED)):
        reported.rate_since = (at_s, rate)


def _remember(reported: _Reported, now: JobRecord) -> None:
    reported.intent = (now.intent, now.worth)
    if reported.rate_reported is None:
        reported.rate_reported = now.arrival_rows_s
    if now.utility is not None:
        reported.utility = now.utility
    if now.met is not None:
        reported.met = now.met
        reported.missed = None if now.met else now


def _intent_changed(reported: _Reported, now: JobRecord) -> Iterator[str]:
    if reported.intent is None:
        return
    intent, worth = reported.intent
    if intent != now.intent:
        yield f"intent changed from {intent} to {now.intent}"
    if worth != now.worth:
        yield f"worth changed from {points(worth)} to {points(now.worth)}"


def _input_changed(reported: _Reported, at_s: float, now: JobRecord) -> Iterator[str]:
    before, rate = reported.rate_reported, now.arrival_rows_s
    if before is None or rate is None or reported.rate_since is None or not _moved(before, rate, RATE_CHANGE):
        return
    # A change of input that breaks or restores an intent is reported with the intent, even while the rate still changes.
    if _goal_moved(reported, now) or at_s - reported.rate_since[0] >= RATE_STAYED_S:
        reported.rate_reported = rate
        yield _rate_sentence(before, rate)


def _moved(before: float, now: float, share: float) -> bool:
    return abs(now - before) > share * before


def _rate_sentence(before: float, now: float) -> str:
    if now == 0:
        return f"input stopped (it was {rate_text(before)})"
    if before == 0:
        return f"input began ({rate_text(now)})"
    return f"input {'rose' if now > before else 'fell'} from {rate_text(before, unit='')} to {rate_text(now)}"


def _goal_moved(reported: _Reported, now: JobRecord) -> bool:
    return now.met is not None and now.met != reported.met and not (reported.met is None and now.met)


def _goal_changed(reported: _Reported, now: JobRecord) -> Iterator[str]:
    if not _goal_moved(reported, now):
        return
    yield _goal_sentence(reported, now) + utility_change(", utility ", reported.utility, now.utility)


def _goal_sentence(reported: _Reported, now: JobRecord) -> str:
    if now.met:
        return _met_again(reported.missed, now)
    return _missed(now) if reported.met else _missed_from_the_start(now)


def _missed(now: JobRecord) -> str:
    missed = [goal for goal in goals(now) if not goal.met]
    sentences = [f"{goal.name} {goal.passed} {goal.show(goal.wanted)} (now {goal.now()})" for goal in missed]
    return and_list(sentences) or f"missed its intent{bracketed(now.intent)}"


def _missed_from_the_start(now: JobRecord) -> str:
    missed = [goal for goal in goals(now) if not goal.met]
    sentences = [f"{goal.name} {goal.show(goal.value)} instead of {goal.show(goal.wanted)}" for goal in missed]
    return "missed its intent from the start" + bracketed(and_list(sentences) or now.intent)


def _met_again(missed: JobRecord | None, now: JobRecord) -> str:
    off = {goal.name for goal in goals(missed) if not goal.met} if missed else set()
    restored = [goal for goal in goals(now) if goal.name in off and goal.met]
    sentences = [f"{goal.name} is back {goal.within} {goal.show(goal.wanted)} (now {goal.now()})" for goal in restored]
    return and_list(sentences) or f"met its intent again{bracketed(now.intent)}"


def _job_facts(now: JobRecord) -> Facts:
    names = ("utility", "worth", "latency_s", "juice", "arrival_rows_s", "backlog")
    known = {name: getattr(now, name) for name in names}
    return {"what": "measured", **{name: value for name, value in known.items() if value is not None}}


def advice_lines(view: JobRounds) -> Iterator[Line]:
    """A line for each alert about the job; alerts that differ only in their figures appear at most once a day."""
    reported_s: dict[object, float] = {}
    for round_ in view.rounds:
        for alert in round_.advice:
            if alert.job == view.job and round_.at_s - reported_s.get(alert.key, -math.inf) >= ADVICE_AGAIN_S:
                reported_s[alert.key] = round_.at_s
                yield Line(round_.at_s, alert.sentence, {"what": "advice", "kind": alert.kind})
