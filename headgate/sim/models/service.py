"""Queueing of an operator: waiting time of rows, share of rows in time, time to recover from a delay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.sim import constants

LEVELS: Mapping[str, float] = {"real-time": 1.0, "near-real-time": 2.0, "relaxed": 5.0}
"""By level, a row is in time if it takes at most this multiple of the expected duration (VISP, section 5.5)."""


@dataclass(slots=True)
class OperatorService:
    """The durations and delays of the rows of one operator."""

    expected_s: float
    """Time that a row takes when there are lanes to spare."""
    occupies_s: float
    """Seconds of `expected_s` in which a row occupies a lane; for the rest, a row is in transit."""
    burst_s: float = 0.0
    """Seconds between two bursts of rows; 0 means that rows arrive evenly."""
    rows: float = 0.0
    in_time: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.0))
    """The number of rows in time, by level."""
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
    """The largest queue, in rows, that such an observation finds."""

    def serve(self, rows: float, backlog: float, lanes: int, busy: float, step_s: float) -> float:
        """Count the rows that were served in a step; return their mean duration in seconds.

        The wait without a backlog is Allen-Cunneen's approximation plus half of the part of a burst that is not yet processed.
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
        """Return the mean duration of a row, the queue now, and the mean number of busy lanes; both means are since the last call."""
        duration_s = self._seconds_since / self._rows_since if self._rows_since > 0 else None
        busy_lanes = self._busy_since / self._time_since if self._time_since > 0 else None
        self._rows_since = self._seconds_since = self._busy_since = self._time_since = 0.0
        seen = self._most_seen * chance / self._seen if chance < self._seen else 0.0
        return duration_s, backlog + seen, busy_lanes


def _share_below(limit_s: float, mean_s: float) -> float:
    """Return the share of rows whose duration is below a limit, without waits."""
    if limit_s <= 0:
        return 0.0
    sigma = constants.DURATION_SPREAD
    return 0.5 * math.erfc(-(math.log(limit_s / mean_s) + sigma * sigma / 2) / (sigma * math.sqrt(2)))


def compliance(services: list[OperatorService], level: str) -> float:
    """Share of all rows that were in time."""
    rows = sum(one.rows for one in services)
    return sum(one.in_time[level] for one in services) / rows if rows > 0 else math.nan
