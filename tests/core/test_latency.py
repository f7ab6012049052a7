from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.latency import Latency, merge

values_s = st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=200)


def test_mean_is_exact() -> None:
    assert Latency.of([0.1, 0.1, 0.4]).mean_s == pytest.approx(0.2)


def test_weighted_points_count_as_that_many_rows() -> None:
    weighted, listed = Latency.weighted([(0.1, 90), (2.0, 10)]), Latency.of([0.1] * 90 + [2.0] * 10)
    assert weighted.rows == listed.rows == 100
    assert weighted.mean_s == pytest.approx(listed.mean_s)
    assert weighted.percentile_s(95) == pytest.approx(listed.percentile_s(95))


@pytest.mark.parametrize(("percentile", "expected_s"), [(50, 0.500), (95, 0.950), (99, 0.990), (100, 1.0)])
def test_percentiles_of_an_even_spread(percentile: float, expected_s: float) -> None:
    latency = Latency.of(row / 1000 for row in range(1, 1001))
    assert latency.percentile_s(percentile) == pytest.approx(expected_s)


def test_no_latency_at_all_is_a_value() -> None:
    assert Latency.of([0.0, 0.0]).mean_s == 0
    assert Latency.of([0.0, 0.0]).percentile_s(99) == 0


def test_without_rows_there_is_no_percentile() -> None:
    with pytest.raises(ValueError, match="without rows"):
        Latency.of([]).percentile_s(99)


@given(values_s, st.floats(1, 99))
def test_percentile_is_one_of_the_values_around_it(rows_s: list[float], percentile: float) -> None:
    answer = Latency.of(rows_s).percentile_s(percentile)
    low = np.percentile(rows_s, percentile, method="lower")
    high = np.percentile(rows_s, percentile, method="higher")
    assert low <= answer <= high


@given(values_s, values_s)
def test_merging_is_the_same_as_measuring_together(first_s: list[float], second_s: list[float]) -> None:
    merged, together = merge([Latency.of(first_s), Latency.of(second_s)]), Latency.of(first_s + second_s)
    assert merged is not None
    assert merged.rows == together.rows
    assert merged.mean_s == pytest.approx(together.mean_s)
    assert merged.percentile_s(95) == together.percentile_s(95)


def test_missing_and_empty_parts_are_left_out_of_a_merge() -> None:
    only = Latency.of([0.3])
    assert merge([None, only, Latency.of([])]) == only


def test_merge_of_nothing_is_not_known() -> None:
    assert merge([]) is None
    assert merge([None, Latency.of([])]) is None
