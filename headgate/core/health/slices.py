"""Which lane has which slice: an assignment is a tuple that gives each slice its lane, by number."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.health.outliers import imbalance
from headgate.core.model import spread_evenly

Places = tuple[int, ...]

EVEN_ENOUGH = 1.1
"""Slices spread by number do if the busiest lane has no more than this many times the mean."""


def lane_loads(loads: Sequence[float], places: Places, lanes: int) -> list[float]:
    """What each lane has to do.

    >>> lane_loads((1.0, 2.0, 4.0), (0, 1, 0), 2)
    [5.0, 2.0]
    """
    total = [0.0] * lanes
    for load, lane in zip(loads, places, strict=True):
        total[lane] += load
    return total


def rebalanced(loads: Sequence[float], places: Places, lanes: int) -> Places:
    """The same slices, some of them moved so that the busiest lane has less to do; as few as it takes.

    >>> rebalanced((5.0, 5.0, 1.0, 1.0), (0, 0, 1, 1), 2)
    (1, 0, 0, 1)
    """
    now, total = list(places), lane_loads(loads, places, lanes)
    for _ in range(len(places)):
        busiest = max(range(lanes), key=lambda lane: total[lane])
        calmest = min(range(lanes), key=lambda lane: total[lane])
        if not _move(loads, now, total, busiest, calmest) and not _swap(loads, now, total, busiest, calmest):
            break
    return tuple(now)


def _move(loads: Sequence[float], now: list[int], total: list[float], busiest: int, calmest: int) -> bool:
    """Move the slice that leaves both lanes closest to each other, if that lowers the higher of them."""
    gap = total[busiest] - total[calmest]
    own = [number for number, lane in enumerate(now) if lane == busiest and 0 < loads[number] < gap * (1 - LEAST_GAIN)]
    if not own:
        return False
    chosen = min(own, key=lambda number: (abs(gap / 2 - loads[number]), number))
    _put(loads, now, total, chosen, calmest)
    return True


def _swap(loads: Sequence[float], now: list[int], total: list[float], busiest: int, calmest: int) -> bool:
    """Exchange two slices where moving one is too much."""
    gap = total[busiest] - total[calmest]
    pairs = [
        (abs(gap / 2 - (loads[one] - loads[other])), one, other)
        for one, lane in enumerate(now)
        if lane == busiest
        for other, place in enumerate(now)
        if place == calmest and LEAST_GAIN * gap < loads[one] - loads[other] < gap * (1 - LEAST_GAIN)
    ]
    if not pairs or gap <= LEAST_GAIN * total[busiest]:
        return False
    _, one, other = min(pairs)
    _put(loads, now, total, one, calmest)
    _put(loads, now, total, other, busiest)
    return True


LEAST_GAIN = 0.01
"""An exchange that brings two lanes less than this share closer is not worth it."""


def _put(loads: Sequence[float], now: list[int], total: list[float], number: int, lane: int) -> None:
    total[now[number]] -= loads[number]
    total[lane] += loads[number]
    now[number] = lane


def best_places(loads: Sequence[float], lanes: int) -> Places:
    """Spread by number if that is even enough, else by load."""
    even = spread_evenly(len(loads), lanes)
    if imbalance(lane_loads(loads, even, lanes)) <= EVEN_ENOUGH:
        return even
    return rebalanced(loads, even, lanes)
