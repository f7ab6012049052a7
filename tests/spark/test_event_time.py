"""The watermark of a keyed operator, and when its next timer is due; no Spark is needed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.spark.keyed.event_time import EventTime
from headgate.spark.sources import ticks
from headgate.spark.sources.ticks import Tick
from headgate.state.checkpoint import EpochWatermark


def after_rows(timer_ms: int | None, follows_clock: bool = True) -> EventTime:
    """An epoch that began at 100 s on the clock has seen an event of 50 s; events may be 5 s late."""
    event_time = EventTime(5_000, follows_clock)
    assert event_time.begin(0, 100.0) is False
    assert event_time.watermark_ms(0) is None
    event_time.end(0, [20_000, 50_000], timer_ms)
    return event_time


def test_watermark_of_an_epoch_is_the_latest_time_of_those_before_less_the_lateness():
    event_time = after_rows(None)
    event_time.begin(1, 101.0)
    assert event_time.watermark_ms(1) == 45_000
    event_time.end(1, [30_000], None)
    assert event_time.watermark_ms(2) == 45_000


@pytest.mark.parametrize(("timer_ms", "wait_s"), [(45_000, 0.0), (30_000, 0.0), (48_000, 2.0), (None, None)])
def test_timer_is_due_when_event_time_gets_there_with_the_clock(timer_ms, wait_s):
    assert after_rows(timer_ms).wait_s(101.0) == wait_s


@pytest.mark.parametrize(("timer_ms", "wait_s"), [(45_000, 0.0), (48_000, None)])
def test_timer_waits_for_rows_if_event_time_does_not_follow_the_clock(timer_ms, wait_s):
    assert after_rows(timer_ms, follows_clock=False).wait_s(101.0) == wait_s


def test_epoch_without_rows_has_the_watermark_that_the_clock_says_and_keeps_it_when_tried_again():
    event_time = after_rows(48_000)
    assert event_time.begin(1, 103.5) is True
    assert event_time.clock == EpochWatermark(None, 48_500)
    assert event_time.begin(1, 200.0) is False
    assert event_time.watermark_ms(1) == 48_500
    again = EventTime(5_000, True)
    again.resume(event_time.epoch, event_time.clock, 7.0)
    assert again.begin(1, 9.0) is False
    assert again.watermark_ms(1) == 48_500, "also in another process"
    event_time.end(1, [], 60_000)
    assert event_time.wait_s(200.0) == 0.0
    assert event_time.watermark_ms(2) == 48_500


def test_epoch_whose_timers_rows_have_made_due_is_not_moved_by_the_clock():
    event_time = after_rows(45_000)
    assert event_time.begin(1, 500.0) is False
    assert event_time.watermark_ms(1) == 45_000


def test_epoch_is_asked_for_once_its_time_has_come(tmp_path: Path):
    reader = ticks.TickReader({"place": str(tmp_path)})
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start  # type: ignore[arg-type]
    ticks.ask(tmp_path, 7, 3600.0)
    assert reader.latestOffset(start, None) == start  # type: ignore[arg-type]
    ticks.ask(tmp_path, 7, 0.0)
    assert reader.latestOffset(start, None) == {"tick": 7}  # type: ignore[arg-type]


def test_tick_of_before_the_machine_was_started_is_due():
    assert [Tick(1, 1000.0, 5.0).is_due(now_s) for now_s in (994.0, 996.0, 1001.0)] == [True, False, True]
