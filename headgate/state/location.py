"""A checkpoint location: a local directory, or a directory of any filesystem that Arrow knows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headgate import files
from headgate.errors import StateDamagedError, StateError
from headgate.state.faults import passing


@dataclass(frozen=True, slots=True)
class Location:
    """Files that are written as a whole, durably, and never changed."""

    system: Any
    base: str

    @staticmethod
    def of(place: str | os.PathLike[str]) -> Location:
        """From a path or a URI such as `s3://bucket/folder`.

        >>> Location.of("/tmp/state").base
        '/tmp/state'
        """
        text = os.fspath(place)
        if "://" not in text:
            return Location(fs.LocalFileSystem(), os.path.abspath(text))
        try:
            return Location(*fs.FileSystem.from_uri(text))
        except (pa.ArrowException, OSError) as error:
            raise StateError(f'checkpoint location "{text}" cannot be used: {error}') from None

    def write(self, name: str, *parts: Any) -> int:
        """Write a file; when this returns it is there as a whole, after a crash too. Returns its size."""
        path = f"{self.base}/{name}"
        try:
            if isinstance(self.system, fs.LocalFileSystem):
                files.replace(Path(path), *parts, before_rename=lambda: passing("delta: written, not renamed"))
            else:
                self._write_elsewhere(path, parts)
        except OSError as error:
            raise StateError(f'cannot write "{path}": {error.strerror or error}; the epoch is not committed') from error
        return sum(memoryview(part).nbytes for part in parts)

    def _write_elsewhere(self, path: str, parts: tuple[Any, ...]) -> None:
        beside = f"{path}.{uuid.uuid4().hex[:8]}{files.PART}"
        self.system.create_dir(os.path.dirname(path), recursive=True)
        with self.system.open_output_stream(beside) as stream:
            for part in parts:
                stream.write(part)
        passing("delta: written, not renamed")
        self.system.move(beside, path)

    def read(self, name: str) -> pa.Buffer:
        """The whole file; `StateDamagedError` if it is not there."""
        path = f"{self.base}/{name}"
        try:
            with self.system.open_input_file(path) as stream:
                return stream.read_buffer()
        except OSError as error:
            raise StateDamagedError(f'cannot read "{path}": {error.strerror or "it is missing"}') from error

    def exists(self, name: str) -> bool:
        return bool(self.system.get_file_info(f"{self.base}/{name}").type == fs.FileType.File)

    def names(self, folder: str) -> list[str]:
        """Files of a folder and those below it, relative to it, in order; none if there is no such folder."""
        path = f"{self.base}/{folder}"
        found = self.system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        paths = (info.path for info in found if info.type == fs.FileType.File)
        return sorted(name[len(path) + 1 :] for name in paths)

    def delete(self, name: str) -> None:
        """Remove a file; one that is gone already is fine."""
        try:
            self.system.delete_file(f"{self.base}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            if self.exists(name):
                raise StateError(f'cannot delete "{self.base}/{name}": {error}') from error

    def delete_durably(self, names: Iterable[str]) -> None:
        """Remove files, so that they are still gone after a power cut."""
        folders = set()
        for name in names:
            self.delete(name)
            folders.add(os.path.dirname(f"{self.base}/{name}"))
        if isinstance(self.system, fs.LocalFileSystem):
            for folder in folders:
                files.sync(Path(folder))

    def remove_leftovers(self) -> None:
        """Remove what interrupted writes have left; no write may be under way."""
        if isinstance(self.system, fs.LocalFileSystem):
            files.remove_leftovers(Path(self.base))
            return
        found = self.system.get_file_info(fs.FileSelector(self.base, allow_not_found=True, recursive=True))
        for info in found:
            if info.path.endswith(files.PART):
                self.system.delete_file(info.path)

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it is gone."""
        return int(self.system.get_file_info(f"{self.base}/{name}").size or 0)
