"""Queueing of an operator: waiting time of rows, share of rows in time, time to recover from a delay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.sim import constants

LEVELS: Mapping[str, float] = {"real-time": 1.0, "near-real-time": 2.0, "relaxed": 5.0}
"""A row is in time if it takes at most so many times the expected duration (VISP, section 5.5)."""


@dataclass(slots=True)
class OperatorService:
    """What became of the rows of one operator."""

    expected_s: float
    """Time that a row takes when there are lanes to spare."""
    occupies_s: float
    """Part of it in which it occupies a lane; the rest it spends on its way."""
    burst_s: float = 0.0
    """Rows come all at once, every so often; 0: evenly."""
    rows: float = 0.0
    in_time: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.0))
    """Rows within each level."""
    delays_s: list[float] = field(default_factory=list)
    """How long each delay took until rows no longer waited."""
    _delayed_s: float = 0.0
    _rows_since: float = 0.0
    _seconds_since: float = 0.0
    _busy_since: float = 0.0
    _time_since: float = 0.0
    _seen: float = 0.0
    """Probability that an observation finds rows waiting, although no backlog builds up."""
    _most_seen: float = 0.0
    """Rows that he sees then at most."""

    def serve(self, rows: float, backlog: float, lanes: int, busy: float, step_s: float) -> float:
        """Rows that were served in a step; returns how long they took, on average.

        Waiting without a backlog is Allen-Cunneen's approximation, and half of what is left of a burst.
        """
        self._busy_since += busy * lanes * step_s
        self._time_since += step_s
        busy, servers = min(busy, constants.MOST_BUSY), max(lanes, 1)
        rate_rows_s = rows / step_s
        crowd_s = self.occupies_s * busy ** (math.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - busy))
        self._seen, self._most_seen = busy, rate_rows_s * (2 * crowd_s + self.burst_s)
        wait_s = crowd_s + max(0.0, busy - constants.LANES_TO_SPARE) * self.burst_s / 2
        wait_s += backlog / rate_rows_s if rows > 0 else 0.0
        self._count(rows, wait_s)
        stuck = rows <= 0 and backlog > 0
        self._note_delay(stuck or (rows > 0 and wait_s > constants.DELAYED * self.expected_s), step_s)
        return float(wait_s + self.expected_s)

    def _count(self, rows: float, wait_s: float) -> None:
        self.rows += rows
        for name, times in LEVELS.items():
            self.in_time[name] += rows * _share_below(times * self.expected_s - wait_s, self.expected_s)
        self._rows_since += rows
        self._seconds_since += rows * (wait_s + self.expected_s)

    def _note_delay(self, delayed: bool, step_s: float) -> None:
        if delayed:
            self._delayed_s += step_s
        elif self._delayed_s > 0:
            self.delays_s.append(self._delayed_s)
            self._delayed_s = 0.0

    def sampled(self, backlog: float, chance: float) -> tuple[float | None, float, float | None]:
        """Since the last time: mean duration of a row, None if none came through; the queue at this moment; lanes that were busy."""
        duration_s = self._seconds_since / self._rows_since if self._rows_since > 0 else None
        busy_lanes = self._busy_since / self._time_since if self._time_since > 0 else None
        self._rows_since = self._seconds_since = self._busy_since = self._time_since = 0.0
        seen = self._most_seen * chance / self._seen if chance < self._seen else 0.0
        return duration_s, backlog + seen, busy_lanes


def _share_below(limit_s: float, mean_s: float) -> float:
    """Share of rows that take less than this, without waiting."""
    if limit_s <= 0:
        return 0.0
    sigma = constants.DURATION_SPREAD
    return 0.5 * math.erfc(-(math.log(limit_s / mean_s) + sigma * sigma / 2) / (sigma * math.sqrt(2)))


def compliance(services: list[OperatorService], level: str) -> float:
    """Share of all rows that were in time."""
    rows = sum(one.rows for one in services)
    return sum(one.in_time[level] for one in services) / rows if rows > 0 else math.nan
