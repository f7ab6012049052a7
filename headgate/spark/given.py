"""What a job has been given, as one value, and moments by both clocks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.model import JobAllocation


@dataclass(frozen=True, slots=True)
class Given:
    """What a job has: replaced as a whole, and read once per epoch."""

    version: int
    allocation: JobAllocation
    read_limit: int | None
    """What a person or the settings allow; the allocation may say less."""

    @property
    def most_rows(self) -> int | None:
        """Rows that an epoch may read."""
        return self.read_limit if self.allocation.read_limit is None else self.allocation.read_limit

    @property
    def of_sources(self) -> tuple[Mapping[str, int], int | None]:
        """Lanes, and rows that an epoch may read."""
        return self.allocation.lanes, self.most_rows


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by both clocks: arrivals of rows are told in wall time, durations in monotonic time."""

    wall_s: float
    at_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())
