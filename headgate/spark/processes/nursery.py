"""The driver's side of the nursery: a process with everything imported, from which other processes are forked.

A Python process that imports PySpark and Arrow takes more than half a core second to start; forked from the nursery it takes a hundredth of
that. The nursery forks the processes that load job files (`jobloader`) and the ones that Spark starts for sources (`launcher`).
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from headgate import files
from headgate.spark.processes.launcher import ADDRESS

SECRET = re.compile(r"_?(HEADGATE|PYSPARK|SPARK|PY4J)\w*(SECRET|TOKEN|PASSWORD|AUTH)\w*", re.IGNORECASE)
"""Variables of the service's own that a job file has no business with."""
HARMLESS = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|JAVA_HOME|PYTHON[A-Z0-9]*"
    r"|PYSPARK_PYTHON|PYSPARK_DRIVER_PYTHON|SPARK_HOME|SPARK_CONF_DIR|SPARK_LOCAL_\w+|HADOOP_HOME|HADOOP_CONF_DIR"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|ARROW_\w+"
)
"""Variables that the nursery starts with, and with it every job file: they name places and habits, never secrets."""
LAUNCHER = "python"


class Nursery:
    """Starts when it is first needed, and again after it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while the process is started or receives a request; owner of the three fields below."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._name = ""
        """Of the socket that launchers ask at: given when it first starts, because a forked service must have its own."""

    def start(self) -> str:
        """Have it import what it needs while something else goes on; the name that launchers find it by."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            if self._control is None:
                self._started()
            return self._name

    def fork(self, connection: int, output: int) -> None:
        """Fork a process that loads a job file; raises `OSError` if the nursery was killed, and works again after `close`."""
        with self._lock:
            socket.send_fds(self._control or self._started(), [b"."], [connection, output])

    def close(self) -> None:
        """End the process; it starts again when it is needed."""
        with self._lock:
            self._end()

    @property
    def process(self) -> int | None:
        """Its number; None while it does not run."""
        return None if self._process is None else self._process.pid

    def _started(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        self._name = self._name or f"headgate-{secrets.token_hex(16)}"
        places = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", ""))))
        kept = {name: value for name, value in os.environ.items() if HARMLESS.fullmatch(name)}
        # The listener stays with the nursery alone: while there is none, launchers are refused at once and start Python.
        with theirs, _listening(self._name) as listener:
            given = (theirs.fileno(), listener.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate.spark.processes.nurseryworker", *map(str, given)],
                env={**kept, "PYTHONPATH": places, "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                pass_fds=given,
                start_new_session=True,  # Ctrl-C is for the service
            )
        self._control = mine
        return mine

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None


def _listening(name: str) -> socket.socket:
    """A socket without a file: its name has any length, and nothing is left when the process is killed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen()
    return listener


def further_variables(named: Collection[str] | None) -> dict[str, str]:
    """What a job file has in its environment beside the harmless variables: those named, or all but secrets of the service."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != ADDRESS
        and not HARMLESS.fullmatch(name)
        and not SECRET.fullmatch(name)
        and (named is None or name in named)
    }


NURSERY = Nursery()
"""Of this process."""
atexit.register(NURSERY.close)


def launcher(home: Path) -> str:
    """The command that Spark starts Python by: the launcher, or Python itself where it cannot be used."""
    if sys.platform != "linux":
        return sys.executable
    found = find_spec("headgate.spark.processes.launcher")
    assert found is not None and found.origin is not None
    path = home / LAUNCHER
    files.replace(path, f"#!{sys.executable} -IS\n{Path(found.origin).read_text()}".encode())
    path.chmod(0o700)
    if " " in sys.executable or not os.access(
        path, os.X_OK
    ):  # the home may be mounted without the right to run programs
        return sys.executable
    os.environ[ADDRESS] = NURSERY.start()
    return str(path)
