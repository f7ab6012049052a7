"""Named points that commit, snapshot, merge, migration and recovery pass: tests make each of them fail in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS = (
    "delta: before write",
    "delta: written, not renamed",
    "delta: durable",
    "apply: begun",
    "apply: half",
    "apply: done",
    "commit: before write",
    "commit: durable",
    "roll back: before write",
    "roll back: durable",
    "roll back: done",
    "grow: built",
    "snapshot: before write",
    "snapshot: durable",
    "clean-up: before delete",
    "clean-up: half",
    "rebuild: base loaded",
    "rebuild: delta applied",
    "undo: begun",
    "copy: half",
    "copy: done",
)
"""Points on one host, in the order of an epoch's life."""

MOVING = (
    "placement: before write",
    "placement: durable",
    "target: begun",
    "target: caught up",
    "target: rebuilt",
    "target: dropped",
    "target: answered",
)
"""Points at which slices move between hosts, in the order of a move."""

_hooks: list[Callable[[str], None]] = []


def reach(point: str) -> None:
    """Note that a point is reached; nothing happens unless a test watches the points."""
    for hook in _hooks:
        hook(point)


@contextmanager
def watch_points(hook: Callable[[str], None]) -> Iterator[None]:
    """Call `hook` at every point; an error that the hook raises is raised at the point."""
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)
