"""Which lanes differ from their peers: a test that holds on two lanes and on sixty-four.

Each lane is held against the median of the others, so that one bad lane never hides itself in the mean. It must be off by
more than a share that is always taken for alike, and by more than the others scatter. Two lanes have no scatter to speak of,
there the share alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

NORMAL = 1.4826
"""A median absolute deviation, times this, is a standard deviation where values scatter normally."""


def above(values: Sequence[float], alike: float, cut: float) -> tuple[int, ...]:
    """The positions whose value is too far above the others'.

    >>> above((10, 10, 15, 11), alike=0.2, cut=3.5)
    (2,)
    """
    if len(values) < 2:
        return ()
    return tuple(place for place, value in enumerate(values) if value > _limit(_others(values, place), alike, cut))


def above_counts(counts: Sequence[float], alike: float, cut: float) -> tuple[int, ...]:
    """The same for numbers of rows, whose scatter is the square root of what is expected: few rows differ by chance.

    >>> above_counts((4, 4, 9, 4), alike=0.2, cut=3.5), above_counts((400, 400, 900, 400), alike=0.2, cut=3.5)
    ((), (2,))
    """
    middles = [median(_others(counts, place)) for place in range(len(counts))] if len(counts) > 1 else []
    limits = (middle + max(alike * middle, cut * math.sqrt(max(1.0, middle))) for middle in middles)
    return tuple(place for place, (count, limit) in enumerate(zip(counts, limits, strict=False)) if count > limit)


def ratio(values: Sequence[float], places: Sequence[int]) -> float:
    """How many times larger the values at these places are than the others, each by its mean.

    Where the others have nothing, than an even share; 1 if there is no telling.

    >>> ratio((2, 4, 2), (1,)), ratio((0, 5, 5), (1, 2))
    (2.0, 1.5)
    """
    chosen = [values[place] for place in places]
    others = [value for place, value in enumerate(values) if place not in set(places)]
    if not chosen or not others or sum(values) <= 0:
        return 1.0
    compared = others if sum(others) > 0 else values
    return (sum(chosen) / len(chosen)) / (sum(compared) / len(compared))


def _others(values: Sequence[float], place: int) -> list[float]:
    return [value for other, value in enumerate(values) if other != place]


def _limit(others: list[float], alike: float, cut: float) -> float:
    middle = median(others)
    scatter = NORMAL * median(abs(value - middle) for value in others)
    return middle + max(alike * middle, cut * scatter)
