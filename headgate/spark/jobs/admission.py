"""Which jobs may start now: as many at a time as the machine can take, the most valuable first."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from headgate.config import SparkSettings
from headgate.errors import NoRoomError

MB = 2**20


def free_memory_mb() -> float:
    """The memory of this machine, in megabytes, that new processes can use."""
    return float(psutil.virtual_memory().available / MB)


def starts_at_once(settings: SparkSettings, last_took_s: float) -> int:
    """The number of starts that run in parallel: one if the last start was slow, because Spark gives up on starts that are too slow.

    >>> settings = SparkSettings(starts_at_once=2, slow_start_s=4.0)
    >>> starts_at_once(settings, 1.0), starts_at_once(settings, 5.0)
    (2, 1)
    """
    return 1 if last_took_s > settings.slow_start_s else settings.starts_at_once


class Admission:
    """Decides when each job may start. Any thread may wait for its turn."""

    def __init__(self, settings: SparkSettings, free_mb: Callable[[], float] = free_memory_mb) -> None:
        self._settings, self._free_mb = settings, free_mb
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        """Owner of `_waiting` and `_starting`."""
        self._waiting: list[tuple[float, int]] = []
        """A heap of the waiting starts: the greatest worth first, and within a worth the earliest."""
        self._starting = 0
        self._last_took_s = 0.0

    @contextmanager
    def turn(self, worth: float) -> Iterator[None]:
        """Wait until a job of this worth may start, and hold its place during the start; raise if memory is short."""
        self._wait((-worth, next(self._numbers)))
        try:
            self._check_memory()
            begun_s = time.monotonic()
            yield
            with self._changed:  # the time of a start that failed says nothing about the machine
                self._last_took_s = time.monotonic() - begun_s
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    def _wait(self, place: tuple[float, int]) -> None:
        with self._changed:
            heapq.heappush(self._waiting, place)
            self._changed.wait_for(lambda: self._is_next(place))
            heapq.heappop(self._waiting)
            self._starting += 1
            self._changed.notify_all()

    def _is_next(self, place: tuple[float, int]) -> bool:
        return self._waiting[0] == place and self._starting < starts_at_once(self._settings, self._last_took_s)

    def _check_memory(self) -> None:
        least, free = self._settings.start_free_mb, self._free_mb()
        if free < least:
            raise NoRoomError(
                f"{free:,.0f} MB of memory are free, and a job starts only with {least:,.0f} MB (start_free_mb)"
            )
