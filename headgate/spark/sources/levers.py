"""Levers of a source: a small file that the engine writes, and that the reader of the source checks while it reads.

A reader runs in a process of Spark, which shares a file with the engine. The file is replaced as a whole: a reader never sees half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate import files
from headgate.spark.connections.patience import PATIENCE, Patience

FILE = "levers.json"


@dataclass(frozen=True, slots=True)
class Levers:
    """The settings of the next read."""

    lanes: int = 1
    read_limit: int | None = None
    """Rows that an epoch reads at most; None: all that have arrived."""
    patience: Patience = PATIENCE
    """Time limits of the source's calls to its outside system."""
    wait_s: float = 0.0
    """Time in seconds that the source waits for rows before it reports none: Spark then asks less often, and learns of rows at once."""


def write(place: Path, levers: Levers) -> None:
    """Write the levers, which take effect with the next epoch."""
    files.replace(place / FILE, msgspec.json.encode(levers), durable=False)


def read(place: Path) -> Levers:
    """Read the levers; the defaults if the file is missing or damaged, because each start and each change writes it again."""
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=Levers)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return Levers()
