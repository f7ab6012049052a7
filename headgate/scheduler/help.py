"""Help for one job that misses its intent, with the cause: the remedy of its diagnosis, a shorter pace, a larger share, or more lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from headgate.config import Objective
from headgate.core.metrics import JobView, capacities
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.quantities import show_seconds
from headgate.core.sizing import keeps_pace, longest_pace_s, more_lanes, raised_share
from headgate.health.examining import only_lanes
from headgate.health.records import Remedy, cause_of, observed_job
from headgate.health.resolving import ResolverName, with_lanes
from headgate.scheduler.memory import Situation
from headgate.scheduler.undone import SHARE


def help_for(job: JobView, now: Situation) -> JobAllocation | None:
    """The new allocation for a job: re-assigned slices or moved lanes if its diagnosis asks for them, else a shorter pace if the pace
    costs the time, else a larger share if slots are short, else more lanes. None if no change would help.
    """
    remedy = now.remedies.get(job.job.name)
    if remedy is not None and remedy.resolver != ResolverName.SCALE_UP:
        return remedy.allocation
    pace_s, has_s = longest_pace_s(job, now.settings), job.allocation.pace_s
    if pace_s is not None and has_s and keeps_pace(job) and pace_s < (1 - now.settings.smallest_step) * has_s:
        return dataclasses.replace(job.allocation, pace_s=round(pace_s, 2))
    share = _larger_share(job, now)
    if share is not None:
        return dataclasses.replace(job.allocation, share=share)
    sized = remedy.allocation.lanes if remedy is not None else more_lanes(job, now.settings, bool(now.view.congested))
    lanes = now.permitted(job, sized)
    return None if lanes == job.allocation.lanes else _spread(job, lanes, now)


def _larger_share(job: JobView, now: Situation) -> int | None:
    """The share to which a job that misses its intent rises: once, while slots are short, and only if another job can wait."""
    share = raised_share(job, now.settings)
    if share is None or not now.slots_short or job not in now.missing or now.bars(job.job.name, SHARE, share):
        return None
    urgent = now.missing[: now.missing.index(job) + 1]
    waiting = (other for other in now.view.jobs.values() if other not in urgent)
    return (
        share
        if any(other.worth <= job.worth or now.settings.objective != Objective.TOTAL for other in waiting)
        else None
    )


def _spread(job: JobView, lanes: Mapping[str, int], now: Situation) -> JobAllocation:
    """The allocation with these lanes, and slices placed by measured load; spread evenly if only lanes may change."""
    if only_lanes(now.settings):
        return job.allocation.with_lanes(lanes)
    return with_lanes(observed_job(job, now.view, now.settings), lanes)


def help_action(job: JobView, help_: JobAllocation, now: Situation) -> Action:
    """The action that gives one job the allocation `help_`, with its cause."""
    assert job.span is not None
    name, before = job.job.name, job.allocation.lanes
    remedy = now.remedies.get(name)
    if remedy is not None and help_ == remedy.allocation:
        return _remedying(remedy, name, _miss(job))
    if help_.share != job.allocation.share:
        return _raising(job, help_, now)
    gained = {operator: lanes for operator, lanes in help_.lanes.items() if lanes != before[operator]}
    if not gained:
        what = f"epochs every {show_seconds(job.allocation.pace_s or 0.0)} → {show_seconds(help_.pace_s or 0.0)}"
        cause = Cause(f"{_miss(job)}; rows wait for their epoch to start", {"utility": job.utility or 0.0})
        return Action(ActionKind.RECONFIGURE, name, {name: help_}, cause, what)
    busy = capacities(job.job.graph, job.span)
    slowest = max(gained, key=lambda operator: busy[operator])
    facts = {"utility": job.utility or 0.0, "worth": job.worth, **{f"busy {o}": busy[o] for o in gained}}
    why = (
        remedy.diagnosis.text
        if remedy is not None
        else f"{slowest} was the bottleneck (busy {busy[slowest]:.2f} of the time)"
    )
    because = (cause_of(remedy.diagnosis),) if remedy is not None else ()
    cause = Cause(f"{_miss(job)}; {why}", facts, because)
    what = ", ".join(f"{operator} {before[operator]} → {lanes}" for operator, lanes in gained.items()) + " lanes"
    return Action(
        ActionKind.RECONFIGURE, name, {name: help_}, cause, what, ResolverName.SCALE_UP if remedy is not None else ""
    )


def _raising(job: JobView, help_: JobAllocation, now: Situation) -> Action:
    """The action that raises the share of a job."""
    waits = now.view.slot_wait or 0.0
    cause = Cause(
        f"{_miss(job)}; slots are short: tasks wait for a slot for {waits:.0%} of their time",
        {"utility": job.utility or 0.0, "worth": job.worth, "slot wait": waits},
    )
    what = f"share {job.share} → {help_.share}"
    return Action(ActionKind.RECONFIGURE, job.job.name, {job.job.name: help_}, cause, what)


def _remedying(remedy: Remedy, name: str, miss: str) -> Action:
    """The action of a remedy for a job that misses its intent."""
    action = remedy.action(name)
    chain = cause_of(remedy.diagnosis)
    return dataclasses.replace(action, cause=Cause(f"{miss}; {chain.text}", chain.facts, (chain,)))


def _miss(job: JobView) -> str:
    """The missed latency or juice in words, as in "latency 3 s misses 2 s"."""
    intent, parts = job.job.intent, []
    if intent.latency_s is not None and job.latency_s is not None and job.latency_s > intent.latency_s:
        parts.append(f"latency {show_seconds(job.latency_s)} misses {show_seconds(intent.latency_s)}")
    if intent.juice is not None and job.juice is not None and job.juice < intent.juice:
        parts.append(f"juice {job.juice:.3f} misses {intent.juice:g}")
    if job.met and intent.latency_s is not None and job.latency_s is not None:
        return f"latency {show_seconds(job.latency_s)} is close to {show_seconds(intent.latency_s)}"
    return " and ".join(parts) or "misses its intent"
