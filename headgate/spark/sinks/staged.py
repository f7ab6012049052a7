"""Tables as sinks: the lanes put the rows of an epoch aside in parallel, and the driver commits all of them at once.

The commit records the life of the job, the sink, the number of the start and the epoch in the table's own transaction. An epoch that
runs again after a crash is therefore committed once, and an older start of the job commits nothing once a newer start has begun.
If the table has an epoch already, the lanes compute the epoch again, so that its rows are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from headgate.errors import EngineError, GraphError
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.quoting import column_of
from headgate.spark.sinks.writing import Writing, writing_of
from headgate.state.faults import reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS = ("sink: begun", "sink: half", "sink: put", "sink: staged", "sink: committing", "sink: committed")
"""Points at which tests can kill a process, in the order of an epoch."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The writer and the epoch of the rows."""

    writing: Writing
    epoch: int

    @property
    def writer(self) -> str:
        """The job's life and the sink, by which the table remembers a writer."""
        return f"{self.writing.start.life}/{self.writing.sink}"

    @property
    def start(self) -> int:
        return self.writing.start.number

    def is_new(self, start: int, epoch: int, where: str) -> bool:
        """Whether the table lacks the epoch, given the start and epoch that the table knows of this writer; refuses an older start."""
        if start > self.start:
            raise EngineError(self.writing.too_late(where))
        return epoch < self.epoch


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt for the staged rows of a lane."""

    name: str
    """A name that no other attempt has."""
    rows: int
    lane: int = 0
    size: int = 0
    """Bytes, for tables that need the size."""
    stats: str = ""
    """Statistics as JSON, for tables that need them."""


class Stage(Protocol):
    """One attempt to write an epoch; each lane gets a copy."""

    def put(self, batches: Iterator[pa.RecordBatch], lane: int) -> Receipt:
        """Stage rows in a lane; return once the rows are as durable as the table. There is at least one batch."""

    def commit(self, receipts: Sequence[Receipt]) -> None:
        """In the driver: makes these rows, and no others, part of the table, unless the epoch is there already."""


class Table(Protocol):
    """A table that takes whole epochs."""

    def begin(self, claim: Claim, columns: pa.Schema) -> Stage | None:
        """Refuse older starts from now on; return None if the table has the epoch already."""


def write_rows(
    table: Table, rows: DataFrame, epoch: int, numbered: Callable[[DataFrame], DataFrame] | None = None
) -> None:
    """Write one epoch of a job through its lanes; `numbered` selects the columns for the lanes, under other names."""
    claim = Claim(writing_of(rows), epoch)
    sent = (numbered or by_number)(rows)
    write_epoch(table, claim, columns_of(rows), lambda stage: _staged(sent, stage, claim.writing.sink))


def write_epoch(
    table: Table, claim: Claim, columns: pa.Schema, run: Callable[[Stage | None], Sequence[Receipt]]
) -> None:
    """Write one epoch; `run` lets the lanes stage their rows, or only compute them if there is no stage."""
    stage = table.begin(claim, columns)
    reach("sink: begun")
    receipts = sorted(run(stage), key=lambda receipt: (receipt.lane, receipt.name))
    reach("sink: staged")
    if stage is not None and receipts:
        stage.commit(receipts)
    reach("sink: committed")


def put(stage: Stage, sink: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Receipt]:
    """Stage the rows of one lane; yields nothing for a lane without rows."""
    some = (batch for batch in batches if batch.num_rows)
    first = next(some, None)
    if first is None:
        return
    try:
        yield stage.put(_passing_half(first, some), _lane())
    except (EngineError, pa.ArrowException) as error:
        raise LaneError(f'operator "{sink}": {error}') from error
    reach("sink: put")


def columns_of(rows: DataFrame) -> pa.Schema:
    """Return the columns of rows as Arrow types, each nullable."""
    return pa.schema([column.with_nullable(True) for column in to_arrow_schema(rows.schema, timezone="UTC")])


def _passing_half(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    reach("sink: half")
    yield from others


def _staged(rows: DataFrame, stage: Stage | None, sink: str) -> list[Receipt]:
    if stage is None:
        rows.write.format("noop").mode("overwrite").save()
        return []
    found = rows.mapInArrow(partial(_in_lane, stage, sink), "receipt binary").collect()
    return [msgspec.json.decode(bytes(receipt), type=Receipt) for (receipt,) in found]


def by_number(rows: DataFrame) -> DataFrame:
    """Select columns under numbers as names, because `mapInArrow` refuses names with dots."""
    return rows.select(*(column_of(name).alias(f"column_{number}") for number, name in enumerate(rows.columns)))


def _in_lane(stage: Stage, sink: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for receipt in put(stage, sink, batches):
        yield pa.RecordBatch.from_pydict({"receipt": [msgspec.json.encode(receipt)]})


def _lane() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


# -- columns


def fitting(columns: pa.Schema, table: pa.Schema, where: str) -> pa.Schema:
    """Return the columns of the rows with the types of the table."""
    unknown = [name for name in columns.names if name not in table.names]
    if unknown:
        known = ", ".join(table.names)
        raise GraphError(f'{where} has no column "{unknown[0]}" (it has {known}); add it, or leave it out of the rows')
    missing = [column.name for column in table if not column.nullable and column.name not in columns.names]
    if missing:
        raise GraphError(f'{where} requires the column "{missing[0]}", which the rows do not have; add it to the rows')
    return pa.schema([table.field(name) for name in columns.names])


def cast(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Cast a batch of numbered columns to the types of the table."""
    pairs = zip(batch.columns, target, strict=True)
    return pa.RecordBatch.from_arrays([_column(column, wanted) for column, wanted in pairs], schema=target)


def _column(column: pa.Array, wanted: pa.Field) -> pa.Array:
    try:
        return column if column.type == wanted.type else column.cast(wanted.type)
    except pa.ArrowException as error:
        raise EngineError(
            f'column "{wanted.name}" is {column.type}, which does not fit the table\'s {wanted.type}: {error}'
        ) from None


def check_key(key: tuple[str, ...], columns: pa.Schema, where: str) -> None:
    """Refuse a key that is not among the columns."""
    unknown = [name for name in key if name not in columns.names]
    if unknown:
        names = ", ".join(columns.names)
        raise GraphError(f'the key of {where} is "{unknown[0]}", which is none of the columns: {names}')


def key_of(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the key as a tuple of one column, several columns or none."""
    columns = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    if key is not None and not (columns and all(isinstance(name, str) and name for name in columns)):
        raise GraphError(f'key is {key!r}; it must name columns, such as key="id"')
    return columns
