"""Delta tables as a source: rows of the table at the first start, then those that each version adds, in the order of versions.

An offset is a version, a file of the version and a row of the file, so that an epoch can end anywhere and be read again exactly. The log
says how many rows a version added, so that the backlog is known.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit

from headgate import files
from headgate.core.quantities import choice
from headgate.errors import EngineError, GraphError, OutageError
from headgate.spark.connections import delta as tables
from headgate.spark.connections.delta import TableLocation
from headgate.spark.connections.failing import failure
from headgate.spark.sources import levers
from headgate.spark.sources.delta_log import Added, Version, batches_of, snapshot_at, version_at

BEGUN = "delta-begun.json"
"""File with the version of the table at which the job began to read."""
PLANNED = "delta.json"
"""File with the position up to which epochs were planned."""
ARRIVED = "arrived"
EARLIEST, LATEST = STARTS = ("earliest", "latest")
FAIL, SKIP = ON_CHANGE = ("fail", "skip")
BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class DeltaPosition:
    """A position in a Delta table: the job has read all rows before it."""

    version: int
    file: int = 0
    row: int = 0
    rows: int = 0
    """Number of rows before this position since the job began to read."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The version that the table had when the job began to read, and whether the job reads the rows of this version."""

    table: str
    """The id of the table: another one at the same place has another id."""
    version: int
    whole: bool

    @property
    def position(self) -> DeltaPosition:
        return DeltaPosition(self.version if self.whole else self.version + 1)


# -- what its users see


@dataclass(frozen=True, slots=True)
class DeltaVersions:
    """A source with the rows of a Delta table, and the rows that are appended to it later."""

    uri: str
    start: str = EARLIEST
    on_change: str = FAIL
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    arrival: str | None = field(default=ARRIVED, init=False)
    elastic: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        choice(self.start, "start of a Delta source", STARTS, GraphError)
        choice(self.on_change, "on_change of a Delta source", ON_CHANGE, GraphError)
        tables.check(self.uri, self.storage)

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        spark.dataSource.register(DeltaDataSource)
        reader = spark.readStream.format(DeltaDataSource.name()).schema(self.begin(place))
        return reader.options(**self.options(place)).load()

    def begin(self, place: Path) -> T.StructType:
        """Remember where the job begins to read, at its first start; return the columns of the table."""
        where = TableLocation.of(self.uri, self.storage, _answer_s(place))
        with where.using():
            if not where.exists():
                raise OutageError(f"{where.name} does not exist; the job waits until the table is created")
            table = where.table()
            _check_readable(table, where)
            if begun_in(place) is None:
                begun = Begun(str(table.metadata().id), table.version(), self.start == EARLIEST)
                files.replace(place / BEGUN, msgspec.json.encode(begun))
            return columns_of(table)

    def options(self, place: Path) -> dict[str, str]:
        """Return the options of the reader, with secrets as references, because Spark shows options."""
        place = place.absolute()
        storage = json.dumps(dict(self.storage))
        where = {"uri": TableLocation.of(self.uri, {}).uri, "storage": storage}
        return {**where, "on_change": self.on_change, "place": str(place), "operator": place.name}

    def arrived(self, place: Path) -> float | None:
        begun = begun_in(place)
        if begun is None:
            return None
        where = TableLocation.of(self.uri, self.storage, levers.read(place).patience.for_a_look().table_s)
        position = planned_in(place) or begun.position
        with where.using():
            return float(position.rows + sum(added.rows for _, added in ahead(where, begun, position)))


def delta(
    uri: str | os.PathLike[str],
    *,
    start: str = EARLIEST,
    on_change: str = FAIL,
    storage: Mapping[str, str] | None = None,
) -> DeltaVersions:
    """Reads the rows of a Delta table, and then those that are appended to it; `start="latest"` leaves out what is there.

    The column `arrived` is added, if the table has none of that name: the time at which the file of a row was written. A version that
    removes or changes rows fails the job; with `on_change="skip"` the job leaves out such versions as a whole.

    >>> delta("s3://lake/orders", storage={"AWS_SECRET_ACCESS_KEY": "env:LAKE_SECRET"})
    DeltaVersions(uri='s3://lake/orders', start='earliest', on_change='fail', arrival='arrived', elastic=True)
    """
    return DeltaVersions(os.fspath(uri), start, on_change, dict(storage or {}))


def columns_of(table: Any) -> T.StructType:
    """Return the columns of a table, with the arrival time of rows."""
    columns = T.StructType.fromJson(json.loads(table.schema().to_json()))
    return columns if ARRIVED in columns.names else columns.add(ARRIVED, T.TimestampType())


def _answer_s(place: Path) -> float:
    return levers.read(place).patience.table_s


def _check_readable(table: Any, where: TableLocation) -> None:
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise GraphError(f"{where.name} maps its columns by {mode}, which the source does not read; copy it to another")


# -- what is remembered


def begun_in(place: Path) -> Begun | None:
    """Return where the job began to read; None before the first start."""
    try:
        return msgspec.json.decode((place / BEGUN).read_bytes(), type=Begun)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineError(
            f'"{place / BEGUN}" is damaged ({error}), and it is not known where the job began to read;'
            " remove the job and submit it again"
        ) from None


def planned_in(place: Path) -> DeltaPosition | None:
    """Return the position up to which epochs were planned; None if there is no file yet, or a damaged one, which the next plan rewrites."""
    try:
        return msgspec.json.decode((place / PLANNED).read_bytes(), type=DeltaPosition)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


# -- versions


def ahead(
    where: TableLocation, begun: Begun, position: DeltaPosition, skips: bool = True
) -> Iterator[tuple[DeltaPosition, Added]]:
    """Yield the rows after a position, file by file, each file with the position before it."""
    while (version := _version(where, begun, position.version)) is not None:
        parts = () if _is_skipped(where, version, position.version, skips) else version.files
        for number in range(position.file, len(parts)):
            position = replace(position, file=number)
            rest = parts[number].cut(position.row, parts[number].rows)
            yield position, rest
            position = DeltaPosition(position.version, number + 1, 0, position.rows + rest.rows)
        position = DeltaPosition(position.version + 1, 0, 0, position.rows)


def _version(where: TableLocation, begun: Begun, number: int) -> Version | None:
    look = snapshot_at if number == begun.version and begun.whole else version_at
    return look(where, begun.table, number)


def _is_skipped(where: TableLocation, version: Version, number: int, skips: bool) -> bool:
    if version.deletes:
        raise EngineError(f"version {number} of {where.name} has deletion vectors, which the source does not read")
    if version.changes and not skips:
        raise EngineError(
            f"version {number} of {where.name} removes or changes rows, and the source reads added rows only;"
            ' set on_change="skip" to leave out such versions'
        )
    return version.changes


# -- what Spark sees


class DeltaDataSource(DataSource):
    """Makes the readers of this source for Spark."""

    @classmethod
    def name(cls) -> str:
        return "headgate-delta"

    def streamReader(self, schema: T.StructType) -> DeltaReader:
        return DeltaReader(self.options, schema)


@dataclass(frozen=True)
class LaneFiles(InputPartition):
    """The parts of files that one lane reads."""

    parts: tuple[Added, ...]


Offset = dict[str, Any]


class DeltaReader(DataSourceStreamReader):
    """Plans epochs in the driver, and reads parts of files in the lanes."""

    def __init__(self, options: Mapping[str, str], schema: T.StructType) -> None:
        self.place = Path(options["place"])
        self.where = TableLocation.of(options["uri"], json.loads(options["storage"]), _answer_s(self.place))
        self.operator = options["operator"]
        self.skips = options["on_change"] == SKIP
        self.schema = schema
        self.checked = False
        """Whether the log was found to be complete from the job's position on."""

    # -- in the driver

    def initialOffset(self) -> Offset:
        return _offset(self._begun().position)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan an epoch within the limits of the levers; Spark's `limit` is ignored."""
        begin = _mark(start)
        with self._telling():
            self._check_log(begin)
            end = self._end(begin)
        files.replace(self.place / PLANNED, msgspec.json.encode(end), durable=False)
        return start if end.rows == begin.rows else _offset(end)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Divide the rows of an epoch into equal shares for the lanes."""
        rows = _mark(end).rows - _mark(start).rows
        if not rows:
            return []
        with self._telling():
            size = math.ceil(rows / levers.read(self.place).lanes)
            return [LaneFiles(tuple(parts)) for parts in shares(self._between(_mark(start), rows), size)]

    def _begun(self) -> Begun:
        begun = begun_in(self.place)
        assert begun is not None
        return begun

    def _end(self, begin: DeltaPosition) -> DeltaPosition:
        """Return the position after the last row within the read limit."""
        room, rows, begun = levers.read(self.place).read_limit, 0, self._begun()
        for position, added in ahead(self.where, begun, begin, self.skips):
            if room is not None and rows + added.rows > room:
                return replace(position, row=position.row + room - rows, rows=begin.rows + room)
            rows += added.rows
        following = (number for number in count(begin.version) if _version(self.where, begun, number) is None)
        return DeltaPosition(next(following), 0, 0, begin.rows + rows)

    def _between(self, begin: DeltaPosition, rows: int) -> Iterator[Added]:
        for _, added in ahead(self.where, self._begun(), begin, self.skips):
            yield added.cut(0, rows)
            rows -= added.rows
            if rows <= 0:
                return

    def _check_log(self, begin: DeltaPosition) -> None:
        """Check the log once per start: the table can be replaced, and log entries removed, while the job does not read."""
        if self.checked:
            return
        begun, table = self._begun(), self.where.table()
        if str(table.metadata().id) != begun.table:
            raise EngineError(f"{self.where.name} was replaced by another one; remove the job and submit it again")
        for number in range(begin.version, table.version() + 1):
            if _version(self.where, begun, number) is None:
                raise EngineError(
                    f"the entry of version {number} is gone from the log of {self.where.name}, and rows of it were not read;"
                    " remove the job and submit it again"
                )
        self.checked = True

    def _telling(self) -> Any:
        return _named(self.where, self.operator)

    # -- in a lane

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LaneFiles)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        with self._telling():
            for part in partition.parts:
                for batch in batches_of(self.where, part, BATCH_ROWS):
                    yield as_declared(batch, part, schema)


@contextmanager
def _named(where: TableLocation, operator: str) -> Iterator[None]:
    """Turn every error in this block into one sentence that begins with the operator."""
    try:
        with where.using(operator):
            yield
    except EngineError as error:
        raise failure(str(error), operator) from error


def shares(parts: Iterator[Added], rows: int) -> Iterator[list[Added]]:
    """Divide parts of files into groups of `size` rows, in order.

    >>> parts = [Added("a", 0, 5, 0), Added("b", 0, 2, 0)]
    >>> [[(part.path, part.first, part.last) for part in share] for share in shares(iter(parts), 3)]
    [[('a', 0, 3)], [('a', 3, 5), ('b', 0, 1)], [('b', 1, 2)]]
    """
    share: list[Added] = []
    room = rows
    for part in parts:
        at = 0
        while at < part.rows:
            share.append(part.cut(at, room))
            at += share[-1].rows
            room -= share[-1].rows
            if room == 0:
                yield share
                share, room = [], rows
    if share:
        yield share


def as_declared(batch: pa.RecordBatch, part: Added, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a file with all columns of the table; the file lacks columns of its partition and columns that were added later."""
    arrived = pa.scalar(part.at_ms, pa.timestamp("ms", "UTC"))
    own = {ARRIVED: arrived, **dict(part.partition), **{name: batch.column(name) for name in batch.schema.names}}
    arrays = [_column(own.get(column.name), column.type, batch.num_rows) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(value, pa.Array):
        return value.cast(kind)
    return pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value), rows).cast(kind)


def _mark(offset: Offset) -> DeltaPosition:
    return msgspec.convert(offset, DeltaPosition)


def _offset(position: DeltaPosition) -> Offset:
    found: Offset = msgspec.to_builtins(position)
    return found
