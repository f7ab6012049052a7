"""The interface of every slice store, the header of a copy, and locks between processes."""

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
    """The header of a copy of a slice."""

    version: int
    """The last epoch whose changes the copy contains."""
    identity: str
    """The life, schema and timeline of the state: a copy with another identity does not count."""
    delta: str = ""
    """Name of the delta that made this version, with which a lane can undo it or check whether it counts."""
    base: str = ""
    """Name of the delta that made the version before."""
    boot: str = ""
    """The boot of the machine that wrote the copy: nothing forces its pages to disk, so a reboot voids it."""
    whole: bool = True
    """False while a lane applies changes."""

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
        """Decode a header; None if the bytes are no header."""
        try:
            return msgspec.json.decode(data, type=Header)
        except (msgspec.MsgspecError, ValueError):  # ValueError: text that is not UTF-8
            return None


class SliceStore(Protocol):
    """Copies of slices on this host's disk, active copies and backups. Only a process that holds the lock writes."""

    def header(self, slice_: int) -> Header | None:
        """The header of a copy; None if there is no copy that can be trusted."""

    def headers(self, slices: Iterable[int]) -> dict[int, Header | None]:
        """The headers of many copies."""

    def verify(self, slice_: int) -> bool:
        """Whether the checksum of a copy matches; each process checks a copy once. The caller holds the lock."""

    def read(self, keys: Keys) -> pa.Array:
        """The state of each key, null for a key without state; keys are distinct, and every slice has a copy."""

    def apply(self, delta: Delta, headers: Mapping[int, Header], undo: bool = False) -> None:
        """Apply a delta and set the headers of its slices; a second call changes nothing."""

    def load(self, slice_: int, rows: Iterable[tuple[pa.Array, pa.Array]], header: Header) -> None:
        """Replace the whole content of a slice; the slice has no copy until the call returns."""

    def scan(self, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
        """All keys and values of a slice."""

    def adopt(self, slice_: int, folder: Path) -> bool:
        """Copy a slice from the folder of another store; False if the folder has no copy."""

    def drop(self, slice_: int) -> None:
        """Delete the copy."""

    def close(self) -> None:
        """Close files and free memory."""


@cache
def boot_id() -> str:
    """An identifier of the current boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@contextmanager
def on_disk(folder: str | Path, least_free_mb: int = 0) -> Iterator[None]:
    """Turn an error of the disk into a sentence, and refuse to begin with too little free space: a mapping without room kills a process."""
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
    """The folder, or its nearest parent that exists."""
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


class SliceLocks:
    """One lock per slice of a folder: byte ranges of one file, which the kernel frees when the process that holds them dies."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "locks"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        self._held: set[int] = set()

    def is_current(self) -> bool:
        """Whether other processes lock the same file: not if the folder was removed or made again."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def take(self, slices: Iterable[int], wait_s: float) -> None:
        """Lock these slices in order, so that two processes never wait for each other."""
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
        """Release all locks."""
        if self._held:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
            self._held.clear()

    def close(self) -> None:
        self.release()
        os.close(self._file)


def _runs(slices: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive slices as first and count: one lock per run."""
    for _, run in groupby(enumerate(slices), key=lambda pair: pair[1] - pair[0]):
        found = [slice_ for _, slice_ in run]
        yield found[0], len(found)
