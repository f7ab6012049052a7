"""A job as its author writes it: named operators, their functions, and their inputs.

Nothing here needs Spark: a topology is checked when it is built, and every error names its job and its operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.core import sizing
from headgate.core.intents import Intent
from headgate.core.model import MOST_SHARE, Graph, Job, JobAllocation, Operator
from headgate.core.quantities import about, choice, number, seconds, shown
from headgate.errors import GraphError
from headgate.topology.checks import check_node, check_place, checked_processor
from headgate.topology.nodes import Keyed, Kind, Node, Query, Row, Source, Writer, name_trouble

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headgate.state.operators import Processor

MODES = ("append", "update", "complete")
"""Spark's output modes: which rows of an aggregation inside a source an epoch gets."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of an operator; any number of operators may read from it."""

    topology: Topology = field(repr=False)
    name: str


Input = Stream | str


class Topology:
    """The operators of one job, in the order in which they were added.

    >>> job = Topology("clicks", Intent(latency="2s"))
    >>> clicks = job.source("in", lambda spark: ...)
    >>> job.sink("out", lambda df, epoch: ..., clicks)
    >>> job.graph().sinks
    ('out',)
    """

    def __init__(
        self,
        name: str,
        intent: Intent,
        *,
        tenant: str = "default",
        pace_s: float | None = None,
        share: int = 1,
        mode: str = "append",
    ) -> None:
        if trouble := name_trouble(name):
            raise GraphError(f"a job is named {shown(name)}; {trouble}")
        if trouble := name_trouble(tenant):
            raise GraphError(f'job "{name}": its tenant is {shown(tenant)}; {trouble}')
        if not isinstance(intent, Intent):
            raise GraphError(f'job "{name}": its intent is {intent!r}; write Intent(latency="2s", worth=35)')
        self.name = name
        self.intent = intent
        self.tenant = tenant
        self.pace_s = None if pace_s is None else number(pace_s, f'job "{name}": pace_s', low=0, error=GraphError)
        if number(share, f'job "{name}": share', low=1, high=MOST_SHARE, error=GraphError) != int(share):
            raise GraphError(f'job "{name}": share is {share!r}; it must be a whole number')
        self.share = int(share)
        self.mode = choice(mode, f'job "{name}": mode', MODES, GraphError)
        self.nodes: dict[str, Node] = {}

    # -- operators

    def source(
        self,
        name: str,
        read: Source | Callable[[SparkSession], DataFrame],
        *,
        arrival: str | None = None,
        lanes: int | None = None,
        max_lanes: int | None = None,
    ) -> Stream:
        """Add a source: one of `headgate.sources`, or any function that takes a session and returns a streaming DataFrame.

        `arrival` names the column with the arrival time of a row; a source of `headgate.sources` knows its own column.
        """
        source = read if isinstance(read, Source) else Query(read, arrival)
        if (lanes is not None or max_lanes is not None) and not source.elastic:
            raise GraphError(
                f'job "{self.name}": operator "{name}": its source decides itself how many lanes it has;'
                " leave out lanes, or give lanes to the operator that follows"
            )
        return self._add(
            Node(
                name,
                Kind.SOURCE,
                (),
                source,
                lanes=(1 if lanes is None else lanes) if source.elastic else None,
                max_lanes=max_lanes,
            )
        )

    def transform(
        self,
        name: str,
        function: Callable[..., DataFrame],
        *inputs: Input,
        lanes: int | None = None,
        max_lanes: int | None = None,
        by: str | Iterable[str] = (),
    ) -> Stream:
        """Add a function from DataFrames, in the order of the inputs, to a DataFrame.

        Without `lanes`, the function runs in the lanes of its input. `by` brings rows with the same values together, as a group or a join
        needs.
        """
        node = Node(
            name, Kind.TRANSFORM, self._names(name, inputs), function, None, lanes, max_lanes, self._by(name, by)
        )
        return self._add(node)

    def merge(self, name: str, *inputs: Input, lanes: int | None = None, max_lanes: int | None = None) -> Stream:
        """Add an operator that puts out the rows of all inputs, with columns matched by name."""
        return self.transform(name, union, *inputs, lanes=lanes, max_lanes=max_lanes)

    def batches(
        self,
        name: str,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        source: Input,
        *,
        schema: str,
        lanes: int | None = 1,
        max_lanes: int | None = None,
        by: str | Iterable[str] = (),
    ) -> Stream:
        """Add a function from an iterator of Arrow record batches to another one with the columns of `schema`.

        `lanes=None` shares the lanes of the input.
        """
        node = Node(
            name, Kind.BATCHES, self._names(name, (source,)), function, schema, lanes, max_lanes, self._by(name, by)
        )
        return self._add(node)

    def events(
        self,
        name: str,
        function: Callable[[Row], Row | Iterable[Row] | None],
        source: Input,
        *,
        schema: str,
        lanes: int | None = 1,
        max_lanes: int | None = None,
        by: str | Iterable[str] = (),
        dead_letter: str | None = None,
    ) -> Stream:
        """Add a function from one row (a dict) to a dict, several dicts, or None.

        A row on which the function raises an error fails the epoch, or goes to the directory `dead_letter` with the reason.
        """
        node = Node(
            name,
            Kind.EVENTS,
            self._names(name, (source,)),
            function,
            schema,
            lanes,
            max_lanes,
            self._by(name, by),
            dead_letter=dead_letter,
        )
        return self._add(node)

    def keyed(
        self,
        name: str,
        processor: Processor | Mapping[str, str],
        source: Input,
        *,
        key: str | Iterable[str],
        schema: str | None = None,
        lanes: int = 1,
        max_lanes: int | None = None,
        slices: int | None = None,
        version: int = 1,
        time: str | None = None,
        lateness: str | float = 0,
        follows_clock: bool = True,
    ) -> Stream:
        """Add a keyed operator: aggregations such as `{"visits": "count", "spent": "sum(amount)"}`, or a processor of `headgate.state`.

        Aggregations put out the keys that changed, with their new values; other processors put out the columns of `schema`. The state is
        cut into `slices`, which lanes share; later, only `headgate state split` changes their number. `time` names the column of event
        times: timers up to the latest time seen, less `lateness`, are due at the end of the next epoch. While no row arrives, event time
        advances with the clock; with `follows_clock=False`, timers wait for the next row, which suits event times of long ago.
        """
        whole = checked_processor(self.name, name, processor, schema, time)
        lateness_ms = round(1000 * self._lateness(name, lateness))
        keyed = Keyed(self._by(name, key), slices, version, time, lateness_ms, follows_clock)
        most = slices if max_lanes is None else max_lanes
        return self._add(Node(name, Kind.KEYED, self._names(name, (source,)), whole, schema, lanes, most, keyed=keyed))

    def sink(
        self,
        name: str,
        write: Writer,
        source: Input,
        *,
        lanes: int | None = None,
        max_lanes: int | None = None,
        weight: float = 1.0,
    ) -> None:
        """Add a sink: one of `headgate.sinks`, or a function that takes a DataFrame and the number of the epoch."""
        self._add(Node(name, Kind.SINK, self._names(name, (source,)), write, None, lanes, max_lanes, weight=weight))

    @property
    def has_timers(self) -> bool:
        """Whether epochs have to run even while no row arrives."""
        return any(getattr(node.function, "on_timer", None) is not None for node in self.nodes.values() if node.keyed)

    # -- views for the engine and the scheduler

    def graph(self) -> Graph:
        """The operators as the scheduler sees them; raises an error if the operators do not form a job."""
        with about(f'job "{self.name}"', GraphError):
            graph = Graph.of(
                *(Operator(node.name, node.inputs, node.weight, node.max_lanes) for node in self.nodes.values())
            )
            for node in self.nodes.values():
                check_place(node, graph)
        return graph

    def job(self) -> Job:
        """The job as the controller knows it."""
        return Job(self.name, self.graph(), self.intent, self.tenant)

    def allocation(self, first_pace_s: float = 0.0) -> JobAllocation:
        """The first allocation of the job: lanes of the operators that have lanes of their own, and the pace that the intent allows."""
        lanes = {node.name: node.lanes for node in self.nodes.values() if node.lanes is not None}
        pace_s = sizing.first_pace_s(self.intent, first_pace_s) if self.pace_s is None else self.pace_s
        return JobAllocation(lanes, round(pace_s, 2))

    # -- checks

    def _add(self, node: Node) -> Stream:
        with about(f'job "{self.name}"', GraphError), about(f"operator {shown(node.name)}", GraphError):
            check_node(node)
            if node.name in self.nodes:
                raise GraphError("there is another operator of this name; names must differ")
        self.nodes[node.name] = node
        return Stream(self, node.name)

    def _names(self, reader: str, inputs: tuple[Input, ...]) -> tuple[str, ...]:
        for stream in inputs:
            if isinstance(stream, Stream) and stream.topology is not self:
                raise GraphError(
                    f'job "{self.name}": operator "{reader}": reads from "{stream.name}" of job "{stream.topology.name}";'
                    " jobs cannot read from each other"
                )
            if not isinstance(stream, Stream | str):
                raise GraphError(
                    f'job "{self.name}": operator "{reader}": its input is {stream!r}; give it another operator'
                )
        return tuple(stream.name if isinstance(stream, Stream) else stream for stream in inputs)

    def _lateness(self, reader: str, lateness: str | float) -> float:
        return seconds(lateness, f'job "{self.name}": operator "{reader}": lateness', zero=True, error=GraphError)

    def _by(self, reader: str, by: str | Iterable[str]) -> tuple[str, ...]:
        columns = (by,) if isinstance(by, str) else tuple(by)
        if not all(isinstance(column, str) and column for column in columns):
            raise GraphError(f'job "{self.name}": operator "{reader}": by or key is {by!r}; it must name columns')
        return columns


def union(first: Any, *others: Any) -> Any:
    """All rows of DataFrames, with columns matched by name."""
    for other in others:
        first = first.unionByName(other)
    return first
