"""The status of a service as frozen data, the same for the API, the command line and scripts.

The status of a job has the fields of a round in the journal (`ports.JobRecord`), and fields that only a running service knows.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.core.intents import Intent
from headgate.core.metrics import JobView, View
from headgate.core.model import Action, HostReading, Outcome
from headgate.core.quantities import show_seconds
from headgate.hosts.landlord import Landlord
from headgate.hosts.leases import Bill
from headgate.hosts.records import HostNote
from headgate.ports import JobPhase, JobState, LatencyRecord, latency_record
from headgate.screen import intents_met
from headgate.server.tenants import Quota


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job in any state; fields are None where nothing is measured."""

    state: str
    reason: str
    since_s: float
    tenant: str
    intent: str
    worth: float
    share: int
    read_limit: int | None = None
    latency_intent_s: float | None = None
    juice_intent: float | None = None
    met: bool | None = None
    utility: float | None = None
    latency_s: float | None = None
    """The latency that the intent limits: the mean, or the percentile of the intent."""
    latency: LatencyRecord | None = None
    juice: float | None = None
    arrival_rows_s: float | None = None
    backlog: float | None = None
    lag_unknown: bool = False
    """The job was measured, but a source does not say how many rows wait: `juice` and `backlog` are null."""
    epochs: int | None = None
    lanes: dict[str, int] = field(default_factory=dict)
    pace_s: float | None = None
    raised_share: int | None = None
    """Weight that the scheduler gave the job in place of the declared one; None: the declared weight applies."""
    age_s: float | None = None
    """Age of the job's last reading in seconds; None if the job does not run or was never read."""
    stale: bool = False
    """Whether the last reading is too old to judge the job; `met` and `utility` are then None."""


@dataclass(frozen=True, slots=True)
class ActionStatus:
    """A decided action, its cause, and whether the engine applied the action."""

    at_s: float
    job: str | None
    kind: str
    what: str
    cause: str
    applied: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A host that is leased."""

    name: str
    kind: str
    phase: str
    reason: str
    address: str
    paid_s: float
    """Remaining seconds that are already paid for."""


@dataclass(frozen=True, slots=True)
class LeasesStatus:
    """The leased hosts, the bill of all leases, and the latest events of hosts."""

    hosts: tuple[LeaseStatus, ...]
    bill: Bill
    spending_per_hour: float
    notes: tuple[HostNote, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that jobs use, with the fields of a `Quota`."""

    jobs: int = 0
    lanes: int = 0
    share: int = 0
    memory_mb: float = 0.0
    state_mb: float = 0.0
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """A tenant: the usage, utility and cost of its jobs, and its quotas."""

    usage: Usage
    quota: Quota
    weight: float
    utility: float
    satisfaction: float | None
    """Utility as a share of the worth of its jobs that are judged; None if none is."""
    cost: float
    """The tenant's part of the bill for leased hosts."""
    jobs_met: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a service at one moment."""

    at_s: float | None
    """Time of the last round; None before the first round."""
    phase: str
    policy: str
    score: float
    max_score: float
    satisfaction: float | None
    decision: str
    jobs: dict[str, JobStatus]
    actions: tuple[ActionStatus, ...]
    hosts: tuple[HostReading, ...]
    advice: tuple[str, ...]
    leases: LeasesStatus | None = None
    """Leased hosts and their bill; None if the service leases no hosts."""
    headline: str = ""
    """Sentence on how many jobs meet their intents, and on the states of the other jobs."""
    problem: str = ""
    """Sentence on problems for a person to solve: jobs that do not run, stale readings, a control loop that stands still."""
    tenants: dict[str, TenantStatus] = field(default_factory=dict)
    """Usage, utility and cost of the jobs of each tenant."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the control loop completes rounds and the engine answers, and if not, why."""

    healthy: bool
    sentence: str
    round_age_s: float | None
    """Seconds since the last completed round; None before the first round."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The result of a round for other threads. The control loop publishes one picture per round; pictures are never modified."""

    view: View
    phase: str
    decision: str
    advice: tuple[str, ...]
    taken_s: float
    read_s: Mapping[str, float]
    """Time of the last reading of each job."""


@dataclass(frozen=True, slots=True)
class DeclaredJob:
    """The declarations of a job: its tenant, its intent, and its lanes."""

    tenant: str
    intent: Intent | None
    """The intent of the job; None if the job could not be loaded or started."""
    lanes: int = 0
    """Number of lanes with which the job starts, of all operators together."""

    @property
    def worth(self) -> float:
        """Return the worth of the job's intent; 0 if the intent is not known."""
        return self.intent.worth if self.intent is not None else 0.0


def job_status(
    state: JobState, declared: DeclaredJob, view: JobView | None, age_s: float | None, stale_s: float
) -> JobStatus:
    """Return the status of a job, with measurements if there is a view, and with a verdict if the reading is not stale."""
    intent = declared.intent
    status = JobStatus(
        state=state.phase.value,
        reason=state.reason,
        since_s=state.since_s,
        tenant=declared.tenant,
        intent=intent.describe() if intent is not None else "",
        worth=declared.worth,
        share=state.raised_share or state.share,
        raised_share=state.raised_share,
        read_limit=state.read_limit,
        latency_intent_s=intent.latency_s if intent is not None else None,
        juice_intent=intent.juice if intent is not None else None,
    )
    if view is None:
        return status
    stale = age_s is not None and age_s > stale_s
    return dataclasses.replace(_measured(status, unjudged(view) if stale else view), age_s=age_s, stale=stale)


def unjudged(job: JobView) -> JobView:
    """Return the view without a verdict, for a job with a reading too old to judge the job."""
    return dataclasses.replace(job, met=None, utility=None)


def jobs_headline(jobs: Mapping[str, JobStatus]) -> str:
    """Return the state of the jobs in a few words: "1 of 2 jobs meet their intents, 1 failed"."""
    wanted = [job for job in jobs.values() if job.state != JobPhase.PAUSED.value]
    states = Counter(job.state for job in jobs.values() if job.state != JobPhase.RUNNING.value)
    states["stale"] = sum(job.stale for job in jobs.values())
    judged = [job.met for job in jobs.values() if job.state == JobPhase.RUNNING.value and not job.stale]
    return intents_met(judged, len(wanted), states)


def problem_of(jobs: Mapping[str, JobStatus]) -> str:
    """Return which jobs are failed, retrying or stale, in a sentence; empty without such jobs."""
    broken = [
        f"{name} is {'stale' if job.stale else job.state}"
        for name, job in jobs.items()
        if job.stale or job.state in (JobPhase.FAILED.value, JobPhase.RETRYING.value)
    ]
    return ", ".join(broken)


def _measured(status: JobStatus, view: JobView) -> JobStatus:
    reading = view.span.last.reading if view.span is not None else None
    return dataclasses.replace(
        status,
        met=view.met,
        utility=view.utility,
        latency_s=view.latency_s,
        latency=latency_record(view.span.latency) if view.span is not None else None,
        juice=view.juice,
        arrival_rows_s=view.span.arrival_rows_s() if view.span is not None else None,
        backlog=reading.backlog if reading is not None else None,
        lag_unknown=view.lag_unknown,
        epochs=reading.epochs if reading is not None else None,
        lanes=dict(view.allocation.lanes),
        pace_s=view.allocation.pace_s,
    )


def action_status(at_s: float, action: Action, outcome: Outcome | None) -> ActionStatus:
    """Return an action with its outcome."""
    applied, detail = (outcome.applied, outcome.detail) if outcome is not None else (False, "")
    return ActionStatus(at_s, action.job, action.kind.value, action.what, action.cause.text, applied, detail)


def silence_of(view: View | None, age_s: float) -> str:
    """Which hosts are silent, and for how long, in a sentence; empty if none is. The view is `age_s` old."""
    silent = view.suspects.values() if view is not None else ()
    return "; ".join(
        f"host {host.name} has been silent for {show_seconds((host.silent_s or 0.0) + age_s)}: its jobs are not judged"
        for host in silent
    )


def leases_of(landlord: Landlord, at_s: float) -> LeasesStatus:
    """Return the leased hosts and their bill at this moment."""
    held = tuple(
        LeaseStatus(host.name, host.kind.name, host.phase.value, host.reason, host.address, host.remaining_s(at_s))
        for host in landlord.hosts().values()
    )
    return LeasesStatus(held, landlord.bill(at_s), landlord.spending_per_hour(at_s), landlord.notes)


@dataclass(slots=True)
class Tally:
    """Counters over the rounds since the start of the service."""

    rounds: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    """Number of rounds in which a job could be judged, by job."""
    met: Counter[str] = field(default_factory=Counter)
    """Number of rounds in which a job met its intent, by job."""
    actions: Counter[str] = field(default_factory=Counter)
    """Number of applied actions, by kind."""
    failed_rounds: int = 0
    """Number of rounds that were not completed; `rounds` counts the completed rounds."""
    seconds: float = 0.0
    """Seconds that all rounds took together, including failed rounds."""
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failures by job, including failures after which the job is started again."""
    hosts_lost: int = 0
    """Number of hosts that left without a decision to release them."""
    _satisfaction: float = 0.0
    _satisfaction_rounds: int = 0

    def add(self, view: View, satisfaction: float | None, action: Action | None, outcome: Outcome | None) -> None:
        """Count a completed round."""
        self.rounds += 1
        if satisfaction is not None:
            self._satisfaction += satisfaction
            self._satisfaction_rounds += 1
        for name, job in view.jobs.items():
            self.judged[name] += job.met is not None
            self.met[name] += job.met is True
        if action is not None and outcome is not None and outcome.applied:
            self.actions[action.kind.value] += 1

    @property
    def satisfaction(self) -> float | None:
        """Return the mean satisfaction over the rounds with a known satisfaction; None without such rounds."""
        return self._satisfaction / self._satisfaction_rounds if self._satisfaction_rounds else None


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a run that has ended."""

    seconds: float
    rounds: int
    satisfaction: float | None
    """Mean satisfaction over the rounds with a known satisfaction; None without such rounds."""
    met: dict[str, float]
    """Share of the judged rounds in which a job met its intent, by job; jobs that were never judged are left out."""
    actions: dict[str, int]
    """Number of applied actions, by kind."""
    status: Status


def summary(seconds: float, tally: Tally, status: Status) -> Summary:
    """Summarize the rounds of a run."""
    met = {name: tally.met[name] / rounds for name, rounds in tally.judged.items() if rounds}
    return Summary(seconds, tally.rounds, tally.satisfaction, met, dict(tally.actions), status)
