"""The parts of epochs: how they are cut, what Spark's report adds, and that they make up the time of an epoch."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.core.model import EpochPart, EpochSpan, EpochTiming
from headgate.errors import InputError
from headgate.spark.engine import SparkEngine
from headgate.spark.epochs.pace import Moment
from headgate.spark.measuring.timing import EpochTimings, Stopwatch, with_reports

from .builders import copied, epochs, same, topology
from .conftest import Until

READ, LOG, PLAN, FAILED = EpochPart.READ, EpochPart.LOG, EpochPart.PLAN, EpochPart.FAILED
SINK, STATE, COUNT, WAIT, COMMIT = (
    EpochPart.SINK, EpochPart.STATE, EpochPart.COUNT, EpochPart.WAIT, EpochPart.COMMIT
)  # fmt: skip


def report(number: int, **durations_ms: int) -> Any:
    return cast(Any, SimpleNamespace(batchId=number, durationMs=durations_ms))


def test_attempt_that_failed_becomes_one_part() -> None:
    started = Moment.now()
    watch = Stopwatch(started, 0.0)
    watch.lap(LOG)
    watch.begin_attempt()
    watch.lap(PLAN)
    watch.lap(SINK, "out")
    watch.begin_attempt()
    watch.lap(PLAN)
    watch.lap(SINK, "out")
    assert [span.part for span in watch.spans] == [LOG, FAILED, PLAN, SINK]
    assert sum(span.took_s for span in watch.spans) <= time.monotonic() - started.at_s


def test_only_the_last_epochs_are_kept() -> None:
    timings = EpochTimings(3)
    for number in range(5):
        timings.add(EpochTiming(number, 0.0, 1, ()))
    assert [one.number for one in timings.all()] == [2, 3, 4]


def test_report_of_spark_replaces_what_was_estimated() -> None:
    epoch = EpochTiming(7, 100.0, 5, (EpochSpan(READ, 1.0), EpochSpan(PLAN, 0.5)))
    full = report(7, latestOffset=20, getBatch=5, queryPlanning=15, walCommit=10, addBatch=500, commitOffsets=30)
    (found,) = with_reports([epoch], [full])
    assert [(span.part, span.took_s) for span in found.spans] == [
        (READ, 0.04),
        (LOG, 0.01),
        (PLAN, 0.5),
        (COMMIT, 0.03),
    ]
    assert found.started_s == pytest.approx(100.95)


def test_epoch_that_was_run_again_has_the_report_and_its_first_run_has_not() -> None:
    runs = [EpochTiming(3, at_s, 1, (EpochSpan(PLAN, 0.1),)) for at_s in (1.0, 9.0)]
    first, second = with_reports(runs, [report(3, addBatch=100, walCommit=10)])
    assert first == runs[0]
    assert second.seconds_of(LOG) == 0.01


def test_idle_query_reports_no_epoch() -> None:
    epoch = EpochTiming(3, 1.0, 1, (EpochSpan(PLAN, 0.1),))
    assert with_reports([epoch], [report(3, latestOffset=4, triggerExecution=4)]) == (epoch,)


def test_parts_of_an_epoch_add_up_to_the_time_that_spark_measured(engine: SparkEngine, until: Until, out: Path) -> None:
    engine.submit(copied("timed", out, 200, pace_s=0.3))
    query = engine.job("timed").query
    assert query is not None

    def both() -> list[tuple[EpochTiming, float]]:
        """Epochs after the first with what Spark says that each took; its report comes a moment after the epoch."""
        found = [one for one in engine.epochs("timed") if one.number > 0 and one.seconds_of(COMMIT) > 0]
        ran = (one for one in query.recentProgress if "addBatch" in one.durationMs)
        took_s = {one.batchId: one.durationMs["triggerExecution"] / 1000 for one in ran}
        return [(one, took_s[one.number]) for one in found]

    until(lambda: len(both()) >= 3, "three epochs")
    for epoch, took_s in both():
        assert [span.part for span in epoch.spans] == [READ, LOG, LOG, PLAN, SINK, COUNT, WAIT, COMMIT]
        assert epoch.spans[4].operator == "out"
        # Between the parts, Spark calls Python and back; each of its durations is rounded down to a millisecond.
        assert took_s - 0.1 - 0.1 * took_s <= epoch.took_s <= took_s + 0.02, epoch
    assert sum(epoch.rows for epoch, _ in both()) > 0
    engine.pause("timed")
    assert len(engine.epochs("timed")) >= 3, "a job that is paused still shows its epochs"


def test_keyed_job_tells_how_long_its_state_took(engine: SparkEngine, until: Until, out: Path) -> None:
    from headgate.spark import sinks, sources

    job = topology("keyed")
    rows = job.batches("same", same, job.source("in", sources.load(100)), schema="row long, arrived timestamp")
    job.sink("out", sinks.files(out), job.keyed("count", {"n": "count"}, rows, key="row", slices=4))
    engine.submit(job)
    until(lambda: epochs(engine, "keyed") >= 1 and engine.epochs("keyed"), "an epoch")
    assert engine.epochs("keyed")[0].seconds_of(STATE) > 0


def test_unknown_job_has_no_epochs(engine: SparkEngine) -> None:
    with pytest.raises(InputError, match='there is no job "nope"'):
        engine.epochs("nope")
