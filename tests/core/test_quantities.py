from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.quantities import about, check_fields, choice, interpolate, number, seconds, show_seconds, shown
from headgate.errors import InputError, IntentError


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("250ms", 0.25),
        ("2s", 2.0),
        ("1m", 60.0),
        ("1min", 60.0),
        ("1.5h", 5400.0),
        ("500us", 0.0005),
        ("500µs", 0.0005),
        (" 2 s ", 2.0),
        (".5s", 0.5),
        ("1e-3s", 0.001),
        ("3", 3.0),
        (3, 3.0),
        (0.1, 0.1),
    ],
)
def test_reads_durations_with_and_without_a_unit(text: str | float, expected_s: float) -> None:
    assert seconds(text, "latency") == pytest.approx(expected_s)


@pytest.mark.parametrize(
    "value",
    [
        *("", "s", "2 parsecs", "2d", "-2s", "0", "0s", "2s 3", "nan", "inf", "1e999s", "9" * 400),
        *(math.nan, math.inf, -1.0, 0, True, None, [2], 10**400),
    ],
)
def test_refuses_what_is_no_duration_above_zero(value: Any) -> None:
    with pytest.raises(InputError, match=r"latency is .*; it must be a duration above 0, such as"):
        seconds(value, "latency")


def test_zero_duration_is_allowed_where_asked() -> None:
    assert seconds("0s", "start_s", zero=True) == 0
    with pytest.raises(InputError, match="of at least 0"):
        seconds(-1, "start_s", zero=True)


def test_refusal_is_of_the_class_asked_for_and_names_field_value_and_range() -> None:
    with pytest.raises(IntentError) as refusal:
        number("many", "juice", above=0, high=1, error=IntentError)
    assert str(refusal.value) == 'juice is "many"; it must be a number above 0 and at most 1'


@pytest.mark.parametrize("value", [True, None, "1", math.nan, math.inf, -math.inf, 10**400, 1.5, -0.5])
def test_refuses_what_is_no_number_in_range(value: Any) -> None:
    with pytest.raises(InputError, match="it must be a number of at least 0 and at most 1"):
        number(value, "share", low=0, high=1)


def test_bounds_may_be_reached_but_above_must_be_exceeded() -> None:
    assert (number(0, "share", low=0), number(1, "share", high=1)) == (0.0, 1.0)
    with pytest.raises(InputError, match="above 0"):
        number(0, "share", above=0)


def test_unknown_word_is_answered_with_the_closest_one() -> None:
    assert choice("knee", "shape", ("knee", "step")) == "knee"
    with pytest.raises(InputError, match=r'shape is "kne"; allowed are knee, step. Did you mean "knee"\?'):
        choice("kne", "shape", ("knee", "step"))
    with pytest.raises(InputError, match=r"shape is 3; allowed are knee, step.$"):
        choice(3, "shape", ("knee", "step"))


def test_unknown_field_is_named() -> None:
    check_fields({"rate": 1}, ("rate",))
    with pytest.raises(InputError, match=r'no field "rat"; allowed are rate. Did you mean "rate"\?'):
        check_fields({"rat": 1}, ("rate",))


def test_refusals_nest_their_places() -> None:
    with (
        pytest.raises(IntentError, match=r'^job "T1": intent: worth is -1'),
        about('job "T1"', IntentError),
        about("intent"),
    ):
        number(-1, "worth", above=0)


def test_shown_values_stay_on_one_short_line() -> None:
    assert shown('a\n"b"') == '"a\\n\\"b\\""'
    assert len(shown("x" * 1000)) < 80
    assert len(shown([1.5] * 1000)) < 80


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.25, "250 ms"),
        (2.0, "2 s"),
        (90, "1.5 min"),
        (5400, "1.5 h"),
        (0.0005, "500 µs"),
        (1e-7, "0.1 µs"),
        (0, "0 s"),
        (0.9999, "1 s"),
        (59.99, "1 min"),
        (1.2345, "1.23 s"),
        (-0.25, "-250 ms"),
        (36_000_000, "10,000 h"),
        (math.inf, "inf s"),
    ],
)
def test_shows_durations_in_the_unit_a_person_would_choose(value_s: float, text: str) -> None:
    assert show_seconds(value_s) == text


def test_more_digits_are_shown_when_asked() -> None:
    assert show_seconds(1.23456, digits=6) == "1.23456 s"


@given(st.floats(1e-6, 1e6))
def test_shown_durations_read_back_to_three_digits(value_s: float) -> None:
    assert seconds(show_seconds(value_s).replace(",", ""), "latency") == pytest.approx(value_s, rel=0.01)


@pytest.mark.parametrize(("at", "expected"), [(0, 10), (1, 10), (2, 15), (3, 20), (4, 30), (9, 40)])
def test_interpolates_between_places_and_is_constant_beyond(at: float, expected: float) -> None:
    assert interpolate(at, (1, 3, 5), (10, 20, 40)) == expected
