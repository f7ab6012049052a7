"""Latency of output rows: exact mean, and percentiles of weighted points.

Merging two `Latency` values concatenates their points; a percentile sorts the points. An engine with many rows reports a few weighted
points, so the cost of a percentile does not depend on the number of rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of output rows: number of rows, summed seconds, and weighted points of the distribution.

    >>> round(Latency.of([0.1, 0.1, 0.4]).mean_s, 3)
    0.2
    """

    rows: float
    total_s: float
    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Latency:
        """The latency of one row per value."""
        return cls.weighted((value, 1.0) for value in values_s)

    @classmethod
    def weighted(cls, points: Iterable[tuple[float, float]]) -> Latency:
        """The latency of `weight` rows of `value` seconds for each point (value, weight)."""
        kept = tuple(points)
        return cls(
            rows=sum(weight for _, weight in kept),
            total_s=sum(value * weight for value, weight in kept),
            points=kept,
        )

    @property
    def mean_s(self) -> float:
        """Exact mean latency in seconds."""
        return self.total_s / self.rows

    def percentile_s(self, percentile: float) -> float:
        """Latency in seconds that `percentile` % of the rows do not exceed."""
        return self.percentiles_s(percentile)[0]

    def percentiles_s(self, *percentiles: float) -> tuple[float, ...]:
        """Several percentiles in seconds, with one sort of the points."""
        ordered = sorted(self.points)
        below = list(accumulate(weight for _, weight in ordered))
        if not below or below[-1] <= 0:
            raise ValueError("a latency without rows has no percentile")
        return tuple(ordered[bisect_left(below, below[-1] * percentile / 100)][0] for percentile in percentiles)


def merge(parts: Iterable[Latency | None]) -> Latency | None:
    """The latency of all rows of all parts; None if no part has rows."""
    rows = total_s = 0.0
    points: tuple[tuple[float, float], ...] = ()
    for part in parts:
        if part is not None:
            rows += part.rows
            total_s += part.total_s
            points += part.points
    return Latency(rows, total_s, points) if rows > 0 else None
