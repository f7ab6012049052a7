"""Latency of output rows: exact mean, and percentiles of weighted points.

A `Latency` is a set of weighted points. Merging concatenates them; a percentile sorts them. An engine that has more rows than it wants to
keep reports a few points that stand for many rows each, so nothing here depends on the number of rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Latency:
    """How long output rows took: rows, their summed seconds, and weighted points of the distribution.

    >>> round(Latency.of([0.1, 0.1, 0.4]).mean_s, 3)
    0.2
    """

    rows: float
    total_s: float
    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Latency:
        """One row per value."""
        return cls.weighted((value, 1.0) for value in values_s)

    @classmethod
    def weighted(cls, points: Iterable[tuple[float, float]]) -> Latency:
        """`weight` rows of `value` seconds each."""
        kept = tuple(points)
        return cls(
            rows=sum(weight for _, weight in kept),
            total_s=sum(value * weight for value, weight in kept),
            points=kept,
        )

    @property
    def mean_s(self) -> float:
        """Exact mean."""
        return self.total_s / self.rows

    def percentile_s(self, percentile: float) -> float:
        """The value below which `percentile` % of the rows lie."""
        return self.percentiles_s(percentile)[0]

    def percentiles_s(self, *percentiles: float) -> tuple[float, ...]:
        """Several percentiles at the price of one."""
        ordered = sorted(self.points)
        below = list(accumulate(weight for _, weight in ordered))
        if not below or below[-1] <= 0:
            raise ValueError("a latency without rows has no percentile")
        return tuple(ordered[bisect_left(below, below[-1] * percentile / 100)][0] for percentile in percentiles)


def merge(parts: Iterable[Latency | None]) -> Latency | None:
    """All rows of all parts; None when there are none."""
    rows = total_s = 0.0
    points: tuple[tuple[float, float], ...] = ()
    for part in parts:
        if part is not None:
            rows += part.rows
            total_s += part.total_s
            points += part.points
    return Latency(rows, total_s, points) if rows > 0 else None
