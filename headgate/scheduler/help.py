"""What one job that misses its intent gets, and why: what its diagnosis asks for, epochs more often, or lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from headgate.core.metrics import JobView, capacities
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.quantities import show_seconds
from headgate.core.sizing import keeps_pace, longest_pace_s, more_lanes
from headgate.health.care import only_lanes
from headgate.health.records import Remedy, cause_of, patient_of
from headgate.health.resolving import ResolverName, with_lanes
from headgate.scheduler.memory import Situation


def help_for(job: JobView, now: Situation) -> JobAllocation | None:
    """What the diagnosis asks for: slices re-assigned, or lanes moved. Else epochs more often if the pace is what costs the
    time, else more lanes; None if nothing would change anything.
    """
    remedy = now.remedies.get(job.job.name)
    if remedy is not None and remedy.resolver != ResolverName.SCALE_UP:
        return remedy.allocation
    pace_s, has_s = longest_pace_s(job, now.settings), job.allocation.pace_s
    if pace_s is not None and has_s and keeps_pace(job) and pace_s < (1 - now.settings.smallest_step) * has_s:
        return dataclasses.replace(job.allocation, pace_s=round(pace_s, 2))
    lanes = now.permitted(job, more_lanes(job, now.settings, bool(now.view.congested)))
    return None if lanes == job.allocation.lanes else _spread(job, lanes, now)


def _spread(job: JobView, lanes: Mapping[str, int], now: Situation) -> JobAllocation:
    """These lanes, with slices by measured load; evenly where lanes are all that may change."""
    if only_lanes(now.settings):
        return job.allocation.with_lanes(lanes)
    return with_lanes(patient_of(job, now.view.hosts, now.view.at_s, now.settings), lanes)


def help_action(job: JobView, help_: JobAllocation, remedy: Remedy | None) -> Action:
    """The action that gives one job what it needs, with its cause."""
    assert job.span is not None
    name, before = job.job.name, job.allocation.lanes
    if remedy is not None and help_ == remedy.allocation:
        return _remedying(remedy, name, _miss(job))
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


def _remedying(remedy: Remedy, name: str, miss: str) -> Action:
    """A remedy as the action for a job that misses its intent."""
    action = remedy.action(name)
    chain = cause_of(remedy.diagnosis)
    return dataclasses.replace(action, cause=Cause(f"{miss}; {chain.text}", chain.facts, (chain,)))


def _miss(job: JobView) -> str:
    """What the job misses, in words."""
    intent, parts = job.job.intent, []
    if intent.latency_s is not None and job.latency_s is not None and job.latency_s > intent.latency_s:
        parts.append(f"latency {show_seconds(job.latency_s)} misses {show_seconds(intent.latency_s)}")
    if intent.juice is not None and job.juice is not None and job.juice < intent.juice:
        parts.append(f"juice {job.juice:.3f} misses {intent.juice:g}")
    if job.met and intent.latency_s is not None and job.latency_s is not None:
        return f"latency {show_seconds(job.latency_s)} is close to {show_seconds(intent.latency_s)}"
    return " and ".join(parts) or "misses its intent"
