"""Policies of the user's, each in a process of its own: what it raises, returns or never returns must not stop the loop.

A policy is named by an import path, `package.module:Class`, or by an entry point of the group `headgate.policies`. It is given
a job as it was measured and what is remembered of it, and answers with what it found. Its answer is checked field by field. A policy
that fails in any way is switched off with a sentence; its process is ended.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from headgate.core.health.care import Care, Examination
from headgate.core.health.records import Patient, Remedy
from headgate.core.intents import Intent
from headgate.core.model import JobAllocation
from headgate.core.quantities import show_seconds
from headgate.regulation import SwitchedOffError

GROUP = "headgate.policies"
START_S = 60.0
"""How long a policy's process may take to start and import it."""
_LENGTH = struct.Struct(">Q")
MOST_BYTES = 1 << 28
"""A longer answer is none."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a policy's process says first."""

    invasive: bool
    trouble: str = ""
    """Why it cannot be used; empty if it can."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy answered, or why it did not."""

    care: Care | None = None
    examination: Examination | None = None
    trouble: str = ""


Message = TypeVar("Message", Hello, Answer)


class Guarded:
    """An `Examiner` whose policy runs elsewhere, and has so many seconds a round for all its answers."""

    def __init__(self, name: str, path: str, directory: Path, patience_s: float) -> None:
        self.name = name
        self._path = path
        self._directory = directory
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._hello: Hello | None = None
        self._round_s: float | None = None
        self._spent_s = 0.0
        """In the round that is under way."""

    @property
    def invasive(self) -> bool:
        """A policy that cannot even be loaded counts as invasive: only the jobs that name it are concerned."""
        with suppress(SwitchedOffError):
            return self._started().invasive
        return True

    def examine(self, care: Care, patient: Patient) -> tuple[Care, Examination]:
        hello = self._started()
        if hello.trouble:
            raise SwitchedOffError(hello.trouble)
        if patient.at_s != self._round_s:
            self._round_s, self._spent_s = patient.at_s, 0.0
        answer = self._asked(pickle.dumps((care, _plain(patient))))
        if answer.trouble or answer.care is None or answer.examination is None:
            raise self._ended(answer.trouble or "it returned nothing")
        nonsense = _nonsense(answer.examination.remedy, patient)
        if nonsense:
            raise self._ended(nonsense)
        return answer.care, answer.examination

    def close(self) -> None:
        """End its process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    stream.close() if stream is not None else None
            self._process = None

    def _ended(self, text: str) -> SwitchedOffError:
        self.close()
        return SwitchedOffError(text)

    def _started(self) -> Hello:
        if self._hello is not None:
            return self._hello
        command = [sys.executable, "-m", "headgate.policyworker", self._path, str(self._directory)]
        places = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": places}
        )
        self._hello = Hello(True, "its process did not start")
        self._hello = self._received(Hello, START_S)
        return self._hello

    def _asked(self, question: bytes) -> Answer:
        if self._process is None or self._process.stdin is None:
            raise SwitchedOffError("its process has ended")
        try:
            write(self._process.stdin, question)
        except OSError:
            raise self._ended("its process has ended") from None
        begun_s = time.monotonic()
        answer = self._received(Answer, self._patience_s - self._spent_s)
        self._spent_s += time.monotonic() - begun_s
        return answer

    def _received(self, kind: type[Message], patience_s: float) -> Message:
        try:
            return msgspec.msgpack.decode(self._read(patience_s), type=kind)
        except msgspec.MsgspecError as error:
            raise self._ended(f"it returned nonsense: {error}") from None

    def _read(self, patience_s: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        until_s, stream = time.monotonic() + patience_s, self._process.stdout
        length = self._exactly(stream, _LENGTH.size, until_s)
        size = _LENGTH.unpack(length)[0]
        if size > MOST_BYTES:
            raise self._ended("it returned nonsense: its answer is far too long")
        return self._exactly(stream, size, until_s)

    def _exactly(self, stream: IO[bytes], size: int, until_s: float) -> bytes:
        read = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while len(read) < size:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    allowed = START_S if self._round_s is None else self._patience_s
                    raise self._ended(f"it has not answered within {show_seconds(allowed)}")
                part = os.read(stream.fileno(), size - len(read))
                if not part:
                    raise self._ended("its process has ended")
                read += part
        return read


def write(stream: IO[bytes], content: bytes) -> None:
    """A message: its length, then itself."""
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    length = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(length)[0]) if len(length) == _LENGTH.size else None


def _plain(patient: Patient) -> Patient:
    """The same without functions of other users: the shape of an intent may be one."""
    intent = patient.view.job.intent
    bare = Intent(intent.latency_s, intent.percentile, intent.juice, intent.worth, policy=intent.policy)
    job = dataclasses.replace(patient.view.job, intent=bare)
    return dataclasses.replace(patient, view=dataclasses.replace(patient.view, job=job))


def _nonsense(remedy: Remedy | None, patient: Patient) -> str:
    """What is wrong with an allocation of the right types; empty if nothing is."""
    if remedy is None:
        return ""
    now, wanted = patient.view.allocation, remedy.allocation
    if set(wanted.lanes) != set(now.lanes):
        return (
            f"it returned nonsense: lanes for {', '.join(wanted.lanes) or 'nothing'} instead of {', '.join(now.lanes)}"
        )
    for name, lanes in wanted.lanes.items():
        most = patient.view.job.graph.operators[name].max_lanes or patient.settings.max_lanes
        if not 1 <= lanes <= max(most, now.lanes[name]):
            return f"it returned nonsense: {lanes} lanes for {name}; allowed are 1 to {most}"
    if wanted.read_limit is not None and wanted.read_limit < 1:
        return f"it returned nonsense: a read limit of {wanted.read_limit} rows"
    return _misplaced(wanted)


def _misplaced(wanted: JobAllocation) -> str:
    for name, places in wanted.slices.items():
        if name not in wanted.lanes or not all(0 <= lane < wanted.lanes[name] for lane in places):
            return f"it returned nonsense: slices of {name} on lanes that it does not have"
    return ""


def guarded(paths: Mapping[str, str], directory: Path, patience_s: float) -> dict[str, Guarded]:
    """A guarded policy for each name; import paths are looked for in the directory as well."""
    return {name: Guarded(name, path, directory, patience_s) for name, path in paths.items()}
