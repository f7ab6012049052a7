"""Redis Streams as a source: an entry is a row, and an epoch is a range of entry ids, which can be read again exactly.

Redis assigns ids in rising order, so that no entry can appear later within a range that has been read. An offset also counts the
entries that were added up to it: if a stream has fewer entries than were added since, some were lost, and the job fails or reports them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from headgate import files
from headgate.core.quantities import choice
from headgate.errors import GraphError
from headgate.spark.connections.failing import failure
from headgate.spark.connections.patience import Patience
from headgate.spark.connections.redis import URL, asking, check_url, connect, shown
from headgate.spark.sources import levers
from headgate.spark.sources.declared import declared_columns, remembered
from headgate.spark.sources.redis_entries import (
    Entries,
    EntryRange,
    StreamPosition,
    StreamState,
    first_mark,
    look,
    order,
    pages,
    present,
    share_out,
    survey,
)

BEGUN = "redis-begun.json"
"""File with the position at which the job began to read each stream."""
PLANNED = "redis.json"
"""File with the position up to which each stream was planned, and its losses."""
LATE = "lost"
"""A folder with a file for each range in which a lane found fewer entries than were planned."""
FAIL, SKIP = ON_LOSS = ("fail", "skip")
ARRIVED, ENTRY, STREAM = OWN = ("arrived", "entry", "stream")
"""Columns in addition to the columns of the schema."""

TYPES = (
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.IntegralType,
    T.FractionalType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


# -- what its users see


@dataclass(frozen=True, slots=True)
class RedisStreams:
    """A source with the entries of one or several Redis Streams, from their first existing entry on.

    A repeated epoch has the same rows, or fails if some of its entries were removed.
    """

    streams: tuple[str, ...]
    schema: str
    url: str = field(default=URL, repr=False)
    on_loss: str = FAIL
    arrival: str | None = field(default=ARRIVED, init=False)
    elastic: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not self.streams or not all(isinstance(stream, str) and stream for stream in self.streams):
            raise GraphError(f'a Redis source reads {self.streams!r}; name its streams, such as redis("orders", ...)')
        if len(set(self.streams)) < len(self.streams):
            raise GraphError(f"a Redis source reads {', '.join(self.streams)}; name each stream once")
        choice(self.on_loss, "on_loss of a Redis source", ON_LOSS, GraphError)
        check_url(self.url)

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        columns = columns_of(self.schema)
        with asking(self.url):
            self._remember_beginning(place)
        spark.dataSource.register(RedisDataSource)
        reader = spark.readStream.format(RedisDataSource.name()).schema(columns)
        place = place.absolute()
        return reader.options(
            streams=json.dumps(self.streams), url=self.url, place=str(place), operator=place.name, on_loss=self.on_loss
        ).load()

    def arrived(self, place: Path) -> float | None:
        marks = marks_in(place, BEGUN) | marks_in(place)
        with asking(self.url):
            states = look(connect(self.url, patience_in(place).for_a_look()), self.streams)
        if not marks.keys() >= states.keys():
            return None
        counted = (marks[stream].rows + _added_since(marks[stream], state) for stream, state in states.items())
        return float(sum(counted) - sum(late_losses(place).values()))

    def losses(self, place: Path) -> str:
        """Say which entries were lost so far; empty if no entries were lost."""
        late = late_losses(place)
        found = {
            stream: _loss_sentence(mark.lost + late.get(_folder(stream), 0), mark.gaps)
            for stream, mark in marks_in(place).items()
        }
        sentences = [f'stream "{stream}": {what}' for stream, what in found.items() if what]
        return f"Redis at {shown(self.url)}: {'; '.join(sentences)}" if sentences else ""

    def _remember_beginning(self, place: Path) -> None:
        """Remember the first position in streams that the job has not read yet: before the entries that exist now."""
        begun = marks_in(place, BEGUN)
        states = look(connect(self.url, patience_in(place)), self.streams)
        new = {stream: first_mark(state) for stream, state in states.items() if stream not in begun}
        if new:
            remember(place, begun | new, BEGUN)


def redis(*streams: str, schema: str, url: str = URL, on_loss: str = FAIL) -> RedisStreams:
    """Reads Redis Streams; the fields of their entries become the columns of `schema`, null where missing or not of the type.

    Three columns are added: `arrived` (the time in the entry's id), `entry` (the id) and `stream`. If entries were removed before
    they were read, or a stream was deleted and made again, the job fails, or goes on and counts them with `on_loss="skip"`.

    >>> redis("orders", schema="id long, user string, amount double").arrival
    'arrived'
    """
    return RedisStreams(streams, schema, url, on_loss)


def columns_of(schema: str) -> T.StructType:
    """The columns of a source with this schema; needs a running Spark."""
    fields = declared_columns(schema, OWN, "Redis")
    for column in fields:
        _check_column(column)
    columns = T.StructType(fields)
    return columns.add(ARRIVED, T.TimestampType()).add(ENTRY, T.StringType()).add(STREAM, T.StringType())


def _check_column(column: T.StructField) -> None:
    if not isinstance(column.dataType, TYPES):
        kind = column.dataType.simpleString()
        raise GraphError(f'column "{column.name}" is {kind}; read it as a string, and take it apart in a transform')


# -- what is remembered


def marks_in(place: Path, file: str = PLANNED) -> dict[str, StreamPosition]:
    """Return positions by stream; empty if there is no such file yet."""
    found: dict[str, StreamPosition] = remembered(place / file, StreamPosition, file == PLANNED)
    return found


def remember(place: Path, marks: Mapping[str, StreamPosition], file: str = PLANNED) -> None:
    """Store the planned offsets, for the counts of arrived and lost rows only: epochs use the offsets that Spark keeps."""
    files.replace(place / file, msgspec.json.encode(marks), durable=False)


def remember_late_loss(place: Path, part: EntryRange, lost: int, noticed_by: str) -> None:
    """Store the loss in a range; the same range again replaces the file."""
    path = place / LATE / _folder(part.stream) / f"{part.after}@{part.last}@{noticed_by}"
    files.replace(path, str(lost).encode(), durable=False)


def patience_in(place: Path) -> Patience:
    """Return the time limits of the service's settings."""
    return levers.read(place).patience


def late_losses(place: Path) -> dict[str, int]:
    """Entries that lanes did not find any more, by the folder of their stream."""
    found: dict[str, int] = {}
    for path in place.glob(f"{LATE}/*/*"):
        # One that a power cut left empty, or that is forgotten at this moment, counts for nothing.
        with suppress(FileNotFoundError, ValueError):
            if not path.name.endswith(files.PART):
                found[path.parent.name] = found.get(path.parent.name, 0) + int(path.read_text())
    return found


def _folder(stream: str) -> str:
    """Return a folder name for any name of a stream."""
    return sha256(stream.encode()).hexdigest()[:16]


def _added_since(mark: StreamPosition, state: StreamState) -> int:
    return state.added - mark.added if state.added >= mark.added else state.added


def _loss_sentence(lost: int, gaps: int) -> str:
    parts = []
    if lost:
        parts.append(f"{lost:,} {'entry was' if lost == 1 else 'entries were'} removed unread")
    if gaps:
        parts.append("it was deleted, or its ids went back" + ("" if gaps == 1 else f", {gaps} times"))
    return " and ".join(parts)


# -- what Spark sees


class RedisDataSource(DataSource):
    """Makes the readers of this source for Spark."""

    @classmethod
    def name(cls) -> str:
        return "headgate-redis"

    def streamReader(self, schema: T.StructType) -> RedisReader:
        return RedisReader(self.options, schema)


@dataclass(frozen=True, slots=True)
class UnreadStream:
    """A stream with unread entries."""

    stream: str
    begin: StreamPosition
    end: StreamPosition

    @property
    def rows(self) -> int:
        """Number of unread entries."""
        return self.end.rows - self.begin.rows

    def range(self) -> EntryRange:
        """Return the range of the unread entries."""
        after = self.end.after if self.end.after is not None else self.begin.id
        return EntryRange(self.stream, after, self.end.id, self.rows)

    def cut(self, rows: int, last: str) -> UnreadStream:
        """Return the first `rows` entries, which end with the id `last`."""
        begin = self.begin
        return replace(self, end=replace(self.end, id=last, added=begin.added + rows, rows=begin.rows + rows))


Offset = dict[str, Any]
"""A mark for each stream, as Spark keeps it."""


class RedisReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs in the driver, and reads ranges in the lanes."""

    def __init__(self, options: Mapping[str, str], schema: T.StructType) -> None:
        self.streams: list[str] = json.loads(options["streams"])
        self.url = options["url"]
        self.place = Path(options["place"])
        self.operator = options["operator"]
        self.skips = options["on_loss"] == SKIP
        self.schema = schema
        self.horizon: dict[str, StreamState] = {}
        """State of each stream for Spark's trigger `availableNow`; empty for other triggers."""
        self.asked = False
        """Whether Spark has asked for an offset."""
        self.seen: dict[str, StreamState] = {}
        """Last known state of each stream."""

    # -- in the driver

    def initialOffset(self) -> Offset:
        return self._offset({stream: self._mark({}, stream) for stream in self.streams})

    def prepareForTriggerAvailableNow(self) -> None:
        with asking(self.url, self.operator):
            self.horizon = look(self._client(), self.streams)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan an epoch within the limits of the levers; Spark's `limit` is ignored."""
        before = {stream: self._mark(start, stream) for stream in self.streams}
        with asking(self.url, self.operator):
            news = self._news(before) or (self._news(before) if self._await_entry(before) else [])
            ends = before | {new.stream: new.end for new in self._within_limit(news)}
        self.asked = True
        if ends == before:
            return start
        remember(self.place, marks_in(self.place) | ends)
        return self._offset(ends)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one range for each stream with new entries; split the ranges if there are more lanes."""
        news = [UnreadStream(stream, self._mark(start, stream), self._mark(end, stream)) for stream in end]
        parts = [new.range() for new in news if new.rows > 0]
        self._forget_late_losses(parts)
        lanes = levers.read(self.place).lanes
        if not parts or lanes <= len(parts):
            return parts
        with asking(self.url, self.operator):
            surveys = [survey(self._client(), part) for part in parts]
        for part, found in zip(parts, surveys, strict=True):
            self._check_read(part, found.rows, "plan")
        shares = share_out([found.rows for found in surveys], lanes)
        split = (found.split(part, share) for found, part, share in zip(surveys, parts, shares, strict=True))
        return [part for ranges in split for part in ranges]

    def _client(self) -> Any:
        return connect(self.url, patience_in(self.place))

    def _mark(self, offset: Offset, stream: str) -> StreamPosition:
        """Return the position in a stream; a stream that was added to the job begins where it was at the job's first start with it."""
        if stream in offset:
            try:
                return msgspec.convert(offset[stream], StreamPosition)
            except msgspec.ValidationError:
                sentences = f'the checkpoint has the offset {offset[stream]!r} of stream "{stream}", which an earlier version wrote'
                raise failure(f"{sentences}; remove the job and submit it again", self.operator) from None
        return marks_in(self.place, BEGUN).get(stream, StreamPosition())

    def _offset(self, marks: Mapping[str, StreamPosition]) -> Offset:
        return {stream: msgspec.to_builtins(mark) for stream, mark in marks.items()}

    def _news(self, before: Mapping[str, StreamPosition]) -> list[UnreadStream]:
        """Return streams with unread or lost entries after these positions."""
        states = look(self._client(), self.streams)
        found = [self._new(stream, mark, states[stream]) for stream, mark in before.items()]
        self.seen = states
        return [new for new in found if new.end != before[new.stream]]

    def _await_entry(self, marks: Mapping[str, StreamPosition]) -> bool:
        """Return whether there is an entry after these positions; wait for one, except at the first question, for which a start waits."""
        now = levers.read(self.place)
        block_ms = round(1000 * min(now.wait_s, now.patience.answer_s / 2))
        if not self.asked or not block_ms:
            return False
        return bool(self._client().xread({stream: mark.id for stream, mark in marks.items()}, count=1, block=block_ms))

    def _new(self, stream: str, mark: StreamPosition, state: StreamState) -> UnreadStream:
        begin = present(self._client(), stream, mark, state, self.seen.get(stream, StreamState()))
        lost, gaps = begin.lost - mark.lost, begin.gaps - mark.gaps
        if (lost or gaps) and not self.skips:
            raise self._loss(stream, _loss_sentence(lost, gaps))
        horizon = self.horizon.get(stream, state)
        if gaps or order(horizon.last) > order(state.last) or horizon.added < begin.added:
            horizon = state
        rows = horizon.added - begin.added
        if not rows and not lost and not gaps:
            return UnreadStream(stream, mark, mark)
        return UnreadStream(stream, begin, replace(begin, id=horizon.last, added=horizon.added, rows=begin.rows + rows))

    def _loss(self, stream: str, what: str) -> Exception:
        return failure(
            f'stream "{stream}" of Redis at {shown(self.url)}: {what}; set on_loss="skip" to go on with what is left',
            self.operator,
        )

    def _within_limit(self, news: list[UnreadStream]) -> list[UnreadStream]:
        """Limit the rows of an epoch. Streams with the fewest entries go first: the rest of their shares goes to the other streams."""
        room = levers.read(self.place).read_limit
        if room is None or sum(new.rows for new in news) <= room:
            return news
        cut = []
        for others, new in enumerate(sorted(news, key=lambda new: new.rows)):
            cut.append(self._first(new, room // (len(news) - others)))
            room -= cut[-1].rows
        return cut

    def _first(self, new: UnreadStream, rows: int) -> UnreadStream:
        if new.rows <= rows:
            return new
        found = survey(self._client(), new.range(), rows)
        return new.cut(found.rows, found.last if found.rows == rows else new.end.id)

    def _check_read(self, part: EntryRange, rows: int, noticed_by: str) -> None:
        """Check that a lane found all entries of a range: some may have been removed since the range was planned."""
        lost = 0 if part.rows is None else part.rows - rows
        if lost and not self.skips:
            raise self._loss(part.stream, _loss_sentence(lost, 0) if lost > 0 else _loss_sentence(0, 1))
        if lost > 0:
            remember_late_loss(self.place, part, lost, noticed_by)

    def _forget_late_losses(self, parts: Sequence[EntryRange]) -> None:
        """Delete the counts of ranges that are read again: the new read counts again."""
        for part in parts:
            for path in (self.place / LATE / _folder(part.stream)).glob("*"):
                after, last, _ = path.name.split("@")
                if order(part.after) <= order(after) and order(last) <= order(part.last):
                    path.unlink(missing_ok=True)

    # -- in a lane

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EntryRange)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        rows = 0
        with asking(self.url, self.operator):
            for entries in pages(self._client(), partition):
                rows += len(entries)
                yield batch_of(partition.stream, entries, schema)
        self._check_read(partition, rows, "lane")


def batch_of(stream: str, entries: Entries, schema: pa.Schema) -> pa.RecordBatch:
    """Entries as rows."""
    ids = [entry.decode() for entry, _ in entries]
    arrived = pa.array([order(entry)[0] * 1000 for entry in ids], pa.int64())
    own = {ARRIVED: arrived.cast(pa.timestamp("us", "UTC")), ENTRY: pa.array(ids), STREAM: pa.repeat(stream, len(ids))}
    arrays = [own[column.name] if column.name in own else _column(entries, column) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(entries: Entries, column: pa.Field) -> pa.Array:
    name = column.name.encode()
    return parsed(pa.array([fields.get(name) for _, fields in entries], pa.binary()), column.type)


def parsed(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse texts as values of a type, null where a text is not a value; times without a zone are taken as UTC.

    >>> parsed(pa.array([b"7", b"seven", None]), pa.int64()).to_pylist()
    [7, None, None]
    """
    try:
        return _cast(raw, kind)
    except pa.ArrowInvalid:
        if len(raw) == 1:
            return pa.nulls(1, kind)
    half = len(raw) // 2
    return pa.concat_arrays([parsed(raw[:half], kind), parsed(raw[half:], kind)])


def _cast(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return raw
    text = raw.cast(pa.string())
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise
    return pc.assume_timezone(text.cast(pa.timestamp(kind.unit)), kind.tz)
