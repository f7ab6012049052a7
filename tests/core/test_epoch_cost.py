"""Epochs have a fixed cost and a cost per row; the number of rows that they read follows from the latter alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.epoch_cost import EpochCost
from tests.examples import examples

LONGEST_S = 5.0
SETTLED = 60
"""Epochs after which the limit has converged."""


def epochs(takes_s: Callable[[float], float], count: int, first: float = 10_000.0) -> list[float]:
    """Rows of so many epochs, each as large as the ones before allow, with an endless backlog."""
    cost, rows, read = EpochCost(), first, []
    for _ in range(count):
        read.append(rows)
        cost = cost.after(rows, takes_s(rows))
        rows = max(10.0, cost.rows_in(LONGEST_S))
    return read


@examples(60)
@given(
    fixed_s=st.floats(0.0, 60.0),
    rows_s=st.floats(30.0, 1e6),
    noise=st.sampled_from([0.0, 0.02, 0.05]),
    seed=st.integers(),
)
@example(fixed_s=12.0, rows_s=2000.0, noise=0.0, seed=0)
@example(fixed_s=5.16, rows_s=1e5, noise=0.0, seed=0)
def test_rows_of_an_epoch_converge_to_what_takes_the_longest_time_whatever_the_fixed_cost(
    fixed_s: float, rows_s: float, noise: float, seed: int
) -> None:
    draws = random.Random(seed)
    read = epochs(lambda rows: (fixed_s + rows / rows_s) * (1 + draws.uniform(-noise, noise)), SETTLED + 20)
    shares = [rows / (LONGEST_S * rows_s) for rows in read[SETTLED:]]
    unclear = (
        1 + 4 * noise * fixed_s / LONGEST_S
    )  # rows that take less time than the fixed part varies cannot be told from none
    least = min(0.2, 1 - fixed_s / LONGEST_S) if fixed_s < LONGEST_S else 0.2
    assert min(shares) > max(0.05, least) / unclear
    assert max(shares) < 4 * unclear


def test_fixed_cost_longer_than_the_longest_epoch_does_not_shrink_epochs() -> None:
    read = epochs(lambda rows: 12.0 + rows / 2000, 40, first=4166)
    assert min(read) > 1000
    assert read[-1] == pytest.approx(LONGEST_S * 2000, rel=0.5)


def test_dearer_rows_make_epochs_smaller_within_a_few_epochs() -> None:
    cost = EpochCost()
    for rows, per_row_s in [(10_000, 5e-4)] * 20 + [(10_000, 5e-3)] * 3:
        cost = cost.after(rows, 0.2 + rows * per_row_s)
    assert cost.rows_in(LONGEST_S) == pytest.approx(1000, rel=0.3)


def test_one_slow_epoch_moves_nothing() -> None:
    cost = EpochCost()
    for number in range(12):
        rows = 1000.0 + 500 * (number % 3)
        cost = cost.after(rows, 1.0 + rows / 1000)
    before, after = cost.rows_in(LONGEST_S), cost.after(1500.0, 30.0)
    assert after.rows_in(LONGEST_S) == pytest.approx(before, rel=0.2)


def test_epoch_without_rows_tells_nothing() -> None:
    cost = EpochCost().after(100, 1.0)
    assert cost.after(0, 5.0) is cost
