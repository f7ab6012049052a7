"""The writer of a sink: the life of a job, and the number of its start.

A life lasts from the first start of a job until it is removed, over any number of restarts; a job of the same name that is submitted
later has another life. A sink that notes written epochs by life neither takes the first epochs of a new job for epochs of an old
job, nor writes an epoch twice. Each start of a job has a higher number than the previous start: a sink refuses an older start that
still runs in a process or thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from headgate.errors import EngineError
from headgate.spark.connections.patience import PATIENCE, Patience
from headgate.state.durable import LIFE
from headgate.state.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
"""Spark's property with the id of an epoch's query; the id stays the same after a restart, and changes with a new checkpoint."""


@dataclass(frozen=True, slots=True)
class JobStart:
    """One start of a job in its life."""

    life: str = ""
    number: int = 0


def begin_start(place: str | Path) -> JobStart:
    """Begin the next start of the job that keeps its files here; its number is durable before the sink writes anything."""
    location = Location.of(place)
    before = _last_start(location)
    start = JobStart(before.life or uuid.uuid4().hex, before.number + 1)
    location.write(LIFE, msgspec.json.encode(start))
    return start


def _last_start(location: Location) -> JobStart:
    if not location.exists(LIFE):
        return JobStart()
    try:
        return msgspec.json.decode(memoryview(location.read(LIFE)), type=JobStart)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineError(
            f'"{location.base}/{LIFE}" is damaged ({error}), and sinks cannot tell this job from an earlier one;'
            " remove the job and submit it again"
        ) from None


@dataclass(frozen=True, slots=True)
class Writing:
    """The writer of rows as sinks of Headgate see it: start, time limits and operator."""

    start: JobStart = JobStart()
    patience: Patience = PATIENCE
    sink: str = ""
    """Name of the sink's operator."""

    @contextmanager
    def by(self, sink: str) -> Iterator[None]:
        """Let sinks that are called in this block write on behalf of this operator."""
        before = _current.set(replace(self, sink=sink))
        try:
            yield
        finally:
            _current.reset(before)

    def too_late(self, where: str) -> str:
        """The error of an older start."""
        return (
            f"{where} is written by a newer start of this job than number {self.start.number}; this one writes no more"
        )


@runtime_checkable
class CountsRows(Protocol):
    """A sink that finds out whether all rows of an epoch have arrived where readers find them."""

    def check_rows(self, writing: Writing, epoch: int, wanted: int) -> None:
        """Refuse an epoch with fewer rows than were sent."""


_current: ContextVar[Writing | None] = ContextVar("writing", default=None)


def writing_of(rows: DataFrame) -> Writing:
    """The writer of these rows: a start of a job or, outside of a job, their streaming query."""
    current = _current.get()
    if current is not None:
        return current
    return Writing(JobStart(rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""))
