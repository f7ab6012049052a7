"""Who gets help, and did it help? The state machine of Henge (SoCC '18, section 5), for the cluster as a whole.

`step(state, view) -> (state, decision)` is pure. The rules are the table `TRANSITIONS`, read from the top: the first row whose
state and condition fit decides. What goes beyond the paper is marked as such and argued in docs/decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from headgate.config import Settings
from headgate.core.metrics import JobView, View, sub_window
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.quantities import show_seconds
from headgate.core.sizing import (
    Lanes,
    adds_lanes,
    catching_up,
    fewer_lanes,
    has_finished_epoch,
    longest_pace_s,
    recovering,
)
from headgate.health.records import LogEntry
from headgate.health.resolving import SCALE_UP
from headgate.scheduler.help import help_for, helping
from headgate.scheduler.judgement import judged, logged, noticed, output_rows_s, remember_best, set_aside
from headgate.scheduler.memory import Decision, Refusal, SearchPhase, Situation, State, Trial, brink, mends


def step(state: State, view: View, settings: Settings) -> tuple[State, Decision]:
    """One round: bookkeeping, then the first rule of the table that fits."""
    situation = judged(noticed(Situation(state, view, settings)))
    for rule in TRANSITIONS:
        if rule.phase in (None, situation.state.phase) and rule.condition(situation):
            after, decision = rule.act(situation)
            return after, dataclasses.replace(decision, rule=rule.name, verdict=situation.verdict)
    raise AssertionError("the last rule of each phase always fits")


LEAST_PACE_S = 0.1
"""A shorter wait between epochs is not worth setting."""

# -- conditions ------------------------------------------------------------------------------------------------------------------


def _always(_: Situation) -> bool:
    return True


def _sightless(now: Situation) -> bool:
    return bool(now.view.unread)


def _gathering(now: Situation) -> bool:
    return now.state.blind


def _new_workload(now: Situation) -> bool:
    return dict(now.state.intents) != _fingerprints(now.view)


def _settling(now: Situation) -> bool:
    return now.state.trial is not None


def _warming_up(now: Situation) -> bool:
    return bool(now.warming_up)


def _harmed_and_reducible(now: Situation) -> bool:
    grown = now.verdict is not None and now.verdict.kind is ActionKind.RECONFIGURE
    return grown and _harmed(now) and bool(now.view.congested) and not now.state.reduced and bool(_reductions(now))


def _harmed(now: Situation) -> bool:
    return now.verdict is not None and now.verdict.harmful


def _harmed_with_others_waiting(now: Situation) -> bool:
    return _harmed(now) and bool(_way_back(now)) and any(help_for(job, now) is not None for job in now.wanting)


def _overtaken(now: Situation) -> bool:
    return now.verdict is not None and now.verdict.kind is ActionKind.RECONFIGURE and now.verdict.fell


def _all_met_and_stable(now: Situation) -> bool:
    return not now.missing and now.state.stable + 1 >= now.settings.stable_rounds


def _all_met(now: Situation) -> bool:
    return not now.missing


def _time_to_spare(now: Situation) -> bool:
    return bool(_relaxations(now))


def _can_help(now: Situation) -> bool:
    return any(help_for(job, now) is not None for job in now.wanting)


def _on_the_brink(now: Situation) -> bool:
    if now.wanting or now.view.congested:
        return False
    return any(help_for(job, now) is not None for job in now.uneasy)


def _hopeless_hog(now: Situation) -> bool:
    return _hog(now) is not None


def _crushed(now: Situation) -> bool:
    """So many lanes want each core that giving one job more only takes it from another."""
    cores = sum(host.cores for host in now.view.lasting)
    load = sum(host.load or 0.0 for host in now.view.lasting)
    return load > now.settings.crush * cores and _hopeless_hog(now)


def _mends(now: Situation) -> bool:
    return bool(now.mending)


def _was_better(now: Situation) -> bool:
    return _knows_better(now) and bool(_way_back(now))


def _knows_better(now: Situation) -> bool:
    best = now.state.best
    return best is not None and best.score > now.score + now.settings.noise * now.max_score


def _way_back_refused(now: Situation) -> bool:
    return _knows_better(now) and any(now.refuses(name) for name in _differing(now))


def _fell(now: Situation) -> bool:
    """The total fell (Henge, section 5.3), or one job that was not set aside lost its share (beyond the paper)."""
    rest = now.state.rest_score
    total = rest is not None and now.score < rest * (1 - now.settings.drop) and bool(now.wanting)
    return total or any(_lost(job, now) for job in now.wanting)


def _lost(job: JobView, now: Situation) -> bool:
    """Below its worth by more than the drop, over the window and still in the newest sub-window; or by less for long."""
    if now.view.at_s - now.state.missed_since_s[job.job.name] >= now.settings.linger_s:
        return True
    limit = job.worth * (1 - now.settings.drop)
    return job.utility is not None and job.utility < limit and job.recent is not None and job.recent < limit


# -- acts ------------------------------------------------------------------------------------------------------------------------

Result = tuple[State, Decision]


def _wait_for_data(now: Situation) -> Result:
    names = ", ".join(sorted(now.view.unread))
    return now.state, Decision("", f"no fresh measurements from {names}")


def _wait_after_outage(now: Situation) -> Result:
    return now.state, Decision(
        "", f"measurements came back; {show_seconds(now.settings.outage_data_s)} of them are collected first"
    )


def _start_afresh(now: Situation) -> Result:
    """Jobs or intents changed: what was learnt before no longer applies."""
    old, new = now.state.intents, _fingerprints(now.view)
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    skipped = {name: skip for name, skip in now.state.skipped.items() if name not in changed}
    lanes = {name: histories for name, histories in now.state.lanes.items() if name not in changed}
    came_or_went = old.keys() != new.keys()  # there may be room now for what was refused
    refused = {} if came_or_went else {name: one for name, one in now.state.refused.items() if name not in changed}
    state = dataclasses.replace(_forgotten(now.state), intents=new, skipped=skipped, lanes=lanes, refused=refused)
    return state, Decision("", f"jobs or intents changed ({', '.join(sorted(changed))}); history forgotten")


def _forgotten(state: State) -> State:
    return dataclasses.replace(
        state,
        phase=SearchPhase.SEARCHING,
        best=None,
        reduced=False,
        throttled=(),
        trial=None,
        stable=0,
        rest_score=None,
    )


def _let_settle(now: Situation) -> Result:
    """Wait until the touched jobs' measurements stand still, then measure them from there on."""
    trial = now.state.trial
    assert trial is not None
    waited_s = now.view.at_s - trial.at_s
    still = all(_stands_still(now.view.jobs[name], now.settings) for name in trial.touched if name in now.view.jobs)
    settled = waited_s >= now.settings.settle_min_s and (still or waited_s >= now.settings.settle_max_s)
    if not settled or trial.settled_s is not None:
        return now.state, Decision("", f"waiting for the effect of the last action ({show_seconds(waited_s)} so far)")
    since_s = {**now.state.since_s, **{name: _clean_since_s(now.view.jobs.get(name), now) for name in trial.touched}}
    state = dataclasses.replace(now.state, trial=dataclasses.replace(trial, settled_s=now.view.at_s), since_s=since_s)
    return state, Decision("", "the last action has settled; measuring its effect")


def _clean_since_s(job: JobView | None, now: Situation) -> float:
    """From the beginning of the two sub-windows that were found alike."""
    return job.samples[-3:][0].at_s if job is not None and job.samples else now.view.at_s


def _stands_still(job: JobView, settings: Settings) -> bool:
    """No more change to wait for: two sub-windows alike, or a backlog on its way down."""
    if catching_up(job, settings):
        return True
    (_, older), newer = sub_window(job.job, job.samples[-3:-1], settings), job.recent
    if older is None or newer is None:
        return False
    return abs(newer - older) <= settings.settle_change * max(newer, older)


def _warm_up(now: Situation) -> Result:
    return now.state, Decision("", f"less than {show_seconds(now.settings.warm_up_s)} of measurements for some job")


def _reduce(now: Situation) -> Result:
    changes = _reductions(now)
    names = ", ".join(sorted(changes))
    taken = sum(
        sum(now.view.jobs[name].allocation.lanes.values()) - sum(new.lanes.values()) for name, new in changes.items()
    )
    cause = Cause(
        f"the last step lowered the total and most hosts are congested; {names} meet their intents and gave up {taken} idle lanes",
        {"lanes": float(taken)},
    )
    action = Action(ActionKind.REDUCE, None, changes, cause)
    return _on_trial(dataclasses.replace(now.state, reduced=True), action, now), Decision("", action.sentence, action)


def _reductions(now: Situation) -> dict[str, JobAllocation]:
    """Fewer lanes for every job that meets its intent and has idle ones."""
    changes = {}
    for name, job in now.view.jobs.items():
        if job.met:
            lanes = now.permitted(job, fewer_lanes(job, now.settings))
            if lanes != job.allocation.lanes:
                changes[name] = job.allocation.with_lanes(lanes)
    return changes


def _throttle(now: Situation) -> Result:
    """Make the hopeless job that is worth least smaller, so that others can meet their intents (beyond the paper)."""
    job = _hog(now)
    assert job is not None
    name, lanes = job.job.name, job.allocation.lanes
    left = _lanes_left(job, now)
    cause = Cause(
        f"{name} gets {job.utility or 0:.2f} of {job.worth:g} out of {sum(lanes.values())} lanes and does not recover;"
        f" {sum(left.values())} lanes leave the cores to {_names(_others_short(job, now))}",
        {"utility": job.utility or 0.0, "worth": job.worth},
    )
    action = Action(ActionKind.THROTTLE, name, {name: job.allocation.with_lanes(left)}, cause)
    state = set_aside(remember_best(now.state, now), job, now)
    state = dataclasses.replace(state, throttled=(*now.state.throttled, name), stable=0)
    return _on_trial(state, action, now), Decision("", action.sentence, action)


def _lanes_left(job: JobView, now: Situation) -> Lanes:
    lanes = job.allocation.lanes
    return now.permitted(job, {name: _throttled_lanes(job, name, count, now.settings) for name, count in lanes.items()})


def _long_measured(job: JobView, settings: Settings) -> bool:
    """A job that has only just started is slow for other reasons."""
    return job.span is not None and job.span.seconds >= min(settings.window_s, settings.settle_max_s) - settings.round_s


def _throttled_lanes(job: JobView, operator: str, lanes: int, settings: Settings) -> int:
    if not job.job.graph.operators[operator].inputs:
        return lanes
    return max(1, round(lanes * (1 - settings.reduction)))


def _hog(now: Situation) -> JobView | None:
    """The job worth least that gets next to nothing and does not recover, while the cores are short and a job that is worth no
    less misses its intent; among equals, the one that keeps most lanes busy.
    """
    if not now.view.congested or now.settings.objective != "total":
        return None
    hopeless = (job for job in _short(now) if _is_hopeless(job, now) and _others_short(job, now))
    return min(hopeless, key=lambda job: (job.worth, -_busy_lanes(job), job.job.name), default=None)


def _short(now: Situation) -> list[JobView]:
    return [job for job in now.missing if not mends(job, now.settings)]


def _others_short(job: JobView, now: Situation) -> list[JobView]:
    """Jobs that are worth as much or more, and want the cores of this one."""
    return [other for other in _short(now) if other is not job and other.worth >= job.worth]


def _is_hopeless(job: JobView, now: Situation) -> bool:
    return (
        (job.satisfaction or 0.0) < now.settings.hopeless
        and job.job.name not in now.state.throttled
        and not now.refuses(job.job.name)
        and not recovering(job, now.settings.noise)
        and _long_measured(job, now.settings)
        and _lanes_left(job, now) != job.allocation.lanes
    )


def _busy_lanes(job: JobView) -> float:
    return sum(sum(job.span.busy_s(name)) for name in job.allocation.lanes) if job.span is not None else 0.0


def _undo(now: Situation) -> Result:
    """Back to the best configuration, and on with jobs that have not had their turn (beyond the paper)."""
    best = now.state.best
    assert best is not None
    cause = Cause(
        f"back to the best configuration so far, worth {best.score:.4g} (now {now.score:.4g})",
        {"best": best.score, "score": now.score},
    )
    action = Action(ActionKind.REVERT, None, _way_back(now), cause)
    return _on_trial(now.state, action, now), Decision("", action.sentence, action)


def _revert(now: Situation) -> Result:
    """Back to the best configuration; the search is over until something changes (Henge, section 5.3)."""
    if not _way_back(now):
        return _rest(now)
    state, decision = _undo(dataclasses.replace(now, state=_resting(now)))
    return dataclasses.replace(state, rest_score=None), decision


def _way_back(now: Situation) -> dict[str, JobAllocation]:
    """What jobs had in the best configuration and can have again."""
    return {name: had for name, had in _differing(now).items() if _goes_back(now.view.jobs[name], had, now)}


def _differing(now: Situation) -> dict[str, JobAllocation]:
    """The jobs whose allocation differs from the best configuration's, with the latter."""
    if now.state.best is None:
        return {}
    best = now.state.best.allocation
    return {name: best[name] for name, job in now.view.jobs.items() if name in best and best[name] != job.allocation}


def _goes_back(job: JobView, had: JobAllocation, now: Situation) -> bool:
    """Whether a job can have again what it had: a job whose change did harm always, any other job not if those lanes were undone
    lately, and not if it recovers and would lose lanes. Without a finished epoch since its last change, no job gets lanes.
    """
    name, lanes = job.job.name, job.allocation.lanes
    if now.refuses(name) or (adds_lanes(lanes, had.lanes) and not has_finished_epoch(job)):
        return False
    if now.verdict is not None and name in now.verdict.blamed:
        return True
    barred = any(now.bars(name, operator, count) for operator, count in had.lanes.items())
    loses = any(had.lanes.get(operator, count) < count for operator, count in lanes.items())
    return not barred and not (loses and recovering(job, now.settings.noise))


def _resting(now: Situation) -> State:
    """Converged: jobs that still miss their intents are set aside until something changes."""
    state = dataclasses.replace(now.state, phase=SearchPhase.CONVERGED, stable=0, rest_score=now.score)
    for job in now.missing:
        if not now.skips(job.job.name):
            state = set_aside(state, job, now)
    return state


def _rest(now: Situation) -> Result:
    cause = "all intents hold" if not now.missing else f"nothing left that helps {_names(now.missing)}"
    return _resting(now), Decision("", cause)


def _names(jobs: list[JobView]) -> str:
    return ", ".join(job.job.name for job in jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")


def _forget(now: Situation) -> Result:
    state = remember_best(_forgotten(now.state), now)
    return state, Decision(
        "", "the total fell in spite of the last step, not because of it: the workload moved, history forgotten"
    )


def _count_stable(now: Situation) -> Result:
    state = dataclasses.replace(now.state, stable=now.state.stable + 1)
    return state, Decision("", f"all intents hold, round {state.stable} of {now.settings.stable_rounds}")


def _wait_for_backlog(now: Situation) -> Result:
    if now.unclear:
        return now.state, Decision("", f"lanes of {_names(now.unclear)} differ, but not for long enough to say why")
    return now.state, Decision("", f"{_names(now.mending)} will meet the intent once the backlog is gone")


def _wait_after_refusal(now: Situation) -> Result:
    return now.state, Decision("", "the way back to a better configuration was refused; it is asked for again later")


def _relax(now: Situation) -> Result:
    changes = _relaxations(now)
    paces = ", ".join(f"{name} every {show_seconds(new.pace_s or 0.0)}" for name, new in sorted(changes.items()))
    cause = Cause("time to spare; each epoch saved leaves its fixed cost to the others")
    action = Action(ActionKind.RELAX, None, changes, cause, paces)
    return _on_trial(dataclasses.replace(now.state, stable=0), action, now), Decision("", action.sentence, action)


def _relaxations(now: Situation) -> dict[str, JobAllocation]:
    """Longer paces for jobs that meet their intents with room (beyond the paper)."""
    changes = {}
    for name, job in now.view.jobs.items():
        pace_s = longest_pace_s(job, now.settings) if job.met and not now.refuses(name) else None
        if (
            pace_s is not None
            and job.allocation.pace_s is not None
            and pace_s > (1 + now.settings.pace_step) * job.allocation.pace_s + LEAST_PACE_S
        ):
            changes[name] = dataclasses.replace(job.allocation, pace_s=round(pace_s, 2))
    return changes


def _reconfigure(now: Situation) -> Result:
    """Help the first job in line that can be helped; those before it that cannot are set aside."""
    state = dataclasses.replace(remember_best(now.state, now), stable=0)
    for job in now.wanting:
        help_ = help_for(job, now)
        if help_ is None:
            state = set_aside(state, job, now)
            continue
        return _helped(state, job, help_, now)
    raise AssertionError("the condition found a job to help")


def _prevent(now: Situation) -> Result:
    """Help a job that is about to miss its intent, while it costs no other job anything."""
    helped = ((job, help_for(job, now)) for job in now.uneasy)
    job, help_ = next((job, help_) for job, help_ in helped if help_ is not None)
    return _helped(remember_best(now.state, now), job, help_, now)


def _helped(state: State, job: JobView, help_: JobAllocation, now: Situation) -> Result:
    name, remedy = job.job.name, now.remedies.get(job.job.name)
    action = helping(job, help_, remedy)
    found = {} if remedy is None else {name: (remedy.diagnosis,)}
    return _on_trial(state, action, now), Decision("", action.sentence, action, diagnoses=found)


def _leave_rest(now: Situation) -> Result:
    """Something changed in the Converged state: the old history no longer applies (Henge, section 5.3)."""
    cause = f"{_names(now.wanting)} fell below what the cluster had converged to; history forgotten"
    return _forgotten(now.state), Decision("", cause)


def _stay(now: Situation) -> Result:
    rest = now.score if now.state.rest_score is None else max(now.state.rest_score, now.score)
    return dataclasses.replace(now.state, rest_score=rest), Decision("", "converged")


def _on_trial(state: State, action: Action, now: Situation) -> State:
    utilities = {name: job.utility or 0.0 for name, job in now.view.jobs.items()}
    job = now.view.jobs[action.job] if action.job is not None else None
    trial = Trial(
        kind=action.kind,
        job=action.job,
        touched=tuple(action.changes),
        at_s=now.view.at_s,
        score=now.score,
        total=now.total,
        utilities=utilities,
        brink=brink(job) if job is not None else 0.0,
        arrival_rows_s=job.span.arrival_rows_s() if job is not None and job.span is not None else 0.0,
        output_rows_s=output_rows_s(job) if job is not None else 0.0,
        tried=_entry(action, now),
        had={name: now.view.jobs[name].allocation for name in action.changes},
        follows_harm_of=now.verdict.blamed if now.verdict is not None and action.kind is ActionKind.REDUCE else (),
    )
    return dataclasses.replace(state, trial=trial)


def _entry(action: Action, now: Situation) -> LogEntry | None:
    """For the action log, if a diagnosis asked for the action."""
    remedy = now.remedies.get(action.job or "")
    if remedy is None or not action.remedy or action.job is None:
        return None
    diagnosis = remedy.diagnosis
    return LogEntry(
        now.view.at_s, action.job, "headgate", diagnosis.kind, diagnosis.operator, action.remedy, what=action.what
    )


def _fingerprints(view: View) -> dict[str, str]:
    return {name: job.job.intent.fingerprint() for name, job in view.jobs.items()}


def carried_out(state: State, at_s: float) -> State:
    """The state when an action was carried out later than it was decided: its effect is awaited from then on."""
    trial = state.trial
    return state if trial is None else dataclasses.replace(state, trial=dataclasses.replace(trial, at_s=at_s))


def interrupted(state: State) -> State:
    """The state after rounds were missed: what piled up since is not the effect of an action."""
    return dataclasses.replace(state, blind=True, sighted_s=None)


def cluster_changed(state: State) -> State:
    """The state when hosts came or went: what did not help before may help now."""
    return dataclasses.replace(_forgotten(state), skipped={}, refused={}, lanes={})


def withdrawn(state: State, action: Action, at_s: float, settings: Settings, refused: bool = True) -> State:
    """The state when an action was not carried out: there is no effect to wait for, and it is not asked for again for a while.

    A remedy that the engine `refused` counts as useless, so that another has its turn.
    """
    tried, had = (state.trial.tried, state.trial.had) if state.trial is not None else (None, {})
    if refused and tried is not None and tried.resolver != SCALE_UP:
        return logged(dataclasses.replace(state, trial=None), tried, False, at_s, settings)
    reduced = state.reduced and action.kind is not ActionKind.REDUCE
    throttled = tuple(name for name in state.throttled if action.kind is not ActionKind.THROTTLE or name != action.job)
    phase = SearchPhase.SEARCHING if action.kind is ActionKind.REVERT else state.phase
    refusals = {name: Refusal(at_s + settings.retry_s, had.get(name)) for name in action.changes}
    return dataclasses.replace(
        state, trial=None, phase=phase, reduced=reduced, throttled=throttled, refused={**state.refused, **refusals}
    )


# -- the table -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: in this phase, under this condition, do this."""

    name: str
    phase: SearchPhase | None
    condition: Callable[[Situation], bool]
    act: Callable[[Situation], Result]
    after: SearchPhase | None
    happens: str


SEARCHING, CONVERGED, EITHER, SAME = SearchPhase.SEARCHING, SearchPhase.CONVERGED, None, None

# fmt: off
TRANSITIONS: tuple[Rule, ...] = (
    Rule("no data", EITHER, _sightless, _wait_for_data, SAME, "when no job can be read: nothing is decided in the dark"),
    Rule("after outage", EITHER, _gathering, _wait_after_outage, SAME, "for 5 minutes after measurements came back"),
    Rule("new workload", EITHER, _new_workload, _start_afresh, SEARCHING, "when a job comes, goes, or changes its intent"),
    Rule("settle", EITHER, _settling, _let_settle, SAME, "while the last action's effect is not yet measured"),
    Rule("warm up", EITHER, _warming_up, _warm_up, SAME, "while some job has too little data to be judged"),
    Rule("reduce", SEARCHING, _harmed_and_reducible, _reduce, SEARCHING, "once per workload, when a step did harm on a congested cluster"),
    Rule("undo", SEARCHING, _harmed_with_others_waiting, _undo, SEARCHING, "when a step did harm, and others have not had their turn"),
    Rule("revert", EITHER, _harmed, _revert, CONVERGED, "when a step did harm and no other job waits for help"),
    Rule("overtaken", SEARCHING, _overtaken, _forget, SEARCHING, "when the total fell in spite of a step, not because of it"),
    Rule("relax", SEARCHING, _time_to_spare, _relax, SEARCHING, "when jobs start epochs more often than their intents need"),
    Rule("prevent", EITHER, _on_the_brink, _prevent, SAME, "when a job is about to miss its intent and cores are free"),
    Rule("converge", SEARCHING, _all_met_and_stable, _rest, CONVERGED, "when all intents have held for 4 rounds"),
    Rule("hold", SEARCHING, _all_met, _count_stable, SEARCHING, "when all intents hold, but not yet for long"),
    Rule("make room", SEARCHING, _crushed, _throttle, SEARCHING, "when far more lanes want to run than cores can, and a job is hopeless"),
    Rule("reconfigure", SEARCHING, _can_help, _reconfigure, SEARCHING, "when a job misses its intent and lanes or pace may help it"),
    Rule("catch up", SEARCHING, _mends, _wait_for_backlog, SEARCHING, "when a job has what it needs and its backlog will soon be gone"),
    Rule("throttle", SEARCHING, _hopeless_hog, _throttle, SEARCHING, "when a hopeless job takes the cores that others lack"),
    Rule("give back", SEARCHING, _was_better, _revert, CONVERGED, "when no job can be helped and an earlier configuration was better"),
    Rule("refused", SEARCHING, _way_back_refused, _wait_after_refusal, SEARCHING, "while the way to a better configuration is refused"),
    Rule("give up", SEARCHING, _always, _rest, CONVERGED, "when no job can be helped and this is the best so far"),
    Rule("fell", CONVERGED, _fell, _leave_rest, SEARCHING, "when the total or a job that was fine loses more than 5 %"),
    Rule("rest", CONVERGED, _always, _stay, CONVERGED, "as long as nothing changes"),
)
# fmt: on


def transition_table() -> str:
    """The table as Markdown, for docs and readers."""
    word: Callable[[SearchPhase | None, str], str] = lambda phase, other: phase.value if phase else other  # noqa: E731
    rows = [f"| {r.name} | {word(r.phase, 'either')} | {r.happens} | {word(r.after, 'same')} |" for r in TRANSITIONS]
    return "\n".join(["| rule | in | happens | then |", "|---|---|---|---|", *rows]) + "\n"
