"""Attempts of an epoch: an attempt with tasks on a silent host is cancelled and repeated on the other hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Set
from typing import TypeVar

from headgate.spark.epochs.carrying import sink_tag

T = TypeVar("T")


class Attempts:
    """Which attempt is in flight, and whether it was cancelled."""

    def __init__(self, sinks: Collection[str], cancel: Callable[[str], object]) -> None:
        self._sinks = sinks
        self._cancel = cancel
        """Cancels the Spark jobs with a tag."""
        self._tag = ""
        """Of the attempt in flight; only the thread of the job's query replaces it."""
        self._cancelled = ""
        """The tag of the last attempt that was cancelled; only the supervisor replaces it."""

    def run(self, attempt: Callable[[int], T], may_go_on: Callable[[], bool]) -> T:
        """Until an attempt ends that was not cancelled, or the job may not go on."""
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
        """Whether the attempt in flight was; one that failed before it had a tag was not."""
        return bool(self._tag) and self._cancelled == self._tag

    def begin(self, tag: str, number: int) -> str:
        """The tag of this attempt, which is in flight from now on."""
        self._tag = f"{tag}-{number}" if number else tag
        return self._tag

    def cancel(self, stuck: Set[str]) -> None:
        """Cancel the attempt in flight if any of its Spark jobs is among the stuck ones."""
        tag = self._tag
        for one in stuck & {sink_tag(tag, sink) for sink in self._sinks} if tag else ():
            self._cancelled = tag
            self._cancel(one)
