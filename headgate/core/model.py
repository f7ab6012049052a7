"""The words of Headgate as data: jobs, allocations, readings, actions.

Everything here is frozen. `None` means "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from graphlib import CycleError, TopologicalSorter

from headgate.core.hosts import HostType
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.quantities import did_you_mean
from headgate.errors import GraphError

OUTSIDE = "*"
"""The parent of a source: rows that arrive from outside the job."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A named node of a job; without inputs it is a source, without children a sink."""

    name: str
    inputs: tuple[str, ...] = ()
    weight: float = 1.0
    """How much this operator counts in the juice, if it is a sink."""
    max_lanes: int | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """The operators of a job, in topological order, and what follows from their inputs.

    >>> Graph.of(Operator("words"), Operator("count", ("words",))).sinks
    ('count',)
    """

    operators: Mapping[str, Operator]
    children: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, *operators: Operator) -> Graph:
        """Build and check a graph; a mistake names its operator."""
        by_name = _by_name(operators)
        ordered = {name: by_name[name] for name in _order(by_name)}
        children: dict[str, list[str]] = {name: [] for name in ordered}
        for operator in ordered.values():
            for parent in operator.inputs:
                children[parent].append(operator.name)
        return cls(
            operators=ordered,
            children={name: tuple(below) for name, below in children.items()},
            sources=tuple(o.name for o in ordered.values() if not o.inputs),
            sinks=tuple(name for name, below in children.items() if not below),
        )


def _by_name(operators: tuple[Operator, ...]) -> dict[str, Operator]:
    if not operators:
        raise GraphError("a job needs at least one operator")
    by_name: dict[str, Operator] = {}
    for operator in operators:
        if operator.name in by_name:
            raise GraphError(f'there are two operators named "{operator.name}"; names must differ')
        by_name[operator.name] = operator
    for operator in operators:
        _check_inputs(operator, by_name)
    return by_name


def _check_inputs(operator: Operator, by_name: Mapping[str, Operator]) -> None:
    for parent in operator.inputs:
        if parent not in by_name:
            hint = did_you_mean(parent, by_name)
            raise GraphError(f'operator "{operator.name}" reads from "{parent}", which does not exist.{hint}')
    if not operator.weight > 0:
        raise GraphError(f'operator "{operator.name}" has weight {operator.weight!r}; it must be above 0')
    if len(set(operator.inputs)) < len(operator.inputs):
        raise GraphError(f'operator "{operator.name}" names the same input twice')


def _order(by_name: Mapping[str, Operator]) -> tuple[str, ...]:
    sorter = TopologicalSorter({name: by_name[name].inputs for name in by_name})
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        cycle = " -> ".join(f'"{name}"' for name in error.args[1])
        raise GraphError(f"operators form a cycle: {cycle}; a job must not have one") from None


@dataclass(frozen=True, slots=True)
class Job:
    """A graph of operators with an intent, owned by a tenant."""

    name: str
    graph: Graph
    intent: Intent
    tenant: str = "default"


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """What a job has: lanes per operator, and the time between two epoch starts."""

    lanes: Mapping[str, int]
    pace_s: float | None = None
    """Seconds between epoch starts; 0 is back to back; None where the engine has no epochs."""
    slices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By operator, the lane of each of its slices; an operator that is not named has them spread evenly."""
    avoided: tuple[str, ...] = ()
    """Hosts that its lanes keep off, as long as there are others; the newest last."""
    read_limit: int | None = None
    """Rows that an epoch reads at most from a source, once that was raised; None: as a person has set it."""

    def with_lanes(self, lanes: Mapping[str, int]) -> JobAllocation:
        """The same with other lanes; slices of an operator whose lanes change are spread evenly again.

        >>> JobAllocation({"count": 2}, slices={"count": (0, 1, 1)}).with_lanes({"count": 3}).slices
        {}
        """
        kept = {name: places for name, places in self.slices.items() if lanes.get(name) == self.lanes.get(name)}
        return replace(self, lanes=lanes, slices=kept)


def spread_evenly(slices: int, lanes: int) -> tuple[int, ...]:
    """The lane of each slice when nothing is known of their loads.

    >>> spread_evenly(5, 2)
    (0, 1, 0, 1, 0)
    """
    return tuple(number % lanes for number in range(slices))


Allocation = Mapping[str, JobAllocation]


@dataclass(frozen=True, slots=True)
class OperatorReading:
    """Counters of one operator since its job started; they only grow, so a lost reading costs nothing."""

    processed: Mapping[str, float]
    """Rows processed, by the parent they came from (`OUTSIDE` for a source)."""
    sent: Mapping[str, float]
    """Rows sent, by child."""
    busy_s: tuple[float, ...]
    """Seconds spent processing, per lane."""
    lane_rows: tuple[float, ...] | None = None
    """Rows processed, per lane; None where it is not known, or before the first row."""
    queued: tuple[float, ...] | None = None
    """Rows that wait in front of each lane now; None where rows do not wait in front of lanes."""
    held_s: tuple[float, ...] | None = None
    """Seconds for which each lane held back the input of the job; None where lanes never do."""
    hosts: tuple[str, ...] | None = None
    """Where each lane runs."""
    slice_rows: tuple[float, ...] | None = None
    """Rows processed, per slice; None for an operator without slices, or before the first row."""
    slice_lanes: tuple[int, ...] | None = None
    """The lane of each slice now, where the engine has spread them itself; None where it is as the allocation says."""


@dataclass(frozen=True, slots=True)
class JobReading:
    """Everything an engine knows of one job at one moment."""

    version: int
    """Grows each time another allocation takes effect."""
    operators: Mapping[str, OperatorReading]
    arrived: Mapping[str, float]
    """Rows that reached each source since the job started (counter); of a source that cannot tell, those it has put out."""
    backlog: float | None
    """Rows that arrived or were sent and have not been processed; a row that got lost on the way stays among them. None if a
    source cannot tell how many rows have arrived."""
    latency: Latency | None
    """Latency of the rows put out since the reading before; None if there were none."""
    in_epochs_s: float | None = None
    """Seconds spent inside epochs (counter); None where the engine has no epochs."""
    epochs: int | None = None
    """Epochs finished (counter)."""
    epoch_age_s: float | None = None
    """Seconds since the last epoch ended; None without epochs, or before the first."""
    epochs_as_given: int | None = None
    """Epochs finished with the allocation that the job has now; None where the engine has no epochs."""
    held_s: float | None = None
    """Seconds for which its input was held back by any lane (counter); None where lanes never do."""
    read_limit: int | None = None
    """Rows that an epoch reads at most from each source; None where there is no such limit."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """One host: what it has, and what runs or wants to run on it; all figures are means since the reading before."""

    name: str
    cores: float
    load: float | None
    """Threads that run or want to run; of a machine that cannot be read, the tasks that run or wait for a slot."""
    memory_used: float | None = None
    """Share of memory in use, 0..1."""
    slots: float | None = None
    """Tasks that it runs at once; None where the engine has no tasks."""
    running: float | None = None
    """Tasks that run."""
    waiting: float | None = None
    """Tasks that are ready and have no slot: the share of this host in those of the cluster, by slots."""
    pressure: float | None = None
    """Share of the time in which a process waited for a core (PSI), 0..1; None where it cannot be read."""
    silent_s: float | None = None
    """Seconds since its last heartbeat; None where the engine has no heartbeats."""
    suspect: bool = False
    """It has been silent for too long: nothing is known of what runs on it."""
    used: float | None = None
    """Cores that the processes of the engine itself used; None where only the load is known."""

    @property
    def demand(self) -> float | None:
        """Tasks that run or wait for a slot."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting

    @property
    def congested(self) -> bool | None:
        """A host is congested when more wants to run than it has cores (Henge, section 5.2), or slots; a silent one says nothing."""
        pairs = ((self.load, self.cores), (self.demand, self.slots))
        known = [wanted > most for wanted, most in pairs if wanted is not None and most is not None]
        return any(known) if known and not self.suspect else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an engine observed at one moment; a job that runs but could not be read is None."""

    at_s: float
    jobs: Mapping[str, JobReading | None]
    allocation: Allocation
    hosts: tuple[HostReading, ...]


class ActionKind(Enum):
    """What may be done: to jobs by the scheduler, to hosts by the landlord."""

    RECONFIGURE = "reconfigure"
    """Give resources to a job that misses its intent."""
    REDUCE = "reduce"
    """Take idle lanes from jobs that meet theirs."""
    THROTTLE = "throttle"
    """Make a hopeless job smaller for the others' sake."""
    REVERT = "revert"
    """Go back to the best configuration in history."""
    RELAX = "relax"
    """Let jobs with time to spare start their epochs less often."""
    LEASE = "lease"
    """Lease a host."""
    RELEASE = "release"
    """Give a host back."""


HOST_KINDS = frozenset({ActionKind.LEASE, ActionKind.RELEASE})
"""Actions that change no allocation, but the hosts that jobs run on."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why: a sentence for people, the figures behind it for machines."""

    text: str
    facts: Mapping[str, float | str] = field(default_factory=dict)
    because: tuple[Cause, ...] = ()
    """What it follows from, in turn: a diagnosis from symptoms, a symptom from measurements."""


@dataclass(frozen=True, slots=True)
class Action:
    """New allocations for some jobs, or a host that comes or goes, and why."""

    kind: ActionKind
    job: str | None
    """The job it is for; None when it concerns the cluster."""
    changes: Allocation
    cause: Cause
    what: str = ""
    """What changes, in a few signs: `look-up 2 → 5 lanes`."""
    remedy: str = ""
    """Which resolver of the health pipeline proposed it; empty if none did."""
    host: str = ""
    """The host that is leased or released; empty for an action about jobs."""
    host_type: HostType | None = None
    """What is leased under that name; None unless the action is a lease."""

    @property
    def concerns_host(self) -> bool:
        """Whether a host comes or goes by it."""
        return self.kind in HOST_KINDS

    @property
    def sentence(self) -> str:
        """What is done and why."""
        return f"{self.what}: {self.cause.text}" if self.what else self.cause.text


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action."""

    applied: bool
    detail: str = ""
