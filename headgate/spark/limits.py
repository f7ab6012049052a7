"""How many rows of each source an epoch reads, so that epochs stay short; written where the sources' readers look."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from headgate.config import SparkSettings
from headgate.core.epoch_cost import EpochCost
from headgate.spark import levers
from headgate.spark.connections import patience_of
from headgate.spark.levers import Levers

LEAST_ROWS = 10
"""An epoch may always read so many."""
CATCH_UP = 1.2
"""And so many times what arrived since the epoch before: an epoch that is slow for other reasons must not fall behind."""
LONGER = 2.0
"""But never so many that the epoch would take more than this many times the longest time, unless its fixed part alone does: with too
few lanes, each epoch would be longer than the one before, and the lanes that help would come only after it."""


class RowLimits:
    """The levers of a job's sources. Owner: its lock, because epochs and people change them."""

    def __init__(
        self,
        sources: tuple[str, ...],
        place_of: Callable[[str], Path],
        settings: SparkSettings,
        wanted: Callable[[], tuple[Mapping[str, int], int | None]],
    ) -> None:
        """`wanted` says the lanes of the operators, and how many rows an epoch may read at most."""
        self._sources = sources
        self._wanted = wanted
        self._place_of = place_of
        self._settings = settings
        self._patience = patience_of(settings)
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._arrived_before: dict[str, float] = {}
        self._cost = EpochCost()

    def write(self) -> None:
        """From the next epoch on, sources have what is wanted now: asked for under the lock, so that the newest wins."""
        with self._lock:
            lanes, most = self._wanted()
            for name in self._sources:
                rows = self._rows.get(name, self._settings.first_rows)
                read_limit = rows if most is None else min(rows, most)
                levers.write(self._place_of(name), Levers(lanes.get(name, 1), read_limit, self._patience))

    def adjust(self, sent: Mapping[str, int], arrived: Mapping[str, float], took_s: float) -> None:
        """As many rows as are processed in the longest time that the rows of an epoch may take; or as arrive, within limits."""
        rows = sum(sent[name] for name in self._sources)
        with self._lock:
            self._cost = self._cost.after(rows, took_s)
            longest_s = self._settings.longest_epoch_s
            factor = self._cost.rows_in(longest_s) / rows if rows else 0.0
            longer = max(1.0, LONGER - self._cost.fixed_s / longest_s)
            for name in self._sources:
                if sent[name] and name in arrived:
                    since = arrived[name] - self._arrived_before.get(name, 0.0)
                    wanted = min(max(sent[name] * factor, CATCH_UP * since), sent[name] * factor * longer)
                    self._rows[name] = math.ceil(max(LEAST_ROWS, wanted))
                    self._arrived_before[name] = arrived[name]
        self.write()
