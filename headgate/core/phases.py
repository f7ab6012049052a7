"""Spreads the epochs of jobs in time, because epochs that start at the same time delay each other, urgent jobs included."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import pairwise

EVEN_SHARE = 0.5
"""Share of the time between evenly spread starts that each epoch should have to itself: a larger gap is seldom free."""


def fair_gap_s(paces_s: Iterable[float]) -> float:
    """Time that each epoch of jobs with these paces should have to itself; 0 if none of the jobs has a pace.

    >>> fair_gap_s([10.0, 10.0, 5.0])
    1.25
    """
    epochs_per_s = sum(1 / pace_s for pace_s in paces_s if pace_s > 0)
    return EVEN_SHARE / epochs_per_s if epochs_per_s else 0.0


def spread_start_s(due_s: float, slack_s: float, gap_s: float, others_s: Sequence[float]) -> float:
    """When an epoch that is due at `due_s` should start, given the starts of other jobs: at most `slack_s` earlier, and never later.

    The epoch starts at the last moment that is `gap_s` from all other starts, else at the moment furthest from them. The starts
    of jobs with equal paces drift apart in this way until each epoch has its gap.

    >>> spread_start_s(10.0, 1.0, 0.5, [7.0, 13.0])
    10.0
    >>> spread_start_s(10.0, 1.0, 0.5, [10.0, 10.0])
    9.5
    """
    low = due_s - slack_s
    near = sorted(other for other in others_s if low - gap_s < other < due_s + gap_s)
    between = ((first + second) / 2 for first, second in pairwise(near))
    apart = (at for other in near for at in (other - gap_s, other + gap_s))
    candidates = [due_s, low, *(at for at in (*between, *apart) if low < at < due_s)]
    return max(candidates, key=lambda at: (min((gap_s, *(abs(at - other) for other in _neighbours(near, at)))), at))


def _neighbours(ordered: Sequence[float], at: float) -> Sequence[float]:
    """The nearest time up to `at`, and the nearest time after `at`."""
    place = bisect(ordered, at)
    return ordered[max(0, place - 1) : place + 1]
