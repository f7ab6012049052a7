"""What goes wrong in one job stays there, is told in a sentence, and is made good."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from redis import Redis
from redis.exceptions import RedisError

from headgate.core.model import Snapshot
from headgate.errors import EngineError, InputError
from headgate.ports import JobPhase
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.measuring import progress
from headgate.spark.reasons import MOST_TRACE, SOURCE_ENDED
from headgate.topology import Topology

from .builders import ROWS, burst, column, copied, epochs, latencies_until, put_in, reading, same, start, topology
from .conftest import SETTINGS, Until


def phase(engine: SparkEngine, name: str = "job") -> JobPhase:
    return engine.states()[name].phase


def reason(engine: SparkEngine, name: str = "job") -> str:
    return engine.states()[name].reason


def broken(out: Path, flag: Path, rows: int = 600) -> Topology:
    """Its function raises as long as there is a file."""

    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if flag.exists():
                raise LookupError("no such tier")
            yield batch

    job = topology()
    looked_up = job.batches("look-up", look_up, job.source("in", burst(rows)), schema=ROWS, lanes=2)
    job.sink("out", sinks.files(out), looked_up)
    return job


# -- exceptions in user code


def test_failing_job_is_retried_then_left_while_others_meet_their_intents(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    others = ("first", "second")
    for name in others:
        engine.submit(copied(name, out / name, 20, latency="20s", pace_s=0.5))
    until(lambda: all(epochs(engine, name) >= 1 for name in others), "an epoch of each")
    before = {name: reading(engine, name).epochs or 0 for name in others}
    engine.submit(broken(out / "job", flag))
    seen: list[JobPhase] = []

    def failed() -> bool:
        now = phase(engine)
        if not seen or seen[-1] is not now:
            seen.append(now)
        return now is JobPhase.FAILED

    until(failed, "the failure")
    assert JobPhase.RETRYING in seen
    assert reason(engine) == 'operator "look-up": LookupError: no such tier'
    trace = engine.states()["job"].trace
    assert "in look_up" in trace and 'LookupError("no such tier")' in trace and len(trace) < 2 * MOST_TRACE
    assert "job" not in engine.jobs()
    latencies = latencies_until(engine, partial(all_made_epochs, {name: count + 3 for name, count in before.items()}))
    for name in others:
        assert latencies[name].mean_s <= 20
        assert phase(engine, name) is JobPhase.RUNNING
    assert written_nothing(out / "job")


def all_made_epochs(counts: Mapping[str, int], snapshot: Snapshot) -> bool:
    made = {name: now.epochs or 0 for name, now in snapshot.jobs.items() if now is not None}
    return all(made[name] >= count for name, count in counts.items())


def written_nothing(out: Path) -> bool:
    return not out.exists() or column(out) == []


def test_failed_job_goes_on_where_it_was_once_it_is_repaired_and_resumed(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    flag = tmp_path / "broken"
    start(engine, broken(out, flag), read_limit=100)
    until(lambda: epochs(engine) >= 1, "an epoch")
    flag.touch()
    until(lambda: phase(engine) is JobPhase.FAILED, "the failure")
    flag.unlink()
    engine.resume("job")
    assert (phase(engine), reason(engine)) == (JobPhase.RUNNING, "")
    until(lambda: put_in(engine) == 600, "the end of the load")
    assert column(out) == list(range(600))


@pytest.mark.slow
def test_job_that_recovers_may_fail_as_often_again(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    flag = tmp_path / "broken"
    start(engine, broken(out, flag), read_limit=60)
    for _ in range(SETTINGS.retries + 1):
        until(lambda: phase(engine) is JobPhase.RUNNING and epochs(engine) >= 1, "an epoch")
        flag.touch()
        until(lambda: phase(engine) is not JobPhase.RUNNING, "the failure")
        flag.unlink()
    until(lambda: phase(engine) is JobPhase.RUNNING and put_in(engine) == 600, "the end of the load")
    assert column(out) == list(range(600))


def test_counters_of_a_job_that_was_started_again_are_of_another_version(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    start(engine, copied("job", out, burst(600)), read_limit=200)
    until(lambda: epochs(engine) >= 1, "an epoch")
    before = reading(engine)
    engine.pause("job")
    engine.resume("job")
    after = reading(engine)
    assert after.version > before.version
    assert after.arrived["in"] >= before.arrived["in"]
    assert put_in(engine) >= before.operators["in"].processed["*"]
    until(lambda: put_in(engine) == 600, "the end of the load")
    assert column(out) == list(range(600))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda rows: [1 / 0], 'operator "work": ZeroDivisionError: division by zero'),
        (lambda rows: 5, 'operator "work": its function returned int; it must yield Arrow record batches'),
        (lambda rows: ["row"], 'operator "work": it put out str; it must yield Arrow record batches'),
        (
            lambda rows: (batch.select(["row"]) for batch in rows),
            'operator "work": it declared the column "arrived" but put out row only',
        ),
        (
            lambda rows: (batch.set_column(0, "row", pa.array(["a"] * batch.num_rows)) for batch in rows),
            'operator "work": its column "row" is declared as int64 but was put out as string, which does not fit',
        ),
    ],
    ids=["raises", "no iterator", "no batch", "column missing", "column of another type"],
)
def test_function_of_batches_that_does_wrong_is_told_in_one_sentence(
    engine: SparkEngine, out: Path, until: Until, function: Any, sentence: str
) -> None:
    job = topology()
    job.sink("out", sinks.files(out), job.batches("work", function, job.source("in", burst(10)), schema=ROWS))
    assert one_failure(engine, job, until).startswith(sentence)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda event: 1 / 0, "operator \"work\": ZeroDivisionError: division by zero, for the row {'row': 0, "),
        (lambda event: {"row": "a"}, 'operator "work": it put out a row that does not fit its schema: '),
        (lambda event: {"row": 2**70}, 'operator "work": it put out a row that does not fit its schema: '),
        (
            lambda event: "row",
            "operator \"work\": TypeError: it put out 'row'; it must put out a dict, several, or None",
        ),
        (lambda event: [["row"]], "operator \"work\": TypeError: it put out [['row']]; it must put out a dict"),
        (lambda event: 5, "operator \"work\": TypeError: 'int' object is not iterable"),
    ],
    ids=["raises", "another type", "too large", "text", "a list", "number"],
)
def test_function_of_events_that_does_wrong_is_told_in_one_sentence(
    engine: SparkEngine, out: Path, until: Until, function: Any, sentence: str
) -> None:
    job = topology()
    job.sink("out", sinks.files(out), job.events("work", function, job.source("in", burst(10)), schema="row long"))
    assert one_failure(engine, job, until).startswith(sentence)


def one_failure(engine: SparkEngine, job: Topology, until: Until) -> str:
    engine.submit(job)
    until(lambda: reason(engine), "the failure")
    told = reason(engine)
    assert "\n" not in told
    return told


# -- refused at submit


def refused(engine: SparkEngine, job: Topology) -> str:
    with pytest.raises(EngineError) as refusal:
        engine.submit(job)
    assert job.name not in engine.states()
    sentence = str(refusal.value)
    assert sentence.startswith(f'job "{job.name}": operator "')
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rows: rows.where("amount > 500"), "amount"),
        (lambda rows: rows.select(F.col("row") + F.col("tier")), "tier"),
        (lambda rows: 7, "its function returned int; it must return a DataFrame"),
        (lambda rows: dict[str, Any]()["tier"], "KeyError: 'tier'"),
    ],
    ids=["unknown column", "unknown column of Python", "no DataFrame", "raises"],
)
def test_transform_that_does_not_fit_its_rows_is_refused_at_submit(
    engine: SparkEngine, function: Any, words: str
) -> None:
    job = topology()
    job.sink("out", sinks.discard(), job.transform("large", function, job.source("in", burst(10))))
    sentence = refused(engine, job)
    assert 'operator "large": ' in sentence and words in sentence


def test_merge_of_other_columns_is_refused_at_submit(engine: SparkEngine) -> None:
    job = topology()
    rows = job.source("in", burst(10))
    job.sink(
        "out", sinks.discard(), job.merge("both", rows, job.transform("few", lambda rows: rows.select("row"), rows))
    )
    assert 'operator "both": ' in refused(engine, job)


def test_schema_that_cannot_be_read_is_refused_at_submit(engine: SparkEngine) -> None:
    job = topology()
    job.sink("out", sinks.discard(), job.batches("work", same, job.source("in", burst(10)), schema="row lnog,,"))
    assert 'operator "work": ' in refused(engine, job)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda spark: spark.range(5), "not a stream"),
        (lambda spark: spark.readStream.format("no-such-format").load(), "no-such-format"),
        (lambda spark: None, "NoneType"),
    ],
    ids=["not a stream", "unknown format", "nothing"],
)
def test_source_that_is_no_stream_is_refused_at_submit(engine: SparkEngine, read: Any, words: str) -> None:
    job = topology()
    job.sink("out", sinks.discard(), job.source("in", read))
    sentence = refused(engine, job)
    assert 'operator "in": ' in sentence and words in sentence


def test_job_that_was_refused_leaves_nothing_behind(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    job.sink(
        "out",
        sinks.files(out),
        job.transform("large", lambda rows: rows.where("amount > 5"), job.source("in", sources.load(100))),
    )
    refused(engine, job)
    time.sleep(2)
    began_s = time.time()
    engine.submit(copied("job", out, 100))
    assert reading(engine).arrived["in"] <= 100 * (time.time() - began_s)


def test_second_job_of_a_name_is_refused_and_the_first_goes_on(engine: SparkEngine, out: Path, until: Until) -> None:
    engine.submit(copied("job", out, burst(100)))
    with pytest.raises(InputError, match='there is a job "job" already'):
        engine.submit(copied("job", out, burst(200)))
    until(lambda: put_in(engine) == 100, "the end of the load")


@pytest.mark.parametrize("act", ["pause", "resume", "remove"])
def test_job_that_is_not_there_is_told_with_the_name_that_was_meant(engine: SparkEngine, act: str) -> None:
    engine.submit(copied("page-load", Path("/nowhere"), 1), paused=True)
    with pytest.raises(InputError, match=r'there is no job "page-laod".*Did you mean "page-load"\?'):
        getattr(engine, act)("page-laod")


# -- sinks


class Flaky:
    """Files that go away in the middle of some epochs, once in each: with half of the rows written, or with all."""

    def __init__(self, files: Callable[[DataFrame, int], None], wrote: Sequence[str]) -> None:
        self.files, self.left = files, dict(enumerate(wrote, start=1))

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        wrote = self.left.pop(epoch, None)
        self.files(rows.where("row % 2 = 0") if wrote == "half" else rows, epoch)
        if wrote is not None:
            raise ConnectionError("the disk is away")


def test_no_row_is_lost_or_doubled_by_a_sink_that_was_away(engine: SparkEngine, out: Path, until: Until) -> None:
    job, seen = topology(), set[str]()
    job.sink("store", Flaky(sinks.files(out), ["half", "all"]), job.source("in", burst(500)))
    start(engine, job, read_limit=100)

    def done() -> bool:
        seen.add(reason(engine))
        return phase(engine) is JobPhase.RUNNING and put_in(engine) == 500

    until(done, "the end of the load")
    assert seen == {"", 'operator "store": ConnectionError: the disk is away'}
    assert column(out) == list(range(500))


def test_sink_that_does_not_look_at_its_rows_does_not_hold_up_its_job(engine: SparkEngine, until: Until) -> None:
    job = topology()
    job.sink("out", lambda rows, epoch: None, job.source("in", sources.load(100)))
    engine.submit(job)
    until(lambda: epochs(engine) >= 1, "an epoch")
    since, began_s = epochs(engine), time.monotonic()
    until(lambda: epochs(engine) >= since + 4, "four epochs more")
    assert time.monotonic() - began_s < 15


# -- outages


def away_while(flag: Path, tries: list[float]) -> Callable[[DataFrame, int], None]:
    """A writer whose store is away as long as there is a file."""

    def write(rows: DataFrame, epoch: int) -> None:
        if flag.exists():
            tries.append(time.monotonic())
            raise ConnectionRefusedError(111, "Connection refused")
        rows.write.format("noop").mode("overwrite").save()

    return write


def test_outage_longer_than_all_retries_leaves_a_job_retrying_and_then_running(
    engine: SparkEngine, tmp_path: Path, until: Until
) -> None:
    flag, tries = tmp_path / "away", list[float]()
    flag.touch()
    job = topology()
    job.sink("store", away_while(flag, tries), job.source("in", burst(100)))
    engine.submit(job)
    until(lambda: len(tries) > SETTINGS.retries + 2, "more failures than retries")
    assert phase(engine) in (JobPhase.RETRYING, JobPhase.RUNNING)
    until(lambda: reason(engine), "the reason")
    assert reason(engine) == 'operator "store": ConnectionRefusedError: [Errno 111] Connection refused'
    flag.unlink()
    until(lambda: phase(engine) is JobPhase.RUNNING and put_in(engine) == 100, "the end of the outage")
    assert reason(engine) == ""


class OwnRedis:
    """A Redis that can be stopped and started again at the same address; it keeps nothing."""

    def __init__(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, until: Until) -> Redis:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        client = Redis(port=self.port)
        until(lambda: _answers(client), "an answer of Redis", within_s=180)
        return client

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    redis = OwnRedis()
    yield redis
    redis.stop()


def test_job_is_accepted_while_its_source_is_down_and_runs_when_it_is_up(
    engine: SparkEngine, out: Path, own_redis: OwnRedis, until: Until
) -> None:
    job = topology()
    job.sink(
        "out", sinks.files(out), job.source("orders", sources.redis("orders", schema="id long", url=own_redis.url))
    )
    engine.submit(job)
    assert phase(engine) is JobPhase.RETRYING
    assert reason(engine).startswith(f'operator "orders": Redis at {own_redis.url} could not be used: ')
    client = own_redis.start(until)
    until(lambda: phase(engine) is JobPhase.RUNNING, "the start")
    for number in range(10):
        client.xadd("orders", {"id": number})
    until(lambda: column(out, "id") == list(range(10)), "the rows")
    own_redis.stop()
    until(lambda: phase(engine) is JobPhase.RETRYING, "the outage")
    assert reason(engine).startswith('operator "orders": ')


def is_source_runner(process: psutil.Process) -> bool:
    try:
        return any("python_streaming_source_runner" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def test_source_whose_process_is_killed_is_told_in_a_sentence_and_started_again(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    engine.submit(copied("job", out, 50))
    until(lambda: epochs(engine) >= 1, "an epoch")
    (reader,) = filter(is_source_runner, psutil.Process().children(recursive=True))
    reader.kill()
    until(lambda: phase(engine) is not JobPhase.RUNNING, "the failure")
    assert reason(engine) == f'operator "in": {SOURCE_ENDED}'
    until(lambda: phase(engine) is JobPhase.RUNNING and epochs(engine) >= 1, "the restart")
    assert reason(engine) == ""


# -- bad rows


def picky(event: Any) -> Any:
    if event["row"] % 10 == 7:
        raise ValueError("unlucky")
    return {"row": "text" if event["row"] % 10 == 3 else event["row"]}


def test_bad_rows_go_aside_with_their_reason_and_the_good_ones_go_on(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    job, aside = topology(), tmp_path / "bad"
    rows = job.source("in", burst(200))
    job.sink(
        "out", sinks.files(out), job.events("picky", picky, rows, schema="row long", lanes=2, dead_letter=str(aside))
    )
    start(engine, job, read_limit=100)
    until(lambda: put_in(engine) == 200, "the end of the load")
    letters = [json.loads(line) for path in aside.glob("epoch=*/*.jsonl") for line in path.read_text().splitlines()]
    bad = {letter["row"]["row"]: letter["reason"] for letter in letters}
    assert len(letters) == len(bad) == 40
    assert set(bad) == {row for row in range(200) if row % 10 in (3, 7)}
    assert {told for row, told in bad.items() if row % 10 == 7} == {"ValueError: unlucky"}
    assert column(out) == [row for row in range(200) if row % 10 not in (3, 7)]
    operators = reading(engine).operators
    assert (operators["picky"].processed, operators["out"].processed) == ({"in": 200}, {"picky": 160})


# -- one job does not hold up another


def test_slow_epoch_of_one_job_does_not_hold_up_another(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    release, waiting = tmp_path / "release", tmp_path / "waiting"

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            waiting.touch()
            while not release.exists():
                time.sleep(0.05)
            yield batch

    job = topology()
    job.sink(
        "out", sinks.files(out / "job"), job.batches("slow", slow, job.source("in", burst(100)), schema=ROWS, lanes=4)
    )
    engine.submit(job)
    engine.submit(copied("other", out / "other", 50))
    try:
        until(waiting.exists, "the slow epoch")
        since = epochs(engine, "other")
        until(lambda: epochs(engine, "other") >= since + 4, "four epochs of the other job")
        assert epochs(engine) == 0
    finally:
        release.touch()
    until(lambda: put_in(engine) == 100, "the end of the slow epoch")


def test_slow_start_of_one_job_does_not_hold_up_the_restart_of_another(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    failed, starting, release = tmp_path / "failed", tmp_path / "starting", tmp_path / "release"

    def read(spark: Any) -> Any:
        if failed.exists():
            starting.touch()
            while not release.exists():
                time.sleep(0.02)
        return spark.readStream.format("rate").option("rowsPerSecond", 10).load()

    def write(rows: DataFrame, epoch: int) -> None:
        failed.touch()
        raise ConnectionError("away")

    flag, tries = tmp_path / "away", list[float]()
    slow, other = topology("slow"), topology("other")
    slow.sink("out", write, slow.source("in", read))
    other.sink("store", away_while(flag, tries), other.source("in", sources.load(50)))
    engine.submit(slow)
    engine.submit(other)
    try:
        until(starting.exists, "the slow start")
        flag.touch()
        until(lambda: tries, "the failure of the other")
        flag.unlink()
        until(lambda: phase(engine, "other") is JobPhase.RUNNING and epochs(engine, "other") >= 1, "its restart")
        assert phase(engine, "slow") is JobPhase.RETRYING
    finally:
        release.touch()


def test_job_that_is_paused_while_it_is_started_again_stays_paused(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    starting, release = tmp_path / "starting", tmp_path / "release"

    def read(spark: Any) -> Any:
        if (tmp_path / "failed").exists():
            starting.touch()
            while not release.exists():
                time.sleep(0.02)
        return spark.readStream.format("rate").option("rowsPerSecond", 10).load()

    def write(rows: DataFrame, epoch: int) -> None:
        (tmp_path / "failed").touch()
        raise ConnectionError("away")

    job = topology()
    job.sink("out", write, job.source("in", read))
    engine.submit(job)
    until(starting.exists, "the start after the failure")
    pausing = threading.Thread(target=engine.pause, args=("job",))
    pausing.start()
    pausing.join(1.0)
    release.touch()
    pausing.join(60.0)
    time.sleep(1.0)
    assert phase(engine) is JobPhase.PAUSED
    assert "job" not in {query.name for query in engine.spark.streams.active}


# -- damaged files


def test_torn_progress_is_rebuilt_and_counts_on(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, copied("job", out, burst(300)), read_limit=100)
    until(lambda: put_in(engine) == 300, "the end of the load")
    engine.pause("job")
    (engine.place_of("job") / progress.FILE).write_bytes(b"")
    engine.resume("job")
    assert (phase(engine), reason(engine).partition(":")[0]) == (JobPhase.RUNNING, "progress.json was damaged")
    assert (put_in(engine), reading(engine).backlog) == (300, 0)
