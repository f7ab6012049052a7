"""Per-event processing: each row meets the state of its key; changes are collected row by row and become the epoch's delta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import StateError
from headgate.state.delta import Delta, Keys
from headgate.state.library import KeyState
from headgate.state.operators import Events
from headgate.state.output_rows import MisfitError, as_batch
from headgate.state.rows import RowStore
from headgate.state.schema import StateSchema
from headgate.state.timers import Timers


class SliceRows:
    """Rows of one slice as the epoch sees them: the rows of the store, with the changes of the epoch on top."""

    def __init__(self, store: RowStore, slice_: int) -> None:
        self._store, self._slice = store, slice_
        self.old: dict[bytes, bytes | None] = {}
        self.new: dict[bytes, bytes | None] = {}

    def get(self, row: bytes) -> bytes | None:
        if row in self.new:
            return self.new[row]
        if row not in self.old:
            self.old[row] = self._store.get(self._slice, row)
        return self.old[row]

    def set(self, row: bytes, value: bytes | None) -> None:
        self.get(row)
        self.new[row] = value

    def changes(self) -> list[tuple[bytes, bytes | None, bytes | None]]:
        """The changed rows in order, each with its values before and after; a row with its old value is left out."""
        found = ((row, self.old.get(row), new) for row, new in self.new.items())
        return sorted((row, old, new) for row, old, new in found if old != new)


class EventRun:
    """One epoch of a per-event processor on the slices of one lane."""

    def __init__(self, events: Events, schema: StateSchema, store: RowStore, slices: Sequence[int], chunk: int) -> None:
        self._events, self._schema, self._chunk = events, schema, chunk
        self._rows = {slice_: SliceRows(store, slice_) for slice_ in sorted(slices)}
        self._timers = {slice_: Timers(rows) for slice_, rows in self._rows.items()}
        self._states: dict[tuple[int, bytes], KeyState] = {}
        self.rows_by_key: Counter[bytes] = Counter()

    def batch(self, batch: pa.RecordBatch, row_slices: Sequence[int]) -> pa.RecordBatch | None:
        """Process rows in their order; return the rows that the processor emitted."""
        emitted: list[Mapping[str, Any]] = []
        columns = self._schema.key_columns(batch)
        coded = self._schema.key_as_bytes(columns).to_pylist()
        self.rows_by_key.update(coded)
        keys = (
            columns[0].to_pylist() if len(columns) == 1 else list(zip(*(c.to_pylist() for c in columns), strict=True))
        )
        on_event = self._events.on_event
        for key, code, slice_, event in zip(keys, coded, row_slices, batch.to_pylist(), strict=True):
            on_event(key, event, self._state(slice_, code), emitted.append)
        return self._put_out(emitted)

    def timers(self, watermark_ms: int | None) -> pa.RecordBatch | None:
        """Call `on_timer` for the timers that are due; return the rows that the processor emitted."""
        emitted: list[Mapping[str, Any]] = []
        if watermark_ms is None or self._events.on_timer is None:
            return None
        for slice_, timers in self._timers.items():
            for at_ms, code in timers.due(watermark_ms):
                self._events.on_timer(self._key(code), at_ms, self._state(slice_, code), emitted.append)
        return self._put_out(emitted)

    def next_timer_ms(self) -> int | None:
        """The earliest timer of all slices, in milliseconds; None without a timer or without `on_timer`."""
        if self._events.on_timer is None:
            return None
        return min((at_ms for timers in self._timers.values() if (at_ms := timers.next_ms()) is not None), default=None)

    def delta(self, epoch: int) -> Delta:
        """The changes of the epoch in all slices of the lane."""
        for state in self._states.values():
            state.flush()
        for timers in self._timers.values():
            timers.flush()
        changes = {slice_: rows.changes() for slice_, rows in self._rows.items()}
        flat = [change for found in changes.values() for change in found]
        offsets = np.concatenate([[0], np.cumsum([len(found) for found in changes.values()])]).astype(np.int64)
        columns = [pa.array([change[index] for change in flat], pa.binary()) for index in range(3)]
        return Delta(epoch, Keys(np.array(list(changes), np.int32), offsets, columns[0]), columns[1], columns[2])

    def _state(self, slice_: int, code: bytes) -> KeyState:
        state = self._states.get((slice_, code))
        if state is None:
            rows, timers = self._rows[slice_], self._timers[slice_]
            state = self._states[slice_, code] = KeyState(rows, code, self._events.state, self._chunk, timers)
        return state

    def _key(self, code: bytes) -> Any:
        row = self._schema.keys_from_bytes([code]).to_pylist()[0]
        values = tuple(row.values())
        return values[0] if len(values) == 1 else values

    def _put_out(self, emitted: list[Mapping[str, Any]]) -> pa.RecordBatch | None:
        if not emitted:
            return None
        try:
            return as_batch(emitted, self._events.output)
        except MisfitError as error:
            raise StateError(str(error)) from None
