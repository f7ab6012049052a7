"""One examination of one job: wait, measure, judge the last remedy, detect, diagnose, propose a remedy (Dhalion, section 4).

`examine(history, policy, observed) -> Examination` is pure and changes nothing: the scheduler keeps the trials and the action log. After
each remedy the job's window starts over; then the policy's own measures show whether the remedy helped.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from headgate.config import AllowedRemedies, Settings
from headgate.core.quantities import show_seconds
from headgate.health.diagnosing import is_unclear
from headgate.health.policies import LANE_REMEDIES, HealthPolicy, Late
from headgate.health.records import (
    Alert,
    Diagnosis,
    Log,
    LogEntry,
    Measurements,
    ObservedJob,
    Remedy,
    Symptom,
    blacklisted,
    purged,
)


@dataclass(frozen=True, slots=True)
class History:
    """The past as a policy sees it: the action log of all jobs, and the remedy whose effect this job awaits."""

    log: Log = ()
    awaited: LogEntry | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of one examination, and the proposed remedy."""

    cause: str
    """Why the policy proposes a remedy, or proposes none."""
    symptoms: tuple[Symptom, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    remedy: Remedy | None = None
    alerts: tuple[Alert, ...] = ()
    tried: LogEntry | None = None
    """Log entry of the proposed remedy, with the policy's current measures; None without a remedy."""
    judged: LogEntry | None = None
    """Log entry of the awaited remedy with its effect; None if no remedy was judged."""


def examine(history: History, policy: HealthPolicy, observed: ObservedJob) -> Examination:
    """Examine one job with one policy."""
    waiting = _waiting(observed)
    if waiting:
        return Examination(waiting)
    measured = Measurements(found for sensor in policy.sensors for found in sensor.measure(observed))
    judged = _judge(history.awaited, policy, measured, observed)
    log = history.log if judged is None else purged((*history.log, judged), observed.at_s, observed.settings)
    symptoms = tuple(found for detector in policy.detectors for found in detector.detect(measured, observed))
    diagnoses = tuple(found for diagnoser in policy.diagnosers for found in diagnoser.diagnose(symptoms, observed))
    remedy, alerts = resolve(log, policy, diagnoses, measured, observed)
    raised = (*alerts, *policy.alerts(symptoms, diagnoses, observed))
    found = Examination(_cause(diagnoses, remedy), symptoms, diagnoses, alerts=raised, judged=judged)
    if remedy is None or not policy.invasive:
        return found
    return dataclasses.replace(found, remedy=remedy, tried=_entry(policy, remedy, measured, observed))


def _waiting(observed: ObservedJob) -> str:
    """Why the job cannot be examined yet; empty if it can."""
    span, settings = observed.span, observed.settings
    # Scheduled jobs have short windows, and only alerting policies examine them here.
    least_s = settings.warm_up_s if observed.view.job.intent.policy is None else settings.health_least_s
    if span is None or span.seconds < least_s - 1e-6:
        return f"less than {show_seconds(least_s)} of measurements since the last change of {observed.name}"
    return ""


def _cause(diagnoses: tuple[Diagnosis, ...], remedy: Remedy | None) -> str:
    if remedy is not None:
        return f"{remedy.what}: {remedy.diagnosis.text}"
    if diagnoses:
        return f"{diagnoses[0].text}; no remaining remedy helps"
    return "healthy"


def resolve(
    log: Log, policy: HealthPolicy, diagnoses: tuple[Diagnosis, ...], measured: Measurements, observed: ObservedJob
) -> tuple[Remedy | None, tuple[Alert, ...]]:
    """The first remedy that is not blacklisted, and the alerts of the resolvers tried before."""
    alerts: list[Alert] = []
    for diagnosis in policy.select(diagnoses):
        for resolver in policy.resolvers.get(diagnosis.kind, ()):
            if _refused(log, resolver.name, diagnosis, observed):
                continue
            answer = resolver.resolve(diagnosis, measured, observed)
            if isinstance(answer, Alert):
                alerts.append(answer)
            elif answer is not None:
                return answer, tuple(alerts)
    return None, tuple(alerts)


_LATE = Late()


@dataclass(frozen=True, slots=True)
class Finding:
    """The diagnosis result for a job that misses its intent."""

    remedy: Remedy | None = None
    """The proposed remedy; None without a diagnosis or without per-lane measurements."""
    unclear: bool = False
    """Whether the job's lanes differ, but not yet for long enough to tell why."""


def finding_of(log: Log, observed: ObservedJob) -> Finding:
    """Diagnose a job that misses its intent, and propose a remedy."""
    span = observed.span
    lanes = observed.view.allocation.lanes
    if span is None or all(observed.samples[-1].reading.operators[name].lane_rows is None for name in lanes):
        return Finding()
    measured = Measurements(found for sensor in _LATE.sensors for found in sensor.measure(observed))
    symptoms = tuple(found for detector in _LATE.detectors for found in detector.detect(measured, observed))
    diagnoses = tuple(found for diagnoser in _LATE.diagnosers for found in diagnoser.diagnose(symptoms, observed))
    unclear = is_unclear(symptoms) and not only_lanes(observed.settings)
    return Finding(resolve(log, _LATE, diagnoses, measured, observed)[0], unclear)


def _refused(log: Log, resolver: str, diagnosis: Diagnosis, observed: ObservedJob) -> bool:
    lanes_only = only_lanes(observed.settings) and resolver not in LANE_REMEDIES
    return lanes_only or blacklisted(log, observed.name, diagnosis, resolver, observed.settings)


def only_lanes(settings: Settings) -> bool:
    """Whether the settings allow only remedies that change lane counts."""
    return settings.remedies == AllowedRemedies.LANES


def _entry(policy: HealthPolicy, remedy: Remedy, measured: Measurements, observed: ObservedJob) -> LogEntry:
    diagnosis = remedy.diagnosis
    return LogEntry(
        observed.at_s, observed.name, policy.name, diagnosis.kind, diagnosis.operator, remedy.resolver,
        before=policy.measures(measured, observed, diagnosis.operator), what=remedy.what,
    )  # fmt: skip


def _judge(
    awaited: LogEntry | None, policy: HealthPolicy, measured: Measurements, observed: ObservedJob
) -> LogEntry | None:
    """Log entry of the awaited remedy with its measured effect; None if no remedy is awaited."""
    if awaited is None:
        return None
    after = policy.measures(measured, observed, awaited.operator)
    useful = policy.helped(awaited, after, observed) if awaited.policy == policy.name else None
    return dataclasses.replace(awaited, after=after, useful=useful)
