"""What a job under chaos stands on: a Redis that is stopped and comes back with its data, and a disk that becomes full."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from redis import Redis, RedisError

from headgate.bench.workload import wait_for
from headgate.errors import EngineError

ADDRESS = "127.0.0.1"
DISK_MB = 512


class RedisServer:
    """Keeps its data in a directory, so that it has them again after a stop."""

    def __init__(self, place: Path) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise EngineError("this benchmark needs redis-server; `make set-up` installs it")
        place.mkdir(parents=True)
        port = _free_port()
        self.url = f"redis://{ADDRESS}:{port}"
        self.client = Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=2)
        self._command = [
            found, "--port", str(port), "--bind", ADDRESS, "--save", "", "--appendonly", "yes", "--dir", str(place),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers, with all its data."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self._answers)

    def stop(self) -> None:
        """It writes down everything first."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        self.client.close()

    def rows(self, stream: str) -> int | None:
        """None while it is away."""
        try:
            return int(self.client.xlen(stream))
        except RedisError:
            return None

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False


class Disk:
    """A small file system of our own, where that is permitted; otherwise a directory that cannot be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.refusal = self._mount()
        """Why it cannot be filled; empty if it can."""
        self._ballast = path / "ballast"

    def _mount(self) -> str:
        if os.geteuid() != 0:
            return "only root can mount a small file system"
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "headgate-chaos", str(self.path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"mount: {error.strerror}"
        return "" if done.returncode == 0 else done.stderr.strip() or "mount failed"

    def fill(self) -> None:
        """Take what is free, to the last block."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for piece in (1 << 20, 4096):
                try:
                    while True:
                        ballast.write(bytes(piece))
                except OSError:
                    continue

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        self.free()
        if not self.refusal:
            # A process that is still there must not keep it mounted for ever.
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((ADDRESS, 0))
        return int(found.getsockname()[1])
