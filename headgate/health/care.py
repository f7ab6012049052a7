"""One step of care for one job: wait, measure, judge the last action, look for trouble, act (Dhalion, section 4).

`examine(care, policy, patient) -> (care, Examination)` is pure. After each action it waits until the job is stable and has been
measured again; then the policy's own measure says whether the action was of use, and the action log remembers it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.config import Settings
from headgate.core.quantities import show_seconds
from headgate.health.diagnosing import is_unclear
from headgate.health.policies import LANE_REMEDIES, HealthPolicy, Late
from headgate.health.records import (
    Alert,
    Diagnosis,
    Log,
    LogEntry,
    Measurements,
    Patient,
    Remedy,
    Symptom,
    blacklisted,
    purged,
)


@dataclass(frozen=True, slots=True)
class Off:
    """A policy that failed: what it did, until when it is not asked again, and how often in a row that was."""

    text: str
    until_s: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class Care:
    """What is remembered of all jobs under care; the journal keeps it."""

    log: Log = ()
    """Actions that were judged, or are past judging."""
    trials: Mapping[str, LogEntry] = field(default_factory=dict)
    """By job, the action whose effect is awaited."""
    since_s: Mapping[str, float] = field(default_factory=dict)
    """By job, from when on it is measured."""
    off: Mapping[str, Off] = field(default_factory=dict)
    """Policies that failed and are not asked for a while, or were not until lately."""

    def is_off(self, policy: str, at_s: float) -> bool:
        """Whether the policy is not to be asked now."""
        return policy in self.off and at_s < self.off[policy].until_s

    def switched_off(self, policy: str, text: str, at_s: float, settings: Settings) -> Care:
        """The policy failed: it is not asked for a while, each time in a row for twice as long, within a limit."""
        times = self.off[policy].times if policy in self.off else 0
        pause_s = min(settings.policy_back_off_limit_s, settings.policy_back_off_s * 2.0 ** min(times, 30))
        return dataclasses.replace(self, off={**self.off, policy: Off(text, at_s + pause_s, times + 1)})

    def forgiving(self, at_s: float, settings: Settings) -> Care:
        """Without failures of policies that have been fine for as long as the longest pause."""
        kept = {name: off for name, off in self.off.items() if at_s - off.until_s < settings.policy_back_off_limit_s}
        return self if len(kept) == len(self.off) else dataclasses.replace(self, off=kept)

    def forgetting(self, jobs: Mapping[str, object]) -> Care:
        """Without what concerns jobs that are gone."""
        if not (self.trials.keys() | self.since_s.keys()) - jobs.keys():
            return self
        trials = {name: entry for name, entry in self.trials.items() if name in jobs}
        return dataclasses.replace(self, trials=trials, since_s={n: s for n, s in self.since_s.items() if n in jobs})


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, and what is to be done about it."""

    cause: str
    """Why something is done, or why not."""
    symptoms: tuple[Symptom, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    remedy: Remedy | None = None
    alerts: tuple[Alert, ...] = ()
    judged: LogEntry | None = None
    """The last action, if its effect is known now."""


def examine(care: Care, policy: HealthPolicy, patient: Patient) -> tuple[Care, Examination]:
    """One step for one job by one policy."""
    waiting = _waiting(patient)
    if waiting:
        return care, Examination(waiting)
    measured = Measurements(found for sensor in policy.sensors for found in sensor.measure(patient))
    care, judged = _judged(care, policy, measured, patient)
    symptoms = tuple(found for detector in policy.detectors for found in detector.detect(measured, patient))
    diagnoses = tuple(found for diagnoser in policy.diagnosers for found in diagnoser.diagnose(symptoms, patient))
    remedy, alerts = resolve(care.log, policy, diagnoses, measured, patient)
    told = (*alerts, *policy.alerts(symptoms, diagnoses, patient))
    found = Examination(_cause(diagnoses, remedy), symptoms, diagnoses, remedy, told, judged)
    if remedy is None or not policy.invasive:
        return care, dataclasses.replace(found, remedy=None)
    return _on_trial(care, policy, remedy, measured, patient), found


def _waiting(patient: Patient) -> str:
    """Why nothing can be said yet; empty if something can."""
    span, settings = patient.span, patient.settings
    # Jobs of the scheduler have short windows; only those that look on examine them as a whole.
    least_s = settings.warm_up_s if patient.view.job.intent.policy is None else settings.health_least_s
    if span is None or span.seconds < least_s - 1e-6:
        return f"less than {show_seconds(least_s)} of measurements since the last change of {patient.name}"
    return ""


def _cause(diagnoses: tuple[Diagnosis, ...], remedy: Remedy | None) -> str:
    if remedy is not None:
        return f"{remedy.what}: {remedy.diagnosis.text}"
    if diagnoses:
        return f"{diagnoses[0].text}; nothing left that helps"
    return "healthy"


def resolve(
    log: Log, policy: HealthPolicy, diagnoses: tuple[Diagnosis, ...], measured: Measurements, patient: Patient
) -> tuple[Remedy | None, tuple[Alert, ...]]:
    """The first remedy that has not been useless too often, and the alerts of the resolvers asked on the way."""
    alerts: list[Alert] = []
    for diagnosis in policy.select(diagnoses):
        for resolver in policy.resolvers.get(diagnosis.kind, ()):
            if _refused(log, resolver.name, diagnosis, patient):
                continue
            answer = resolver.resolve(diagnosis, measured, patient)
            if isinstance(answer, Alert):
                alerts.append(answer)
            elif answer is not None:
                return answer, tuple(alerts)
    return None, tuple(alerts)


_LATE = Late()


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in a job that misses its intent."""

    remedy: Remedy | None = None
    """What its diagnosis asks for; None where nothing is known of single lanes."""
    unclear: bool = False
    """Its lanes differ, but not for long enough to say why."""


def finding_of(log: Log, patient: Patient) -> Finding:
    """What is wrong with a job that misses its intent, and what helps."""
    span = patient.span
    lanes = patient.view.allocation.lanes
    if span is None or all(patient.samples[-1].reading.operators[name].lane_rows is None for name in lanes):
        return Finding()
    measured = Measurements(found for sensor in _LATE.sensors for found in sensor.measure(patient))
    symptoms = tuple(found for detector in _LATE.detectors for found in detector.detect(measured, patient))
    diagnoses = tuple(found for diagnoser in _LATE.diagnosers for found in diagnoser.diagnose(symptoms, patient))
    unclear = is_unclear(symptoms) and not only_lanes(patient.settings)
    return Finding(resolve(log, _LATE, diagnoses, measured, patient)[0], unclear)


def _refused(log: Log, resolver: str, diagnosis: Diagnosis, patient: Patient) -> bool:
    lanes_only = only_lanes(patient.settings) and resolver not in LANE_REMEDIES
    return lanes_only or blacklisted(log, patient.name, diagnosis, resolver, patient.settings)


def only_lanes(settings: Settings) -> bool:
    """Whether every trouble is answered with lanes."""
    return settings.remedies == "lanes"


# -- the action log ------------------------------------------------------------------------------------------------------------


def _on_trial(care: Care, policy: HealthPolicy, remedy: Remedy, measured: Measurements, patient: Patient) -> Care:
    diagnosis = remedy.diagnosis
    entry = LogEntry(
        patient.at_s, patient.name, policy.name, diagnosis.kind, diagnosis.operator, remedy.resolver,
        before=policy.measures(measured, patient, diagnosis.operator), what=remedy.what,
    )  # fmt: skip
    since_s = {**care.since_s, patient.name: patient.at_s + patient.settings.health_pause_s}
    return dataclasses.replace(care, trials={**care.trials, patient.name: entry}, since_s=since_s)


def _judged(care: Care, policy: HealthPolicy, measured: Measurements, patient: Patient) -> tuple[Care, LogEntry | None]:
    """The job has been measured again since its last action: judge the action, and log it."""
    trial = care.trials.get(patient.name)
    if trial is None:
        return care, None
    after = policy.measures(measured, patient, trial.operator)
    useful = policy.helped(trial, after, patient) if trial.policy == policy.name else None
    entry = dataclasses.replace(trial, after=after, useful=useful)
    return _logged(care, entry, patient.at_s, patient.settings), entry


def _logged(care: Care, entry: LogEntry, at_s: float, settings: Settings) -> Care:
    trials = {name: trial for name, trial in care.trials.items() if name != entry.job}
    return dataclasses.replace(care, trials=trials, log=purged((*care.log, entry), at_s, settings))


def not_applied(care: Care, job: str, at_s: float, settings: Settings, refused: bool = True) -> Care:
    """The action was not carried out. One that was refused counts as a useless try, so that another remedy has its turn; one
    that was only observed is not asked for again for a while.
    """
    trial = care.trials.get(job)
    if trial is None:
        return care
    if not refused:
        trials = {name: entry for name, entry in care.trials.items() if name != job}
        return dataclasses.replace(care, trials=trials, since_s={**care.since_s, job: at_s + settings.retry_s})
    care = _logged(care, dataclasses.replace(trial, useful=False), at_s, settings)
    return dataclasses.replace(care, since_s={**care.since_s, job: at_s})


def carried_out(care: Care, job: str, at_s: float, settings: Settings) -> Care:
    """The action was carried out later than it was decided: its effect is awaited from then on."""
    if job not in care.trials:
        return care
    return dataclasses.replace(care, since_s={**care.since_s, job: at_s + settings.health_pause_s})
