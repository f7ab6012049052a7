"""Latency as the engine tells it, against what the files say; and sources that are any query."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.config import Settings
from headgate.core.latency import Latency
from headgate.core.metrics import view_of
from headgate.core.windows import Windows
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.epochs.plan import Observing
from headgate.spark.measuring.sampling import Sampling
from headgate.spark.sources.load import Generator

from .builders import (
    Timed,
    column,
    copied,
    epochs,
    latency_until,
    put_in,
    reading,
    start,
    topology,
    written,
)
from .conftest import Until

ROWS = 3000


def for_a_while() -> Generator:
    """500 rows/s for six seconds."""
    return sources.load(sources.Steps([(0, ROWS / 6), (6, 0)]))


def check(told: Latency, waited_s: list[float]) -> None:
    assert told.rows == pytest.approx(len(waited_s))
    assert told.mean_s == pytest.approx(np.mean(waited_s), rel=0.1, abs=0.05)
    assert told.percentile_s(50) == pytest.approx(np.percentile(waited_s, 50), rel=0.1, abs=0.05)
    assert told.percentile_s(95) == pytest.approx(np.percentile(waited_s, 95), rel=0.1, abs=0.05)


def done(reading: Any) -> bool:
    return bool(reading.operators["in"].processed["*"] == ROWS)


def test_latency_is_what_the_files_say(engine: SparkEngine, out: Path) -> None:
    sink = Timed(out)
    start(engine, copied("job", sink, for_a_while()), read_limit=500)
    told = latency_until(engine, done)
    assert len(written(out)) >= 5
    check(told, sink.waited_s())


@pytest.mark.slow
def test_latency_is_right_though_only_some_large_epochs_are_observed(
    engine: SparkEngine, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Observing] = []
    monkeypatch.setattr(Sampling, "observing", noted(Sampling.observing, seen))
    rows = 60_000 * 16
    sink = Timed(out)
    engine.submit(copied("job", sink, sources.load(sources.Steps([(0, 60_000), (16, 0)])), pace_s=1.0))
    told = latency_until(engine, lambda now: now.operators["in"].processed["*"] == rows)
    assert Observing.SAMPLE in seen, "how many are not looked at depends on how alike the machine makes them"
    waited = sink.waited_s()
    assert told.rows == len(waited) == rows
    assert told.mean_s == pytest.approx(np.mean(waited), rel=0.15, abs=0.1)
    assert told.percentile_s(95) == pytest.approx(np.percentile(waited, 95), rel=0.25, abs=0.1)


def noted(choose: Callable[[Sampling], Observing], seen: list[Observing]) -> Callable[[Sampling], Observing]:
    def choose_and_note(sampling: Sampling) -> Observing:
        seen.append(choose(sampling))
        return seen[-1]

    return choose_and_note


def test_latency_is_right_though_the_rows_lose_their_arrival_on_the_way(engine: SparkEngine, out: Path) -> None:
    arrived_s: dict[int, float] = {}
    noted_s: list[float] = []

    def note(rows: DataFrame, epoch: int) -> None:
        found = {
            row.row: row.micros / 1e6 for row in rows.select("row", F.unix_micros("arrived").alias("micros")).collect()
        }
        arrived_s.update(found)
        noted_s.extend(time.time() - at_s for at_s in found.values())

    job = topology()
    rows = job.source("in", for_a_while())
    job.sink("noted", note, rows)
    sink = Timed(out)
    job.sink("bare", sink, job.transform("strip", lambda rows: rows.select("row"), rows))
    start(engine, job, read_limit=500)
    told = latency_until(engine, done)
    bare_s = [
        sink.ended_s(epoch) - arrived_s[row]
        for epoch, table in written(out).items()
        for row in table.column("row").to_pylist()
    ]
    assert len(bare_s) == len(noted_s) == ROWS
    check(told, [*bare_s, *noted_s])


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 20).load()


@pytest.mark.parametrize("arrival", [None, "timestamp"], ids=["unknown arrival", "known arrival"])
def test_any_query_is_a_source_and_has_a_latency(
    engine: SparkEngine, out: Path, until: Until, arrival: str | None
) -> None:
    job = topology()
    began_s = time.time()
    job.sink("out", sinks.files(out), job.source("in", rate, arrival=arrival))
    engine.submit(job)
    told = latency_until(engine, lambda now: (now.epochs or 0) >= 4)
    assert 0 < told.mean_s <= told.percentile_s(99) * 1.1 < 1.3 * (time.time() - began_s)
    finished = reading(engine).epochs or 0
    rows = [
        value
        for epoch, table in written(out).items()
        if epoch < finished
        for value in table.column("value").to_pylist()
    ]
    assert put_in(engine) >= len(rows) > 0
    assert reading(engine).backlog == 0
    assert sorted(rows) == list(range(len(rows)))


@pytest.mark.slow
def test_state_of_a_query_survives_a_pause(engine: SparkEngine, out: Path, until: Until) -> None:
    def windows(spark: SparkSession) -> DataFrame:
        counted = rate(spark).withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "2 seconds")).count()
        return counted.select(F.unix_seconds("window.start").alias("from"), "count")

    job = topology()
    job.sink("out", sinks.files(out), job.source("windows", windows))
    engine.submit(job)
    until(lambda: len(column(out, "from")) >= 2, "two windows")
    engine.pause("job")
    before = column(out, "from")
    engine.resume("job")
    until(lambda: len(column(out, "from")) >= len(before) + 3, "three windows more")
    starts = column(out, "from")
    assert starts == list(range(starts[0], starts[0] + 2 * len(starts), 2))
    counts = {row["from"]: row["count"] for table in written(out).values() for row in table.to_pylist()}
    assert {counts[at] for at in starts[1:]} == {40}


def test_rows_that_wait_during_a_pause_are_late_by_it(engine: SparkEngine, out: Path, until: Until) -> None:
    engine.submit(copied("job", out, 100))
    until(lambda: epochs(engine) >= 1, "an epoch")
    engine.pause("job")
    paused_s = time.time()
    until(lambda: time.time() - paused_s > 3, "three seconds")
    engine.resume("job")
    told = latency_until(engine, lambda now: (now.epochs or 0) >= 1)
    assert told.percentile_s(90) > 2


def test_rows_whose_arrival_is_null_are_counted_as_unknown(engine: SparkEngine, out: Path) -> None:
    def half(spark: SparkSession) -> DataFrame:
        return rate(spark).withColumn("timestamp", F.when(F.col("value") % 2 == 0, F.col("timestamp")))

    job = topology()
    job.sink("out", sinks.files(out), job.source("in", half, arrival="timestamp"))
    began_s = time.time()
    engine.submit(job)
    told = latency_until(engine, lambda now: (now.epochs or 0) >= 3)
    assert told.rows <= put_in(engine) / 2 + 1
    assert 0 < told.mean_s < time.time() - began_s
    assert "rows of an epoch do not say when they arrived" in engine.states()["job"].reason


def test_job_has_no_latency_before_it_put_out_rows(engine: SparkEngine, out: Path) -> None:
    engine.submit(copied("job", out, sources.load(sources.Steps([(0, 0), (3600, 1)]))))
    windows = Windows({})
    for _ in range(3):
        snapshot = engine.observe()
        windows = windows.push(snapshot, 60.0)
    view = view_of(windows, snapshot, engine.jobs(), {}, Settings()).jobs["job"]
    assert (view.latency_s, view.met, view.utility) == (None, None, None)


def test_clock_that_is_set_back_delays_no_epoch(
    engine: SparkEngine, out: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(copied("job", out, 100, pace_s=0.3))
    until(lambda: epochs(engine) >= 2, "two epochs")
    before, real = engine.observe(), time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    since = epochs(engine)
    until(lambda: epochs(engine) >= since + 3, "three epochs more", within_s=180)
    after = engine.observe()
    assert 0 < after.at_s - before.at_s < 60
