"""Which lanes differ from their peers, on two of them and on sixty-four."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.health.outliers import above, ratio
from tests.core.builders import LAW

ALIKE, CUT = 0.25, 3.5
COUNTS = st.integers(2, 64)


def scattered(count: int, seed: int, deviation: float = 0.03) -> list[float]:
    source = random.Random(seed)
    return [max(0.1, source.gauss(1.0, deviation)) for _ in range(count)]


@LAW
@given(COUNTS, st.integers(0, 10_000))
def test_lanes_that_scatter_a_little_are_alike(count: int, seed: int) -> None:
    assert above(scattered(count, seed), ALIKE, CUT) == ()


@LAW
@given(COUNTS, st.integers(0, 10_000), st.floats(1.45, 10), st.data())
def test_one_lane_far_above_is_found_among_any_number(count: int, seed: int, times: float, data: st.DataObject) -> None:
    values = scattered(count, seed, 0.02)
    place = data.draw(st.integers(0, count - 1))
    values[place] = times * 1.06
    assert above(values, ALIKE, CUT) == (place,)


@LAW
@given(st.integers(5, 64), st.integers(0, 10_000), st.data())
def test_several_lanes_far_above_are_found_as_long_as_most_are_fine(count: int, seed: int, data: st.DataObject) -> None:
    values = scattered(count, seed, 0.01)
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=(count - 1) // 3))
    for place in bad:
        values[place] *= 2
    assert set(above(values, ALIKE, CUT)) == bad


@LAW
@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=64), st.floats(0.01, 1000))
def test_units_do_not_matter(values: list[float], factor: float) -> None:
    # A value that is just at the limit may fall on either side of it by rounding.
    certain = above(values, ALIKE + 1e-6, CUT + 1e-6)
    assert set(certain) <= set(above([value * factor for value in values], ALIKE, CUT))


@LAW
@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], source: random.Random) -> None:
    order = list(range(len(values)))
    source.shuffle(order)
    found = above([values[place] for place in order], ALIKE, CUT)
    assert sorted(order[place] for place in found) == sorted(above(values, ALIKE, CUT))


@pytest.mark.parametrize("values", [(), (3.0,), (0.0, 0.0, 0.0)])
def test_nothing_to_compare_means_no_outlier(values: tuple[float, ...]) -> None:
    assert above(values, ALIKE, CUT) == ()


def test_lane_that_has_more_than_nothing_is_above_those_that_have_none() -> None:
    assert above((0.0, 0.0, 7.0, 0.0), ALIKE, CUT) == (2,)


def test_ratio_is_of_the_means() -> None:
    assert ratio((1.0, 1.0, 4.0, 6.0), (2, 3)) == 5.0
    assert ratio((1.0, 1.0), ()) == 1.0
