"""Epochs on a real Spark: exact counts, and levers that work while a job runs."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.core.model import MOST_SHARE, OUTSIDE, Action, ActionKind, Cause, JobReading
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology

from .builders import ROWS, burst, change, column, copied, epochs, put_in, reading, same, start, topology, written
from .conftest import SETTINGS, Until

LANES = "row long, lane long"


def with_lane(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        lanes = pa.array([context.partitionId()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("row"), lanes], ["row", "lane"])


def lanes_of(table: pa.Table) -> set[int]:
    return set(table.column("lane").to_pylist())


def runs_of(spark: SparkSession) -> dict[str | None, tuple[str, str]]:
    return {query.name: (query.id, query.runId) for query in spark.streams.active}


# -- counts


def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        yield batch


def third(event: Any) -> Any:
    return event if event["row"] % 3 == 0 else None


def labelled(label: str) -> Any:
    return lambda rows: rows.withColumn("branch", F.lit(label))


CLICKS, VIEWS = 3000, 1500


def graph_with_everything(out: Path) -> Topology:
    job = topology()
    clicks = job.source("clicks", burst(CLICKS), lanes=2)
    views = job.source("views", burst(VIEWS))
    even = job.transform("even", lambda rows: labelled("even")(rows.where("row % 2 = 0")), clicks)
    doubled = job.transform("doubled", labelled("twice"), job.batches("twice", twice, clicks, schema=ROWS, lanes=2))
    thirds = job.transform("thirds", labelled("third"), job.events("third", third, views, schema=ROWS, lanes=3))
    everything = job.merge("everything", even, doubled, thirds, lanes=4)
    job.sink("all", sinks.files(out / "all"), everything)
    job.sink("some", sinks.files(out / "some"), thirds)
    return job


def test_counts_are_exact_on_a_graph_with_forks_filters_and_merges(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    job = graph_with_everything(out)
    start(engine, job, read_limit=1000)
    until(lambda: put_in(engine, "clicks") == CLICKS and put_in(engine, "views") == VIEWS, "the end of the load")
    now = reading(engine)
    check_counts(now, job)
    check_rows(out)
    assert now.arrived == {"clicks": CLICKS, "views": VIEWS}
    assert now.backlog == 0
    assert now.epochs is not None and now.epochs >= CLICKS / 1000


def check_counts(reading: JobReading, job: Topology) -> None:
    for parent, children in job.graph().children.items():
        for child in children:
            assert reading.operators[parent].sent[child] == reading.operators[child].processed[parent]
    assert {name: set(operator.sent.values()) for name, operator in reading.operators.items()} == {
        "clicks": {CLICKS},
        "views": {VIEWS},
        "even": {CLICKS / 2},
        "twice": {2 * CLICKS},
        "doubled": {2 * CLICKS},
        "third": {VIEWS / 3},
        "thirds": {VIEWS / 3},
        "everything": {CLICKS / 2 + 2 * CLICKS + VIEWS / 3},
        "all": set(),
        "some": set(),
    }


def check_rows(out: Path) -> None:
    rows = Counter((row["branch"], row["row"]) for table in written(out / "all").values() for row in table.to_pylist())
    assert rows == {
        **{("even", row): 1 for row in range(0, CLICKS, 2)},
        **{("twice", row): 2 for row in range(CLICKS)},
        **{("third", row): 1 for row in range(0, VIEWS, 3)},
    }
    assert column(out / "some") == list(range(0, VIEWS, 3))


def test_files_of_the_finished_epochs_hold_as_many_rows_as_were_counted(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    engine.submit(copied("job", out, 500))
    until(lambda: epochs(engine) >= 4, "four epochs")
    now = reading(engine)
    assert now.epochs is not None
    tables = written(out)
    rows = sorted(row for epoch in range(now.epochs) for row in tables[epoch].column("row").to_pylist())
    assert rows == list(range(len(rows)))
    assert len(rows) == now.operators["out"].processed["copy"] == now.operators["in"].processed[OUTSIDE]


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.orderBy(F.desc("row")),
        lambda rows: rows.groupBy("row").agg(F.max("arrived").alias("arrived")),
        lambda rows: rows.join(F.broadcast(rows.sparkSession.range(10**6)), F.col("row") == F.col("id")).drop("id"),
        lambda rows: rows.join(rows.groupBy("row").count(), "row").drop("count"),
    ],
    ids=["sort", "group", "join", "join with itself"],
)
def test_rows_are_counted_once_though_spark_looks_at_them_again(
    engine: SparkEngine, out: Path, until: Until, function: Any
) -> None:
    job = topology()
    rows = job.source("in", burst(900), lanes=2)
    job.sink("out", sinks.files(out), job.transform("again", function, rows, lanes=2))
    start(engine, job, read_limit=300)
    until(lambda: put_in(engine) == 900, "the end of the load")
    operators = reading(engine).operators
    assert (operators["again"].processed["in"], operators["out"].processed["again"]) == (900, 900)
    assert column(out) == list(range(900))


def test_rows_are_counted_once_though_a_writer_looks_before_it_writes(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    def write(rows: DataFrame, epoch: int) -> None:
        if not rows.isEmpty():
            sinks.files(out)(rows, epoch)

    job = topology()
    job.sink("out", write, job.transform("all", lambda rows: rows, job.source("in", burst(900), lanes=3)))
    start(engine, job, read_limit=300)
    until(lambda: epochs(engine) >= 1, "an epoch")
    now = reading(engine)
    written_rows = sum(table.num_rows for epoch, table in written(out).items() if epoch < (now.epochs or 0))
    assert now.operators["in"].processed == {OUTSIDE: written_rows}
    assert now.operators["out"].processed == {"all": written_rows}


@pytest.mark.parametrize(
    "nothing", [lambda rows: rows.where(F.lit(False)), lambda rows: rows.where("row < 0")], ids=["never", "not now"]
)
def test_operator_that_lets_nothing_pass_still_counts_what_came_in(
    engine: SparkEngine, out: Path, until: Until, nothing: Any
) -> None:
    job = topology()
    job.sink("out", sinks.files(out), job.transform("nothing", nothing, job.source("in", burst(400))))
    start(engine, job, read_limit=100)
    until(lambda: put_in(engine) == 400, "the end of the load", within_s=180)
    assert reading(engine).operators["nothing"].processed == {"in": 400}
    assert reading(engine).operators["out"].processed == {"nothing": 0}
    assert reading(engine).backlog == 0


def test_function_sees_each_row_once_though_three_operators_read_what_it_puts_out(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (calls / uuid.uuid4().hex).write_text("\n".join(map(str, batch.column("row").to_pylist())))
            yield batch

    job = topology()
    rows = job.batches("noted", noted, job.source("in", burst(600)), schema=ROWS, lanes=2)
    job.sink("first", sinks.files(out / "first"), rows)
    job.sink("second", sinks.files(out / "second"), rows, lanes=3)
    job.sink("third", sinks.files(out / "third"), job.transform("even", lambda rows: rows.where("row % 2 = 0"), rows))
    start(engine, job, read_limit=200)
    until(lambda: put_in(engine) == 600, "the end of the load")
    seen = sorted(int(row) for call in calls.iterdir() for row in call.read_text().split())
    assert seen == column(out / "first") == column(out / "second") == list(range(600))
    assert column(out / "third") == list(range(0, 600, 2))


# -- lanes


def test_other_lanes_take_effect_while_the_query_runs_on(
    engine: SparkEngine, spark: SparkSession, out: Path, until: Until
) -> None:
    job = topology()
    rows = job.source("in", sources.load(300))
    job.sink("out", sinks.files(out), job.batches("work", with_lane, rows, schema=LANES, lanes=1))
    engine.submit(job)
    until(lambda: epochs(engine) >= 2, "two epochs")
    before, run = reading(engine), runs_of(spark)["job"]
    assert len(before.operators["work"].busy_s) == 1
    change(engine, {"work": 3})
    until(lambda: reading(engine).version > before.version, "another version")
    since = epochs(engine)
    until(lambda: epochs(engine) >= since + 2, "two epochs more")
    after = reading(engine)
    assert len(after.operators["work"].busy_s) == 3
    assert all(busy_s > 0 for busy_s in after.operators["work"].busy_s)
    assert runs_of(spark)["job"] == run
    change(engine, {"work": 2})
    until(lambda: len(reading(engine).operators["work"].busy_s) == 2, "two lanes")
    tables = written(out)
    used = [lanes_of(tables[epoch]) for epoch in sorted(tables)]
    assert used[0] == {0}
    assert {0, 1, 2} in used
    assert used.index({0, 1, 2}) < len(used) - 1 - used[::-1].index({0, 1})
    assert column(out) == list(range(len(column(out))))


def test_lanes_of_a_source_follow_the_allocation(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = job.source("in", sources.load(300), lanes=1)
    laned = job.transform("laned", lambda rows: rows.withColumn("lane", F.spark_partition_id()), rows)
    job.sink("out", sinks.files(out), laned)
    engine.submit(job)
    until(lambda: epochs(engine) >= 2, "two epochs")
    assert len(reading(engine).operators["in"].busy_s) == 1
    change(engine, {"in": 3})
    until(lambda: {0, 1, 2} in map(lanes_of, written(out).values()), "three lanes")
    until(lambda: len(reading(engine).operators["in"].busy_s) == 3, "three lanes in the reading")
    assert lanes_of(written(out)[0]) == {0}


def test_lanes_hold_after_an_aggregation_with_partitions_of_its_own(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    job = topology()
    rows = job.source("in", burst(400), lanes=4)
    grouped = job.transform("grouped", lambda rows: rows.groupBy("row").count(), rows, lanes=1)
    job.sink("out", sinks.files(out), job.batches("work", with_lane, grouped, schema=LANES, lanes=1))
    start(engine, job, read_limit=200)
    until(lambda: put_in(engine) == 400, "the end of the load")
    assert all(lanes_of(table) == {0} for table in written(out).values())


def test_rows_with_the_same_key_meet_in_one_lane(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = job.transform(
        "keyed", lambda rows: rows.select((F.col("row") % 20).alias("row")), job.source("in", burst(900))
    )
    job.sink("out", sinks.files(out), job.batches("work", with_lane, rows, schema=LANES, lanes=4, by="row"))
    start(engine, job, read_limit=300)
    until(lambda: put_in(engine) == 900, "the end of the load")
    for table in written(out).values():
        met = {(row["row"], row["lane"]) for row in table.to_pylist()}
        assert len(met) == len({key for key, _ in met}) == 20
        assert len({lane for _, lane in met}) > 1


def test_join_by_key_finds_the_rows_of_both_sources(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    clicks, views = job.source("clicks", burst(300), lanes=2), job.source("views", burst(300))
    joined = job.transform(
        "joined", lambda left, right: left.join(right.select("row"), "row"), clicks, views, lanes=3, by="row"
    )
    job.sink("out", sinks.files(out), joined)
    start(engine, job, read_limit=100)
    until(lambda: put_in(engine, "clicks") == put_in(engine, "views") == 300, "the end of the load")
    operators = reading(engine).operators
    assert operators["joined"].processed == {"clicks": 300, "views": 300}
    assert operators["out"].processed == {"joined": len(column(out))}
    assert set(column(out)) <= set(range(300))


# -- busy time


def busy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.002 * batch.num_rows)
        yield batch


def test_busy_time_is_that_of_the_operator_that_was_busy(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = job.batches("fast", same, job.source("in", burst(600)), schema=ROWS, lanes=2)
    slow = job.batches("slow", busy, rows, schema=ROWS, lanes=3)
    job.sink("out", sinks.files(out), slow)
    start(engine, job, read_limit=300)
    until(lambda: put_in(engine) == 600, "the end of the load")
    operators = reading(engine).operators
    assert sum(operators["slow"].busy_s) >= 1.2
    assert max(operators["slow"].busy_s) < 2 * min(operators["slow"].busy_s)
    assert sum(operators["slow"].busy_s) < 12
    assert len(operators["fast"].busy_s) == 2


def test_lanes_in_a_reading_stay_as_many_under_one_version(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = job.source("in", lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 50).load())
    job.sink(
        "out", sinks.files(out), job.batches("work", same, rows, schema="timestamp timestamp, value long", lanes=2)
    )
    engine.submit(job)
    seen: dict[tuple[int, str], set[int]] = {}

    def look() -> int:
        now = reading(engine)
        for name, operator in now.operators.items():
            seen.setdefault((now.version, name), set()).add(len(operator.busy_s))
        return now.epochs or 0

    until(lambda: look() >= 2, "two epochs")
    change(engine, {"work": 3})
    since = look()
    until(lambda: look() >= since + 3, "three epochs more")
    assert len({version for version, _ in seen}) == 2
    assert all(len(lengths) == 1 for lengths in seen.values()), seen


# -- pace, read limit, share


class Noted:
    """A writer that notes when it was called, and in which pool."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.pools: list[str | None] = []
        self.rows: list[int] = []

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        self.at_s.append(time.monotonic())
        self.pools.append(rows.sparkSession.sparkContext.getLocalProperty("spark.scheduler.pool"))
        self.rows.append(rows.count())


def noted(name: str, rate: float, **options: Any) -> tuple[Topology, Noted]:
    job, writer = topology(name, **options), Noted()
    job.sink("out", writer, job.source("in", sources.load(rate)))
    return job, writer


def test_epochs_start_as_far_apart_as_the_pace_says(engine: SparkEngine, until: Until) -> None:
    job, writer = noted("job", 50, pace_s=1.0)
    engine.submit(job)
    until(lambda: len(writer.at_s) >= 3, "three epochs")
    since = len(writer.at_s)
    until(lambda: len(writer.at_s) >= since + 5, "five epochs more")
    apart = [later - earlier for earlier, later in pairwise(writer.at_s[since:])]
    assert 0.9 < statistics.median(apart) < 2.0


def test_shorter_pace_ends_the_wait_under_way(engine: SparkEngine, until: Until) -> None:
    job, _ = noted("job", 50, pace_s=600.0)
    engine.submit(job)
    until(lambda: epochs(engine) == 1, "the first epoch")
    change(engine, pace_s=0.2)
    until(lambda: epochs(engine) >= 4, "more epochs", within_s=180)


def test_no_epoch_reads_more_rows_than_the_limit(engine: SparkEngine, until: Until) -> None:
    job, writer = noted("job", 20_000)  # more than the limit within the shortest epoch
    start(engine, job, read_limit=250)
    until(lambda: len(writer.rows) >= 4, "four epochs")
    assert set(writer.rows[:4]) == {250}
    assert (reading(engine).backlog or 0) > 0
    engine.set_read_limit("job", 40)
    until(lambda: writer.rows[-1] == 40, "the other limit")
    assert set(writer.rows) == {250, 40}
    assert engine.states()["job"].read_limit == 40


def test_job_runs_in_the_pool_of_its_share(engine: SparkEngine, spark: SparkSession, until: Until) -> None:
    job, writer = noted("job", 50)
    other, others = noted("other", 50)
    engine.submit(job)
    engine.submit(other)
    until(lambda: writer.pools and others.pools, "an epoch of each")
    assert writer.pools[0] != others.pools[0]
    assert weight(spark, writer.pools[0]) == 1
    engine.set_share("job", 4)
    until(lambda: writer.pools[-1] != writer.pools[0], "another pool")
    assert weight(spark, writer.pools[-1]) == 4
    assert engine.states()["job"].share == 4
    engine.set_share("job", 1)
    until(lambda: writer.pools[-1] == writer.pools[0], "the first pool again")
    assert set(others.pools) == {others.pools[0]}


def test_share_that_the_scheduler_raises_applies_until_a_person_sets_another(
    engine: SparkEngine, spark: SparkSession, until: Until
) -> None:
    job, writer = noted("job", 50)
    engine.submit(job)
    until(lambda: writer.pools, "an epoch")
    raised = replace(engine.observe().allocation["job"], share=4)
    action = Action(ActionKind.RECONFIGURE, "job", {"job": raised}, Cause("slots are short"))
    assert engine.apply(action).applied
    until(lambda: weight(spark, writer.pools[-1]) == 4, "an epoch in another pool")
    now, state = engine.observe().jobs["job"], engine.states()["job"]
    assert now is not None and (now.share, state.share, state.raised_share) == (4, 1, 4)
    beyond = replace(action, changes={"job": replace(raised, share=MOST_SHARE + 1)})
    assert "its share would be 11; it must be from 1 to 10" in engine.apply(beyond).detail
    engine.set_share("job", 2)
    until(lambda: weight(spark, writer.pools[-1]) == 2, "the pool of the person's share")
    assert engine.observe().allocation["job"].share is None


def weight(spark: SparkSession, pool: str | None) -> int:
    return int(spark.sparkContext._jsc.sc().getPoolForName(pool).get().weight())


def test_reading_host_tells_its_cores_slots_and_load(engine: SparkEngine, until: Until) -> None:
    until(lambda: engine.observe().hosts[0].load is not None, "a look at the load")
    (host,) = engine.observe().hosts
    assert (host.cores, host.slots) == (os.cpu_count(), SETTINGS.slots)
    until(lambda: sum(range(100_000)) and (engine.observe().hosts[0].used or 0.0) > 0, "core time of this process")
