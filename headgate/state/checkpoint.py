"""The durable side of an operator's state: deltas and snapshots in a checkpoint location, and the record of committed epochs.

    operator.json                      whose state it is, in which schema, since which epoch, and its timeline
    epochs/000000000012.json           epoch 12 is committed, with these files and this clock
    deltas/000000000012-00003-….state  what lane 3 changed in epoch 12 (or, with full checkpoints, all it has)
    snapshots/00007/000000000010.state slice 7 as of epoch 10

A delta that no committed epoch names does not count: a lane that ran twice leaves one, and clean-up removes it. A driver that starts at
an epoch voids what later epochs have left (`start_at`), so that there is always one timeline.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import StateDamagedError, StateError, StateLostError
from headgate.state.delta import Delta, Keys
from headgate.state.faults import passing
from headgate.state.location import Location
from headgate.state.records import opened, sealed
from headgate.state.schema import StateSchema

SNAPSHOTS = "snapshots/"
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
class EpochWatermark:
    """The watermark of an epoch, so that an epoch that is run again has the same, and that of the next one."""

    watermark_ms: int | None = None
    next_ms: int | None = None


NO_CLOCK = EpochWatermark()


@dataclass(frozen=True, slots=True)
class Record:
    """What makes an epoch count."""

    epoch: int
    files: tuple[DeltaFile, ...]
    clock: EpochWatermark = NO_CLOCK


@dataclass(frozen=True, slots=True)
class Life:
    """One life of an operator's state: from its first epoch until it is removed."""

    id: str
    first_epoch: int
    slices: int
    timeline: int = 0
    """How often the state was set back by more than an epoch: copies of an earlier timeline are void."""

    def identity(self, schema: StateSchema) -> str:
        """What every copy of a slice must say of itself."""
        return f"{self.id}/{schema.fingerprint}/{self.slices}/{self.timeline}"


@dataclass(frozen=True, slots=True)
class _Operator:
    """The content of `operator.json`."""

    life: Life
    schema: dict[str, Any]
    arrow: str
    """Schema of the key columns, as Arrow writes it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint location of one operator."""

    location: Location
    schema: StateSchema

    # -- lives ---------------------------------------------------------------------------------------------------------

    def begin(self, first_epoch: int, slices: int) -> Life:
        """Start a life, or go on with the one that is there; refuses another schema or number of slices."""
        if not self.exists():
            return self._written(Life(uuid.uuid4().hex, first_epoch, slices))
        return self.life(slices)

    def exists(self) -> bool:
        """Whether a life has begun."""
        return self.location.exists(_OPERATOR)

    def life(self, slices: int | None = None) -> Life:
        """The life that is there; refuses another schema or, if one is given, number of slices."""
        if not self.exists():
            raise StateError(f'there is no state of operator "{self.schema.operator}" in "{self.location.base}"')
        return self._same(slices)

    def _same(self, slices: int | None) -> Life:
        written = _operator_in(self.location)
        self.schema.refuse_unless_same(written.schema)
        life = written.life
        if slices is not None and life.slices != slices:
            raise StateError(
                f'the state of operator "{self.schema.operator}" is cut into {life.slices} slices, for good; it now asks'
                f" for {slices}: set slices={life.slices}, or give the operator a new name"
            )
        return life

    def _written(self, life: Life) -> Life:
        arrow = memoryview(self.schema.key_schema.serialize()).hex()
        self.location.write(_OPERATOR, sealed(_Operator(life, self.schema.described(), arrow)))
        return life

    # -- timelines -----------------------------------------------------------------------------------------------------

    def start_at(self, epoch: int) -> Life:
        """A driver goes on with this epoch: what it and later epochs left is void. To be called before the first lane runs.

        The record of the epoch itself stays until it is committed again; its copies are undone by the lanes.
        """
        life = self.life()
        snapshots = self.all_snapshots()
        later = [found for found in reversed(self.epochs()) if found > epoch]
        if epoch < life.first_epoch:
            life = self._written(Life(uuid.uuid4().hex, epoch, life.slices))
        elif later:
            self._refuse_unless_rebuildable(life, epoch, snapshots)
            passing("set back: before write")
            life = self._written(replace(life, timeline=life.timeline + 1))
        passing("set back: durable")
        void = [snapshot_name(slice_, found) for slice_, all_ in snapshots.items() for found in all_ if found >= epoch]
        self.location.delete_durably([*void, *map(epoch_name, later)])
        passing("set back: done")
        return life

    def _refuse_unless_rebuildable(self, life: Life, epoch: int, snapshots: dict[int, list[int]]) -> None:
        """Before anything is deleted: the state before the epoch must follow from what is left."""
        known = set(self.epochs())
        for slice_ in range(life.slices):
            bases = [found for found in snapshots.get(slice_, []) if found < epoch] or [life.first_epoch - 1]
            missing = sorted(set(range(max(bases) + 1, epoch)) - known)
            if missing:
                raise StateLostError(
                    f'operator "{self.schema.operator}" was set back to epoch {epoch}, but its state before that epoch is gone: '
                    f"slice {slice_} has no snapshot from before it, nor the record of epoch {missing[0]}; "
                    "restore the job's Spark checkpoint, or give the operator a new name"
                )

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

    def commit(self, epoch: int, files: Sequence[DeltaFile], clock: EpochWatermark = NO_CLOCK) -> None:
        """The epoch is done, and these are its files; committing it again replaces what was said."""
        if self.location.exists(epoch_name(epoch + 1)):
            raise StateError(
                f'epoch {epoch} of operator "{self.schema.operator}" cannot be committed: epoch {epoch + 1} is committed already; '
                "start the job again, so that it goes on from one epoch"
            )
        passing("commit: before write")
        self.location.write(epoch_name(epoch), sealed(Record(epoch, tuple(files), clock)))
        passing("commit: durable")

    def record(self, epoch: int) -> Record | None:
        """What a committed epoch left; None if it is not committed, or its record was cleaned up."""
        name = epoch_name(epoch)
        if not self.location.exists(name):
            return None
        found = opened(self.location.read(name), Record, f"{self.location.base}/{name}")
        if found.epoch != epoch:
            raise StateDamagedError(f'"{self.location.base}/{name}" is the record of epoch {found.epoch}')
        return found

    def files(self, epoch: int) -> tuple[DeltaFile, ...] | None:
        """The files of a committed epoch; None if it is not committed, or its record was cleaned up."""
        found = self.record(epoch)
        return None if found is None else found.files

    def epochs(self) -> list[int]:
        """Committed epochs whose record is still there, in order."""
        names = (name.removesuffix(".json") for name in self.location.names("epochs") if name.endswith(".json"))
        return [int(name) for name in names if name.isdigit()]

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


def schema_in(location: Location) -> StateSchema:
    """The schema that the state in a location was written with."""
    if not location.exists(_OPERATOR):
        raise StateError(f'there is no keyed state in "{location.base}"')
    written = _operator_in(location)
    key = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(written.arrow)))
    about = written.schema
    return StateSchema(
        about["operator"],
        {name: key.field(name).type for name in key.names},
        dict(about["fields"]),
        about["version"],
    )


def _operator_in(location: Location) -> _Operator:
    return opened(location.read(_OPERATOR), _Operator, f"{location.base}/{_OPERATOR}")


def whole_rows(delta: Delta, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The keys and values of a slice in a full delta."""
    for part, low, high in delta.keys.parts():
        if part == slice_ and low < high:
            yield delta.keys.keys.slice(low, high - low), delta.new.slice(low, high - low)


def snapshot_name(slice_: int, epoch: int) -> str:
    """Where the snapshot of a slice is."""
    return f"{SNAPSHOTS}{slice_:05d}/{epoch:012d}.state"


def _snapshot_epoch(name: str) -> int:
    return int(name.removesuffix(".state"))


def epoch_name(epoch: int) -> str:
    """Where the record of an epoch is."""
    return f"epochs/{epoch:012d}.json"


def _joined(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)
