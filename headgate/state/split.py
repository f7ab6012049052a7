"""Doubles the slices of an operator of a stopped job: slice *m* of *K* becomes slices *m* and *m* + *K* of 2 *K*.

A slice is `pmod(xxhash64(key), K)`, so a key of slice *m* is in one of these two slices and in no other. The split writes a checkpoint
beside the present one: snapshots of all slices before the newest epoch, and the newest epoch as one delta per slice, because a job that
stops before Spark's own commit runs that epoch again. `operator.json`, which makes the folder a checkpoint, is written last; until then the
present checkpoint is valid.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.config import StateSettings
from headgate.errors import StateError
from headgate.files import PRIVATE
from headgate.state.checkpoint import Checkpoint, DeltaFile, Life, schema_in
from headgate.state.delta import Delta, Keys
from headgate.state.faults import reach
from headgate.state.groups import decode_keys
from headgate.state.hashing import slices_of
from headgate.state.inspect import checkpoint_after_split, durable_checkpoint, place_of
from headgate.state.library import row_owner
from headgate.state.location import Location
from headgate.state.opening import Opener
from headgate.state.schema import StateSchema
from headgate.state.store import SliceStore
from headgate.state.stores import new_store
from headgate.state.timers import TIMERS, Timers

Rows = dict[bytes, bytes]
"""The content of a slice."""
LOCK = "split.lock"


@contextmanager
def splitting(job: Path) -> Iterator[None]:
    """Keep a job from starting while its slices are doubled; the kernel releases the lock when the process ends."""
    descriptor = os.open(job / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StateError(
            f'the slices of job "{job.name}" are being doubled by another process; wait for its end'
        ) from None
    finally:
        os.close(descriptor)


def refuse_while_splitting(job: Path) -> None:
    """Refuse to start a job during a split, because the job would continue with the old slices."""
    if (job / LOCK).exists():
        with splitting(job):
            pass


def split_slices(job: Path, operator: str) -> Life:
    """Double the slices of an operator of a job that does not run; returns the new life."""
    present = Location.of(durable_checkpoint(job, operator))
    schema = schema_in(present)
    before = Checkpoint(present, schema)
    life = before.life()
    wanted = replace(life, id=uuid.uuid4().hex, slices=2 * life.slices, timeline=0)
    after = Checkpoint(Location.of(checkpoint_after_split(job, operator, wanted.slices)), schema)
    after.location.delete_durably(after.location.names(""))  # left over from an interrupted split
    with tempfile.TemporaryDirectory(prefix="headgate-split-", dir=_scratch(job, operator)) as folder:
        store = new_store(folder, schema, life.identity(schema), StateSettings())
        try:
            _Split(before, after, life, store).run()
        finally:
            store.close()
    reach("split: written")
    after.adopt(wanted)
    reach("split: counts")
    present.delete_durably(present.names(""))
    shutil.rmtree(place_of(job, operator) / "store", ignore_errors=True)
    return wanted


def _scratch(job: Path, operator: str) -> Path:
    folder = place_of(job, operator) / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class _Split:
    before: Checkpoint
    after: Checkpoint
    life: Life
    store: SliceStore

    def run(self) -> None:
        epochs = self.before.epochs()
        if not epochs:
            raise StateError(
                f'operator "{self.before.schema.operator}" has no finished epoch yet, so there is nothing to split;'
                " set slices in the job file instead"
            )
        newest = epochs[-1]
        opener = Opener(self.store, self.before, self.life)
        opener.at(range(self.life.slices), newest)
        files = [self._split(opener, slice_, newest) for slice_ in range(self.life.slices)]
        # Of the epoch before, only the clock is needed.
        for epoch, named in ((newest - 1, []), (newest, files)):
            record = self.before.record(epoch)
            if record is not None:
                self.after.commit(epoch, named, record.clock)

    def _split(self, opener: Opener, slice_: int, newest: int) -> DeltaFile:
        """Write the snapshots of both halves before the newest epoch; returns the delta of what the epoch changed."""
        old = self._halves(slice_)
        if newest > self.life.first_epoch:
            for half, rows in old.items():
                self.after.write_snapshot(half, newest - 1, [_arrays(rows, self.before.schema)])
        opener.at([slice_], newest + 1)
        new = self._halves(slice_)
        self.store.drop(slice_)
        return self.after.write_delta(_difference(newest, old, new, self.before.schema), slice_)

    def _halves(self, slice_: int) -> dict[int, Rows]:
        rows = {
            key: value
            for keys, values in self.store.scan(slice_)
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)
        }
        return halves_of(self.before.schema, slice_, self.life.slices, rows)


def halves_of(schema: StateSchema, slice_: int, slices: int, rows: Mapping[bytes, bytes]) -> dict[int, Rows]:
    """Divide the rows of a slice between the two slices that the slice becomes."""
    found: dict[int, Rows] = {slice_: {}, slice_ + slices: {}}
    own = [row for row in rows if not row.startswith(TIMERS)] if schema.library else list(rows)
    codes = [row_owner(row)[0] for row in own] if schema.library else own
    half_of = _slice_by_code(schema, set(codes), 2 * slices)
    for row, code in zip(own, codes, strict=True):
        found[half_of[code]][row] = rows[row]
    if schema.library:
        _split_timers(schema, rows, found)
    return found


def _slice_by_code(schema: StateSchema, codes: Iterable[bytes], slices: int) -> dict[bytes, int]:
    known = list(codes)
    if not known:
        return {}
    columns = decode_keys(schema, pa.array(known, schema.key_type)).columns
    return dict(zip(known, slices_of(columns, slices).tolist(), strict=True))


class _Content:
    """Rows of a slice in memory."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def get(self, row: bytes) -> bytes | None:
        return self._rows.get(row)

    def set(self, row: bytes, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(row, None)
        else:
            self._rows[row] = value


def _split_timers(schema: StateSchema, rows: Mapping[bytes, bytes], found: Mapping[int, Rows]) -> None:
    """Set the timers of each half again, because timers are stored by time, not by key."""
    timers = Timers(_Content({row: value for row, value in rows.items() if row.startswith(TIMERS)})).all()
    half_of = _slice_by_code(schema, {code for _, code in timers}, 2 * max(found) - 2 * min(found))
    halves = {half: Timers(_Content(content)) for half, content in found.items()}
    for at_ms, code in timers:
        halves[half_of[code]].set(code, at_ms)
    for half in halves.values():
        half.flush()


def _arrays(rows: Rows, schema: StateSchema) -> tuple[pa.Array, pa.Array]:
    return pa.array(list(rows), schema.key_type), pa.array(list(rows.values()), schema.value_type)


def _difference(epoch: int, old: Mapping[int, Rows], new: Mapping[int, Rows], schema: StateSchema) -> Delta:
    """The delta from the old to the new rows of these slices."""
    changed = {
        slice_: [row for row in {**old[slice_], **new[slice_]} if old[slice_].get(row) != new[slice_].get(row)]
        for slice_ in sorted(old)
    }
    pairs = [(slice_, row) for slice_, found in changed.items() for row in found]
    return Delta(
        epoch,
        Keys(
            np.array(list(changed), np.int32),
            np.concatenate([[0], np.cumsum([len(found) for found in changed.values()])]).astype(np.int64),
            pa.array([row for _, row in pairs], schema.key_type),
        ),
        pa.array([old[slice_].get(row) for slice_, row in pairs], schema.value_type),
        pa.array([new[slice_].get(row) for slice_, row in pairs], schema.value_type),
    )
