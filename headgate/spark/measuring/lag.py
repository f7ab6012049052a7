"""Rows that wait at sources without a count of arrivals: Spark's own sources, and queries of users.

Spark reports, for each stream of a query, where an epoch ended and where the stream ended when the epoch began. The distance is in
units of the stream, such as offsets of Kafka, seconds, or bytes of files; the rows of earlier epochs say how many rows a unit has.
A stream that reports no end, and is not one of files, leaves the lag unknown.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headgate.spark import jvm
from headgate.spark.measuring.unread import FileStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT = 100
"""Most epochs with remembered processed rows, for comparison with Spark's report of these epochs."""


class Units(Protocol):
    """Distances between offsets of a stream, in units of the stream; None if not known."""

    @property
    def fresh(self) -> bool:
        """Whether the figure is current, instead of from the start of the last epoch."""

    def waiting(self, end: Any, latest: Any) -> float | None:
        """The distance from an offset to the end of the stream, which was at `latest`."""

    def between(self, start: Any, end: Any) -> float | None:
        """The distance between two offsets."""


class OffsetStream:
    """A stream whose offsets are numbers, or numbers by partition."""

    fresh = False

    def waiting(self, end: Any, latest: Any) -> float | None:
        return None if latest is None else distance(end, latest)

    def between(self, start: Any, end: Any) -> float | None:
        return distance(start, end)


def distance(start: Any, end: Any) -> float | None:
    """Return how much larger the numbers of `end` are than those of `start`; None if the offsets are not numbers.

    >>> distance({"orders": {"0": 10, "1": 5}}, {"orders": {"0": 17, "1": 5}})
    7.0
    """
    if isinstance(end, bool) or isinstance(start, bool):
        return None
    if isinstance(end, int | float):
        return max(0.0, float(end) - start) if isinstance(start, int | float) else None
    if not isinstance(end, Mapping) or not isinstance(start, Mapping) or not end:
        return None
    parts = [distance(start.get(name, 0 if not isinstance(part, Mapping) else {}), part) for name, part in end.items()]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def streams_of(frame: DataFrame, checkpoint: Path, first: int) -> tuple[Units, ...]:
    """The streams that a streaming DataFrame reads, in Spark's order; `first` is the number that Spark gives the first of them."""
    leaves = jvm.streaming_leaves(frame)
    return tuple(_stream(leaf, checkpoint / "sources" / str(first + n)) for n, leaf in enumerate(leaves))


def _stream(leaf: Any, log: Path) -> Units:
    options = jvm.file_source_options(leaf)
    return OffsetStream() if options is None else FileStream(options, log)


@dataclass(frozen=True, slots=True)
class Report:
    """Spark's report of the last epoch of a query: for each stream, its start, its end, and the end of the stream when the epoch began."""

    epoch: int
    began_s: float
    """Wall time at which the epoch began."""
    took_s: float
    streams: tuple[tuple[Any, Any, Any], ...]

    @staticmethod
    def of(text: str) -> Report:
        """Read Spark's JSON of a query progress."""
        told = json.loads(text)
        streams = tuple((one["startOffset"], one["endOffset"], one.get("latestOffset")) for one in told["sources"])
        took_s = told.get("durationMs", {}).get("triggerExecution", 0) / 1000
        return Report(told["batchId"], datetime.fromisoformat(told["timestamp"]).timestamp(), took_s, streams)

    def is_old(self, stale_s: float) -> bool:
        """Whether an epoch has been in flight for so long that the report no longer says how much waits."""
        return time.time() - self.began_s > 2 * self.took_s + stale_s


class Lags:
    """The lags of one start of a job. Owner: its lock; the epochs of the job write, other threads read."""

    def __init__(
        self, streams: Mapping[str, tuple[Units, ...]], processed: Mapping[str, float], extra: int = 0
    ) -> None:
        """`processed` are the rows of earlier runs; `extra` streams at the end belong to no source."""
        self._streams = streams
        self._extra = extra
        self._lock = threading.Lock()
        self._processed: dict[int, Mapping[str, float]] = {-1: processed}
        self._began: dict[str, tuple[Any, float]] = {}
        """For each source, the offset and the processed rows from which its rows per unit are counted."""

    def add_epoch(self, epoch: int, processed: Mapping[str, float]) -> None:
        """Note the rows of each source that are processed when this epoch is done."""
        with self._lock:
            self._processed[epoch] = processed
            for old in sorted(self._processed)[:-KEPT]:
                del self._processed[old]

    def arrived(self, source: str, report: Report | None, stale_s: float) -> float | None:
        """Estimate the rows of a source that had arrived when the last epoch began; None if not known, or too long ago."""
        with self._lock:
            if report is None or len(report.streams) != sum(map(len, self._streams.values())) + self._extra:
                return None
            if report.is_old(stale_s) and not all(stream.fresh for stream in self._streams[source]):
                return None
            names = [name for name, streams in self._streams.items() for _ in streams]
            mine = [told for name, told in zip(names, report.streams, strict=False) if name == source]
            return self._rows(source, mine, report)

    def _rows(self, source: str, told: list[tuple[Any, Any, Any]], report: Report) -> float | None:
        units = [
            stream.waiting(end, latest) for stream, (_, end, latest) in zip(self._streams[source], told, strict=True)
        ]
        idle = all(start == end for start, end, _ in told)
        done = self._processed_by(report.epoch - 1 if idle else report.epoch, source)
        if done is None or not units or any(one is None for one in units):
            return None
        waiting = sum(one for one in units if one is not None)
        per_unit = self._rows_per_unit(source, told, done) if len(told) == 1 else None
        if waiting == 0:
            return done
        return done + waiting * per_unit if per_unit else None

    def _processed_by(self, epoch: int, source: str) -> float | None:
        before = [number for number in self._processed if number <= epoch]
        return self._processed[max(before)].get(source, 0.0) if before else None

    def _rows_per_unit(self, source: str, told: list[tuple[Any, Any, Any]], done: float) -> float | None:
        """The rows of this source per unit of its stream, since the first call; None if not known."""
        _, end, _ = told[0]
        began, before = self._began.setdefault(source, (end, done))
        units = self._streams[source][0].between(began, end)
        return (done - before) / units if units and done > before else None
