"""Processes that the nursery forks are what Python would have been, end with whoever asked for them, and start without it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headgate.spark.processes import nursery
from headgate.spark.processes.launcher import ADDRESS
from headgate.spark.processes.nursery import NURSERY

from .conftest import Until

SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
SECRET = b"only ours"


class Launched:
    """A process that reads a source, started as Spark starts it; this is Spark's end."""

    def __init__(self, launcher: str, place: Path, **changed: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as spark:
            port = str(spark.getsockname()[1])
            given = {"PYTHON_WORKER_FACTORY_PORT": port, "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode()}
            self.launcher = subprocess.Popen(
                [launcher, "-m", SOURCE], env={**os.environ, **given, **changed}, cwd=place, stdin=subprocess.DEVNULL
            )
            spark.settimeout(60)
            self.line, _ = spark.accept()
        assert self._said(4 + len(SECRET)) == number(len(SECRET)) + SECRET
        self.line.sendall(number(2) + b"ok")
        self.process = int.from_bytes(self._said(4), "big")
        """What the process says its number is."""

    def _said(self, length: int) -> bytes:
        self.line.settimeout(60)
        return self.line.recv(length, socket.MSG_WAITALL)

    @property
    def parent(self) -> int:
        return psutil.Process(self.process).ppid()

    def close(self) -> None:
        self.line.close()
        self.launcher.kill()
        self.launcher.wait()


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    launcher = nursery.launcher(tmp_path)
    assert launcher == str(tmp_path / "python")
    started: list[Launched] = []

    def start(**changed: str) -> Launched:
        started.append(Launched(launcher, tmp_path, **changed))
        return started[-1]

    yield start
    for one in started:
        one.close()


def gone(process: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def test_forked_process_has_the_place_and_the_environment_of_its_launcher(launch: Launch, tmp_path: Path) -> None:
    found = launch()
    assert found.process != found.launcher.pid
    assert found.parent == NURSERY.process
    assert Path(f"/proc/{found.process}/cwd").resolve() == tmp_path


def test_launcher_ends_when_the_forked_process_ends(launch: Launch) -> None:
    found = launch()
    assert found.launcher.poll() is None
    found.line.close()
    found.launcher.wait(60)
    assert gone(found.process)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_forked_process_ends_with_its_launcher(launch: Launch, until: Until, how: signal.Signals) -> None:
    found = launch()
    found.launcher.send_signal(how)
    until(lambda: gone(found.process), "the end of the forked process")


def test_nursery_survives_a_launcher_and_a_process_that_end_at_the_same_moment(launch: Launch, until: Until) -> None:
    found, forking = launch(), NURSERY.process
    assert forking is not None
    os.kill(forking, signal.SIGSTOP)
    os.kill(found.process, signal.SIGKILL)
    found.launcher.kill()
    found.launcher.wait()
    os.kill(forking, signal.SIGCONT)
    until(lambda: gone(found.process), "the end of the forked process")
    assert launch().parent == forking == NURSERY.process


def test_python_starts_where_there_is_no_nursery(launch: Launch) -> None:
    found = launch(**{ADDRESS: "headgate-none"})
    assert found.process == found.launcher.pid


@pytest.mark.usefixtures("launch")
def test_what_the_nursery_does_not_know_is_run_by_python(tmp_path: Path) -> None:
    done = subprocess.run(
        [tmp_path / "python", "-c", "import os; print(os.getppid())"], capture_output=True, check=True
    )
    assert int(done.stdout) == os.getpid()


def test_python_starts_until_a_killed_nursery_is_replaced_under_the_same_name(launch: Launch, until: Until) -> None:
    first = NURSERY.process
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: gone(first), "its end")
    without = launch()
    assert without.process == without.launcher.pid
    NURSERY.start()
    assert launch().parent == NURSERY.process != first


def test_nursery_ends_with_its_driver(until: Until) -> None:
    driver = "from headgate.spark.processes.nursery import NURSERY; NURSERY.start(); print(NURSERY.process, flush=True); input()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", driver], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    forking = int(process.stdout.readline())
    assert not gone(forking)
    process.kill()
    process.communicate()
    until(lambda: gone(forking), "the end of the nursery")
