"""Redis Streams as a source and as a sink, with a real Redis and real streaming queries."""

from __future__ import annotations

import datetime
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable
from redis import Redis

from headgate.errors import EngineError, GraphError
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.sinks.redis import redis as to_redis
from headgate.spark.sinks.redis import redis_hashes
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers
from headgate.spark.sources.redis import RedisReader, RedisStreams
from headgate.spark.sources.redis import redis as from_redis
from headgate.spark.sources.redis_entries import FINENESS, FIRST, EntryRange, order, pages, survey
from headgate.topology import Source, Writer
from tests.examples import examples

SCHEMA = "id long, user string, amount double"
DOWN = "redis://:secret@127.0.0.1:1/0"


class Crash(Exception):
    """What the tests throw where a process might die."""


class Collected:
    """A sink that keeps the rows of each epoch, with the lane that read them."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Row]] = {}

    def __call__(self, df: DataFrame, epoch: int) -> None:
        self.epochs[epoch] = df.withColumn("lane", F.spark_partition_id()).collect()

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.epochs.values() for row in rows]

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for rows in self.epochs.values()]


class Runner:
    """Runs a source into a sink until all that has arrived is read; a run after a crash goes on where that one stopped."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark, self.place, self.checkpoint = spark, home / "place", home / "checkpoint"

    def levers(self, lanes: int = 1, read_limit: int | None = None) -> None:
        levers.write(self.place, Levers(lanes, read_limit))

    def run(self, source: RedisStreams, write: Writer) -> None:
        stream = source.stream(self.spark, self.place).writeStream.foreachBatch(write)
        query = stream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def read(self, source: RedisStreams) -> Collected:
        collected = Collected()
        self.run(source, collected)
        return collected


@pytest.fixture
def runner(spark: SparkSession, tmp_path: Path) -> Runner:
    return Runner(spark, tmp_path)


def add(client: Redis, stream: str, numbers: Iterable[int]) -> None:
    pipeline = client.pipeline()
    for number in numbers:
        pipeline.xadd(stream, {"id": number, "user": f"user-{number % 7}", "amount": number / 2})
    pipeline.execute()


def ids(rows: Iterable[Any]) -> list[int]:
    return sorted(row.id for row in rows)


def entries(client: Redis, stream: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return cast(list[tuple[bytes, dict[bytes, bytes]]], client.xrange(stream))


def entry_ids(client: Redis, stream: str) -> list[int]:
    return [int(fields[b"id"]) for _, fields in entries(client, stream)]


# -- source: rows


def test_is_a_source(redis_url: str) -> None:
    source = from_redis("orders", schema=SCHEMA, url=redis_url)
    assert isinstance(source, Source)
    assert (source.arrival, source.elastic) == ("arrived", True)
    assert redis_url not in repr(source)


def test_entries_arrive_as_rows_of_the_schema(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    redis_client.xadd("orders", {"id": 7, "user": "Zoë", "amount": "2.5", "not asked for": "x"}, id="1700000000123-4")
    source = from_redis("orders", schema=SCHEMA, url=redis_url)
    (row,) = runner.read(source).rows
    assert (row.id, row.user, row.amount) == (7, "Zoë", 2.5)
    assert (row.entry, row.stream) == ("1700000000123-4", "orders")
    assert row.arrived.timestamp() == 1700000000.123


def test_every_type_is_parsed(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    fields: dict[Any, Any] = {
        "pieces": "12",
        "price": "12.34",
        "open": "true",
        "day": "2026-05-06",
        "zoned": "2026-05-06T07:08:09+02:00",
        "plain": "2026-05-06 07:08:09.5",
        "raw": b"\xff\x00",
    }
    schema = "pieces int, price decimal(10,2), open boolean, day date, zoned timestamp, plain timestamp, raw binary"
    redis_client.xadd("mixed", fields)
    (row,) = runner.read(from_redis("mixed", schema=schema, url=redis_url)).rows
    assert (row.pieces, row.price, row.open) == (12, Decimal("12.34"), True)
    assert row.day == datetime.date(2026, 5, 6)
    assert row.zoned.astimezone(datetime.UTC).isoformat() == "2026-05-06T05:08:09+00:00"
    assert row.plain.astimezone(datetime.UTC).isoformat() == "2026-05-06T07:08:09.500000+00:00"
    assert bytes(row.raw) == b"\xff\x00"


def test_what_is_missing_or_not_of_its_type_is_null(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    add(redis_client, "orders", range(3))
    redis_client.xadd("orders", {"user": b"\xff", "amount": "much"})
    redis_client.xadd("orders", {"id": "8.5", "amount": "1"})
    rows = runner.read(from_redis("orders", schema=SCHEMA, url=redis_url)).rows
    assert [(row.id, row.user, row.amount) for row in rows] == [
        (0, "user-0", 0.0),
        (1, "user-1", 0.5),
        (2, "user-2", 1.0),
        (None, None, None),
        (None, None, 1.0),
    ]


# -- source: lanes, limits, replay


def test_each_stream_is_a_lane(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    add(redis_client, "east", range(10))
    add(redis_client, "west", range(10, 30))
    rows = runner.read(from_redis("east", "west", "north", schema=SCHEMA, url=redis_url)).rows
    assert ids(rows) == list(range(30))
    assert Counter((row.stream, row.lane) for row in rows) == {("east", 0): 10, ("west", 1): 20}


def test_one_stream_is_read_in_several_lanes(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    runner.levers(lanes=3)
    add(redis_client, "orders", range(1000))
    rows = runner.read(from_redis("orders", schema=SCHEMA, url=redis_url)).rows
    assert ids(rows) == list(range(1000))
    assert sorted(Counter(row.lane for row in rows).values()) == [333, 333, 334]


def test_lanes_go_to_the_streams_with_most_rows(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    runner.levers(lanes=4)
    add(redis_client, "small", range(10))
    add(redis_client, "large", range(10, 310))
    rows = runner.read(from_redis("small", "large", schema=SCHEMA, url=redis_url)).rows
    assert ids(rows) == list(range(310))
    assert Counter((row.stream, row.lane) for row in rows) == {
        ("small", 0): 10,
        ("large", 1): 100,
        ("large", 2): 100,
        ("large", 3): 100,
    }


@settings(examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(0, 400), lanes=st.integers(1, 12), walked=st.integers(1, 150), fetched=st.integers(1, 150))
def test_a_split_loses_and_doubles_nothing(
    redis_client: Redis, rows: int, lanes: int, walked: int, fetched: int
) -> None:
    redis_client.delete("orders")
    add(redis_client, "orders", range(rows))
    whole = EntryRange("orders", FIRST, "99999999999999-0")
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module("headgate.spark.sources.redis_entries")
        patch.setattr(module, "WALK_ROWS", walked)
        patch.setattr(module, "PAGE_ROWS", fetched)
        parts = survey(redis_client, whole).split(whole, lanes)
        read = [[entry for page in pages(redis_client, part) for entry, _ in page] for part in parts]
    assert [entry for part in read for entry in part] == [entry for entry, _ in entries(redis_client, "orders")]
    assert max(map(len, read)) <= rows / lanes + 2 * (1 + rows / FINENESS) + 1


def test_an_epoch_reads_no_more_than_its_limit(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    runner.levers(lanes=2, read_limit=40)
    add(redis_client, "orders", range(100))
    collected = runner.read(from_redis("orders", schema=SCHEMA, url=redis_url))
    assert collected.sizes == [40, 40, 20]
    assert [row.id for row in sorted(collected.rows, key=lambda row: order(row.entry))] == list(range(100))


def test_streams_share_the_limit_and_what_others_leave_of_it(
    runner: Runner, redis_client: Redis, redis_url: str
) -> None:
    runner.levers(read_limit=90)
    for stream, rows in (("small", range(10)), ("middle", range(10, 60)), ("large", range(60, 160))):
        add(redis_client, stream, rows)
    collected = runner.read(from_redis("large", "middle", "small", schema=SCHEMA, url=redis_url))
    first = Counter(row.stream for row in collected.epochs[0])
    assert first == {"small": 10, "middle": 40, "large": 40}
    assert ids(collected.rows) == list(range(160))


def test_levers_take_effect_while_a_query_runs(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    collected = Collected()
    stream = from_redis("orders", schema=SCHEMA, url=redis_url).stream(runner.spark, runner.place)
    query = stream.writeStream.foreachBatch(collected).option("checkpointLocation", str(runner.checkpoint)).start()
    try:
        add(redis_client, "orders", range(50))
        query.processAllAvailable()
        runner.levers(lanes=2, read_limit=20)
        add(redis_client, "orders", range(50, 100))
        query.processAllAvailable()
    finally:
        query.stop()
    later = [rows for rows in collected.epochs.values() if rows and rows[0].id >= 50]
    assert [len(rows) for rows in later] == [20, 20, 10]
    assert all(len({row.lane for row in rows}) == 2 for rows in later)
    assert ids(collected.rows) == list(range(100))


def test_an_epoch_read_again_has_the_same_rows(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    source = from_redis("east", "west", schema=SCHEMA, url=redis_url)
    add(redis_client, "east", range(50))
    first, again = Collected(), Collected()

    def crash(df: DataFrame, epoch: int) -> None:
        first(df, epoch)
        raise Crash

    with pytest.raises(StreamingQueryException):
        runner.run(source, crash)
    add(redis_client, "east", range(50, 70))
    add(redis_client, "west", range(70, 90))
    runner.levers(lanes=4)
    runner.run(source, again)
    assert {row.entry for row in again.epochs[0]} == {row.entry for row in first.epochs[0]}
    assert ids(first.rows) == list(range(50))
    assert len({row.lane for row in again.epochs[0]}) == 4
    assert ids(again.epochs[1]) == list(range(50, 90))


def test_a_stream_may_be_added_to_a_job(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    add(redis_client, "east", range(5))
    add(redis_client, "west", range(5, 10))
    assert ids(runner.read(from_redis("east", schema=SCHEMA, url=redis_url)).rows) == list(range(5))
    both = from_redis("east", "west", schema=SCHEMA, url=redis_url)
    assert ids(runner.read(both).rows) == list(range(5, 10))
    assert both.arrived(runner.place) == 10


# -- source: planning


@pytest.fixture
def reader(redis_url: str, tmp_path: Path) -> RedisReader:
    return RedisReader(options(redis_url, tmp_path), T.StructType([T.StructField("id", T.LongType())]))


def options(url: str, place: Path) -> dict[str, str]:
    return {"streams": '["orders"]', "url": url, "place": str(place), "operator": "in", "on_loss": "fail"}


def walks(client: Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def test_entries_are_walked_over_only_where_the_limit_may_cut(
    reader: RedisReader, redis_client: Redis, tmp_path: Path
) -> None:
    levers.write(tmp_path, Levers(lanes=1, read_limit=50))
    redis_client.config_resetstat()
    add(redis_client, "orders", range(40))
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    add(redis_client, "orders", range(40, 80))
    second = reader.latestOffset(first, ReadAllAvailable())
    assert reader.latestOffset(second, ReadAllAvailable()) == second
    assert walks(redis_client) == 0
    add(redis_client, "orders", range(80, 180))
    third = reader.latestOffset(second, ReadAllAvailable())
    assert walks(redis_client) > 0
    assert third["orders"]["id"] == entries(redis_client, "orders")[129][0].decode()


# -- source: what has arrived


def test_counts_what_arrived_since_the_job_first_started(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    source = from_redis("east", "west", schema=SCHEMA, url=redis_url)
    add(redis_client, "east", range(10))
    redis_client.xtrim("east", maxlen=4, approximate=False)
    assert source.arrived(runner.place) is None
    source.stream(runner.spark, runner.place)
    assert source.arrived(runner.place) == 4
    add(redis_client, "east", range(5))
    add(redis_client, "west", range(6))
    redis_client.xtrim("west", maxlen=1, approximate=False)
    source.stream(runner.spark, runner.place)
    assert source.arrived(runner.place) == 15


def test_what_arrived_is_not_known_while_redis_is_down(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    from_redis("east", schema=SCHEMA, url=redis_url).stream(runner.spark, runner.place)
    with pytest.raises(EngineError, match=r"^Redis at redis://127\.0\.0\.1:1/0 could not be used: ConnectionError: "):
        from_redis("east", schema=SCHEMA, url=DOWN).arrived(runner.place)


# -- source: mistakes


def test_a_redis_that_is_down_is_named_without_its_password(runner: Runner) -> None:
    with pytest.raises(
        EngineError, match=r"^Redis at redis://127\.0\.0\.1:1/0 could not be used: ConnectionError: .*refused$"
    ) as caught:
        from_redis("orders", schema=SCHEMA, url=DOWN).stream(runner.spark, runner.place)
    assert "secret" not in str(caught.value)


def test_a_redis_that_goes_down_while_it_is_read_is_named(runner: Runner) -> None:
    reader = RedisReader(options(DOWN, runner.place), T.StructType())
    sentence = r'^operator "in": Redis at redis://127\.0\.0\.1:1/0 could not be used: ConnectionError: '
    with pytest.raises(LaneError, match=sentence):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with pytest.raises(LaneError, match=sentence):
        next(reader.read(EntryRange("orders", FIRST, "1-0")))


def test_a_key_that_is_no_stream_is_told(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    redis_client.set("orders", "7")
    with pytest.raises(EngineError, match="wrong kind of value"):
        from_redis("orders", schema=SCHEMA, url=redis_url).stream(runner.spark, runner.place)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("id long, Stream string", 'has a column "Stream", which a Redis source adds itself'),
        ("id long, tags array<string>", 'column "tags" is array<string>; read it as a string'),
        ("id longish", "cannot be read; write it like"),
        ("", "names no columns"),
    ],
)
def test_refuses_a_schema_it_cannot_fill(
    runner: Runner, redis_client: Redis, redis_url: str, schema: str, sentence: str
) -> None:
    with pytest.raises(GraphError, match=sentence):
        from_redis("orders", schema=schema, url=redis_url).stream(runner.spark, runner.place)


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_redis(schema=SCHEMA),
        lambda: from_redis("a", "a", schema=SCHEMA),
        lambda: from_redis("a", schema=SCHEMA, url="http://:secret@here"),
        lambda: to_redis(""),
        lambda: redis_hashes("user:", "user", url="localhost:6379"),
    ],
)
def test_refuses_what_cannot_work(make: Callable[[], Any]) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert "secret" not in str(caught.value)


# -- sink: a stream


def orders(spark: SparkSession, numbers: range, lanes: int) -> DataFrame:
    return spark.range(numbers.start, numbers.stop, numPartitions=lanes)


def staged_keys(client: Redis) -> list[bytes]:
    return list(client.scan_iter("headgate:*:staged:*"))


@pytest.fixture
def crash_before_commit() -> Iterator[Callable[[], None]]:
    """Lets the script fail that commits an epoch; what it returns mends it."""
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module("headgate.spark.sinks.redis")
        patch.setattr(module, "COMMIT", "return redis.error_reply('ERR crash')")
        yield patch.undo


def test_rows_become_entries_in_their_order(spark: SparkSession, redis_client: Redis, redis_url: str) -> None:
    write = to_redis("out", url=redis_url)
    write(orders(spark, range(50), lanes=3), 0)
    write(orders(spark, range(50, 60), lanes=1), 1)
    assert entry_ids(redis_client, "out") == list(range(60))
    assert staged_keys(redis_client) == []


def test_a_replayed_epoch_writes_nothing_twice_with_other_lanes(
    spark: SparkSession, redis_client: Redis, redis_url: str
) -> None:
    for lanes in (2, 5, 1):
        to_redis("out", url=redis_url)(orders(spark, range(40), lanes), 7)
    to_redis("out", url=redis_url)(orders(spark, range(40), 1), 6)
    assert entry_ids(redis_client, "out") == list(range(40))


def test_a_crash_between_staging_and_commit_loses_and_doubles_nothing(
    runner: Runner, redis_client: Redis, redis_url: str, crash_before_commit: Callable[[], None]
) -> None:
    source, write = from_redis("in", schema="id long", url=redis_url), to_redis("out", url=redis_url)
    add(redis_client, "in", range(200))
    runner.levers(lanes=2)
    with pytest.raises(StreamingQueryException, match=r"Redis at redis://.* could not be used: ResponseError: crash"):
        runner.run(source, write)
    (staged,) = staged_keys(redis_client)
    assert redis_client.hlen(staged) == 2
    assert 0 < redis_client.ttl(staged) <= 3600
    assert not redis_client.exists("out")

    crash_before_commit()
    add(redis_client, "in", range(200, 250))
    runner.levers(lanes=4)
    runner.run(source, write)
    assert sorted(entry_ids(redis_client, "out")) == list(range(250))
    assert staged_keys(redis_client) == []


def test_a_crash_between_the_commits_of_redis_and_spark_doubles_nothing_and_all_is_read_again(
    runner: Runner, spark: SparkSession, redis_client: Redis, redis_url: str
) -> None:
    read = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    source, write = from_redis("in", schema="id long", url=redis_url), to_redis("out", url=redis_url)

    def crash(df: DataFrame, epoch: int) -> None:
        write(df, epoch)
        raise Crash

    add(redis_client, "in", range(100))
    with pytest.raises(StreamingQueryException):
        runner.run(source, crash)
    add(redis_client, "in", range(100, 120))
    runner.levers(lanes=3)
    runner.run(source, lambda df, epoch: write(df.mapInArrow(counted, df.schema), epoch))
    assert sorted(entry_ids(redis_client, "out")) == list(range(120))
    assert read.value == 120, "whoever counts the rows sees those of the epoch that Redis had already"


def test_jobs_that_share_a_stream_do_not_skip_each_others_epochs(
    spark: SparkSession, tmp_path: Path, redis_client: Redis, redis_url: str
) -> None:
    add(redis_client, "in", range(10))
    for job in ("first", "second"):
        runner = Runner(spark, tmp_path / job)
        runner.run(from_redis("in", schema="id long", url=redis_url), to_redis("out", url=redis_url))
    assert sorted(entry_ids(redis_client, "out")) == sorted([*range(10), *range(10)])


def test_sinks_of_one_job_that_share_a_stream_go_by_their_names(
    spark: SparkSession, redis_client: Redis, redis_url: str
) -> None:
    for name in ("large", "small", "small"):
        to_redis("out", url=redis_url, name=name)(orders(spark, range(5), 1), 0)
    assert entry_ids(redis_client, "out") == [*range(5), *range(5)]


def test_an_epoch_whose_staged_rows_are_gone_writes_nothing(
    spark: SparkSession, redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, rows = to_redis("out", url=redis_url), orders(spark, range(5), 1)
    with monkeypatch.context() as patch:
        patch.setattr(Redis, "register_script", unstaged(Redis.register_script, redis_client))
        with pytest.raises(EngineError, match=r'the rows of epoch 3 for stream "out" are gone from Redis'):
            write(rows, 3)
    assert not redis_client.exists("out")
    write(rows, 3)
    assert entry_ids(redis_client, "out") == list(range(5))


def unstaged(register: Callable[..., Any], client: Redis) -> Callable[..., Any]:
    """As if what was staged had expired just before the commit."""

    def register_script(self: Redis, script: str) -> Any:
        for key in staged_keys(client):
            client.delete(key)
        return register(self, script)

    return register_script


def test_what_a_sink_writes_a_source_reads_back(
    spark: SparkSession, runner: Runner, redis_client: Redis, redis_url: str
) -> None:
    schema = (
        "id long, user string, amount double, price decimal(10,2), open boolean, day date, at timestamp, raw binary"
    )
    moment = datetime.datetime(2026, 5, 6, 7, 8, 9, 10, tzinfo=datetime.UTC)
    full = (1, "Zoë, \n", 0.1, Decimal("12.30"), False, datetime.date(2026, 5, 6), moment, bytearray(b"\x00\xff"))
    empty = (2, "", -1e300, Decimal("0.00"), True, datetime.date(1969, 1, 1), moment, bytearray())
    nothing = (None,) * len(full)
    to_redis("out", url=redis_url)(spark.createDataFrame([full, nothing, empty], schema).coalesce(1), 0)
    rows = runner.read(from_redis("out", schema=schema, url=redis_url)).rows
    width = len(full)
    expected = spark.createDataFrame([full, nothing, empty], schema).collect()
    assert [tuple(row)[:width] for row in rows] == [tuple(row) for row in expected]


def test_nested_values_are_written_as_json(spark: SparkSession, redis_client: Redis, redis_url: str) -> None:
    rows = spark.sql("select 1 as id, array(1, 2) as tags, named_struct('a', 'b') as `in.side`")
    to_redis("out", url=redis_url)(rows, 0)
    ((_, fields),) = entries(redis_client, "out")
    assert fields == {b"id": b"1", b"tags": b"[1,2]", b"in.side": b'{"a":"b"}'}


def test_an_epoch_without_rows_counts_as_written(spark: SparkSession, redis_client: Redis, redis_url: str) -> None:
    write = to_redis("out", url=redis_url)
    write(orders(spark, range(0), 1), 0)
    write(orders(spark, range(3), 1), 0)
    assert not redis_client.exists("out")


# -- sink: hashes


def test_hashes_keep_the_last_row_of_each_key(spark: SparkSession, redis_client: Redis, redis_url: str) -> None:
    write = redis_hashes("total:", "user", url=redis_url)
    schema = "user string, total long, note string"
    first = spark.createDataFrame([("ann", 1, "new"), ("bob", 5, None), ("ann", 2, "old")], schema).coalesce(1)
    for _ in range(2):
        write(first, 0)
    assert redis_client.hgetall("total:ann") == {b"user": b"ann", b"total": b"2", b"note": b"old"}
    assert redis_client.hgetall("total:bob") == {b"user": b"bob", b"total": b"5"}
    write(spark.createDataFrame([("ann", 3, None)], schema), 1)
    assert redis_client.hgetall("total:ann") == {b"user": b"ann", b"total": b"3"}
    assert len(list(redis_client.scan_iter("total:*"))) == 2


def test_hashes_are_written_by_a_running_query(runner: Runner, redis_client: Redis, redis_url: str) -> None:
    add(redis_client, "in", range(70))
    runner.levers(lanes=2)
    write = redis_hashes("order:", "id", url=redis_url)
    runner.run(
        from_redis("in", schema=SCHEMA, url=redis_url), lambda df, epoch: write(df.select("id", "amount"), epoch)
    )
    assert redis_client.hgetall("order:69") == {b"id": b"69", b"amount": b"34.5"}
    assert len(list(redis_client.scan_iter("order:*"))) == 70


def test_hashes_need_their_key(spark: SparkSession, redis_client: Redis, redis_url: str) -> None:
    with pytest.raises(GraphError, match='"user", which is none of the columns: id'):
        redis_hashes("total:", "user", url=redis_url)(orders(spark, range(1), 1), 0)
    with pytest.raises(Exception, match='a row has no "id", which is the key of its Redis hash'):
        redis_hashes("total:", "id", url=redis_url)(spark.sql("select cast(null as long) as id"), 0)
