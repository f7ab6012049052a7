"""What the scheduler remembers, and how it sees it together with the newest measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from headgate.config import Settings
from headgate.core.metrics import JobView, View
from headgate.core.model import Action, ActionKind, Allocation, JobAllocation
from headgate.core.sizing import Lanes, catching_up, recovering, unmeasured
from headgate.health.care import Care, Finding, finding_of
from headgate.health.records import Diagnosis, LogEntry, Remedy, patient_of
from headgate.scheduler.quarantine import Quarantine
from headgate.scheduler.undone import LaneHistory


class SearchPhase(Enum):
    """Where the search for a better allocation stands."""

    SEARCHING = "not converged"
    CONVERGED = "converged"


@dataclass(frozen=True, slots=True)
class Trial:
    """An action whose effect is awaited, and how things stood before it."""

    kind: ActionKind
    job: str | None
    touched: tuple[str, ...]
    at_s: float
    score: float
    total: float
    """Utility of all jobs, whatever the objective."""
    utilities: Mapping[str, float]
    latency_ratio: float = 0.0
    """How close the job's latency was to its threshold."""
    arrival_rows_s: float = 0.0
    """The job's input."""
    output_rows_s: float = 0.0
    """What it got done."""
    settled_s: float | None = None
    tried: LogEntry | None = None
    """For the action log, if a diagnosis asked for it."""
    had: Allocation = field(default_factory=dict)
    """What the touched jobs had before it."""
    follows_harm_of: tuple[str, ...] = ()
    """Jobs whose changes did harm and still stand, because a reduction is to make up for them."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A job that more lanes did not help, set aside for a while, or until its input changes.

    It is kept beyond its time, so that a job which is set aside again and again is tried less and less often.
    """

    until_s: float
    arrival_rows_s: float
    times: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change of a job that was not carried out; it is not asked for again until then, unless the job's allocation changes."""

    until_s: float
    had: JobAllocation | None = None
    """What the job had; None: not known."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """An allocation and what it was worth."""

    score: float
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class State:
    """All that the scheduler remembers; the journal keeps it, so that a restart goes on from here."""

    phase: SearchPhase = SearchPhase.SEARCHING
    intents: Mapping[str, str] = field(default_factory=dict)
    """The jobs it knows and the fingerprint of each one's intent."""
    best: Configuration | None = None
    """The best configuration of the history, where a reversion goes."""
    reduced: bool = False
    throttled: tuple[str, ...] = ()
    """Hopeless jobs that were made smaller for the others' sake, in this search."""
    trial: Trial | None = None
    skipped: Mapping[str, Skip] = field(default_factory=dict)
    lanes: Mapping[str, Mapping[str, LaneHistory]] = field(default_factory=dict)
    """By job and operator, the lane counts that were tried and undone."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Jobs whose last change was not carried out."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Jobs that cannot be judged because their utility fails."""
    stable: int = 0
    """Rounds in a row in which all intents held."""
    rest_score: float | None = None
    """The score that the Converged state is held against."""
    blind: bool = False
    sighted_s: float | None = None
    """Since when measurements come in again after an outage."""
    since_s: Mapping[str, float] = field(default_factory=dict)
    """From when on each job is measured: a window never reaches back beyond a change."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Reconfigurations of each job since it last met its intent."""
    missed_since_s: Mapping[str, float] = field(default_factory=dict)
    """Since when each job has missed its intent without a break."""
    shortfall: float = 0.0
    """Share of about the last hour in which intents were missed for want of cores."""
    care: Care = field(default_factory=Care)
    """Jobs that regulate themselves, and the action log, which remembers remedies of all jobs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an action was found to have done."""

    kind: ActionKind
    job: str | None
    total_before: float
    total_after: float
    utility_before: float | None
    utility_after: float | None
    text: str
    fell: bool = False
    """The score is lower than before."""
    harmful: bool = False
    """And the action is to blame for it."""
    blamed: tuple[str, ...] = ()
    """Jobs whose changes did harm and still stand."""
    plateaued: bool = False
    """The job gained too little."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now and why; without an action, why not."""

    rule: str
    cause: str
    action: Action | None = None
    verdict: Verdict | None = None
    diagnoses: Mapping[str, tuple[Diagnosis, ...]] = field(default_factory=dict)
    """What was found to be wrong in this round, by job."""
    alerts: tuple[str, ...] = ()
    """What a person should know now."""


@dataclass(frozen=True)
class Situation:
    """A state seen together with the measurements; conditions and acts of the table read it.

    Many rules ask the same questions, so each answer is worked out once.
    """

    state: State
    view: View
    settings: Settings
    verdict: Verdict | None = None

    @cached_property
    def missing(self) -> list[JobView]:
        """Jobs that miss their intents, in the order in which they get help."""
        return sorted((job for job in self.view.jobs.values() if job.met is False), key=self._urgency)

    def _urgency(self, job: JobView) -> tuple[float, float, str]:
        utility = job.utility or 0.0
        if self.settings.objective == "lowest":
            return (utility / job.worth, -job.worth, job.job.name)
        return (-job.worth, utility, job.job.name)

    @cached_property
    def wanting(self) -> list[JobView]:
        """Jobs that miss their intents, have not been set aside and do not mend by themselves."""
        return [job for job in self.missing if not self.skips(job.job.name) and not self._left_alone(job)]

    @cached_property
    def recovering_jobs(self) -> list[JobView]:
        """Jobs that miss their intents, but not for long any more: the search waits for them."""
        return [job for job in self.missing if recovers_by_itself(job, self.settings) or self._is_unclear(job)]

    @cached_property
    def close_to_miss(self) -> list[JobView]:
        """Jobs that meet their intents by so little that the next fluctuation breaks them (beyond the paper)."""
        return [job for job in self._close if not self._is_unclear(job)]

    @cached_property
    def _close(self) -> list[JobView]:
        close = (job for job in self.view.jobs.values() if job.met and latency_ratio(job) > self.settings.brink)
        return [job for job in close if not self.skips(job.job.name) and not catching_up(job, self.settings)]

    @cached_property
    def remedies(self) -> Mapping[str, Remedy]:
        """What the diagnosis of each job that wants help asks for, where its lanes were measured one by one."""
        names = (job.job.name for job in (*self.wanting, *self.close_to_miss))
        return {name: remedy for name in names if (remedy := self._findings[name].remedy) is not None}

    @cached_property
    def unclear(self) -> list[JobView]:
        """Jobs that miss their intents, and whose lanes differ, but not for long enough to say why."""
        return [job for job in self.missing if self._is_unclear(job)]

    @cached_property
    def _findings(self) -> Mapping[str, Finding]:
        log, at = self.state.care.log, (self.view.hosts, self.view.at_s, self.settings)
        return {job.job.name: finding_of(log, patient_of(job, *at)) for job in (*self.missing, *self._close)}

    def _is_unclear(self, job: JobView) -> bool:
        return self._findings[job.job.name].unclear

    def _left_alone(self, job: JobView) -> bool:
        """Whether the job gets no help with its backlog: more lanes do not speed it up while cores are short."""
        return (
            recovers_by_itself(job, self.settings)
            or self._is_unclear(job)
            or (bool(self.view.congested) and recovering(job, self.settings.improvement))
        )

    def skips(self, name: str) -> bool:
        """Whether the job is set aside now."""
        skip = self.state.skipped.get(name)
        return (skip is not None and self.view.at_s < skip.until_s) or self.refuses(name)

    def refuses(self, name: str) -> bool:
        """Whether a change of the job was not carried out lately, and nothing has changed since."""
        refusal = self.state.refused.get(name)
        if refusal is None or self.view.at_s >= refusal.until_s:
            return False
        return refusal.had is None or refusal.had == self.view.jobs[name].allocation

    def bars(self, name: str, operator: str, lanes: int) -> bool:
        """Whether so many lanes of an operator were undone lately."""
        history = self.state.lanes.get(name, {}).get(operator)
        return history is not None and history.bars(lanes)

    def permitted(self, job: JobView, wanted: Lanes) -> Lanes:
        """The wanted lanes, but for operators whose wanted count was undone lately: these keep what they have."""
        name, has = job.job.name, job.allocation.lanes
        return {one: has[one] if self.bars(name, one, lanes) else lanes for one, lanes in wanted.items()}

    @cached_property
    def score(self) -> float:
        """What is to be maximised."""
        if self.settings.objective == "lowest":
            return min((job.satisfaction or 0.0 for job in self.view.jobs.values()), default=1.0)
        return self.total

    @cached_property
    def total(self) -> float:
        """Utility of all jobs, whatever the objective."""
        return sum(job.utility or 0.0 for job in self.view.jobs.values())

    @cached_property
    def warming_up(self) -> list[JobView]:
        """Jobs that cannot be judged yet, for want of measurements; an idle job blocks no decision about others."""
        return [
            job
            for job in self.view.jobs.values()
            if job.is_new(self.settings.warm_up_s) or (job.utility is None and not job.idle)
        ]

    @cached_property
    def max_score(self) -> float:
        """The score when all intents are met."""
        return 1.0 if self.settings.objective == "lowest" else sum(job.worth for job in self.view.jobs.values())

    @property
    def allocation(self) -> Allocation:
        """What every job has now."""
        return {name: job.allocation for name, job in self.view.jobs.items()}


def recovers_by_itself(job: JobView, settings: Settings) -> bool:
    """Whether help would come too early: the newest sub-window is fine, the backlog is on its way down, or nothing is measured."""
    is_fine = job.recent is not None and job.recent >= job.worth
    return is_fine or catching_up(job, settings) or unmeasured(job, settings)


def latency_ratio(job: JobView) -> float:
    """How close the job's latency is to its threshold, over the window and still now; above 1 it is beyond."""
    threshold_s = job.job.intent.latency_s
    if threshold_s is None or job.latency_s is None or job.recent_latency_s is None:
        return 0.0
    return min(job.latency_s, job.recent_latency_s) / threshold_s


def fingerprints(view: View) -> dict[str, str]:
    """The intent of each job, by which a change of the workload is noticed."""
    return {name: job.job.intent.fingerprint() for name, job in view.jobs.items()}


def without_history(state: State) -> State:
    """The state at the start of a search: what was learnt before no longer applies."""
    return dataclasses.replace(
        state,
        phase=SearchPhase.SEARCHING,
        best=None,
        reduced=False,
        throttled=(),
        trial=None,
        stable=0,
        rest_score=None,
    )
