"""A scenario as frozen data: cluster, jobs, loads, events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.model import Graph, Job, JobAllocation, Operator
from headgate.hosts.provision import Terms
from headgate.loads import Load
from headgate.sim import constants


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """An operator's behaviour: what a row costs, how many rows it becomes, how many lanes it starts with."""

    name: str
    inputs: tuple[str, ...] = ()
    cost_s: float = 0.0
    """Core seconds per row."""
    wait_s: float = 0.0
    """Seconds per row in which a lane is occupied but no core is: a look-up, a remote call."""
    selectivity: float = 1.0
    """Rows sent per row processed."""
    split: bool = False
    """Rows are divided among the children; otherwise each child gets all of them."""
    lanes: int = 1
    """The initial number of lanes; 0 in the epoch model means fused: the operator runs in the tasks of its input, without a stage."""
    max_lanes: int | None = None
    weight: float = 1.0
    state_mb: float = 0.0
    """State that is restored after each reconfiguration."""
    retain_s: float = 0.0
    """How long rows stay in memory, as in a join."""
    row_kb: float = 1.0
    """Memory that a retained or waiting row takes."""
    slices: int = 0
    """The number of slices of the key space; 0 means that any lane takes any row."""
    zipf: float = 0.0
    """Exponent of the Zipf distribution of rows over slices: the n-th largest slice gets rows in proportion to n ** -zipf."""
    transit_s: float = 0.0
    """Seconds that a row travels to a lane and from the lane through a broker; only for leased hosts."""
    cores: float = 0.0
    """Cores reserved for a lane; only for leased hosts."""
    memory_mb: float = 0.0
    """Megabytes of memory reserved for a lane; only for leased hosts."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The load of a source that generates as many rows as its lanes can process; for the lane model."""

    def rate_rows_s(self, at_s: float) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class Jitter:
    """Noise on top of a job's load: each interval differs a little, and some intervals are outliers."""

    spread: float = 0.0
    """The largest deviation of the load of an interval, as a share of the pattern's load."""
    outliers_h: float = 0.0
    """The number of outlier intervals per hour."""
    outlier: float = 1.0
    """The load of an outlier interval is this multiple of the pattern's load, or zero."""


@dataclass(frozen=True, slots=True)
class EpochCosts:
    """The costs of an epoch besides its rows; costs measured on a cluster let the epoch model predict that cluster."""

    fixed_s: float = constants.EPOCH_FIXED_S
    fixed_cores_s: float = constants.EPOCH_FIXED_CORES_S
    task_cores_s: float = constants.TASK_CORES_S


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job of a scenario with its load, one per source."""

    name: str
    operators: tuple[OperatorSpec, ...]
    intent: Intent
    loads: Mapping[str, Load]
    tenant: str = "default"
    pace_s: float = 0.0
    jitter: Jitter = field(default_factory=Jitter)
    epoch_costs: EpochCosts | None = None
    """The costs of the job's epochs besides their rows, in the epoch model; None means the costs of the scenario."""
    share: int = 1
    """Weight of the job when slots are short, in the epoch model."""
    tenant_weight: float = 1.0

    def job(self) -> Job:
        """The job as the controller knows it."""
        operators = (Operator(o.name, o.inputs, o.weight, o.max_lanes) for o in self.operators)
        return Job(self.name, Graph.of(*operators), self.intent, self.tenant, self.tenant_weight)

    def allocation(self, paced: bool) -> JobAllocation:
        """Return the allocation that the job starts with."""
        return JobAllocation({o.name: o.lanes for o in self.operators if o.lanes}, self.pace_s if paced else None)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host of the cluster."""

    name: str
    cores: float
    memory_gb: float
    slots: int | None = None
    """Tasks that the host runs at once, in the epoch model; None means as many as the host has cores."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the cluster at a time; the engine has one method per kind."""

    at_s: float
    kind: str
    """add, remove, intent, lanes, fail-link, restore-link, fail-host, restore-host, cut-host, mend-host, slow-host, cpu-load,
    slow-lane, skew.
    """
    target: str = ""
    """A job or a host; empty for all hosts."""
    value: float = 0.0
    operator: str = ""
    lane: int = 0
    lanes: Mapping[str, int] = field(default_factory=dict)
    """Lanes that an operator sets by hand."""
    job: JobSpec | None = None
    intent: Intent | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole experiment."""

    name: str
    title: str
    figure: str
    engine: str
    duration_s: float
    control_after_s: float
    hosts: tuple[HostSpec, ...]
    jobs: tuple[JobSpec, ...]
    events: tuple[Event, ...] = ()
    policies: tuple[str, ...] = ("headgate", "static")
    settings: Settings = field(default_factory=Settings)
    paper: Mapping[str, str] = field(default_factory=dict)
    """Figures of the paper, by the name of each figure."""
    sweep: tuple[Variant, ...] = ()
    """Variants of this scenario that are run as well."""
    epoch_costs: EpochCosts = field(default_factory=EpochCosts)
    user_policies: Mapping[str, str] = field(default_factory=dict)
    """The import path of each policy of the user, by the name of the policy."""
    directory: str = ""
    """The directory that is searched first for import paths."""
    burst_s: float = 0.0
    """Seconds between two bursts of rows, for leased hosts; 0 means that rows arrive evenly."""
    terms: Terms | None = None
    """The hosts that can be leased, and their prices; None if hosts are not leased."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One point of a sweep."""

    label: str
    value: float | str
    scenario: Scenario
