"""Operators of a topology: their kinds, sources and names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]
Writer = Callable[["DataFrame", int], None]
"""Writes the rows of one epoch, which it is given with its number; called again with the same number after a crash."""

_ONCE = "reads_once"


def once(write: Writer) -> Writer:
    """Promise that a writer goes through all rows exactly once, in one action; others get rows that are kept for them."""
    setattr(write, _ONCE, True)
    return write


def reads_once(write: Writer) -> bool:
    """Whether that was promised."""
    return bool(getattr(write, _ONCE, False))


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of jobs, operators and tenants: they become directories, pools and addresses."""
LONGEST_NAME = 100
"""A file system takes 255 bytes, and what names become has more in it."""
RESERVED = "headgate-"
"""Names of Spark's pools, tables and tags that are Headgate's own begin with it."""


def name_trouble(name: object) -> str:
    """What is wrong with the name of a job, an operator or a tenant; empty if nothing is."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return "use letters, digits, dots, dashes and underscores, no dash, dot or underscore first"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name)} characters, and at most {LONGEST_NAME} are allowed"
    if name.startswith(RESERVED):
        return f'names that begin with "{RESERVED}" are reserved'
    return ""


class Kind(Enum):
    """What an operator does with its rows."""

    SOURCE = "source"
    TRANSFORM = "transform"
    """DataFrames in, a DataFrame out; stays in the JVM."""
    BATCHES = "batches"
    """An iterator of Arrow record batches in, another one out."""
    EVENTS = "events"
    """One row in, any number of rows out."""
    KEYED = "keyed"
    """A processor with state by key, cut into slices."""
    SINK = "sink"


@runtime_checkable
class Source(Protocol):
    """Where rows come from, with what is known of those that have not been read yet.

    `place` is a directory of the source's own that lasts as long as its job. If the offsets of its reader have the form `{"rows": 7}`, the
    rows read since the job first started, a damaged record of progress is rebuilt exactly; otherwise all rows that have arrived then count
    as processed (`headgate.spark.measuring.progress`).
    """

    @property
    def arrival(self) -> str | None:
        """The column that says when a row arrived; None if there is none."""

    @property
    def elastic(self) -> bool:
        """Whether the number of its lanes and its read limit may change while it is read (see `levers`)."""

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        """The streaming DataFrame."""

    def arrived(self, place: Path) -> float | None:
        """Rows that have arrived since the job first started; None if it cannot be known."""


@runtime_checkable
class Lossy(Protocol):
    """A source that counts the rows it had to leave out."""

    def losses(self, place: Path) -> str:
        """What was lost so far, in a sentence; empty if nothing was."""


@dataclass(frozen=True, slots=True)
class Query:
    """Any function that takes a session and returns a streaming DataFrame, as a source."""

    function: Callable[[SparkSession], DataFrame]
    arrival: str | None = None
    elastic: bool = False

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        return self.function(spark)

    def arrived(self, place: Path) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Keyed:
    """How a keyed operator keeps its state."""

    key: tuple[str, ...]
    slices: int | None = None
    """None: from the most cores it may use."""
    version: int = 1
    time: str | None = None
    """The column with the time of each event, which sets off timers; None: there are none."""
    lateness_ms: int = 0
    """Timers wait for events that are late by so much."""
    follows_clock: bool = True
    """While nothing arrives, event time goes on with the clock."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator with what it does."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    function: Any
    schema: str | None = None
    lanes: int | None = None
    """None: as many as its input has, without an exchange in between."""
    max_lanes: int | None = None
    by: tuple[str, ...] = ()
    """Rows with the same values in these columns meet in one lane."""
    weight: float = 1.0
    dead_letter: str | None = None
    """Where rows go that its function raised on; None: they fail the epoch."""
    keyed: Keyed | None = None
