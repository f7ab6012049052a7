"""Read limits: the number of rows of each source that an epoch reads, so that epochs stay short."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headgate.config import SparkSettings
from headgate.core.epoch_cost import EpochCost

LEAST_ROWS = 10
"""Fewest rows of a source that a row limit allows."""
CATCH_UP = 1.2
"""An epoch may read the rows that arrived since the previous epoch times this factor: an epoch that is slow for other reasons must
not fall behind."""
LONGER = 2.0
"""An epoch never reads so many rows that the epoch takes this multiple of `longest_epoch_s`, unless the fixed part of the epoch alone does.
Without this limit, each epoch of a job with too few lanes would take longer than the previous epoch and delay the start of more lanes."""


class RowLimits:
    """The row limits of a job's sources. Owner: the lock of the job's `Grants`."""

    def __init__(self, sources: tuple[str, ...], settings: SparkSettings) -> None:
        self._sources = sources
        self._settings = settings
        self._rows: dict[str, int] = {}
        self._arrived_before: dict[str, float] = {}
        self._cost = EpochCost()

    def rows_of(self, source: str) -> int:
        """Rows of a source that the next epoch may read."""
        return self._rows.get(source, self._settings.first_rows)

    def adjust(self, sent: Mapping[str, int], arrived: Mapping[str, float], took_s: float) -> None:
        """Set the read limits to the rows that take the longest duration of an epoch, or to the rows that arrive, within bounds."""
        rows, longest_s = sum(sent[name] for name in self._sources), self._settings.longest_epoch_s
        self._cost = self._cost.after(rows, took_s)
        factor = self._cost.rows_in(longest_s) / rows if rows else 0.0
        longer = max(1.0, LONGER - self._cost.fixed_s / longest_s)
        for name in self._sources:
            if sent[name] and name in arrived:
                since = arrived[name] - self._arrived_before.get(name, 0.0)
                wanted = min(max(sent[name] * factor, CATCH_UP * since), sent[name] * factor * longer)
                self._rows[name] = math.ceil(max(LEAST_ROWS, wanted))
                self._arrived_before[name] = arrived[name]
