"""The grant of a job: lanes, pace, share and rows per epoch. Each change is passed to the levers of the job's sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headgate import clock
from headgate.core.model import JobAllocation
from headgate.spark.connections.patience import patience_of
from headgate.spark.epochs.limits import RowLimits
from headgate.spark.jobs.context import JobContext
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers


@dataclass(frozen=True, slots=True)
class Grant:
    """Everything that a job has at one moment; an epoch reads the grant once."""

    version: int
    """Rises with each new allocation and with each start; counts of different versions are never added up."""
    allocation: JobAllocation
    read_limit: int | None
    """Rows per epoch that a person or the settings allow; the allocation may allow fewer."""
    declared_share: int = 1
    """Share that a person gave the job; the allocation may hold a raised share."""

    @property
    def share(self) -> int:
        """Weight of the job when slots are short."""
        return self.declared_share if self.allocation.share is None else self.allocation.share

    @property
    def most_rows(self) -> int | None:
        """Rows that an epoch may read; None: all that have arrived."""
        return self.read_limit if self.allocation.read_limit is None else self.allocation.read_limit


class Grants:
    """The grant of one job. Owner: its lock; any thread may read `current`, which is replaced as a whole."""

    def __init__(self, context: JobContext, allocation: JobAllocation) -> None:
        settings = context.settings
        self.current = Grant(round(clock.now_s() * 1000), allocation, settings.read_limit, context.topology.share)
        self._context = context
        self._patience = patience_of(settings)
        alone = len(context.graph.sources) == 1 and not context.topology.has_timers
        self._wait_s = settings.wait_s if alone else 0.0
        """Seconds that the source may wait for rows: 0 for jobs with timers, and for several sources, which Spark asks in turn."""
        self._limits = RowLimits(context.graph.sources, settings)
        self._lock = threading.Lock()

    def renew(self) -> Grant:
        """Give the grant a new version at a start of the job, so that the counters of the start begin at zero."""
        return self._change(lambda now: replace(now, version=now.version + 1))

    def set_allocation(self, allocation: JobAllocation) -> None:
        self._change(lambda now: replace(now, version=now.version + 1, allocation=allocation))

    def set_read_limit(self, rows: int | None) -> None:
        """Set the limit of a person, in rows per epoch, which replaces the limit of the allocation."""
        self._change(lambda now: replace(now, read_limit=rows, allocation=replace(now.allocation, read_limit=None)))

    def set_share(self, share: int) -> None:
        """Set the share of a person, which replaces the share of the allocation."""
        self._change(lambda now: replace(now, declared_share=share, allocation=replace(now.allocation, share=None)))

    def adjust_rows(self, sent: Mapping[str, int], arrived: Mapping[str, float], took_s: float) -> None:
        """Adjust the rows per epoch after an epoch that sent these rows and took `took_s` seconds."""
        with self._lock:
            self._limits.adjust(sent, arrived, took_s)
            self._write_levers()

    def _change(self, change: Callable[[Grant], Grant]) -> Grant:
        with self._lock:
            self.current = change(self.current)
            self._write_levers()
            return self.current

    def _write_levers(self) -> None:
        """Write the levers of all sources. The caller holds the lock, so that the newest grant is written last."""
        lanes, most = self.current.allocation.lanes, self.current.most_rows
        for name in self._context.graph.sources:
            rows = self._limits.rows_of(name)
            limit = rows if most is None else min(rows, most)
            levers.write(self._context.place_of(name), Levers(lanes.get(name, 1), limit, self._patience, self._wait_s))
