"""Delta tables as a sink, exactly once: an application transaction names the job's life and sink, its version is the epoch.

Lanes write Parquet files. Without key and partitions, the driver adds these files to the table in one transaction. Otherwise the lanes
stage the files in a folder below the table, and the driver merges or appends their rows in one transaction. A second application
transaction holds the number of the newest start: an older start commits nothing.

A commit is never retried blindly: if another writer was faster, the sink reads the table again before it commits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from headgate.errors import EngineError
from headgate.spark.connections import delta as tables
from headgate.spark.connections.delta import TableLocation
from headgate.spark.sinks.staged import Claim, Receipt, cast, check_key, fitting, key_of, write_rows
from headgate.state.faults import reach

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame

COMMITS = 20
"""Most attempts of a commit while other writers are faster."""
ASIDE = "_headgate"
"""Folder for staged files below the table; readers of Delta tables ignore names that begin with an underscore."""
NEVER = -1
"""Epoch of a writer that has written none."""
POSITION = "_headgate_position"
LONGEST = 32
"""Characters of a text in the statistics of a file."""


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A sink that appends every row of an epoch to a Delta table, or merges it by key."""

    uri: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    reads_once: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        tables.check(self.uri, self.storage)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        write_rows(self, rows, epoch)

    def begin(self, claim: Claim, columns: pa.Schema) -> DeltaStage | None:
        """Create the table if there is none, and fence older starts."""
        place = TableLocation.of(self.uri, self.storage, claim.writing.patience.table_s)
        check_key(self.key, columns, place.name)
        with place.using():
            self._create(place, columns)
            fence(place, claim)
            table = place.table()
            if not is_new(table, claim, place):
                _make_durable(place, _version_of(place, table.version(), claim))
                return None
            target = fitting(columns, pa.schema(table.schema().to_arrow()), place.name)
            aside = f"{ASIDE}/{sha256(claim.writer.encode()).hexdigest()[:16]}"
            _remove(place, aside)
            rewrites = bool(self.key or table.metadata().partition_columns)
        return DeltaStage(place, claim, target, self.key, aside if rewrites else "")

    def _create(self, place: TableLocation, columns: pa.Schema) -> None:
        from deltalake import DeltaTable

        if not place.exists():
            if place.local is not None:
                place.local.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                place.uri,
                columns,
                mode="ignore",
                partition_by=list(self.partition_by),
                storage_options=dict(place.options),
            )


def delta(
    uri: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    storage: Mapping[str, str] | None = None,
) -> DeltaSink:
    """Appends rows to a Delta table, or with `key` updates the rows that have the same key and inserts the others.

    `storage` has the options of the object store; a secret is best written as `env:NAME` or `file:PATH`. The table is created with
    the first epoch if there is none. With `key`, the last row of a key in an epoch stays; rows of a key follow each other only within
    a lane.

    >>> delta("s3://lake/orders", key="id", storage={"AWS_SECRET_ACCESS_KEY": "env:LAKE_SECRET"})
    DeltaSink(uri='s3://lake/orders', key=('id',), partition_by=())
    """
    return DeltaSink(os.fspath(uri), key_of(key), key_of(partition_by), dict(storage or {}))


# -- the transaction


def is_new(table: DeltaTable, claim: Claim, place: TableLocation) -> bool:
    """Whether the table lacks the epoch; raises for an older start."""
    epoch = table.transaction_version(claim.writer)
    return claim.is_new(_start_of(table, claim), NEVER if epoch is None else epoch, place.name)


def is_unknown(table: DeltaTable, claim: Claim, place: TableLocation) -> bool:
    """Whether the table lacks the number of the start; raises for an older start."""
    is_new(table, claim, place)
    return _start_of(table, claim) < claim.start


def commit_on_top(
    place: TableLocation,
    claim: Claim,
    act: Callable[[DeltaTable], None],
    is_due: Callable[[DeltaTable, Claim, TableLocation], bool] = is_new,
) -> int | None:
    """Let `act` commit to the newest version, again if another writer was faster; return the new version, None if no commit is due."""
    from deltalake.exceptions import CommitFailedError

    faster: Exception | None = None
    for _ in range(COMMITS):
        table = place.table()
        if not is_due(table, claim, place):
            return None
        version = table.version()
        try:
            act(table)
            return version + 1
        except CommitFailedError as error:
            faster = error
    raise EngineError(f"{place.name}: other writers were faster {COMMITS} times; the job tries again") from faster


def fence(place: TableLocation, claim: Claim) -> None:
    """Commit the number of this start, after which no older start can commit."""

    def mark(table: DeltaTable) -> None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=_properties(claim))

    commit_on_top(place, claim, mark, is_unknown)


def _properties(claim: Claim, epoch: int | None = None) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    epochs = [] if epoch is None else [Transaction(claim.writer, epoch)]
    return CommitProperties(
        max_commit_retries=0, app_transactions=[Transaction(_start_id(claim), claim.start), *epochs]
    )


def _start_of(table: DeltaTable, claim: Claim) -> int:
    return table.transaction_version(_start_id(claim)) or 0


def _start_id(claim: Claim) -> str:
    return f"{claim.writer}/start"


# -- an attempt


@dataclass(frozen=True, slots=True)
class DeltaStage:
    """Parquet files that are not yet part of the table."""

    place: TableLocation
    claim: Claim
    target: pa.Schema
    key: tuple[str, ...]
    aside: str
    """The folder of files whose rows the driver writes again; empty if the files become files of the table."""

    def put(self, batches: Iterator[pa.RecordBatch], lane: int) -> Receipt:
        name = f"part-{lane:05d}-{uuid4().hex}.parquet"
        path = f"{self.aside}/{name}" if self.aside else name
        collected: list[Any] = []
        with self.place.using(self.claim.writing.sink):
            folder = self.place.files()
            if self.aside and self.place.local is not None:
                (self.place.local / self.aside).mkdir(parents=True, exist_ok=True)
            with (
                folder.open_output_stream(path) as stream,
                pq.ParquetWriter(stream, self.target, metadata_collector=collected) as writer,
            ):
                for batch in batches:
                    writer.write_batch(cast(batch, self.target))
            if not self.aside:
                self.place.make_durable(path)
            size = folder.get_file_info(path).size
        return Receipt(path, collected[0].num_rows, lane, size, json.dumps(statistics(collected[0])))

    def commit(self, receipts: Sequence[Receipt]) -> None:
        with self.place.using():
            write = self._rewriting(receipts) if self.aside else partial(self._add, receipts)
            _make_durable(self.place, commit_on_top(self.place, self.claim, write))
            if self.aside:
                _remove(self.place, self.aside)

    def _add(self, receipts: Sequence[Receipt], table: DeltaTable) -> None:
        from deltalake.transaction import AddAction

        now_ms = round(1000 * time.time())
        added = [AddAction(one.name, one.size, {}, now_ms, True, one.stats) for one in receipts]
        reach("sink: committing")
        properties = _properties(self.claim, self.claim.epoch)
        table.create_write_transaction(list(added), "append", table.schema(), commit_properties=properties)

    def _rewriting(self, receipts: Sequence[Receipt]) -> Callable[[DeltaTable], None]:
        return partial(self._rewrite, self._staged(receipts))

    def _rewrite(self, source: pa.Table, table: DeltaTable) -> None:
        from deltalake import write_deltalake

        reach("sink: committing")
        properties = _properties(self.claim, self.claim.epoch)
        if not self.key:
            write_deltalake(table, source, mode="append", commit_properties=properties)
            return
        same_key = " AND ".join(f'source."{name}" = target."{name}"' for name in self.key)
        merge = table.merge(source, same_key, "source", "target", commit_properties=properties)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _staged(self, receipts: Sequence[Receipt]) -> pa.Table:
        """The rows of all lanes; with a key, the last one of each."""
        folder = self.place.files()
        parts = []
        for receipt in receipts:
            with folder.open_input_file(receipt.name) as file:
                parts.append(pq.ParquetFile(file).read())
        rows = pa.concat_tables(parts)
        return last_of_key(rows, self.key, self.place.name) if self.key else rows


def _make_durable(place: TableLocation, version: int | None) -> None:
    """Force the files of a version to a local disk, which the library does not do: Spark never runs a committed epoch again."""
    if place.local is not None and version is not None:
        for action in _actions(place.local, version):
            if "add" in action:
                place.make_durable(unquote(action["add"]["path"]))
        place.make_durable(_entry(version))


def _version_of(place: TableLocation, newest: int, claim: Claim) -> int | None:
    """Find the version of the writer's last epoch; the attempt that made it may have been killed before it was durable."""
    if place.local is None:
        return None
    for version in range(newest, 0, -1):
        if not (place.local / _entry(version)).exists():
            return None
        if any(action.get("txn", {}).get("appId") == claim.writer for action in _actions(place.local, version)):
            return version
    return None


def _actions(table: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (table / _entry(version)).read_text().splitlines()]


def _entry(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def last_of_key(rows: pa.Table, key: tuple[str, ...], where: str) -> pa.Table:
    """Return the last row of each key."""
    for name in key:
        if rows.column(name).null_count:
            raise EngineError(f'a row has no "{name}", which is the key of {where}; leave such rows out')
    positions = rows.select(list(key)).append_column(POSITION, pa.array(range(rows.num_rows)))
    newest = positions.group_by(list(key)).aggregate([(POSITION, "max")]).column(f"{POSITION}_max")
    return rows.take(newest.take(pc.sort_indices(newest)))


def statistics(metadata: Any) -> dict[str, Any]:
    """Return statistics with which readers skip files: number of rows, nulls per column, and the range of columns with short values."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [[group.column(number) for group in groups] for number in range(metadata.num_columns)]
    known = {
        parts[0].path_in_schema: [part.statistics for part in parts]
        for parts in columns
        if "." not in parts[0].path_in_schema and all(part.statistics is not None for part in parts)
    }
    ranges = {name: found for name, parts in known.items() if (found := _range(parts)) is not None}
    return {
        "numRecords": metadata.num_rows,
        "nullCount": {name: sum(part.null_count for part in parts) for name, parts in known.items()},
        "minValues": {name: _json(low) for name, (low, _) in ranges.items()},
        "maxValues": {name: _json(high) for name, (_, high) in ranges.items()},
    }


def _range(parts: list[Any]) -> tuple[Any, Any] | None:
    """Minimum and maximum of a column; None for floating point numbers, whose statistics leave out NaN, and for truth values."""
    if not all(part.has_min_max for part in parts):
        return None
    low, high = min(part.min for part in parts), max(part.max for part in parts)
    is_short = isinstance(low, str) and max(len(low), len(high)) <= LONGEST
    is_number = isinstance(low, int) and not isinstance(low, bool)
    return (low, high) if is_short or is_number or isinstance(low, date) else None


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if value.tzinfo is not None else "%Y-%m-%dT%H:%M:%S.%f")
    return value.isoformat() if isinstance(value, date) else value


def _remove(place: TableLocation, folder: str) -> None:
    """Remove the staged files of earlier attempts."""
    found = place.files()
    for info in found.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        found.delete_file(info.path)
