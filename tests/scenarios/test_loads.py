from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ScenarioError
from headgate.loads import (
    HOURLY,
    Diurnal,
    Load,
    Ramp,
    Sine,
    Spike,
    Steady,
    Steps,
    Trace,
    load_from,
    median_rate,
    read_trace,
)

EVERY_PATTERN: list[Load] = [
    Steady(1000),
    Steps([(0, 100), (60, 300)]),
    Ramp([(10, 100), (20, 300)]),
    Spike(100, 2, 3600, 7200),
    Sine(100, 100, 60, 15),
    Diurnal(1000, "epa", 600),
    Diurnal(1000, "sdsc", 600, offset_hours=7),
    Trace([(0, 60), (60, 120), (120, 0)]),
]


@given(st.sampled_from(EVERY_PATTERN), st.floats(0, 1e7))
def test_rates_are_finite_never_negative_and_repeatable(load: Load, at_s: float) -> None:
    rate = load.rate_rows_s(at_s)
    assert math.isfinite(rate) and rate >= 0
    assert load.rate_rows_s(at_s) == rate


@pytest.mark.parametrize(
    ("load", "at_s", "expected"),
    [
        (Steady(1000), 5, 1000),
        (Steps([(0, 100), ("1m", 300)]), 59.9, 100),
        (Steps([(0, 100), ("1m", 300)]), 60, 300),
        (Steps([(10, 100), (60, 300)]), 0, 100),
        (Ramp([(10, 100), (20, 300)]), 0, 100),
        (Ramp([(10, 100), (20, 300)]), 15, 200),
        (Ramp([(10, 100), (20, 300)]), 99, 300),
        (Spike(100, 2, start_s=3600, end_s=7200), 3599, 100),
        (Spike(100, 2, start_s=3600, end_s=7200), 3600, 200),
        (Spike(100, 2, start_s=3600, end_s=7200), 7200, 100),
        (Sine(100, 50, period_s=60), 0, 100),
        (Sine(100, 50, period_s=60), 15, 150),
        (Sine(100, 50, period_s=60, phase_s=15), 30, 50),
    ],
)
def test_patterns_follow_their_definition(load: Load, at_s: float, expected: float) -> None:
    assert load.rate_rows_s(at_s) == pytest.approx(expected)


@pytest.mark.parametrize("shape", ["epa", "sdsc"])
def test_traced_days_rise_from_hour_seven_and_peak_in_the_early_afternoon(shape: str) -> None:
    levels = HOURLY[shape]
    assert len(levels) == 24 and max(levels) == 1
    assert levels.index(1) in (13, 14)
    assert levels[7] > 1.5 * levels[6] and levels[8] > 1.2 * levels[7]
    assert max(levels[:7]) < 0.4


def test_day_reaches_each_level_in_the_middle_of_its_hour_and_runs_straight_between() -> None:
    day = Diurnal(peak=1000, shape="epa", hour_s=600)
    assert day.rate_rows_s(7.5 * 600) == pytest.approx(179)
    assert day.rate_rows_s(8.5 * 600) == pytest.approx(423)
    assert day.rate_rows_s(8 * 600) == pytest.approx((179 + 423) / 2)
    assert day.rate_rows_s(0) == pytest.approx((247 + 145) / 2)


@given(st.floats(0, 24 * 600))
def test_days_repeat(at_s: float) -> None:
    day = Diurnal(peak=1000, shape="sdsc", hour_s=600)
    assert day.rate_rows_s(at_s + 24 * 600) == pytest.approx(day.rate_rows_s(at_s))


def test_day_may_start_at_any_hour_and_have_hours_of_its_own() -> None:
    hours = [0.0] * 24
    hours[13] = 7
    assert Diurnal(100, hours, hour_s=10, offset_hours=13.5).rate_rows_s(0) == 100
    assert Diurnal(100, hours, hour_s=10, offset_hours=13.5).rate_rows_s(5) == 50


def test_trace_counts_become_rates_and_repeat() -> None:
    trace = Trace([(1000, 60), (1060, 240), (1180, 30)])
    assert [trace.rate_rows_s(at_s) for at_s in (0, 59, 60, 179, 180, 299)] == [1, 1, 2, 2, 0.25, 0.25]
    assert trace.rate_rows_s(300) == 1


def test_trace_may_be_scaled_in_time_and_height() -> None:
    points = [(0, 60), (60, 120)]
    assert Trace(points, time_scale=0.5).rate_rows_s(30) == 2
    assert Trace(points, height_scale=10).rate_rows_s(0) == 10
    assert Trace(points, peak=500).rate_rows_s(60) == 500
    assert Trace(points, peak=500).rate_rows_s(0) == 250


def test_median_rate_ignores_a_short_spike() -> None:
    assert median_rate(Spike(100, 50, start_s=10, end_s=20), 60) == 100
    assert median_rate(Ramp([(0, 0), (100, 200)]), 100) == pytest.approx(100)


def test_trace_file_is_read_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("timestamp_s,count\n100,60\n160,120\n\n")
    assert read_trace(tmp_path / "day.csv") == ((100, 60), (160, 120))
    load = load_from({"pattern": "trace", "file": "day.csv", "peak": 500}, "load", tmp_path)
    assert load == Trace([(100, 60), (160, 120)], peak=500)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("timestamp_s,count\n0,1\n60,x\n", 'line 3 is "60,x"; it must be a timestamp in seconds, a comma and a count'),
        ("time;count\n0,1\n", 'line 1 is "time;count"'),
        ("0,1\n60,-2\n", 'line 2 is "60,-2".*a count of at least 0'),
        ("0,1\n60,nan\n", 'line 2 is "60,nan"'),
        ("0,1\n60,1,1\n", 'line 2 is "60,1,1"'),
        ("0,1\n60,1\n60,2\n", "line 3 has timestamp 60, not later than the line before"),
        ("timestamp_s,count\n0,1\n", "the number of counts is 1; it must be at least 2"),
        ("", "the number of counts is 0; it must be at least 2"),
    ],
)
def test_malformed_trace_names_file_and_line(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "day.csv").write_text(text)
    with pytest.raises(ScenarioError, match=f'^job "T1": load: trace ".*day.csv": {sentence}'):
        load_from({"pattern": "trace", "file": "day.csv"}, 'job "T1": load', tmp_path)


def test_trace_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r'trace ".*none.csv" cannot be read: No such file'):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(ScenarioError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="cannot be read: it is not UTF-8 text"):
        read_trace(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"pattern": "steady", "rate": 1000}, Steady(1000)),
        ({"pattern": "steps", "points": [[0, 100], ["1m", 300]]}, Steps([(0, 100), (60, 300)])),
        ({"pattern": "ramp", "points": [[0, 100], [60, 300]]}, Ramp([(0, 100), (60, 300)])),
        ({"pattern": "spike", "rate": 100, "height": 2, "start_s": "1h", "end_s": 7200}, Spike(100, 2, 3600, 7200)),
        ({"pattern": "sine", "mean": 100, "amplitude": 50, "period_s": 60}, Sine(100, 50, 60)),
        ({"pattern": "diurnal", "peak": 9, "shape": "sdsc", "hour_s": "10m"}, Diurnal(9, "sdsc", 600)),
    ],
)
def test_load_is_read_from_a_table(table: dict[str, Any], expected: Load) -> None:
    assert load_from(table, "load", Path()) == expected


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (1000, "it is 1000; it must be a table"),
        ({"rate": 1000}, "pattern is missing; allowed are steady, steps"),
        ({"pattern": "stedy", "rate": 1000}, r'pattern is "stedy".*Did you mean "steady"\?'),
        ({"pattern": "steady"}, "rate is missing"),
        ({"pattern": "steady", "rate": 1, "hight": 2}, 'there is no field "hight"; allowed are rate'),
        ({"pattern": "steady", "rate": -1}, "rate is -1; it must be a number of at least 0"),
        ({"pattern": "steady", "rate": math.nan}, "rate is nan; it must be a number of at least 0"),
        ({"pattern": "steady", "rate": "fast"}, 'rate is "fast"; it must be a number'),
        ({"pattern": "steps", "points": []}, r"points is \[\]; it must be 1 or more pairs"),
        ({"pattern": "steps", "points": [[0, 1], [60]]}, r"points has \[60\]; each must be a time and its rows"),
        ({"pattern": "steps", "points": [[60, 1], [0, 2]]}, "points has time 0 after 60; each must be later"),
        ({"pattern": "ramp", "points": [[0, -1]]}, "the value of the point at 0 is -1"),
        (
            {"pattern": "spike", "rate": 1, "height": 2, "start_s": 5, "end_s": 5},
            "end_s is 5; it must be later than start_s",
        ),
        (
            {"pattern": "sine", "mean": 1, "amplitude": 2, "period_s": 9},
            "amplitude is 2; it must be at most the mean, 1",
        ),
        ({"pattern": "sine", "mean": 1, "amplitude": 1, "period_s": 0}, "period_s is 0; it must be a duration above 0"),
        ({"pattern": "diurnal", "peak": 1, "shape": "eap"}, r'shape is "eap".*Did you mean "epa"\?'),
        ({"pattern": "diurnal", "peak": 1, "shape": [1, 2]}, r"shape is \[1, 2\]; allowed are epa, sdsc or 24 hourly"),
        ({"pattern": "diurnal", "peak": 1, "shape": [0] * 24}, "shape has only zeros"),
        ({"pattern": "diurnal", "peak": 1, "shape": [-1] * 24}, "shape at hour 0 is -1"),
        ({"pattern": "trace"}, "file is None; it must be the path of a CSV file"),
        ({"pattern": "trace", "file": "a\0b"}, "file is .*; it must be the path of a CSV file"),
        ({"pattern": "trace", "file": "no/such.csv"}, 'trace "no/such.csv" cannot be read: No such file'),
    ],
)
def test_mistakes_in_a_table_are_told_with_their_place(table: Any, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=f'^job "T1": load: {sentence}'):
        load_from(table, 'job "T1": load', Path())


@pytest.mark.parametrize(
    ("scales", "sentence"),
    [
        ({"time_scale": 0}, "time_scale is 0; it must be a number above 0"),
        ({"height_scale": -1}, "height_scale is -1; it must be a number of at least 0"),
        ({"height_scale": 2, "peak": 5}, "peak and height_scale are both given"),
        ({"peak": -5}, "peak is -5; it must be a number of at least 0"),
    ],
)
def test_impossible_scales_of_a_trace_are_refused(scales: dict[str, float], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        Trace([(0, 60), (60, 120)], **scales)


def test_silent_trace_cannot_be_scaled_to_a_peak() -> None:
    with pytest.raises(ScenarioError, match="all counts of the trace are 0"):
        Trace([(0, 0), (60, 0)], peak=5)
