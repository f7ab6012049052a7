"""The durable side of an operator's state: deltas and snapshots in a checkpoint location, and the record of committed epochs.

    operator.json                      whose state it is, in which schema, since which epoch
    epochs/000000000012.json           epoch 12 is committed, with these files
    deltas/000000000012-00003-….state  what lane 3 changed in epoch 12 (or, with full checkpoints, all it has)
    snapshots/00007/000000000010.state slice 7 as of epoch 10

A file that no committed epoch names does not count: a lane that ran twice leaves one, and clean-up removes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from headgate.errors import StateDamagedError, StateError
from headgate.state.delta import Delta, Keys
from headgate.state.faults import passing
from headgate.state.location import Location
from headgate.state.schema import StateSchema

_OPERATOR = "operator.json"


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of one lane and epoch."""

    name: str
    epoch: int
    slices: tuple[int, ...]
    rows: int
    bytes: int
    full: bool = False


@dataclass(frozen=True, slots=True)
class Life:
    """One life of an operator's state: from its first epoch until it is removed."""

    id: str
    first_epoch: int
    slices: int

    def identity(self, schema: StateSchema) -> str:
        """What every copy of a slice must say of itself."""
        return f"{self.id}/{schema.fingerprint}/{self.slices}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint location of one operator."""

    location: Location
    schema: StateSchema

    # -- lives ---------------------------------------------------------------------------------------------------------

    def begin(self, first_epoch: int, slices: int) -> Life:
        """Start a life, or go on with the one that is there; refuses another schema or number of slices."""
        if not self.exists():
            life = Life(uuid.uuid4().hex, first_epoch, slices)
            arrow = memoryview(self.schema.key_schema.serialize()).hex()
            about = {"life": life, "schema": self.schema.described(), "arrow": arrow}
            self.location.write(_OPERATOR, msgspec.json.encode(about))
            return life
        return self._same(slices)

    def exists(self) -> bool:
        """Whether a life has begun."""
        return self.location.exists(_OPERATOR)

    def life(self) -> Life:
        """The life that is there."""
        if not self.exists():
            raise StateError(f'there is no state of operator "{self.schema.operator}" in "{self.location.base}"')
        return self._same(None)

    def _same(self, slices: int | None) -> Life:
        written = msgspec.json.decode(memoryview(self.location.read(_OPERATOR)))
        self.schema.refuse_unless_same(written["schema"])
        life = msgspec.convert(written["life"], Life)
        if slices is not None and life.slices != slices:
            raise StateError(
                f'the state of operator "{self.schema.operator}" is cut into {life.slices} slices, for good; it now asks'
                f" for {slices}: set slices={life.slices}, or give the operator a new name"
            )
        return life

    # -- deltas --------------------------------------------------------------------------------------------------------

    def write_delta(self, delta: Delta, lane: int) -> DeltaFile:
        """Make a delta durable; it counts once its epoch is committed."""
        name = f"deltas/{delta.epoch:012d}-{lane:05d}-{uuid.uuid4().hex[:12]}.state"
        passing("delta: before write")
        size = self.location.write(name, *delta.encoded())
        passing("delta: durable")
        return DeltaFile(name, delta.epoch, tuple(delta.keys.slices.tolist()), len(delta), size, delta.full)

    def read_delta(self, name: str) -> Delta:
        """`StateDamagedError` if it is missing or not what was written."""
        return Delta.decoded(self.location.read(name), f"{self.location.base}/{name}")

    # -- epochs --------------------------------------------------------------------------------------------------------

    def commit(self, epoch: int, files: Sequence[DeltaFile]) -> None:
        """The epoch is done, and these are its files; committing it again replaces what was said."""
        passing("commit: before write")
        self.location.write(_epoch_name(epoch), msgspec.json.encode(tuple(files)))
        passing("commit: durable")

    def files(self, epoch: int) -> tuple[DeltaFile, ...] | None:
        """The files of a committed epoch; None if it is not committed, or its record is gone."""
        if not self.location.exists(_epoch_name(epoch)):
            return None
        data = self.location.read(_epoch_name(epoch))
        try:
            return msgspec.json.decode(memoryview(data), type=tuple[DeltaFile, ...])
        except msgspec.MsgspecError as error:
            raise StateDamagedError(f'"{self.location.base}/{_epoch_name(epoch)}" is damaged: {error}') from None

    def epochs(self) -> list[int]:
        """Committed epochs whose record is still there, in order."""
        return [int(name.removesuffix(".json")) for name in self.location.names("epochs") if name.endswith(".json")]

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def write_snapshot(self, slice_: int, epoch: int, rows: Iterable[tuple[pa.Array, pa.Array]]) -> int:
        """Make the whole content of a slice durable; returns the size."""
        passing("snapshot: before write")
        size = self.location.write(snapshot_name(slice_, epoch), *self.whole(epoch, {slice_: rows}).encoded())
        passing("snapshot: durable")
        return size

    def whole(self, epoch: int, rows: dict[int, Iterable[tuple[pa.Array, pa.Array]]]) -> Delta:
        """The whole content of slices, as a delta from nothing."""
        slices = sorted(rows)
        found = [list(rows[slice_]) for slice_ in slices]
        lengths = [sum(len(keys) for keys, _ in batches) for batches in found]
        keys = [keys for batches in found for keys, _ in batches]
        values = [values for batches in found for _, values in batches]
        new = _joined(values, self.schema.value_type)
        places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Delta(
            epoch,
            Keys(np.array(slices, np.int32), places, _joined(keys, self.schema.key_type)),
            pa.nulls(len(new)),  # takes no room
            new,
            full=True,
        )

    def snapshots(self, slice_: int) -> list[int]:
        """Epochs of which there is a snapshot, in order."""
        names = self.location.names(f"snapshots/{slice_:05d}")
        return [_snapshot_epoch(name) for name in names if name.endswith(".state")]

    def all_snapshots(self) -> dict[int, list[int]]:
        """The same for all slices, in one listing."""
        found: dict[int, list[int]] = {}
        for name in self.location.names("snapshots"):
            slice_, _, rest = name.partition("/")
            if rest.endswith(".state"):
                found.setdefault(int(slice_), []).append(_snapshot_epoch(rest))
        return found

    def read_snapshot(self, slice_: int, epoch: int) -> Delta:
        return self.read_delta(snapshot_name(slice_, epoch))


def schema_in(location: Location) -> StateSchema:
    """The schema that the state in a location was written with."""
    if not location.exists(_OPERATOR):
        raise StateError(f'there is no keyed state in "{location.base}"')
    written = msgspec.json.decode(memoryview(location.read(_OPERATOR)))
    key = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(written["arrow"])))
    about = written["schema"]
    return StateSchema(
        about["operator"],
        {name: key.field(name).type for name in key.names},
        dict(about["fields"]),
        about["version"],
    )


def whole_rows(delta: Delta, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The keys and values of a slice in a full delta."""
    for part, low, high in delta.keys.parts():
        if part == slice_ and low < high:
            yield delta.keys.keys.slice(low, high - low), delta.new.slice(low, high - low)


def snapshot_name(slice_: int, epoch: int) -> str:
    """Where the snapshot of a slice is."""
    return f"snapshots/{slice_:05d}/{epoch:012d}.state"


def _snapshot_epoch(name: str) -> int:
    return int(name.removesuffix(".state"))


def _epoch_name(epoch: int) -> str:
    return f"epochs/{epoch:012d}.json"


def _joined(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)
