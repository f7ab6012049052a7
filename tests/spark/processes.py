"""A command in a session of its own, so that everything it starts can be found, and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0


class Run:
    """What the command prints comes line by line; what it complains about is kept in a file."""

    def __init__(self, place: Path, command: Sequence[str]) -> None:
        self._errors = (place / "stderr").open("w+")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )

    def lines(self) -> Iterator[str]:
        """What it prints, as it goes on."""
        assert self.process.stdout is not None
        yield from self.process.stdout

    def signal(self, number: int) -> None:
        """To all of it at once, as a terminal does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """`kill -9` for all of it at once."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Its exit code; nothing that it has started may be left."""
        code = self.process.wait(PATIENCE_S)
        deadline_s = time.monotonic() + 30
        while (left := self.members()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not left, left
        return code

    def members(self) -> list[str]:
        """What still runs of it, whatever process group it has moved to."""
        return [f"{one.pid} {one.name()}" for one in psutil.process_iter() if _session_of(one) == self.process.pid]

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        for one in psutil.process_iter():
            if _session_of(one) == self.process.pid:
                one.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


def told_by(module: str, place: Path) -> Any:
    """What a script of the tests says in the end, in its last line; it works in that place."""
    run = Run(place, [sys.executable, "-m", module, str(place)])
    try:
        lines = list(run.lines())
        assert run.wait() == 0, run.errors()
        return json.loads(lines[-1])
    finally:
        run.close()


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
