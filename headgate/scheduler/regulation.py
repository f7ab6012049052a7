"""Runs the health policies: the invasive policy of each self-regulating job, and the alerting policies for all jobs.

A job has one invasive policy, named in its intent. All other policies examine every job and only raise alerts. A policy only advises: a
scheduler rule turns its remedy into an action. A user-defined policy runs behind an `Examiner`. If the policy fails, Headgate switches
it off for a while, raises an alert and continues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.config import Settings
from headgate.core.alerts import Alert, AlertKind
from headgate.core.metrics import JobView, View
from headgate.core.sizing import adds_lanes, has_finished_epoch
from headgate.health.examiners import BuiltInPolicy, Examiner, SwitchedOffError
from headgate.health.examining import Examination, History
from headgate.health.policies import built_in
from headgate.health.records import Diagnosis, LogEntry, ObservedJob
from headgate.scheduler.quarantine import Quarantine
from headgate.scheduler.trials import Trials

ALERT_AGAIN_S = 3600.0
"""Shortest time between two alerts that differ only in their figures, in seconds."""

NO_EPOCH = "no epoch has finished since the last change; lanes are added only after a finished epoch"


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """A policy that failed: the error, the end of the pause, and the number of consecutive failures."""

    text: str
    until_s: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class PolicyAdvice:
    """Findings of all policies in one round."""

    total: float = 0.0
    """Total utility of all jobs, scheduled and self-regulating."""
    jobs: Mapping[str, JobView] = field(default_factory=dict)
    """The self-regulating jobs that were examined."""
    examinations: Mapping[str, Examination] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    """New alerts for people."""

    @property
    def asking_job(self) -> str | None:
        """The job whose policy asks for a remedy; None if no policy does."""
        return next((name for name, found in self.examinations.items() if found.remedy is not None), None)

    @property
    def cause(self) -> str:
        """The cause that the last examination gave."""
        found = list(self.examinations.values())
        return found[-1].cause if found else "no job regulates itself"

    @property
    def diagnoses(self) -> dict[str, tuple[Diagnosis, ...]]:
        """Diagnoses of the examined jobs, by job."""
        return {name: found.diagnoses for name, found in self.examinations.items()}


NO_ADVICE = PolicyAdvice()

PolicyAlerts = tuple[dict[str, tuple[Alert, ...]], str]
"""Alerts of one policy by job, and the error if the policy failed; empty without an error."""
AskAll = Callable[[Callable[[str], PolicyAlerts], Sequence[str]], Iterable[PolicyAlerts]]
"""Asks all of these policies, and returns their answers in the same order."""


def one_by_one(ask: Callable[[str], PolicyAlerts], policies: Sequence[str]) -> Iterable[PolicyAlerts]:
    """Ask one policy after another."""
    return map(ask, policies)


class Regulation:
    """Runs all health policies once per round; `ask_all` runs the alerting policies, which change nothing and may take a while."""

    def __init__(self, settings: Settings, examiners: Mapping[str, Examiner], ask_all: AskAll = one_by_one) -> None:
        self.settings = settings
        self._ask_all = ask_all
        self.examiners = dict(examiners)
        self.switched_off: Mapping[str, SwitchedOff] = {}
        self._standing: dict[str, tuple[Alert, ...]] = {}
        self._raised_s: dict[tuple[AlertKind, str, str], float] = {}
        """When an alert was last raised, by its key."""

    def advise(
        self, trials: Trials, view: View, regulated: set[str], unjudged: Mapping[str, Quarantine]
    ) -> PolicyAdvice:
        """Examine the self-regulating jobs until one needs a remedy; then run all alerting policies.

        Every quarantined job raises an alert as well.
        """
        self._forgive(view.at_s)
        not_judged = tuple(found.alert(name) for name, found in sorted(unjudged.items()))
        off = tuple(_policy_off(name, one.text) for name, one in self.switched_off.items() if view.at_s < one.until_s)
        self._standing = {"": (*not_judged, *off)}
        examinations: dict[str, Examination] = {}
        for name in sorted(regulated, key=lambda job: trials.since_s.get(job, 0.0)):
            found = examinations[name] = self._examine(trials, view, name)
            if found.remedy is not None or found.judged is not None:
                break
        self._watch(trials, view)
        jobs = {name: view.jobs[name] for name in examinations}
        return PolicyAdvice(_total(view), jobs, examinations, self._new_alerts(view.at_s))

    def standing(self) -> tuple[Alert, ...]:
        """All current alerts, without duplicates."""
        return tuple(dict.fromkeys(alert for alerts in self._standing.values() for alert in alerts))

    # -- the policy of a job's intent

    def _examine(self, trials: Trials, view: View, name: str) -> Examination:
        job = view.jobs[name]
        wanted = job.job.intent.policy or ""
        if self._is_off(wanted, view.at_s):
            return Examination(self.switched_off[wanted].text)
        examiner = self._examiner(wanted)
        if examiner is None:
            missing = Alert(
                f'there is no policy "{wanted}"; the job keeps its lanes', wanted, name, AlertKind.NO_POLICY
            )
            self._standing[name] = (missing,)
            return Examination(missing.sentence)
        trial = trials.awaited.get(name)
        history = History(trials.log, trial.entry if trial is not None else None)
        found = self._ask(wanted, examiner, history, _observed_job(job, view, self.settings))
        self._standing[name] = _alerts_in(found, wanted, name)
        return Examination(NO_EPOCH, diagnoses=found.diagnoses) if _grows_blindly(found, job) else found

    def _examiner(self, name: str) -> Examiner | None:
        if name not in self.examiners:
            policy = built_in(name)
            if policy is None:
                return None
            self.examiners[name] = BuiltInPolicy(policy)
        return self.examiners[name]

    def _ask(self, name: str, examiner: Examiner, history: History, observed: ObservedJob) -> Examination:
        try:
            return examiner.examine(history, observed)
        except Exception as error:  # the edge of a policy: the loop continues for all other policies
            return Examination(self._switch_off(name, _trouble(error), observed.at_s))

    # -- policies that failed

    def _is_off(self, policy: str, at_s: float) -> bool:
        return policy in self.switched_off and at_s < self.switched_off[policy].until_s

    def _switch_off(self, policy: str, trouble: str, at_s: float) -> str:
        """Switch off a policy that failed, for a pause that doubles with each consecutive failure up to a limit."""
        text = f'policy "{policy}" was switched off: {trouble}'
        self._standing[""] = (*self._standing[""], _policy_off(policy, text))
        times = self.switched_off[policy].times if policy in self.switched_off else 0
        pause_s = self.settings.policy_back_off_s * 2.0 ** min(times, 30)
        until_s = at_s + min(self.settings.policy_back_off_limit_s, pause_s)
        self.switched_off = {**self.switched_off, policy: SwitchedOff(text, until_s, times + 1)}
        return text

    def _forgive(self, at_s: float) -> None:
        """Reset the failure count of each policy that has not failed for the longest pause."""
        limit_s = self.settings.policy_back_off_limit_s
        self.switched_off = {name: off for name, off in self.switched_off.items() if at_s - off.until_s < limit_s}

    # -- policies that only raise alerts

    def _watch(self, trials: Trials, view: View) -> None:
        """Run all alerting policies."""
        asked = {name: one for name, one in self.examiners.items() if not self._is_off(name, view.at_s)}
        watching = [name for name, one in asked.items() if not one.invasive]
        if not watching:
            return
        answers = list(self._ask_all(lambda name: self._alerts_of(name, trials, view), watching))
        for name, (alerts, trouble) in zip(watching, answers, strict=True):
            self._standing |= {f"{name} {job}": found for job, found in alerts.items()}
            if trouble:
                self._switch_off(name, trouble, view.at_s)

    def _alerts_of(self, policy: str, trials: Trials, view: View) -> PolicyAlerts:
        alerts: dict[str, tuple[Alert, ...]] = {}
        try:
            for name, job in view.jobs.items():
                observed = _observed_job(job, view, self.settings)
                found = self.examiners[policy].examine(History(trials.log), observed)
                alerts[name] = _alerts_in(found, policy, name)
        except Exception as error:  # the edge of a policy: the loop continues for all other policies
            return alerts, _trouble(error)
        return alerts, ""

    def _new_alerts(self, at_s: float) -> tuple[Alert, ...]:
        due_s = at_s - ALERT_AGAIN_S
        new = tuple(alert for alert in self.standing() if self._raised_s.get(alert.key, due_s) <= due_s)
        self._raised_s |= {alert.key: at_s for alert in new}
        return new


def _alerts_in(found: Examination, policy: str, job: str) -> tuple[Alert, ...]:
    """The alerts of a policy about a job; a user policy need not name the job, nor what the alert is about."""
    return tuple(
        dataclasses.replace(alert, job=alert.job or job, about=alert.about or policy) for alert in found.alerts
    )


def _policy_off(name: str, text: str) -> Alert:
    return Alert(text, name, kind=AlertKind.POLICY_OFF)


def _grows_blindly(found: Examination, job: JobView) -> bool:
    """Whether the remedy adds lanes although no epoch has finished since the last change of the job."""
    remedy = found.remedy
    return (
        remedy is not None and adds_lanes(job.allocation.lanes, remedy.allocation.lanes) and not has_finished_epoch(job)
    )


def _trouble(error: Exception) -> str:
    return str(error) if isinstance(error, SwitchedOffError) else f"it failed with {type(error).__name__}: {error}"


def _observed_job(job: JobView, view: View, settings: Settings) -> ObservedJob:
    window = tuple(sample for sample in job.samples if sample.at_s >= view.at_s - settings.health_window_s - 1e-6)
    return ObservedJob(
        job, window, view.hosts, view.at_s, settings, misses=job.met is False, congested=bool(view.congested)
    )


def _total(view: View) -> float:
    return sum(job.utility or 0.0 for job in view.jobs.values())


def effect_in_words(entry: LogEntry) -> str:
    """Verdict on a remedy, with the figures that its policy measured before and after."""
    figures = "; ".join(_figures(entry))
    if entry.useful is None:
        return f"not judged, because the input changed meanwhile ({figures})"
    return f"{'kept' if entry.useful else 'did not help'} ({figures})"


def _figures(entry: LogEntry) -> Iterator[str]:
    if entry.before.get("sustains") and entry.after.get("sustains"):
        yield f"{entry.operator} can process {entry.before['sustains']:,.0f} -> {entry.after['sustains']:,.0f} rows/s"
    if "held" in entry.before and "held" in entry.after:
        yield f"input held back {entry.before['held']:.0%} -> {entry.after['held']:.0%} of the time"
