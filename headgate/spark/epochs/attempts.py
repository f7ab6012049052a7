"""Attempts of an epoch: an attempt with tasks on a silent host is cancelled and repeated on the other hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Set
from typing import TypeVar

from headgate.spark.epochs.carrying import sink_tag

T = TypeVar("T")


class Attempts:
    """Tracks which attempt is in flight, and whether the attempt was cancelled."""

    def __init__(self, sinks: Collection[str], cancel: Callable[[str], object]) -> None:
        self._sinks = sinks
        self._cancel = cancel
        """Cancels the Spark jobs with a tag."""
        self._tag = ""
        """Tag of the attempt in flight, empty without one; only the thread of the job's query replaces the tag."""
        self._cancelled = ""
        """The tag of the last attempt that was cancelled; only the supervisor replaces it."""

    def run(self, attempt: Callable[[int], T], may_go_on: Callable[[], bool]) -> T:
        """Run an attempt, and run the next one if the attempt was cancelled and the job may go on."""
        for number in itertools.count():
            try:
                return attempt(number)
            except Exception:
                if not self._was_cancelled() or not may_go_on():
                    raise
            finally:
                self._tag = ""
        raise AssertionError  # the count has no end

    def _was_cancelled(self) -> bool:
        """Whether the attempt in flight was cancelled; False for an attempt that failed before it had a tag."""
        return bool(self._tag) and self._cancelled == self._tag

    def begin(self, tag: str, number: int) -> str:
        """Begin the attempt with this number; return the tag of the attempt."""
        self._tag = f"{tag}-{number}" if number else tag
        return self._tag

    def cancel(self, stuck: Set[str]) -> None:
        """Cancel the attempt in flight if any of its Spark jobs is among the stuck ones."""
        tag = self._tag
        for one in stuck & {sink_tag(tag, sink) for sink in self._sinks} if tag else ():
            self._cancelled = tag
            self._cancel(one)
