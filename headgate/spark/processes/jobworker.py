"""Runs in a process that was forked to load a job file: it answers one request, and ends together with the processes it started."""

from __future__ import annotations

import dis
import io
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import msgspec
from pyspark import cloudpickle

from headgate.errors import JobFileError
from headgate.spark.jobs.loading import load, wants_spark
from headgate.spark.processes.jobloader import LENGTH, LoadAnswer, LoadQuestion, received
from headgate.topology import Topology

GRACE_S = 5
"""Time after its limit, in seconds, at which a process whose service has died ends."""


def serve(connection: socket.socket, output: int) -> None:
    """Answer one request, then wait for the end: the service ends this process together with the processes that it started."""
    try:
        os.setsid()
        for own, place in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(place, own)
        connection.sendall(LENGTH.pack(os.getpid()))
        question = msgspec.msgpack.decode(received(connection), type=LoadQuestion)
        signal.alarm(math.ceil(question.limit_s) + GRACE_S)
        os.environ.update(question.environment)
        answer = msgspec.msgpack.encode(_answer(question))
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(LENGTH.pack(len(answer)) + answer)
        connection.recv(1)
    finally:
        os._exit(0)


def _answer(question: LoadQuestion) -> LoadAnswer:
    try:
        topology = load(question.request)
        return LoadAnswer(topology=_pickled(topology, Path(question.request.file).parent))
    except JobFileError as error:
        return LoadAnswer(trouble=str(error), wants_spark=wants_spark(error))
    except Exception:  # objects in the user's functions may raise anything when they are pickled
        return LoadAnswer()


# -- functions that travel ---------------------------------------------------------------------------------------------


def _pickled(topology: Topology, directory: Path) -> bytes:
    file = io.BytesIO()
    _Pickler(file, directory).dump(topology)  # type: ignore[no-untyped-call]
    return file.getvalue()


class _Pickler(cloudpickle.CloudPickler):
    """A pickler that refuses functions with imports of modules beside the job file: the process that calls them cannot find the modules."""

    def __init__(self, file: io.BytesIO, directory: Path) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._directory = directory

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType) and Path(obj.__code__.co_filename).is_relative_to(self._directory):
            self._check_imports(obj.__code__)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]

    def _check_imports(self, code: CodeType) -> None:
        for line, name in _imports(code):
            top = name.partition(".")[0]
            if (self._directory / f"{top}.py").is_file() or (self._directory / top / "__init__.py").is_file():
                raise JobFileError(
                    f"{code.co_filename}: line {line}: {code.co_name} imports {top}, which lies beside the job file, each time it is"
                    " called; import it at the top of the file, so that it travels with the function"
                )


def _imports(code: CodeType) -> Iterator[tuple[int | None, str]]:
    """The line and the module of each import in a function and in its inner functions."""
    line, level = None, 0
    for step in dis.get_instructions(code):
        line = step.starts_line or line
        if step.opname == "IMPORT_NAME" and level == 0:
            yield line, str(step.argval)
        if step.opname == "LOAD_CONST" and isinstance(step.argval, int):
            level = step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _imports(inner)
