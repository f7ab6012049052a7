"""Before anything is decided: what changed since the last round, and what became of the last action (Henge, section 5.1)."""

from __future__ import annotations

import dataclasses

from headgate.config import Settings
from headgate.core.metrics import JobView
from headgate.core.model import ActionKind
from headgate.core.quantities import show_seconds
from headgate.health.records import LogEntry, purged
from headgate.health.resolving import ResolverName
from headgate.scheduler.memory import (
    Configuration,
    Situation,
    Skip,
    State,
    Trial,
    Verdict,
    latency_ratio,
    recovers_by_itself,
)
from headgate.scheduler.undone import LaneHistory, ObservedLanes, follow_lanes


def notice_changes(situation: Situation) -> Situation:
    """Note outages and their end, and forget skips that no longer hold."""
    state, view = situation.state, situation.view
    if view.unread:
        return dataclasses.replace(situation, state=dataclasses.replace(state, blind=True, sighted_s=None))
    sighted_s = view.at_s if state.blind and state.sighted_s is None else state.sighted_s
    blind = state.blind and view.at_s - (sighted_s or 0.0) < situation.settings.outage_data_s
    skipped = {name: skip for name, skip in state.skipped.items() if _holds(skip, view.jobs.get(name), situation)}
    met = {name for name, job in view.jobs.items() if job.met}
    steps = {name: count for name, count in state.steps.items() if name not in met and name in view.jobs}
    state = dataclasses.replace(
        state,
        blind=blind,
        sighted_s=sighted_s if blind else None,
        skipped=skipped,
        steps=steps,
        lanes=_lanes_followed(situation),
        refused={
            name: refusal for name, refusal in state.refused.items() if name in view.jobs and situation.refuses(name)
        },
        missed_since_s={job.job.name: state.missed_since_s.get(job.job.name, view.at_s) for job in situation.missing},
        shortfall=_shortfall(situation),
    )
    return dataclasses.replace(situation, state=state)


def _lanes_followed(situation: Situation) -> dict[str, dict[str, LaneHistory]]:
    state, view, settings = situation.state, situation.view, situation.settings
    trial = state.trial
    return {
        name: follow_lanes(
            state.lanes.get(name, {}),
            ObservedLanes(
                job.allocation.lanes,
                job.span.arrival_rows_s() if job.span is not None else None,
                trial.kind if trial is not None and name in trial.touched else None,
                _skip_left_s(situation, name),
            ),
            view.at_s,
            settings.load_change,
        )
        for name, job in view.jobs.items()
    }


def _shortfall(situation: Situation) -> float:
    """An average that forgets within about an hour."""
    weight = min(1.0, situation.settings.round_s / 3600)
    short = bool(situation.missing) and bool(situation.view.congested or situation.state.throttled)
    return situation.state.shortfall * (1 - weight) + weight * short


def _holds(skip: Skip, job: JobView | None, situation: Situation) -> bool:
    """A skip holds while the job misses its intent, or nearly, with about the same input."""
    if job is None or (job.met and latency_ratio(job) <= situation.settings.brink):
        return False
    return not _load_moved(skip.arrival_rows_s, job, situation)


def _load_moved(before_rows_s: float, job: JobView, situation: Situation) -> bool:
    if job.span is None:
        return False
    change = abs(job.span.arrival_rows_s() - before_rows_s)
    return change > situation.settings.load_change * max(before_rows_s, 1e-9)


def judge_last_action(situation: Situation) -> Situation:
    """Judge the action under trial once its effect was measured on a clean window (Henge, section 5.1)."""
    trial = situation.state.trial
    if trial is None or trial.settled_s is None or situation.state.blind or situation.warming_up:
        return situation
    verdict = _verdict(trial, situation)
    state = dataclasses.replace(situation.state, trial=None)
    if trial.tried is not None:
        useful = not (verdict.harmful or verdict.plateaued)
        state = with_log_entry(state, trial.tried, useful, situation.view.at_s, situation.settings)
    if trial.kind is ActionKind.RECONFIGURE and trial.job is not None and trial.job in situation.view.jobs:
        state = _counted(state, trial, verdict, situation.view.jobs[trial.job], situation)
    return dataclasses.replace(situation, state=remember_best(state, situation), verdict=verdict)


def _verdict(trial: Trial, situation: Situation) -> Verdict:
    job = situation.view.jobs.get(trial.job) if trial.job else None
    noise = situation.settings.noise * situation.max_score
    fell = situation.score < trial.score - noise
    harmful = trial.kind is ActionKind.RECONFIGURE and fell and _to_blame(trial, job, situation)
    if trial.kind is ActionKind.THROTTLE:
        # While cores are still short it may take more than one job to make room for the others.
        harmful = fell if situation.view.congested else situation.score <= trial.score + noise
    if trial.kind is ActionKind.REDUCE:
        harmful = fell and any(_lost_by(name, trial, situation) for name in trial.touched)
    plateaued = not harmful and _plateaued(trial, job, situation)
    return Verdict(
        kind=trial.kind,
        job=trial.job,
        total_before=trial.total,
        total_after=situation.total,
        utility_before=trial.utilities.get(trial.job) if trial.job else None,
        utility_after=job.utility if job is not None else None,
        text=_in_words(trial, fell, harmful, plateaued, situation),
        fell=fell,
        harmful=harmful,
        blamed=(*trial.touched, *trial.follows_harm_of) if harmful else (),
        plateaued=plateaued,
    )


def _in_words(trial: Trial, fell: bool, harmful: bool, plateaued: bool, situation: Situation) -> str:
    if harmful:
        return "helped nobody" if trial.kind is ActionKind.THROTTLE else "did harm"
    if plateaued and _other_remedies(trial, situation):
        return "gained too little; another remedy has its turn"
    if plateaued and trial.job is not None:
        return f"gained too little; set aside for {show_seconds(_skip_length_s(situation, trial.job))}"
    broken = [name for name in trial.touched if name != trial.job and _lost_by(name, trial, situation)]
    if broken:
        return f"kept, though it cost {', '.join(broken)} the intent"
    return "kept; the loss is not its fault" if fell else "kept"


def _lost_by(name: str, trial: Trial, situation: Situation) -> bool:
    job = situation.view.jobs.get(name)
    return job is not None and job.met is False and trial.utilities.get(name, 0.0) >= job.worth


def _to_blame(trial: Trial, job: JobView | None, situation: Situation) -> bool:
    """Could the action have caused the loss? Lanes hurt others only by way of busy cores (beyond the paper).

    A job whose input moved meanwhile is no witness, and one that works off its backlog has not lost by it.
    """
    if job is not None and _load_moved(trial.arrival_rows_s, job, situation):
        return False
    if job is not None and _lost_itself(trial, job, situation):
        return True
    return bool(situation.view.congested) and _others_lost(trial, situation)


def _others_lost(trial: Trial, situation: Situation) -> bool:
    others = {name: job.utility or 0.0 for name, job in situation.view.jobs.items() if name != trial.job}
    before = sum(trial.utilities.get(name, 0.0) for name in others)
    return sum(others.values()) < before - situation.settings.noise * sum(
        job.worth for job in situation.view.jobs.values()
    )


def _lost_itself(trial: Trial, job: JobView, situation: Situation) -> bool:
    if recovers_by_itself(job, situation.settings) or _faster(trial, job, situation):
        return False
    return (job.utility or 0.0) < trial.utilities.get(job.job.name, 0.0) * (1 - situation.settings.noise)


def _faster(trial: Trial, job: JobView, situation: Situation) -> bool:
    """It gets more done than before, though not enough yet: a backlog that still grows makes its latency worse all the same."""
    return output_rows_s(job) > trial.output_rows_s * (1 + situation.settings.improvement)


def output_rows_s(job: JobView) -> float:
    """Rows that reach its sinks."""
    if job.span is None or job.span.seconds <= 0:
        return 0.0
    return sum(job.span.rows_in(sink) for sink in job.job.graph.sinks) / job.span.whole_epochs_s


def _plateaued(trial: Trial, job: JobView | None, situation: Situation) -> bool:
    """The job gained less than it should have; a job that was only close to its limit is judged by its latency."""
    if trial.kind is not ActionKind.RECONFIGURE or job is None or job.utility is None:
        return False
    if job.met:
        return trial.latency_ratio <= 1 and latency_ratio(job) > max(
            situation.settings.brink, trial.latency_ratio * (1 - situation.settings.improvement)
        )
    if recovers_by_itself(job, situation.settings) or (trial.latency_ratio > 1 and _faster(trial, job, situation)):
        return False
    before = trial.utilities.get(job.job.name, 0.0)
    return job.utility <= before or job.utility < before * (1 + situation.settings.improvement)


def _counted(state: State, trial: Trial, verdict: Verdict, job: JobView, situation: Situation) -> State:
    """Count the step of a job that still misses its intent, and set the job aside if it gained too little or did harm.

    As long as there is another remedy to try, it has its turn first.
    """
    name = job.job.name
    if not job.met:
        state = dataclasses.replace(state, steps={**state.steps, name: state.steps.get(name, 0) + 1})
    hopeless = (verdict.harmful or verdict.plateaued) and not _other_remedies(trial, situation)
    return set_aside(state, job, situation) if hopeless else state


def _other_remedies(trial: Trial, situation: Situation) -> bool:
    """Whether lanes are left to try, which come last, or the diagnosis of now asks for something else than lanes."""
    asked = situation.remedies.get(trial.job or "")
    return (trial.tried is not None and trial.tried.resolver != ResolverName.SCALE_UP) or (
        asked is not None and asked.resolver != ResolverName.SCALE_UP
    )


def with_log_entry(state: State, entry: LogEntry, useful: bool, at_s: float, settings: Settings) -> State:
    """The state with one more entry in the action log."""
    log = purged((*state.care.log, dataclasses.replace(entry, useful=useful)), at_s, settings)
    return dataclasses.replace(state, care=dataclasses.replace(state.care, log=log))


def set_aside(state: State, job: JobView, situation: Situation) -> State:
    """Skip a job for a while; each time in a row for twice as long (beyond the paper, which has one hour always)."""
    name = job.job.name
    arrival = job.span.arrival_rows_s() if job.span is not None else 0.0
    skip = Skip(situation.view.at_s + _skip_length_s(situation, name), arrival, _times_skipped(situation, name) + 1)
    return dataclasses.replace(state, skipped={**state.skipped, name: skip})


def _times_skipped(situation: Situation, name: str) -> int:
    return situation.state.skipped[name].times if name in situation.state.skipped else 0


def _skip_length_s(situation: Situation, name: str) -> float:
    return situation.settings.skip_s * float(
        2 ** min(_times_skipped(situation, name), situation.settings.skip_doublings)
    )


def _skip_left_s(situation: Situation, name: str) -> float:
    skip, at_s = situation.state.skipped.get(name), situation.view.at_s
    return skip.until_s - at_s if skip is not None and at_s < skip.until_s else _skip_length_s(situation, name)


def remember_best(state: State, situation: Situation) -> State:
    """Note the configuration if it is the best of this search."""
    if state.best is not None and state.best.score >= situation.score:
        return state
    return dataclasses.replace(state, best=Configuration(situation.score, situation.allocation))
