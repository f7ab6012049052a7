"""The story of one job or one leased host, told from the journal: what was measured, decided and done, and what came of it.

Only changes are told. A round in which nothing happened to the job leaves no line.

    >>> from headgate.journal import MemoryJournal
    >>> story(MemoryJournal(), "page-load")
    Traceback (most recent call last):
    headgate.errors.InputError: there is no job "page-load" in the journal, which is still empty
"""

from __future__ import annotations

import dataclasses
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from itertools import chain

import msgspec

from headgate.core.model import Action, Cause, JobAllocation
from headgate.core.quantities import did_you_mean, show_seconds
from headgate.errors import InputError
from headgate.health.resolving import ResolverName
from headgate.ports import Effect, JobRecord, Journal, RecordedAction, RoundRecord

RATE_CHANGE = 0.25
"""Input that moved by more than this share since it was last told is told again."""
RATE_SETTLED, RATE_STAYED_S = 0.1, 120.0
"""A rate is told once it has stayed within this share of itself for so long: a ramp is news when it ends."""
LAG_STAYED_S = 60.0
"""A lag that was unknown for so long is told."""
ADVICE_AGAIN_S = 86400.0
"""The same advice is told again after so long at the earliest."""
START_KEY, CLOCK_KEY, WALL_CLOCK = "start_s", "clock", "wall"
"""Notes about a run that say how its times are shown."""

Facts = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened: when, a sentence for people, the figures for machines."""

    at_s: float
    text: str
    facts: Facts = field(default_factory=dict)


def story(journal: Journal, job: str) -> list[Line]:
    """What happened to a job or a host, in order: `print(as_text(story(journal, "page-load"), journal.about()))`."""
    rounds, actions = tuple(journal.rounds(job)), journal.actions(job)
    if not rounds and not actions:
        raise InputError(_unknown(journal, job))
    return told(job, rounds, actions)


def told(job: str, rounds: Sequence[RoundRecord], actions: Sequence[RecordedAction]) -> list[Line]:
    """The same from records that were read before: all rounds of the job, or some of them."""
    view = _View(job, tuple(rounds))
    # In one round, the measurements come first, then the verdict on the last action, then the next one.
    lines = chain(_measured(view), _advised(view), _effects(view, actions), _acted(view, actions))
    return sorted(lines, key=lambda line: line.at_s)


@dataclass(frozen=True, slots=True)
class _View:
    """The rounds of one job."""

    job: str
    rounds: tuple[RoundRecord, ...]

    def pairs(self) -> Iterator[tuple[float, JobRecord]]:
        return ((round_.at_s, round_.jobs[self.job]) for round_ in self.rounds)

    def at(self, at_s: float) -> JobRecord | None:
        """The job in the last round up to then; None if that round was deleted."""
        after = bisect_right(self.rounds, at_s, key=lambda round_: round_.at_s)
        return self.rounds[after - 1].jobs[self.job] if after else None

    def utility_at(self, at_s: float) -> float | None:
        record = self.at(at_s)
        return None if record is None else record.utility


def _unknown(journal: Journal, job: str) -> str:
    known = {name for round_ in journal.rounds() for name in round_.jobs}
    if not known:
        return f'there is no job "{job}" in the journal, which is still empty'
    hint = did_you_mean(job, sorted(known)) or f" It knows {', '.join(sorted(known))}."
    return f'there is no job "{job}" in the journal.{hint}'


# -- measurements ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Told:
    """What the reader knows so far."""

    met: bool | None = None
    utility: float | None = None
    rate_told: float | None = None
    rate_since: tuple[float, float] | None = None
    """Since when the input has been about the same, and what it was then."""
    missed: JobRecord | None = None
    intent: tuple[str, float] | None = None
    lag_unknown_since_s: float | None = None
    lag_told: bool = False


def _measured(view: _View) -> Iterator[Line]:
    told = _Told()
    for at_s, now in view.pairs():
        _follow_rate(told, at_s, now.arrival_rows_s)
        moved = list(_input_changed(told, at_s, now))
        sentences = [*_intent_changed(told, now), *_goal_changed(told, now), *_lag_changed(told, at_s, now)]
        if moved and not sentences and told.rate_since is not None:
            yield Line(told.rate_since[0], moved[0], _job_facts(now))  # told late, but it happened then
        elif sentences:
            yield Line(at_s, "; ".join([*moved, *sentences]), _job_facts(now))
        _remember(told, now)


def _lag_changed(told: _Told, at_s: float, now: JobRecord) -> Iterator[str]:
    """A lag that stays unknown is told once: the first readings of a job never know it."""
    if not now.lag_unknown:
        if told.lag_told and now.juice is not None:
            yield f"lag is known again (juice {_share(now.juice)})"
        told.lag_unknown_since_s, told.lag_told = None, False
        return
    since_s = told.lag_unknown_since_s if told.lag_unknown_since_s is not None else at_s
    told.lag_unknown_since_s = since_s
    if not told.lag_told and at_s - since_s >= LAG_STAYED_S:
        told.lag_told = True
        yield "lag unknown: a source does not say how many rows wait, so juice is unknown and not judged"


def _follow_rate(told: _Told, at_s: float, rate: float | None) -> None:
    if rate is not None and (told.rate_since is None or _moved(told.rate_since[1], rate, RATE_SETTLED)):
        told.rate_since = (at_s, rate)


def _remember(told: _Told, now: JobRecord) -> None:
    told.intent = (now.intent, now.worth)
    if told.rate_told is None:
        told.rate_told = now.arrival_rows_s
    if now.utility is not None:
        told.utility = now.utility
    if now.met is not None:
        told.met = now.met
        told.missed = None if now.met else now


def _intent_changed(told: _Told, now: JobRecord) -> Iterator[str]:
    if told.intent is None:
        return
    intent, worth = told.intent
    if intent != now.intent:
        yield f"intent changed from {intent} to {now.intent}"
    if worth != now.worth:
        yield f"worth changed from {_points(worth)} to {_points(now.worth)}"


def _input_changed(told: _Told, at_s: float, now: JobRecord) -> Iterator[str]:
    before, rate = told.rate_told, now.arrival_rows_s
    if before is None or rate is None or told.rate_since is None or not _moved(before, rate, RATE_CHANGE):
        return
    # What breaks or mends an intent is told with it, even if the rate is still on its way.
    if _goal_moved(told, now) or at_s - told.rate_since[0] >= RATE_STAYED_S:
        told.rate_told = rate
        yield _rate_sentence(before, rate)


def _moved(before: float, now: float, share: float) -> bool:
    return abs(now - before) > share * before


def _rate_sentence(before: float, now: float) -> str:
    if now == 0:
        return f"input stopped (it was {_rate(before)})"
    if before == 0:
        return f"input began ({_rate(now)})"
    return f"input {'rose' if now > before else 'fell'} from {_rate(before, unit='')} to {_rate(now)}"


def _goal_moved(told: _Told, now: JobRecord) -> bool:
    return now.met is not None and now.met != told.met and not (told.met is None and now.met)


def _goal_changed(told: _Told, now: JobRecord) -> Iterator[str]:
    if not _goal_moved(told, now):
        return
    yield _goal_sentence(told, now) + _utility_change(", utility ", told.utility, now.utility)


def _goal_sentence(told: _Told, now: JobRecord) -> str:
    if now.met:
        return _mended(told.missed, now)
    return _missed(now) if told.met else _missed_from_the_start(now)


@dataclass(frozen=True, slots=True)
class _Goal:
    """A half of an intent that was measured, and the words for it."""

    name: str
    value: float
    wanted: float
    met: bool
    show: Callable[[float], str]
    passed: str
    beyond: str
    within: str

    def now(self) -> str:
        """The value; in words where rounding would make it look like the one that was wanted."""
        alike = not self.met and self.show(self.value) == self.show(self.wanted)
        return f"just {self.beyond} it" if alike else self.show(self.value)


def _goals(record: JobRecord) -> list[_Goal]:
    goals = []
    value, wanted = record.latency_s, record.latency_intent_s
    if value is not None and wanted is not None:
        goals.append(_Goal("latency", value, wanted, value <= wanted, show_seconds, "passed", "above", "within"))
    value, wanted = record.juice, record.juice_intent
    if value is not None and wanted is not None:
        goals.append(_Goal("juice", value, wanted, value >= wanted, _share, "fell below", "below", "at or above"))
    return goals


def _missed(now: JobRecord) -> str:
    missed = [goal for goal in _goals(now) if not goal.met]
    sentences = [f"{goal.name} {goal.passed} {goal.show(goal.wanted)} (now {goal.now()})" for goal in missed]
    return _and(sentences) or f"missed its intent{_bracketed(now.intent)}"


def _missed_from_the_start(now: JobRecord) -> str:
    missed = [goal for goal in _goals(now) if not goal.met]
    sentences = [f"{goal.name} {goal.show(goal.value)} instead of {goal.show(goal.wanted)}" for goal in missed]
    return "missed its intent from the start" + _bracketed(_and(sentences) or now.intent)


def _mended(missed: JobRecord | None, now: JobRecord) -> str:
    off = {goal.name for goal in _goals(missed) if not goal.met} if missed else set()
    mended = [goal for goal in _goals(now) if goal.name in off and goal.met]
    sentences = [f"{goal.name} is back {goal.within} {goal.show(goal.wanted)} (now {goal.now()})" for goal in mended]
    return _and(sentences) or f"met its intent again{_bracketed(now.intent)}"


def _job_facts(now: JobRecord) -> Facts:
    names = ("utility", "worth", "latency_s", "juice", "arrival_rows_s", "backlog")
    known = {name: getattr(now, name) for name in names}
    return {"what": "measured", **{name: value for name, value in known.items() if value is not None}}


# -- advice ------------------------------------------------------------------------------------------------------------


def _advised(view: _View) -> Iterator[Line]:
    """Advice that names the job, once a day while nothing but its figures change."""
    named = re.compile(rf"(?<![\w-]){re.escape(view.job)}(?![\w-])")
    told_s: dict[str, float] = {}
    for round_ in view.rounds:
        for text in filter(named.search, round_.advice):
            gist = _gist(text)
            if round_.at_s - told_s.get(gist, -math.inf) >= ADVICE_AGAIN_S:
                told_s[gist] = round_.at_s
                yield Line(round_.at_s, text, {"what": "advice"})


def _gist(text: str) -> str:
    """What the advice is about: what comes before a colon, without figures."""
    return re.sub(r"\d[\d.,]*", "#", text.partition(": ")[0])


# -- actions -----------------------------------------------------------------------------------------------------------


def _acted(view: _View, actions: Iterable[RecordedAction]) -> Iterator[Line]:
    for recorded in actions:
        steps = _steps(view, recorded)
        if recorded.action.job == view.job:
            yield from _reasons(recorded)
        if steps or recorded.action.job == view.job:
            yield Line(recorded.at_s, _action_sentence(view.job, recorded, steps), _action_facts(recorded, steps))


def _reasons(recorded: RecordedAction) -> Iterator[Line]:
    """The symptoms behind a diagnosis that its sentence does not name, with what was measured."""
    told = recorded.action.cause.text
    for symptom in _symptoms(recorded.action.cause):
        if symptom.text not in told:
            measured = "; ".join(cause.text for cause in symptom.because)
            yield Line(recorded.at_s, symptom.text, {"what": "symptom", **symptom.facts, "measured": measured})


def _symptoms(cause: Cause) -> Iterator[Cause]:
    for reason in cause.because:
        if "symptom" in reason.facts:
            yield reason
        else:
            yield from _symptoms(reason)


def _action_facts(recorded: RecordedAction, steps: Iterable[_Step]) -> Facts:
    facts: dict[str, float | str] = {"what": "action", "action": recorded.id, "kind": recorded.action.kind.value}
    for step in steps:
        facts.update(step.facts)
    return {**recorded.action.cause.facts, **facts}


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of one thing: a verb, in both forms, and the rest of the sentence."""

    past: str
    verb: str
    rest: str
    facts: Facts


def _steps(view: _View, recorded: RecordedAction) -> list[_Step]:
    if recorded.action.concerns_host:
        return [_host_step(recorded.action)]
    change = recorded.action.changes.get(view.job)
    if change is None:
        return []
    before = view.at(recorded.at_s)
    lanes = before.lanes if before else {}
    steps = [_lane_step(name, lanes.get(name), wanted) for name, wanted in change.lanes.items()]
    return [step for step in (*steps, _pace_step(before, change), _place_step(recorded.action)) if step is not None]


def _host_step(action: Action) -> _Step:
    host, kind = action.host, action.host_type
    if kind is None:
        return _Step("released", "release", host, {"host": host})
    price = f"{kind.price:g} per {show_seconds(kind.btu_s)}"
    return _Step("leased", "lease", f"{host} for {price}", {"host": host, "price": kind.price, "btu_s": kind.btu_s})


def _place_step(action: Action) -> _Step | None:
    """Lanes or slices that went elsewhere; the action says in its few signs which."""
    if action.remedy == ResolverName.MOVE_LANES:
        hosts = action.what.removeprefix("lanes leave ")
        return _Step("moved", "move", f"its lanes off {hosts}", {"avoided": hosts})
    if action.remedy == ResolverName.REASSIGN_SLICES:
        return _Step("moved", "move", action.what, {"slices": action.what})
    if action.remedy == ResolverName.SCALE_SOURCE and action.what.startswith("read limit"):
        return _Step("raised", "raise", f"its {action.what}", {"read_limit": action.what})
    return None


def _lane_step(operator: str, before: int | None, after: int) -> _Step | None:
    facts: dict[str, float | str] = {f"{operator}.lanes": after}
    if before is None:
        return _Step("set", "set", f"{operator} to {_lanes(after)}", facts)
    facts[f"{operator}.lanes_before"] = before
    if after > before:
        return _Step("gave", "give", f"{operator} {_lanes(after - before, 'more ')} ({before} -> {after})", facts)
    if after < before:
        return _Step("took", "take", f"{_lanes(before - after)} from {operator} ({before} -> {after})", facts)
    return None


def _pace_step(before: JobRecord | None, change: JobAllocation) -> _Step | None:
    if change.pace_s is None or before is None or before.pace_s == change.pace_s:
        return None
    facts: dict[str, float | str] = {"pace_s": change.pace_s}
    was = ""
    if before.pace_s is not None:
        facts["pace_before_s"] = before.pace_s
        was = f" (before: {_pace(before.pace_s)})"
    return _Step("let", "let", f"its epochs start {_pace(change.pace_s)}{was}", facts)


def _action_sentence(job: str, recorded: RecordedAction, steps: Sequence[_Step]) -> str:
    action = recorded.action
    beneficiary = f"for {action.job}: " if action.job not in (None, job) else ""
    cause = action.cause.text.rstrip(".")
    # Two colons in a row do not read well.
    joint = "; " if ": " in cause else ": "
    return f"{beneficiary}{cause}{joint}{_what_was_done(recorded, steps or [_elsewhere_step(job, recorded)])}"


def _elsewhere_step(job: str, recorded: RecordedAction) -> _Step:
    """An action for this job that changes others alone."""
    others = _and(sorted(recorded.action.changes.keys() - {job}))
    return _Step("changed", "change", others or "nothing", {})


def _what_was_done(recorded: RecordedAction, steps: Sequence[_Step]) -> str:
    to_do = _and([f"{step.verb} {step.rest}" for step in steps])
    if recorded.outcome is None:
        return f"decided to {to_do}; not confirmed yet"
    if not recorded.outcome.applied:
        return f"tried to {to_do}, but that failed{_after_colon(recorded.outcome.detail)}"
    return _and([f"{step.past} {step.rest}" for step in steps])


# -- effects -----------------------------------------------------------------------------------------------------------


def _effects(view: _View, actions: Iterable[RecordedAction]) -> Iterator[Line]:
    for recorded in actions:
        if recorded.effect is not None and (recorded.action.job == view.job or _steps(view, recorded)):
            yield _effect_line(view, recorded, recorded.effect)


def _effect_line(view: _View, recorded: RecordedAction, effect: Effect) -> Line:
    now = view.at(effect.at_s)
    total = _utility_change("total ", effect.score_before, effect.score_after)
    job = ", ".join([*_measured_goals(now), *_utility_effect(view, recorded, effect)])
    figures = "; ".join(filter(None, (job, total)))
    text = f"{figures}. {_capital(effect.verdict)}." if figures else f"{_capital(effect.verdict)}."
    return Line(effect.at_s, text, _effect_facts(recorded, effect))


def _utility_effect(view: _View, recorded: RecordedAction, effect: Effect) -> list[str]:
    """The effect knows the utility of the job that the action was for; any other job's is in its rounds."""
    if recorded.action.job == view.job:
        before, after = effect.utility_before, effect.utility_after
    else:
        before, after = view.utility_at(recorded.at_s), view.utility_at(effect.at_s)
    return [_utility_change("utility ", before, after)] if after is not None else []


def _measured_goals(now: JobRecord | None) -> list[str]:
    return [f"{goal.name} {goal.show(goal.value)}" for goal in _goals(now)] if now else []


def _effect_facts(recorded: RecordedAction, effect: Effect) -> Facts:
    figures = dataclasses.asdict(effect)
    known = {name: value for name, value in figures.items() if value is not None and name != "at_s"}
    return {"what": "effect", "action": recorded.id, **known}


# -- words and figures -------------------------------------------------------------------------------------------------


def _and(parts: Sequence[str]) -> str:
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _bracketed(text: str) -> str:
    return f" ({text})" if text else ""


def _after_colon(text: str) -> str:
    return f": {text.rstrip('.')}" if text else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def _lanes(number: int, more: str = "") -> str:
    return f"{number} {more}lane{'' if number == 1 else 's'}"


def _pace(pace_s: float) -> str:
    return "back to back" if pace_s == 0 else f"every {show_seconds(pace_s)}"


def _points(utility: float) -> str:
    """One decimal, and none where it is zero."""
    return f"{utility:,.1f}".removesuffix(".0")


def _share(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _rate(rows_s: float, unit: str = " rows/s") -> str:
    return (f"{rows_s:,.0f}" if rows_s >= 10 else f"{rows_s:.2g}") + unit


def _utility_change(words: str, before: float | None, after: float | None) -> str:
    if after is None:
        return ""
    if before is None or _points(before) == _points(after):
        return f"{words}{_points(after)}"
    return f"{words}{_points(before)} -> {_points(after)}"


# -- for people and for machines ---------------------------------------------------------------------------------------


def as_json(lines: Iterable[Line]) -> str:
    """A list of objects with `at_s`, `text` and `facts`."""
    return msgspec.json.format(msgspec.json.encode(list(lines)), indent=2).decode()


def as_text(lines: Iterable[Line], about: Mapping[str, str], zone: tzinfo | None = None) -> str:
    """A line each: clock time if the run was by the clock, time since its start if it was simulated.

    >>> as_text([Line(900.0, "latency passed 60 ms (now 412 ms), utility 90 -> 13.1")], {})
    '0:15:00  latency passed 60 ms (now 412 ms), utility 90 -> 13.1'
    """
    if about.get(CLOCK_KEY) == WALL_CLOCK:
        return "\n".join(_by_the_clock(list(lines), zone))
    start_s = float(about.get(START_KEY, 0.0))
    return "\n".join(f"{_since_start(line.at_s - start_s)}  {line.text}" for line in lines)


def _by_the_clock(lines: Sequence[Line], zone: tzinfo | None) -> Iterator[str]:
    """A story of several days names each of them once, above its lines."""
    times = [datetime.fromtimestamp(line.at_s, zone) for line in lines]
    several_days = len({time.date() for time in times}) > 1
    day = None
    for time, line in zip(times, lines, strict=True):
        if several_days and time.date() != day:
            day = time.date()
            yield day.isoformat()
        yield f"{time:%H:%M:%S}  {line.text}"


def _since_start(elapsed_s: float) -> str:
    minutes, seconds = divmod(round(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
