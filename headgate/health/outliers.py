"""Outlier test for lanes that works for two lanes as well as for sixty-four.

The test compares each lane with the median of the other lanes, so that one bad lane cannot hide in the mean. An outlier deviates by more
than the share `alike` and by more than the scatter of the other lanes. Two lanes have no scatter, so the share alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

NORMAL = 1.4826
"""Factor from median absolute deviation to standard deviation, for normally distributed values."""


def above(values: Sequence[float], alike: float, cut: float) -> tuple[int, ...]:
    """The positions of outliers above the other values.

    >>> above((10, 10, 15, 11), alike=0.2, cut=3.5)
    (2,)
    """
    if len(values) < 2:
        return ()
    return tuple(place for place, value in enumerate(values) if value > _limit(_others(values, place), alike, cut))


def above_counts(counts: Sequence[float], alike: float, cut: float) -> tuple[int, ...]:
    """The positions of outliers among row counts, whose scatter is the square root of the expected count.

    >>> above_counts((4, 4, 9, 4), alike=0.2, cut=3.5), above_counts((400, 400, 900, 400), alike=0.2, cut=3.5)
    ((), (2,))
    """
    middles = [median(_others(counts, place)) for place in range(len(counts))] if len(counts) > 1 else []
    limits = (middle + max(alike * middle, cut * math.sqrt(max(1.0, middle))) for middle in middles)
    return tuple(place for place, (count, limit) in enumerate(zip(counts, limits, strict=False)) if count > limit)


def ratio(values: Sequence[float], places: Sequence[int]) -> float:
    """Mean of the values at these places, divided by the mean of the other values.

    If the other values are all 0, the divisor is the mean of all values; the ratio is 1 if undefined.

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
