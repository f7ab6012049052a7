"""The scheduler's state, its decisions and verdicts, and the situation: state and newest measurements together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from headgate.config import Objective, Settings
from headgate.core.alerts import Alert
from headgate.core.fairness import fair_score, most_fair_score, weighted_satisfactions
from headgate.core.metrics import JobView, View
from headgate.core.model import Action, ActionKind, Allocation, JobAllocation, SearchPhase
from headgate.core.sizing import Lanes, catching_up, recovering, unmeasured
from headgate.health.examining import Finding, finding_of
from headgate.health.records import Diagnosis, Remedy, observed_job
from headgate.scheduler.quarantine import Quarantine
from headgate.scheduler.regulation import NO_ADVICE, PolicyAdvice, SwitchedOff
from headgate.scheduler.trials import SEARCH, Trials
from headgate.scheduler.undone import LaneHistory


@dataclass(frozen=True, slots=True)
class Skip:
    """A job that the scheduler set aside, because help gained too little, until a time or until its input changes.

    An expired skip is kept, so that the next skip of the same job lasts longer.
    """

    until_s: float
    arrival_rows_s: float
    """Input of the job when it was set aside, in rows per second."""
    times: int
    """Number of consecutive skips of the job."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change of a job that was not applied; the scheduler retries after `until_s`, or once the job's allocation changes."""

    until_s: float
    had: JobAllocation | None = None
    """The job's allocation at the refusal; None if unknown."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """An allocation of all jobs and its score."""

    score: float
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class State:
    """The scheduler's whole state; the journal stores the state, so that a restarted controller resumes from it."""

    phase: SearchPhase = SearchPhase.SEARCHING
    intents: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of each scheduled job's intent."""
    best: Configuration | None = None
    """The best configuration of this search, the target of a reversion; None at the start of a search."""
    reduced: bool = False
    """Whether this search has already taken idle lanes; a search does so once."""
    throttled: tuple[str, ...] = ()
    """Jobs throttled in this search."""
    trials: Trials = field(default_factory=Trials)
    """Actions whose effect is awaited, and the action log."""
    skipped: Mapping[str, Skip] = field(default_factory=dict)
    """Jobs that were set aside; expired skips remain until the job meets its intent or its input changes."""
    lanes: Mapping[str, Mapping[str, LaneHistory]] = field(default_factory=dict)
    """Lane counts that were tried and undone, by job and operator, and raised shares."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Jobs whose last change was not applied."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Jobs that cannot be judged: failing utility, no reading, or a silent host."""
    stable: int = 0
    """Number of consecutive rounds in which all jobs met their intents."""
    rest_score: float | None = None
    """Highest score in the Converged state, the reference for a drop; None while not converged."""
    blind: bool = False
    """Whether measurements are missing, or fewer than `outage_data_s` seconds of them followed an outage."""
    sighted_s: float | None = None
    """Time of the first measurements after an outage; None without a recent outage."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Number of reconfigurations of each job since the job last met its intent."""
    missed_since_s: Mapping[str, float] = field(default_factory=dict)
    """Time since which each job has missed its intent continuously."""
    shortfall: float = 0.0
    """Share of about the last hour in which jobs missed intents for lack of cores."""
    switched_off: Mapping[str, SwitchedOff] = field(default_factory=dict)
    """Policies that failed, with the time until which each is switched off."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measured effect of an action."""

    kind: ActionKind
    job: str | None
    total_before: float
    total_after: float
    utility_before: float | None
    utility_after: float | None
    text: str
    fell: bool = False
    """Whether the score is lower than before the action."""
    harmful: bool = False
    """Whether the action caused the loss."""
    blamed: tuple[str, ...] = ()
    """Jobs whose changes caused the loss and are still in effect."""
    plateaued: bool = False
    """Whether the helped job gained too little."""
    owner: str = SEARCH
    """The owner of the action."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a round: an action and its cause, or the cause for doing nothing."""

    rule: str
    cause: str
    action: Action | None = None
    verdicts: tuple[Verdict, ...] = ()
    """Effects of earlier actions that were judged in this round."""
    diagnoses: Mapping[str, tuple[Diagnosis, ...]] = field(default_factory=dict)
    """Diagnoses of this round, by job."""
    alerts: tuple[Alert, ...] = ()
    """New alerts for people."""


@dataclass(frozen=True)
class Situation:
    """State and measurements together, as the conditions and acts of the rules read them.

    Each property is computed once per round, because many rules read the same properties.
    """

    state: State
    view: View
    settings: Settings
    verdict: Verdict | None = None
    """Effect of the search's last action; None unless the action was judged in this round."""
    advice: PolicyAdvice = NO_ADVICE
    """Findings of the policies of self-regulating jobs; these jobs are not part of the view."""

    @cached_property
    def missing(self) -> list[JobView]:
        """Jobs that miss their intents, most urgent first."""
        return sorted((job for job in self.view.jobs.values() if job.met is False), key=self._urgency)

    def _urgency(self, job: JobView) -> tuple[float | str, ...]:
        utility = job.utility or 0.0
        if self.settings.objective == Objective.LOWEST:
            return (utility / job.worth, -job.worth, job.job.name)
        if self.settings.objective == Objective.FAIR:
            return (self._tenants[job.job.tenant], -job.job.weight, -job.worth, job.job.name)
        return (-job.worth, utility, job.job.name)

    @property
    def slots_short(self) -> bool:
        """Whether tasks spend much of their time waiting for slots."""
        return (self.view.slot_wait or 0.0) >= self.settings.slot_wait

    @cached_property
    def wanting(self) -> list[JobView]:
        """Jobs that miss their intents, are not set aside and do not recover by themselves."""
        return [job for job in self.missing if not self.skips(job.job.name) and not self._left_alone(job)]

    @cached_property
    def recovering_jobs(self) -> list[JobView]:
        """Jobs that miss their intents and recover by themselves or have no clear diagnosis yet: the search waits for these jobs."""
        return [job for job in self.missing if recovers_by_itself(job, self.settings) or self._is_unclear(job)]

    @cached_property
    def close_to_miss(self) -> list[JobView]:
        """Jobs whose latency meets the intent, but is close to missing it (beyond the paper)."""
        return [job for job in self._close if not self._is_unclear(job)]

    @cached_property
    def _close(self) -> list[JobView]:
        close = (job for job in self.view.jobs.values() if job.met and latency_ratio(job) > self.settings.close_to_miss)
        return [job for job in close if not self.skips(job.job.name) and not catching_up(job, self.settings)]

    @cached_property
    def remedies(self) -> Mapping[str, Remedy]:
        """The remedy for each job that needs help, where a diagnosis from per-lane measurements asks for a remedy."""
        names = (job.job.name for job in (*self.wanting, *self.close_to_miss))
        return {name: remedy for name in names if (remedy := self._findings[name].remedy) is not None}

    @cached_property
    def unclear(self) -> list[JobView]:
        """Jobs that miss their intents, and whose lanes have not differed for long enough to tell why."""
        return [job for job in self.missing if self._is_unclear(job)]

    @cached_property
    def _findings(self) -> Mapping[str, Finding]:
        observed_jobs = (observed_job(job, self.view, self.settings) for job in (*self.missing, *self._close))
        return {observed.name: finding_of(self.state.trials.log, observed) for observed in observed_jobs}

    def _is_unclear(self, job: JobView) -> bool:
        return self._findings[job.job.name].unclear

    def _left_alone(self, job: JobView) -> bool:
        """Whether the job gets no help, because it recovers, or because more lanes do not speed up recovery on a congested cluster."""
        return (
            recovers_by_itself(job, self.settings)
            or self._is_unclear(job)
            or (bool(self.view.congested) and recovering(job, self.settings.improvement))
        )

    def skips(self, name: str) -> bool:
        """Whether the job is set aside now, or its last change was refused."""
        skip = self.state.skipped.get(name)
        return (skip is not None and self.view.at_s < skip.until_s) or self.refuses(name)

    def refuses(self, name: str) -> bool:
        """Whether a recent change of the job was not applied, and the job's allocation is unchanged since."""
        refusal = self.state.refused.get(name)
        if refusal is None or self.view.at_s >= refusal.until_s:
            return False
        return refusal.had is None or refusal.had == self.view.jobs[name].allocation

    def bars(self, name: str, operator: str, lanes: int) -> bool:
        """Whether this lane count of an operator was undone recently."""
        history = self.state.lanes.get(name, {}).get(operator)
        return history is not None and history.bars(lanes)

    def permitted(self, job: JobView, wanted: Lanes) -> Lanes:
        """The wanted lanes; an operator whose wanted lane count was undone recently keeps its current lanes."""
        name, has = job.job.name, job.allocation.lanes
        return {one: has[one] if self.bars(name, one, lanes) else lanes for one, lanes in wanted.items()}

    @cached_property
    def score(self) -> float:
        """The value that the scheduler maximises: total utility, or the lowest satisfaction."""
        if self.settings.objective == Objective.LOWEST:
            return min((job.satisfaction or 0.0 for job in self.view.jobs.values()), default=1.0)
        return fair_score(self.view.jobs.values()) if self.settings.objective == Objective.FAIR else self.total

    @cached_property
    def _tenants(self) -> Mapping[str, float]:
        """Weighted satisfactions once the jobs that recover by themselves have recovered: their tenants were helped already."""
        jobs = self.view.jobs.values()
        return weighted_satisfactions(
            [
                dataclasses.replace(one, utility=one.worth) if recovers_by_itself(one, self.settings) else one
                for one in jobs
            ]
        )

    @cached_property
    def total(self) -> float:
        """Total utility of all jobs, whatever the objective."""
        return sum(job.utility or 0.0 for job in self.view.jobs.values())

    @cached_property
    def warming_up(self) -> list[JobView]:
        """Jobs with too few measurements to be judged; an idle job never blocks decisions about other jobs."""
        return [
            job
            for job in self.view.jobs.values()
            if job.is_new(self.settings.warm_up_s) or (job.utility is None and not job.utility_unknown)
        ]

    @cached_property
    def max_score(self) -> float:
        """The score when all jobs meet their intents."""
        if self.settings.objective == Objective.FAIR:
            return most_fair_score(self.view.jobs.values())
        return 1.0 if self.settings.objective == Objective.LOWEST else sum(job.worth for job in self.view.jobs.values())

    @property
    def allocation(self) -> Allocation:
        """Current allocation of every job."""
        return {name: job.allocation for name, job in self.view.jobs.items()}


def recovers_by_itself(job: JobView, settings: Settings) -> bool:
    """Whether the job's newest sub-window meets the intent, its backlog shrinks fast enough, or its work is not measured yet."""
    is_fine = job.recent is not None and job.recent >= job.worth
    return is_fine or catching_up(job, settings) or unmeasured(job, settings)


def latency_ratio(job: JobView) -> float:
    """Latency as a multiple of the latency intent, the lower of window and newest sub-window; 0 if unknown, above 1: missed."""
    threshold_s = job.job.intent.latency_s
    if threshold_s is None or job.latency_s is None or job.recent_latency_s is None:
        return 0.0
    return min(job.latency_s, job.recent_latency_s) / threshold_s


def fingerprints(view: View) -> dict[str, str]:
    """Fingerprint of each job's intent; a difference between two rounds means a changed workload."""
    return {name: job.job.intent.fingerprint() for name, job in view.jobs.items()}


def without_history(state: State) -> State:
    """The state at the start of a search, without the best configuration and the counters of the previous search."""
    return dataclasses.replace(
        state,
        phase=SearchPhase.SEARCHING,
        best=None,
        reduced=False,
        throttled=(),
        trials=state.trials.end(SEARCH),
        stable=0,
        rest_score=None,
    )
