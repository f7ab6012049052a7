"""Files of a directory that Spark's file source has not read yet, and their bytes.

Spark keeps the files of each of its batches in a log beside the checkpoint, and reports no latest offset: what waits are the files
of the directory that the log does not have, and those of batches after the last one that is done.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LOCAL = "file:"
MOST_AGE_S = 7 * 86400.0
"""Age relative to the newest file, in seconds, from which on Spark ignores a file (`maxFileAge`)."""
UNSUPPORTED = ("modifiedafter", "modifiedbefore", "maxfileage", "latestfirst", "filenameonly")
"""Options of Spark that also decide which files it reads: with one of them, the number of waiting files is not known."""
NOTHING_READ = -1
"""The number of the batch before the first."""
WRITTEN_BY_SPARK = "_spark_metadata"
"""Entry of a directory whose files Spark finds in its log of written files, not by listing the directory."""


class FileStream:
    """One stream of Spark's file source: its directory, and the log of the files that it has read."""

    fresh = True

    def __init__(self, options: Mapping[str, str], log: Path) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._log = log
        self._batch_of: dict[str, int] = {}
        self._size_of: dict[str, int] = {}
        self._read_to = -1

    def waiting(self, end: Any, latest: Any) -> float | None:
        """Bytes of the files that wait after an offset; None if it is not known which files Spark will read."""
        root = self._root()
        batch = _batch(end)
        if root is None or batch is None:
            return None
        self._follow_log()
        files = _young(_listed(root, self._options))
        self._size_of.update(files)
        return float(sum(size for path, size in files.items() if self._batch_of.get(path, batch + 1) > batch))

    def between(self, start: Any, end: Any) -> float | None:
        """Bytes of the files between two offsets; a deleted file counts with the mean size of the others."""
        first, last = _batch(start), _batch(end)
        if first is None or last is None:
            return None
        sizes = [self._size_of.get(path) for path, batch in self._batch_of.items() if first < batch <= last]
        known = [size for size in sizes if size is not None]
        return sum(known) / len(known) * len(sizes) if known else None

    def _root(self) -> str | None:
        path = self._options.get("path", "")
        local = unquote(path.removeprefix(LOCAL)) if path.startswith(LOCAL) else path
        if not path or "://" in local or any(name in self._options for name in UNSUPPORTED):
            return None
        root = "/" + local.lstrip("/") if path.startswith(LOCAL) else local
        return None if os.path.exists(os.path.join(root, WRITTEN_BY_SPARK)) else root

    def _follow_log(self) -> None:
        """Read the log entries of new batches; a compacted entry contains all earlier batches."""
        numbered = sorted((int(path.name.partition(".")[0]), path) for path in self._log.glob("[0-9]*"))
        for number, path in numbered:
            if number > self._read_to:
                entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
                self._batch_of.update({_local(entry["path"]): entry["batchId"] for entry in entries})
                self._read_to = number


def _batch(offset: Any) -> int | None:
    match offset:
        case None:
            return NOTHING_READ
        case {"logOffset": int(number)}:
            return number
    return None


def _local(url: str) -> str:
    return unquote("/" + url.removeprefix(LOCAL).lstrip("/"))


def _listed(root: str, options: Mapping[str, str]) -> dict[str, tuple[int, float]]:
    """Size and modification time, by absolute path, of the files that Spark sees."""
    everywhere = options.get("recursivefilelookup", "").lower() == "true"
    wanted = options.get("pathglobfilter", "*")
    places = glob.glob(root) if glob.has_magic(root) else [root]
    found = (entry for place in places for entry in _files(os.path.abspath(place), everywhere))
    return {path: told for path, told in found if fnmatch(os.path.basename(path), wanted)}


def _files(place: str, everywhere: bool) -> Iterator[tuple[str, tuple[int, float]]]:
    if os.path.isfile(place):
        stat = os.stat(place)
        yield place, (stat.st_size, stat.st_mtime)
        return
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")) or entry.name.endswith("._COPYING_"):
                continue
            if entry.is_dir():
                if everywhere or "=" in entry.name:
                    yield from _files(entry.path, everywhere)
                continue
            stat = entry.stat()
            yield entry.path, (stat.st_size, stat.st_mtime)


def _young(files: Mapping[str, tuple[int, float]]) -> dict[str, int]:
    newest_s = max((written_s for _, written_s in files.values()), default=0.0)
    return {path: size for path, (size, written_s) in files.items() if newest_s - written_s <= MOST_AGE_S}
