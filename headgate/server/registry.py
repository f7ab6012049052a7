"""The registry of a service's jobs and their live changes, in a file that survives restarts."""

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
    """A job as it was requested, and the changes since then."""

    request: JobRequest
    live: bool = False
    """Whether the job was submitted to a running service; False for a job from a file of `headgate run`."""
    paused: bool = False
    intent: dict[str, Any] = field(default_factory=dict)
    """Fields of the intent that were changed."""
    share: int | None = None
    read_limit: int | None = None
    removed_s: float | None = None
    """Time at which the job was removed; None for a job that is not removed."""
    since_s: float = 0.0
    """Time since which the tenant owns the job; earlier records of this name may belong to another tenant."""
    granted: Demand | None = None
    """Demand last checked against the quotas, because a reloaded file may ask for more; None if never checked."""
    of_tenant: bool = False
    """Whether a tenant chose the job file; the service never loads a tenant's file in its own process."""

    @property
    def name(self) -> str:
        """Return the name under which the job runs; every registered job has a name."""
        assert self.request.name is not None
        return self.request.name

    @property
    def tenant(self) -> str:
        """Return the tenant that owns the job."""
        return self.request.tenant or "default"


@dataclass(frozen=True, slots=True)
class _RegistryFile:
    jobs: dict[str, Registered]


class Registry:
    """The registered jobs by name; each change is on disk before it returns.

    A damaged file is set aside; `damage` then describes the damage and names the jobs that could still be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""
        self._lock = threading.Lock()
        self._jobs = self._read()
        """The dict is replaced as a whole under the lock and never modified, so that readers need no lock."""

    def all(self) -> Mapping[str, Registered]:
        """Return all registered jobs by name."""
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
        """Set a damaged file aside, and return the jobs that can still be read."""
        jobs = _readable(content)
        aside = files.set_aside(self.path)
        found = f"; {', '.join(jobs)} could still be read" if jobs else ""
        self.damage = f"{self.path}: is not a list of jobs ({reason}); it is kept as {aside}{found}"
        with suppress(EngineError):  # the disk may be full; the next change writes the jobs
            self._write(jobs)
        return jobs

    def _write(self, jobs: dict[str, Registered]) -> None:
        try:
            files.replace(self.path, msgspec.json.format(msgspec.json.encode(_RegistryFile(jobs)), indent=2))
        except OSError as error:
            raise EngineError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self._jobs = jobs


def _readable(content: bytes) -> dict[str, Registered]:
    """Return the jobs of a damaged file with readable entries."""
    try:
        entries = msgspec.json.decode(content, type=dict[str, dict[str, msgspec.Raw]]).get("jobs", {})
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    jobs = {}
    for name, entry in entries.items():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            jobs[name] = msgspec.json.decode(entry, type=Registered)
    return jobs
