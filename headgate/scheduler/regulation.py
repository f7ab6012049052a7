"""Jobs that regulate themselves, and the alerts of all jobs: which policy examines which job, and what follows.

A job has one invasive policy, that of its intent. All others look at every job and only raise alerts. A policy of the user's is
asked through an `Examiner`, which may fail: it is then switched off for a while, with a sentence, and the loop goes on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from headgate.config import Settings
from headgate.core.metrics import JobView, View
from headgate.core.model import ActionKind
from headgate.core.sizing import adds_lanes, has_finished_epoch
from headgate.health.care import Care, Examination
from headgate.health.examiners import BuiltInPolicy, Examiner, SwitchedOffError
from headgate.health.policies import built_in
from headgate.health.records import Diagnosis, LogEntry, Patient
from headgate.scheduler.memory import Decision, Verdict
from headgate.scheduler.quarantine import Quarantine

ALERT_AGAIN_S = 3600.0
"""The same alert, but for its figures, is raised again after so long at the earliest."""

NO_EPOCH = "no epoch has finished since the last change: lanes are not added before one has"


class Regulation:
    """Asks the policies, once a round."""

    def __init__(self, settings: Settings, examiners: Mapping[str, Examiner]) -> None:
        self.settings = settings
        self.examiners = dict(examiners)
        self._standing: dict[str, tuple[str, ...]] = {}
        self._raised_s: dict[str, float] = {}
        self._before: dict[str, tuple[float, float | None]] = {}

    def look(
        self, care: Care, view: View, regulated: set[str], unjudged: Mapping[str, Quarantine] | None = None
    ) -> tuple[Care, Decision]:
        """Every job that regulates itself is examined until one needs something; then all other policies look for alerts.

        A job that cannot be judged is an alert as well.
        """
        care = care.forgetting(view.jobs).forgiving(view.at_s, self.settings)
        told = tuple(found.sentence(name) for name, found in sorted((unjudged or {}).items()))
        off = tuple(off.text for off in care.off.values() if view.at_s < off.until_s)
        self._standing = {"": (*told, *off)}
        found: dict[str, tuple[Diagnosis, ...]] = {}
        decision = Decision("care", "no job regulates itself")
        for name in sorted(regulated, key=lambda job: care.since_s.get(job, 0.0)):
            asked, examined = self._asked(care, view, name)
            if _grows_blindly(examined, view.jobs[name]):
                examined = dataclasses.replace(examined, cause=NO_EPOCH, remedy=None)
            else:
                care = asked
            found[name] = examined.diagnoses
            decision = self._decided(examined, view, name)
            if decision.action is not None or decision.verdict is not None:
                break
        care = self._watched(care, view)
        return care, dataclasses.replace(decision, diagnoses=found, alerts=self._new_alerts(view.at_s))

    def standing(self) -> tuple[str, ...]:
        """All alerts that hold now."""
        return tuple(dict.fromkeys(text for texts in self._standing.values() for text in texts))

    # -- the policy of a job's intent

    def _asked(self, care: Care, view: View, name: str) -> tuple[Care, Examination]:
        job = view.jobs[name]
        wanted = job.job.intent.policy or ""
        if care.is_off(wanted, view.at_s):
            return care, Examination(care.off[wanted].text)
        examiner = self._examiner(wanted)
        if examiner is None:
            self._standing[name] = (f'{name}: there is no policy "{wanted}"; it keeps the lanes it has',)
            return care, Examination(self._standing[name][0])
        care, examined = self._answer(care, wanted, examiner, _patient(job, view, self.settings))
        self._standing[name] = tuple(alert.text for alert in examined.alerts)
        return care, examined

    def _examiner(self, name: str) -> Examiner | None:
        if name not in self.examiners:
            policy = built_in(name)
            if policy is None:
                return None
            self.examiners[name] = BuiltInPolicy(policy)
        return self.examiners[name]

    def _answer(self, care: Care, name: str, examiner: Examiner, patient: Patient) -> tuple[Care, Examination]:
        try:
            return examiner.examine(care, patient)
        except Exception as error:  # the edge of a policy: whatever fails in it, the loop goes on for all others
            text = self._switched_off(name, _trouble(error))
            return care.switched_off(name, text, patient.at_s, self.settings), Examination(text)

    def _switched_off(self, name: str, trouble: str) -> str:
        text = f'policy "{name}" was switched off: {trouble}'
        self._standing[""] = (*self._standing[""], text)
        return text

    def _decided(self, examined: Examination, view: View, name: str) -> Decision:
        verdict = self._verdict(examined.judged, view) if examined.judged is not None else None
        if examined.remedy is None:
            return Decision("care", examined.cause, None, verdict)
        self._before[name] = (_total(view), view.jobs[name].utility)
        return Decision("care", examined.cause, examined.remedy.action(name), verdict)

    def _verdict(self, entry: LogEntry, view: View) -> Verdict:
        job = view.jobs[entry.job]
        total, utility = self._before.pop(entry.job, (_total(view), job.utility))
        kind = ActionKind.RECONFIGURE
        return Verdict(kind, entry.job, total, _total(view), utility, job.utility, _in_words(entry))

    # -- policies that only look on

    def _watched(self, care: Care, view: View) -> Care:
        """All at the same time: none changes anything, and each may take a while."""
        asked = {name: one for name, one in self.examiners.items() if not care.is_off(name, view.at_s)}
        watching = {name: one for name, one in asked.items() if not one.invasive}
        if not watching:
            return care
        with ThreadPoolExecutor(len(watching)) as pool:
            answers = list(pool.map(lambda one: self._looked(one, care, view), watching.values()))
        for name, (alerts, trouble) in zip(watching, answers, strict=True):
            self._standing |= {f"{name} {job}": texts for job, texts in alerts.items()}
            if trouble:
                text = self._switched_off(name, trouble)
                care = care.switched_off(name, text, view.at_s, self.settings)
        return care

    def _looked(self, examiner: Examiner, care: Care, view: View) -> tuple[dict[str, tuple[str, ...]], str]:
        """What it has to tell of each job, and why it can no longer be asked; empty if it can."""
        alerts: dict[str, tuple[str, ...]] = {}
        try:
            for name, job in view.jobs.items():
                _, examined = examiner.examine(care, _patient(job, view, self.settings))
                alerts[name] = tuple(alert.text for alert in examined.alerts)
        except Exception as error:  # the edge of a policy: whatever fails in it, the loop goes on for all others
            return alerts, _trouble(error)
        return alerts, ""

    def _new_alerts(self, at_s: float) -> tuple[str, ...]:
        return tuple(text for text in self.standing() if self._is_new(text, at_s))

    def _is_new(self, text: str, at_s: float) -> bool:
        gist = re.sub(r"\d[\d.,]*", "#", text)
        if at_s - self._raised_s.get(gist, -ALERT_AGAIN_S) < ALERT_AGAIN_S:
            return False
        self._raised_s[gist] = at_s
        return True


def _grows_blindly(examined: Examination, job: JobView) -> bool:
    """Whether the remedy adds lanes although no epoch has finished since the last change of the job."""
    remedy = examined.remedy
    return (
        remedy is not None and adds_lanes(job.allocation.lanes, remedy.allocation.lanes) and not has_finished_epoch(job)
    )


def _trouble(error: Exception) -> str:
    return str(error) if isinstance(error, SwitchedOffError) else f"it failed with {type(error).__name__}: {error}"


def _patient(job: JobView, view: View, settings: Settings) -> Patient:
    window = tuple(sample for sample in job.samples if sample.at_s >= view.at_s - settings.health_window_s - 1e-6)
    return Patient(job, window, view.hosts, view.at_s, settings, misses=job.met is False)


def _total(view: View) -> float:
    return sum(job.utility or 0.0 for job in view.jobs.values())


def _in_words(entry: LogEntry) -> str:
    figures = "; ".join(_figures(entry))
    if entry.useful is None:
        return f"not judged, because the input changed meanwhile ({figures})"
    return f"{'kept' if entry.useful else 'of no use'} ({figures})"


def _figures(entry: LogEntry) -> Iterator[str]:
    if entry.before.get("sustains") and entry.after.get("sustains"):
        yield f"{entry.operator} can take {entry.before['sustains']:,.0f} -> {entry.after['sustains']:,.0f} rows/s"
    if "held" in entry.before and "held" in entry.after:
        yield f"input held back {entry.before['held']:.0%} -> {entry.after['held']:.0%} of the time"
