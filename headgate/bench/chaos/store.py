"""Redis and the disk of a job under chaos: a Redis that stops and starts again with its data, and a disk that can be filled."""

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
    """A Redis server that keeps its data in a directory, and so across a stop."""

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
        """Start Redis; return when Redis answers with all its data."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self._answers)

    def stop(self) -> None:
        """Stop Redis; Redis first writes its data to disk."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        self.client.close()

    def rows(self, stream: str) -> int | None:
        """Return the number of rows of a stream; None while Redis is stopped."""
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
    """A small file system for one run where mounting is permitted; otherwise a directory that cannot be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.refusal = self._mount()
        """The reason why the disk cannot be filled; empty if the disk can be filled."""
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
        """Fill the disk to the last block."""
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
            # A process that still uses the disk must not keep the disk mounted for ever.
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((ADDRESS, 0))
        return int(found.getsockname()[1])
