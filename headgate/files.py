"""Replaces files atomically: readers, and a restart after a power cut, see either the old content or the new content.

Leases, levers, addresses, the list of jobs and all durable state are written by `replace`. A file that is built in place, such as a
table of keyed state that is mapped into memory, is built `beside` and then moved by `move_into`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PRIVATE = 0o600
"""Mode of a file that only its owner can read and write."""
DAMAGED = ".damaged-"
"""Part of the name of a damaged file, in front of the time at which the file was set aside."""
PART = ".part"
"""Ending of a file that is being written; a leftover file with this ending is an interrupted write without meaning."""


def replace(
    path: Path, *parts: Any, durable: bool = True, mode: int = PRIVATE, before_rename: Callable[[], None] | None = None
) -> None:
    """Replace a file by these parts (bytes or buffers); any number of threads and processes may do so at once.

    With `durable`, the content survives a power cut once the function returns; otherwise, the content survives the end of the process.
    """
    make_folder(path.parent, durable)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{PART}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(part, flags, mode)
        try:
            for content in parts:
                _write_all(descriptor, memoryview(content).cast("B"))
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if before_rename is not None:
            before_rename()
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def beside(path: Path | str) -> Path:
    """Path at which a new version of a file is built before `move_into`; only one thread or process may build at a time."""
    path = Path(path)
    return path.with_name(path.name + PART)


def move_into(path: Path | str, durable: bool = True) -> None:
    """Replace a file by the new version built `beside` the file; with `durable`, the new version survives a later power cut."""
    built, path = beside(path), Path(path)
    if durable:
        sync(built)
    built.replace(path)
    if durable:
        sync(path.parent)


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file that only its user can read, for content that is not replaced as a whole, such as logs."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, PRIVATE))


def set_aside(path: Path, *beside: str) -> Path:
    """Rename a damaged file and its side files `beside`, so that a new file can take its place; return the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    kept = path.with_name(f"{path.name}{DAMAGED}{stamp}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}{DAMAGED}{stamp}.{number}")
    for name in beside:
        if path.with_name(name).exists():
            path.with_name(name).rename(kept.with_name(kept.name + name.removeprefix(path.name)))
    path.rename(kept)
    return kept


def make_folder(folder: Path, durable: bool = True) -> None:
    """Make a folder and its parents; with `durable`, new folders survive a power cut once the function returns."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        if durable:
            sync(one.parent)


def remove_leftovers(folder: Path) -> int:
    """Remove leftovers of interrupted writes below a folder; return the number of files. No write may be under way."""
    found = list(folder.rglob(f"*{PART}")) if folder.is_dir() else []
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable: a rename survives a power cut only after this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(descriptor, data) :]
