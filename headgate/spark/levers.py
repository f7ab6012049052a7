"""What may change about a source while it is read: a small file that the engine writes and the source's reader looks at.

A reader lives in a process of Spark's own; a file is what both can see. It is replaced as a whole, so nobody reads half of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

FILE = "levers.json"


@dataclass(frozen=True, slots=True)
class Levers:
    """How the next epoch is read."""

    lanes: int = 1
    read_limit: int | None = None
    """Rows that an epoch reads at most; None: all that have arrived."""


def write(place: Path, levers: Levers) -> None:
    """From the next epoch on."""
    replace(place / FILE, msgspec.json.encode(levers))


def read(place: Path) -> Levers:
    """As written last; the defaults if they never were."""
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=Levers)
    except FileNotFoundError:
        return Levers()


def replace(path: Path, content: bytes) -> None:
    """Write a file so that others see the old one or the new one, never part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)
