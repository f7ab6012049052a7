"""Removed jobs: the files of a job stay for some time in `removed/NAME@TIME`, so that the job can be restored where it stopped.

    removed/orders@20260506T070809Z/job.json   the registry entry of the job
    removed/orders@20260506T070809Z/place      its checkpoint, state and progress, moved as a whole

The record is written before the job is unregistered, and the place is moved after that. A service that was killed in between
finishes the move, or deletes the record, when it starts again.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headgate import files
from headgate.core.quantities import did_you_mean, shown
from headgate.errors import InputError, StateError, UnknownJobError
from headgate.server.registry import Registered

FOLDER, JOBS = "removed", "jobs"
RECORD, PLACE = "job.json", "place"
DELETED = ".deleted"
"""Suffix of directories that are being deleted."""
TIME = "%Y%m%dT%H%M%SZ"
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class RemovedJob:
    """A removed job as it is listed."""

    name: str
    at: str
    """Time of the removal, in the format of `restore --at`."""
    removed_s: float
    deleted_s: float
    """Time at which the files of the job will be deleted."""
    bytes: int
    tenant: str = "default"


class RemovedJobs:
    """The removed jobs of a home directory. Owner: its lock, because the clean-up of all jobs runs beside requests about one.

    A record without a place belongs to a job that is being removed or restored; no other request touches the record.
    """

    def __init__(self, home: Path, keep_h: float) -> None:
        self._folder = home / FOLDER
        self._jobs = home / JOBS
        self._keep_s = keep_h * HOUR_S
        self._lock = threading.Lock()
        """Held while a place or a record is moved; never while files are deleted or counted."""

    def all(self) -> list[RemovedJob]:
        """Return the removed jobs that can be restored, oldest first."""
        found = [
            RemovedJob(record.name, _at(path), removed_s, removed_s + self._keep_s, _size(path / PLACE), record.tenant)
            for path, removed_s, record in self._records()
            if (path / PLACE).exists()
        ]
        return sorted(found, key=lambda one: (one.removed_s, one.name))

    def records(self) -> list[Registered]:
        """Return the registry entries of removed jobs."""
        return [record for _, _, record in self._records()]

    # -- remove

    def begin(self, registered: Registered, now_s: float) -> Path:
        """Record that a job is about to be removed; returns the path to which its directory is moved."""
        path = self._free(registered.name, now_s)
        files.replace(path / RECORD, msgspec.json.encode(dataclasses.replace(registered, removed_s=now_s)))
        return path / PLACE

    def move(self, name: str, kept: Path) -> None:
        """Move the directory of a job that the engine has stopped."""
        place = self._jobs / name
        with self._lock:
            place.mkdir(parents=True, exist_ok=True)  # a job that never ran kept nothing, and can be restored too
            place.rename(kept)
            files.sync(kept.parent)  # from here on, the clean-up may delete the directory

    def cancel(self, kept: Path) -> None:
        """Delete the record of a removal that failed."""
        if not kept.exists():
            shutil.rmtree(kept.parent, ignore_errors=True)

    # -- restore

    def find(self, name: str, at: str | None = None, tenant: str | None = None) -> tuple[Path, Registered]:
        """The newest removed job of a name, or the one that was removed at this time; of this tenant, if one is given."""
        found = [one for one in self._records() if (one[0] / PLACE).exists() and tenant in (None, one[2].tenant)]
        mine = sorted((removed_s, path, record) for path, removed_s, record in found if record.name == name)
        if not mine:
            names = {record.name for _, _, record in found}
            raise UnknownJobError(f"there is no removed job {shown(name)}.{did_you_mean(name, names)}")
        fitting = [(path, record) for _, path, record in mine if at is None or _at(path) == at]
        if not fitting:
            times = ", ".join(_at(path) for _, path, _ in mine)
            raise InputError(f'job "{name}" was not removed at {shown(at)}; give --at one of {times}')
        return fitting[-1]

    def bring_back(self, path: Path, name: str) -> None:
        """Move the directory of a removed job back to the directory for jobs of its name."""
        place = self._jobs / name
        with self._lock:
            if not (path / PLACE).exists():
                raise UnknownJobError(
                    f'job "{name}" cannot be restored any more: what it kept was deleted while its file was being loaded'
                )
            if place.exists():
                raise InputError(f'"{place}" exists, although no job "{name}" is registered; move it away first')
            place.parent.mkdir(parents=True, exist_ok=True)
            (path / PLACE).rename(place)

    def done(self, path: Path) -> None:
        """Delete a record that is no longer needed."""
        shutil.rmtree(path, ignore_errors=True)

    # -- upkeep

    def recover(self, registered: Collection[str]) -> None:
        """Finish the moves of a service that was killed; `registered` are the jobs on its list."""
        for path, _, record in self._records():
            if (path / PLACE).exists():
                continue
            if record.name in registered or not (self._jobs / record.name).exists():
                self.done(path)
            else:
                self.move(record.name, path / PLACE)

    def expire(self, now_s: float) -> list[str]:
        """Delete removed jobs after their retention time; returns their names."""
        from headgate.state.durable import delete_durable  # imports Arrow, which commands do not need when they start

        old = [(path, record) for path, removed_s, record in self._records() if removed_s + self._keep_s <= now_s]
        names = [record.name for path, record in old if self._given_up(path)]
        for path in self._folder.glob(f"*{DELETED}"):
            with suppress(StateError):  # tried again with the next clean-up
                delete_durable(path / PLACE)
                shutil.rmtree(path, ignore_errors=True)
        return names

    def _given_up(self, path: Path) -> bool:
        """Mark a removed job for deletion; returns False if the job is being removed or restored at this moment."""
        with self._lock:
            if not (path / PLACE).exists():
                return False
            path.rename(path.with_name(f"{uuid.uuid4().hex}{DELETED}"))
            return True

    def _records(self) -> Iterator[tuple[Path, float, Registered]]:
        """Yield the readable records; an unreadable record stays on disk, because its place may be all that is left of a job."""
        for path in sorted(self._folder.glob("*@*")):
            try:
                record = msgspec.json.decode((path / RECORD).read_bytes(), type=Registered)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if record.removed_s is not None and record.request.name is not None:
                yield path, record.removed_s, record

    def _free(self, name: str, now_s: float) -> Path:
        at_s = now_s
        while (path := self._folder / f"{name}@{datetime.fromtimestamp(at_s, UTC):{TIME}}").exists():
            at_s += 1
        return path


def _at(path: Path) -> str:
    return path.name.rpartition("@")[2]


def _size(place: Path) -> int:
    try:
        return sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
    except FileNotFoundError:  # the job is restored or deleted at this moment
        return 0
