"""Sinks know the life of the job that writes, and its newest start: a new job loses no rows, and an old process writes none."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from redis import Redis
from redis.client import Pipeline

from headgate.errors import EngineError
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.epochs.pace import Stopped
from headgate.spark.sinks.files import WRITERS, claimed
from headgate.spark.sinks.redis import WriterClaim, put, redis_hashes
from headgate.spark.sinks.writing import JobStart, Writing, begin_start
from headgate.state.durable import LIFE
from headgate.topology import Topology, Writer

from .builders import ROWS, burst, column, epochs, put_in, same, topology
from .conftest import Until


def write(sink: Writer, rows: Any, epoch: int, life: str, start: int) -> None:
    with Writing(JobStart(life, start)).by("out"):
        sink(rows, epoch)


def ids(client: Redis, stream: str) -> list[int]:
    found: Any = client.xrange(stream)
    return [int(fields[b"id"]) for _, fields in found]


# -- lives and starts


def test_a_life_lasts_over_restarts_and_ends_with_the_files_of_its_job(tmp_path: Path) -> None:
    first, second = begin_start(tmp_path), begin_start(tmp_path)
    assert (first.life, first.number) == (second.life, 1)
    assert second.number == 2
    (tmp_path / LIFE).unlink()
    assert begin_start(tmp_path).life != first.life


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b'{"life": "abc"', b'{"life": 7, "number": 1}'])
def test_a_damaged_life_is_told_instead_of_begun_again(tmp_path: Path, damage: bytes) -> None:
    begin_start(tmp_path)
    (tmp_path / LIFE).write_bytes(damage)
    with pytest.raises(EngineError, match=r"life\.json. is damaged .* remove the job and submit it again"):
        begin_start(tmp_path)


def test_epoch_that_outlives_its_stop_has_no_effect_on_the_next_start(
    engine: SparkEngine, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()

    def hangs_once(rows: DataFrame, epoch: int) -> None:
        rows.collect()
        if not held.is_set():
            held.set()
            assert go_on.wait(120)

    impatient = replace(engine._shared.settings, stop_s=0.1)
    monkeypatch.setattr(engine, "_shared", replace(engine._shared, settings=impatient))
    engine.spark.conf.set("spark.sql.streaming.stopTimeout", "100ms")  # else Spark waits for the sink
    job = topology()
    job.sink("out", hangs_once, job.source("in", sources.load(100)))
    try:
        engine.submit(job)
        assert held.wait(60)
        first = engine.job("job")._run
        with pytest.raises(EngineError):
            engine.pause("job")
        until(lambda: resumed(engine, "job"), "the end of the first query")
        until(lambda: epochs(engine) >= 2, "epochs of the second start")
        assert first is not None and not first.pace.is_idle
        go_on.set()
        until(lambda: first.pace.is_idle, "the end of the epoch that was held")
        second = engine.job("job")._run
        assert second is not None and second.runner.error is None
        assert first.runner.error is not None and first.counters.epochs == 0
        with pytest.raises(Stopped):
            first.pace.begin()
        before = epochs(engine)
        until(lambda: epochs(engine) > before, "another epoch of the second start")
    finally:
        go_on.set()
        engine.spark.conf.unset("spark.sql.streaming.stopTimeout")


def resumed(engine: SparkEngine, name: str) -> bool:
    """Spark refuses a second query of the same name while the first one has not ended."""
    try:
        engine.resume(name)
    except EngineError as error:
        assert "already active" in str(error), error
        return False
    return True


# -- files


def number(path: Path, life: str, start: int, epoch: int) -> int:
    """The number of the directory that an epoch is written to."""
    found = epoch + claimed(path, Writing(JobStart(life, start)), epoch).ahead
    (path / f"epoch={found}").mkdir(exist_ok=True)
    return found


def test_a_new_job_goes_on_after_the_directories_of_the_one_before(tmp_path: Path) -> None:
    assert [number(tmp_path, "one", 1, epoch) for epoch in (0, 1, 2, 2)] == [0, 1, 2, 2]
    assert [number(tmp_path, "two", 1, epoch) for epoch in (0, 0, 1)] == [3, 3, 4]
    assert [number(tmp_path, "two", 2, epoch) for epoch in (1, 2)] == [4, 5]


def test_a_job_whose_sink_moves_keeps_the_numbers_of_its_epochs(tmp_path: Path) -> None:
    assert [number(tmp_path, "one", 3, epoch) for epoch in (57, 58)] == [57, 58]


def test_files_refuse_an_older_start_and_an_older_job(tmp_path: Path) -> None:
    number(tmp_path, "one", 2, 0)
    with pytest.raises(EngineError, match="is written by a newer start of this job than number 1"):
        number(tmp_path, "one", 1, 1)
    number(tmp_path, "two", 1, 0)
    with pytest.raises(EngineError, match="is written by another job, which was submitted later"):
        number(tmp_path, "one", 3, 1)


def test_files_refuse_to_guess_who_wrote_before(tmp_path: Path) -> None:
    number(tmp_path, "one", 1, 0)
    (tmp_path / WRITERS).write_bytes(b"[{")
    with pytest.raises(EngineError, match=r"is damaged .* give the sink another directory"):
        number(tmp_path, "one", 2, 1)


# -- Redis


def test_a_new_job_appends_its_first_epochs_although_an_old_one_of_the_same_sink_was_further(
    spark: SparkSession, redis_client: Redis, redis_url: str
) -> None:
    sink = sinks.redis("out", url=redis_url, name="large")
    for epoch in (0, 1, 1):
        write(sink, spark.range(epoch, epoch + 1), epoch, "one", 1)
    for epoch in (0, 1):
        write(sink, spark.range(10 + epoch, 11 + epoch), epoch, "two", 1)
    assert ids(redis_client, "out") == [0, 1, 10, 11]


def test_an_older_start_appends_nothing_once_a_newer_one_has_begun_to(
    spark: SparkSession, redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.redis("out", url=redis_url)
    write(sink, spark.range(1), 0, "one", 1)
    with monkeypatch.context() as patch:  # the newer start dies after its rows are staged
        module = importlib.import_module("headgate.spark.sinks.redis")
        patch.setattr(module, "COMMIT", "return redis.error_reply('ERR killed')")
        with pytest.raises(EngineError, match="killed"):
            write(sink, spark.range(1, 2), 1, "one", 2)
    with pytest.raises(EngineError, match=r'stream "out" of Redis at redis://.* by a newer start .* than number 1'):
        write(sink, spark.range(1, 2), 1, "one", 1)
    write(sink, spark.range(1, 2), 1, "one", 3)
    assert ids(redis_client, "out") == [0, 1]


def test_an_older_start_that_has_staged_its_rows_cannot_commit_them(
    spark: SparkSession, redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.redis("out", url=redis_url)
    between: list[Callable[[], None]] = [lambda: write(sink, spark.range(5, 6), 0, "one", 2)]
    ask = type(sink)._ask

    def overtaken(self: Any, writing: Writing, script: str, *given: Any) -> Any:
        if "XADD" in script and writing.start.number == 1:
            between.pop()()
        return ask(self, writing, script, *given)

    monkeypatch.setattr(type(sink), "_ask", overtaken)
    with pytest.raises(EngineError, match="by a newer start of this job"):
        write(sink, spark.range(1), 0, "one", 1)
    assert ids(redis_client, "out") == [5]


def test_hashes_refuse_an_older_start_and_an_older_epoch(
    spark: SparkSession, redis_client: Redis, redis_url: str
) -> None:
    sink = sinks.redis_hashes("total:", "user", url=redis_url)
    new, old = (spark.createDataFrame([("ann", total)], "user string, total long") for total in (2, 1))
    write(sink, new, 7, "one", 2)
    for epoch, start in ((8, 1), (6, 2)):
        with pytest.raises(EngineError, match=r'hashes "total:" of Redis at redis://.* by a newer start'):
            write(sink, old, epoch, "one", start)
    assert redis_client.hget("total:ann", "total") == b"2"
    write(sink, old, 0, "two", 1)
    assert redis_client.hget("total:ann", "total") == b"1"


def test_a_lane_of_hashes_that_was_overtaken_writes_nothing(redis_client: Redis, redis_url: str) -> None:
    sink, start = redis_hashes("total:", "user", url=redis_url), Writing(JobStart("one", 1), sink="totals")
    redis_client.set("fence", "2:0")
    batch = pa.RecordBatch.from_pydict({"user": ["ann"]})
    with pytest.raises(LaneError, match=r'^operator "totals": hashes "total:" .* by a newer start'):
        list(put(sink, ["user"], WriterClaim(start, "fence", b"1:4"), iter([batch])))
    assert not redis_client.exists("total:ann")


def test_a_lane_of_hashes_is_overtaken_between_its_look_and_its_write(
    redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, start = redis_hashes("total:", "user", url=redis_url), Writing(JobStart("one", 1), sink="totals")
    redis_client.set("fence", "1:4")
    multi = Pipeline.multi

    def overtaken(self: Any) -> None:
        redis_client.set("fence", "2:4")
        multi(self)

    monkeypatch.setattr(Pipeline, "multi", overtaken)
    batch = pa.RecordBatch.from_pydict({"user": ["ann"]})
    with pytest.raises(LaneError, match="by a newer start"):
        list(put(sink, ["user"], WriterClaim(start, "fence", b"1:4"), iter([batch])))
    assert not redis_client.exists("total:ann")


def test_a_lane_of_hashes_whose_connection_breaks_writes_all_the_same(redis_client: Redis, redis_url: str) -> None:
    sink, start = redis_hashes("total:", "user", url=redis_url), Writing(JobStart("one", 1), sink="totals")
    redis_client.set("fence", "1:4")
    for name in ("ann", "bob"):
        batch = pa.RecordBatch.from_pydict({"user": [name]})
        list(put(sink, ["user"], WriterClaim(start, "fence", b"1:4"), iter([batch])))
        redis_client.client_kill_filter(_type="normal", skipme=True)
    assert redis_client.exists("total:ann", "total:bob") == 2


# -- jobs


def job(out: Path, url: str) -> Topology:
    made = topology()
    rows = made.batches("copy", same, made.source("in", burst(30)), schema=ROWS)
    made.sink("files", sinks.files(out), rows)
    made.sink("named", sinks.redis("rows", url=url, name="large"), rows)
    made.sink("other", sinks.redis("rows", url=url), rows)
    return made


def test_a_job_removed_and_submitted_again_keeps_all_rows_of_both(
    engine: SparkEngine, out: Path, redis_client: Redis, redis_url: str, until: Until
) -> None:
    for _ in range(2):
        engine.submit(job(out, redis_url))
        until(lambda: put_in(engine) == 30, "all rows were put in")
        engine.remove("job")
    assert column(out) == sorted([*range(30)] * 2)
    found: Any = redis_client.xrange("rows")
    assert sorted(int(fields[b"row"]) for _, fields in found) == sorted([*range(30)] * 4)
