"""One epoch of one lane of a keyed operator: what a Spark task runs between its input and its output.

    done = []
    for batch in run_lane(operator, task, batches, done.append):
        ...                       # rows put out
    report = done[0]              # to the driver, which commits the epoch with all lanes' reports

A lane locks its slices, brings them to the state before the epoch, computes, makes the delta durable, and applies the delta to the
store. A lane may die at any point and run again, on this host or another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.config import StateSettings
from headgate.state.aggregate import SLICE, Aggregate
from headgate.state.checkpoint import Checkpoint, DeltaFile, Life
from headgate.state.delta import Delta, array_words, presence, words_array
from headgate.state.events import EventRun
from headgate.state.groups import RowGroups, group_rows, one_batch, positions_in
from headgate.state.hashing import slices_of
from headgate.state.hot_keys import fullest_codes, fullest_keys
from headgate.state.location import Location
from headgate.state.opening import Opened, Opener
from headgate.state.operators import Batches, Changed, Events, KeyedOperator, KeyedRows
from headgate.state.rows import RowStore
from headgate.state.schema import WORD
from headgate.state.store import on_disk
from headgate.state.stores import locks_of, open_store


@dataclass(frozen=True, slots=True)
class LaneTask:
    """The input of a lane for one epoch, from the driver."""

    epoch: int
    lane: int
    slices: tuple[int, ...]
    life: Life
    store: str
    """Folder of this operator's slices on the host's local disk."""
    checkpoint: str
    """Folder of this operator in the checkpoint location: a path or a URI."""
    watermark_ms: int | None = None
    """Timers up to this time are due at the end of the epoch; an epoch that runs again has the same watermark."""
    committed: tuple[DeltaFile, ...] | None = None
    """Files of the epoch before, which save each lane a read; None if the driver does not know the files."""
    slice_column: str = SLICE
    """Input column with the slice of each row; a lane computes the slice from the key if the column is missing."""
    settings: StateSettings = field(default_factory=StateSettings)


@dataclass(frozen=True, slots=True)
class LaneReport:
    """The report of a lane, small enough for an accumulator."""

    rows: int
    changed: int
    """Rows of state that changed."""
    slice_rows: Mapping[int, int]
    origins: Mapping[str, int]
    """Slices by where they came from: local, undone, caught up, rebuilt, new."""
    file: DeltaFile
    """The delta that the driver commits with the epoch."""
    next_timer_ms: int | None = None
    """The earliest timer of the lane's keys that is not due yet."""
    hot_keys: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each of the lane's fullest keys."""


def run_lane(
    operator: KeyedOperator,
    task: LaneTask,
    batches: Iterable[pa.RecordBatch],
    on_done: Callable[[LaneReport], None] = lambda report: None,
) -> Iterator[pa.RecordBatch]:
    """Run an epoch; yields the output of the operator, and calls `on_done` before the last batch."""
    yield from _Lane(operator, task).run(batches, on_done)


class _Lane:
    def __init__(self, operator: KeyedOperator, task: LaneTask) -> None:
        self.operator, self.task, self.schema = operator, task, operator.schema
        self.checkpoint = Checkpoint(Location.of(task.checkpoint), self.schema)
        identity = task.life.identity(self.schema)
        with on_disk(task.store, task.settings.least_free_mb):
            self.store = open_store(task.store, self.schema, identity, task.settings)
            self.locks = locks_of(task.store)
        self.rows = 0
        self.slice_rows = np.zeros(task.life.slices, np.int64)
        self.next_timer_ms: int | None = None
        self.hot_keys: Mapping[str, int] = {}

    def run(self, batches: Iterable[pa.RecordBatch], on_done: Callable[[LaneReport], None]) -> Iterator[pa.RecordBatch]:
        self.locks.take(self.task.slices, self.task.settings.lock_wait_s)
        try:
            opened = self._open_slices()
            if isinstance(self.operator.processor, Events):
                yield from self._run_events(self.operator.processor, batches, opened, on_done)
                return
            output = self._run_arrays(batches, opened, on_done)
        finally:
            self.locks.release()
        if output is not None and output.num_rows:
            yield output

    def _open_slices(self) -> Opened:
        known = {} if self.task.committed is None else {self.task.epoch - 1: self.task.committed}
        opener = Opener(self.store, self.checkpoint, self.task.life, committed=known)
        with on_disk(self.task.store):
            return opener.at(self.task.slices, self.task.epoch)

    # -- events --------------------------------------------------------------------------------------------------------

    def _run_events(
        self, events: Events, batches: Iterable[pa.RecordBatch], opened: Opened, on_done: Callable[[LaneReport], None]
    ) -> Iterator[pa.RecordBatch]:
        assert isinstance(self.store, RowStore)
        run = EventRun(events, self.schema, self.store, self.task.slices, self.task.settings.chunk_items)
        for batch in batches:
            output = run.batch(self._drop_slice_column(batch), self._count_rows(batch).tolist())
            if output is not None:
                yield output
        output = run.timers(self.task.watermark_ms)
        self.next_timer_ms = run.next_timer_ms()
        self.hot_keys = fullest_codes(self.schema, run.rows_by_key)
        on_done(self._write_changes(run.delta(self.task.epoch), opened))
        if output is not None:
            yield output

    # -- arrays --------------------------------------------------------------------------------------------------------

    def _run_arrays(
        self, batches: Iterable[pa.RecordBatch], opened: Opened, on_done: Callable[[LaneReport], None]
    ) -> pa.RecordBatch | None:
        batch = one_batch(batches)
        if batch is None:
            batch = pa.RecordBatch.from_pylist([], self.schema.key_schema)
        columns = self.schema.key_columns(batch)
        groups = group_rows(self.schema, columns, self._count_rows(batch, columns), self.task.slices)
        self.hot_keys = fullest_keys(self.schema, groups)
        old = self.store.read(groups.keys)
        changed = self._process(self._drop_slice_column(batch), groups, old)
        new = self._values(changed)
        delta = Delta(self.task.epoch, groups.keys, old, new)
        on_done(self._write_changes(delta, opened))
        return changed.output if batch.num_rows else None

    def _process(self, batch: pa.RecordBatch, groups: RowGroups, old: pa.Array) -> Changed:
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

    def _keys(self, batch: pa.RecordBatch, groups: RowGroups) -> pa.RecordBatch:
        """One row per key, taken from the first row of the key: cheaper than decoding the key."""
        first = pa.array(groups.order[groups.starts])
        columns = [column.take(first) for column in self.schema.key_columns(batch)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.key_schema)

    def _words(self, values: pa.Array) -> npt.NDArray[np.uint64]:
        """Values as words; zeros for keys without state."""
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

    def _count_rows(self, batch: pa.RecordBatch, columns: Sequence[pa.Array] | None = None) -> npt.NDArray[Any]:
        """Count the rows of each slice; return the slice of each row."""
        self.rows += batch.num_rows
        if self.task.slice_column in batch.schema.names:
            found: npt.NDArray[Any] = batch.column(self.task.slice_column).to_numpy(zero_copy_only=False)
        else:
            found = slices_of(columns or self.schema.key_columns(batch), self.task.life.slices)
        positions_in(np.array(self.task.slices, np.int32), found)
        self.slice_rows += np.bincount(found, minlength=len(self.slice_rows))
        return found

    def _drop_slice_column(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        name = self.task.slice_column
        return batch.drop_columns([name]) if name in batch.schema.names else batch

    def _write_changes(self, delta: Delta, opened: Opened) -> LaneReport:
        file = self.checkpoint.write_delta(delta, self.task.lane)
        with on_disk(self.task.store):
            self.store.apply(delta, _next_headers(opened, delta, file.name))
        counted = {slice_: int(self.slice_rows[slice_]) for slice_ in self.task.slices}
        return LaneReport(self.rows, len(delta), counted, opened.counts(), file, self.next_timer_ms, self.hot_keys)


def _next_headers(opened: Opened, delta: Delta, name: str) -> dict[int, Any]:
    """The next headers; slices with equal headers share one object, which the store encodes once."""
    fresh: dict[Any, Any] = {}
    headers = {}
    for slice_, header in opened.headers.items():
        alike = header.version, header.delta
        if alike not in fresh:
            fresh[alike] = header.next(delta.epoch, name)
        headers[slice_] = fresh[alike]
    return headers
