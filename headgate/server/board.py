"""The published status of a service, for any thread: the picture of the last round, and the age of that picture.

The control loop publishes, and requests read. Every field is replaced as a whole; a published value is never modified.
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
"""Phases before the first round, and after too long a time without a completed round."""
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
    """Shortened stack trace of the failure; empty if the engine does not report one."""


class PublishedTable(Generic[Value]):
    """A table of values for many threads: writers replace the whole dict under a lock, so that readers never see a change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Value] = {}

    def now(self) -> Mapping[str, Value]:
        """Return the current values; the returned mapping never changes."""
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
    """The state of a service, published by the control loop for other threads."""

    def __init__(self, engine: Jobs, settings: Settings, policy: str, now_s: Callable[[], float]) -> None:
        self._engine, self._policy, self._now_s = engine, policy, now_s
        self._stale_s = settings.stale_rounds * settings.round_s
        self._started_s = now_s()
        self._picture: Picture | None = None
        """Picture of the last round. Only the loop replaces `_picture`, `actions`, `leases`, `trouble` and `last_round_failed`."""
        self.actions: tuple[ActionStatus, ...] = ()
        self.leases: LeasesStatus | None = None
        self.failures: tuple[FailureStatus, ...] = ()
        """The last failures since the start of the service, newest last; only the loop replaces the tuple."""
        self.trouble = ""
        """Error of the last round, or of a step beside the round, in a sentence; empty without an error."""
        self.last_round_failed = False
        self.declared: PublishedTable[DeclaredJob] = PublishedTable()
        self.unstarted: PublishedTable[JobState] = PublishedTable()
        """Jobs that the engine does not know, because they wait for their first start or could not be started."""

    def publish(self, picture: Picture, done: Sequence[ActionStatus]) -> None:
        """Publish the picture of a round and its actions."""
        self.actions = (*self.actions, *done)[-KEPT_ACTIONS:]
        self._picture = picture

    def picture(self) -> Picture | None:
        """Return the picture of the last round; None before the first round."""
        return self._picture

    def note_failure(self, job: str, state: JobState) -> None:
        """Record that a job stopped running."""
        failure = FailureStatus(state.since_s, job, state.phase.value, state.reason, state.trace)
        self.failures = (*self.failures, failure)[-KEPT_FAILURES:]

    def stale_view(self) -> View | None:
        """Return the last view without verdicts if the view is stale; None if the view is fresh or missing."""
        picture = self._picture
        if picture is None or self._now_s() - picture.taken_s <= self._stale_s:
            return None
        jobs = {name: unjudged(job) for name, job in picture.view.jobs.items()}
        return dataclasses.replace(picture.view, jobs=jobs)

    def states(self) -> dict[str, JobState]:
        """Return the states of all jobs, including jobs that have not started."""
        return {**self._engine.states(), **self.unstarted.now()}

    def status(self) -> Status:
        """Return the status of the service at this moment."""
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
        """Whether the control loop completes rounds and the engine answers; with `detailed`, the sentence may name jobs."""
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
        """Return the problems for a person to solve; a missing first round is a problem only once other readings would be stale."""
        health = self.health()
        waited_s = self._now_s() - self._started_s if health.round_age_s is None else health.round_age_s
        standing = self.trouble if health.healthy or waited_s <= self._stale_s else health.sentence
        picture = self._picture
        silence = silence_of(picture.view, self._now_s() - picture.taken_s) if picture is not None else ""
        return "; ".join(text for text in (self._engine.lost() or standing, silence, problem_of(jobs)) if text)

    def phase(self) -> str:
        """Return the phase of the scheduler; "stale" without a recent round. A single job can be stale in any phase."""
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
        """Utility as a share of the worth of the jobs: failed jobs count with utility 0, jobs not judged yet are left out."""
        got = {name: job.utility for name, job in view.jobs.items() if job.utility is not None}
        got |= {name: 0.0 for name, state in self.states().items() if state.phase in BROKEN}
        worth = sum(declared.worth for name, declared in self.declared.now().items() if name in got)
        return sum(got.values()) / worth if worth else None


def _standing(age_s: float, trouble: str) -> str:
    why = f" ({trouble})" if trouble else ""
    return f"no round has been completed for {show_seconds(age_s)}{why}; readings are stale"
