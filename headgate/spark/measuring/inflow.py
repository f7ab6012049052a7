"""Rows that have arrived at the sources of jobs. Sources are asked in parallel: a source that does not answer delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from headgate.core.quantities import show_seconds
from headgate.errors import EngineError
from headgate.log_context import working_for
from headgate.spark.jobs.context import JobContext

ASKED_AT_ONCE = 16
"""Most sources that are asked in parallel."""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """The last answer of a source, and its monotonic time."""

    rows: float
    at_s: float


class Inflow:
    """The count of arrived rows at one source. Owner: its lock; at most one question to a source is under way."""

    def __init__(self, ask: Callable[[], float | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer: SourceAnswer | None = None
        self._asking: Future[None] | None = None

    def ask(self, askers: ThreadPoolExecutor) -> Future[None]:
        """Ask the source, unless it has not answered the previous question."""
        with self._lock:
            if self._asking is None or self._asking.done():
                self._asking = askers.submit(self._update)
            return self._asking

    def under_way(self) -> Future[None] | None:
        """The newest question; None if the source was never asked."""
        with self._lock:
            return self._asking

    def answer(self) -> SourceAnswer | None:
        """The last answer; None if the source never gave one."""
        with self._lock:
            return self._answer

    def _update(self) -> None:
        try:
            rows = self._ask()
        except Exception:  # a user's source may raise anything; without an answer, its arrivals are not known
            rows = None
        if rows is not None:
            with self._lock:
                self._answer = SourceAnswer(rows, time.monotonic())


def ask_all(inflows: Iterable[Inflow], askers: ThreadPoolExecutor, within_s: float) -> None:
    """Ask these sources and wait up to `within_s` seconds for the answers; the next call of `answer` returns later answers."""
    wait([inflow.ask(askers) for inflow in inflows], timeout=within_s)


class Inflows:
    """The arrived rows at all sources of one job. Owner: each source's lock."""

    def __init__(self, context: JobContext, infer: Callable[[str], float | None]) -> None:
        """`infer` returns the arrived rows according to Spark's last report, for sources that do not count arrivals themselves."""
        self._context = context
        self._infer = infer
        self._inferred: set[str] = set()
        """Sources that do not count arrivals themselves."""
        self._closed = False
        self._by_source = {name: Inflow(partial(self._count, name)) for name in context.graph.sources}

    def all(self) -> Iterable[Inflow]:
        return self._by_source.values()

    def ask(self, sources: Iterable[str]) -> dict[str, float]:
        """Ask these sources, and return the last answer of each source that ever gave one."""
        asked = {name: self._by_source[name] for name in sources}
        ask_all(asked.values(), self._context.shared.askers, self._context.settings.ask_s)
        return {name: answer.rows for name, one in asked.items() if (answer := one.answer()) is not None}

    def arrived(self) -> dict[str, float | None]:
        """The last answer of each source; None if a source does not report its rows."""
        return {name: self._arrived(name) for name in self._by_source}

    def close(self) -> None:
        """Ask no source any more, and await the questions under way: a question would create the directory of its source again."""
        self._closed = True
        asking = [one for inflow in self.all() if (one := inflow.under_way()) is not None]
        wait(asking, timeout=self._context.settings.stop_s)

    def _count(self, source: str) -> float | None:
        if self._closed:
            return None
        with working_for(self._context.name):
            rows = self._context.source(source).arrived(self._context.place_of(source))
        if rows is not None:
            return rows
        self._inferred.add(source)
        return self._infer(source)

    def _arrived(self, source: str) -> float | None:
        """Return the last count of a source; raise if a source has counted arrivals itself and no longer answers."""
        answer = self._by_source[source].answer()
        if answer is None:
            return None
        age_s = time.monotonic() - answer.at_s
        if age_s <= self._context.settings.source_stale_s:
            return answer.rows
        if source in self._inferred:
            return None
        raise EngineError(f'source "{source}" has not said for {show_seconds(age_s, 2)} how many rows arrived')
