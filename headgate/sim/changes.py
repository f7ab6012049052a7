"""A scenario changed from the command line: another length, another model, or loads that follow a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headgate.core.intents import Intent
from headgate.errors import InputError
from headgate.loads import Diurnal, Load, Trace, read_trace
from headgate.sim import constants
from headgate.sim.spec import Event, HostSpec, JobSpec, Scenario

CONTINUOUS, EPOCHS = "continuous", "epochs"


def with_trace(scenario: Scenario, path: Path) -> Scenario:
    """Return the scenario with loads that have the shape of the trace and the peak of each load's own pattern."""
    return _follow(scenario, read_trace(path))


def _follow(scenario: Scenario, points: tuple[tuple[float, float], ...]) -> Scenario:
    jobs = tuple(dataclasses.replace(job, loads=_trace_loads(job, points, scenario)) for job in scenario.jobs)
    events = tuple(
        dataclasses.replace(event, job=dataclasses.replace(event.job, loads=_trace_loads(event.job, points, scenario)))
        if event.job is not None
        else event
        for event in scenario.events
    )
    variants = tuple(dataclasses.replace(v, scenario=_follow(v.scenario, points)) for v in scenario.sweep)
    return dataclasses.replace(scenario, jobs=jobs, events=events, sweep=variants)


def _trace_loads(job: JobSpec, points: tuple[tuple[float, float], ...], scenario: Scenario) -> dict[str, Load]:
    return {
        source: Trace(
            points, load.hour_s / 3600 if isinstance(load, Diurnal) else 1.0, peak=_peak(load, scenario.duration_s)
        )
        for source, load in job.loads.items()
    }


def _peak(load: Load, duration_s: float) -> float:
    return max(load.rate_rows_s(duration_s * index / 1000) for index in range(1001))


def with_hours(scenario: Scenario, hours: float) -> Scenario:
    """The scenario for another length of simulated time."""
    if not hours > 0 or hours == float("inf"):
        raise InputError(f"hours is {hours}; it must be a number above 0")
    variants = tuple(dataclasses.replace(v, scenario=with_hours(v.scenario, hours)) for v in scenario.sweep)
    return dataclasses.replace(scenario, duration_s=hours * 3600, sweep=variants)


def with_model(scenario: Scenario, model: str) -> Scenario:
    """Return the scenario on another model; on `epochs`, latency intents are multiplied by `EPOCH_LATENCY_TIMES`."""
    if model == scenario.engine:
        return scenario
    if (scenario.engine, model) != (CONTINUOUS, EPOCHS):
        raise InputError(
            f'{scenario.name} has the model "{scenario.engine}"; only "{CONTINUOUS}" has another, --model {EPOCHS}'
        )
    return dataclasses.replace(
        scenario,
        engine=model,
        hosts=tuple(_with_slots(host) for host in scenario.hosts),
        jobs=tuple(_slower(job) for job in scenario.jobs),
        events=tuple(_slower_event(event) for event in scenario.events),
        sweep=tuple(dataclasses.replace(v, scenario=with_model(v.scenario, model)) for v in scenario.sweep),
    )


def _with_slots(host: HostSpec) -> HostSpec:
    slots = host.slots if host.slots is not None else round(host.cores * constants.EPOCH_SLOTS_PER_CORE)
    return dataclasses.replace(host, slots=slots)


def _slower(job: JobSpec) -> JobSpec:
    return dataclasses.replace(job, intent=_longer(job.intent))


def _slower_event(event: Event) -> Event:
    job = _slower(event.job) if event.job is not None else None
    return dataclasses.replace(event, job=job, intent=_longer(event.intent) if event.intent is not None else None)


def _longer(intent: Intent) -> Intent:
    if intent.latency_s is None:
        return intent
    return dataclasses.replace(intent, latency=intent.latency_s * constants.EPOCH_LATENCY_TIMES)
