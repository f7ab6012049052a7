"""Deletes dead letters after their retention time, including the dead letters of removed jobs.

A file of the home directory lists the dead-letter directories of all jobs. A directory stays on the list until no job uses the
directory and no dead letter is left in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headgate import files

if TYPE_CHECKING:
    from headgate.topology import Topology

FILE = "dead_letters.json"
LETTERS = "epoch=*/*-*.jsonl"
HOUR_S = 3600.0


class DeadLetters:
    """The directories with dead letters: requests add them, the loop cleans them. Owner: its lock."""

    def __init__(self, home: Path, keep_h: float) -> None:
        self._path = home / FILE
        self._keep_s = keep_h * HOUR_S
        self._lock = threading.Lock()
        """Held while the list is read and written; never while letters are deleted."""
        self._in_use: set[str] = set()

    def add(self, topology: Topology) -> None:
        """Put the dead-letter directories of a job on the list."""
        given = {node.dead_letter for node in topology.nodes.values() if node.dead_letter is not None}
        with self._lock:
            self._in_use |= {str(Path(one).absolute()) for one in given}
            listed = self._listed()
            if not self._in_use <= listed:
                self._remember(listed | self._in_use)

    def clean(self, now_s: float) -> None:
        """Delete letters that are too old, and forget directories that are empty and unused since the service started."""
        with self._lock:
            listed = self._listed()
        empty = {folder for folder in listed if not _cleaned(Path(folder), now_s - self._keep_s)}
        with self._lock:
            listed = self._listed()
            left = listed - (empty - self._in_use)
            if left != listed:
                self._remember(left)

    def _listed(self) -> set[str]:
        try:
            return set(msgspec.json.decode(self._path.read_bytes(), type=list[str]))
        except FileNotFoundError:
            return set()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return set()  # starting jobs add their directories again

    def _remember(self, folders: Iterable[str]) -> None:
        files.replace(self._path, msgspec.json.encode(sorted(folders)))


def _cleaned(folder: Path, before_s: float) -> bool:
    """Delete the letters older than `before_s`; returns whether letters are left."""
    letters = list(folder.glob(LETTERS))
    for path in _older(letters, before_s):
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the epoch has other letters
            path.parent.rmdir()
    return any(path.exists() for path in letters)


def _older(paths: Iterable[Path], before_s: float) -> Iterator[Path]:
    for path in paths:
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before_s:
                yield path
