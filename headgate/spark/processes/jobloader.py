"""Loads job files in separate processes with a time limit: no job file can stop the service or other jobs.

The functions of a topology come back as pickles, with the modules that lie beside the job file inside, so that the service imports
none of them and two jobs may have different modules of the same name.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from headgate.config import Settings
from headgate.core.quantities import about
from headgate.errors import JobFileError, NeedsSparkError
from headgate.jobfile import JobRequest, check_texts
from headgate.spark.jobs.loading import LOADING, late, load
from headgate.spark.processes.nursery import NURSERY, further_variables
from headgate.topology import Topology

START_S = 60.0
"""Time limit in seconds for the start of the nursery's process."""
LENGTH = struct.Struct(">Q")
SHOWN = 4096
"""Bytes of a job file's last output that are kept."""


@dataclass(frozen=True, slots=True)
class LoadQuestion:
    """A request to load a job file, its time limit and its environment."""

    request: JobRequest
    limit_s: float
    environment: dict[str, str]
    """Environment variables in addition to the variables of the nursery."""


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """The result of loading a job file: a pickled topology, or the reason why there is none.

    Both are empty if the topology cannot leave the process that built it, such as a topology with an open connection.
    """

    topology: bytes | None = None
    trouble: str = ""
    wants_spark: bool = False


@dataclass(frozen=True, slots=True)
class TenantFile:
    """The rules for job files of tenants: never loaded in the service itself, and with few environment variables."""

    variables: tuple[str, ...] = ()
    """Names of environment variables in addition to the harmless ones."""


def build(request: JobRequest, limit_s: float | None = None, rules: TenantFile | None = None) -> Topology:
    """The topology of a job file, of the operator or by the rules for tenants.

    Raises `NeedsSparkError` if the file asks for a session and there is none yet.
    """
    limit_s = Settings().load_job_s if limit_s is None else limit_s
    return _as_requested(_built(request, limit_s, rules), request)


def _built(request: JobRequest, limit_s: float, rules: TenantFile | None) -> object:
    environment = further_variables(None if rules is None else rules.variables)
    answer = _ask(LoadQuestion(request, limit_s, environment))
    if answer.topology is not None:
        return pickle.loads(answer.topology)
    if answer.trouble and not answer.wants_spark:
        raise JobFileError(answer.trouble)
    if rules is not None:
        raise JobFileError(_not_for_tenants(request, answer))
    if answer.trouble and not _spark_runs():
        raise NeedsSparkError(answer.trouble)
    return _loaded_here(request, limit_s)


def _not_for_tenants(request: JobRequest, answer: LoadAnswer) -> str:
    """Say why a tenant's file is refused if only the service itself could load it."""
    if answer.trouble:
        return (
            f"{answer.trouble}; a tenant's file is loaded without a Spark session: move what needs one into a function"
        )
    return (
        f"{request.file}: its functions refer to an object that cannot be sent to another process, such as a lock or an open"
        " connection; make this object inside the function"
    )


def _as_requested(topology: object, request: JobRequest) -> Topology:
    """Return the topology with the name and the tenant of its request, whatever the code of the job file has set.

    A subclass of `Topology` is refused: it could compute name and tenant, with another result at each reading.
    """
    if type(topology) is not Topology:
        raise JobFileError(
            f"{request.file}: topology() returned an object of the class {type(topology).__name__}; return a headgate.Topology"
        )
    topology.name = request.name or topology.name
    topology.tenant = request.tenant or topology.tenant
    with about(request.file, JobFileError):
        check_texts({"name": topology.name, "tenant": topology.tenant})
    return topology


def _loaded_here(request: JobRequest, limit_s: float) -> Topology:
    """In this process. Python cannot end a thread: one that takes too long is left behind, and with it the turn of later files."""
    loaded: Future[Topology] = Future()

    def work() -> None:
        try:
            loaded.set_result(load(request, limit_s))
        except BaseException as error:  # raised where it is waited for
            loaded.set_exception(error)

    thread = threading.Thread(target=work, name="job-loading", daemon=True)
    thread.start()
    try:
        return loaded.result(limit_s)
    except TimeoutError:
        raise JobFileError(LOADING.late(request.file, limit_s, thread)) from None


def _spark_runs() -> bool:
    from headgate.spark import jvm

    return jvm.spark_runs()


class _NoProcess(Exception):
    """The nursery forked no process: it was killed, or each of its processes ends at once."""


def _ask(question: LoadQuestion) -> LoadAnswer:
    """Have the nursery load a file; any number of threads may ask at once."""
    for last in (False, True):
        try:
            return _ask_process(question)
        except _NoProcess:
            if not last:
                NURSERY.close()  # it starts again
    raise JobFileError(f"{question.request.file}: the process that loads job files did not start; see its output above")


def _ask_process(question: LoadQuestion) -> LoadAnswer:
    mine, theirs = socket.socketpair()
    reading, writing = os.pipe()
    printed = Printed(reading)
    with mine:
        try:
            NURSERY.fork(theirs.fileno(), writing)
        except OSError:
            raise _NoProcess from None
        finally:
            theirs.close()
            os.close(writing)
        return _answered(mine, question, printed)


# -- a conversation ----------------------------------------------------------------------------------------------------


def _answered(connection: socket.socket, question: LoadQuestion, printed: Printed) -> LoadAnswer:
    file = question.request.file
    connection.settimeout(START_S)
    message = msgspec.msgpack.encode(question)
    try:
        connection.sendall(LENGTH.pack(len(message)) + message)
        (process,) = LENGTH.unpack(_exactly(connection, LENGTH.size, START_S))
    except (OSError, EOFError):
        raise _NoProcess from None
    try:
        return msgspec.msgpack.decode(received(connection, question.limit_s), type=LoadAnswer)
    except TimeoutError:
        raise JobFileError(late(file, question.limit_s)) from None
    except (OSError, EOFError):
        said = printed.last_line()
        raise JobFileError(f"{file}: its process ended while it was loaded{said and f': {said}'}") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        printed.forward()


def received(connection: socket.socket, limit_s: float | None = None) -> bytes:
    """Receive one message."""
    ends_s = None if limit_s is None else time.monotonic() + limit_s
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, limit_s))
    return _exactly(connection, length, None if ends_s is None else ends_s - time.monotonic())


def _exactly(connection: socket.socket, length: int, limit_s: float | None) -> bytes:
    ends_s = None if limit_s is None else time.monotonic() + limit_s
    found = bytearray()
    while len(found) < length:
        if ends_s is not None:
            connection.settimeout(max(0.001, ends_s - time.monotonic()))
        part = connection.recv(min(1 << 20, length - len(found)))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


class Printed:
    """Reads the output of a job file, so that the job file never waits for the service; the end of the output is kept."""

    def __init__(self, descriptor: int) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._read, args=(descriptor,), name="job-output", daemon=True)
        self._thread.start()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while part := file.read(1 << 16):
                self._kept = (self._kept + part)[-SHOWN:]

    def _text(self) -> str:
        self._thread.join(1.0)
        return self._kept.decode(errors="replace")

    def last_line(self) -> str:
        """The last line of the output, mostly the reason of a crash; empty if nothing was printed."""
        return next((line.strip() for line in reversed(self._text().splitlines()) if line.strip()), "")

    def forward(self) -> None:
        """The error in messages."""
        if text := self._text():
            sys.stderr.write(text)
            sys.stderr.flush()
