"""What the author of a job gives as functions and state fields, checked when the topology is built: no row is needed to see a mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.core.quantities import choice, shown
from headgate.errors import GraphError

if TYPE_CHECKING:
    from headgate.state.operators import Batches, Events

EVENT = ("key", "event", "state", "emit")
TIMER = ("key", "at_ms", "state", "emit")
_FACTORIES = ("headgate.spark.sinks.", "headgate.spark.sources.")


def check_function(function: Callable[..., Any], arguments: Sequence[str], what: str = "its function") -> None:
    """Refuse a function that cannot be called with these arguments."""
    _refuse_factory(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C have none
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
    """`sinks.discard` instead of `sinks.discard()`."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if inspect.isfunction(function) and module.startswith(_FACTORIES) and "." not in name:
        kind = module.split(".")[2]
        raise GraphError(f"it is given {kind}.{name} itself; call it: {kind}.{name}(...)")


def check_events(events: Events, time: str | None) -> None:
    """Functions and state fields of a processor of events."""
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
    """Function and state fields of a processor of batches."""
    check_function(batches.on_batch, ("rows",), "on_batch")
    for name, kind in batches.state.items():
        choice(kind, f'state field "{name}"', ("int64", "float64"), GraphError)
