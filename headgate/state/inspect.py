"""Reads the state of an operator for `headgate state JOB OPERATOR [--key K]`."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headgate.config import StateSettings
from headgate.errors import InputError
from headgate.state import codec
from headgate.state.checkpoint import OPERATOR, Checkpoint, schema_in
from headgate.state.delta import array_words
from headgate.state.durable import durable_of
from headgate.state.groups import decode_keys
from headgate.state.hashing import slices_of
from headgate.state.library import row_owner
from headgate.state.location import Location, below
from headgate.state.opening import Opener
from headgate.state.schema import StateSchema
from headgate.state.store import SliceStore
from headgate.state.stores import new_store
from headgate.state.timers import TIMERS

CHECKPOINT = "checkpoint"
KEYED = "keyed"
"""The folder of a job with a folder for each keyed operator."""


def place_of(job: Path, operator: str) -> Path:
    """The folder in which a job keeps the state of an operator."""
    return job / KEYED / operator


def checkpoint_of(job: Path, operator: str) -> Path:
    """The folder of the durable part of the state: the newest one, where slices were doubled."""
    place = place_of(job, operator)
    doubled = [path for path in place.glob(f"{CHECKPOINT}-*") if (path / OPERATOR).exists()]
    return max(doubled, key=lambda path: int(path.name.rpartition("-")[2]), default=place / CHECKPOINT)


def durable_checkpoint(job: Path, operator: str) -> str:
    """The folder of the durable part of the state, wherever the job keeps what is durable, as a path or a URI."""
    durable = durable_of(job)
    if "://" not in durable:
        return str(checkpoint_of(Path(durable), operator))
    place = below(durable, f"{KEYED}/{operator}")
    location = Location.of(place)
    doubled = [name for name in location.folders() if location.exists(f"{name}/{OPERATOR}") and "-" in name]
    return below(place, max(doubled, key=lambda name: int(name.rpartition("-")[2]), default=CHECKPOINT))


def checkpoint_after_split(job: Path, operator: str, slices: int) -> str:
    """The folder of the durable part of the state once it has so many slices."""
    return below(durable_of(job), f"{KEYED}/{operator}/{CHECKPOINT}-{slices}")


OPENS = "opens.json"


@dataclass(frozen=True, slots=True)
class Opens:
    """Slices opened by the lanes of an operator on a cluster, by origin: `local` are those that were on the lane's host."""

    epoch: int
    last: dict[str, int]
    """Slices opened in that epoch."""
    all: dict[str, int]
    """Slices opened since the last start of the job."""

    def local_share(self) -> float | None:
        """Share of slices that were opened locally; None if no slice was opened. New state does not count."""
        opened = sum(count for origin, count in self.all.items() if origin != "new")
        return self.all.get("local", 0) / opened if opened else None


def read_opens(job: Path, operator: str) -> Opens | None:
    """The slices opened by the lanes of an operator; None if the operator does not run on a cluster."""
    try:
        return msgspec.json.decode((place_of(job, operator) / OPENS).read_bytes(), type=Opens)
    except (OSError, ValueError, msgspec.MsgspecError):  # ValueError: text that is not UTF-8
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of one key."""

    key: dict[str, Any]
    slice: int
    state: dict[str, Any]
    """Value of each field; of a field of the library, its stored parts by name."""


def read_state(checkpoint: str | Path, key: Sequence[Any] | None = None) -> list[Entry]:
    """All keys, or one key, as of the last committed epoch; reads only the checkpoint location, and disturbs no job."""
    location = Location.of(checkpoint)
    schema = schema_in(location)
    durable = Checkpoint(location, schema)
    life, epochs = durable.life(), durable.epochs()
    slices = range(life.slices) if key is None else [_slice_of(schema, key, life.slices)]
    with tempfile.TemporaryDirectory(prefix="headgate-state-") as folder:
        store = new_store(folder, schema, life.identity(schema), StateSettings())
        try:
            Opener(store, durable, life).at(slices, epochs[-1] + 1 if epochs else life.first_epoch)
            found = [entry for slice_ in slices for entry in _entries(schema, store, slice_)]
        finally:
            store.close()
    return found if key is None else [entry for entry in found if entry.key == _typed(schema, key).to_pylist()[0]]


def _typed(schema: StateSchema, key: Sequence[Any]) -> pa.RecordBatch:
    """The key as columns; texts from a command line are cast to the types of the columns."""
    if len(key) != len(schema.key):
        raise InputError(f'operator "{schema.operator}" has {len(schema.key)} key columns: {", ".join(schema.key)}')
    try:
        arrays = [pa.array([part]).cast(kind) for part, kind in zip(key, schema.key.values(), strict=True)]
    except pa.ArrowException as error:
        raise InputError(f'{key!r} is no key of operator "{schema.operator}": {error}') from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema.key_schema)


def _slice_of(schema: StateSchema, key: Sequence[Any], slices: int) -> int:
    return int(slices_of(_typed(schema, key).columns, slices)[0])


def _entries(schema: StateSchema, store: SliceStore, slice_: int) -> Iterator[Entry]:
    if schema.library:
        yield from _library_entries(schema, store, slice_)
        return
    for keys, values in store.scan(slice_):
        words = array_words(values) if schema.tabular else _words(values, len(schema.fields))
        fields = {name: array.tolist() for name, array in schema.fields_from_words(words).items()}
        states = (dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True))
        for key, state in zip(decode_keys(schema, keys).to_pylist(), states, strict=True):
            yield Entry(key, slice_, state)


def _words(values: pa.Array, width: int) -> Any:
    return np.frombuffer(b"".join(values.to_pylist()), np.uint64).reshape(-1, width)


def _library_entries(schema: StateSchema, store: SliceStore, slice_: int) -> Iterator[Entry]:
    states: dict[bytes, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for rows, values in store.scan(slice_):
        for row, value in zip(rows.to_pylist(), values.to_pylist(), strict=True):
            if not row.startswith(TIMERS):
                key, field, part = row_owner(row)
                states[key][field][part.decode()] = codec.decode(value)
    for key, state in states.items():
        yield Entry(
            schema.keys_from_bytes([key]).to_pylist()[0], slice_, {field: dict(parts) for field, parts in state.items()}
        )
