"""Interfaces of the controller and the service to the world: engine, clock, journal, pool of hosts.

Each port has one implementation that touches the world and one that does not, and one contract test suite for both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from headgate.core.alerts import Alert
from headgate.core.hosts import Host, HostType
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.model import Action, Allocation, EpochTiming, Job, JobAllocation, Outcome, Snapshot

if TYPE_CHECKING:
    from headgate.topology import Topology


class Engine(Protocol):
    """Runs jobs: Spark, or the simulator."""

    def jobs(self) -> Mapping[str, Job]:
        """The jobs that run now, with their intents."""

    def observe(self) -> Snapshot:
        """Read every counter once."""

    def apply(self, action: Action) -> Outcome:
        """Set the allocations that the action names; applying the same action twice changes nothing.

        If the engine cannot apply the action, the engine changes nothing, and the outcome gives the reason in a sentence.
        """


class JobPhase(Enum):
    """Phase of a job."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    """The job failed and is restarted after a wait."""
    FAILED = "failed"
    """The job failed too often; only a person can restart it."""
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class JobState:
    """Phase of a job, with its reason."""

    phase: JobPhase
    reason: str = ""
    """The reason of the phase in one sentence; empty without a problem."""
    share: int = 1
    """Declared weight of the job among the others when slots are short."""
    read_limit: int | None = None
    """Maximum number of rows per epoch; None: the limit of the settings applies."""
    since_s: float = 0.0
    trace: str = ""
    """The shortened stack trace of the error; empty without one."""
    raised_share: int | None = None
    """Weight that the scheduler gave the job in place of the declared one; None: the declared weight applies."""
    epoch: int | None = field(default=None, compare=False)
    """Number of the failed epoch, else of the epoch in flight, else of the next epoch; None if unknown. Comparisons ignore the number: a
    job that reaches another epoch has not changed its state."""


class Occupants(Protocol):
    """Lanes and state on hosts, which can be moved off a host."""

    def vacate(self, host: str) -> None:
        """Move lanes and state off the host with this address, while jobs run."""

    def occupy(self, host: str) -> None:
        """Allow lanes and state on the host again."""

    def is_vacant(self, host: str) -> bool:
        """Whether no job needs the lanes or state on this host any more."""


class Jobs(Engine, Occupants, Protocol):
    """An engine whose jobs are added and removed while it runs; an unknown name is an `InputError`.

    `jobs` and `observe` cover running jobs, `states` covers all jobs. Every method may be called from any thread.
    """

    def submit(self, topology: Topology, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        """Start a job, from its checkpoint if the job has one; without an allocation, use the allocation of the topology."""

    def remove(self, name: str, keep: bool = False) -> None:
        """Finish the epoch in flight, stop, and forget the job; its checkpoint and state are deleted unless `keep`."""

    def pause(self, name: str) -> None:
        """Finish the epoch in flight and stop; the checkpoint stays."""

    def resume(self, name: str) -> None:
        """Continue a paused job, or restart a failed job."""

    def set_intent(self, name: str, intent: Intent) -> None:
        """Set the intent of a job, from the next round on."""

    def set_share(self, name: str, share: int) -> None:
        """Set the share of a job, from the next epoch on."""

    def set_read_limit(self, name: str, rows: int | None) -> None:
        """Set the read limit of a job, from the next epoch on; None: the limit of the settings applies."""

    def states(self) -> Mapping[str, JobState]:
        """All jobs, in every phase."""

    def hot_keys(self, name: str) -> Mapping[str, Mapping[str, float]]:
        """The most frequent keys of each keyed operator, each with a lower bound on its share of the rows."""

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        """The last finished epochs of a job, oldest first; empty if the engine has no epochs."""

    def lost(self) -> str:
        """The reason for which the engine was lost, in one sentence; empty while the engine answers."""

    def close(self) -> None:
        """Finish the epochs in flight, and stop all jobs."""


class HostPool(Protocol):
    """Leases and releases hosts: a cloud, the processes of one machine, or the simulator.

    The caller names the hosts, so that a repeated lease or release of a host has no further effect.
    """

    def lease(self, name: str, kind: HostType) -> None:
        """Start a host; from now on the host is in `hosts`, and paid for."""

    def release(self, name: str) -> None:
        """Release a host: the host takes no more lanes, and leaves `hosts` when it is no longer paid for."""

    def hosts(self) -> Mapping[str, Host]:
        """All hosts that are paid for, in the order of their leases, in every phase."""


class Clock(Protocol):
    """The clock of the controller."""

    def now_s(self) -> float:
        """Seconds since a fixed moment."""

    def sleep_until(self, at_s: float) -> None:
        """Wait until `at_s`."""


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """Latency of the rows that reached the sinks in a window, in seconds."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


@lru_cache(maxsize=1024)  # the journal and the status convert the same latencies in every round
def latency_record(latency: Latency | None) -> LatencyRecord | None:
    """The latency as a record of the journal; None without a latency."""
    return None if latency is None else LatencyRecord(latency.mean_s, *latency.percentiles_s(50, 95, 99))


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Measurements of one job in one round, before the action of the round."""

    utility: float | None
    worth: float
    latency_s: float | None = None
    juice: float | None = None
    arrival_rows_s: float | None = None
    backlog: float | None = None
    """Number of rows that wait."""
    lanes: Mapping[str, int] = field(default_factory=dict)
    pace_s: float | None = None
    raised_share: int | None = None
    """Weight that the scheduler gave the job in place of the declared one; None: the declared weight applied."""
    intent: str = ""
    """The intent in short form, such as `2 s · 0.95`."""
    latency_intent_s: float | None = None
    """The latency that the intent asks for; None if the intent names no latency."""
    juice_intent: float | None = None
    met: bool | None = None
    """Whether the intent was met."""
    latency: LatencyRecord | None = None
    """Latency of the rows that reached the sinks; None without output in the window, and in journals of earlier versions."""

    @property
    def lag_unknown(self) -> bool:
        """Whether the job was measured and its sources did not say how many rows waited."""
        return self.arrival_rows_s is not None and self.juice is None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round in summary."""

    at_s: float
    phase: str
    score: float
    """Total utility of all jobs."""
    max_score: float
    jobs: Mapping[str, JobRecord]
    decision: str = ""
    """The cause of the action, or of waiting."""
    advice: tuple[Alert, ...] = ()
    """The current alerts."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The measured effect of an action after it settled; for a host, the result of the lease or release."""

    at_s: float
    score_before: float | None
    """Total utility before the action; None if no longer known."""
    score_after: float | None
    utility_before: float | None
    """Utility of the job that the action was for; None if the action concerned the cluster."""
    utility_after: float | None
    verdict: str
    """The verdict: "kept", "skipped for 1 h", "reverted", "ready after 21 s"."""


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action with the time of its decision, its outcome and its effect."""

    id: int
    at_s: float
    action: Action
    outcome: Outcome | None = None
    """None: the controller does not know yet whether the action took place."""
    effect: Effect | None = None

    @property
    def applied(self) -> bool:
        """Whether the engine confirmed the action."""
        return self.outcome is not None and self.outcome.applied

    def touches(self, job: str) -> bool:
        """Whether the action is for this job or changes it; for the name of a host, whether the action leases or releases the host."""
        return job in (self.action.job, self.action.host) or job in self.action.changes


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that a restarted controller continues from."""

    at_s: float
    """Time of the last round."""
    state: bytes
    """The scheduler's state as of the last round."""
    snapshots: tuple[Snapshot, ...]
    """The newest snapshots, in order of time, for predictions."""
    unfinished: tuple[RecordedAction, ...]
    """Actions about jobs without an outcome: the controller applies them again."""
    actions: tuple[RecordedAction, ...]
    """All actions about jobs that were applied, in order."""
    allocation: Allocation
    """The allocations that result from these actions, on top of the first allocation of each job."""


class Past(Protocol):
    """Read access to the record of the control loop."""

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Actions in order, from `since_s` on: all actions, or the actions that touch a job or host."""

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Rounds in order, from `since_s` on: all rounds, or the rounds of one job, without the other jobs."""

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """At most `most` rounds, evenly spread over all rounds since `since_s`, the newest included; with only `jobs`, if given."""

    def about(self) -> dict[str, str]:
        """Everything noted about the whole run."""


class Journal(Past, Protocol):
    """The durable record of the control loop."""

    def record(
        self, summary: RoundRecord, snapshot: Snapshot, state: bytes, action: Action | None = None
    ) -> int | None:
        """Write a round, all or nothing, before its action is carried out; return the id of the action."""

    def intend(self, at_s: float, action: Action) -> int:
        """Write an action of the landlord, which belongs to no round, before the action is carried out; return its id."""

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        """Write the outcome of an action; the last outcome counts."""

    def effect(self, action_id: int, effect: Effect) -> None:
        """Write the effect of an action; the last effect counts."""

    def restore(self) -> Restored | None:
        """The state of the last controller; None in an empty journal."""

    def purge(self, before_s: float, actions_before_s: float = -math.inf) -> int:
        """Delete rounds before `before_s`, and actions with an outcome before `actions_before_s`; return the number of deleted rounds.

        The deletion changes no allocation that `restore` returns.
        """

    def set_about(self, key: str, value: str) -> None:
        """Note something about the whole run, such as its scenario or its seed."""

    def close(self) -> None:
        """Close the journal."""
