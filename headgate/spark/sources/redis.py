"""Redis Streams as a source: an entry is a row, and an epoch is a range of entry ids, which can be read again exactly.

The ids are handed out by Redis in rising order, so that nothing can appear later within a range that has been read.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from headgate.errors import EngineError, GraphError
from headgate.spark import levers

if TYPE_CHECKING:
    # Imported where it is used: every process of every job imports this module, and the library takes 0.14 s.
    from redis import Redis

URL = "redis://127.0.0.1:6379"
FIRST = "0-0"
"""Before every entry."""
FILE = "redis.json"
ARRIVED, ENTRY, STREAM = OWN = ("arrived", "entry", "stream")
"""Columns beside those of the schema."""

PAGE_ROWS = 2000
"""Entries that a lane fetches at once, and puts into one Arrow batch."""
WALK_ROWS = 5000
"""Entries that Redis walks over before it serves others again; about 15 ms."""
FINENESS = 64
"""Lanes of a stream differ by about one row in so many."""

READ_PATIENCE_S = 30.0
LOOK_PATIENCE_S = 2.0
RETRIES = 2

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

WALK = """
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local marks, step = {}, tonumber(ARGV[4])
for number = step, #entries, step do
    marks[#marks + 1] = entries[number][1]
end
return {#entries, #entries > 0 and entries[#entries][1] or '', marks}
"""
"""Counts the entries of a range and names every so manieth, without sending what is in them."""


# -- what its users see


@dataclass(frozen=True, slots=True)
class RedisStreams:
    """The entries of one or several Redis Streams, from their first one on.

    An epoch that is read again has the same rows as long as the streams are not trimmed beyond it.
    """

    streams: tuple[str, ...]
    schema: str
    url: str = field(default=URL, repr=False)
    arrival: str | None = field(default=ARRIVED, init=False)
    elastic: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not self.streams or not all(isinstance(stream, str) and stream for stream in self.streams):
            raise GraphError(f'a Redis source reads {self.streams!r}; name its streams, such as redis("orders", ...)')
        if len(set(self.streams)) < len(self.streams):
            raise GraphError(f"a Redis source reads {', '.join(self.streams)}; name each stream once")
        check_url(self.url)

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        columns = columns_of(self.schema)
        with asking(self.url):
            self._remember_base(place)
        spark.dataSource.register(RedisDataSource)
        reader = spark.readStream.format(RedisDataSource.name()).schema(columns)
        reader = reader.options(streams=json.dumps(self.streams), url=self.url, place=str(place.absolute()))
        return reader.load()

    def arrived(self, place: Path) -> float | None:
        from redis.exceptions import RedisError

        try:
            base = _base(place)
            states = look(connect(self.url, LOOK_PATIENCE_S), self.streams)
        except RedisError:
            return None
        if base is None:
            return None
        return float(sum(max(0, state.added - base.get(stream, 0)) for stream, state in states.items()))

    def _remember_base(self, place: Path) -> None:
        """What had been added, and removed again, before the job could read it."""
        base = _base(place) or {}
        states = look(connect(self.url), self.streams)
        new = {stream: state.added - state.length for stream, state in states.items() if stream not in base}
        if new:
            levers.replace(place / FILE, msgspec.json.encode(base | new))


def redis(*streams: str, schema: str, url: str = URL) -> RedisStreams:
    """Reads Redis Streams; the fields of their entries become the columns of `schema`, null where missing or not of the type.

    Three columns are added: `arrived` (the time in the entry's id), `entry` (the id) and `stream`.

    >>> redis("orders", schema="id long, user string, amount double").arrival
    'arrived'
    """
    return RedisStreams(streams, schema, url)


def columns_of(schema: str) -> T.StructType:
    """The columns of a source with this schema; needs a running Spark."""
    try:
        parsed = T.StructType.fromDDL(schema)
    except PySparkException as error:
        raise GraphError(f'the schema {schema!r} cannot be read; write it like "id long, user string"') from error
    fields = parsed.fields if isinstance(parsed, T.StructType) else []
    if not fields:
        raise GraphError(f'the schema {schema!r} names no columns; write it like "id long, user string"')
    for column in fields:
        _check_column(column)
    columns = T.StructType([T.StructField(column.name, column.dataType) for column in fields])
    return columns.add(ARRIVED, T.TimestampType()).add(ENTRY, T.StringType()).add(STREAM, T.StringType())


def _check_column(column: T.StructField) -> None:
    if column.name.lower() in OWN:
        raise GraphError(f'the schema has a column "{column.name}", which a Redis source adds itself; rename the field')
    if not isinstance(column.dataType, TYPES):
        kind = column.dataType.simpleString()
        raise GraphError(f'column "{column.name}" is {kind}; read it as a string, and take it apart in a transform')


def _base(place: Path) -> dict[str, int] | None:
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return None


# -- Redis


@cache
def connect(url: str, patience_s: float = READ_PATIENCE_S) -> Redis:
    """One client for each process; it connects when it is first used, and again when it has to."""
    from redis import Redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES)
    client: Redis = Redis.from_url(url, socket_timeout=patience_s, socket_connect_timeout=patience_s, retry=retry)
    return client


@contextmanager
def asking(url: str) -> Iterator[None]:
    """What goes wrong with Redis is told in one sentence."""
    from redis.exceptions import RedisError

    try:
        yield
    except RedisError as error:
        raise EngineError(f"Redis at {shown(url)} could not be used: {str(error).rstrip('.')}") from error


def shown(url: str) -> str:
    """An address without user, password and options.

    >>> shown("redis://me:secret@cache:6379/0?password=secret")
    'redis://cache:6379/0'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_url(url: str) -> None:
    """Refuses what cannot be the address of a Redis."""
    if not isinstance(url, str) or re.match(r"(redis|rediss|unix)://", url) is None:
        raise GraphError("the url of a Redis does not start with redis://, rediss:// or unix://")


@dataclass(frozen=True, slots=True)
class State:
    """A stream as it is now."""

    last: str = FIRST
    length: int = 0
    added: int = 0
    """Entries ever added to it; those that were removed again too."""


def look(client: Redis, streams: Sequence[str]) -> dict[str, State]:
    """All streams in one round trip; one that does not exist is empty."""
    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xinfo_stream(stream)
    return dict(zip(streams, map(_state, pipeline.execute(raise_on_error=False)), strict=True))


def _state(reply: Any) -> State:
    from redis.exceptions import ResponseError

    if isinstance(reply, ResponseError) and "no such key" in str(reply).lower():
        return State()
    if isinstance(reply, Exception):
        raise reply
    return State(reply["last-generated-id"].decode(), reply["length"], reply["entries-added"])


# -- ranges of entries


def order(entry: str) -> tuple[int, int]:
    """Entry ids compare by their numbers.

    >>> order("9-10") < order("10-2") < order("10-11")
    True
    """
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)


@dataclass(frozen=True)
class Range(InputPartition):
    """Entries of one stream: those after one id, up to and with another."""

    stream: str
    after: str
    last: str


@dataclass(frozen=True, slots=True)
class Survey:
    """How many entries a range has, and where some of them are."""

    rows: int
    last: str
    ranks: list[int]
    marks: list[str]

    def split(self, part: Range, lanes: int) -> list[Range]:
        """Ranges with about the same number of entries, which together are the whole, each entry in one of them."""
        ranks = (bisect_left(self.ranks, self.rows * lane / lanes) for lane in range(1, lanes))
        inner = {self.marks[rank]: None for rank in ranks if rank < len(self.marks) and self.ranks[rank] < self.rows}
        return [Range(part.stream, after, last) for after, last in pairwise((part.after, *inner, part.last))]


def survey(client: Redis, part: Range, limit: int | None = None) -> Survey:
    """Walks over a range, or over its first entries, in steps that grow, so that its marks stay few."""
    walk = client.register_script(WALK)
    rows, last, ranks, marks = 0, part.after, list[int](), list[str]()
    while limit is None or rows < limit:
        count = WALK_ROWS if limit is None else min(WALK_ROWS, limit - rows)
        step = min(count, 1 + rows // FINENESS)
        found, end, named = walk(keys=[part.stream], args=[f"({last}", part.last, count, step])
        ranks.extend(rows + step * number for number in range(1, len(named) + 1))
        marks.extend(entry.decode() for entry in named)
        rows, last = rows + found, end.decode() or last
        if found < count:
            break
    return Survey(rows, last, ranks, marks)


def share_out(rows: Sequence[int], lanes: int) -> list[int]:
    """At least one lane each; the others go where a lane has most to read.

    >>> share_out([600, 200, 0], 5)
    [3, 1, 1]
    """
    shares = [1] * len(rows)
    for _ in range(lanes - len(rows)):
        fullest = max(range(len(rows)), key=lambda index: rows[index] / shares[index])
        shares[fullest] += 1
    return shares


# -- what Spark sees


class RedisDataSource(DataSource):
    """What Spark makes its readers from."""

    @classmethod
    def name(cls) -> str:
        return "headgate-redis"

    def streamReader(self, schema: T.StructType) -> RedisReader:
        return RedisReader(self.options, schema)


@dataclass(frozen=True, slots=True)
class News:
    """A stream that has more than was read of it."""

    part: Range
    rows: int
    """How many entries at most."""


class RedisReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs in the driver, and reads ranges in the lanes."""

    def __init__(self, options: Mapping[str, str], schema: T.StructType) -> None:
        self.streams: list[str] = json.loads(options["streams"])
        self.url = options["url"]
        self.place = Path(options["place"])
        self.schema = schema
        self.horizon: dict[str, str] = {}
        """Where `availableNow` ends."""
        self.read_up: dict[str, State] = {}
        """Each stream as it was when all of it had been read."""

    # -- in the driver

    def initialOffset(self) -> dict[str, str]:
        return dict.fromkeys(self.streams, FIRST)

    def prepareForTriggerAvailableNow(self) -> None:
        with asking(self.url):
            self.horizon = {stream: state.last for stream, state in look(connect(self.url), self.streams).items()}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """As far as the levers allow; they and not `limit` say how much an epoch reads."""
        with asking(self.url):
            states = look(connect(self.url), self.streams)
            ends = {stream: start.get(stream, FIRST) for stream in self.streams}
            ends |= self._ends(self._news(ends, states))
        self.read_up |= {stream: states[stream] for stream, end in ends.items() if end == states[stream].last}
        return ends

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """One range for each stream with new entries; more, where there are more lanes than that."""
        parts = [Range(stream, start.get(stream, FIRST), last) for stream, last in end.items()]
        parts = [part for part in parts if order(part.after) < order(part.last)]
        lanes = levers.read(self.place).lanes
        if not parts or lanes <= len(parts):
            return parts
        with asking(self.url):
            surveys = [survey(connect(self.url), part) for part in parts]
        shares = share_out([found.rows for found in surveys], lanes)
        split = (found.split(part, share) for found, part, share in zip(surveys, parts, shares, strict=True))
        return [part for ranges in split for part in ranges]

    def _news(self, starts: dict[str, str], states: dict[str, State]) -> list[News]:
        lasts = {
            stream: min(state.last, self.horizon.get(stream, state.last), key=order) for stream, state in states.items()
        }
        parts = [Range(stream, start, lasts[stream]) for stream, start in starts.items()]
        return [
            News(part, self._most_rows(part, states[part.stream]))
            for part in parts
            if order(part.after) < order(part.last)
        ]

    def _most_rows(self, part: Range, state: State) -> int:
        before = self.read_up.get(part.stream)
        if before is None or before.last != part.after or before.added > state.added:
            return state.length
        return min(state.length, state.added - before.added)

    def _ends(self, news: list[News]) -> dict[str, str]:
        room = levers.read(self.place).read_limit
        if room is None or sum(new.rows for new in news) <= room:
            return {new.part.stream: new.part.last for new in news}
        return self._ends_within(news, room)

    def _ends_within(self, news: list[News], room: int) -> dict[str, str]:
        """Those with least to read go first, so that what they leave of their share goes to the others."""
        ends = {}
        for others, new in enumerate(sorted(news, key=lambda new: new.rows)):
            share = room // (len(news) - others)
            found = self._first(new, share)
            ends[new.part.stream] = found.last
            room -= found.rows
        return ends

    def _first(self, new: News, rows: int) -> Survey:
        if new.rows <= rows:
            return Survey(new.rows, new.part.last, [], [])
        found = survey(connect(self.url), new.part, rows)
        return found if found.rows == rows else Survey(found.rows, new.part.last, [], [])

    # -- in a lane

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        with asking(self.url):
            for entries in pages(connect(self.url), partition):
                yield batch_of(partition.stream, entries, schema)


Entries = list[tuple[bytes, dict[bytes, bytes]]]


def pages(client: Redis, part: Range) -> Iterator[Entries]:
    """The entries of a range, some at a time."""
    after = part.after
    while entries := cast(Entries, client.xrange(part.stream, f"({after}", part.last, PAGE_ROWS)):
        yield entries
        after = entries[-1][0].decode()
        if len(entries) < PAGE_ROWS:
            return


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
    """Texts as values of a type, null where they are none; times that name no zone are taken as UTC.

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
