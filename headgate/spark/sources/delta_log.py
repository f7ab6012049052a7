"""The rows that each version added to a Delta table: entries of the log, read as the Delta protocol defines them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.spark.connections.delta import TableLocation

ENTRIES = 10_000
"""Most versions that a process caches; versions never change."""


@dataclass(frozen=True, slots=True)
class Added:
    """Rows of a file that a version added."""

    path: str
    first: int
    last: int
    """Row after the last one of the range."""
    at_ms: int
    """Time at which the file was written, in milliseconds since the Unix epoch."""
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows in the range."""
        return self.last - self.first

    def cut(self, first: int, rows: int) -> Added:
        """Return the part of the range with `rows` rows from row `first` of the range on."""
        return replace(self, first=self.first + first, last=min(self.last, self.first + first + rows))


@dataclass(frozen=True, slots=True)
class Version:
    """The changes of one commit."""

    files: tuple[Added, ...]
    changes: bool = False
    """Whether the version removed or changed existing rows."""
    deletes: bool = False
    """Whether the version marks rows of its files as deleted, which readers of plain files do not see."""


def version_at(place: TableLocation, table: str, number: int) -> Version | None:
    """Return a version; None if it does not exist or its log entry was removed. `table` is the id of the table at this place."""
    try:
        return _entry(place, table, number)
    except FileNotFoundError:
        return None


@lru_cache(ENTRIES)
def _entry(place: TableLocation, table: str, number: int) -> Version:
    with place.files().open_input_stream(f"_delta_log/{number:020d}.json") as stream:
        actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
    added = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
    changes = any(action["remove"].get("dataChange", True) for action in actions if "remove" in action)
    deletes = any(one.get("deletionVector") for one in added)
    return Version(tuple(_added(place, one) for one in added), changes, deletes)


def _added(place: TableLocation, action: dict[str, Any]) -> Added:
    path = unquote(action["path"])
    rows = json.loads(action.get("stats") or "{}").get("numRecords")
    partition = tuple((action.get("partitionValues") or {}).items())
    return Added(path, 0, _counted(place, path) if rows is None else int(rows), action["modificationTime"], partition)


def _counted(place: TableLocation, path: str) -> int:
    with place.files().open_input_file(path) as file:
        return int(pq.read_metadata(file).num_rows)


@lru_cache(16)
def snapshot_at(place: TableLocation, table: str, number: int) -> Version:
    """All rows that the table had at a version."""
    actions = pa.table(place.table(number).get_add_actions(flatten=False)).to_pylist()
    return Version(tuple(sorted((_active(place, one) for one in actions), key=lambda added: added.path)))


def _active(place: TableLocation, action: dict[str, Any]) -> Added:
    path, rows = unquote(action["path"]), action.get("num_records")
    partition = tuple((name, _text(value)) for name, value in (action.get("partition") or {}).items())
    return Added(path, 0, _counted(place, path) if rows is None else int(rows), action["modification_time"], partition)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


# -- reading


def batches_of(place: TableLocation, added: Added, size: int) -> Iterator[pa.RecordBatch]:
    """Read the rows of a part of a file, with the columns of the file; row groups outside of the part are skipped."""
    with place.files().open_input_file(added.path) as file:
        parquet = pq.ParquetFile(file)
        at = 0
        for number in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            first, last = max(added.first - at, 0), min(added.last - at, rows)
            at += rows
            if first < last:
                yield from _within(parquet.iter_batches(size, [number]), first, last)


def _within(batches: Iterator[pa.RecordBatch], first: int, last: int) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        cut = batch.slice(max(first - at, 0), max(min(last - at, batch.num_rows) - max(first - at, 0), 0))
        at += batch.num_rows
        if cut.num_rows:
            yield cut
