"""The parent of a service: a small process that starts the service again when its Spark, or the service itself, was lost.

The parent forks the service and waits for it. The service is in a process group of its own, so that Ctrl-C reaches only the parent,
which passes it on: each signal counts once. Everything that the service started and left is ended before the next one starts,
except leased hosts, which have sessions of their own and are taken over.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import psutil

from headgate.config import ServiceSettings
from headgate.core.quantities import show_seconds
from headgate.errors import EngineLostError, InputError

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
WATCHED = (*PASSED_ON, signal.SIGTSTP, signal.SIGCHLD)
FINAL = frozenset({0, InputError.exit_code, 141, *(128 + number for number in PASSED_ON)})
"""Exit codes after which a service does not start again: it ended, its input is bad, its output was closed, or it was told to end."""
LEAVE_S = 5.0
"""Seconds that processes left by a lost service have to end after SIGTERM, before they are killed."""
KILL_S, LOOK_S = 10.0, 0.05
_BEGUN = struct.Struct("d")
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36
"""Options of prctl(2): the signal when the parent ends, and the parent as reaper of orphans."""


@dataclass(frozen=True, slots=True)
class ServiceStart:
    """What the parent passes to a service: the number of its start, and when its loop began."""

    number: int = 1
    begun_s: float | None = None
    """Time of the monotonic clock at which the loop of the first life began; None if no loop began."""
    supervised: bool = False
    report: Callable[[float], None] = lambda begun_s: None
    """Called by the service when its loop begins."""


def can_supervise() -> bool:
    """Whether this system supports a supervising parent: only Linux does."""
    return sys.platform == "linux"


class Supervisor:
    """Starts the service again after a failure; `for_s` limits the time of all lives together."""

    def __init__(self, settings: ServiceSettings, for_s: float | None, tell: Callable[[str], None]) -> None:
        self._settings, self._for_s, self._tell = settings, for_s, tell
        self._begun_s: float | None = None
        self._asked = False
        self._failures = 0

    def run(self) -> ServiceStart | int:
        """Return a `ServiceStart` in the process of each service, and the exit code in the parent once no further life follows."""
        _prctl(_SET_SUBREAPER, 1)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        try:
            return self._lives()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _lives(self) -> ServiceStart | int:
        number = 0
        while True:
            number += 1
            started_s = time.monotonic()
            reading, writing = os.pipe()
            child = _forked()
            if child == 0:
                os.close(reading)
                return ServiceStart(number, self._begun_s, True, partial(_report, writing))
            os.close(writing)
            code = self._awaited(child)
            self._note_begun(reading)
            _clear_up()
            if not self._starts_again(code):
                return code if code >= 0 else 128 - code
            if not self._waits(code, time.monotonic() - started_s):
                return 0

    def _awaited(self, child: int) -> int:
        """The exit code of the service; negative if a signal ended it. Signals to the parent are passed on."""
        while True:
            number = signal.sigwaitinfo(WATCHED).si_signo
            if number == signal.SIGCHLD:
                code = _reaped(child)
                if code is not None:
                    return code
            elif number == signal.SIGTSTP:
                _suspend(child)
            else:
                self._asked = True
                with suppress(ProcessLookupError):
                    os.kill(child, number)

    def _note_begun(self, reading: int) -> None:
        os.set_blocking(reading, False)
        with open(reading, "rb", buffering=0) as pipe:
            begun = pipe.read(_BEGUN.size)
        if begun and self._begun_s is None:
            self._begun_s = _BEGUN.unpack(begun)[0]

    def _starts_again(self, code: int) -> bool:
        """Whether to restart: always after a signal or a lost engine, after another error only if a loop has begun, never after a stop."""
        if self._asked or self._is_over():
            return False
        if code < 0 or code == EngineLostError.exit_code:
            return True
        return self._begun_s is not None and code not in FINAL

    def _is_over(self) -> bool:
        if self._for_s is None or self._begun_s is None:
            return False
        return time.monotonic() - self._begun_s >= self._for_s

    def _waits(self, code: int, ran_s: float) -> bool:
        """Wait before the next start; False if a signal asks to stop meanwhile."""
        self._failures = 1 if ran_s >= self._settings.restart_calm_s else self._failures + 1
        wait_s = back_off_s(self._settings, self._failures) * random.uniform(0.5, 1.0)
        why = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._tell(f"the service {why}; it starts again in {show_seconds(wait_s, 2)}")
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            found = signal.sigtimedwait(WATCHED, left_s)
            if found is not None and found.si_signo in PASSED_ON:
                return False
        return True


def back_off_s(settings: ServiceSettings, failures: int) -> float:
    """The longest wait after so many failures in a row.

    >>> [back_off_s(ServiceSettings(), failures) for failures in (1, 2, 3, 10_000)]
    [1.0, 2.0, 4.0, 60.0]
    """
    return min(settings.restart_limit_s, settings.restart_s * 2.0 ** min(failures - 1, 30))


# -- processes ---------------------------------------------------------------------------------------------------------


def _forked() -> int:
    """Fork the service into its own process group; returns 0 in the service, which ends when its parent ends."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
    else:
        with suppress(OSError):  # the child did so itself, or has ended
            os.setpgid(child, child)
    return child


def _report(writing: int, begun_s: float) -> None:
    os.write(writing, _BEGUN.pack(begun_s))
    os.close(writing)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _reaped(child: int) -> int | None:
    """Collect all processes that ended, also those that the service left; the exit code of the service if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
    return code


def _suspend(child: int) -> None:
    """Stop the service and this parent after Ctrl-Z; both continue together."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(child, signal.SIGCONT)


def _clear_up() -> None:
    """End the processes that the service left in this session: Java, lanes, policies. Hosts have their own sessions and stay."""
    kill_s = time.monotonic() + LEAVE_S
    asked: set[int] = set()
    while (left := _leftover_processes()) and time.monotonic() < kill_s + KILL_S:
        for process in left:
            with suppress(psutil.Error):
                if time.monotonic() >= kill_s:
                    process.kill()
                elif process.pid not in asked:
                    asked.add(process.pid)
                    process.terminate()
        time.sleep(LOOK_S)


def _leftover_processes() -> list[psutil.Process]:
    _reaped(0)
    return [process for process in psutil.Process().children(recursive=True) if _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == os.getsid(0)
    except OSError:
        return False
