"""What people changed while the service ran: who, what, when, by which way; in `changes.jsonl` of the home."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate import files

FILE = "changes.jsonl"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a person changed."""

    at_s: float
    who: str
    via: str
    """`dashboard`, or `command line` for whatever shows the token."""
    job: str
    what: str
    """What was done, as the request had it: `pause`, `share 3`."""


class Changes:
    """The last changes, oldest first. Owner: its lock; readers keep the tuple that they took."""

    def __init__(self, home: Path, keep: int) -> None:
        self._path, self._keep = home / FILE, keep
        self._lock = threading.Lock()
        self._kept = tuple(_read(self._path)[-keep:])

    def all(self, job: str | None = None) -> tuple[Change, ...]:
        """All changes, or those of one job."""
        return self._kept if job is None else tuple(change for change in self._kept if change.job == job)

    def add(self, change: Change) -> None:
        """Keep one more; a disk that is full must not undo what was already done."""
        with self._lock:
            self._kept = (*self._kept, change)[-self._keep :]
            with suppress(OSError):
                files.replace(self._path, *map(_line, self._kept))


def _line(change: Change) -> bytes:
    return msgspec.json.encode(change) + b"\n"


def _read(path: Path) -> list[Change]:
    """What can be read; a line that was cut off by a crash is left out."""
    found = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=Change))
    return found
