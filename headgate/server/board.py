"""The published status of a service, for any thread: the picture of the last round, and the age of that picture.

The loop publishes; requests read. Every field is replaced as a whole, and what it holds is never changed.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.config import Settings
from headgate.core.metrics import View
from headgate.core.quantities import show_seconds
from headgate.ports import JobPhase, Jobs, JobState
from headgate.server.status import (
    ActionStatus,
    DeclaredJob,
    Health,
    JobStatus,
    LeasesStatus,
    Picture,
    Status,
    job_status,
    jobs_headline,
    problem_of,
    silence_of,
    unjudged,
)

KEPT_ACTIONS = 20
KEPT_FAILURES = 200
STARTING, STALE = "starting", "stale"
"""Phases of a loop that has not turned yet, or not for long."""
BROKEN = (JobPhase.FAILED, JobPhase.RETRYING)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FailureStatus:
    """A job that stopped running, and why."""

    at_s: float
    job: str
    state: str
    reason: str
    trace: str = ""
    """Where it happened, shortened; empty if the engine does not say."""


class PublishedTable(Generic[Value]):
    """Values by name for many threads: writers replace the whole under a lock, readers keep the one that they took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Value] = {}

    def now(self) -> Mapping[str, Value]:
        """As of now; it does not change any more."""
        return self._values

    def put(self, name: str, value: Value) -> None:
        """Add a value, or replace it."""
        with self._lock:
            self._values = {**self._values, name: value}

    def drop(self, name: str) -> bool:
        """Forget a value; returns whether there was one."""
        with self._lock:
            found = name in self._values
            self._values = {other: value for other, value in self._values.items() if other != name}
            return found


class StatusBoard:
    """The state of a service for others to read."""

    def __init__(self, engine: Jobs, settings: Settings, policy: str, now_s: Callable[[], float]) -> None:
        self._engine, self._policy, self._now_s = engine, policy, now_s
        self._stale_s = settings.stale_rounds * settings.round_s
        self._started_s = now_s()
        self._picture: Picture | None = None
        """Of the last round; only the loop replaces it, as it does `actions`, `leases`, `trouble` and `last_round_failed`."""
        self.actions: tuple[ActionStatus, ...] = ()
        self.leases: LeasesStatus | None = None
        self.failures: tuple[FailureStatus, ...] = ()
        """Since the start of the service, newest last; only the loop replaces it."""
        self.trouble = ""
        self.last_round_failed = False
        """Why the last round was not completed, or not as it should be."""
        self.declared: PublishedTable[DeclaredJob] = PublishedTable()
        self.unstarted: PublishedTable[JobState] = PublishedTable()
        """Jobs that could not be started when the service was; the engine has not heard of them."""

    def publish(self, picture: Picture, done: Sequence[ActionStatus]) -> None:
        """One more round."""
        self.actions = (*self.actions, *done)[-KEPT_ACTIONS:]
        self._picture = picture

    def picture(self) -> Picture | None:
        """The last round; None before the first."""
        return self._picture

    def note_failure(self, job: str, state: JobState) -> None:
        """A job does not run any more."""
        failure = FailureStatus(state.since_s, job, state.phase.value, state.reason, state.trace)
        self.failures = (*self.failures, failure)[-KEPT_FAILURES:]

    def stale_view(self) -> View | None:
        """The last view without verdicts, if it is stale; None if it is not, or if there is none."""
        picture = self._picture
        if picture is None or self._now_s() - picture.taken_s <= self._stale_s:
            return None
        jobs = {name: unjudged(job) for name, job in picture.view.jobs.items()}
        return dataclasses.replace(picture.view, jobs=jobs)

    def states(self) -> dict[str, JobState]:
        """All jobs, also those that could not be started."""
        return {**self._engine.states(), **self.unstarted.now()}

    def status(self) -> Status:
        """Everything at this moment."""
        picture = self._picture
        view = picture.view if picture is not None else None
        jobs, phase = self._jobs(picture), self.phase()
        wanted = [job for job in jobs.values() if job.state != JobPhase.PAUSED.value]
        return Status(
            at_s=view.at_s if view is not None else None,
            phase=phase,
            policy=self._policy,
            score=sum(job.utility or 0.0 for job in wanted),
            max_score=sum(job.worth for job in wanted),
            satisfaction=self.satisfaction(view) if view is not None and phase != STALE else None,
            decision=picture.decision if picture is not None and phase != STALE else "",
            jobs=jobs,
            actions=self.actions,
            hosts=tuple(view.hosts) if view is not None else (),
            advice=picture.advice if picture is not None else (),
            leases=self.leases,
            headline=jobs_headline(jobs),
            problem=self._problem(jobs),
        )

    def health(self, detailed: bool = True) -> Health:
        """Whether the control loop completes rounds and the engine answers; details may name jobs, which are not for everybody."""
        picture, lost, trouble = self._picture, self._engine.lost(), self.trouble if detailed else ""
        age_s = self._now_s() - picture.taken_s if picture is not None else None
        if lost:
            return Health(False, lost, age_s)
        if age_s is None:
            return Health(False, trouble or "no round yet", None)
        if age_s > self._stale_s:
            return Health(False, _standing(age_s, trouble), age_s)
        if self.last_round_failed:
            return Health(False, trouble or "the last round was not completed; `headgate status` says why", age_s)
        return Health(True, trouble or "the loop turns and the engine answers", age_s)

    def _problem(self, jobs: Mapping[str, JobStatus]) -> str:
        """The problems for a person to solve. The first round of a service may take as long as any other round."""
        health = self.health()
        waited_s = self._now_s() - self._started_s if health.round_age_s is None else health.round_age_s
        standing = self.trouble if health.healthy or waited_s <= self._stale_s else health.sentence
        picture = self._picture
        silence = silence_of(picture.view, self._now_s() - picture.taken_s) if picture is not None else ""
        return "; ".join(text for text in (self._engine.lost() or standing, silence, problem_of(jobs)) if text)

    def phase(self) -> str:
        """Phase of the scheduler; stale without fresh rounds. A job without readings is stale while other jobs are not."""
        picture = self._picture
        if picture is None:
            return STARTING
        return STALE if self._now_s() - picture.taken_s > self._stale_s else picture.phase

    def _jobs(self, picture: Picture | None) -> dict[str, JobStatus]:
        jobs, everything = {}, self.declared.now()
        for name, state in self.states().items():
            declared = everything.get(name)
            if declared is not None:
                jobs[name] = self._job(name, state, declared, picture)
        return jobs

    def _job(self, name: str, state: JobState, declared: DeclaredJob, picture: Picture | None) -> JobStatus:
        if picture is None or state.phase is not JobPhase.RUNNING:
            return job_status(state, declared, None, None, self._stale_s)
        read_s = picture.read_s.get(name)
        age_s = self._now_s() - read_s if read_s is not None else None
        return job_status(state, declared, picture.view.jobs.get(name), age_s, self._stale_s)

    def satisfaction(self, view: View) -> float | None:
        """Utility as a share of what the jobs are worth; one that failed has none, one that is not judged yet is left out."""
        got = {name: job.utility for name, job in view.jobs.items() if job.utility is not None}
        got |= {name: 0.0 for name, state in self.states().items() if state.phase in BROKEN}
        worth = sum(declared.worth for name, declared in self.declared.now().items() if name in got)
        return sum(got.values()) / worth if worth else None


def _standing(age_s: float, trouble: str) -> str:
    why = f" ({trouble})" if trouble else ""
    return f"no round has been completed for {show_seconds(age_s)}{why}; readings are stale"
