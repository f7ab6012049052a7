"""How many rows have arrived at the sources of jobs, asked for side by side: a source that does not answer delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

ASKED_AT_ONCE = 16
"""Sources that are asked side by side."""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """The last answer of a source, and when it came, in monotonic time."""

    rows: float
    at_s: float


class Inflow:
    """The arrivals of one source. Owner: its lock; at most one question to a source is under way."""

    def __init__(self, ask: Callable[[], float | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._told: SourceAnswer | None = None
        self._asking: Future[None] | None = None

    def ask(self, askers: ThreadPoolExecutor) -> Future[None]:
        """Ask the source, unless the last question is still without an answer."""
        with self._lock:
            if self._asking is None or self._asking.done():
                self._asking = askers.submit(self._note)
            return self._asking

    def told(self) -> SourceAnswer | None:
        """The last answer; None if the source never gave one."""
        with self._lock:
            return self._told

    def _note(self) -> None:
        try:
            rows = self._ask()
        except Exception:  # a source of the user's may raise anything: what it does not tell is not known
            rows = None
        if rows is not None:
            with self._lock:
                self._told = SourceAnswer(rows, time.monotonic())


def ask_all(inflows: Iterable[Inflow], askers: ThreadPoolExecutor, within_s: float) -> None:
    """Ask all of these sources, and wait so long for their answers; what comes later is there the next time."""
    wait([inflow.ask(askers) for inflow in inflows], timeout=within_s)
