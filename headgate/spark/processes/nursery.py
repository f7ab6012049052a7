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
"""Environment variables of the service that no job file may have."""
HARMLESS = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|JAVA_HOME|PYTHON[A-Z0-9]*"
    r"|PYSPARK_PYTHON|PYSPARK_DRIVER_PYTHON|SPARK_HOME|SPARK_CONF_DIR|SPARK_LOCAL_\w+|HADOOP_HOME|HADOOP_CONF_DIR"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|ARROW_\w+"
)
"""Environment variables that the nursery and every job file have: these variables describe places and preferences, never secrets."""
LAUNCHER = "python"


class Nursery:
    """Starts the nursery's process at its first use, and again after the process was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while the process is started or receives a request; owner of the three fields below."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._name = ""
        """Name of the socket for launchers; made at the first start, because a forked service must have its own name."""

    def start(self) -> str:
        """Start the process, which imports modules in the background; return the name of the socket for launchers."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            if self._control is None:
                self._started()
            return self._name

    def fork(self, connection: int, output: int) -> None:
        """Fork a process that loads a job file; raise `OSError` if the nursery was killed. After `close`, the next call starts it again."""
        with self._lock:
            socket.send_fds(self._control or self._started(), [b"."], [connection, output])

    def close(self) -> None:
        """End the process; the next use starts it again."""
        with self._lock:
            self._end()

    @property
    def process(self) -> int | None:
        """Id of the process; None while it does not run."""
        return None if self._process is None else self._process.pid

    def _started(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        self._name = self._name or f"headgate-{secrets.token_hex(16)}"
        places = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", ""))))
        kept = {name: value for name, value in os.environ.items() if HARMLESS.fullmatch(name)}
        # Only the nursery holds the listener: without a nursery, launchers are refused at once and start Python.
        with theirs, _listening(self._name) as listener:
            given = (theirs.fileno(), listener.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate.spark.processes.nurseryworker", *map(str, given)],
                env={**kept, "PYTHONPATH": places, "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                pass_fds=given,
                start_new_session=True,  # Ctrl-C concerns the service only
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
    """Environment variables of a job file in addition to the harmless ones: the named ones, or all but secrets if `named` is None."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != ADDRESS
        and not HARMLESS.fullmatch(name)
        and not SECRET.fullmatch(name)
        and (named is None or name in named)
    }


NURSERY = Nursery()
"""The nursery of this process."""
atexit.register(NURSERY.close)


def launcher(home: Path) -> str:
    """Return the command with which Spark starts Python: the launcher, or Python itself if the launcher cannot be used."""
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
