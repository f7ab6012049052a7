"""The act of each scheduler rule: the next state, and a decision with its cause (Henge, section 5)."""

from __future__ import annotations

import dataclasses

from headgate.config import Settings
from headgate.core.metrics import JobView, sub_window
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, SearchPhase
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
    returned_shares,
)
from headgate.scheduler.help import help_action, help_for
from headgate.scheduler.judgement import output_rows_s, remember_best, set_aside
from headgate.scheduler.memory import (
    Decision,
    Situation,
    State,
    fingerprints,
    latency_ratio,
    without_history,
)
from headgate.scheduler.trials import SEARCH, Trial

Result = tuple[State, Decision]


def apply_remedy(now: Situation) -> Result:
    """Apply the remedy that the policy of a self-regulating job asks for; measure the job again after `health_pause_s`."""
    name = now.advice.asking_job
    assert name is not None
    found, job = now.advice.examinations[name], now.advice.jobs[name]
    assert found.remedy is not None
    action = dataclasses.replace(found.remedy.action(name), owner=name)
    trial = Trial(
        kind=action.kind,
        job=name,
        touched=(name,),
        at_s=now.view.at_s,
        score=now.score,
        total=now.advice.total,
        utilities={} if job.utility is None else {name: job.utility},
        settled_s=now.view.at_s + now.settings.health_pause_s,
        entry=found.tried,
        had={name: job.allocation},
    )
    state = dataclasses.replace(now.state, trials=now.state.trials.begin(name, trial))
    return state, Decision("", found.cause, action)


def leave_to_policies(now: Situation) -> Result:
    silent = [one.alert(name).sentence for name, one in now.state.quarantined.items() if one.host]
    return now.state, Decision("", min(silent, default=now.advice.cause))


def wait_for_data(now: Situation) -> Result:
    names = ", ".join(sorted(now.view.unread))
    return now.state, Decision("", f"no fresh measurements from {names}")


def wait_after_outage(now: Situation) -> Result:
    return now.state, Decision(
        "",
        f"measurements are back; collecting {show_seconds(now.settings.outage_data_s)} of data before the next action",
    )


def start_again(now: Situation) -> Result:
    """Restart the search after a job or an intent changed: the history no longer applies."""
    old, new = now.state.intents, fingerprints(now.view)
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    skipped = {name: skip for name, skip in now.state.skipped.items() if name not in changed}
    lanes = {name: histories for name, histories in now.state.lanes.items() if name not in changed}
    came_or_went = old.keys() != new.keys()  # the engine may now have room for a change that it refused
    refused = {} if came_or_went else {name: one for name, one in now.state.refused.items() if name not in changed}
    state = dataclasses.replace(without_history(now.state), intents=new, skipped=skipped, lanes=lanes, refused=refused)
    return state, Decision("", f"jobs or intents changed ({', '.join(sorted(changed))}); the search starts over")


def let_settle(now: Situation) -> Result:
    """Wait until the measurements of the changed jobs are steady, then start their windows there."""
    trial = now.state.trials.search
    assert trial is not None
    waited_s = now.view.at_s - trial.at_s
    steady = all(_is_steady(now.view.jobs[name], now.settings) for name in trial.touched if name in now.view.jobs)
    settled = waited_s >= now.settings.settle_min_s and (steady or waited_s >= now.settings.settle_max_s)
    if not settled or trial.settled_s is not None:
        return now.state, Decision("", f"waiting for the effect of the last action ({show_seconds(waited_s)} so far)")
    since_s = {name: _clean_since_s(now.view.jobs.get(name), now) for name in trial.touched}
    trials = now.state.trials.settle(SEARCH, now.view.at_s, since_s)
    return dataclasses.replace(now.state, trials=trials), Decision(
        "", "the last action has settled; measuring its effect"
    )


def _clean_since_s(job: JobView | None, now: Situation) -> float:
    """Start time, in seconds, of the two sub-windows that were found steady."""
    return job.samples[-3:][0].at_s if job is not None and job.samples else now.view.at_s


def _is_steady(job: JobView, settings: Settings) -> bool:
    """Whether the last two sub-windows have about the same utility, or the job is clearing its backlog."""
    if catching_up(job, settings):
        return True
    (_, older), newer = sub_window(job.job, job.samples[-3:-1], settings), job.recent
    if older is None or newer is None:
        return False
    return abs(newer - older) <= settings.settle_change * max(newer, older)


def warm_up(now: Situation) -> Result:
    least = show_seconds(now.settings.warm_up_s)
    return now.state, Decision("", f"waiting for {least} of measurements of {_names(now.warming_up)}")


def reduce(now: Situation) -> Result:
    changes = reductions(now)
    names = ", ".join(sorted(changes))
    taken = sum(
        sum(now.view.jobs[name].allocation.lanes.values()) - sum(new.lanes.values()) for name, new in changes.items()
    )
    cause = Cause(
        f"the last step lowered the total utility and most hosts are congested; took {taken} idle lanes from jobs that meet"
        f" their intents ({names})",
        {"lanes": float(taken)},
    )
    action = Action(ActionKind.REDUCE, None, changes, cause)
    return _on_trial(dataclasses.replace(now.state, reduced=True), action, now), Decision("", action.sentence, action)


def throttle(now: Situation) -> Result:
    """Take lanes from the least valuable hopeless job, so that other jobs can meet their intents (beyond the paper)."""
    job = hopeless_job(now)
    assert job is not None
    name, lanes = job.job.name, job.allocation.lanes
    left = lanes_left(job, now)
    cause = Cause(
        f"{name} reaches utility {job.utility or 0:.2f} of {job.worth:g} with {sum(lanes.values())} lanes and is not recovering;"
        f" a cut to {sum(left.values())} lanes frees cores for {_names(others_that_miss(job, now))}",
        {"utility": job.utility or 0.0, "worth": job.worth},
    )
    action = Action(ActionKind.THROTTLE, name, {name: job.allocation.with_lanes(left)}, cause)
    state = set_aside(remember_best(now.state, now), job, now)
    state = dataclasses.replace(state, throttled=(*now.state.throttled, name), stable=0)
    return _on_trial(state, action, now), Decision("", action.sentence, action)


def undo(now: Situation) -> Result:
    """Return to the best configuration, and go on helping jobs that still wait (beyond the paper)."""
    best = now.state.best
    assert best is not None
    cause = Cause(
        f"returning to the best configuration so far, score {best.score:.4g} instead of {now.score:.4g}",
        {"best": best.score, "score": now.score},
    )
    action = Action(ActionKind.REVERT, None, changes_to_best(now), cause)
    return _on_trial(now.state, action, now), Decision("", action.sentence, action)


def revert(now: Situation) -> Result:
    """Return to the best configuration; the search pauses until something changes (Henge, section 5.3)."""
    if not changes_to_best(now):
        return converge(now)
    state, decision = undo(dataclasses.replace(now, state=_converged(now)))
    return dataclasses.replace(state, rest_score=None), decision


def _converged(now: Situation) -> State:
    """The Converged state, which sets aside every job that still misses its intent."""
    state = dataclasses.replace(now.state, phase=SearchPhase.CONVERGED, stable=0, rest_score=now.score)
    for job in now.missing:
        if not now.skips(job.job.name):
            state = set_aside(state, job, now)
    return state


def converge(now: Situation) -> Result:
    cause = "all jobs meet their intents" if not now.missing else f"no remaining action helps {_names(now.missing)}"
    return _converged(now), Decision("", cause)


def _names(jobs: list[JobView]) -> str:
    return ", ".join(job.job.name for job in jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")


def forget_history(now: Situation) -> Result:
    state = remember_best(without_history(now.state), now)
    return state, Decision(
        "", "utility fell, but not because of the last step: the workload changed, the search starts over"
    )


def count_stable_round(now: Situation) -> Result:
    state = dataclasses.replace(now.state, stable=now.state.stable + 1)
    return state, Decision("", f"all jobs meet their intents, round {state.stable} of {now.settings.stable_rounds}")


def wait_for_backlog(now: Situation) -> Result:
    if now.unclear:
        return now.state, Decision(
            "", f"lanes of {_names(now.unclear)} differ, but not yet for long enough to tell why"
        )
    return now.state, Decision("", f"waiting for {_names(now.recovering_jobs)} to recover")


def wait_after_refusal(now: Situation) -> Result:
    return now.state, Decision(
        "", "the engine refused the return to a better configuration; the scheduler retries later"
    )


def relax(now: Situation) -> Result:
    changes = relaxations(now)
    paces = ", ".join(f"{name} every {show_seconds(new.pace_s or 0.0)}" for name, new in sorted(changes.items()))
    cause = Cause("latency is well below the intent; fewer epochs save their fixed cost")
    action = Action(ActionKind.RELAX, None, changes, cause, paces)
    return _on_trial(dataclasses.replace(now.state, stable=0), action, now), Decision("", action.sentence, action)


def return_shares(now: Situation) -> Result:
    """Return raised shares to the declared shares: a raised share counts only against shares that are lower."""
    changes = returned_shares(now)
    what = ", ".join(f"{name} back to its declared share" for name in sorted(changes))
    cause = Cause("slots are no longer short, and the intent is met")
    action = Action(ActionKind.RELAX, None, changes, cause, what)
    return _on_trial(now.state, action, now), Decision("", action.sentence, action)


def reconfigure(now: Situation) -> Result:
    """Help the most urgent job that can be helped; set aside more urgent jobs that cannot be helped."""
    state = dataclasses.replace(remember_best(now.state, now), stable=0)
    for job in now.wanting:
        help_ = help_for(job, now)
        if help_ is None:
            state = set_aside(state, job, now)
            continue
        return _help(state, job, help_, now)
    raise InvalidTransitionError("no job can be helped, although the rule found one")


def prevent(now: Situation) -> Result:
    """Help a job that is close to missing its intent while cores are free."""
    helped = ((job, help_for(job, now)) for job in now.close_to_miss)
    job, help_ = next((job, help_) for job, help_ in helped if help_ is not None)
    return _help(remember_best(now.state, now), job, help_, now)


def _help(state: State, job: JobView, help_: JobAllocation, now: Situation) -> Result:
    name, remedy = job.job.name, now.remedies.get(job.job.name)
    action = help_action(job, help_, now)
    found = {} if remedy is None else {name: (remedy.diagnosis,)}
    return _on_trial(state, action, now), Decision("", action.sentence, action, diagnoses=found)


def search_again(now: Situation) -> Result:
    """Restart the search after utility fell in the Converged state (Henge, section 5.3)."""
    cause = f"{_names(now.wanting)} fell below the utility at convergence; the search starts over"
    return without_history(now.state), Decision("", cause)


def rest(now: Situation) -> Result:
    rest = now.score if now.state.rest_score is None else max(now.state.rest_score, now.score)
    return dataclasses.replace(now.state, rest_score=rest), Decision("", "converged")


def _on_trial(state: State, action: Action, now: Situation) -> State:
    """The state that awaits the effect of the action.

    An act that hopes for more utility (`reconfigure`, `prevent`, `throttle`) calls `remember_best` first, so that a harmful step returns to
    the configuration before it. `reduce` acts after harm, below the best score. `relax` and `return_shares` only save: a job that
    misses its intent afterwards gets help.
    """
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
        entry=_entry(action, now),
        had={name: now.view.jobs[name].allocation for name in action.changes},
        follows_harm_of=now.verdict.blamed if now.verdict is not None and action.kind is ActionKind.REDUCE else (),
    )
    return dataclasses.replace(state, trials=state.trials.begin(SEARCH, trial))


def _entry(action: Action, now: Situation) -> LogEntry | None:
    """The action-log entry of an action that a diagnosis asked for; None for other actions."""
    remedy = now.remedies.get(action.job or "")
    if remedy is None or not action.remedy or action.job is None:
        return None
    diagnosis = remedy.diagnosis
    return LogEntry(
        now.view.at_s, action.job, "headgate", diagnosis.kind, diagnosis.operator, action.remedy, what=action.what
    )
