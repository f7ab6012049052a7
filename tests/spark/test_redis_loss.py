"""Entries that a Redis source can no longer read, and a Redis that does not answer: the real one, mostly without Spark."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable
from redis import Redis

from headgate.errors import EngineError, GraphError
from headgate.ports import JobPhase
from headgate.spark import sinks
from headgate.spark.connections.patience import Patience
from headgate.spark.connections.redis import connect
from headgate.spark.engine import SparkEngine
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers
from headgate.spark.sources.redis import BEGUN, PLANNED, RedisReader, RedisStreams, redis, remember
from headgate.spark.sources.redis_entries import FIRST, EntryRange, first_mark, look
from headgate.topology import Topology

from .builders import column, put_in, topology
from .conftest import Until

SCHEMA = T.StructType([T.StructField("id", T.LongType())])
SOON = Patience(connect_s=0.3, answer_s=0.3, look_s=0.2)


class Reading:
    """A source that is read epoch by epoch, as Spark does it."""

    def __init__(self, url: str, place: Path, on_loss: str) -> None:
        self.source = RedisStreams(("orders",), "id long", url, on_loss)
        self.place = place
        self.reader = self.restarted()
        remember(place, {"orders": first_mark(look(connect(url), ["orders"])["orders"])}, BEGUN)
        self.offset = self.reader.initialOffset()

    def restarted(self) -> RedisReader:
        """Another process that goes on where this one is."""
        options = {"streams": '["orders"]', "url": self.source.url, "place": str(self.place), "operator": "in"}
        self.reader = RedisReader({**options, "on_loss": self.source.on_loss}, SCHEMA)
        return self.reader

    def plan(self) -> Any:
        """The end of the next epoch, in the form that Spark keeps it in."""
        return json.loads(json.dumps(self.reader.latestOffset(self.offset, ReadAllAvailable())))

    def run(self, end: Any) -> list[int]:
        """The rows of an epoch up to there."""
        parts = self.reader.partitions(self.offset, end)
        rows = [row for part in parts for batch in self.reader.read(part) for row in batch.column("id").to_pylist()]
        self.offset = end
        return rows

    def epoch(self) -> list[int]:
        return self.run(self.plan())


@pytest.fixture
def reading(redis_url: str, redis_client: Redis, tmp_path: Path) -> Callable[[str], Reading]:
    return lambda on_loss: Reading(redis_url, tmp_path, on_loss)


def add(client: Redis, numbers: Iterable[int], first_ms: int | None = None) -> None:
    pipeline = client.pipeline()
    for place, number in enumerate(numbers):
        pipeline.xadd("orders", {"id": number}, id="*" if first_ms is None else f"{first_ms + place}-0")
    pipeline.execute()


def trim(client: Redis, length: int) -> None:
    client.xtrim("orders", maxlen=length, approximate=False)


def recreate(client: Redis) -> None:
    """Deleted, and made again with ids that go on: only counts tell."""
    client.delete("orders")
    add(client, range(700, 770))


def go_back(client: Redis) -> None:
    """A replica whose ids are behind takes over."""
    client.delete("orders")
    add(client, range(700, 770), first_ms=1000)


def delete_one(client: Redis) -> None:
    found: Any = client.xrange("orders", count=7)
    client.xdel("orders", found[-1][0])


LOSSES: dict[str, tuple[Callable[[Redis], Any], str]] = {
    "trimmed": (lambda client: trim(client, 10), "40 entries were removed unread"),
    "trimmed to nothing": (lambda client: trim(client, 0), "50 entries were removed unread"),
    "deleted": (lambda client: client.delete("orders"), "it was deleted, or its ids went back"),
    "made again": (recreate, "it was deleted, or its ids went back"),
    "ids went back": (go_back, "it was deleted, or its ids went back"),
}


@pytest.mark.parametrize(("lose", "what"), LOSSES.values(), ids=list(LOSSES))
@pytest.mark.parametrize("restart", [False, True], ids=["same process", "restarted"])
def test_a_stream_that_lost_unread_entries_fails_the_job(
    reading: Callable[[str], Reading], redis_client: Redis, lose: Callable[[Redis], Any], what: str, restart: bool
) -> None:
    job = reading("fail")
    add(redis_client, range(20))
    assert job.epoch() == list(range(20))
    add(redis_client, range(20, 70))
    lose(redis_client)
    if restart:
        job.restarted()
    sentence = rf'^operator "in": stream "orders" of Redis at redis://127.*: {what}; set on_loss="skip"'
    for _ in range(2):
        with pytest.raises(LaneError, match=sentence):
            job.plan()


SKIPS: dict[str, tuple[Callable[[Redis], Any], list[int], int, int]] = {
    "trimmed": (lambda client: trim(client, 10), [*range(60, 70)], 40, 0),
    "trimmed to nothing": (lambda client: trim(client, 0), [], 50, 0),
    "deleted": (lambda client: client.delete("orders"), [], 0, 1),
    "made again": (recreate, [*range(700, 770)], 0, 1),
    "ids went back": (go_back, [*range(700, 770)], 0, 1),
    "one deleted among the read": (delete_one, [*range(20, 70)], 0, 0),
}


@pytest.mark.parametrize(("lose", "rows", "lost", "gaps"), SKIPS.values(), ids=list(SKIPS))
@pytest.mark.parametrize("limit", [None, 8])
def test_skipping_reads_what_is_left_once_and_counts_the_rest(
    reading: Callable[[str], Reading],
    redis_client: Redis,
    lose: Callable[[Redis], Any],
    rows: list[int],
    lost: int,
    gaps: int,
    limit: int | None,
) -> None:
    job = reading("skip")
    add(redis_client, range(20))
    job.epoch()
    add(redis_client, range(20, 70))
    lose(redis_client)
    levers.write(job.place, Levers(lanes=2, read_limit=limit))
    read = [row for _ in range(12) for row in job.epoch()]
    assert read == rows
    assert (job.offset["orders"]["lost"], job.offset["orders"]["gaps"]) == (lost, gaps)
    assert job.source.arrived(job.place) == 20 + len(rows), "rows that were lost do not wait for ever"
    add(redis_client, [99])
    assert job.epoch() == [99]
    assert bool(job.source.losses(job.place)) == bool(lost or gaps)


def test_an_entry_deleted_among_the_unread_counts_as_lost(
    reading: Callable[[str], Reading], redis_client: Redis
) -> None:
    job = reading("skip")
    add(redis_client, range(5))
    job.epoch()
    add(redis_client, range(5, 10))
    delete_one(redis_client)
    assert job.epoch() == [5, 7, 8, 9]
    assert job.source.losses(job.place).endswith('stream "orders": 1 entry was removed unread')


@pytest.mark.parametrize("lanes", [1, 3])
def test_entries_trimmed_between_planning_and_reading_fail_the_epoch(
    reading: Callable[[str], Reading], redis_client: Redis, lanes: int
) -> None:
    job = reading("fail")
    levers.write(job.place, Levers(lanes))
    add(redis_client, range(50))
    end = job.plan()
    trim(redis_client, 30)
    with pytest.raises(LaneError, match=r"20 entries were removed unread"):
        job.run(end)


@pytest.mark.parametrize("lanes", [1, 3])
def test_entries_trimmed_between_planning_and_reading_are_counted_once_if_skipped(
    reading: Callable[[str], Reading], redis_client: Redis, lanes: int
) -> None:
    job = reading("skip")
    add(redis_client, range(50))
    begin, end = job.offset, job.plan()
    trim(redis_client, 30)
    for tried in (lanes, 4 - lanes):
        levers.write(job.place, Levers(tried))
        job.offset = begin
        assert job.run(end) == list(range(20, 50))
    assert "20 entries were removed" in job.source.losses(job.place)
    assert job.source.arrived(job.place) == 30


def test_lanes_notice_what_is_trimmed_while_they_read(reading: Callable[[str], Reading], redis_client: Redis) -> None:
    job = reading("fail")
    levers.write(job.place, Levers(2))
    add(redis_client, range(50))
    first, second = job.reader.partitions(job.offset, job.plan())
    trim(redis_client, 10)
    with pytest.raises(LaneError, match="25 entries were removed"):
        list(job.reader.read(first))
    with pytest.raises(LaneError, match="15 entries were removed"):
        list(job.reader.read(second))


def test_trimming_what_was_read_is_no_loss(reading: Callable[[str], Reading], redis_client: Redis) -> None:
    job = reading("fail")
    add(redis_client, range(100))
    job.epoch()
    trim(redis_client, 0)
    assert job.plan() == job.offset
    add(redis_client, range(100, 110))
    assert job.restarted() and job.epoch() == list(range(100, 110))


def test_a_crash_after_the_first_plan_begins_with_the_first_entry(
    reading: Callable[[str], Reading], redis_client: Redis
) -> None:
    job = reading("fail")
    add(redis_client, range(10))
    job.plan()
    assert job.restarted().initialOffset() == job.offset
    assert job.epoch() == list(range(10))


@pytest.mark.parametrize("damage", [b"", b"\xff", b'{"orders": {"id": 7'])
def test_damage_to_what_is_remembered_is_mended_or_told(
    reading: Callable[[str], Reading], redis_client: Redis, damage: bytes
) -> None:
    job = reading("fail")
    add(redis_client, range(10))
    job.epoch()
    (job.place / PLANNED).write_bytes(damage)
    add(redis_client, range(10, 20))
    assert job.epoch() == list(range(10, 20))
    assert job.source.arrived(job.place) == 20
    (job.place / BEGUN).write_bytes(damage)
    with pytest.raises(EngineError, match=r"redis-begun\.json. is damaged .*; remove the job and submit it again"):
        job.restarted().initialOffset()


def test_an_offset_of_an_earlier_version_is_told(reading: Callable[[str], Reading]) -> None:
    job = reading("fail")
    job.offset = {"orders": "1700000000000-0"}
    with pytest.raises(LaneError, match=r'the offset .* of stream "orders", which an earlier version wrote; remove'):
        job.plan()


def test_what_to_do_about_losses_is_one_of_two_words() -> None:
    with pytest.raises(GraphError, match=r"on_loss of a Redis source is .*skipp.*; allowed are fail, skip"):
        redis("orders", schema="id long", on_loss="skipp")


# -- a Redis that accepts and does not answer


@pytest.fixture
def stopped(redis_url: str, redis_client: Redis) -> Iterator[None]:
    process: Any = redis_client.info("server")["process_id"]
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_redis_that_does_not_answer_holds_up_no_call_beyond_its_time_out(
    reading: Callable[[str], Reading], redis_url: str, request: pytest.FixtureRequest
) -> None:
    job = reading("fail")
    levers.write(job.place, Levers(1, None, SOON))
    request.getfixturevalue("stopped")
    calls: list[Callable[[], Any]] = [
        lambda: job.source.arrived(job.place),
        job.plan,
        job.reader.prepareForTriggerAvailableNow,
        lambda: list(job.reader.read(EntryRange("orders", FIRST, "1-0"))),
    ]
    for call in calls:
        began_s = time.monotonic()
        with pytest.raises((EngineError, LaneError), match=r"Redis at redis://127.* could not be used: TimeoutError: "):
            call()
        assert time.monotonic() - began_s < 2


def test_a_hanging_redis_holds_up_no_sink_beyond_its_time_out(
    spark: SparkSession, redis_client: Redis, redis_url: str, request: pytest.FixtureRequest
) -> None:
    rows = spark.range(1)
    request.getfixturevalue("stopped")
    for sink in (sinks.redis("out", url=redis_url), sinks.redis_hashes("out:", "id", url=redis_url)):
        began_s = time.monotonic()
        with Writing(JobStart("one", 1), SOON).by("out"), pytest.raises(EngineError, match=r"used: TimeoutError: "):
            sink(rows, 0)
        assert time.monotonic() - began_s < 2


# -- in a job


def copying(out: Path, url: str, on_loss: str) -> Topology:
    job = topology()
    job.sink("out", sinks.files(out), job.source("in", redis("orders", schema="id long", url=url, on_loss=on_loss)))
    return job


@pytest.mark.parametrize("on_loss", ["fail", "skip"])
def test_a_job_tells_which_source_lost_entries(
    engine: SparkEngine, out: Path, redis_client: Redis, redis_url: str, until: Until, on_loss: str
) -> None:
    add(redis_client, range(20))
    engine.submit(copying(out, redis_url, on_loss))
    until(lambda: put_in(engine) == 20, "the first rows were read")
    engine.pause("job")
    add(redis_client, range(20, 70))
    trim(redis_client, 10)
    engine.resume("job")
    until(lambda: "entries were removed unread" in engine.states()["job"].reason, "the loss was told")
    assert engine.states()["job"].reason.startswith('operator "in": ')
    if on_loss == "skip":
        until(lambda: column(out, "id") == [*range(20), *range(60, 70)], "what is left was read")
        assert engine.states()["job"].phase is JobPhase.RUNNING
