"""A job as its author writes it: named operators, what they do, and who reads from whom.

Nothing here needs Spark: a topology is checked when it is built, and every mistake names its job and its operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from headgate.core import sizing
from headgate.core.intents import Intent
from headgate.core.model import Graph, Job, JobAllocation, Operator
from headgate.core.quantities import about, choice, number, seconds, shown
from headgate.errors import GraphError
from headgate.topology_checks import check_batches, check_events, check_function

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headgate.state.operators import Processor

Row = Mapping[str, Any]
Writer = Callable[["DataFrame", int], None]
"""Writes the rows of one epoch, which it is given with its number; called again with the same number after a crash."""

_ONCE = "reads_once"


def once(write: Writer) -> Writer:
    """Promise that a writer goes through all rows exactly once, in one action; others get rows that are kept for them."""
    setattr(write, _ONCE, True)
    return write


def reads_once(write: Writer) -> bool:
    """Whether that was promised."""
    return bool(getattr(write, _ONCE, False))


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of jobs, operators and tenants: they become directories, pools and addresses."""
LONGEST_NAME = 100
"""A file system takes 255 bytes, and what names become has more in it."""
RESERVED = "headgate-"
"""Names of Spark's pools, tables and tags that are Headgate's own begin with it."""
MOST_SHARE = 10
"""Highest share a job can have."""


def name_trouble(name: object) -> str:
    """What is wrong with the name of a job, an operator or a tenant; empty if nothing is."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return "use letters, digits, dots, dashes and underscores, no dash, dot or underscore first"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name)} characters, and at most {LONGEST_NAME} are allowed"
    if name.startswith(RESERVED):
        return f'names that begin with "{RESERVED}" are reserved'
    return ""


MODES = ("append", "update", "complete")
"""Spark's output modes: what an epoch gets of an aggregation of Spark's own inside a source."""


class Kind(Enum):
    """What an operator does with its rows."""

    SOURCE = "source"
    TRANSFORM = "transform"
    """DataFrames in, a DataFrame out; stays in the JVM."""
    BATCHES = "batches"
    """An iterator of Arrow record batches in, another one out."""
    EVENTS = "events"
    """One row in, any number of rows out."""
    KEYED = "keyed"
    """A processor with state by key, cut into slices."""
    SINK = "sink"


@runtime_checkable
class Source(Protocol):
    """Where rows come from, with what is known of those that have not been read yet.

    `place` is a directory of the source's own that lasts as long as its job.
    """

    @property
    def arrival(self) -> str | None:
        """The column that says when a row arrived; None if there is none."""

    @property
    def elastic(self) -> bool:
        """Whether the number of its lanes and its read limit may change while it is read (see `levers`)."""

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        """The streaming DataFrame."""

    def arrived(self, place: Path) -> float | None:
        """Rows that have arrived since the job first started; None if it cannot be known."""


@runtime_checkable
class Lossy(Protocol):
    """A source that counts the rows it had to leave out."""

    def losses(self, place: Path) -> str:
        """What was lost so far, in a sentence; empty if nothing was."""


@dataclass(frozen=True, slots=True)
class Query:
    """Any function that takes a session and returns a streaming DataFrame, as a source."""

    function: Callable[[SparkSession], DataFrame]
    arrival: str | None = None
    elastic: bool = False

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        return self.function(spark)

    def arrived(self, place: Path) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Keyed:
    """How a keyed operator keeps its state."""

    key: tuple[str, ...]
    slices: int | None = None
    """None: from the most cores it may use."""
    version: int = 1
    time: str | None = None
    """The column with the time of each event, which sets off timers; None: there are none."""
    lateness_ms: int = 0
    """Timers wait for events that are late by so much."""
    follows_clock: bool = True
    """While nothing arrives, event time goes on with the clock."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator with what it does."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    function: Any
    schema: str | None = None
    lanes: int | None = None
    """None: as many as its input has, without an exchange in between."""
    max_lanes: int | None = None
    by: tuple[str, ...] = ()
    """Rows with the same values in these columns meet in one lane."""
    weight: float = 1.0
    dead_letter: str | None = None
    """Where rows go that its function raised on; None: they fail the epoch."""
    keyed: Keyed | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """What an operator puts out; other operators read from it, as often as they like."""

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
        """Rows from outside: one of `headgate.sources`, or any function that takes a session and returns a streaming DataFrame.

        `arrival` names the column that says when a row arrived; `headgate.sources` know theirs.
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
        """DataFrames in, a DataFrame out, in the order of the inputs.

        Without `lanes` it runs in those of its input. `by` brings rows with the same values together, as a group or a join needs.
        """
        node = Node(
            name, Kind.TRANSFORM, self._names(name, inputs), function, None, lanes, max_lanes, self._by(name, by)
        )
        return self._add(node)

    def merge(self, name: str, *inputs: Input, lanes: int | None = None, max_lanes: int | None = None) -> Stream:
        """The rows of all inputs, whose columns go by the same names."""
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
        """An iterator of Arrow record batches in, another one out, with these columns; `lanes=None` shares its input's lanes."""
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
        """One row (a dict) in; a dict, several, or None out.

        A row that the function raises on fails the epoch, or goes to the directory `dead_letter` with its reason.
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
        """State by key: aggregations such as `{"visits": "count", "spent": "sum(amount)"}`, or a processor of `headgate.state`.

        Aggregations put out the keys that changed, with their new values; other processors put out the columns of `schema`. The state
        is cut into `slices`, for good; lanes share them. `time` names the column of event times: timers up to the latest time
        seen, less `lateness`, are due at the end of the next epoch. While nothing arrives, event time goes on with the clock;
        `follows_clock=False` makes timers wait for the next row, as event times of long ago need it.
        """
        whole = _processor(self.name, name, processor, schema, time)
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
        """Where rows go: one of `headgate.sinks`, or a function that takes a DataFrame and the number of the epoch."""
        self._add(Node(name, Kind.SINK, self._names(name, (source,)), write, None, lanes, max_lanes, weight=weight))

    @property
    def has_timers(self) -> bool:
        """Whether epochs may have to run although nothing arrives."""
        return any(getattr(node.function, "on_timer", None) is not None for node in self.nodes.values() if node.keyed)

    # -- what the others see of it

    def graph(self) -> Graph:
        """The operators as the scheduler sees them; raises if they do not form a job."""
        with about(f'job "{self.name}"', GraphError):
            graph = Graph.of(
                *(Operator(node.name, node.inputs, node.weight, node.max_lanes) for node in self.nodes.values())
            )
            for node in self.nodes.values():
                _check_place(node, graph)
        return graph

    def job(self) -> Job:
        """The job as the controller knows it."""
        return Job(self.name, self.graph(), self.intent, self.tenant)

    def allocation(self, first_pace_s: float = 0.0) -> JobAllocation:
        """What the job starts with: lanes of those operators that have some of their own, and the pace that its intent allows."""
        lanes = {node.name: node.lanes for node in self.nodes.values() if node.lanes is not None}
        pace_s = sizing.first_pace_s(self.intent, first_pace_s) if self.pace_s is None else self.pace_s
        return JobAllocation(lanes, round(pace_s, 2))

    # -- checks

    def _add(self, node: Node) -> Stream:
        with about(f'job "{self.name}"', GraphError), about(f"operator {shown(node.name)}", GraphError):
            _check(node)
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
    """All rows of DataFrames whose columns go by the same names."""
    for other in others:
        first = first.unionByName(other)
    return first


def _processor(
    job: str, operator: str, processor: Processor | Mapping[str, str], schema: str | None, time: str | None
) -> Processor | Any:
    from headgate.state.aggregate import Aggregate
    from headgate.state.operators import Batches, Events

    with about(f'job "{job}"', GraphError), about(f'operator "{operator}"', GraphError):
        if isinstance(processor, Mapping):
            processor = Aggregate.of(processor)
        if not isinstance(processor, Aggregate | Batches | Events):
            raise GraphError(
                f'its processor is {processor!r}; give it aggregations such as {{"n": "count"}}, Batches or Events'
            )
        if isinstance(processor, Aggregate):
            if not processor.measures:
                raise GraphError('it has no aggregations; give it some, such as {"n": "count"}')
            if schema is not None:
                raise GraphError("its aggregations say what it puts out; leave out schema")
        elif not isinstance(schema, str) or not schema.strip():
            raise GraphError('its schema must name the columns it puts out, such as "id long, tier string"')
        elif isinstance(processor, Events):
            check_events(processor, time)
        else:
            check_batches(processor)
    return processor


def _check(node: Node) -> None:
    if trouble := name_trouble(node.name):
        raise GraphError(f"its name will not do; {trouble}")
    if node.keyed is None and not callable(node.function) and not isinstance(node.function, Source):
        raise GraphError(f"it must be given a function, not {node.function!r}")
    if isinstance(node.function, Query) and not callable(node.function.function):
        raise GraphError(f"it must be given a source or a function, not {node.function.function!r}")
    if node.kind is not Kind.SOURCE and not node.inputs:
        raise GraphError("it needs an input to read from")
    if node.keyed is None:
        _check_called(node)
    if node.kind in (Kind.BATCHES, Kind.EVENTS) and (not isinstance(node.schema, str) or not node.schema.strip()):
        raise GraphError('its schema must name the columns it puts out, such as "id long, tier string"')
    if node.keyed is not None:
        _check_keyed(node, node.keyed)
    _check_lanes(node)


def _check_called(node: Node) -> None:
    if isinstance(node.function, Query):
        check_function(node.function.function, ("spark",))
    elif node.kind is Kind.TRANSFORM:
        check_function(node.function, node.inputs)
    elif node.kind is Kind.SINK:
        check_function(node.function, ("rows", "epoch"))
    elif node.kind is not Kind.SOURCE:
        check_function(node.function, ("batches" if node.kind is Kind.BATCHES else "row",))


def _check_keyed(node: Node, keyed: Keyed) -> None:
    if not keyed.key:
        raise GraphError("its key names no columns; it needs at least one")
    if len(set(keyed.key)) < len(keyed.key):
        raise GraphError(f"its key names a column twice: {', '.join(keyed.key)}")
    for what, value in (("slices", keyed.slices), ("version", keyed.version)):
        if value is not None and number(value, what, low=1, error=GraphError) != int(value):
            raise GraphError(f"{what} is {value!r}; it must be a whole number")
    most = max(node.lanes or 1, node.max_lanes or 1)
    if keyed.slices is not None and most > keyed.slices:
        raise GraphError(
            f"it may have {most} lanes but has {keyed.slices} slices, which are never divided; give it more slices"
        )


def _check_lanes(node: Node) -> None:
    for what, lanes in (("lanes", node.lanes), ("max_lanes", node.max_lanes)):
        if lanes is not None and number(lanes, what, low=1, error=GraphError) != int(lanes):
            raise GraphError(f"{what} is {lanes!r}; it must be a whole number")
    if node.lanes is not None and node.max_lanes is not None and node.lanes > node.max_lanes:
        raise GraphError(f"lanes is {node.lanes}, above max_lanes, which is {node.max_lanes}")
    if node.by and node.lanes is None:
        raise GraphError(f'by is {", ".join(node.by)}; it needs lanes of its own, so give it "lanes" too')


def _check_place(node: Node, graph: Graph) -> None:
    children = graph.children[node.name]
    if node.kind is Kind.SINK and children:
        raise GraphError(f'operator "{children[0]}" reads from "{node.name}", which is a sink and puts out nothing')
    if node.kind is not Kind.SINK and not children:
        raise GraphError(f'nobody reads from operator "{node.name}"; give its rows to a sink, or leave it out')
