"""The nursery: forks processes that load job files and processes that Spark asks for, and ends with the driver."""

from __future__ import annotations

import gc
import marshal
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from headgate.spark.processes import jobworker
from headgate.spark.processes.launcher import ADDRESS, LENGTH

NEEDED = (
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyspark.accumulators",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.functions",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker_util",
    "headgate.spark.sources",
    "headgate.spark.sinks",
    "headgate.state.operators",
    "redis",
)
CREDENTIALS = struct.Struct("3i")
STANDARD = 3
"""Number of a program's standard descriptors: input, output and error."""
REQUEST_S = 10.0
"""A launcher that has not sent its request within this time is dropped."""


class NurseryServer:
    """Serves on one thread: waits for requests, for the end of forked processes, and for the end of the driver."""

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._control, self._listener = control, listener
        self._selector = selectors.DefaultSelector()
        self._launchers: dict[int, socket.socket] = {}
        """The connection of the launcher that waits for a program, by the program's process."""
        self._watch(control, self._load)
        self._watch(listener, self._run)

    def serve(self) -> None:
        """Serve requests until the driver has ended."""
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _watch(self, source: socket.socket | int, act: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    # -- job files

    def _load(self) -> None:
        message, given, _, _ = socket.recv_fds(self._control, 1, 2)
        if not message:
            self._end()
        self._fork(lambda: jobworker.serve(socket.socket(fileno=given[0]), given[1]))
        for one in given:
            os.close(one)

    # -- programs

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_S)
        given: list[int] = []
        try:
            _check_owner(connection)
            length, given, _, _ = socket.recv_fds(connection, LENGTH, STANDARD)
            arguments, place, environment = marshal.loads(_received(connection, int.from_bytes(length, "big")))
            process = self._fork(lambda: _become(arguments, place, environment, given))
            connection.sendall(b".")
        except (OSError, EOFError, ValueError):  # the launcher was killed, or belongs to another user
            connection.close()
            return
        finally:
            for one in given:
                os.close(one)
        self._launchers[process] = connection
        self._watch(connection, lambda: self._terminate(process))

    def _terminate(self, process: int) -> None:
        """End the program of a launcher that Spark has ended; the program may have ended at the same moment."""
        connection = self._launchers.get(process)
        if connection is None:
            return
        self._selector.unregister(connection)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)

    # -- processes

    def _fork(self, run: Callable[[], None]) -> int:
        process = os.fork()
        if process == 0:
            self._selector.close()
            for one in (self._control, self._listener, *self._launchers.values()):
                one.close()
            _run_and_exit(run)
        ended = os.pidfd_open(process)
        self._watch(ended, lambda: self._reap(process, ended))
        return process

    def _reap(self, process: int, ended: int) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        os.waitpid(process, 0)
        connection = self._launchers.pop(process, None)
        if connection is not None:
            with suppress(KeyError):  # the launcher had ended before
                self._selector.unregister(connection)
            connection.close()

    def _end(self) -> NoReturn:
        for process in self._launchers:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        os._exit(0)


def _check_owner(connection: socket.socket) -> None:
    """Refuse requests of other users, because every user of the machine can see the name of the socket."""
    size = CREDENTIALS.size
    _, user, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if user != os.geteuid():
        raise PermissionError(f"user {user} asked for a process")


def _received(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Run a function and exit as Python would, without the clean-up that belongs to the nursery."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code & 0xFF)


def _become(arguments: list[str], place: str, environment: dict[str, str], standard: list[int]) -> None:
    """Run a module like `python -m` with these arguments."""
    for number, given in enumerate(standard):
        os.dup2(given, number)
        os.close(given)
    os.chdir(place)
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if name != ADDRESS})
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [place, *(path for path in known if path and path not in sys.path)]
    sys.argv = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for all processes of Spark's JVM
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for module in NEEDED:
        import_module(module)
    gc.freeze()  # a forked process must not copy what it only reads
    NurseryServer(*(socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:])).serve()
