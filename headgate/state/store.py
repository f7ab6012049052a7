"""The port that every slice store fulfils, what it notes about a slice, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from headgate.errors import StateBusyError, StateError, StateFullError
from headgate.state.delta import Delta, Keys


@dataclass(frozen=True, slots=True)
class Header:
    """What a copy of a slice says about itself."""

    version: int
    """The epoch whose changes it has."""
    identity: str
    """Which operator's state it is, and in which schema: a copy from another life is no copy."""
    delta: str = ""
    """Name of the delta that made this version, so that it can be undone, or judged."""
    base: str = ""
    """The same for the version before."""
    boot: str = ""
    """The start of the machine on which it was written: nothing forces its pages to disk, so another start voids it."""
    whole: bool = True
    """False while changes are being applied."""

    def next(self, version: int, delta: str) -> Header:
        """The header after an epoch's changes."""
        return Header(version, self.identity, delta, self.delta, boot_id())

    def back(self) -> Header:
        """The header after the last changes were undone."""
        return replace(self, version=self.version - 1, delta=self.base, base="", whole=True)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decoded(data: bytes) -> Header | None:
        """None if it makes no sense."""
        try:
            return msgspec.json.decode(data, type=Header)
        except (msgspec.MsgspecError, ValueError):  # ValueError: text that is not UTF-8
            return None


class SliceStore(Protocol):
    """Copies of slices on this host's disk, active ones and backups alike. Only a process that holds the lock writes."""

    def header(self, slice_: int) -> Header | None:
        """None if there is no copy, or none that can be trusted."""

    def headers(self, slices: Iterable[int]) -> dict[int, Header | None]:
        """The same of many."""

    def verify(self, slice_: int) -> bool:
        """Whether the content of a copy is what was written; looked at once in each process. Only with the lock held."""

    def read(self, keys: Keys) -> pa.Array:
        """The state of each key, null where there is none; keys are distinct, and every slice has a copy."""

    def apply(self, delta: Delta, headers: Mapping[int, Header], undo: bool = False) -> None:
        """Set what changed, and the headers, of every slice of the delta; doing it twice changes nothing."""

    def load(self, slice_: int, rows: Iterable[tuple[pa.Array, pa.Array]], header: Header) -> None:
        """Make this the whole content of a slice; until it returns, the slice has no copy."""

    def scan(self, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
        """All keys and values."""

    def adopt(self, slice_: int, folder: Path) -> bool:
        """Take over a copy of the slice from another store's folder; False if it has none."""

    def drop(self, slice_: int) -> None:
        """Delete the copy."""

    def close(self) -> None:
        """Give back files and memory."""


@cache
def boot_id() -> str:
    """What changes when the machine reboots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@contextmanager
def on_disk(folder: str | Path, least_free_mb: int = 0) -> Iterator[None]:
    """What a disk refuses is told in a sentence; with too little free space, nothing is begun: a mapping without room kills a process."""
    try:
        free_mb = shutil.disk_usage(_existing(Path(folder))).free >> 20
        if free_mb < least_free_mb:
            raise StateFullError(
                f'the disk of "{folder}" has {free_mb} MB of free space, less than least_free_mb = {least_free_mb}; free some, '
                "or lower the setting"
            )
        yield
    except OSError as error:
        raise StateError(f'the disk of "{folder}" cannot be used: {error.strerror or error}') from error


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


class SliceLocks:
    """One lock per slice of a folder, among processes: byte ranges of one file, freed by the kernel if their holder dies."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "locks"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        self._held: set[int] = set()

    def is_current(self) -> bool:
        """Whether other processes lock the same file: not if the folder was removed, or removed and made again."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def take(self, slices: Iterable[int], wait_s: float) -> None:
        """Hold these slices; in order, so that two processes never wait for each other."""
        deadline_s = time.monotonic() + wait_s
        for first, count in _runs(sorted(set(slices) - self._held)):
            while not self._taken(first, count):
                if time.monotonic() >= deadline_s:
                    self.release()
                    named = (
                        f"slice {first} is" if count == 1 else f"one of the slices {first} to {first + count - 1} is"
                    )
                    raise StateBusyError(
                        f"{named} still held by another process after {wait_s:g} s; the lane will be tried again"
                    )
                time.sleep(0.01)
            self._held.update(range(first, first + count))

    def _taken(self, first: int, count: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
            return True
        except OSError:
            return False

    def release(self) -> None:
        """Let go of all."""
        if self._held:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
            self._held.clear()

    def close(self) -> None:
        self.release()
        os.close(self._file)


def _runs(slices: list[int]) -> Iterator[tuple[int, int]]:
    """Slices that follow each other, as first and count: one lock for all of them."""
    for _, run in groupby(enumerate(slices), key=lambda pair: pair[1] - pair[0]):
        found = [slice_ for _, slice_ in run]
        yield found[0], len(found)
