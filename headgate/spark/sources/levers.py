"""Levers of a source: a small file that the engine writes and the reader of the source checks while it reads.

A reader lives in a process of Spark's own; a file is what both can see. The file is replaced as a whole, so that no reader sees half of it.
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
    """How the next epoch is read."""

    lanes: int = 1
    read_limit: int | None = None
    """Rows that an epoch reads at most; None: all that have arrived."""
    patience: Patience = PATIENCE
    """How long the source waits for what it reads from."""
    wait_s: float = 0.0
    """How long the source waits for rows before it says that there are none: Spark asks it less often then, and hears of rows at once."""


def write(place: Path, levers: Levers) -> None:
    """From the next epoch on."""
    files.replace(place / FILE, msgspec.json.encode(levers), durable=False)


def read(place: Path) -> Levers:
    """As written last; the defaults if they never were, or the file is damaged: each start and each change writes it again."""
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=Levers)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return Levers()
