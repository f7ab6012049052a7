"""What the controller and the service need from the world: an engine, a clock, a journal, a pool of hosts.

Each port has one implementation that touches the world and one that does not, and one contract test suite for both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from headgate.core.hosts import Host, HostType
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.model import Action, Allocation, Job, JobAllocation, Outcome, Snapshot

if TYPE_CHECKING:
    from headgate.topology import Topology


class Engine(Protocol):
    """Something that runs jobs: Spark, or the simulator."""

    def jobs(self) -> Mapping[str, Job]:
        """The jobs that run now, with their intents."""

    def observe(self) -> Snapshot:
        """Read every counter once."""

    def apply(self, action: Action) -> Outcome:
        """Set the allocations that the action names; applying the same one twice changes nothing.

        What it cannot do it refuses in a sentence, and changes nothing: something else is then tried.
        """


class JobPhase(Enum):
    """Where a job stands in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    """It failed and is started again after a while."""
    FAILED = "failed"
    """It failed too often; only a person starts it again."""
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job in whatever phase it is, and why."""

    phase: JobPhase
    reason: str = ""
    """What went wrong, in a sentence; empty if nothing did."""
    share: int = 1
    """Weight of the job among the others when slots are short."""
    read_limit: int | None = None
    """Rows that an epoch reads at most; None: as the settings say."""
    since_s: float = 0.0


class Occupants(Protocol):
    """Who runs on hosts, and can be asked to leave one."""

    def vacate(self, host: str) -> None:
        """Lanes and state leave this host, by its address, while jobs go on."""

    def occupy(self, host: str) -> None:
        """There may be lanes and state on it again."""

    def is_vacant(self, host: str) -> bool:
        """Whether no job needs what is on this host any more."""


class Jobs(Engine, Occupants, Protocol):
    """An engine whose jobs come and go while it runs; a name that it does not know is an `InputError`.

    `jobs` and `observe` cover the jobs that run, `states` all of them. Every method may be called from any thread.
    """

    def submit(self, topology: Topology, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        """Start a job, from its checkpoint if it has one; without an allocation, with that of its topology."""

    def remove(self, name: str, keep: bool = False) -> None:
        """Finish the epoch in flight, stop, and forget the job; its checkpoint and state are deleted unless `keep`."""

    def pause(self, name: str) -> None:
        """Finish the epoch in flight and stop; the checkpoint stays."""

    def resume(self, name: str) -> None:
        """Go on after a pause, or start a failed job again."""

    def set_intent(self, name: str, intent: Intent) -> None:
        """From the next round on."""

    def set_share(self, name: str, share: int) -> None:
        """From the next epoch on."""

    def set_read_limit(self, name: str, rows: int | None) -> None:
        """From the next epoch on; None: as the settings say."""

    def states(self) -> Mapping[str, JobState]:
        """All jobs, whatever became of them."""

    def lost(self) -> str:
        """Why the engine as a whole can run nothing any more, in a sentence; empty while it answers."""

    def close(self) -> None:
        """Finish the epochs in flight, stop everything."""


class HostPool(Protocol):
    """Where hosts come from and go to: a cloud, the processes of one machine, or the simulator.

    Hosts are named by who leases them, so that a lease or a release that is asked for twice happens once.
    """

    def lease(self, name: str, kind: HostType) -> None:
        """Begin to start a host; it is among `hosts` from now on, and paid for."""

    def release(self, name: str) -> None:
        """Begin to let a host go: it takes no more lanes, and is gone from `hosts` once it is no longer paid for."""

    def hosts(self) -> Mapping[str, Host]:
        """All that are paid for, in the order of their leases, whatever became of them."""


class Clock(Protocol):
    """Time as the controller sees it."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""

    def sleep_until(self, at_s: float) -> None:
        """Return when it is `at_s`."""


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """Latency of the rows put out in a window."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


@lru_cache(maxsize=1024)  # the journal and the status ask for the same ones in every round
def latency_record(latency: Latency | None) -> LatencyRecord | None:
    """What is kept of a latency."""
    return None if latency is None else LatencyRecord(latency.mean_s, *latency.percentiles_s(50, 95, 99))


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job in one round, as it was measured, before the action of that round."""

    utility: float | None
    worth: float
    latency_s: float | None = None
    juice: float | None = None
    arrival_rows_s: float | None = None
    backlog: float | None = None
    """Rows that wait."""
    lanes: Mapping[str, int] = field(default_factory=dict)
    pace_s: float | None = None
    intent: str = ""
    """The intent in a few signs, such as `2 s · 0.95`."""
    latency_intent_s: float | None = None
    """What `latency_s` is measured against; None if the intent names no latency."""
    juice_intent: float | None = None
    met: bool | None = None
    """Whether the intent was met."""
    latency: LatencyRecord | None = None
    """None where nothing was put out in the window, and in journals of earlier versions."""

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
    """Why the scheduler acted, or why it waited."""
    advice: tuple[str, ...] = ()
    """What a person may want to know or do; a sentence about a job names the job."""


@dataclass(frozen=True, slots=True)
class Effect:
    """How an action was judged once its measurements had settled; of a host, what became of it."""

    at_s: float
    score_before: float | None
    """None where the total utility at the time of the action is not known any more."""
    score_after: float | None
    utility_before: float | None
    """Utility of the job that the action was for; None if it concerned the cluster."""
    utility_after: float | None
    verdict: str
    """What followed: "kept", "skipped for 1 h", "reverted", "ready after 21 s"."""


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action, when it was intended, and as much as is known of what came of it."""

    id: int
    at_s: float
    action: Action
    outcome: Outcome | None = None
    """None: the controller does not know (yet) whether it took place."""
    effect: Effect | None = None

    @property
    def applied(self) -> bool:
        """Whether the engine confirmed it."""
        return self.outcome is not None and self.outcome.applied

    def touches(self, job: str) -> bool:
        """Whether it is for this job or changes it; for the name of a host, whether it leases or releases the host."""
        return job in (self.action.job, self.action.host) or job in self.action.changes


@dataclass(frozen=True, slots=True)
class Restored:
    """Everything that a restarted controller needs to go on."""

    at_s: float
    """When the last round was."""
    state: bytes
    """The scheduler's state as of the last round."""
    snapshots: tuple[Snapshot, ...]
    """The newest ones, in order of time."""
    unfinished: tuple[RecordedAction, ...]
    """Actions about jobs without an outcome: they took place or they did not."""
    actions: tuple[RecordedAction, ...]
    """All actions about jobs that were applied, in order."""
    allocation: Allocation
    """What these amount to, on top of what each job had when it was first seen."""


class Journal(Protocol):
    """The durable record of the control loop."""

    def record(
        self, summary: RoundRecord, snapshot: Snapshot, state: bytes, action: Action | None = None
    ) -> int | None:
        """Write a round, all or nothing, before its action is carried out; returns the id of the action."""

    def intend(self, at_s: float, action: Action) -> int:
        """Write an action about a host, which belongs to no round, before it is carried out; returns its id."""

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        """Write what became of an action; the last word counts."""

    def effect(self, action_id: int, effect: Effect) -> None:
        """Write how an action was judged; the last word counts."""

    def restore(self) -> Restored | None:
        """Where the last controller stopped; None if there was none."""

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Actions in order: all, or those that touch a job or a host; `since_s` is included."""

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Rounds in order: all, or those in which a job ran, with that job alone; `since_s` is included."""

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """At most so many rounds, evenly spread over those since this time and with the newest; with these jobs alone, if given."""

    def purge(self, before_s: float, actions_before_s: float = -math.inf) -> int:
        """Delete rounds before this time, and actions before that one whose outcome is known; returns how many rounds went.

        What the actions amount to stays: an allocation does not change by this.
        """

    def set_about(self, key: str, value: str) -> None:
        """Note something about the whole run, such as its scenario or its seed."""

    def about(self) -> dict[str, str]:
        """Everything noted so."""

    def close(self) -> None:
        """Give back the file."""
