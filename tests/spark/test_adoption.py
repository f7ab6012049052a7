"""Scripts of plain PySpark become jobs: what they say is recorded, their checkpoints are taken over, and totals stay exact."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headgate.cli import run_command
from headgate.errors import EngineError, InputError
from headgate.spark.adoption import checkpoint
from headgate.spark.adoption.adopt import Adoption, Script, adoptions, beginning, found
from headgate.spark.adoption.recording import TriggerKind, record
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology

from .conftest import Start, Until

FILES = """
    import sys
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("old").getOrCreate()
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(sys.argv[1] + "/in")
    writer = rows.writeStream.queryName("copy").option("checkpointLocation", sys.argv[1] + "/checkpoint")
    query = writer.trigger(availableNow=True).start(sys.argv[1] + "/out")
    query.awaitTermination()
"""
WINDOWS = """
    import sys
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.schema("id long, at timestamp").option("maxFilesPerTrigger", 1).json(sys.argv[1] + "/in")
    counts = rows.withWatermark("at", "1 second").groupBy(F.window("at", "1 minute")).count()
    writer = counts.select("window.start", "count").writeStream.option("checkpointLocation", sys.argv[1] + "/checkpoint")
    writer.queryName("windows").trigger(availableNow=True).start(sys.argv[1] + "/out").awaitTermination()
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "old.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def feed(tmp_path: Path) -> Callable[..., None]:
    """Ten rows in one more file, which the source takes as a batch of its own."""
    (tmp_path / "in").mkdir()

    def write(number: int, **columns: Any) -> None:
        rows = [json.dumps({"id": 10 * number + one, **columns}) for one in range(10)]
        part = tmp_path / "part"
        part.write_text("\n".join(rows))
        os.utime(part, (1_000_000_000 + number,) * 2)  # Spark takes the oldest file first
        part.rename(tmp_path / "in" / f"{number}.json")

    return write


def described(path: Path, home: Path, **given: Any) -> Script:
    arguments = (str(path.parent),)
    return Script(path, Path.cwd(), home, arguments, **given)


def planned(spark: SparkSession, script: Script) -> list[Adoption]:
    return adoptions(script, record(spark, script.path, script.arguments))


# -- what a script says


def test_script_runs_up_to_where_it_waits_and_its_query_is_recorded(
    spark: SparkSession, script: Callable[..., Path], tmp_path: Path
) -> None:
    path = script("""
        from pyspark.sql import SparkSession

        def main():
            spark = SparkSession.builder.master("local[1]").appName("mine").getOrCreate()
            rows = spark.readStream.format("rate").load()
            writer = rows.writeStream.outputMode("Update").trigger(processingTime="2 minutes").partitionBy("value")
            query = writer.start("out", "json", queryName="ticks", checkpointLocation="here", compression="gzip")
            assert not query.isActive and query.lastProgress is None
            try:
                query.awaitTermination()
            except Exception:
                raise AssertionError
            raise AssertionError

        if __name__ == "__main__":
            main()
    """)
    (query,) = record(spark, path, ())
    assert (query.name, query.format, query.mode, query.checkpoint) == ("ticks", "json", "update", "here")
    assert query.partition_by == ("value",) and query.option("Compression") == "gzip" and query.option("path") == "out"
    assert query.trigger.kind is TriggerKind.PROCESSING_TIME and query.trigger.interval_s == 120
    assert query.sources == ("rate",)
    assert not spark.streams.active


def test_script_can_neither_stop_spark_nor_change_the_settings_of_others(
    spark: SparkSession, script: Callable[..., Path]
) -> None:
    path = script("""
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "77").getOrCreate()
        spark.range(3).createOrReplaceTempView("mine")
        query = spark.readStream.format("rate").load().writeStream.foreachBatch(print).start()
        spark.sparkContext.stop()
        spark.stop()
        spark.streams.awaitAnyTermination()
    """)
    (query,) = record(spark, path, ())
    assert query.batches is print
    assert query.frame.sparkSession.conf.get("spark.sql.shuffle.partitions") == "77"
    assert spark.conf.get("spark.sql.shuffle.partitions") != "77"
    assert not spark.catalog.tableExists("mine")
    assert spark.range(5).count() == 5


RATE = (
    "from pyspark.sql import SparkSession\nrows = SparkSession.builder.getOrCreate().readStream.format('rate').load()\n"
)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("x = 1", "it starts no streaming query"),
        ("x = 1\nx / 0", "line 2: ZeroDivisionError: division by zero"),
        ("x = (", "line 1: '(' was never closed"),
        ("import sys\nsys.exit('no such topic')", "line 2: SystemExit: no such topic"),
        (f"{RATE}rows.writeStream.start('out')", 'query "old" has no checkpointLocation'),
        (
            f"{RATE}w = rows.writeStream.option('checkpointLocation', 'c')\nw.start('a')\nw.start('b')",
            "two queries use the checkpoint",
        ),
        (f"{RATE}rows.writeStream.start('out', checkpointLocation='s3a://b/c')", "is not on a disk"),
        (f"{RATE}rows.writeStream.start('out', checkpointLocation='none')", "there is no checkpoint with a batch in"),
        (
            f"{RATE}rows.writeStream.trigger(continuous='1 second').start('out', checkpointLocation='c')",
            "has the trigger continuous",
        ),
        (f"{RATE}rows.writeStream.queryName('a b').start('out', checkpointLocation='c')", 'a query is named "a b"'),
    ],
)
def test_bad_script_gets_one_sentence(
    spark: SparkSession, script: Callable[..., Path], tmp_path: Path, text: str, sentence: str
) -> None:
    path = script("")
    path.write_text(text)
    with pytest.raises(InputError) as refusal:
        planned(spark, described(path, tmp_path / "home"))
    assert str(refusal.value).startswith(str(path)) and sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


# -- a checkpoint, without Spark


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Three batches, the last one committed."""
    place = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        (place / folder).mkdir(parents=True)
    for batch in range(3):
        (place / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{batch}}}')
        (place / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (place / "metadata").write_text('{"id":"one"}')
    return place


def take_over(old: Path, quiet_s: float = 0.0, job: str = "job") -> checkpoint.TakeOver:
    return checkpoint.TakeOver(checkpoint.read(old), job, old.parent / "home", quiet_s)


def test_second_adoption_is_refused_with_the_name_of_the_job(old: Path) -> None:
    first = take_over(old)
    first.check()
    begins = first.run()
    assert (
        begins.batch == 2 and beginning(begins) == "the job begins after batch 2, the last one that the query committed"
    )
    copied = first.place / "checkpoint"
    assert sorted(path.name for path in (copied / "offsets").iterdir()) == ["0", "1", "2"]
    for job in ("job", "other"):
        with pytest.raises(InputError, match='has been adopted already: Headgate adopted this query as job "job"'):
            take_over(old, job=job).check()


def test_adopting_again_after_the_job_was_removed_is_refused(old: Path) -> None:
    first = take_over(old)
    first.run()
    first.place.rename(old.parent / "removed")
    with pytest.raises(InputError, match="adopted already"):
        take_over(old).check()


def test_adoption_that_a_crash_interrupted_is_finished_by_the_next_one(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.TakeOver, "_copy", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            take_over(old).run()
    again = take_over(old)
    again.check()
    again.run()
    assert (again.place / "checkpoint" / "commits" / "2").exists()


def test_query_that_plans_a_batch_during_adoption_is_told_to_be_running(old: Path) -> None:
    late = take_over(old)
    (old / "offsets" / "3").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(InputError, match=r"still runs: it has just planned batch 3; stop it first"):
        late.run()
    assert not late.place.exists()


def test_uncommitted_batch_is_run_again_once_its_query_is_quiet(old: Path) -> None:
    (old / "commits" / "2").unlink()
    os.utime(old / "offsets" / "2", (time.time() - 3600,) * 2)
    begins = take_over(old, quiet_s=1800).run()
    assert not begins.is_committed
    assert beginning(begins).startswith("the job runs batch 2 again, with the same rows")


@pytest.mark.parametrize("torn", ["offsets/2", "commits/1"])
def test_damaged_checkpoint_is_refused(old: Path, torn: str) -> None:
    (old / "commits" / "2").unlink()
    if torn.startswith("offsets"):
        (old / torn).write_text("v1\n{}\n{")
    else:
        (old / torn).unlink()
    with pytest.raises(InputError, match="is damaged: its offset log ends with batch 2"):
        checkpoint.read(old)


def test_state_that_names_its_files_by_path_is_refused(old: Path) -> None:
    described = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [],
    }
    place = old / "state" / "0" / "_metadata" / "v2"
    place.mkdir(parents=True)
    (place / "0").write_text(f"v2\n{json.dumps(described)}")
    with pytest.raises(InputError, match="holds state of transformWithStateInPySparkExec"):
        take_over(old).check()


def test_script_that_still_runs_is_refused(start: Start, script: Callable[..., Path], until: Until) -> None:
    path = script("import time\nprint(1, flush=True)\ntime.sleep(600)")
    run = start([sys.executable, str(path)])
    next(run.lines())
    with pytest.raises(InputError, match=f"process {run.process.pid} still runs it; stop it first"):
        checkpoint.refuse_running(path.resolve())
    run.kill()
    checkpoint.refuse_running(path.resolve())


# -- jobs that continue queries


class Query:
    """A query of plain PySpark in a directory of its own, and the job that it becomes."""

    def __init__(self, engine: SparkEngine, feed: Callable[..., None], until: Until, place: Path) -> None:
        self.engine, self.feed, self._until, self.place = engine, feed, until, place
        self.path = place / "old.py"

    def write(self, text: str) -> None:
        self.path.write_text(textwrap.dedent(text))

    def run(self) -> None:
        """As a script of plain PySpark; it gets the session of the tests, because one process has one Spark."""
        before, sys.argv = sys.argv, [str(self.path), str(self.place)]
        try:
            runpy.run_path(str(self.path), run_name="__main__")
        finally:
            sys.argv = before

    def adopt(self) -> Adoption:
        (one,) = planned(self.engine.spark, described(self.path, self.engine._home))
        one.run()
        return one

    def submit(self, one: Adoption) -> None:
        topology = runpy.run_path(str(one.file))["topology"]()
        assert isinstance(topology, Topology)
        self.engine.submit(topology)

    def ids(self) -> list[int]:
        return sorted(row.id for row in self.engine.spark.read.schema("id long").parquet(f"{self.place}/out").collect())

    def await_rows(self, number: int) -> None:
        self._until(lambda: len(self.ids()) >= number, f"row {number} in the output")


@pytest.fixture
def query(
    engine: SparkEngine, feed: Callable[..., None], until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Query:
    monkeypatch.chdir(tmp_path)
    return Query(engine, feed, until, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "uncommitted"])
def test_file_sink_continues_with_each_row_once(query: Query, committed: bool) -> None:
    query.write(FILES)
    for number in range(3):
        query.feed(number)
    query.run()
    if not committed:  # as if the query had been killed between its sink and its commit
        (query.place / "checkpoint" / "commits" / "2").unlink()
    query.feed(3)
    one = query.adopt()
    assert found(one)["reads"].startswith("FileSource[") and "exactly once" in found(one)["writes"]
    query.submit(one)
    query.await_rows(40)
    query.engine.pause("copy")
    query.engine.resume("copy")
    query.feed(4)
    query.await_rows(50)
    assert query.ids() == list(range(50))
    with pytest.raises(Exception, match="Headgate adopted this query"):
        query.run()  # the old query cannot go on beside the job


@pytest.mark.slow
def test_windowed_count_continues_with_its_state(query: Query, until: Until) -> None:
    query.write(WINDOWS)
    query.feed(0, at="2026-01-01T00:00:10Z")
    query.feed(1, at="2026-01-01T00:00:20Z")
    query.run()
    one = query.adopt()
    assert found(one)["state"].startswith("stateStoreSave in 8 partitions; copied with the checkpoint")
    query.submit(one)
    query.feed(2, at="2026-01-01T00:00:30Z")
    query.feed(3, at="2026-01-01T00:02:00Z")

    def counts() -> list[int]:
        rows = query.engine.spark.read.schema("start timestamp, count long").parquet(f"{query.place}/out")
        return [row["count"] for row in rows.collect()]

    until(counts, "the first window")
    assert counts() == [30]


@pytest.mark.slow
def test_query_that_still_runs_elsewhere_fails_at_its_next_batch(query: Query, until: Until) -> None:
    query.write(FILES.replace(".trigger(availableNow=True)", ""))
    (recorded,) = record(query.engine.spark, query.path, (str(query.place),))
    query.feed(0)
    running = recorded.frame.writeStream.options(**recorded.options).start()
    until((query.place / "checkpoint" / "commits" / "0").exists, "the first batch")
    one = query.adopt()
    query.feed(1)
    until(lambda: not running.isActive, "the end of the old query")
    assert "CONCURRENT" in str(running.exception()).upper()
    query.submit(one)
    query.await_rows(20)
    assert query.ids() == list(range(20))


RATE_ROWS = """
    import sys, time
    from pyspark.sql import SparkSession

    rows = SparkSession.builder.getOrCreate().readStream.format("rate").option("rowsPerSecond", 20).load()
    writer = rows.selectExpr("value as id").writeStream.queryName("ticks").format("parquet")
    query = writer.option("checkpointLocation", sys.argv[1] + "/checkpoint").start(sys.argv[1] + "/out")
    while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < 3):
        time.sleep(0.1)
    query.stop()
"""


@pytest.mark.slow
def test_rate_source_continues_with_the_next_value(query: Query) -> None:
    query.write(RATE_ROWS)
    query.run()
    before = query.ids()
    query.submit(query.adopt())
    query.await_rows(len(before) + 20)
    query.engine.pause("ticks")
    after = query.ids()
    assert after == list(range(len(after)))


def test_job_without_its_copy_of_the_checkpoint_is_refused(
    engine: SparkEngine, script: Callable[..., Path], tmp_path: Path
) -> None:
    from headgate import Intent, adopted

    path = script(FILES)
    job = Topology("lost", Intent(latency="60s"))
    query = adopted(str(path), checkpoint=str(tmp_path / "checkpoint"), directory=str(Path.cwd()))
    job.sink("sink", query, job.source("query", query))
    with pytest.raises(EngineError, match="would begin with the first row"):
        engine.submit(job)


KILLED = """
    import json, os, signal, sys
    from pyspark.sql import SparkSession

    place = os.path.dirname(os.path.abspath(__file__))

    def write(rows, batch):
        found = [row.id for row in rows.collect()]
        with open(f"{place}/out-{batch}.json", "a") as file:
            file.write(json.dumps(found) + "\\n")
        if batch == 2 and not os.path.exists(f"{place}/killed"):
            open(f"{place}/killed", "w").close()
            os.killpg(0, signal.SIGKILL)

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{place}/in")
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{place}/checkpoint").start()
    query.awaitTermination()
"""


@pytest.mark.slow
def test_query_killed_before_its_commit_is_adopted_by_the_command_line(
    start: Start, script: Callable[..., Path], feed: Callable[..., None], until: Until, tmp_path: Path
) -> None:
    path = script(KILLED, "killed-orders.py")
    for number in range(4):
        feed(number)
    plain = start([sys.executable, str(path)])
    assert plain.process.wait(120) == -signal.SIGKILL
    plain.wait()
    assert (tmp_path / "checkpoint/offsets/2").exists() and not (tmp_path / "checkpoint/commits/2").exists()
    headgate = [sys.executable, "-m", "headgate.cli"]
    home = ["--home", str(tmp_path / "home")]
    adopt = start(["env", "-C", str(tmp_path), *headgate, "adopt", path.name, *home, "--set", "adopt_quiet_s=1"])
    told = "".join(adopt.lines())
    assert adopt.wait() == 0, adopt.errors()
    assert "the job runs batch 2 again, with the same rows" in told
    again = start(["env", "-C", str(tmp_path), *headgate, "adopt", path.name, *home])
    assert again.wait() == 2 and "has been adopted already" in again.errors()
    run = start(["env", "-C", str(tmp_path), *headgate, "run", "killed-orders-job.py", *home, "--fast"])
    until((tmp_path / "out-3.json").exists, "the batch after the killed one")
    run.signal(signal.SIGINT)
    list(run.lines())
    assert run.wait() == 0, run.errors()
    batches = [(tmp_path / f"out-{batch}.json").read_text().splitlines() for batch in range(4)]
    assert [len(calls) for calls in batches] == [1, 1, 2, 1]
    assert batches[2][0] == batches[2][1], "the batch runs again with the same rows"
    assert sorted(one for calls in batches for one in json.loads(calls[0])) == list(range(40))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["none.py"], 'there is no file "none.py"'),
        (["old.py", "--worth", "much"], '--worth is "much"; it must be a number of points'),
        (["old.py", "--latency", "soon"], '--latency is "soon"'),
        (["old.py", "--set", "quiet=1"], "quiet"),
    ],
)
def test_bad_option_gets_one_sentence(
    script: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    script("")
    monkeypatch.chdir(tmp_path)
    assert run_command(["adopt", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / ".headgate").exists()
