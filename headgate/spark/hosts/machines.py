"""A pool of machines that an operator's own executable leases and releases; each machine joins the Spark cluster as one worker.

The pool writes a small file per leased machine before it calls the command. A service that starts again therefore repeats the leases that
the command has not taken, and finds all other machines in the list of the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headgate import files
from headgate.core.hosts import Host, HostPhase, HostType
from headgate.errors import EngineError, HostError, InputError
from headgate.hosts.provision import Terms
from headgate.spark.hosts.executors import GRACEFUL

COMMAND = "command.json"
MASTER_VARIABLE = "HEADGATE_MASTER"
SHOWN = 120
"""Characters of a wrong line that a message shows."""


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the command's `list`."""

    name: str
    state: HostPhase
    address: str = ""
    """The name under which Spark knows the machine."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The file about one leased machine."""

    name: str
    number: int
    kind: HostType
    leased_s: float
    asked: bool = False
    """Whether the command has taken the lease."""
    releasing_s: float | None = None
    released: bool = False
    """Whether the command has taken the release."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The file about the pool: another service that finds machines of an ended service can release them with this command."""

    command: str
    master_url: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of the command and of new machines, in seconds."""

    command_s: float = 30.0
    patience_s: float = 600.0


DEFAULT_LIMITS = Limits()


class MachinePool:
    """A `HostPool` whose machines come from `FILE lease NAME CORES MEMORY_MB`, `FILE release NAME` and `FILE list`."""

    def __init__(
        self,
        home: Path,
        command: Path,
        master_url: str,
        clock: Callable[[], float] = time.time,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.master_url = master_url
        self._command, self._clock, self._limits = runnable(command), clock, limits
        self._leases_dir = home.resolve() / "leases"
        self._leases_dir.mkdir(parents=True, exist_ok=True)
        _write_file(home.resolve() / COMMAND, Remembered(str(self._command), master_url))
        self._lock = threading.RLock()
        self.hosts()

    def application(self, terms: Terms) -> dict[str, str]:
        """Return the settings of a Spark application on this pool: one executor per machine."""
        kinds = terms.kinds
        cores = max(1, round(max(kind.cores for kind in kinds)))
        return {
            "spark.executor.cores": str(cores),
            "spark.executor.memory": f"{round(min(kind.memory_mb for kind in kinds))}m",
            "spark.sql.shuffle.partitions": str(cores * (terms.budget.most_hosts or 1)),
            **GRACEFUL,
        }

    # -- the port

    def lease(self, name: str, kind: HostType) -> None:
        """Write the lease to disk, then call the command: after a crash, the file makes the service ask for the machine again."""
        with self._lock:
            leases = self._leases()
            if name in leases:
                return
            number = 1 + max((lease.number for lease in leases.values()), default=0)
            lease = Lease(name, number, kind, self._clock())
            self._write(lease)
            try:
                self._ask_for(lease)
            except EngineError:
                with suppress(EngineError):
                    self._called("release", name)  # a command that failed late may have leased the machine
                self._path(name).unlink(missing_ok=True)
                raise

    def release(self, name: str) -> None:
        """Let the machine leave the cluster; the machine is gone once the command no longer lists it."""
        with self._lock:
            lease = self._leases().get(name)
            if lease is not None and lease.releasing_s is None:
                lease = replace(lease, releasing_s=self._clock())
                self._write(lease)
                self._give_back(lease)

    def hosts(self) -> Mapping[str, Host]:
        """Return the hosts as the command lists them; repeat leases and releases that the command has not taken yet."""
        with self._lock:
            leases = self._leases()
            if not leases:
                return {}
            for lease in leases.values():
                if not lease.asked and lease.releasing_s is None:
                    self._ask_for(lease)
                elif lease.releasing_s is not None and not lease.released:
                    self._give_back(lease)
            listed = {one.name: one for one in self._listed()}
            found = [self._host(lease, listed.get(lease.name)) for lease in self._leases().values()]
            return {host.name: host for host in found if host is not None}

    def close(self) -> None:
        """Give back every machine. A release that the command does not take stays on file and is repeated at the next start."""
        with self._lock:
            for lease in self._leases().values():
                try:
                    self._give_back(replace(lease, releasing_s=lease.releasing_s or self._clock()))
                    self._path(lease.name).unlink(missing_ok=True)
                except EngineError as error:
                    print(f'headgate: host "{lease.name}" may still be paid for: {error}', file=sys.stderr)
            if not self._leases():
                (self._leases_dir.parent / COMMAND).unlink(missing_ok=True)

    # -- one machine

    def _ask_for(self, lease: Lease) -> None:
        self._called("lease", lease.name, f"{lease.kind.cores:g}", f"{lease.kind.memory_mb:g}")
        self._write(replace(lease, asked=True))

    def _give_back(self, lease: Lease) -> None:
        if not lease.released:
            self._called("release", lease.name)
        self._write(replace(lease, released=True))

    def _host(self, lease: Lease, listed: Listed | None) -> Host | None:
        host = Host(lease.name, lease.kind, lease.leased_s, address=listed.address if listed is not None else "")
        if lease.releasing_s is not None:
            if listed is None:
                self._path(lease.name).unlink(missing_ok=True)
                return None
            return replace(host, phase=HostPhase.RELEASING)
        if listed is not None:
            return self._in_time(replace(host, phase=listed.state, reason=listed.reason))
        return self._in_time(host)

    def _in_time(self, host: Host) -> Host:
        waits_s = self._clock() - host.leased_s
        if host.phase is HostPhase.STARTING and waits_s > self._limits.patience_s:
            return replace(host, phase=HostPhase.FAILED, reason=f"it is not ready {waits_s:.0f} s after its lease")
        if host.phase is HostPhase.RELEASING:
            return replace(
                host, phase=HostPhase.FAILED, reason="the command releases it, and Headgate did not ask for that"
            )
        return host

    # -- the command

    def _listed(self) -> list[Listed]:
        lines = enumerate(self._called("list").splitlines(), 1)
        found = [_read(line, number, self._command) for number, line in lines if line.strip()]
        names = [one.name for one in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise EngineError(f'{self._command} list: host "{twice}" is listed twice; each host has one line')
        return found

    def _called(self, *arguments: str) -> str:
        """Call the command and return its output; the command and all processes of its session are killed after `command_s`."""
        what = f"{self._command} {' '.join(arguments)}"
        try:
            process = subprocess.Popen(
                [str(self._command), *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                env={**os.environ, MASTER_VARIABLE: self.master_url},
            )  # fmt: skip
        except OSError as error:
            raise EngineError(f"{what}: cannot be started: {error.strerror or error}") from None
        try:
            out, complaint = process.communicate(timeout=self._limits.command_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise EngineError(f"{what}: did not end within {self._limits.command_s:g} s; setting: command_s") from None
        if process.returncode != 0:
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            because = f": {last[0][:SHOWN]}" if last else ""
            raise EngineError(f"{what}: ended with exit code {process.returncode}{because}")
        return out.decode(errors="replace")

    # -- files

    def _leases(self) -> dict[str, Lease]:
        """The leases in the order of their numbers."""
        found = [lease for path in self._leases_dir.glob("*.json") if (lease := _lease_in(path)) is not None]
        return {lease.name: lease for lease in sorted(found, key=lambda lease: lease.number)}

    def _write(self, lease: Lease) -> None:
        _write_file(self._path(lease.name), lease)

    def _path(self, name: str) -> Path:
        return self._leases_dir / f"{name}.json"


def runnable(command: Path) -> Path:
    """Return the command, or raise a sentence about why it cannot be called."""
    found = command.resolve()
    if not found.is_file():
        raise InputError(f'--hosts: "{command}" does not exist; give an executable that leases and releases machines')
    if not os.access(found, os.X_OK):
        raise InputError(f'--hosts: "{command}" is not executable; run chmod +x on it')
    return found


def remembered(home: Path) -> Remembered | None:
    """Return the command of an earlier pool that was not closed; None if there is none."""
    try:
        return msgspec.json.decode((home / COMMAND).read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _read(line: str, number: int, command: Path) -> Listed:
    try:
        return msgspec.json.decode(line.encode(), type=Listed)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise EngineError(f"{command} list: line {number} is not a host ({error}): {line.strip()[:SHOWN]}") from None


def _lease_in(path: Path) -> Lease | None:
    """Read a lease; set a damaged file aside, name the machine on stderr for a person to release, and return None."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lease)
    except (msgspec.MsgspecError, UnicodeDecodeError, HostError) as error:
        aside = files.set_aside(path)
        print(
            f'headgate: host "{path.stem}" may still be paid for: its lease is damaged ({error}) and kept as {aside}',
            file=sys.stderr,
        )
        return None


def _write_file(path: Path, content: Lease | Remembered) -> None:
    try:
        files.replace(path, msgspec.json.encode(content))
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror or error}") from None
