"""What each rule of the scheduler does: the next state, and a decision with its cause (Henge, section 5)."""

from __future__ import annotations

import dataclasses

from headgate.config import Settings
from headgate.core.metrics import JobView, sub_window
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.quantities import show_seconds
from headgate.core.sizing import catching_up
from headgate.errors import InvalidTransitionError
from headgate.health.records import LogEntry
from headgate.scheduler.candidates import (
    changes_to_best,
    hopeless_job,
    lanes_left,
    others_that_miss,
    reductions,
    relaxations,
)
from headgate.scheduler.help import help_action, help_for
from headgate.scheduler.judgement import output_rows_s, remember_best, set_aside
from headgate.scheduler.memory import (
    Decision,
    SearchPhase,
    Situation,
    State,
    Trial,
    fingerprints,
    latency_ratio,
    without_history,
)

Result = tuple[State, Decision]


def wait_for_data(now: Situation) -> Result:
    names = ", ".join(sorted(now.view.unread))
    return now.state, Decision("", f"no fresh measurements from {names}")


def wait_after_outage(now: Situation) -> Result:
    return now.state, Decision(
        "", f"measurements came back; {show_seconds(now.settings.outage_data_s)} of them are collected first"
    )


def start_again(now: Situation) -> Result:
    """Jobs or intents changed: what was learnt before no longer applies."""
    old, new = now.state.intents, fingerprints(now.view)
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    skipped = {name: skip for name, skip in now.state.skipped.items() if name not in changed}
    lanes = {name: histories for name, histories in now.state.lanes.items() if name not in changed}
    came_or_went = old.keys() != new.keys()  # there may be room now for what was refused
    refused = {} if came_or_went else {name: one for name, one in now.state.refused.items() if name not in changed}
    state = dataclasses.replace(without_history(now.state), intents=new, skipped=skipped, lanes=lanes, refused=refused)
    return state, Decision("", f"jobs or intents changed ({', '.join(sorted(changed))}); history forgotten")


def let_settle(now: Situation) -> Result:
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


def warm_up(now: Situation) -> Result:
    return now.state, Decision("", f"less than {show_seconds(now.settings.warm_up_s)} of measurements for some job")


def reduce(now: Situation) -> Result:
    changes = reductions(now)
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


def throttle(now: Situation) -> Result:
    """Make the hopeless job that is worth least smaller, so that others can meet their intents (beyond the paper)."""
    job = hopeless_job(now)
    assert job is not None
    name, lanes = job.job.name, job.allocation.lanes
    left = lanes_left(job, now)
    cause = Cause(
        f"{name} gets {job.utility or 0:.2f} of {job.worth:g} out of {sum(lanes.values())} lanes and does not recover;"
        f" {sum(left.values())} lanes leave the cores to {_names(others_that_miss(job, now))}",
        {"utility": job.utility or 0.0, "worth": job.worth},
    )
    action = Action(ActionKind.THROTTLE, name, {name: job.allocation.with_lanes(left)}, cause)
    state = set_aside(remember_best(now.state, now), job, now)
    state = dataclasses.replace(state, throttled=(*now.state.throttled, name), stable=0)
    return _on_trial(state, action, now), Decision("", action.sentence, action)


def undo(now: Situation) -> Result:
    """Back to the best configuration, and on with jobs that have not had their turn (beyond the paper)."""
    best = now.state.best
    assert best is not None
    cause = Cause(
        f"back to the best configuration so far, worth {best.score:.4g} (now {now.score:.4g})",
        {"best": best.score, "score": now.score},
    )
    action = Action(ActionKind.REVERT, None, changes_to_best(now), cause)
    return _on_trial(now.state, action, now), Decision("", action.sentence, action)


def revert(now: Situation) -> Result:
    """Back to the best configuration; the search is over until something changes (Henge, section 5.3)."""
    if not changes_to_best(now):
        return rest(now)
    state, decision = undo(dataclasses.replace(now, state=_rested(now)))
    return dataclasses.replace(state, rest_score=None), decision


def _rested(now: Situation) -> State:
    """Converged: jobs that still miss their intents are set aside until something changes."""
    state = dataclasses.replace(now.state, phase=SearchPhase.CONVERGED, stable=0, rest_score=now.score)
    for job in now.missing:
        if not now.skips(job.job.name):
            state = set_aside(state, job, now)
    return state


def rest(now: Situation) -> Result:
    cause = "all intents hold" if not now.missing else f"nothing left that helps {_names(now.missing)}"
    return _rested(now), Decision("", cause)


def _names(jobs: list[JobView]) -> str:
    return ", ".join(job.job.name for job in jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")


def forget_history(now: Situation) -> Result:
    state = remember_best(without_history(now.state), now)
    return state, Decision(
        "", "the total fell in spite of the last step, not because of it: the workload moved, history forgotten"
    )


def count_stable_round(now: Situation) -> Result:
    state = dataclasses.replace(now.state, stable=now.state.stable + 1)
    return state, Decision("", f"all intents hold, round {state.stable} of {now.settings.stable_rounds}")


def wait_for_backlog(now: Situation) -> Result:
    if now.unclear:
        return now.state, Decision("", f"lanes of {_names(now.unclear)} differ, but not for long enough to say why")
    return now.state, Decision("", f"{_names(now.recovering_jobs)} will meet the intent once the backlog is gone")


def wait_after_refusal(now: Situation) -> Result:
    return now.state, Decision("", "the way back to a better configuration was refused; it is asked for again later")


def relax(now: Situation) -> Result:
    changes = relaxations(now)
    paces = ", ".join(f"{name} every {show_seconds(new.pace_s or 0.0)}" for name, new in sorted(changes.items()))
    cause = Cause("time to spare; each epoch saved leaves its fixed cost to the others")
    action = Action(ActionKind.RELAX, None, changes, cause, paces)
    return _on_trial(dataclasses.replace(now.state, stable=0), action, now), Decision("", action.sentence, action)


def reconfigure(now: Situation) -> Result:
    """Help the first job in line that can be helped; those before it that cannot are set aside."""
    state = dataclasses.replace(remember_best(now.state, now), stable=0)
    for job in now.wanting:
        help_ = help_for(job, now)
        if help_ is None:
            state = set_aside(state, job, now)
            continue
        return _help(state, job, help_, now)
    raise InvalidTransitionError("no job can be helped, although the rule found one")


def prevent(now: Situation) -> Result:
    """Help a job that is about to miss its intent, while it costs no other job anything."""
    helped = ((job, help_for(job, now)) for job in now.close_to_miss)
    job, help_ = next((job, help_) for job, help_ in helped if help_ is not None)
    return _help(remember_best(now.state, now), job, help_, now)


def _help(state: State, job: JobView, help_: JobAllocation, now: Situation) -> Result:
    name, remedy = job.job.name, now.remedies.get(job.job.name)
    action = help_action(job, help_, remedy)
    found = {} if remedy is None else {name: (remedy.diagnosis,)}
    return _on_trial(state, action, now), Decision("", action.sentence, action, diagnoses=found)


def search_again(now: Situation) -> Result:
    """Something changed in the Converged state: the old history no longer applies (Henge, section 5.3)."""
    cause = f"{_names(now.wanting)} fell below what the cluster had converged to; history forgotten"
    return without_history(now.state), Decision("", cause)


def stay(now: Situation) -> Result:
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
        latency_ratio=latency_ratio(job) if job is not None else 0.0,
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
