"""Windows of readings, and what a job is judged on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.metrics import JobView, view_of
from headgate.core.model import Job, JobAllocation, JobReading
from headgate.core.windows import Windows, span_of
from tests.core.builders import PLAIN, Counts, chain, snapshot

SETTINGS = Settings()
ROWS_S = 100.0
DROPPING = Intent(latency="1s")


def reading(at_s: float, latency: Latency | None = None, version: int = 1, busy: float = 0.4) -> JobReading:
    rows = ROWS_S * at_s
    counts = Counts(
        PLAIN,
        sources={"in": (rows, rows)},
        edges={("in", "work"): (rows, 0.9 * rows)},
        busy_s={"in": (0.1 * at_s,), "work": (busy * at_s, busy * at_s)},
    )
    return counts.reading(version=version, latency=latency)


def pushed(readings: Iterable[tuple[float, JobReading | None]], name: str = "job") -> Windows:
    windows = Windows({})
    for at_s, one in readings:
        windows = windows.push(snapshot(at_s, {name: one}), SETTINGS.window_s)
    return windows


def judged(windows: Windows, intent: Intent, since_s: dict[str, float] | None = None) -> JobView:
    last = windows.samples["job"][-1]
    now = snapshot(last.at_s, {"job": last.reading}, allocation={"job": JobAllocation({"in": 1, "work": 2})})
    return view_of(windows, now, {"job": Job("job", PLAIN, intent)}, since_s or {}, SETTINGS).jobs["job"]


# -- what a window holds


def test_window_is_a_minute_of_sub_windows_of_ten_seconds() -> None:
    windows = pushed((at_s, reading(at_s)) for at_s in range(0, 300, 10))
    assert [sample.at_s for sample in windows.samples["job"]] == [230, 240, 250, 260, 270, 280, 290]


@pytest.mark.parametrize("again_s", [290, 280, -3310])
def test_reading_that_is_not_later_than_the_last_one_is_ignored(again_s: float) -> None:
    times = [*range(0, 300, 10), again_s, 300]
    windows = pushed((at_s, reading(at_s)) for at_s in times)
    assert [sample.at_s for sample in windows.samples["job"]] == [240, 250, 260, 270, 280, 290, 300]
    assert judged(windows, DROPPING).span is not None


def test_span_covers_the_window() -> None:
    span = span_of(pushed((at_s, reading(at_s)) for at_s in range(0, 300, 10)).samples["job"])
    assert span is not None
    assert span.seconds == 60
    assert span.arrived("in") == span.processed("in", "*") == span.sent("in", "work") == 6000
    assert span.processed("work", "in") == span.rows_in("work") == pytest.approx(5400)
    assert span.busy_s("work") == pytest.approx((24, 24))
    assert span.arrival_rows_s() == ROWS_S


def test_one_reading_is_no_span() -> None:
    assert span_of(pushed([(0, reading(0))]).samples["job"]) is None


@pytest.mark.parametrize("lost_s", [250, 260, 270, 280])
def test_lost_reading_changes_nothing(lost_s: int) -> None:
    intent = Intent(latency="1s", juice=1.0)
    latencies = {at_s: Latency.of([at_s / 1000] * 3) for at_s in range(0, 300, 10)}
    late = Latency.of([lost_s / 1000] * 3 + [(lost_s + 10) / 1000] * 3)
    whole = pushed((at_s, reading(at_s, latency)) for at_s, latency in latencies.items())
    broken = pushed(
        (at_s, None if at_s == lost_s else reading(at_s, late if at_s == lost_s + 10 else latency))
        for at_s, latency in latencies.items()
    )
    left, right = judged(whole, intent), judged(broken, intent)
    assert left.latency_s == pytest.approx(right.latency_s)
    assert (left.juice, left.utility, left.met) == pytest.approx((right.juice, right.utility, right.met))


def test_another_version_starts_the_window_anew() -> None:
    windows = pushed((at_s, reading(at_s, version=1 + (at_s >= 40))) for at_s in range(0, 70, 10))
    assert [sample.at_s for sample in judged(windows, DROPPING).samples] == [40, 50, 60]


def test_newest_sub_window_shows_what_a_change_of_the_allocation_cost() -> None:
    slow = Latency.of([9.0] * 3)
    windows = pushed([(0, reading(0)), (10, reading(10)), (20, reading(20, slow, version=2))])
    seen = judged(windows, Intent(latency=1.0))
    assert seen.utility is None
    assert seen.recent == pytest.approx(1 / 9)


def test_gone_job_is_forgotten() -> None:
    windows = pushed((at_s, reading(at_s)) for at_s in (0, 10, 20))
    assert "job" not in windows.push(snapshot(30, {"other": reading(30)}), 60).samples


def test_job_that_comes_back_starts_anew() -> None:
    windows = pushed((at_s, reading(at_s)) for at_s in (0, 10, 20))
    windows = windows.push(snapshot(30, {}), 60).push(snapshot(40, {"job": reading(40)}), 60)
    assert [sample.at_s for sample in windows.samples["job"]] == [40]


def test_unread_jobs_are_named_until_they_are_read() -> None:
    windows = pushed([(0, reading(0))]).push(snapshot(10, {"job": None, "other": reading(10)}), 60)
    assert windows.unread == {"job"}
    assert windows.push(snapshot(20, {"job": reading(20), "other": reading(20)}), 60).unread == frozenset()


def test_job_keeps_its_readings_while_it_is_unread() -> None:
    windows = pushed([(0, reading(0)), (10, reading(10)), (20, None)])
    assert [sample.at_s for sample in windows.samples["job"]] == [0, 10]


# -- what a job is judged on


def test_job_without_a_span_is_not_judged() -> None:
    view = judged(pushed([(0, reading(0))]), DROPPING)
    assert (view.utility, view.met, view.latency_s, view.juice, view.satisfaction) == (None,) * 5


def test_latency_is_the_mean_over_all_sub_windows() -> None:
    parts = {10: Latency.of([0.1] * 6), 20: Latency.of([0.9] * 2), 30: None}
    view = judged(pushed([(0, reading(0)), *((at_s, reading(at_s, part)) for at_s, part in parts.items())]), DROPPING)
    assert view.latency_s == pytest.approx(0.3)


def test_latency_before_the_window_does_not_count() -> None:
    early = [(at_s, reading(at_s, Latency.of([9.0]))) for at_s in (0, 10, 20)]
    late = [(at_s, reading(at_s, Latency.of([0.2]))) for at_s in range(30, 90, 10)]
    assert judged(pushed(early + late), DROPPING).latency_s == pytest.approx(0.2)


@pytest.mark.parametrize(("percentile", "expected_s", "met"), [(50, 0.2, True), (90, 0.2, True), (99, 3.0, False)])
def test_percentile_is_taken_over_all_sub_windows(percentile: float, expected_s: float, met: bool) -> None:
    fast, slow = Latency.weighted([(0.2, 95)]), Latency.weighted([(3.0, 5)])
    windows = pushed([(0, reading(0)), (10, reading(10, fast)), (20, reading(20, slow))])
    view = judged(windows, Intent(latency="1s", percentile=percentile))
    assert view.latency_s == pytest.approx(expected_s, rel=0.02)
    assert view.met is met


def test_window_can_be_cut_to_what_came_after_a_change() -> None:
    early = [(at_s, reading(at_s, Latency.of([9.0]))) for at_s in (0, 10, 20)]
    late = [(at_s, reading(at_s, Latency.of([0.2]))) for at_s in (30, 40, 50)]
    view = judged(pushed(early + late), DROPPING, since_s={"job": 20.0})
    assert view.latency_s == pytest.approx(0.2)
    assert view.span is not None and view.span.seconds == 30


def test_recent_utility_is_that_of_the_newest_sub_window() -> None:
    slow = [(at_s, reading(at_s, Latency.of([4.0]))) for at_s in range(0, 50, 10)]
    view = judged(pushed([*slow, (50, reading(50, Latency.of([2.0])))]), Intent(latency="1s", worth=8))
    assert view.recent == pytest.approx(4.0)
    assert view.utility == pytest.approx(8 / 3.6)


# -- no output


def silent(arrived: float, processed: float, sent: float, waiting_before: float = 0.0) -> JobView:
    def counts(arrived: float, processed: float, sent: float) -> Counts:
        return Counts(PLAIN, {"in": (arrived, processed)}, {("in", "work"): (sent, sent)})

    first = counts(waiting_before, 0, 0).reading()
    last = counts(waiting_before + arrived, processed, sent).reading()
    return judged(pushed([(0, first), (60, last)]), Intent(latency="1s", worth=10))


def test_filter_that_drops_everything_meets_its_intent() -> None:
    view = silent(arrived=6000, processed=6000, sent=0)
    assert (view.latency_s, view.met, view.utility) == (0, True, 10)


def test_job_that_never_had_input_is_neither_met_nor_missed() -> None:
    view = silent(arrived=0, processed=0, sent=0)
    assert (view.latency_s, view.met, view.utility, view.utility_unknown) == (None, None, None, True)


def test_job_that_put_out_rows_before_meets_its_intent_while_no_input_comes() -> None:
    counts = Counts(PLAIN, {"in": (100, 100)}, {("in", "work"): (100, 100)})
    view = judged(pushed([(0, counts.reading()), (60, counts.reading())]), Intent(latency="1s", worth=10))
    assert (view.latency_s, view.met, view.utility) == (0, True, 10)


def test_rows_put_out_without_their_arrival_have_no_known_latency() -> None:
    view = silent(arrived=100, processed=100, sent=100)
    assert (view.latency_s, view.met, view.utility_unknown) == (None, None, True)


def test_rows_that_waited_before_the_start_make_no_job_late_that_was_not_measured_yet() -> None:
    counts = [Counts(PLAIN, {"in": (arrived, 0)}, {("in", "work"): (0, 0)}).reading() for arrived in (9000, 9260)]
    view = judged(pushed([(0, counts[0]), (4, counts[1])]), Intent(latency="1s", worth=10))
    assert (view.latency_s, view.met) == (None, None)


def test_epoch_in_flight_during_the_whole_window_is_late_though_the_source_does_not_say_what_waits() -> None:
    before = Counts(PLAIN, {"in": (100, 100)}, {("in", "work"): (100, 100)}).reading()
    first, last = (replace(before, epochs=1, in_epochs_s=spent_s) for spent_s in (3.0, 62.5))
    view = judged(pushed([(0, first), (60, last)]), Intent(latency="1s", worth=10))
    assert view.latency_s == 60 and view.met is False


def test_job_without_output_whose_rows_wait_is_at_least_as_late_as_the_span_is_long() -> None:
    view = silent(arrived=6000, processed=0, sent=0)
    assert view.latency_s is not None and view.latency_s >= 60
    assert view.met is False


def test_job_that_stands_still_before_an_old_backlog_is_late_too() -> None:
    view = silent(arrived=0, processed=0, sent=0, waiting_before=6000)
    assert view.latency_s is not None and view.latency_s >= 60
    assert view.met is False


def test_juice_intent_needs_no_output() -> None:
    windows = pushed([(0, reading(0)), (60, reading(60))])
    view = judged(windows, Intent(juice=0.9, worth=10))
    assert view.juice == pytest.approx(0.9)
    assert (view.latency_s, view.met) == (None, True)


def test_hybrid_intent_is_the_mean_of_both_goals() -> None:
    windows = pushed([(0, reading(0)), (60, reading(60, Latency.of([2.0])))])
    view = judged(windows, Intent(latency="1s", juice=1.0, worth=35))
    assert view.utility == pytest.approx(35 * (0.5 + 0.9) / 2)


def test_view_names_what_was_not_read() -> None:
    windows = pushed([(0, reading(0)), (10, reading(10)), (20, None)])
    now = snapshot(20, {"job": None}, allocation={"job": JobAllocation({"in": 1, "work": 2})})
    view = view_of(windows, now, {"job": Job("job", chain("in", "work"), DROPPING)}, {}, SETTINGS)
    assert view.unread == {"job"}
    assert view.jobs["job"].utility is None
    assert view.jobs["job"].recent is None
