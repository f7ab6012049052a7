"""A checkpoint location: a local directory, or a directory of any filesystem that Arrow knows."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

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

    def within(self, name: str) -> Location:
        """A directory of this one."""
        return Location(self.system, f"{self.base}/{name}")

    def write(self, name: str, *parts: Any) -> int:
        """Write a file; when this returns it is there as a whole, after a crash too. Returns its size."""
        path = f"{self.base}/{name}"
        try:
            if isinstance(self.system, fs.LocalFileSystem):
                _write_locally(Path(path), parts)
            else:
                self._write_elsewhere(path, parts)
        except OSError as error:
            raise StateError(f'cannot write "{path}": {error.strerror or error}; the epoch is not committed') from error
        return sum(memoryview(part).nbytes for part in parts)

    def _write_elsewhere(self, path: str, parts: tuple[Any, ...]) -> None:
        beside = f"{path}.{uuid.uuid4().hex[:8]}.part"
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
        files = (info.path for info in found if info.type == fs.FileType.File)
        return sorted(name[len(path) + 1 :] for name in files)

    def delete(self, name: str) -> None:
        """Remove a file; one that is gone already is fine."""
        try:
            self.system.delete_file(f"{self.base}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            if self.exists(name):
                raise StateError(f'cannot delete "{self.base}/{name}": {error}') from error

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it is gone."""
        return int(self.system.get_file_info(f"{self.base}/{name}").size or 0)


def _write_locally(path: Path, parts: tuple[Any, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(beside, "wb", buffering=0) as stream:
            for part in parts:
                _write_all(stream.fileno(), memoryview(part).cast("B"))
            os.fsync(stream.fileno())
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    passing("delta: written, not renamed")
    os.replace(beside, path)
    _sync_folder(path.parent)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    """A rename is durable only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
