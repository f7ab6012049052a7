"""The service under chaos: runs `headgate run` as a process, finds the processes of the service by role, and calls the service's API."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

JOB = "chaos"
HOSTS = 3
STOP_S = 90.0
"""Seconds after SIGTERM after which a service that has not ended is killed; processes still running after that count as left."""
ASK_S = 5.0
CHANGE_S = 60.0
"""Seconds to wait for a change, because a pause waits for the epoch in flight."""
SETTINGS = ("merge_epochs=10", "upkeep_epochs=3", "back_off_limit_s=5")


class ProcessRole(enum.Enum):
    """The role of a process of a service."""

    DRIVER = "driver"
    JVM = "JVM of the driver"
    MASTER = "master"
    WORKER = "worker"
    EXECUTOR = "executor"
    LANE = "lane"


_CLASSES = {
    "org.apache.spark.deploy.SparkSubmit": ProcessRole.JVM,
    "org.apache.spark.deploy.master.Master": ProcessRole.MASTER,
    "org.apache.spark.deploy.worker.Worker": ProcessRole.WORKER,
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": ProcessRole.EXECUTOR,
}
_LANES = ["headgate.spark.processes.daemon", "pyspark.worker"]


class SupervisedService:
    """A service that a watcher starts again after the service has ended, as an operator or systemd would."""

    def __init__(self, home: Path, url: str, out: Path, log: Path) -> None:
        self.home, self.starts = home, 0
        job = Path(__file__).with_name("job.py")
        self._command = [
            sys.executable, "-m", "headgate.cli", "run", str(job), "--home", str(home), "--fast", "--hosts", f"local:{HOSTS}",
            "--param", f"url={url}", "--param", f"out={out}", *(part for one in SETTINGS for part in ("--set", one)),
        ]  # fmt: skip
        self._log: IO[bytes] = log.open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Guards `_seen`."""
        self._seen: set[psutil.Process] = set()
        """Every process that ever belonged to the service; a later process with the same id counts as another process."""

    # -- its life

    def keep_running(self) -> bool:
        """Start the service unless the service runs; return whether a start was needed."""
        if self._process is not None and self._process.poll() is None:
            return False
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self.starts += 1
        return True

    def stop(self) -> bool:
        """Stop the service with SIGTERM; return whether the service ended in time."""
        if self._process is None or self._process.poll() is not None:
            return True
        self.processes()
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """Kill the process of the service; the processes that the service has started must survive or end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Kill every process of the service."""
        self.kill()
        self.processes()
        for process in self.left():
            process.kill()
        psutil.wait_procs(self.left(), timeout=10)
        self._log.close()

    # -- its processes

    def processes(self) -> Mapping[ProcessRole, list[psutil.Process]]:
        """Return the running processes by role; processes without a role are remembered for `left`, too."""
        members = {process.pid: process for root in self._roots() for process in _with_children(root)}
        with self._lock:
            self._seen.update(members.values())
        found: dict[ProcessRole, list[psutil.Process]] = {role: [] for role in ProcessRole}
        for process in members.values():
            role = _role(process)
            if role is not None:
                found[role].append(process)
        # The driver is the process that started the JVM: the service, or a child. A JVM without driver belongs to the system and must live.
        started = (_parent(process) for process in found[ProcessRole.JVM])
        found[ProcessRole.DRIVER] = [
            members[parent.pid] for parent in started if parent is not None and parent.pid in members
        ]
        return found

    def left(self) -> list[psutil.Process]:
        """Return the processes of the service that still run."""
        with self._lock:
            return [process for process in self._seen if _runs(process)]

    def _roots(self) -> Iterator[psutil.Process]:
        """Yield the processes with the home in their arguments, because master and workers outlive their driver."""
        home, this = str(self.home), psutil.Process()
        for process in psutil.process_iter():
            try:
                ours = any(argument.startswith(home) for argument in process.cmdline())
            except psutil.Error:
                continue
            if ours and process != this:
                yield process

    # -- its API

    def status(self) -> Mapping[str, Any] | None:
        """Return the status of the service; None if the service does not answer."""
        try:
            found: Mapping[str, Any] = self._asked("GET", "/status", ASK_S).json()
        except (httpx.HTTPError, OSError, ValueError, KeyError):
            return None
        return found

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bool:
        """Send a request about the job; return whether the request succeeded."""
        try:
            return self._asked(method, f"/jobs/{JOB}{path}", CHANGE_S, body).is_success
        except (httpx.HTTPError, OSError, ValueError, KeyError):
            return False

    def _asked(self, method: str, path: str, within_s: float, body: Mapping[str, Any] | None = None) -> httpx.Response:
        url = json.loads((self.home / "server.json").read_text())["url"]
        headers = {"Authorization": f"Bearer {(self.home / 'token').read_text()}"}
        return httpx.request(method, url + path, headers=headers, json=body, timeout=within_s, trust_env=False)


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [one for one in (process, *process.children(recursive=True)) if _runs(one)]
    except psutil.Error:
        return []


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None


def _role(process: psutil.Process) -> ProcessRole | None:
    """Return the role of a process by its arguments; None if the process has no role or has ended."""
    try:
        arguments = process.cmdline()
        known = (_CLASSES[argument] for argument in arguments if argument in _CLASSES)
        # The process that lanes are forked from has the same arguments as a lane; killing that process kills all lanes.
        parent = process.parent() if arguments[-2:] == _LANES else None
        lane = ProcessRole.LANE if parent is not None and parent.cmdline() == arguments else None
        return next(known, lane)
    except psutil.Error:
        return None
