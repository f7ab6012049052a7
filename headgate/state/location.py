"""A checkpoint location: a local directory, or a directory of any file system or object store that Arrow knows.

Files are written whole and durably. On a disk, and on a file system such as HDFS, a file is written under another name and renamed.
An object store has no rename: an object appears whole when its upload ends, so the object is written under its own name at once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headgate import files
from headgate.errors import StateAwayError, StateDamagedError, StateError
from headgate.state.faults import reach

OBJECT_STORES = frozenset(("s3", "gcs", "abfs"))
"""File systems of Arrow in which a file appears whole when it is closed."""


@lru_cache
def _opened(text: str, process: int) -> tuple[Any, str]:
    """The file system client of a URI, one per process: a client takes longer to make than a small file to write, and survives no fork."""
    return fs.FileSystem.from_uri(text)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Location:
    """A directory of files that are written whole and durably."""

    system: Any
    base: str

    @staticmethod
    def of(place: str | os.PathLike[str]) -> Location:
        """The location of a path or of a URI such as `s3://bucket/folder`.

        >>> Location.of("/tmp/state").base
        '/tmp/state'
        """
        text = os.fspath(place)
        if "://" not in text:
            return Location(fs.LocalFileSystem(), os.path.abspath(text))
        try:
            return Location(*_opened(text, os.getpid()))
        except (pa.ArrowException, OSError) as error:
            reason = str(error).replace(text, shown(text))
            raise StateError(f'checkpoint location "{shown(text)}" cannot be used: {reason}') from None

    @property
    def _is_local(self) -> bool:
        return isinstance(self.system, fs.LocalFileSystem)

    def write(self, name: str, *parts: Any) -> int:
        """Write a file; when this returns, the whole file is durable. Returns its size."""
        path = f"{self.base}/{name}"
        try:
            if self._is_local:
                files.replace(Path(path), *parts, before_rename=lambda: reach("delta: written, not renamed"))
            elif self.system.type_name in OBJECT_STORES:
                self._put(path, parts)
            else:
                self._write_and_move(path, parts)
        except OSError as error:
            kind = StateError if self._is_local else StateAwayError
            raise kind(f'cannot write "{path}": {error.strerror or error}; the epoch is not committed') from error
        return sum(memoryview(part).nbytes for part in parts)

    def _put(self, path: str, parts: tuple[Any, ...]) -> None:
        whole = b"".join(memoryview(part).cast("B") for part in parts)
        reach("delta: written, not renamed")
        with self.system.open_output_stream(path) as stream:
            stream.write(whole)

    def _write_and_move(self, path: str, parts: tuple[Any, ...]) -> None:
        beside = f"{path}.{uuid.uuid4().hex[:8]}{files.PART}"
        self.system.create_dir(os.path.dirname(path), recursive=True)
        with self.system.open_output_stream(beside) as stream:
            for part in parts:
                stream.write(part)
        reach("delta: written, not renamed")
        self.system.move(beside, path)

    def read(self, name: str) -> pa.Buffer:
        """The content of a file; `StateDamagedError` if the file is missing."""
        path = f"{self.base}/{name}"
        try:
            with self.system.open_input_file(path) as stream:
                return stream.read_buffer()
        except OSError as error:
            if not self._is_local and not isinstance(error, FileNotFoundError):
                raise StateAwayError(f'cannot read "{path}": {error}') from error
            raise StateDamagedError(f'cannot read "{path}": {error.strerror or "it is missing"}') from error

    def exists(self, name: str) -> bool:
        return self.sizes([name])[name] is not None

    def names(self, folder: str) -> list[str]:
        """Files of a folder and its subfolders, relative to the folder, in order; none if the folder does not exist."""
        path = f"{self.base}/{folder}" if folder else self.base
        return sorted(info.path[len(path) + 1 :] for info in self._below(path) if info.type == fs.FileType.File)

    def folders(self) -> list[str]:
        """Names of the folders in this one, in order."""
        found = self._below(self.base, recursive=False)
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def _below(self, path: str, recursive: bool = True) -> list[Any]:
        try:
            return list(self.system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=recursive)))
        except OSError as error:
            raise self._away(error) from error

    def _away(self, error: OSError) -> StateError:
        kind = StateError if self._is_local else StateAwayError
        return kind(f'cannot look at the files in "{self.base}": {error}')

    def delete(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            self.system.delete_file(f"{self.base}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            if self.exists(name):
                raise StateError(f'cannot delete "{self.base}/{name}": {error}') from error

    def delete_durably(self, names: Iterable[str]) -> None:
        """Remove files durably: a power cut does not bring them back."""
        folders = set()
        for name in names:
            self.delete(name)
            folders.add(os.path.dirname(f"{self.base}/{name}"))
        if self._is_local:
            for folder in folders:
                files.sync(Path(folder))

    def delete_all(self) -> None:
        """Remove the folder with all that is in it."""
        self.delete_durably(self.names(""))
        try:
            self.system.delete_dir(self.base)
        except OSError:
            return  # an object store has no folders of its own

    def remove_leftovers(self) -> None:
        """Remove the files of interrupted writes; no write may be under way."""
        if self._is_local:
            files.remove_leftovers(Path(self.base))
        elif self.system.type_name not in OBJECT_STORES:
            for info in self._below(self.base):
                if info.path.endswith(files.PART):
                    self.system.delete_file(info.path)

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Bytes of each file, asked for together; None for a file that does not exist."""
        if not names:
            return {}
        try:
            found = self.system.get_file_info([f"{self.base}/{name}" for name in names])
        except OSError as error:
            raise self._away(error) from error
        return {
            name: int(info.size) if info.type == fs.FileType.File else None
            for name, info in zip(names, found, strict=True)
        }

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if the file does not exist."""
        return self.sizes([name])[name] or 0


def shown(place: str) -> str:
    """A location without the secrets that its URI may have.

    >>> shown("s3://key:secret@bucket/folder?region=x")
    's3://bucket/folder'
    """
    scheme, mark, rest = place.partition("://")
    return f"{scheme}{mark}{rest.partition('?')[0].rpartition('@')[2]}"


def below(place: str, name: str) -> str:
    """A folder of a location, as a path or a URI.

    >>> below("s3://bucket/folder?region=x", "job")
    's3://bucket/folder/job?region=x'
    """
    path, mark, options = place.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"
