"""Checks of operators, functions and state fields when a topology is built, before the first row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.core.model import Graph
from headgate.core.quantities import about, choice, number, shown
from headgate.errors import GraphError
from headgate.topology.nodes import Keyed, Kind, Node, Query, Source, name_trouble

if TYPE_CHECKING:
    from headgate.state.operators import Batches, Events, Processor

EVENT = ("key", "event", "state", "emit")
TIMER = ("key", "at_ms", "state", "emit")
_FACTORIES = ("headgate.spark.sinks.", "headgate.spark.sources.")


def check_function(function: Callable[..., Any], arguments: Sequence[str], what: str = "its function") -> None:
    """Refuse a function that cannot be called with these arguments."""
    _refuse_factory(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise GraphError(
            f"{what} is {name}{signature}, which cannot be called with {len(arguments)}"
            f" argument{'s' if len(arguments) > 1 else ''}: {', '.join(arguments)}"
        ) from None


def _refuse_factory(function: Callable[..., Any]) -> None:
    """Refuse `sinks.discard` in place of `sinks.discard()`."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if inspect.isfunction(function) and module.startswith(_FACTORIES) and "." not in name:
        kind = module.split(".")[2]
        raise GraphError(f"it is given {kind}.{name} itself; call it: {kind}.{name}(...)")


def check_events(events: Events, time: str | None) -> None:
    """Check the functions and state fields of a processor of events."""
    check_function(events.on_event, EVENT, "on_event")
    if events.on_timer is not None:
        check_function(events.on_timer, TIMER, "on_timer")
        if time is None:
            raise GraphError(
                'it has on_timer but no event time, so that no timer would fire; name the column of event times: time="at"'
            )
    _check_fields(events.state)


def _check_fields(fields: Mapping[str, Any]) -> None:
    from headgate.state.library import KeyState, Kind

    if not isinstance(fields, Mapping) or not fields:
        raise GraphError(f'its state is {shown(fields)}; it must be a dict of fields such as {{"seen": Value(0)}}')
    for name, kind in fields.items():
        if isinstance(kind, type):
            raise GraphError(f'state field "{name}" is the class {kind.__name__}; make one, such as Value(0) or Map()')
        if not isinstance(kind, Kind):
            raise GraphError(
                f'state field "{name}" is {shown(kind)}; it must be a kind of headgate.state.library, such as Value(0)'
            )
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or hasattr(KeyState, name):
            raise GraphError(f"a state field is named {shown(name)}; it must be usable as state.NAME, and not be taken")


def check_batches(batches: Batches) -> None:
    """Check the function and state fields of a processor of batches."""
    check_function(batches.on_batch, ("rows",), "on_batch")
    for name, kind in batches.state.items():
        choice(kind, f'state field "{name}"', ("int64", "float64"), GraphError)


def checked_processor(
    job: str, operator: str, processor: Processor | Mapping[str, str], schema: str | None, time: str | None
) -> Processor | Any:
    """Return the checked processor of a keyed operator, with aggregations parsed."""
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


def check_node(node: Node) -> None:
    """Refuse an operator that cannot run with any input."""
    if trouble := name_trouble(node.name):
        raise GraphError(f"its name is not allowed; {trouble}")
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


def check_place(node: Node, graph: Graph) -> None:
    """Refuse a sink that operators read from, and any other operator that no operator reads from."""
    children = graph.children[node.name]
    if node.kind is Kind.SINK and children:
        raise GraphError(f'operator "{children[0]}" reads from "{node.name}", which is a sink and puts out nothing')
    if node.kind is not Kind.SINK and not children:
        raise GraphError(f'no operator reads from operator "{node.name}"; give its rows to a sink, or leave it out')
