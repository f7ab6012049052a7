"""What an epoch costs: a fixed part, a part for each row, and so how many rows an epoch of a given length may read.

The two parts come from a line through the recent epochs (Theil-Sen: the median of the slopes of all pairs, which a few odd epochs
do not move). A limit that divided the whole time by the rows would blame the rows for the fixed part: with a fixed part longer
than the wanted epoch, each epoch would read fewer rows than the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

KEPT = 12
"""Epochs that the line is drawn through."""
SPREAD = 1.25
"""The largest of these epochs has at least so many times the rows of the smallest, or there is no line to draw."""
PROBE = 2.0
"""An epoch that is to tell the parts has the rows of the largest divided by this."""
APART = 0.1
"""Two epochs make a slope if their rows differ by this share of the largest epoch."""
NEWEST = 3
"""Epochs that say what rows cost now, where all epochs have about the same number of rows."""
CHANGED = 2.0
"""Two epochs in a row that both take so many times as long as the line says, or as short, begin a new line."""
GROWTH = 2.0
"""An epoch reads at most so many times the rows of the largest recent epoch: how long more rows take is a guess."""
LEAST_S = 0.01
"""No epoch counts as shorter than this."""

Epoch = tuple[float, float]
"""Rows of an epoch, and its seconds."""


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The recent epochs of a job, and the line through them.

    >>> cost = EpochCost().after(1000, 21.0).after(2000, 22.0)
    >>> round(cost.fixed_s), round(cost.row_s, 4)
    (20, 0.001)
    """

    epochs: tuple[Epoch, ...] = ()
    fixed_s: float = 0.0
    """Seconds that an epoch takes without rows."""
    row_s: float = 0.0
    """Seconds for each row."""

    def after(self, rows: float, took_s: float) -> EpochCost:
        """What is known after one more epoch; an epoch without rows tells nothing of rows."""
        if rows <= 0:
            return self
        epochs = (*self.epochs, (rows, max(LEAST_S, took_s)))[-KEPT:]
        if self._has_changed(epochs[-2:]):
            epochs = epochs[-2:]
        return replace(_line(epochs) or self._scaled(epochs), epochs=epochs)

    def rows_in(self, seconds: float) -> float:
        """Rows that take so long, without the fixed part; no fewer than the last epoch read in that time, fixed part included.

        Epochs of one size hide their fixed part. If they are too long, the next epoch is smaller, to tell the parts.
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
        """Whether both epochs are off the line, to the same side."""
        if len(self.epochs) < 2:
            return False
        times = [took_s / max(LEAST_S, self._takes_s(rows)) for rows, took_s in newest]
        return min(times) > CHANGED or max(times) < 1 / CHANGED

    def _scaled(self, epochs: tuple[Epoch, ...]) -> EpochCost:
        """Epochs of one size cannot tell the parts: both have become dearer, or cheaper, by the same factor."""
        if self.fixed_s + self.row_s <= 0:
            return EpochCost(row_s=median(took_s / rows for rows, took_s in epochs))
        factor = median(took_s / max(LEAST_S, self._takes_s(rows)) for rows, took_s in epochs[-NEWEST:])
        return EpochCost(fixed_s=self.fixed_s * factor, row_s=self.row_s * factor)


def _line(epochs: tuple[Epoch, ...]) -> EpochCost | None:
    """The line through these epochs; None if they have about the same number of rows."""
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
