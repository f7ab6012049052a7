"""Which jobs a service runs, and what was changed about them while they ran; a file that survives the process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headgate import files
from headgate.errors import EngineError, InputError
from headgate.jobfile import JobRequest


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks of the quotas of its tenant."""

    lanes: int
    share: int
    worth: float


@dataclass(frozen=True, slots=True)
class Registered:
    """A job as it was asked for, and what was changed since."""

    request: JobRequest
    live: bool = False
    """Whether it was submitted to a service that ran; if not, it stands in a file that `headgate run` was given."""
    paused: bool = False
    intent: dict[str, Any] = field(default_factory=dict)
    """Fields of the intent that were changed."""
    share: int | None = None
    read_limit: int | None = None
    removed_s: float | None = None
    """When it was removed; None while it is a job of the service."""
    since_s: float = 0.0
    """Since when its tenant has had it: what a job of this name did before may be another tenant's."""
    granted: Demand | None = None
    """What its quotas were last checked for: its file may ask for more when it is loaded again. None: never checked."""
    of_tenant: bool = False
    """Whether a tenant chose its file, which is then never loaded in the service itself."""

    @property
    def name(self) -> str:
        """The name that it runs under; a job is registered with it."""
        assert self.request.name is not None
        return self.request.name

    @property
    def tenant(self) -> str:
        """The tenant that owns it."""
        return self.request.tenant or "default"


@dataclass(frozen=True, slots=True)
class _RegistryFile:
    jobs: dict[str, Registered]


class Registry:
    """The registered jobs by name; each change is on disk before it returns.

    A file that cannot be read is set aside; `damage` then says so, and which of its jobs are still known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""
        self._lock = threading.Lock()
        self._jobs = self._read()
        """Replaced as a whole under the lock, never changed: readers take the one that is there."""

    def all(self) -> Mapping[str, Registered]:
        """As of now."""
        return dict(self._jobs)

    def get(self, name: str) -> Registered | None:
        return self._jobs.get(name)

    def put(self, name: str, registered: Registered) -> None:
        """Add a job, or replace it."""
        with self._lock:
            self._write({**self._jobs, name: registered})

    def drop(self, name: str) -> None:
        """Forget a job."""
        with self._lock:
            self._write({other: one for other, one in self._jobs.items() if other != name})

    def _read(self) -> dict[str, Registered]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from None
        try:
            return msgspec.json.decode(content, type=_RegistryFile).jobs
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._rescued(content, str(error))

    def _rescued(self, content: bytes, reason: str) -> dict[str, Registered]:
        """What can still be read of a damaged file, which is kept."""
        jobs = _readable(content)
        aside = files.set_aside(self.path)
        found = f"; {', '.join(jobs)} could still be read" if jobs else ""
        self.damage = f"{self.path}: is not a list of jobs ({reason}); it is kept as {aside}{found}"
        with suppress(EngineError):  # the disk may be full; they are written with the next change
            self._write(jobs)
        return jobs

    def _write(self, jobs: dict[str, Registered]) -> None:
        try:
            files.replace(self.path, msgspec.json.format(msgspec.json.encode(_RegistryFile(jobs)), indent=2))
        except OSError as error:
            raise EngineError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self._jobs = jobs


def _readable(content: bytes) -> dict[str, Registered]:
    """The jobs whose entries are sound."""
    try:
        entries = msgspec.json.decode(content, type=dict[str, dict[str, msgspec.Raw]]).get("jobs", {})
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    jobs = {}
    for name, entry in entries.items():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            jobs[name] = msgspec.json.decode(entry, type=Registered)
    return jobs
