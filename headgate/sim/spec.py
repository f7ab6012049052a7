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
    """0 in the epoch model: fused, it runs in the tasks of its input and has no stage of its own."""
    max_lanes: int | None = None
    weight: float = 1.0
    state_mb: float = 0.0
    """State that is restored after each reconfiguration."""
    retain_s: float = 0.0
    """How long rows stay in memory, as in a join."""
    row_kb: float = 1.0
    """Memory that a retained or waiting row takes."""
    slices: int = 0
    """Into how many slices its keys are cut; 0: any lane takes any row."""
    zipf: float = 0.0
    """How uneven the slices are: the n-th largest gets rows in proportion to n to the power of minus this."""
    transit_s: float = 0.0
    """Seconds per row on its way to a lane and from it, through a broker; only where hosts are leased."""
    cores: float = 0.0
    """Cores that are kept for a lane, where hosts are leased."""
    memory_mb: float = 0.0
    """Memory that is kept for a lane there."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A source that makes its rows itself, as many as its lanes can; for the lane model."""

    def rate_rows_s(self, at_s: float) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class Jitter:
    """Noise on top of a job's load, interval by interval, and single intervals far off."""

    spread: float = 0.0
    """The load of each interval is anywhere within this share of what it should be."""
    outliers_h: float = 0.0
    """Intervals per hour that are far off instead."""
    outlier: float = 1.0
    """The load of such an interval is this many times what it should be, or none at all."""


@dataclass(frozen=True, slots=True)
class EpochCosts:
    """What an epoch takes besides its rows; measured on a cluster, these let the epoch model predict it."""

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
    """What its epochs take besides their rows, in the epoch model; None: as those of the scenario."""
    share: int = 1
    """Weight of the job when slots are short, in the epoch model."""
    tenant_weight: float = 1.0

    def job(self) -> Job:
        """The job as the controller knows it."""
        operators = (Operator(o.name, o.inputs, o.weight, o.max_lanes) for o in self.operators)
        return Job(self.name, Graph.of(*operators), self.intent, self.tenant, self.tenant_weight)

    def allocation(self, paced: bool) -> JobAllocation:
        """What the job starts with."""
        return JobAllocation({o.name: o.lanes for o in self.operators if o.lanes}, self.pace_s if paced else None)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host of the cluster."""

    name: str
    cores: float
    memory_gb: float
    slots: int | None = None
    """Tasks it runs at once, in the epoch model; as many as it has cores if not given."""


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
    """What the paper reports, by the name of the figure it belongs beside."""
    sweep: tuple[Variant, ...] = ()
    """Variants of this scenario that are run as well."""
    epoch_costs: EpochCosts = field(default_factory=EpochCosts)
    user_policies: Mapping[str, str] = field(default_factory=dict)
    """By name, where each policy of the user's is to be found."""
    directory: str = ""
    """Where import paths are looked for first."""
    burst_s: float = 0.0
    """Rows come in bursts this far apart, where hosts are leased; 0: evenly."""
    terms: Terms | None = None
    """What can be leased, and what it costs, where hosts are."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One point of a sweep."""

    label: str
    value: float | str
    scenario: Scenario
