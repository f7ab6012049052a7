"""Which jobs a service runs, and what was changed about them while they ran; a file that survives the process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headgate.errors import InputError
from headgate.server.home import replace
from headgate.spark.jobfile import JobRequest


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


@dataclass(frozen=True, slots=True)
class _File:
    jobs: dict[str, Registered]


class Registry:
    """The registered jobs by name; each change is on disk before it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._jobs = self._read()

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
            return msgspec.json.decode(self.path.read_bytes(), type=_File).jobs
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise InputError(f"{self.path}: is not a list of jobs ({error}); move it away to start without") from None

    def _write(self, jobs: dict[str, Registered]) -> None:
        replace(self.path, msgspec.json.format(msgspec.json.encode(_File(jobs)), indent=2))
        self._jobs = jobs
