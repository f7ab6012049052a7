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
"""Writes the rows of one epoch, given the number of the epoch; after a crash, Headgate calls the writer again with the same number."""

_ONCE = "reads_once"


def once(write: Writer) -> Writer:
    """Promise that a writer goes through all rows exactly once, in one action; for other writers, Headgate keeps the rows."""
    setattr(write, _ONCE, True)
    return write


def reads_once(write: Writer) -> bool:
    """Whether the writer is marked by `once`."""
    return bool(getattr(write, _ONCE, False))


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Pattern of the names of jobs, operators and tenants, which become directories, pools and addresses."""
LONGEST_NAME = 100
"""Most characters of a name: names of directories contain the name and more, and a file system allows 255 bytes."""
RESERVED = "headgate-"
"""Prefix of the names of Spark's pools, tables and tags that belong to Headgate itself."""


def name_trouble(name: object) -> str:
    """The fault in the name of a job, an operator or a tenant; empty if the name is valid."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return "use letters, digits, dots, dashes and underscores, no dash, dot or underscore first"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name)} characters, and at most {LONGEST_NAME} are allowed"
    if name.startswith(RESERVED):
        return f'names that begin with "{RESERVED}" are reserved'
    return ""


class Kind(Enum):
    """Kind of an operator."""

    SOURCE = "source"
    TRANSFORM = "transform"
    """Turns DataFrames into a DataFrame; stays in the JVM."""
    BATCHES = "batches"
    """Turns an iterator of Arrow record batches into another one."""
    EVENTS = "events"
    """Turns one row into any number of rows."""
    KEYED = "keyed"
    """Processes rows with state by key, cut into slices."""
    SINK = "sink"


@runtime_checkable
class Source(Protocol):
    """A source of rows, which also tells how many rows have arrived.

    `place` is a directory of the source's own that lasts as long as its job. If the offsets of its reader have the form `{"rows": 7}`, the
    rows read since the job first started, a damaged record of progress is rebuilt exactly; otherwise all rows that have arrived then count
    as processed (`headgate.spark.measuring.progress`).
    """

    @property
    def arrival(self) -> str | None:
        """The column with the arrival time of a row; None without such a column."""

    @property
    def elastic(self) -> bool:
        """Whether the number of its lanes and its read limit may change while it is read (see `levers`)."""

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        """The streaming DataFrame."""

    def arrived(self, place: Path) -> float | None:
        """Rows that have arrived since the job first started; None if it cannot be known."""


@runtime_checkable
class Lossy(Protocol):
    """A source that counts the rows that it could not read."""

    def losses(self, place: Path) -> str:
        """A sentence about the rows lost so far; empty without a loss."""


@dataclass(frozen=True, slots=True)
class Query:
    """A source made of any function that takes a session and returns a streaming DataFrame."""

    function: Callable[[SparkSession], DataFrame]
    arrival: str | None = None
    elastic: bool = False

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        return self.function(spark)

    def arrived(self, place: Path) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Keyed:
    """State settings of a keyed operator."""

    key: tuple[str, ...]
    slices: int | None = None
    """Number of slices; None: derived from the most cores that the operator may use."""
    version: int = 1
    time: str | None = None
    """The column with the time of each event, by which timers fall due; None: the operator has no event time."""
    lateness_ms: int = 0
    """Milliseconds that timers wait for late events."""
    follows_clock: bool = True
    """Whether event time follows the clock while no row arrives."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: its kind, its inputs and its function."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    function: Any
    schema: str | None = None
    lanes: int | None = None
    """Number of lanes; None: the lanes of its input, without an exchange in between."""
    max_lanes: int | None = None
    by: tuple[str, ...] = ()
    """Columns by which rows are partitioned: rows with the same values meet in one lane."""
    weight: float = 1.0
    dead_letter: str | None = None
    """Destination of rows on which the function raises an error; None: such a row fails the epoch."""
    keyed: Keyed | None = None
