"""The plan of epochs, built from the topology and the current allocation of the job: a reconfiguration changes the allocation alone.

A plan that depends on nothing but the rows of its epoch is built once and used for many epochs (see `carrying`).

The plan has exchanges only for operators with lanes of their own. Rows that several operators read are persisted for the epoch, so that
nothing is computed twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.core.model import Graph, JobAllocation
from headgate.errors import EngineError
from headgate.spark.epochs.lanes import BatchLane, EventLane
from headgate.spark.epochs.places import ONE_HOST, AvailableHosts
from headgate.spark.keyed.operator import KeyedStates
from headgate.spark.measuring.metering import SCANNED, Gateway, OperatorPlan
from headgate.spark.plans import LogicalPlan
from headgate.spark.reasons import reason_of
from headgate.state.hosting import Wanted
from headgate.topology import Kind, Node, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TAG = "_source"
"""Column with the name of a row's source, in a stream of several sources."""

DRY = -1
"""Number of the epoch that is built only to look at its plan."""

Stage = tuple[tuple[str, int], ...]
"""The operators that own the tasks of a stage, in order, each with its number of tasks."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The output rows of an operator, and the stages that compute the rows: those before the last exchange, and the one after."""

    rows: DataFrame
    before: tuple[Stage, ...]
    stage: Stage
    certain: bool = True
    """Whether the partitions of the rows are those of the stage; an exchange in a user's function may have changed them."""

    @property
    def partitions(self) -> int | None:
        """The number of partitions; None if only Spark's planner can tell."""
        return sum(count for _, count in self.stage) if self.certain else None


@dataclass(frozen=True, slots=True)
class PlanShape:
    """Properties of every epoch's plan, derived from a plan without rows."""

    narrow: frozenset[str] = frozenset()
    """Operators that leave rows in the partitions they came in."""
    keeping: frozenset[str] = frozenset()
    """Operators that put out exactly one row per input row, so that a count is not needed."""
    observed: Mapping[str, str | None] = field(default_factory=dict)
    """Operators at which rows are observed, with the column of arrival times: sinks with the column in their rows, and sources of other
    sinks.

    The column is None where Spark reads rows twice, to find the ranges of a sort: an observation counts each row once.
    """


UNKNOWN = PlanShape()


class Observing(Enum):
    """Which arrival times of an epoch are observed."""

    ALL = "all"
    SAMPLE = "a sample"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The common part of all plans of one start of a job."""

    topology: Topology
    graph: Graph
    gateway: Gateway
    keyed: KeyedStates | None = None
    shape: PlanShape = UNKNOWN


@dataclass(frozen=True, slots=True)
class EpochSpec:
    """The parameters of one epoch's plan."""

    number: int
    allocation: JobAllocation
    tag: str = "headgate"
    """Tag of the Spark jobs of this epoch."""
    observing: Observing = Observing.ALL
    cluster: AvailableHosts = ONE_HOST

    def wanted(self, operator: str, lanes: int) -> Wanted:
        """The lanes, hosts and slices of a keyed operator."""
        avoided = {*self.allocation.avoided, *self.cluster.vacated}
        return Wanted(lanes, avoided, self.allocation.slices.get(operator), self.cluster.first)


@dataclass(slots=True)
class EpochPlan:
    """The rows that every operator puts out, built on the input of one epoch. Owner: the thread of the job's query."""

    blueprint: Blueprint
    spec: EpochSpec
    """Parameters of the epoch that the plan was built for."""
    batch: DataFrame
    """The input of that epoch."""
    frames: dict[str, Frame] = field(default_factory=dict)
    meters: dict[str, int] = field(default_factory=dict)
    """Number of the meter of each operator."""
    observed: set[str] = field(default_factory=set)
    """Operators at which rows are observed."""
    kept: list[DataFrame] = field(default_factory=list)
    _planned: dict[str, OperatorPlan] = field(default_factory=dict)

    def of(self, operator: str) -> OperatorPlan:
        """The plan of an operator; Spark makes the plan at the first call."""
        if operator not in self._planned:
            with named(operator):
                self._planned[operator] = self.blueprint.gateway.plan(self.frames[operator].rows, self.batch)
        return self._planned[operator]

    def is_lasting(self) -> bool:
        """Whether the plan can carry out later epochs, as long as the allocation of the job stays the same."""
        return not self.kept and all(self.of(sink).is_lasting for sink in self.blueprint.graph.sinks)


def tagged_union(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Several sources as one stream: every row has the columns of its source in a struct named after the source; other structs are null."""
    from pyspark.sql import functions as F

    if len(frames) == 1:
        return next(iter(frames.values()))
    types = {name: frame.schema.simpleString() for name, frame in frames.items()}

    def tagged(name: str, frame: DataFrame) -> DataFrame:
        columns = [
            F.struct(*frame.columns).alias(other) if other == name else F.lit(None).cast(kind).alias(other)
            for other, kind in types.items()
        ]
        return frame.select(F.lit(name).alias(TAG), *columns)

    first, *others = (tagged(name, frame) for name, frame in frames.items())
    for other in others:
        first = first.unionByName(other)
    return first


def build(blueprint: Blueprint, spec: EpochSpec, batch: DataFrame) -> EpochPlan:
    """Plan the rows of every operator for this epoch. Nothing runs yet, and a plan of the epoch `DRY` never runs."""
    epoch, graph = EpochPlan(blueprint, spec, batch), blueprint.graph
    whole = _sources_of(batch, epoch)
    for name in graph.operators:
        node = blueprint.topology.nodes[name]
        with named(name):
            frame = _source(node, batch, whole, epoch) if node.kind is Kind.SOURCE else _apply_node(node, epoch)
            frame = _meter(node, frame, epoch)
            if len(graph.children[name]) > 1:
                frame = _keep(frame, epoch)
        epoch.frames[name] = frame
    return epoch


@contextmanager
def named(operator: str) -> Iterator[None]:
    """Turn an error inside the block into one sentence that begins with the operator."""
    try:
        yield
    except Exception as error:
        reason = reason_of(error)
        # Lanes run when a sink is written; an error of a lane names the lane's own operator.
        known = reason.startswith('operator "')
        raise EngineError(reason if known else f'operator "{operator}": {reason}') from error


def named_source(graph: Graph) -> str:
    """The beginning of a sentence about a source that could not be read; Spark does not name one of several sources."""
    names = ", ".join(f'"{name}"' for name in graph.sources)
    return f"operator {names}" if len(graph.sources) == 1 else f"one of the operators {names}"


# -- operators -------------------------------------------------------------------------------------------------------------------


def _sources_of(batch: DataFrame, epoch: EpochPlan) -> DataFrame:
    """The input of the epoch, persisted if the rows of several sources are selected from it."""
    if len(epoch.blueprint.graph.sources) == 1:
        return batch
    epoch.kept.append(batch.persist())
    return epoch.kept[-1]


def _source(node: Node, batch: DataFrame, whole: DataFrame, epoch: EpochPlan) -> Frame:
    stage: Stage = ((node.name, epoch.blueprint.gateway.partitions(batch)),)
    if len(epoch.blueprint.graph.sources) == 1:
        epoch.meters[node.name] = SCANNED
        return Frame(whole, (), stage)
    return Frame(whole.where(whole[TAG] == node.name).select(f"`{node.name}`.*"), (), stage)


def _apply_node(node: Node, epoch: EpochPlan) -> Frame:
    """The rows of an operator: an exchange puts rows into lanes before the function, or after it for several inputs without a key."""
    inputs = [epoch.frames[name] for name in node.inputs]
    if node.kind is Kind.KEYED:
        return _keyed(node, inputs[0], epoch)
    if len(inputs) > 1 and not node.by:
        return _in_lanes(node, _together(node, _transform(node, inputs), inputs, epoch), epoch)
    inputs = [_in_lanes(node, frame, epoch) for frame in inputs]
    if node.kind is Kind.TRANSFORM:
        rows = _transform(node, inputs)
    elif node.kind is Kind.SINK:
        rows = inputs[0].rows
    else:
        meter = epoch.meters[node.name] = len(epoch.meters)
        lane = _lane(node)
        rows = epoch.blueprint.gateway.in_lanes(inputs[0].rows, lane, spark_schema(str(node.schema)), meter)
    return _together(node, rows, inputs, epoch)


def _together(node: Node, rows: DataFrame, inputs: list[Frame], epoch: EpochPlan) -> Frame:
    """The rows with their stages: the stage of the inputs if they share one, otherwise the stages of all inputs side by side."""
    before = tuple(dict.fromkeys(stage for frame in inputs for stage in frame.before))
    met = len({frame.stage for frame in inputs}) == 1
    stage = inputs[0].stage if met else tuple(part for frame in inputs for part in frame.stage)
    certain = node.kind is not Kind.TRANSFORM or node.name in epoch.blueprint.shape.narrow
    return Frame(rows, before, stage, certain and all(frame.certain for frame in inputs))


def _transform(node: Node, inputs: list[Frame]) -> DataFrame:
    from pyspark.sql import DataFrame

    put_out = node.function(*(frame.rows for frame in inputs))
    if not isinstance(put_out, DataFrame):
        raise EngineError(f"its function returned {type(put_out).__name__}; it must return a DataFrame")
    return put_out


def _in_lanes(node: Node, frame: Frame, epoch: EpochPlan) -> Frame:
    """The rows in as many partitions as the operator has lanes; unchanged if the operator has no lanes of its own, or as many already."""
    allocation, cluster = epoch.spec.allocation, epoch.spec.cluster
    lanes = allocation.lanes.get(node.name)
    if lanes is None:
        return frame
    if not node.by and frame.partitions == lanes:
        return Frame(frame.rows, frame.before, ((node.name, lanes),))
    hosts, places = cluster.hosts(lanes, allocation.avoided), cluster.places
    if hosts and places is not None:
        rows = places.in_lanes(frame.rows, node.by, hosts, ordered=not frame.before)
    else:
        rows = frame.rows.repartition(lanes, *node.by)
    return Frame(rows, (*frame.before, frame.stage), ((node.name, lanes),))


def _keyed(node: Node, frame: Frame, epoch: EpochPlan) -> Frame:
    keyed = epoch.blueprint.keyed
    assert keyed is not None
    before = (*frame.before, frame.stage)
    if epoch.spec.number == DRY:
        lanes = lanes_of(node, epoch.spec)
        rows = frame.rows.repartition(lanes).mapInArrow(lambda batches: batches, keyed.declare(node, frame.rows))
        return Frame(rows, before, ((node.name, lanes),))
    planned = keyed.rows(node, frame.rows)
    if planned.combining:
        before = (*before, ((frame.stage[-1][0], planned.combining),))
    return Frame(planned.rows, before, ((node.name, planned.lanes),))


def lanes_of(node: Node, spec: EpochSpec) -> int:
    """The number of lanes of a keyed operator."""
    return spec.allocation.lanes.get(node.name) or node.lanes or 1


def _lane(node: Node) -> Any:
    schema = arrow_schema(str(node.schema))
    if node.kind is Kind.BATCHES:
        return BatchLane(node.name, node.function, schema)
    # A lane on another machine has another working directory.
    dead_letter = None if node.dead_letter is None else os.path.abspath(node.dead_letter)
    return EventLane(node.name, node.function, schema, dead_letter)


@lru_cache
def spark_schema(ddl: str) -> StructType:
    """Spark's schema for these columns; cached, because Spark asks the JVM each time."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


@lru_cache
def arrow_schema(ddl: str) -> pa.Schema:
    """Arrow's schema for these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(spark_schema(ddl), timezone="UTC")


# -- meters ----------------------------------------------------------------------------------------------------------------------


def _meter(node: Node, frame: Frame, epoch: EpochPlan) -> Frame:
    """Count the operator's rows, or observe arrival times, which counts rows too; rows of a sink are counted before the sink."""
    rows, blueprint, observing = frame.rows, epoch.blueprint, epoch.spec.observing
    arrival = blueprint.shape.observed.get(node.name)
    timed = arrival is not None and observing is not Observing.NONE
    if timed or (arrival is None and node.name in blueprint.shape.observed):
        rows = blueprint.gateway.observe(rows, node.name, arrival, many=observing is Observing.SAMPLE)
        epoch.observed.add(node.name)
    elif node.kind is not Kind.SINK and node.name not in blueprint.shape.keeping and node.name not in epoch.meters:
        epoch.meters[node.name] = len(epoch.meters)
        rows = blueprint.gateway.count(rows, epoch.meters[node.name])
    return Frame(rows, frame.before, frame.stage, frame.certain)


def _keep(frame: Frame, epoch: EpochPlan) -> Frame:
    rows = frame.rows.persist()
    epoch.kept.append(rows)
    return Frame(rows, frame.before, frame.stage, frame.certain)


# -- shape -----------------------------------------------------------------------------------------------------------------------


def shape(epoch: EpochPlan) -> PlanShape:
    """The shape of every epoch's plan, derived from an epoch that was built without a shape."""
    topology, graph = epoch.blueprint.topology, epoch.blueprint.graph
    plans = {name: LogicalPlan.of(frame.rows) for name, frame in epoch.frames.items()}
    narrow = frozenset(name for name, frame in epoch.frames.items() if plans[name].is_narrow(len(frame.before)))
    keeping = frozenset(
        name
        for name, node in topology.nodes.items()
        if node.kind is Kind.TRANSFORM and len(node.inputs) == 1 and plans[name].keeps_rows_of(plans[node.inputs[0]])
    )
    twice = {
        name for sink in graph.sinks if plans[sink].orders_across_partitions for name in before(graph, sink)
    } - keeping
    return PlanShape(narrow, keeping, {**dict.fromkeys(twice), **_arrivals(epoch)})


def _arrivals(epoch: EpochPlan) -> dict[str, str | None]:
    topology, graph = epoch.blueprint.topology, epoch.blueprint.graph
    columns = {name: topology.nodes[name].function.arrival for name in graph.sources}
    known = tuple(column for column in columns.values() if column is not None)
    found: dict[str, str | None] = {}
    for sink in graph.sinks:
        times = {column for column, kind in epoch.frames[sink].rows.dtypes if kind == "timestamp"}
        at_sink = next((column for column in known if column in times), None)
        if at_sink is not None:
            found[sink] = at_sink
        else:
            found |= {name: column for name in sources_of(graph, sink) if (column := columns[name]) is not None}
    return found


def before(graph: Graph, operator: str) -> set[str]:
    """All operators upstream of this operator."""
    inputs = graph.operators[operator].inputs
    return {*inputs, *(name for parent in inputs for name in before(graph, parent))}


def sources_of(graph: Graph, operator: str) -> list[str]:
    """All sources upstream of this operator."""
    return sorted(name for name in before(graph, operator) if name in graph.sources)
