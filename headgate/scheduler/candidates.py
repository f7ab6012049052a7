"""Candidate actions: jobs that can give up lanes or epochs, the job to throttle, the return to the best configuration."""

from __future__ import annotations

import dataclasses

from headgate.config import Objective, Settings
from headgate.core.metrics import JobView
from headgate.core.model import JobAllocation
from headgate.core.sizing import Lanes, adds_lanes, fewer_lanes, has_finished_epoch, longest_pace_s, recovering
from headgate.scheduler.memory import Situation, recovers_by_itself
from headgate.scheduler.undone import SHARE, counts_of

LEAST_PACE_S = 0.1
"""Smallest increase of the pace, in seconds, that is worth an action."""


def reductions(now: Situation) -> dict[str, JobAllocation]:
    """Allocations with fewer lanes, for every job that meets its intent and has idle lanes."""
    changes = {}
    for name, job in now.view.jobs.items():
        if job.met and not now.refuses(name):
            lanes = now.permitted(job, fewer_lanes(job, now.settings))
            if lanes != job.allocation.lanes:
                changes[name] = job.allocation.with_lanes(lanes)
    return changes


def relaxations(now: Situation) -> dict[str, JobAllocation]:
    """Allocations with longer paces, for jobs that meet their latency intents with a margin (beyond the paper)."""
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


def returned_shares(now: Situation) -> dict[str, JobAllocation]:
    """Allocations with the declared share, for jobs that meet their intents with a raised share while no slots are short."""
    if now.slots_short:
        return {}
    return {
        name: dataclasses.replace(job.allocation, share=None)
        for name, job in now.view.jobs.items()
        if job.met and job.allocation.share is not None and not now.refuses(name) and not now.bars(name, SHARE, 0)
    }


def hopeless_job(now: Situation) -> JobView | None:
    """The least valuable job with hopelessly low utility that is not recovering; None unless the cluster is congested and a job of at
    least the same worth misses its intent. Among jobs of equal worth, the job with the most busy lanes comes first.
    """
    if not now.view.congested or now.settings.objective != Objective.TOTAL:
        return None
    hopeless = (job for job in _jobs_that_miss(now) if _is_hopeless(job, now) and others_that_miss(job, now))
    return min(hopeless, key=lambda job: (job.worth, -_busy_lanes(job), job.job.name), default=None)


def _jobs_that_miss(now: Situation) -> list[JobView]:
    return [job for job in now.missing if not recovers_by_itself(job, now.settings)]


def others_that_miss(job: JobView, now: Situation) -> list[JobView]:
    """Other jobs of at least the same worth that miss their intents and do not recover by themselves."""
    return [other for other in _jobs_that_miss(now) if other is not job and other.worth >= job.worth]


def _is_hopeless(job: JobView, now: Situation) -> bool:
    return (
        (job.satisfaction or 0.0) < now.settings.hopeless
        and job.job.name not in now.state.throttled
        and not now.refuses(job.job.name)
        and not recovering(job, now.settings.noise)
        and _long_measured(job, now.settings)
        and lanes_left(job, now) != job.allocation.lanes
    )


def _long_measured(job: JobView, settings: Settings) -> bool:
    """Whether the window is long enough to exclude the slowness of a cold start."""
    return job.span is not None and job.span.seconds >= min(settings.window_s, settings.settle_max_s) - settings.round_s


def _busy_lanes(job: JobView) -> float:
    return sum(sum(job.span.busy_s(name)) for name in job.allocation.lanes) if job.span is not None else 0.0


def lanes_left(job: JobView, now: Situation) -> Lanes:
    """The lanes that a job keeps when it is throttled."""
    lanes = job.allocation.lanes
    return now.permitted(job, {name: _throttled_lanes(job, name, count, now.settings) for name, count in lanes.items()})


def _throttled_lanes(job: JobView, operator: str, lanes: int, settings: Settings) -> int:
    if not job.job.graph.operators[operator].inputs:
        return lanes
    return max(1, round(lanes * (1 - settings.reduction)))


def changes_to_best(now: Situation) -> dict[str, JobAllocation]:
    """Allocations of the best configuration that jobs can return to."""
    return {name: had for name, had in differences_from_best(now).items() if _goes_back(now.view.jobs[name], had, now)}


def differences_from_best(now: Situation) -> dict[str, JobAllocation]:
    """Best-configuration allocation of each job whose current allocation differs."""
    if now.state.best is None:
        return {}
    best = now.state.best.allocation
    return {name: best[name] for name, job in now.view.jobs.items() if name in best and best[name] != job.allocation}


def _goes_back(job: JobView, had: JobAllocation, now: Situation) -> bool:
    """Whether a job may return to the allocation `had`. A job whose change caused a loss always may. Any other job may not if these
    lane counts were undone recently, or if the job is recovering and would lose lanes. No job gets lanes without a finished epoch.
    """
    name, lanes = job.job.name, job.allocation.lanes
    if now.refuses(name) or (adds_lanes(lanes, had.lanes) and not has_finished_epoch(job)):
        return False
    if now.verdict is not None and name in now.verdict.blamed:
        return True
    barred = any(now.bars(name, one, count) for one, count in counts_of(had).items())
    loses = any(had.lanes.get(operator, count) < count for operator, count in lanes.items())
    return not barred and not (loses and recovering(job, now.settings.noise))
