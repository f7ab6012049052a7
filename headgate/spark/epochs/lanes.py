"""The inside of a lane: the user's function between two Arrow streams; each of its errors becomes one sentence.

Everything here runs in Spark's Python workers.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate import files
from headgate.state.output_rows import MisfitError, as_batch, undeclared

Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


METERED = "meter_"
EPOCH = "streaming.sql.batchId"
"""Spark property with the number of a task's epoch: a lane is planned once, and is the same in every epoch."""


@dataclass(frozen=True, slots=True)
class Metered:
    """A lane under a name that Spark shows in its plan, by which Spark's row counts are attributed to the lane."""

    lane: Batches
    meter: int

    @property
    def __name__(self) -> str:
        return f"{METERED}{self.meter}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.lane(batches)


MOST_TRACE = 4_000
"""Length limit of a stack trace in a report of a lane, in characters."""


class LaneError(Exception):
    """An error of a lane, in one sentence that names the lane's operator."""


def with_trace(lane_error: LaneError, error: BaseException) -> LaneError:
    """Add the stack trace of the cause to a lane's error as a note: Spark drops causes, and keeps notes."""
    lane_error.add_note("".join(traceback.format_exception(error))[-MOST_TRACE:])
    return lane_error


class TransientLaneError(LaneError):
    """An error of a lane that can pass without a change, such as a full disk; `reasons` recognises the class by its name."""


@dataclass(frozen=True, slots=True)
class BatchLane:
    """A function from record batches to record batches, with its output checked against the declared columns."""

    operator: str
    function: Batches
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self._put_out(batches):
            yield self._as_declared(batch)

    def _put_out(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        try:
            put_out = self.function(iter(batches))
            if isinstance(put_out, Iterable):
                yield from put_out
                return
        except LaneError:
            raise
        except Exception as error:
            lane_error = LaneError(f'operator "{self.operator}": {type(error).__name__}: {error}')
            raise with_trace(lane_error, error) from error
        raise LaneError(
            f'operator "{self.operator}": its function returned {type(put_out).__name__};'
            " it must yield Arrow record batches"
        )

    def _as_declared(self, batch: Any) -> pa.RecordBatch:
        if not isinstance(batch, pa.RecordBatch):
            raise LaneError(
                f'operator "{self.operator}": it put out {type(batch).__name__}; it must yield Arrow record batches'
            )
        if batch.schema.equals(self.schema):
            return batch
        extra = [name for name in batch.schema.names if self.schema.get_field_index(name) < 0]
        if extra:
            raise LaneError(
                f'operator "{self.operator}": it put out {undeclared(extra)}; leave it out, or add it to the schema'
            )
        return pa.RecordBatch.from_arrays([self._column(batch, field) for field in self.schema], schema=self.schema)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            names = ", ".join(batch.schema.names) or "none"
            raise LaneError(
                f'operator "{self.operator}": it declared the column "{field.name}" but put out {names} only'
            )
        try:
            return batch.column(index).cast(field.type)
        except pa.ArrowException as error:
            raise LaneError(
                f'operator "{self.operator}": its column "{field.name}" is declared as {field.type} but was put out as'
                f" {batch.schema.types[index]}, which does not fit: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class EventLane:
    """A function from one row to any number of rows; a row on which the function raises an error goes to `dead_letter`, if that is set."""

    operator: str
    function: Callable[[Mapping[str, Any]], Any]
    schema: pa.Schema
    dead_letter: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        bad: list[str] = []
        for batch in batches:
            yield self._checked([row for event in batch.to_pylist() for row in self._rows(event, bad)])
        if self.dead_letter is not None:
            self._set_aside(bad)

    def _rows(self, event: Mapping[str, Any], bad: list[str]) -> list[Mapping[str, Any]]:
        try:
            put_out = self.function(event)
            rows = [] if put_out is None else [put_out] if isinstance(put_out, Mapping) else list(put_out)
            if not all(isinstance(row, Mapping) for row in rows):
                raise TypeError(f"it put out {put_out!r:.100}; it must put out a dict, several, or None")
            if self.dead_letter is not None:
                as_batch(rows, self.schema)  # only the row that does not fit goes to `dead_letter`
            return rows
        except Exception as error:
            reason = str(error) if isinstance(error, MisfitError) else f"{type(error).__name__}: {error}"
            if self.dead_letter is None:
                lane_error = LaneError(f'operator "{self.operator}": {reason}, for the row {_shown(event)}')
                raise with_trace(lane_error, error) from error
            bad.append(json.dumps({"reason": reason, "row": event}, default=str))
            return []

    def _checked(self, rows: list[Mapping[str, Any]]) -> pa.RecordBatch:
        try:
            return as_batch(rows, self.schema)
        except MisfitError as error:
            raise LaneError(f'operator "{self.operator}": {error}') from None

    def _set_aside(self, bad: list[str]) -> None:
        """Write failed rows to one file per epoch and lane, as a whole: a lane that runs again replaces the file."""
        from pyspark import TaskContext

        context = TaskContext.get()
        lane = context.partitionId() if context is not None else 0
        epoch = context.getLocalProperty(EPOCH) if context is not None else 0
        path = Path(str(self.dead_letter)) / f"epoch={epoch}" / f"{self.operator}-{lane}.jsonl"
        if not bad:
            path.unlink(missing_ok=True)
            return
        files.replace(path, ("\n".join(bad) + "\n").encode(), durable=False)


def _shown(event: Mapping[str, Any], most: int = 200) -> str:
    text = str(dict(event))
    return text if len(text) <= most else f"{text[:most]}…"
