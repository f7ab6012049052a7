"""The home directory of a service: its journal, its list of jobs, its lock, its address and its token."""

from __future__ import annotations

import fcntl
import getpass
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate import files
from headgate.errors import InputError
from headgate.files import PRIVATE

TOKEN_BYTES = 32
PRIVATE_FOLDER = 0o700


@dataclass(frozen=True, slots=True)
class Address:
    """The address and the process of a running service."""

    url: str
    pid: int
    certificate: str | None = None
    """File with the certificate that the service shows; None without TLS."""


@dataclass(frozen=True, slots=True)
class Home:
    """The home directory of a service and the paths of its files."""

    path: Path

    @property
    def journal(self) -> Path:
        """The record of the control loop."""
        return self.path / "journal.sqlite"

    @property
    def jobs(self) -> Path:
        """The file of the registered jobs and their live changes."""
        return self.path / "jobs.json"

    @property
    def token(self) -> Path:
        """The file with the token of the API; only its user can read the file."""
        return self.path / "token"

    @property
    def metrics_token(self) -> Path:
        """The file with the token for scrapes of the metrics; the token survives restarts, so that it can be copied."""
        return self.path / "metrics-token"

    @property
    def address(self) -> Path:
        """The file with the address of the service; the file exists while the service runs."""
        return self.path / "server.json"

    @property
    def hosts(self) -> Path:
        """The directory with the records and logs of leased hosts."""
        return self.path / "hosts"

    @property
    def lock(self) -> Path:
        """The lock that the running service holds."""
        return self.path / "lock"

    # -- the service's side

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for one service at a time; the system releases the lock when the process and all its forks have ended."""
        self.create()
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
        except OSError as error:
            raise InputError(f"{self.lock}: cannot be used as a lock: {error.strerror}; remove it") from None
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def create(self) -> None:
        """Create the directory, which only its user can enter; the directory of another user is refused."""
        try:
            self.path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise InputError(
                    f'the home "{self.path}" belongs to user {found.st_uid}, not to you (user {os.geteuid()});'
                    " give another one with --home DIR"
                )
            if stat.S_IMODE(found.st_mode) != PRIVATE_FOLDER:
                self.path.chmod(PRIVATE_FOLDER)
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
        """Make the token of this run, in a file that no other user can read at any moment."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        files.replace(self.token, token.encode())
        return token

    def kept_metrics_token(self) -> str:
        """Return the metrics token of earlier runs, or a new token."""
        found = _read_token(self.metrics_token)
        if found is not None:
            return found
        token = secrets.token_urlsafe(TOKEN_BYTES)
        files.replace(self.metrics_token, token.encode())
        return token

    @contextmanager
    def announced(self, url: str, certificate: Path | None = None) -> Iterator[Callable[[], None]]:
        """Keep the address file while the block runs; yields a function that writes the file again if it was lost."""
        shown = str(certificate.absolute()) if certificate is not None else None
        content = msgspec.json.encode(Address(url, os.getpid(), shown))
        files.replace(self.address, content)

        def announce() -> None:
            if _read(self.address) != content:
                files.replace(self.address, content)

        try:
            yield announce
        finally:
            self.address.unlink(missing_ok=True)

    # -- the client's side

    def read_address(self) -> Address | None:
        """Return the address of the running service; None if there is no address file, or if its process is dead."""
        try:
            found = msgspec.json.decode(_read(self.address) or b"", type=Address)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return found if _alive(found.pid) else None

    def read_token(self) -> str | None:
        """Return the token of the API; None if the file is missing or holds no token that a request could carry."""
        return _read_token(self.token)


def _read_token(path: Path) -> str | None:
    found = (_read(path) or b"").decode("ascii", "replace")
    return found if found.isascii() and found.isprintable() and found else None


def user_name() -> str:
    """Return the name of this process's user for the audit log, or the user's number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.geteuid()}"


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None without a readable file, or for a link, which another user may have put there."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read()
    except OSError:
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
