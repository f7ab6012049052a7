"""Frozen data types of Headgate: jobs, allocations, readings, actions.

`None` means "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from graphlib import CycleError, TopologicalSorter

from headgate.core.hosts import HostType
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.quantities import did_you_mean
from headgate.errors import GraphError

OUTSIDE = "*"
"""Name of a source's parent, for rows that arrive from outside the job."""
MOST_SHARE = 10
"""Highest share that a job can have."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A named node of a job; an operator without inputs is a source, an operator without children is a sink."""

    name: str
    inputs: tuple[str, ...] = ()
    weight: float = 1.0
    """Weight of a sink in the juice of the job."""
    max_lanes: int | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """The operators of a job in topological order, with children, sources and sinks derived from their inputs.

    >>> Graph.of(Operator("words"), Operator("count", ("words",))).sinks
    ('count',)
    """

    operators: Mapping[str, Operator]
    children: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, *operators: Operator) -> Graph:
        """Build and check a graph; every error names its operator."""
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
    weight: float = 1.0
    """Weight of its tenant under the objective `fair`."""


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """Resources of a job: lanes per operator, time between epoch starts, slice placement, avoided hosts, read limit, share."""

    lanes: Mapping[str, int]
    pace_s: float | None = None
    """Seconds between epoch starts; 0 starts epochs back to back; None: the engine has no epochs."""
    slices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Lane of each slice, by operator; the slices of an operator without an entry are spread evenly."""
    avoided: tuple[str, ...] = ()
    """Hosts that the job's lanes avoid while other hosts are available, newest last."""
    read_limit: int | None = None
    """Most rows that an epoch reads from a source, once Headgate raised the limit; None: the user's own limit applies."""
    share: int | None = None
    """Weight of the job when slots are short, once Headgate raised the weight; None: the declared share applies."""

    def with_lanes(self, lanes: Mapping[str, int]) -> JobAllocation:
        """The allocation with other lanes; the slices of an operator whose lane count changes are spread evenly again.

        >>> JobAllocation({"count": 2}, slices={"count": (0, 1, 1)}).with_lanes({"count": 3}).slices
        {}
        """
        kept = {name: places for name, places in self.slices.items() if lanes.get(name) == self.lanes.get(name)}
        return replace(self, lanes=lanes, slices=kept)


def spread_evenly(slices: int, lanes: int) -> tuple[int, ...]:
    """The lane of each slice while the loads of the slices are unknown.

    >>> spread_evenly(5, 2)
    (0, 1, 0, 1, 0)
    """
    return tuple(number % lanes for number in range(slices))


Allocation = Mapping[str, JobAllocation]


@dataclass(frozen=True, slots=True)
class OperatorReading:
    """Counters of one operator since its job started; counters only grow, so a lost reading does no harm."""

    processed: Mapping[str, float]
    """Rows processed, by parent (`OUTSIDE` for a source)."""
    sent: Mapping[str, float]
    """Rows sent, by child."""
    busy_s: tuple[float, ...]
    """Seconds that each lane spent processing."""
    lane_rows: tuple[float, ...] | None = None
    """Rows processed per lane; None if unknown, or before the first row."""
    queued: tuple[float, ...] | None = None
    """Rows now queued in front of each lane; None if the engine has no queues per lane."""
    held_s: tuple[float, ...] | None = None
    """Seconds for which each lane held back the input of the job; None if the engine has no such backpressure."""
    hosts: tuple[str, ...] | None = None
    """Host name of each lane; None if unknown."""
    slice_rows: tuple[float, ...] | None = None
    """Rows processed per slice; None for an operator without slices, or before the first row."""
    slice_lanes: tuple[int, ...] | None = None
    """Current lane of each slice, if the engine has placed the slices itself; None: the allocation holds the placement."""


@dataclass(frozen=True, slots=True)
class JobReading:
    """One reading of a job by its engine."""

    version: int
    """Number that grows each time a new allocation takes effect."""
    operators: Mapping[str, OperatorReading]
    arrived: Mapping[str, float]
    """Rows that reached each source since the job started (counter); rows emitted, for a source that cannot report arrivals."""
    backlog: float | None
    """Rows that arrived or were sent and are not yet processed, lost rows included; None if a source cannot report arrivals."""
    latency: Latency | None
    """Latency of the rows emitted since the previous reading; None if the job emitted no rows."""
    in_epochs_s: float | None = None
    """Seconds spent inside epochs (counter); None: the engine has no epochs."""
    epochs: int | None = None
    """Finished epochs (counter); None: the engine has no epochs."""
    epoch_age_s: float | None = None
    """Seconds since the last epoch ended; None without epochs, or before the end of the first epoch."""
    epochs_as_given: int | None = None
    """Epochs finished under the current allocation; None: the engine has no epochs."""
    held_s: float | None = None
    """Seconds for which any lane held back the input of the job (counter); None if the engine has no such backpressure."""
    read_limit: int | None = None
    """Most rows that an epoch reads from each source; None: no limit."""
    share: int | None = None
    """Weight of the job among the others when slots are short; None: the engine has no shares."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """Size and load of one host; all figures are means since the previous reading."""

    name: str
    cores: float
    load: float | None
    """Threads that run or are ready to run; if the load of the machine is unreadable, tasks that run or wait for a slot."""
    memory_used: float | None = None
    """Share of memory in use, 0..1: of the machine, or of the heap or the Python memory of an executor there, whichever is largest."""
    slots: float | None = None
    """Most tasks that the host runs at once; None: the engine has no tasks."""
    running: float | None = None
    """Running tasks; None if unknown."""
    waiting: float | None = None
    """Ready tasks without a slot: the host's share, by slots, of the cluster's waiting tasks; None if unknown."""
    pressure: float | None = None
    """Share of the time in which a process waited for a core (PSI), 0..1; None if unreadable."""
    silent_s: float | None = None
    """Seconds since the host's last heartbeat; None: the engine has no heartbeats."""
    suspect: bool = False
    """Whether the last heartbeat is too old, so that the state of the host's lanes is unknown."""
    used: float | None = None
    """Cores that the engine's own processes used; None if only the load is known."""
    heap_mb: float | None = None
    """Heap in use in the executors of the host, mostly without garbage; None before the first collection of garbage there."""
    python_mb: float | None = None
    """Memory of the Python processes of the executors of the host; None before the first collection of garbage there."""

    @property
    def demand(self) -> float | None:
        """Tasks that run or wait for a slot; None if unknown."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting

    @property
    def congested(self) -> bool | None:
        """Whether load exceeds cores (Henge, section 5.2) or demand exceeds slots; None if unknown or if the host is suspect."""
        pairs = ((self.load, self.cores), (self.demand, self.slots))
        exceeds = [wanted > most for wanted, most in pairs if wanted is not None and most is not None]
        return any(exceeds) if exceeds and not self.suspect else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation of all jobs and hosts by an engine; None stands for a running job without a reading."""

    at_s: float
    jobs: Mapping[str, JobReading | None]
    allocation: Allocation
    hosts: tuple[HostReading, ...]


class ActionKind(Enum):
    """Kinds of actions: on jobs by the scheduler, on hosts by the landlord."""

    RECONFIGURE = "reconfigure"
    """Give lanes, a shorter pace or a new placement to a job that misses its intent."""
    REDUCE = "reduce"
    """Take idle lanes from jobs that meet their intents."""
    THROTTLE = "throttle"
    """Take lanes from a job with hopelessly low utility, to free cores for other jobs."""
    REVERT = "revert"
    """Return to the best configuration in history."""
    RELAX = "relax"
    """Lengthen the pace of jobs that meet their latency intents with a margin, or return raised shares to the declared shares."""
    LEASE = "lease"
    """Lease a host."""
    RELEASE = "release"
    """Release a leased host."""


HOST_KINDS = frozenset({ActionKind.LEASE, ActionKind.RELEASE})
"""Actions that change the hosts of the cluster, not an allocation."""


class SearchPhase(StrEnum):
    """Phase of the search for a better allocation."""

    SEARCHING = "not converged"
    CONVERGED = "converged"


@dataclass(frozen=True, slots=True)
class Cause:
    """The reason for an action: a sentence for people, and its figures for machines."""

    text: str
    facts: Mapping[str, float | str] = field(default_factory=dict)
    because: tuple[Cause, ...] = ()
    """Underlying causes: the symptoms behind a diagnosis, the measurements behind a symptom."""


@dataclass(frozen=True, slots=True)
class Action:
    """New allocations for some jobs, or a lease or release of a host, with the cause."""

    kind: ActionKind
    job: str | None
    """The job that the action helps or throttles; None for an action on several jobs or on a host."""
    changes: Allocation
    cause: Cause
    what: str = ""
    """The change in short form: `look-up 2 → 5 lanes`."""
    remedy: str = ""
    """The resolver of the health pipeline that proposed the action; empty for other actions."""
    host: str = ""
    """The host that the action leases or releases; empty for an action on jobs."""
    host_type: HostType | None = None
    """Type of the leased host; None unless the action is a lease."""
    owner: str = ""
    """Who awaits the effect: the self-regulating job whose policy asked for the action; empty for all other actions."""

    @property
    def concerns_host(self) -> bool:
        """Whether the action leases or releases a host."""
        return self.kind in HOST_KINDS

    @property
    def sentence(self) -> str:
        """The change and its cause in one sentence."""
        return f"{self.what}: {self.cause.text}" if self.what else self.cause.text


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the engine applied an action, and why not."""

    applied: bool
    detail: str = ""
    observed: bool = False
    """Whether the controller only observed, so that the engine neither applied nor refused the action."""


# -- epochs ------------------------------------------------------------------------------------------------------------


class EpochPart(Enum):
    """Parts of an epoch, in order of execution."""

    READ = "read"
    """Spark asks the sources for new rows, and plans which rows the epoch reads."""
    LOG = "log"
    """Spark and Headgate log which rows the epoch reads."""
    PLAN = "plan"
    """Headgate builds the plan of the epoch."""
    FAILED = "failed"
    """Attempts that failed or were cancelled, such as on a host that fell silent."""
    SINK = "sink"
    """The engine writes one sink, and runs all operators upstream of the sink that no earlier sink needed."""
    STATE = "state"
    """Headgate commits the keyed state."""
    COUNT = "count"
    """Headgate reads and sums row counts and arrival times."""
    WAIT = "wait"
    """The job waits for its pace."""
    COMMIT = "commit"
    """Spark logs the end of the epoch."""


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """Duration of one part of an epoch, in seconds."""

    part: EpochPart
    took_s: float
    operator: str = ""
    """Name of the sink that the part writes; empty for other parts."""


@dataclass(frozen=True, slots=True)
class EpochTiming:
    """A finished epoch and its parts, one after another; parts that the engine does not know are missing."""

    number: int
    started_s: float
    rows: float
    """Rows read from all sources."""
    spans: tuple[EpochSpan, ...]

    @property
    def took_s(self) -> float:
        """Duration of all parts together, in seconds."""
        return sum(span.took_s for span in self.spans)

    def seconds_of(self, part: EpochPart) -> float:
        """Summed duration of all spans of this part, in seconds."""
        return sum(span.took_s for span in self.spans if span.part is part)
