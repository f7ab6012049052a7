"""Cost model of an epoch: a fixed cost, a cost per row, and the number of rows that fit into an epoch of a given duration.

A Theil-Sen fit (median slope over all pairs) through the recent epochs yields both costs; a few outliers do not move the fit.
Dividing the whole duration by the rows would charge the fixed cost to the rows: with a fixed cost above the target duration,
every epoch would read fewer rows than the previous epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

KEPT = 12
"""Number of recent epochs in the fit."""
SPREAD = 1.25
"""Smallest ratio of rows, largest to smallest epoch, at which a line is fitted."""
PROBE = 2.0
"""A probe epoch, read to separate fixed and per-row cost, has the rows of the largest epoch divided by `PROBE`."""
APART = 0.1
"""Smallest difference in rows between two epochs that yield a slope, as a share of the largest epoch."""
NEWEST = 3
"""Number of newest epochs that yield the current cost when all epochs have about the same number of rows."""
CHANGED = 2.0
"""Factor by which two consecutive epochs must both be slower, or both faster, than predicted before the fit restarts."""
GROWTH = 2.0
"""Most rows of the next epoch, as a multiple of the largest recent epoch: beyond that, the fit is an extrapolation."""
LEAST_S = 0.01
"""Shortest epoch duration, in seconds, that the fit uses."""

Epoch = tuple[float, float]
"""Rows and duration in seconds of one epoch."""


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The recent epochs of a job and the cost line fitted through them.

    >>> cost = EpochCost().after(1000, 21.0).after(2000, 22.0)
    >>> round(cost.fixed_s), round(cost.row_s, 4)
    (20, 0.001)
    """

    epochs: tuple[Epoch, ...] = ()
    fixed_s: float = 0.0
    """Fixed cost of an epoch, in seconds."""
    row_s: float = 0.0
    """Cost of one row, in seconds."""

    def after(self, rows: float, took_s: float) -> EpochCost:
        """The cost model after one more epoch; an epoch without rows changes nothing."""
        if rows <= 0:
            return self
        epochs = (*self.epochs, (rows, max(LEAST_S, took_s)))[-KEPT:]
        if self._has_changed(epochs[-2:]):
            epochs = epochs[-2:]
        return replace(_line(epochs) or self._scaled(epochs), epochs=epochs)

    def rows_in(self, seconds: float) -> float:
        """Rows whose per-row cost adds up to `seconds`, and at least the rows that the last epoch read in that time.

        Epochs of equal size hide the fixed cost. If such epochs take too long, the next epoch is a smaller probe epoch.
        """
        rows, took_s = self.epochs[-1]
        least, largest = rows * seconds / took_s, max(rows for rows, _ in self.epochs)
        most = max(least, GROWTH * largest)
        wanted = most if self.row_s <= 0 else min(most, max(least, seconds / self.row_s))
        if _differ(self.epochs) or (wanted >= rows and took_s <= CHANGED * seconds):
            return wanted
        return min(wanted, largest / PROBE)

    def _takes_s(self, rows: float) -> float:
        return self.fixed_s + self.row_s * rows

    def _has_changed(self, newest: tuple[Epoch, ...]) -> bool:
        """Whether both epochs deviate from the line in the same direction."""
        if len(self.epochs) < 2:
            return False
        times = [took_s / max(LEAST_S, self._takes_s(rows)) for rows, took_s in newest]
        return min(times) > CHANGED or max(times) < 1 / CHANGED

    def _scaled(self, epochs: tuple[Epoch, ...]) -> EpochCost:
        """Scale both costs by one factor: epochs of equal size cannot separate fixed from per-row cost."""
        if self.fixed_s + self.row_s <= 0:
            return EpochCost(row_s=median(took_s / rows for rows, took_s in epochs))
        factor = median(took_s / max(LEAST_S, self._takes_s(rows)) for rows, took_s in epochs[-NEWEST:])
        return EpochCost(fixed_s=self.fixed_s * factor, row_s=self.row_s * factor)


def _line(epochs: tuple[Epoch, ...]) -> EpochCost | None:
    """The cost line fitted through these epochs; None if all epochs have about the same number of rows."""
    if not _differ(epochs):
        return None
    apart = APART * max(rows for rows, _ in epochs)
    pairs = ((one, other) for one, other in combinations(epochs, 2) if abs(one[0] - other[0]) >= apart)
    row_s = max(0.0, median((other[1] - one[1]) / (other[0] - one[0]) for one, other in pairs))
    fixed_s = median(took_s - row_s * rows for rows, took_s in epochs)
    if fixed_s < 0:
        return EpochCost(row_s=median(took_s / rows for rows, took_s in epochs))
    return EpochCost(fixed_s=fixed_s, row_s=row_s)


def _differ(epochs: tuple[Epoch, ...]) -> bool:
    """Whether these epochs have different numbers of rows."""
    sizes = [rows for rows, _ in epochs]
    return max(sizes) >= SPREAD * min(sizes)
