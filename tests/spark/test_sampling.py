"""Which epochs are looked at for arrival times; no Spark is needed for it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headgate.spark.epochs.plan import Observing
from headgate.spark.measuring.metering import MANY_ROWS, OBSERVED_EVERY
from headgate.spark.measuring.sampling import ALIKE, Sampling

MANY = 10 * MANY_ROWS


def choices(*epochs: tuple[int, float]) -> list[Observing]:
    """What is chosen for the epoch after each of these, given by their rows and seconds."""
    sampling = Sampling()
    found = []
    for rows, took_s in epochs:
        sampling.note_epoch(rows, took_s)
        found.append(sampling.observing())
    return found


def test_epochs_of_few_rows_are_all_looked_at() -> None:
    assert choices(*[(MANY_ROWS, 1.0)] * 3) == [Observing.ALL] * 3


def test_of_many_alike_epochs_one_in_so_many_is_sampled() -> None:
    found = choices(*[(MANY, 1.0)] * (2 * OBSERVED_EVERY))
    sampled = [number for number, choice in enumerate(found) if choice is Observing.SAMPLE]
    assert {later - earlier for earlier, later in pairwise(sampled)} <= {1, OBSERVED_EVERY}
    assert found.count(Observing.NONE) >= 2 * OBSERVED_EVERY - 4


@pytest.mark.parametrize("other", [(round(MANY * ALIKE * 1.1), 1.0), (MANY, ALIKE * 1.1), (MANY, 0.9 / ALIKE)])
def test_epoch_unlike_the_one_before_has_the_next_one_sampled(other: tuple[int, float]) -> None:
    assert choices(*[(MANY, 1.0)] * 4)[-1] is Observing.NONE
    assert choices(*[(MANY, 1.0)] * 4, other)[-1] is Observing.SAMPLE
