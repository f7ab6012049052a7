"""The status of a service as frozen data, the same for the API, the command line and scripts.

A job has all that a round of the journal says of it (`ports.JobRecord`), and what only a running service knows.
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
    """One job in any state; None where nothing is measured."""

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
    """As the intent asks for it."""
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
    """Age of the reading that all this was measured on; None if the job was never read."""
    stale: bool = False
    """Whether that reading is too old to judge the job by; `met` and `utility` are then not declared."""


@dataclass(frozen=True, slots=True)
class ActionStatus:
    """Something that was decided, why, and whether it was done."""

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
    """Time that is paid for and still to come."""


@dataclass(frozen=True, slots=True)
class LeasesStatus:
    """Hosts that are leased, what all of them have cost, and what happened lately."""

    hosts: tuple[LeaseStatus, ...]
    bill: Bill
    spending_per_hour: float
    notes: tuple[HostNote, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """What jobs take; the same limits as a quota has."""

    jobs: int = 0
    lanes: int = 0
    share: int = 0
    memory_mb: float = 0.0
    state_mb: float = 0.0
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """A tenant: what its jobs take and earn, what they cost, and its limits."""

    usage: Usage
    quota: Quota
    weight: float
    utility: float
    satisfaction: float | None
    """Utility as a share of the worth of its jobs that are judged; None if none is."""
    cost: float
    """Its part of the bill for leased hosts."""
    jobs_met: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """Everything at one moment."""

    at_s: float | None
    """When the last round was; None before the first."""
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
    """None if no hosts are leased: Spark is embedded, or another operator's cluster."""
    headline: str = ""
    """How many jobs meet their intents, and what became of the others."""
    problem: str = ""
    """What a person should look at, in a sentence: jobs that do not run, stale readings, a loop that stands still."""
    tenants: dict[str, TenantStatus] = field(default_factory=dict)
    """What the jobs of each tenant take, earn and cost."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the loop turns and the engine answers, and if not, why."""

    healthy: bool
    sentence: str
    round_age_s: float | None
    """Time since the last round that was completed; None before the first."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What a round left for others to look at. The loop publishes one per round; it is replaced, never changed."""

    view: View
    phase: str
    decision: str
    advice: tuple[str, ...]
    taken_s: float
    read_s: Mapping[str, float]
    """When each job was last read."""


@dataclass(frozen=True, slots=True)
class DeclaredJob:
    """What a job declares: who it belongs to, and what it should achieve."""

    tenant: str
    intent: Intent | None
    """None if its file could not be loaded."""
    lanes: int = 0
    """Lanes that it starts with, of all operators together."""

    @property
    def worth(self) -> float:
        """What it is worth when its intent is met; nothing as long as that is not declared."""
        return self.intent.worth if self.intent is not None else 0.0


def job_status(
    state: JobState, declared: DeclaredJob, view: JobView | None, age_s: float | None, stale_s: float
) -> JobStatus:
    """A job in its state; measured if it runs, and judged if its reading is not older than `stale_s`."""
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
    """The job without a verdict: what was measured of it does not say how it is now."""
    return dataclasses.replace(job, met=None, utility=None)


def jobs_headline(jobs: Mapping[str, JobStatus]) -> str:
    """How the jobs are doing in a few words: "1 of 2 jobs meet their intents, 1 failed"."""
    wanted = [job for job in jobs.values() if job.state != JobPhase.PAUSED.value]
    states = Counter(job.state for job in jobs.values() if job.state != JobPhase.RUNNING.value)
    states["stale"] = sum(job.stale for job in jobs.values())
    judged = [job.met for job in jobs.values() if job.state == JobPhase.RUNNING.value and not job.stale]
    return intents_met(judged, len(wanted), states)


def problem_of(jobs: Mapping[str, JobStatus]) -> str:
    """Which jobs need a person, in a sentence; empty if none does."""
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
    """An action and what became of it."""
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
    """What is leased at this moment."""
    held = tuple(
        LeaseStatus(host.name, host.kind.name, host.phase.value, host.reason, host.address, host.remaining_s(at_s))
        for host in landlord.hosts().values()
    )
    return LeasesStatus(held, landlord.bill(at_s), landlord.spending_per_hour(at_s), landlord.notes)


@dataclass(slots=True)
class Tally:
    """What the rounds since the start amount to."""

    rounds: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    """Rounds by job in which it could be judged."""
    met: Counter[str] = field(default_factory=Counter)
    """Those in which its intent was met."""
    actions: Counter[str] = field(default_factory=Counter)
    """Actions that were applied, by kind."""
    failed_rounds: int = 0
    """Rounds that were not completed; `rounds` are those that were."""
    seconds: float = 0.0
    """Time that all rounds took together, failed ones too."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failures by job, also those after which it is started again."""
    hosts_lost: int = 0
    """Hosts that left although no release was decided."""
    _satisfaction: float = 0.0
    _satisfaction_rounds: int = 0

    def add(self, view: View, satisfaction: float | None, action: Action | None, outcome: Outcome | None) -> None:
        """One more round."""
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
        """Mean over the rounds in which it was declared."""
        return self._satisfaction / self._satisfaction_rounds if self._satisfaction_rounds else None


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a run, when it ends."""

    seconds: float
    rounds: int
    satisfaction: float | None
    """Mean over the rounds."""
    met: dict[str, float]
    """Share of the rounds, by job, in which its intent was met; without jobs that could never be judged."""
    actions: dict[str, int]
    """How many were applied, by kind."""
    status: Status


def summary(seconds: float, tally: Tally, status: Status) -> Summary:
    """The rounds of a run in a few figures."""
    met = {name: tally.met[name] / rounds for name, rounds in tally.judged.items() if rounds}
    return Summary(seconds, tally.rounds, tally.satisfaction, met, dict(tally.actions), status)
