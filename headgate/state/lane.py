"""One epoch of one lane of a keyed operator: what a Spark task runs between its input and its output.

    done = []
    for batch in run_lane(operator, task, batches, done.append):
        ...                       # rows put out
    report = done[0].report       # to the driver, which commits the epoch with all lanes' reports
    backup = done[0].redo()       # to the hosts that hold backups, if they cannot read the checkpoint location

Order within the epoch: lock the slices, bring them to the state before the epoch, compute, make the delta durable, apply it to
the store. The lane may die at any point of it and be run again, here or elsewhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.config import StateSettings
from headgate.errors import StateError
from headgate.state.aggregate import SLICE, Aggregate
from headgate.state.checkpoint import Checkpoint, DeltaFile, Life
from headgate.state.delta import Delta, array_words, presence, words_array
from headgate.state.events import EventRun
from headgate.state.groups import Grouped, grouped, one_batch, positions_in
from headgate.state.hashing import slices_of
from headgate.state.location import Location
from headgate.state.opening import Opened, Opener
from headgate.state.operators import Batches, Changed, Events, KeyedOperator, KeyedRows
from headgate.state.rows import RowStore
from headgate.state.schema import WORD
from headgate.state.stores import locks_of, open_store

STYLES = ("delta", "full", "none")
"""What is made durable: what changed, everything (the classic way, to compare with), or nothing."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Everything that a lane needs to know for one epoch; made by the driver."""

    epoch: int
    lane: int
    slices: tuple[int, ...]
    life: Life
    store: str
    """Folder of this operator's slices on the host's local disk."""
    checkpoint: str
    """Folder of this operator in the checkpoint location: a path or a URI."""
    progress: Mapping[str, int] = field(default_factory=dict)
    watermark_ms: int | None = None
    """Timers up to here are due at the end of the epoch; the same again when an epoch is run again."""
    committed: tuple[DeltaFile, ...] | None = None
    """Files of the epoch before, if the driver knows them; saves each lane a read."""
    copies: tuple[str, ...] = ()
    """Store folders of other hosts that can be read from here."""
    slice_column: str = SLICE
    """Input column with the slice of each row; computed from the key if it is not there."""
    style: str = "delta"
    host: str = ""
    """Where the lane runs, if that is not simply this machine."""
    settings: StateSettings = field(default_factory=StateSettings)


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What a lane did, small enough for an accumulator."""

    epoch: int
    lane: int
    rows: int
    rows_out: int
    changed: int
    """Rows of state that changed."""
    busy_s: float
    slice_rows: Mapping[int, int]
    origins: Mapping[str, int]
    """Slices by where they came from: local, undone, caught up, copied, rebuilt, new."""
    file: DeltaFile | None
    """What the driver commits the epoch with."""
    host: str = ""


@dataclass(frozen=True, slots=True)
class LaneResult:
    """Report and changes of a lane that is done."""

    report: LaneReport
    delta: Delta

    def redo(self) -> pa.RecordBatch:
        """The changes as rows that pass through Spark: slice, key, new."""
        return self.delta.redo_batch()


def run_lane(
    operator: KeyedOperator,
    task: LaneTask,
    batches: Iterable[pa.RecordBatch],
    on_done: Callable[[LaneResult], None] = lambda result: None,
) -> Iterator[pa.RecordBatch]:
    """Run an epoch; yields what the operator puts out, and calls `on_done` before the last of it."""
    yield from _Lane(operator, task).run(batches, on_done)


class _Lane:
    def __init__(self, operator: KeyedOperator, task: LaneTask) -> None:
        if task.style not in STYLES:
            raise StateError(f'checkpoint style "{task.style}" is not one of {", ".join(STYLES)}')
        self.operator, self.task, self.schema = operator, task, operator.schema
        self.checkpoint = Checkpoint(Location.of(task.checkpoint), self.schema)
        identity = task.life.identity(self.schema)
        self.store = open_store(task.store, self.schema, identity, task.settings)
        self.locks = locks_of(task.store)
        self.busy_s = 0.0
        self.rows = self.rows_out = 0
        self.slice_rows = np.zeros(task.life.slices, np.int64)

    def run(self, batches: Iterable[pa.RecordBatch], on_done: Callable[[LaneResult], None]) -> Iterator[pa.RecordBatch]:
        self.locks.take(self.task.slices, self.task.settings.lock_wait_s)
        try:
            opened = self._opened()
            if isinstance(self.operator.processor, Events):
                yield from self._run_events(self.operator.processor, batches, opened, on_done)
                return
            output = self._run_arrays(batches, opened, on_done)
        finally:
            self.locks.release()
        if output is not None and output.num_rows:
            yield output

    def _opened(self) -> Opened:
        begun_s = time.perf_counter()
        known = {} if self.task.committed is None else {self.task.epoch - 1: self.task.committed}
        copies = [Path(folder) for folder in self.task.copies]
        opener = Opener(self.store, self.checkpoint, self.task.life, copies, known)
        opened = opener.at(self.task.slices, self.task.epoch)
        self.busy_s += time.perf_counter() - begun_s
        return opened

    # -- events --------------------------------------------------------------------------------------------------------

    def _run_events(
        self, events: Events, batches: Iterable[pa.RecordBatch], opened: Opened, on_done: Callable[[LaneResult], None]
    ) -> Iterator[pa.RecordBatch]:
        assert isinstance(self.store, RowStore)
        run = EventRun(events, self.schema, self.store, self.task.slices, self.task.settings.chunk_items)
        for batch in batches:
            begun_s = time.perf_counter()
            output = run.batch(self._without_slice(batch), self._counted(batch).tolist())
            self.busy_s += time.perf_counter() - begun_s
            if output is not None:
                self.rows_out += output.num_rows
                yield output
        begun_s = time.perf_counter()
        output = run.timers(self.task.watermark_ms)
        self.rows_out += 0 if output is None else output.num_rows
        result = self._committed(run.delta(self.task.epoch, self.task.progress), opened, begun_s)
        on_done(result)
        if output is not None:
            yield output

    # -- arrays --------------------------------------------------------------------------------------------------------

    def _run_arrays(
        self, batches: Iterable[pa.RecordBatch], opened: Opened, on_done: Callable[[LaneResult], None]
    ) -> pa.RecordBatch | None:
        batch = one_batch(batches)
        begun_s = time.perf_counter()
        if batch is None:
            batch = pa.RecordBatch.from_pylist([], self.schema.key_schema)
        columns = self.schema.key_columns(batch)
        groups = grouped(self.schema, columns, self._counted(batch, columns), self.task.slices)
        old = self.store.read(groups.keys)
        changed = self._changed(self._without_slice(batch), groups, old)
        new = self._values(changed)
        delta = Delta(self.task.epoch, groups.keys, old, new, self.task.progress)
        output = changed.output if batch.num_rows else None
        self.rows_out = 0 if output is None else output.num_rows
        on_done(self._committed(delta, opened, begun_s))
        return output

    def _changed(self, batch: pa.RecordBatch, groups: Grouped, old: pa.Array) -> Changed:
        processor = self.operator.processor
        present = presence(old)
        state = self.schema.fields_from_words(self._words(old))
        if isinstance(processor, Aggregate):
            if not batch.num_rows:
                return Changed(state)
            merged = processor.merged(state, present, processor.reduced(processor.lift(batch), groups))
            columns = [*self._keys(batch, groups).columns, *processor.output(merged)]
            return Changed(merged, pa.RecordBatch.from_arrays(columns, schema=self.operator.output_schema))
        assert isinstance(processor, Batches)
        if not batch.num_rows:
            return Changed(state)
        rows = batch.take(pa.array(groups.order))
        return processor.on_batch(KeyedRows(rows, groups.starts, self._keys(batch, groups), state, present))

    def _keys(self, batch: pa.RecordBatch, groups: Grouped) -> pa.RecordBatch:
        """One row per key, from its first row: cheaper than decoding the key."""
        first = pa.array(groups.order[groups.starts])
        columns = [column.take(first) for column in self.schema.key_columns(batch)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.key_schema)

    def _words(self, values: pa.Array) -> npt.NDArray[np.uint64]:
        """Values as words; zeros where there are none."""
        if self.schema.tabular:
            words = array_words(values)
            return words if not values.null_count else np.where(presence(values)[:, None], words, np.uint64(0))
        nothing = bytes(WORD * len(self.schema.fields))
        flat = b"".join(values.fill_null(nothing).to_pylist())
        return np.frombuffer(flat, np.uint64).reshape(-1, len(self.schema.fields))

    def _values(self, changed: Changed) -> pa.Array:
        words = self.schema.fields_as_words(changed.state)
        if self.schema.tabular:
            return words_array(words, None if changed.gone is None else ~changed.gone)
        flat, width = words.tobytes(), WORD * words.shape[1]
        values: list[bytes | None] = [flat[at : at + width] for at in range(0, len(flat), width)]
        if changed.gone is not None:
            values = [None if gone else value for value, gone in zip(values, changed.gone, strict=True)]
        return pa.array(values, pa.binary())

    # -- both ----------------------------------------------------------------------------------------------------------

    def _counted(self, batch: pa.RecordBatch, columns: Sequence[pa.Array] | None = None) -> npt.NDArray[Any]:
        """The slice of each row."""
        self.rows += batch.num_rows
        if self.task.slice_column in batch.schema.names:
            found: npt.NDArray[Any] = batch.column(self.task.slice_column).to_numpy(zero_copy_only=False)
        else:
            found = slices_of(columns or self.schema.key_columns(batch), self.task.life.slices)
        positions_in(np.array(self.task.slices, np.int32), found)
        self.slice_rows += np.bincount(found, minlength=len(self.slice_rows))
        return found

    def _without_slice(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        name = self.task.slice_column
        return batch.drop_columns([name]) if name in batch.schema.names else batch

    def _committed(self, delta: Delta, opened: Opened, begun_s: float) -> LaneResult:
        file = self._durable(delta) if self.task.style == "delta" else None
        name = "" if file is None else file.name
        headers = _next_headers(opened, delta, name)
        self.store.apply(delta, headers)
        if self.task.style == "full":
            whole = self.checkpoint.whole(delta.epoch, {slice_: self.store.scan(slice_) for slice_ in self.task.slices})
            file = self._durable(whole)
        self.busy_s += time.perf_counter() - begun_s
        return LaneResult(self._report(delta, opened, file), delta)

    def _durable(self, delta: Delta) -> DeltaFile:
        return self.checkpoint.write_delta(delta, self.task.lane)

    def _report(self, delta: Delta, opened: Opened, file: DeltaFile | None) -> LaneReport:
        counted = {slice_: int(self.slice_rows[slice_]) for slice_ in self.task.slices}
        return LaneReport(
            self.task.epoch,
            self.task.lane,
            self.rows,
            self.rows_out,
            len(delta),
            self.busy_s,
            counted,
            opened.counts(),
            file,
            self.task.host or os.uname().nodename,
        )


def _next_headers(opened: Opened, delta: Delta, name: str) -> dict[int, Any]:
    """One header object for all slices that were alike, so that it is encoded once, not once per slice."""
    fresh: dict[Any, Any] = {}
    headers = {}
    for slice_, header in opened.headers.items():
        alike = header.version, header.delta, id(header.progress)
        if alike not in fresh:
            fresh[alike] = header.next(delta.epoch, name, delta.progress)
        headers[slice_] = fresh[alike]
    return headers
