"""The durable part of an operator's state: deltas, snapshots and records of committed epochs in a checkpoint location.

    operator.json                      whose state it is, in which schema, since which epoch, and its timeline
    epochs/000000000012.json           epoch 12 is committed, with these files and this clock
    deltas/000000000012-00003-….state  what lane 3 changed in epoch 12
    snapshots/00007/000000000010.state slice 7 as of epoch 10

A delta counts only if a committed epoch names it: a lane that ran twice leaves another delta, and clean-up removes it. A driver that
starts at an epoch voids the files of later epochs (`start_at`), so that there is always one timeline.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import StateDamagedError, StateError, StateLostError
from headgate.state.delta import Delta, Keys
from headgate.state.faults import reach
from headgate.state.location import Location
from headgate.state.records import seal, unseal
from headgate.state.schema import StateSchema

SNAPSHOTS = "snapshots/"
OPERATOR = "operator.json"


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of one lane and epoch."""

    name: str
    epoch: int
    slices: tuple[int, ...]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class EpochWatermark:
    """The watermark of an epoch, for a second run of the epoch, and the watermark of the next epoch."""

    watermark_ms: int | None = None
    next_ms: int | None = None


NO_CLOCK = EpochWatermark()


@dataclass(frozen=True, slots=True)
class Record:
    """The record that commits an epoch."""

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
    """How often the state was rolled back by more than one epoch: copies of an earlier timeline are void."""

    def identity(self, schema: StateSchema) -> str:
        """The identity that every copy of a slice must have."""
        return f"{self.id}/{schema.fingerprint}/{self.slices}/{self.timeline}"


@dataclass(frozen=True, slots=True)
class _OperatorFile:
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
        """Start a life, or continue the existing life; refuses another schema or number of slices."""
        if not self.exists():
            return self._write_life(Life(uuid.uuid4().hex, first_epoch, slices))
        return self.life(slices)

    def adopt(self, life: Life) -> None:
        """Make the files here the state of this life."""
        self._write_life(life)

    def exists(self) -> bool:
        """Whether a life has begun."""
        return self.location.exists(OPERATOR)

    def life(self, slices: int | None = None) -> Life:
        """The existing life; refuses another schema and, if given, another number of slices."""
        if not self.exists():
            raise StateError(f'there is no state of operator "{self.schema.operator}" in "{self.location.base}"')
        return self._same(slices)

    def _same(self, slices: int | None) -> Life:
        written = _operator_in(self.location)
        self.schema.refuse_unless_same(written.schema)
        life = written.life
        if slices is not None and not _is_doubled(slices, life.slices):
            raise StateError(
                f'the state of operator "{self.schema.operator}" is cut into {life.slices} slices; it now asks for {slices}:'
                f" set slices={life.slices}, double the slices with `headgate state split`, or give the operator a new name"
            )
        return life

    def _write_life(self, life: Life) -> Life:
        arrow = memoryview(self.schema.key_schema.serialize()).hex()
        self.location.write(OPERATOR, seal(_OperatorFile(life, self.schema.described(), arrow)))
        return life

    # -- timelines -----------------------------------------------------------------------------------------------------

    def start_at(self, epoch: int) -> Life:
        """Void the files of this epoch and of later epochs. A driver that continues with the epoch calls this before its first lane runs.

        The record of the epoch itself stays until the epoch is committed again; lanes undo its changes in their copies.
        """
        life = self.life()
        snapshots = self.all_snapshots()
        later = [found for found in reversed(self.epochs()) if found > epoch]
        if epoch < life.first_epoch:
            life = self._write_life(Life(uuid.uuid4().hex, epoch, life.slices))
        elif later:
            self._refuse_unless_rebuildable(life, epoch, snapshots)
            reach("roll back: before write")
            life = self._write_life(replace(life, timeline=life.timeline + 1))
        reach("roll back: durable")
        void = [snapshot_name(slice_, found) for slice_, all_ in snapshots.items() for found in all_ if found >= epoch]
        self.location.delete_durably([*void, *map(epoch_name, later)])
        reach("roll back: done")
        return life

    def _refuse_unless_rebuildable(self, life: Life, epoch: int, snapshots: dict[int, list[int]]) -> None:
        """Refuse a roll-back, before it deletes anything, if the state before the epoch cannot be rebuilt."""
        known = set(self.epochs())
        for slice_ in range(life.slices):
            bases = [found for found in snapshots.get(slice_, []) if found < epoch] or [life.first_epoch - 1]
            missing = sorted(set(range(max(bases) + 1, epoch)) - known)
            if missing:
                raise StateLostError(
                    f'operator "{self.schema.operator}" was rolled back to epoch {epoch}, but its state before that epoch is gone: '
                    f"slice {slice_} has no snapshot from before it, nor the record of epoch {missing[0]}; "
                    "restore the job's Spark checkpoint, or give the operator a new name"
                )

    # -- deltas --------------------------------------------------------------------------------------------------------

    def write_delta(self, delta: Delta, lane: int) -> DeltaFile:
        """Make a delta durable; the delta counts once its epoch is committed."""
        name = f"deltas/{delta.epoch:012d}-{lane:05d}-{uuid.uuid4().hex[:12]}.state"
        reach("delta: before write")
        size = self.location.write(name, *delta.encoded())
        reach("delta: durable")
        return DeltaFile(name, delta.epoch, tuple(delta.keys.slices.tolist()), len(delta), size)

    def read_delta(self, name: str) -> Delta:
        """Read a delta or a snapshot; `StateDamagedError` if it is missing or its checksum does not match."""
        return Delta.decoded(self.location.read(name), f"{self.location.base}/{name}")

    # -- epochs --------------------------------------------------------------------------------------------------------

    def commit(self, epoch: int, files: Sequence[DeltaFile], clock: EpochWatermark = NO_CLOCK) -> None:
        """Commit an epoch with its files; a second commit replaces the record."""
        if self.location.exists(epoch_name(epoch + 1)):
            raise StateError(
                f'epoch {epoch} of operator "{self.schema.operator}" cannot be committed: epoch {epoch + 1} is committed already; '
                "start the job again, so that it goes on from one epoch"
            )
        self._refuse_unless_there(epoch, files)
        reach("commit: before write")
        self.location.write(epoch_name(epoch), seal(Record(epoch, tuple(files), clock)))
        reach("commit: durable")

    def _refuse_unless_there(self, epoch: int, files: Sequence[DeltaFile]) -> None:
        """Refuse to commit a delta that is not in the checkpoint location: a delta that only one host sees would be lost with the host."""
        sizes = self.location.sizes([file.name for file in files])
        for file in files:
            if sizes[file.name] != file.bytes:
                found = "is missing" if sizes[file.name] is None else f"has {sizes[file.name]} bytes"
                raise StateDamagedError(
                    f'epoch {epoch} of operator "{self.schema.operator}" is not committed: its delta of {file.bytes} bytes'
                    f' {found} in "{self.location.base}/{file.name}"; mount the same storage on every host under this path'
                )

    def record(self, epoch: int) -> Record | None:
        """The record of an epoch; None if the epoch is not committed, or clean-up removed the record."""
        name = epoch_name(epoch)
        if not self.location.exists(name):
            return None
        found = unseal(self.location.read(name), Record, f"{self.location.base}/{name}")
        if found.epoch != epoch:
            raise StateDamagedError(f'"{self.location.base}/{name}" is the record of epoch {found.epoch}')
        return found

    def files(self, epoch: int) -> tuple[DeltaFile, ...] | None:
        """The files of an epoch; None if the epoch is not committed, or clean-up removed the record."""
        found = self.record(epoch)
        return None if found is None else found.files

    def epochs(self) -> list[int]:
        """Committed epochs whose record still exists, in order."""
        names = (name.removesuffix(".json") for name in self.location.names("epochs") if name.endswith(".json"))
        return [int(name) for name in names if name.isdigit()]

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def write_snapshot(self, slice_: int, epoch: int, rows: Iterable[tuple[pa.Array, pa.Array]]) -> int:
        """Make the whole content of a slice durable; returns the size."""
        reach("snapshot: before write")
        size = self.location.write(snapshot_name(slice_, epoch), *self.whole(epoch, {slice_: rows}).encoded())
        reach("snapshot: durable")
        return size

    def whole(self, epoch: int, rows: Mapping[int, Iterable[tuple[pa.Array, pa.Array]]]) -> Delta:
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
        """Epochs of the snapshots of a slice, in order."""
        names = self.location.names(f"snapshots/{slice_:05d}")
        return [_snapshot_epoch(name) for name in names if name.endswith(".state")]

    def all_snapshots(self) -> dict[int, list[int]]:
        """Epochs of the snapshots of all slices, from one listing."""
        found: dict[int, list[int]] = {}
        for name in self.location.names("snapshots"):
            slice_, _, rest = name.partition("/")
            if rest.endswith(".state"):
                found.setdefault(int(slice_), []).append(_snapshot_epoch(rest))
        return found


def schema_in(location: Location) -> StateSchema:
    """The schema of the state in a location."""
    if not location.exists(OPERATOR):
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


def _operator_in(location: Location) -> _OperatorFile:
    return unseal(location.read(OPERATOR), _OperatorFile, f"{location.base}/{OPERATOR}")


def whole_rows(delta: Delta, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The keys and values of a slice in a full delta."""
    for part, low, high in delta.keys.parts():
        if part == slice_ and low < high:
            yield delta.keys.keys.slice(low, high - low), delta.new.slice(low, high - low)


def snapshot_name(slice_: int, epoch: int) -> str:
    """The name of the snapshot of a slice."""
    return f"{SNAPSHOTS}{slice_:05d}/{epoch:012d}.state"


def _is_doubled(slices: int, found: int) -> bool:
    """Whether `found` is `slices`, doubled any number of times.

    >>> [_is_doubled(24, found) for found in (24, 48, 96, 12, 36)]
    [True, True, True, False, False]
    """
    return found % slices == 0 and (found // slices).bit_count() == 1


def _snapshot_epoch(name: str) -> int:
    return int(name.removesuffix(".state"))


def epoch_name(epoch: int) -> str:
    """The name of the record of an epoch."""
    return f"epochs/{epoch:012d}.json"


def _joined(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)
