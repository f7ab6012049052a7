"""Policies of the user's, each in a process of its own: what it raises, returns or never returns must not stop the loop.

A policy is named by an import path, `package.module:Class`, or by an entry point of the group `headgate.scheduler.policies`. It is given
a job as it was measured and what is remembered of it, and answers with what it found. Its answer is checked field by field. A policy
that fails in any way is switched off for a while, with a sentence; its process is ended, and another one is started later.
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

import headgate
from headgate.core.intents import Intent
from headgate.core.model import JobAllocation
from headgate.core.quantities import show_seconds
from headgate.health.care import Care, Examination
from headgate.health.examiners import SwitchedOffError
from headgate.health.records import Patient, Remedy

GROUP = "headgate.scheduler.policies"
START_S = 60.0
"""How long a policy's process may take to start and import it."""
_LENGTH = struct.Struct(">Q")
END_S = 5.0
"""How long the end of a process that was killed is waited for."""
MOST_BYTES = 1 << 28
"""A longer answer is none."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a policy's process says first."""

    invasive: bool
    trouble: str = ""
    """Why it cannot be used; empty if it can."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What a policy answered, or why it did not."""

    care: Care | None = None
    examination: Examination | None = None
    trouble: str = ""


Message = TypeVar("Message", Hello, PolicyAnswer)


class IsolatedPolicy:
    """An `Examiner` whose policy runs elsewhere, and has so many seconds a round for all its answers.

    A policy that fails has its process ended; the next question starts another one. Every read and write of its pipes has a
    deadline, so that a process that is stopped, full or gone costs a round no more than the patience.
    """

    def __init__(self, name: str, path: str, directory: Path, patience_s: float, start_wait_s: float = START_S) -> None:
        self.name = name
        self._path = path
        self._directory = directory
        self._patience_s = patience_s
        self._start_wait_s = start_wait_s
        """How long a round waits for a process that starts; what is not ready then is asked in a later round."""
        self._process: subprocess.Popen[bytes] | None = None
        self._hello: Hello | None = None
        self._begun_s = 0.0
        """When the process was started."""
        self._received_bytes = b""
        """The part of a message that has come in so far."""
        self._round_s: float | None = None
        self._spent_s = 0.0
        """In the round that is under way."""

    @property
    def invasive(self) -> bool:
        """A policy that is not loaded, or cannot be, counts as invasive: only the jobs that name it are concerned."""
        with suppress(SwitchedOffError):
            hello = self._started()
            return hello is None or hello.invasive
        return True

    def examine(self, care: Care, patient: Patient) -> tuple[Care, Examination]:
        hello = self._started()
        if hello is None:
            return care, Examination(f'policy "{self.name}" is starting')
        if hello.trouble:
            raise self._ended(hello.trouble)
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
        process, self._process, self._hello, self._received_bytes = self._process, None, None, b""
        if process is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                stream.close() if stream is not None else None

    def _ended(self, text: str) -> SwitchedOffError:
        self.close()
        return SwitchedOffError(text)

    def _started(self) -> Hello | None:
        """What its process said first; None while it has not said anything yet."""
        if self._hello is not None:
            return self._hello
        if self._process is None:
            self._start()
        left_s = self._begun_s + START_S - time.monotonic()
        message = self._read(time.monotonic() + min(self._start_wait_s, left_s))
        if message is None and left_s <= self._start_wait_s:
            raise self._ended(f"it has not started within {show_seconds(START_S)}")
        if message is not None:
            self._hello = self._decoded(Hello, message)
        return self._hello

    def _start(self) -> None:
        command = [sys.executable, "-m", "headgate.health.isolation.worker", self._path, str(self._directory)]
        places = os.pathsep.join(
            filter(None, (str(Path(headgate.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
        )
        environment = {**os.environ, "PYTHONPATH": places}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
            )
        except OSError as error:
            raise SwitchedOffError(f"its process cannot be started: {error}") from None
        self._begun_s = time.monotonic()
        for stream in self._streams():
            os.set_blocking(stream.fileno(), False)

    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _asked(self, question: bytes) -> PolicyAnswer:
        begun_s = time.monotonic()
        until_s = begun_s + self._patience_s - self._spent_s
        self._send(_LENGTH.pack(len(question)) + question, until_s)
        message = self._read(until_s)
        self._spent_s += time.monotonic() - begun_s
        if message is None:
            raise self._late()
        return self._decoded(PolicyAnswer, message)

    def _late(self) -> SwitchedOffError:
        return self._ended(f"it has not answered within {show_seconds(self._patience_s)}")

    def _decoded(self, kind: type[Message], message: bytes) -> Message:
        try:
            return msgspec.msgpack.decode(message, type=kind)
        except msgspec.MsgspecError as error:
            raise self._ended(f"it returned nonsense: {error}") from None

    def _send(self, content: bytes, until_s: float) -> None:
        """Write as the pipe takes it: a process that does not read must not hold up the loop."""
        stream, left = self._streams()[0], memoryview(content)
        while left:
            if not _is_ready(stream, selectors.EVENT_WRITE, until_s):
                raise self._late()
            try:
                left = left[os.write(stream.fileno(), left) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._ended("its process has ended") from None

    def _read(self, until_s: float) -> bytes | None:
        """The next message; None if it is not complete by then."""
        stream = self._streams()[1]
        while (size := self._size()) is None or len(self._received_bytes) < size:
            if not _is_ready(stream, selectors.EVENT_READ, until_s):
                return None
            part = os.read(stream.fileno(), 1 << 20)
            if not part:
                raise self._ended("its process has ended")
            self._received_bytes += part
        message, self._received_bytes = self._received_bytes[_LENGTH.size : size], self._received_bytes[size:]
        return message

    def _size(self) -> int | None:
        """Bytes of the message that is under way, with its length; None while that is not known."""
        if len(self._received_bytes) < _LENGTH.size:
            return None
        size: int = _LENGTH.unpack_from(self._received_bytes)[0]
        if size > MOST_BYTES:
            raise self._ended("it returned nonsense: its answer is far too long")
        return _LENGTH.size + size


def _is_ready(stream: IO[bytes], event: int, until_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, event)
        return bool(selector.select(max(0.0, until_s - time.monotonic())))


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


def guarded(
    paths: Mapping[str, str], directory: Path, patience_s: float, start_wait_s: float = START_S
) -> dict[str, IsolatedPolicy]:
    """A guarded policy for each name; import paths are looked for in the directory as well.

    A service never waits for processes that start; a simulation does, because its time stands still meanwhile.
    """
    return {name: IsolatedPolicy(name, path, directory, patience_s, start_wait_s) for name, path in paths.items()}
