"""Stores and locks of this process, kept open from epoch to epoch: Spark runs many tasks in one worker."""

from __future__ import annotations

import os
from pathlib import Path

from headgate.config import StateSettings
from headgate.state.rows import RowStore
from headgate.state.schema import StateSchema
from headgate.state.store import SliceLocks, SliceStore
from headgate.state.table import TableStore

_stores: dict[tuple[int, str, str], SliceStore] = {}
_locks: dict[tuple[int, str], SliceLocks] = {}


def new_store(folder: str | Path, schema: StateSchema, identity: str, settings: StateSettings) -> SliceStore:
    """A store of the kind that fits the schema."""
    path = Path(folder)
    return TableStore(path, schema, identity) if schema.tabular else RowStore(path, schema, identity, settings)


def open_store(folder: str | Path, schema: StateSchema, identity: str, settings: StateSettings) -> SliceStore:
    """The store of an operator in a folder: one per process, also after a fork."""
    key = os.getpid(), str(folder), identity
    _close_removed()
    if key not in _stores:
        for other in [other for other in _stores if other[:2] == key[:2]]:
            _stores.pop(other).close()
        _stores[key] = new_store(folder, schema, identity, settings)
    return _stores[key]


def locks_of(folder: str | Path) -> SliceLocks:
    """The locks of a folder: one object per process, because closing one object would free the locks of all."""
    key = os.getpid(), str(folder)
    _close_removed()
    if key not in _locks:
        _locks[key] = SliceLocks(Path(folder))
    return _locks[key]


def _close_removed() -> None:
    """Close files of removed jobs: an open file takes space, and a lock on a deleted file excludes no other process."""
    mine = os.getpid()
    for place in [place for place, locks in _locks.items() if place[0] == mine and not locks.is_current()]:
        _locks.pop(place).close()
    for store in [store for store in _stores if store[0] == mine and not os.path.isdir(store[1])]:
        _stores.pop(store).close()


def close_stores() -> None:
    """Close all stores and locks of this process."""
    for store in _stores.values():
        store.close()
    for locks in _locks.values():
        locks.close()
    _stores.clear()
    _locks.clear()
