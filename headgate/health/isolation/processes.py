"""Runs each user-defined policy in a process of its own: an error, a wrong answer or a hang must not stop the control loop.

An import path, `package.module:Class`, or an entry point of the group `headgate.policies` names a policy. The policy receives an observed
job and its history, and answers with an examination, which Headgate checks field by field. Headgate ends the process of a policy that
fails, switches the policy off for a while, raises an alert, and starts a new process later.
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
from headgate.core.sizing import lane_limit
from headgate.health.examiners import SwitchedOffError
from headgate.health.examining import Examination, History
from headgate.health.records import ObservedJob, Remedy

GROUP = "headgate.policies"
START_S = 60.0
"""Time limit for a policy's process to start and import the policy, in seconds."""
_LENGTH = struct.Struct(">Q")
END_S = 5.0
"""Time limit for a killed process to end, in seconds."""
MOST_BYTES = 1 << 28
"""Longest accepted answer, in bytes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a policy's process."""

    invasive: bool
    trouble: str = ""
    """Why the policy cannot be used; empty without an error."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """A policy's answer: an examination, or an error."""

    examination: Examination | None = None
    trouble: str = ""
    """Why the policy failed; empty without an error."""


Message = TypeVar("Message", Hello, PolicyAnswer)


class IsolatedPolicy:
    """An `Examiner` whose policy runs in another process, and has `patience_s` seconds per round for all its answers.

    A failure ends the process; the next question starts a new process. Every read and write of the pipes has a deadline, so that a
    stopped, blocked or dead process delays a round by `patience_s` at most.
    """

    def __init__(self, name: str, path: str, directory: Path, patience_s: float, start_wait_s: float = START_S) -> None:
        self.name = name
        self._path = path
        self._directory = directory
        self._patience_s = patience_s
        self._start_wait_s = start_wait_s
        """Seconds that a round waits for a starting process; a later round asks a policy that is not ready by then."""
        self._process: subprocess.Popen[bytes] | None = None
        self._hello: Hello | None = None
        self._started_s = 0.0
        """Monotonic time at which the process was started, in seconds."""
        self._received_bytes = b""
        """Received bytes of an incomplete message."""
        self._round_s: float | None = None
        """Time of the current round; None before the first question."""
        self._spent_s = 0.0
        """Seconds spent on answers in the current round."""

    @property
    def invasive(self) -> bool:
        """Whether the policy may change jobs; a policy that is not loaded counts as invasive, so that only its own jobs are affected."""
        with suppress(SwitchedOffError):
            hello = self._started()
            return hello is None or hello.invasive
        return True

    def examine(self, history: History, observed: ObservedJob) -> Examination:
        hello = self._started()
        if hello is None:
            return Examination(f'policy "{self.name}" is starting')
        if hello.trouble:
            raise self._ended(hello.trouble)
        if observed.at_s != self._round_s:
            self._round_s, self._spent_s = observed.at_s, 0.0
        answer = self._ask_process(pickle.dumps((history, _plain(observed))))
        if answer.trouble or answer.examination is None:
            raise self._ended(answer.trouble or "it returned nothing")
        invalid = _invalid(answer.examination.remedy, observed)
        if invalid:
            raise self._ended(invalid)
        return answer.examination

    def close(self) -> None:
        """Kill the policy's process."""
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
        """First message of the process, started if necessary; None while the process is starting."""
        if self._hello is not None:
            return self._hello
        if self._process is None:
            self._start()
        left_s = self._started_s + START_S - time.monotonic()
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
        self._started_s = time.monotonic()
        for stream in self._streams():
            os.set_blocking(stream.fileno(), False)

    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _ask_process(self, question: bytes) -> PolicyAnswer:
        asked_s = time.monotonic()
        until_s = asked_s + self._patience_s - self._spent_s
        self._send(_LENGTH.pack(len(question)) + question, until_s)
        message = self._read(until_s)
        self._spent_s += time.monotonic() - asked_s
        if message is None:
            raise self._late()
        return self._decoded(PolicyAnswer, message)

    def _late(self) -> SwitchedOffError:
        return self._ended(f"it has not answered within {show_seconds(self._patience_s)}")

    def _decoded(self, kind: type[Message], message: bytes) -> Message:
        try:
            return msgspec.msgpack.decode(message, type=kind)
        except msgspec.MsgspecError as error:
            raise self._ended(f"it returned an invalid answer: {error}") from None

    def _send(self, content: bytes, until_s: float) -> None:
        """Write the content until `until_s`, so that a process that does not read never blocks the control loop."""
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
        """The next message; None if the message is not complete by `until_s`."""
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
        """Size in bytes of the incomplete message, length prefix included; None while unknown."""
        if len(self._received_bytes) < _LENGTH.size:
            return None
        size: int = _LENGTH.unpack_from(self._received_bytes)[0]
        if size > MOST_BYTES:
            raise self._ended("it returned an invalid answer: the answer is too long")
        return _LENGTH.size + size


def _is_ready(stream: IO[bytes], event: int, until_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, event)
        return bool(selector.select(max(0.0, until_s - time.monotonic())))


def write(stream: IO[bytes], content: bytes) -> None:
    """Write one message: its length, then its content."""
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """Read the next message; None at the end of the stream."""
    length = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(length)[0]) if len(length) == _LENGTH.size else None


def _plain(observed: ObservedJob) -> ObservedJob:
    """The observed job without the user-defined functions that an intent's shape may hold."""
    intent = observed.view.job.intent
    bare = Intent(intent.latency_s, intent.percentile, intent.juice, intent.worth, policy=intent.policy)
    job = dataclasses.replace(observed.view.job, intent=bare)
    return dataclasses.replace(observed, view=dataclasses.replace(observed.view, job=job))


def _invalid(remedy: Remedy | None, observed: ObservedJob) -> str:
    """Why the remedy's allocation is invalid; empty if valid."""
    if remedy is None:
        return ""
    now, wanted = observed.view.allocation, remedy.allocation
    if set(wanted.lanes) != set(now.lanes):
        return f"it returned an invalid answer: lanes for {', '.join(wanted.lanes) or 'nothing'} instead of {', '.join(now.lanes)}"
    for name, lanes in wanted.lanes.items():
        most = lane_limit(observed.view, name, observed.settings)
        if not 1 <= lanes <= max(most, now.lanes[name]):
            return f"it returned an invalid answer: {lanes} lanes for {name}; allowed are 1 to {most}"
    if wanted.read_limit is not None and wanted.read_limit < 1:
        return f"it returned an invalid answer: a read limit of {wanted.read_limit} rows"
    return _misplaced(wanted)


def _misplaced(wanted: JobAllocation) -> str:
    for name, places in wanted.slices.items():
        if name not in wanted.lanes or not all(0 <= lane < wanted.lanes[name] for lane in places):
            return f"it returned an invalid answer: slices of {name} on lanes that {name} does not have"
    return ""


def guarded(
    paths: Mapping[str, str], directory: Path, patience_s: float, start_wait_s: float = START_S
) -> dict[str, IsolatedPolicy]:
    """An isolated policy for each name; import paths may also point into `directory`.

    A service does not wait for starting processes; a simulation does, because simulated time stands still meanwhile.
    """
    return {name: IsolatedPolicy(name, path, directory, patience_s, start_wait_s) for name, path in paths.items()}
