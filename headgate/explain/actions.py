"""Lines about actions: cause, change and effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headgate.core.model import Action, Cause, JobAllocation
from headgate.core.quantities import show_seconds
from headgate.explain.lines import Facts, JobRounds, Line
from headgate.explain.words import after_colon, and_list, capitalised, goals, lanes_text, pace_text, utility_change
from headgate.health.records import NAMED
from headgate.health.resolving import ResolverName
from headgate.ports import Effect, JobRecord, RecordedAction


def action_lines(view: JobRounds, actions: Iterable[RecordedAction]) -> Iterator[Line]:
    """A line for each action that touches the job or host, after the symptoms behind the action."""
    for recorded in actions:
        steps = _steps(view, recorded)
        if recorded.action.job == view.job:
            yield from _reasons(recorded)
        if steps or recorded.action.job == view.job:
            yield Line(recorded.at_s, _action_sentence(view.job, recorded, steps), _action_facts(recorded, steps))


def _reasons(recorded: RecordedAction) -> Iterator[Line]:
    """A line for each symptom that the sentence of the diagnosis does not name, with the measurements behind the symptom."""
    for symptom in _symptoms(recorded.action.cause):
        if NAMED not in symptom.facts:
            measured = "; ".join(one.text for one in symptom.because)
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
    """One change in words: the verb in past and present form, and the rest of the sentence."""

    past: str
    verb: str
    rest: str
    facts: Facts


def _steps(view: JobRounds, recorded: RecordedAction) -> list[_Step]:
    if recorded.action.concerns_host:
        return [_host_step(recorded.action)]
    change = recorded.action.changes.get(view.job)
    if change is None:
        return []
    before = view.at(recorded.at_s)
    lanes = before.lanes if before else {}
    steps = [_lane_step(name, lanes.get(name), wanted) for name, wanted in change.lanes.items()]
    found = [step for step in (*steps, _pace_step(before, change), _share_step(before, change)) if step is not None]
    return [*found, *_remedy_steps(recorded.action, change, lanes_changed=bool(found))]


def _host_step(action: Action) -> _Step:
    host, kind = action.host, action.host_type
    if kind is None:
        return _Step("released", "release", host, {"host": host})
    price = f"{kind.price:g} per {show_seconds(kind.btu_s)}"
    return _Step("leased", "lease", f"{host} for {price}", {"host": host, "price": kind.price, "btu_s": kind.btu_s})


def _remedy_steps(action: Action, change: JobAllocation, lanes_changed: bool) -> Iterator[_Step]:
    """Changes of a remedy other than lane counts: moved lanes, moved slices, or a raised read limit."""
    if action.remedy == ResolverName.MOVE_LANES:
        hosts = ", ".join(change.avoided)
        yield _Step("moved", "move", f"its lanes off {hosts}", {"avoided": hosts})
    elif action.remedy == ResolverName.REASSIGN_SLICES:
        yield _Step("moved", "move", action.what, {"slices": action.what})
    elif action.remedy == ResolverName.SCALE_SOURCE and not lanes_changed:
        yield _Step("raised", "raise", f"its {action.what}", {"read_limit": action.what})


def _lane_step(operator: str, before: int | None, after: int) -> _Step | None:
    facts: dict[str, float | str] = {f"{operator}.lanes": after}
    if before is None:
        return _Step("set", "set", f"{operator} to {lanes_text(after)}", facts)
    facts[f"{operator}.lanes_before"] = before
    if after > before:
        return _Step("gave", "give", f"{operator} {lanes_text(after - before, 'more ')} ({before} -> {after})", facts)
    if after < before:
        return _Step("took", "take", f"{lanes_text(before - after)} from {operator} ({before} -> {after})", facts)
    return None


def _pace_step(before: JobRecord | None, change: JobAllocation) -> _Step | None:
    if change.pace_s is None or before is None or before.pace_s == change.pace_s:
        return None
    facts: dict[str, float | str] = {"pace_s": change.pace_s}
    was = ""
    if before.pace_s is not None:
        facts["pace_before_s"] = before.pace_s
        was = f" (before: {pace_text(before.pace_s)})"
    return _Step("let", "let", f"its epochs start {pace_text(change.pace_s)}{was}", facts)


def _share_step(before: JobRecord | None, change: JobAllocation) -> _Step | None:
    if before is None or before.raised_share == change.share:
        return None
    if change.share is None:
        return _Step("returned", "return", "its share to the declared share", {})
    return _Step("raised", "raise", f"its share to {change.share}", {"share": change.share})


def _action_sentence(job: str, recorded: RecordedAction, steps: Sequence[_Step]) -> str:
    action = recorded.action
    beneficiary = f"for {action.job}: " if action.job not in (None, job) else ""
    cause = action.cause.text.rstrip(".")
    # Two colons in a row do not read well.
    joint = "; " if ": " in cause else ": "
    return f"{beneficiary}{cause}{joint}{_what_was_done(recorded, steps or [_elsewhere_step(job, recorded)])}"


def _elsewhere_step(job: str, recorded: RecordedAction) -> _Step:
    """The step in words of an action that is for this job but changes only other jobs."""
    others = and_list(sorted(recorded.action.changes.keys() - {job}))
    return _Step("changed", "change", others or "nothing", {})


def _what_was_done(recorded: RecordedAction, steps: Sequence[_Step]) -> str:
    to_do = and_list([f"{step.verb} {step.rest}" for step in steps])
    if recorded.outcome is None:
        return f"decided to {to_do}; not confirmed yet"
    if not recorded.outcome.applied:
        return f"tried to {to_do}, but that failed{after_colon(recorded.outcome.detail)}"
    return and_list([f"{step.past} {step.rest}" for step in steps])


def effect_lines(view: JobRounds, actions: Iterable[RecordedAction]) -> Iterator[Line]:
    """A line for each action that has been judged."""
    for recorded in actions:
        if recorded.effect is not None and (recorded.action.job == view.job or _steps(view, recorded)):
            yield _effect_line(view, recorded, recorded.effect)


def _effect_line(view: JobRounds, recorded: RecordedAction, effect: Effect) -> Line:
    now = view.at(effect.at_s)
    total = utility_change("total ", effect.score_before, effect.score_after)
    job = ", ".join([*_measured_goals(now), *_utility_effect(view, recorded, effect)])
    figures = "; ".join(filter(None, (job, total)))
    text = f"{figures}. {capitalised(effect.verdict)}." if figures else f"{capitalised(effect.verdict)}."
    return Line(effect.at_s, text, _effect_facts(recorded, effect))


def _utility_effect(view: JobRounds, recorded: RecordedAction, effect: Effect) -> list[str]:
    """The utility of a job before and after an action: from the effect for the action's own job, from the rounds for any other job."""
    if recorded.action.job == view.job:
        before, after = effect.utility_before, effect.utility_after
    else:
        before, after = view.utility_at(recorded.at_s), view.utility_at(effect.at_s)
    return [utility_change("utility ", before, after)] if after is not None else []


def _measured_goals(now: JobRecord | None) -> list[str]:
    return [f"{goal.name} {goal.show(goal.value)}" for goal in goals(now)] if now else []


def _effect_facts(recorded: RecordedAction, effect: Effect) -> Facts:
    figures = dataclasses.asdict(effect)
    known = {name: value for name, value in figures.items() if value is not None and name != "at_s"}
    return {"what": "effect", "action": recorded.id, **known}
