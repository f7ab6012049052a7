"""What may change about a source while it is read: a small file that the engine writes and the source's reader looks at.

A reader lives in a process of Spark's own; a file is what both can see. The file is replaced as a whole, so that no reader sees half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate import files
from headgate.spark.connections import PATIENCE, Patience

FILE = "levers.json"


@dataclass(frozen=True, slots=True)
class Levers:
    """How the next epoch is read."""

    lanes: int = 1
    read_limit: int | None = None
    """Rows that an epoch reads at most; None: all that have arrived."""
    patience: Patience = PATIENCE
    """How long the source waits for what it reads from."""


def write(place: Path, levers: Levers) -> None:
    """From the next epoch on."""
    files.replace(place / FILE, msgspec.json.encode(levers), durable=False)


def read(place: Path) -> Levers:
    """As written last; the defaults if they never were, or the file is damaged: each start and each change writes it again."""
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=Levers)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return Levers()
