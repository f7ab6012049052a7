"""The home directory of a service: its journal, its list of jobs, its lock, its address and its token."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate.errors import InputError

DEFAULT_HOME = ".headgate"
TOKEN_BYTES = 32
PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service answers, and which process it is."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Home:
    """A directory and the names in it."""

    path: Path

    @property
    def journal(self) -> Path:
        """The record of the control loop."""
        return self.path / "journal.sqlite"

    @property
    def jobs(self) -> Path:
        """What runs here, and what was changed about it."""
        return self.path / "jobs.json"

    @property
    def token(self) -> Path:
        """What a request must show; only its user can read it."""
        return self.path / "token"

    @property
    def address(self) -> Path:
        """Where the service answers, as long as it runs."""
        return self.path / "server.json"

    @property
    def hosts(self) -> Path:
        """What is known of leased hosts, and their logs."""
        return self.path / "hosts"

    @property
    def lock(self) -> Path:
        """Held by the service that runs here."""
        return self.path / "lock"

    # -- the service's side

    @contextmanager
    def held(self) -> Iterator[None]:
        """One service at a time; the system lets go of the lock however its process ends."""
        self._create()
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be created: {error.strerror}") from None

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = self.read_address()
            who = f" (process {found.pid})" if found is not None else ""
            raise InputError(
                f'Headgate runs in "{self.path}" already{who}; `headgate submit FILE` adds jobs to it, --home DIR names another place'
            ) from None

    def new_token(self) -> str:
        """A token of this run, in a file that nobody else could read at any moment."""
        self.token.unlink(missing_ok=True)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self.token, flags, PRIVATE), "w") as file:
            file.write(token)
        return token

    @contextmanager
    def announced(self, url: str) -> Iterator[None]:
        """Say where the service answers while it does."""
        replace(self.address, msgspec.json.encode(Address(url, os.getpid())))
        try:
            yield
        finally:
            self.address.unlink(missing_ok=True)

    # -- the client's side

    def read_address(self) -> Address | None:
        """Where the service answers; None if none does, or the one that did is dead."""
        try:
            found = msgspec.json.decode(self.address.read_bytes(), type=Address)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if _alive(found.pid) else None

    def read_token(self) -> str | None:
        """The token of the service that runs here."""
        try:
            return self.token.read_text()
        except OSError:
            return None


def replace(path: Path, content: bytes) -> None:
    """Write a file so that others, and a restart after a power cut, see the old one or the new one."""
    beside = path.with_name(f".{path.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
