"""State of the epoch model for each running job and the cluster, and quantities derived from that state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.core.epoch_cost import EpochCost
from headgate.core.model import EpochPart, EpochSpan, EpochTiming, Graph, OperatorReading
from headgate.sim import constants
from headgate.sim.spec import EpochCosts, HostSpec, OperatorSpec

KEPT_EPOCHS = 50
"""Finished epochs of each job whose timings are kept."""


@dataclass(slots=True)
class EpochLanes:
    """The lanes of one operator: where they run, how the rows are divided among them, and their counters."""

    hosts: tuple[str, ...]
    shares: list[float]
    """Share of the rows that each lane gets."""
    factors: list[float]
    """How much longer each lane takes for its rows than it would for an even share at full speed."""
    weights: list[float]
    """Share of the rows that each slice gets; empty without slices."""
    busy_s: list[float]
    rows: list[float]
    slice_rows: list[float]

    def add(self, rows: float, even_s: float) -> None:
        """Count an epoch of `rows` rows; `even_s` is the time of a lane with an even share."""
        for lane, (share, factor) in enumerate(zip(self.shares, self.factors, strict=True)):
            self.busy_s[lane] += even_s * factor
            self.rows[lane] += rows * share
        for number, weight in enumerate(self.weights):
            self.slice_rows[number] += rows * weight

    def mean_factor(self) -> float:
        """How much longer a lane takes than it would with an even share at full speed, on average."""
        return sum(self.factors) / len(self.factors)


@dataclass(slots=True)
class EpochJob:
    """A running job: its counters, its epoch in flight, and the time up to which its sources have been read."""

    graph: Graph
    specs: Mapping[str, OperatorSpec]
    processed: dict[str, dict[str, float]]
    sent: dict[str, dict[str, float]]
    lanes: dict[str, EpochLanes]
    arrived: dict[str, float]
    costs: EpochCosts
    read_to_s: float
    counted_to_s: float
    epochs: int = 0
    in_epochs_s: float = 0.0
    ended_s: float | None = None
    started_s: float = 0.0
    next_s: float = 0.0
    """When the next epoch is due, or is to start."""
    until_s: float = 0.0
    """When the newest row of the epoch in flight arrived."""
    most_rows: float = constants.FIRST_EPOCH_ROWS
    """Rows that the next epoch reads at most, of all sources together."""
    cost: EpochCost = field(default_factory=EpochCost)
    busy_cores: float = 0.0
    tasks: tuple[float, float] = (0.0, 0.0)
    """Tasks of the epoch in flight that run and that wait for a slot, on average."""
    hosts: frozenset[str] = frozenset()
    """The hosts of the lanes of the epoch in flight."""
    version: int = -1
    """The version of the allocation of the epoch in flight."""
    as_given: int = 0
    """Epochs finished with the current allocation."""
    busy_slots: float = 0.0
    pending: dict[str, float] = field(default_factory=dict)
    pending_kb: float = 0.0
    """Memory of the rows of the epoch in flight."""
    points: list[tuple[float, float]] = field(default_factory=list)
    fixed_s: float = 0.0
    """The part of the epoch in flight that does not depend on its rows."""
    finished: deque[EpochTiming] = field(default_factory=lambda: deque(maxlen=KEPT_EPOCHS))


@dataclass(frozen=True, slots=True)
class ClusterMeans:
    """The mean load, running tasks and waiting tasks of the cluster."""

    load: float
    running: float
    waiting: float


@dataclass(slots=True)
class ClusterSums:
    """Load, running tasks and waiting tasks of the cluster, each summed over time."""

    seconds: float = 0.0
    load: float = 0.0
    running: float = 0.0
    waiting: float = 0.0

    def add(self, seconds: float, load: float, running: float, waiting: float) -> None:
        self.seconds += seconds
        self.load += load * seconds
        self.running += running * seconds
        self.waiting += waiting * seconds

    def means(self) -> ClusterMeans:
        return ClusterMeans(self.load / self.seconds, self.running / self.seconds, self.waiting / self.seconds)


def timing(run: EpochJob) -> EpochTiming:
    """The epoch that has just finished; the model divides its time into a fixed part and the part of its stages."""
    assert run.ended_s is not None
    took_s = run.ended_s - run.started_s
    spans = (
        EpochSpan(EpochPart.PLAN, min(run.fixed_s, took_s)),
        EpochSpan(EpochPart.SINK, max(0.0, took_s - run.fixed_s)),
    )
    return EpochTiming(run.epochs - 1, run.started_s, sum(run.pending.values()), spans)


def slots_of(host: HostSpec) -> int:
    """Tasks that a host runs at once."""
    return host.slots or round(host.cores)


def crowding(share: int, wants: Iterable[tuple[int, float]], slots: float) -> float:
    """How much longer the tasks of a job with this share take, because jobs with these shares want so many slots.

    Slots are divided by share times wanted slots. What a job does not need goes to the others.

    >>> crowding(1, [(1, 4), (1, 4)], slots=4), crowding(3, [(3, 4), (1, 4)], slots=4), crowding(1, [(3, 4), (1, 4)], slots=4)
    (2.0, 1.3333333333333333, 4.0)
    >>> crowding(1, [(10, 1), (1, 3)], slots=2)
    3.0
    """
    left, wanted = slots, sorted(wants, reverse=True)
    while wanted:
        highest = wanted[0][0]
        weighted = sum(one * slots_wanted for one, slots_wanted in wanted)
        if highest * left < weighted:
            return max(1.0, weighted / (share * left))
        if highest <= share:
            return 1.0
        left -= sum(slots_wanted for one, slots_wanted in wanted if one == highest)
        wanted = [one for one in wanted if one[0] < highest]
    return 1.0


def operator_reading(run: EpochJob, name: str) -> OperatorReading:
    """The counters of an operator."""
    lanes = run.lanes.get(name)
    if lanes is None:
        return OperatorReading(dict(run.processed[name]), dict(run.sent[name]), ())
    return OperatorReading(
        dict(run.processed[name]),
        dict(run.sent[name]),
        tuple(lanes.busy_s),
        lane_rows=tuple(lanes.rows),
        hosts=lanes.hosts,
        slice_rows=tuple(lanes.slice_rows) if lanes.weights else None,
    )


def rows_per_operator(run: EpochJob, rows: Mapping[str, float]) -> dict[str, float]:
    """Return the rows that reach each operator when the sources read `rows`."""
    offered = {name: rows.get(name, 0.0) for name in run.graph.operators}
    for parent, children in run.graph.children.items():
        for child in children:
            offered[child] += offered[parent] * _rows_per_row(run, parent)
    return offered


def rows_per_edge(run: EpochJob, offered: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """(parent, child, rows) of an epoch."""
    return [
        (parent, child, offered[parent] * _rows_per_row(run, parent))
        for parent, children in run.graph.children.items()
        for child in children
    ]


def _rows_per_row(run: EpochJob, parent: str) -> float:
    spec = run.specs[parent]
    return spec.selectivity / (len(run.graph.children[parent]) if spec.split else 1)
