"""Redis as a sink: rows as entries of a stream, each exactly once, or as hashes of which the last value stays.

The lanes stage their rows of an epoch in Redis. The driver then runs one script that appends all rows and notes the epoch, as a whole
or not at all. The number of lanes and of earlier attempts of an epoch therefore makes no difference. If Redis has an epoch that Spark
has not committed, the lanes compute the epoch again, so that its rows are counted.

Redis knows a writer by the life of its job, and remembers the newest start of the job: an older start can write nothing after the first
epoch of a newer one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.errors import EngineError, GraphError
from headgate.spark.connections.failing import failure
from headgate.spark.connections.redis import URL, asking, check_url, connect, shown
from headgate.spark.quoting import column_of
from headgate.spark.sinks.writing import Writing, writing_of
from headgate.spark.sources.redis import TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from redis.client import Pipeline

STAGED_S = 3600
"""Time in seconds for which staged rows are kept if their epoch is neither committed nor tried again."""
FENCED_S = 7 * 24 * 3600
"""Time in seconds for which hashes remember the newest start of a job that no longer writes."""
JSON_TYPES = (T.StructType, T.ArrayType, T.MapType, T.VariantType)

FENCE = """
local function known(value)
    if value then
        local start, epoch = string.match(value, '^(%d+):(-?%d+)$')
        return tonumber(start), tonumber(epoch)
    end
    return 0, -1
end
"""
"""The newest start that wrote, and its last epoch."""

BEGIN = (
    FENCE
    + """
local epochs, staged = unpack(KEYS)
local writer, start = ARGV[1], tonumber(ARGV[2])
local newest, written = known(redis.call('HGET', epochs, writer))
if newest > start then
    return 'late'
end
redis.call('HSET', epochs, writer, start .. ':' .. written)
redis.call('UNLINK', staged)
return 'now'
"""
)
"""Refuses older starts from now on."""

COMMIT = (
    FENCE
    + """
local epochs, stream, staged = unpack(KEYS)
local writer, start, epoch, width = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local newest, written = known(redis.call('HGET', epochs, writer))
if newest > start then
    return 'late'
end
if written >= epoch then
    redis.call('UNLINK', staged)
    return 'before'
end
for number = 5 + width, #ARGV do
    if redis.call('HEXISTS', staged, ARGV[number]) == 0 then
        return 'gone'
    end
end

local function append(block)
    local rows, at = struct.unpack('<i4', block)
    local lengths, texts = {}, {}
    for column = 1, width do
        local size = struct.unpack('<i4', block, at)
        lengths[column], texts[column] = at + 4, at + 4 + 4 * rows
        at = texts[column] + size
    end
    for row = 0, rows - 1 do
        local entry = {}
        for column = 1, width do
            local length = struct.unpack('<i4', block, lengths[column] + 4 * row)
            if length >= 0 then
                entry[#entry + 1] = ARGV[4 + column]
                entry[#entry + 1] = block:sub(texts[column], texts[column] + length - 1)
                texts[column] = texts[column] + length
            end
        end
        if #entry == 0 then
            entry = {'', ''}
        end
        redis.call('XADD', stream, '*', unpack(entry))
    end
end

for number = 5 + width, #ARGV do
    append(redis.call('HGET', staged, ARGV[number]))
end
redis.call('HSET', epochs, writer, start .. ':' .. epoch)
redis.call('UNLINK', staged)
return 'now'
"""
)
"""Checks that all rows are staged before the first write: Redis undoes nothing. An entry needs a field, even if a row is all null."""


# -- entries of a stream


@dataclass(frozen=True, slots=True)
class RedisStream:
    """A sink that appends every row to a Redis Stream, exactly once."""

    stream: str
    url: str = field(default=URL, repr=False)
    name: str | None = None
    reads_once: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.stream, str) or not self.stream:
            raise GraphError(f'a Redis sink writes to {self.stream!r}; name a stream, such as redis("alerts")')
        check_url(self.url)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        writing = writing_of(rows)
        writer = f"{writing.start.life}/{self.name or writing.sink}"
        epochs, staged = self._key("epochs"), self._key(f"staged:{writer}")
        self._ask(writing, BEGIN, [epochs, staged], [writer, writing.start.number])
        put_aside = texts(rows).mapInArrow(partial(stage, self.url, staged, writing), "block string").collect()
        columns, blocks = rows.columns, [block for (block,) in put_aside]
        arguments = [writer, writing.start.number, epoch, len(columns), *columns, *blocks]
        outcome = self._ask(writing, COMMIT, [epochs, self.stream, staged], arguments)
        if outcome == b"gone":
            raise EngineError(f'the rows of epoch {epoch} for stream "{self.stream}" are gone from Redis; try it again')

    def _ask(self, writing: Writing, script: str, keys: list[str], arguments: list[Any]) -> Any:
        with asking(self.url):
            outcome = connect(self.url, writing.patience).register_script(script)(keys=keys, args=arguments)
        if outcome == b"late":
            raise EngineError(writing.too_late(f'stream "{self.stream}" of Redis at {shown(self.url)}'))
        return outcome

    def _key(self, what: str) -> str:
        """Return the name of a key on the same node of a Redis cluster as the stream."""
        return f"headgate:{{{self.stream}}}:{what}"


def redis(stream: str, *, url: str = URL, name: str | None = None) -> RedisStream:
    """Appends every row to a Redis Stream, exactly once; columns become fields, and those that are null are left out.

    `job.sink("alerts", sinks.redis("alerts"), large)`

    Redis notes the epochs of each sink operator by its name; with `name`, the operator can be renamed while its job goes on.
    """
    return RedisStream(stream, url, name)


def stage(url: str, staged: str, writing: Writing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one lane in Redis, under names that no other attempt uses."""
    task = uuid4().hex
    for number, batch in enumerate(batches):
        block = f"{task}:{number}"
        with asking(url, writing.sink):
            pipeline = connect(url, writing.patience).pipeline()
            pipeline.hset(staged, block, block_of(batch))
            pipeline.expire(staged, STAGED_S)
            pipeline.execute()
        yield pa.RecordBatch.from_pydict({"block": [block]})


def block_of(batch: pa.RecordBatch) -> bytes:
    """The number of rows; then of each column the size of its texts, the length of each (-1: null), and the texts."""
    parts = [struct.pack("<i", batch.num_rows)]
    for column in batch.columns:
        raw = raw_of(column)
        content = b"".join(raw.drop_null().to_pylist())
        lengths = pc.fill_null(pc.binary_length(raw), -1).to_numpy(zero_copy_only=False).astype("<i4")
        parts += [struct.pack("<i", len(content)), lengths.tobytes(), content]
    return b"".join(parts)


# -- hashes


CLAIM = (
    FENCE
    + """
local newest, newest_epoch = known(redis.call('GET', KEYS[1]))
local start, epoch = tonumber(ARGV[1]), tonumber(ARGV[2])
if newest > start or (newest == start and newest_epoch > epoch) then
    return 'late'
end
redis.call('SET', KEYS[1], start .. ':' .. epoch, 'EX', ARGV[3])
return 'now'
"""
)
"""Lets only lanes of this start and epoch write from now on."""


@dataclass(frozen=True, slots=True)
class RedisHashes:
    """A sink that keeps one hash for each key; writing a row again changes nothing."""

    prefix: str
    key: str
    url: str = field(default=URL, repr=False)
    reads_once: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        check_url(self.url)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        if self.key not in rows.columns:
            columns = ", ".join(rows.columns)
            raise GraphError(f'the key of the Redis hashes is "{self.key}", which is none of the columns: {columns}')
        writing = writing_of(rows)
        # Outside of a job and a query, the order of calls is unknown: each call is a separate writer.
        fence = f"headgate:{{{self.prefix}}}:writer:{writing.start.life or uuid4().hex}"
        with asking(self.url):
            claim = connect(self.url, writing.patience).register_script(CLAIM)
            outcome = claim(keys=[fence], args=[writing.start.number, epoch, FENCED_S])
        if outcome == b"late":
            raise EngineError(self.too_late(writing))
        claimed = WriterClaim(writing, fence, f"{writing.start.number}:{epoch}".encode())
        texts(rows).mapInArrow(partial(put, self, rows.columns, claimed), "rows long").collect()

    def too_late(self, writing: Writing) -> str:
        return writing.too_late(f'hashes "{self.prefix}" of Redis at {shown(self.url)}')


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """The expected newest writer in Redis while a lane writes."""

    writing: Writing
    key: str
    value: bytes


def redis_hashes(prefix: str, key: str, *, url: str = URL) -> RedisHashes:
    """Keeps each row as a Redis hash, named by `prefix` and the row's value of `key`; the last row of a key stays.

    `job.sink("totals", sinks.redis_hashes("total:", "user"), totals, lanes=2)`

    Rows of a key follow each other only within a lane. Columns that are null are removed from the hash.
    """
    return RedisHashes(prefix, key, url)


def put(
    sink: RedisHashes, names: list[str], claim: WriterClaim, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one lane in order, unless a newer start or epoch has written already."""
    for batch in batches:
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(_values, batch.columns), strict=True)]
        with asking(sink.url, claim.writing.sink):
            while not _put_rows(sink, claim, rows):
                pass
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


def _put_rows(sink: RedisHashes, claim: WriterClaim, rows: list[dict[str, bytes | None]]) -> bool:
    """Write rows in one transaction with a check of the claim; False if the claim changed or the connection broke: check again."""
    from redis.exceptions import WatchError

    with connect(sink.url, claim.writing.patience).pipeline() as pipeline:
        pipeline.watch(claim.key)  # type: ignore[no-untyped-call]  # the library declares no types for it
        if pipeline.get(claim.key) != claim.value:
            raise failure(sink.too_late(claim.writing), claim.writing.sink)
        pipeline.multi()
        for row in rows:
            _put_row(pipeline, sink, row)
        try:
            pipeline.execute()
        except WatchError:
            return False
    return True


def _values(column: pa.Array) -> list[bytes | None]:
    return list(raw_of(column).to_pylist())


def _put_row(pipeline: Pipeline, sink: RedisHashes, row: dict[str, bytes | None]) -> None:
    key = row[sink.key]
    if key is None:
        raise EngineError(f'a row has no "{sink.key}", which is the key of its Redis hash; leave such rows out')
    name = sink.prefix.encode() + key
    pipeline.hset(name, mapping={column: value for column, value in row.items() if value is not None})
    empty = [column for column, value in row.items() if value is None]
    if empty:
        pipeline.hdel(name, *empty)


# -- values as texts


def texts(rows: DataFrame) -> DataFrame:
    """Select columns as texts that Arrow can write, nested values as JSON; column names are numbers, as `mapInArrow` refuses dots."""
    return rows.select(*(_text(column).alias(f"column_{number}") for number, column in enumerate(rows.schema.fields)))


def _text(column: T.StructField) -> Column:
    value = column_of(column.name)
    if isinstance(column.dataType, TYPES):
        return value
    return F.to_json(value) if isinstance(column.dataType, JSON_TYPES) else value.cast("string")


def raw_of(column: pa.Array) -> pa.Array:
    """Encode values as the texts that a Redis source reads back, times in UTC; bytes stay unchanged.

    >>> raw_of(pa.array([7, None])).to_pylist()
    [b'7', None]
    """
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    return column.cast(pa.string()).cast(pa.binary())
