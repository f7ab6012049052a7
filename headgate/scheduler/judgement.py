"""First step of a round: note changes since the last round, and judge the last action (Henge, section 5.1)."""

from __future__ import annotations

import dataclasses

from headgate.core.metrics import JobView
from headgate.core.model import ActionKind
from headgate.core.quantities import show_seconds
from headgate.health.resolving import ResolverName
from headgate.scheduler.memory import (
    Configuration,
    Situation,
    Skip,
    State,
    Verdict,
    latency_ratio,
    recovers_by_itself,
)
from headgate.scheduler.regulation import effect_in_words
from headgate.scheduler.trials import SEARCH, Trial
from headgate.scheduler.undone import LaneHistory, ObservedLanes, counts_of, follow_lanes


def notice_changes(situation: Situation) -> Situation:
    """Note the start and end of an outage, and drop skips and refusals that no longer hold."""
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
    trial = state.trials.search
    return {
        name: follow_lanes(
            state.lanes.get(name, {}),
            ObservedLanes(
                counts_of(job.allocation),
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
    """Exponential average, over about one hour, of rounds with intents missed for lack of cores."""
    weight = min(1.0, situation.settings.round_s / 3600)
    short = bool(situation.missing) and bool(situation.view.congested or situation.state.throttled)
    return situation.state.shortfall * (1 - weight) + weight * short


def _holds(skip: Skip, job: JobView | None, situation: Situation) -> bool:
    """Whether the skip still holds: the job misses its intent, or nearly, with about the same input."""
    if job is None or (job.met and latency_ratio(job) <= situation.settings.close_to_miss):
        return False
    return not _load_moved(skip.arrival_rows_s, job, situation)


def _load_moved(before_rows_s: float, job: JobView, situation: Situation) -> bool:
    if job.span is None:
        return False
    change = abs(job.span.arrival_rows_s() - before_rows_s)
    return change > situation.settings.load_change * max(before_rows_s, 1e-9)


def judge_last_action(situation: Situation) -> Situation:
    """Judge the last action of the search once its effect was measured on a window of its own (Henge, section 5.1).

    A round has one action: while a self-regulating job gets a remedy, the search waits for the next round.
    """
    trial = situation.state.trials.search
    if trial is None or trial.settled_s is None or situation.state.blind or situation.warming_up:
        return situation
    if situation.advice.asking_job is not None:
        return situation
    verdict = _verdict(trial, situation)
    trials = situation.state.trials.end(SEARCH)
    if trial.entry is not None:
        entry = dataclasses.replace(trial.entry, useful=not (verdict.harmful or verdict.plateaued))
        trials = trials.remember(entry, situation.view.at_s, situation.settings)
    state = dataclasses.replace(situation.state, trials=trials)
    if trial.kind is ActionKind.RECONFIGURE and trial.job is not None and trial.job in situation.view.jobs:
        state = _counted(state, trial, verdict, situation.view.jobs[trial.job], situation)
    if not verdict.harmful and _sped_up(trial, situation):
        state = dataclasses.replace(state, best=None)
    return dataclasses.replace(situation, state=remember_best(state, situation), verdict=verdict)


def _sped_up(trial: Trial, situation: Situation) -> bool:
    """Whether the step sped up a job that still misses its intent: a better score before, with less backlog, is no reason to revert."""
    job = situation.view.jobs.get(trial.job) if trial.kind is ActionKind.RECONFIGURE and trial.job else None
    return job is not None and not job.met and trial.output_rows_s > 0 and _faster(trial, job, situation)


def judge_remedies(situation: Situation) -> tuple[Situation, tuple[Verdict, ...]]:
    """End the trials that the policies of self-regulating jobs have judged."""
    trials, verdicts, advice = situation.state.trials, [], situation.advice
    for name, found in advice.examinations.items():
        if found.judged is None or name not in trials.awaited:
            continue
        trial, after = trials.awaited[name], advice.jobs[name].utility
        text, before = effect_in_words(found.judged), trial.utilities.get(name)
        verdicts.append(Verdict(trial.kind, name, trial.total, advice.total, before, after, text, owner=name))
        trials = trials.end(name).remember(found.judged, situation.view.at_s, situation.settings)
    state = dataclasses.replace(situation.state, trials=trials)
    return dataclasses.replace(situation, state=state), tuple(verdicts)


def _verdict(trial: Trial, situation: Situation) -> Verdict:
    job = situation.view.jobs.get(trial.job) if trial.job else None
    noise = situation.settings.noise * situation.max_score
    fell = situation.score < trial.score - noise
    harmful = trial.kind is ActionKind.RECONFIGURE and fell and _to_blame(trial, job, situation)
    if trial.kind is ActionKind.THROTTLE:
        # While cores are still short, freeing enough of them may take more than one throttled job.
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
        return "helped no other job" if trial.kind is ActionKind.THROTTLE else "caused the loss"
    if plateaued and _other_remedies(trial, situation):
        return "gained too little; trying another remedy"
    if plateaued and trial.job is not None:
        return f"gained too little; skipping the job for {show_seconds(_skip_length_s(situation, trial.job))}"
    broken = [name for name in trial.touched if name != trial.job and _lost_by(name, trial, situation)]
    if broken:
        return f"kept, although it made {', '.join(broken)} miss the intent"
    return "kept; the loss has another cause" if fell else "kept"


def _lost_by(name: str, trial: Trial, situation: Situation) -> bool:
    job = situation.view.jobs.get(name)
    return job is not None and job.met is False and trial.utilities.get(name, 0.0) >= job.worth


def _to_blame(trial: Trial, job: JobView | None, situation: Situation) -> bool:
    """Whether the action can have caused the loss; lanes slow other jobs only through busy cores (beyond the paper).

    A loss of the changed job does not count if its input changed meanwhile, or if the job is clearing its backlog.
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
    """Whether the job emits more rows than before; a backlog that still grows raises its latency nevertheless."""
    return output_rows_s(job) > trial.output_rows_s * (1 + situation.settings.improvement)


def output_rows_s(job: JobView) -> float:
    """Rows per second that reach the sinks of the job."""
    if job.span is None or job.span.seconds <= 0:
        return 0.0
    return sum(job.span.rows_in(sink) for sink in job.job.graph.sinks) / job.span.whole_epochs_s


def _plateaued(trial: Trial, job: JobView | None, situation: Situation) -> bool:
    """Whether the job gained too little utility or, if only close to a miss before, cut its latency by too little."""
    if trial.kind is not ActionKind.RECONFIGURE or job is None or job.utility is None:
        return False
    if job.met:
        return trial.latency_ratio <= 1 and latency_ratio(job) > max(
            situation.settings.close_to_miss, trial.latency_ratio * (1 - situation.settings.improvement)
        )
    if recovers_by_itself(job, situation.settings) or (trial.latency_ratio > 1 and _faster(trial, job, situation)):
        return False
    before = trial.utilities.get(job.job.name, 0.0)
    return job.utility <= before or job.utility < before * (1 + situation.settings.improvement)


def _counted(state: State, trial: Trial, verdict: Verdict, job: JobView, situation: Situation) -> State:
    """Count the step of a job that still misses its intent; set the job aside if the step gained too little or caused a loss.

    The job is not set aside while another remedy is left to try.
    """
    name = job.job.name
    if not job.met:
        state = dataclasses.replace(state, steps={**state.steps, name: state.steps.get(name, 0) + 1})
    hopeless = (verdict.harmful or verdict.plateaued) and not _other_remedies(trial, situation)
    return set_aside(state, job, situation) if hopeless else state


def _raised_share(trial: Trial, situation: Situation) -> bool:
    """Whether the step raised the share of the job, so that more lanes are still untried."""
    job, had = situation.view.jobs.get(trial.job or ""), trial.had.get(trial.job or "")
    return job is not None and had is not None and had.share is None and job.allocation.share is not None


def _other_remedies(trial: Trial, situation: Situation) -> bool:
    """Whether more lanes, the last resort, are still untried, or the current diagnosis asks for another remedy than lanes."""
    asked = situation.remedies.get(trial.job or "")
    return (
        _raised_share(trial, situation)
        or (trial.entry is not None and trial.entry.resolver != ResolverName.SCALE_UP)
        or (asked is not None and asked.resolver != ResolverName.SCALE_UP)
    )


def set_aside(state: State, job: JobView, situation: Situation) -> State:
    """Skip a job for `skip_s`, doubled each consecutive time (beyond the paper, which always skips for one hour)."""
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
    """Record the current configuration if its score is the highest of this search."""
    if state.best is not None and state.best.score >= situation.score:
        return state
    return dataclasses.replace(state, best=Configuration(situation.score, situation.allocation))
