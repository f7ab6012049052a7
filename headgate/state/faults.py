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
"""Those of one host, in the order of an epoch's life."""

MOVING = (
    "placement: before write",
    "placement: durable",
    "target: begun",
    "target: caught up",
    "target: rebuilt",
    "target: dropped",
    "target: answered",
)
"""The same where slices move between hosts."""

_hooks: list[Callable[[str], None]] = []


def reach(point: str) -> None:
    """Say that this point is reached; nothing happens unless a test has asked for it."""
    for hook in _hooks:
        hook(point)


@contextmanager
def watch_points(hook: Callable[[str], None]) -> Iterator[None]:
    """Call `hook` at every point; what it raises is raised there."""
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)
