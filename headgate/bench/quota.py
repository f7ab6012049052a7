"""Limits the cores of a group of processes: by a control group of the kernel, or by stopping them for part of the time."""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.bench.workload import wait_for

PERIOD_US = 100_000
STEP_S = 0.1
END_S = 10.0
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")

Processes = Callable[[], Sequence[int]]


class Quota(ABC):
    """Cores that a group of processes may use together."""

    entry = ""
    """The file into which a process writes its id to join the group; empty if a process need not join."""

    @abstractmethod
    def limit(self, cores: float | None) -> None:
        """Limit the group to this number of cores; None lifts the limit."""

    @abstractmethod
    def close(self) -> None:
        """Lift the limit."""


class ControlGroup(Quota):
    """A control group of the kernel, in version 1 or 2 of the interface."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._second = (folder / "cpu.max").exists()
        self.entry = str(folder / "cgroup.procs")
        self.limit(None)

    def limit(self, cores: float | None) -> None:
        us = None if cores is None else round(cores * PERIOD_US)
        if self._second:
            (self._folder / "cpu.max").write_text(f"{'max' if us is None else us} {PERIOD_US}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(-1 if us is None else us))

    def close(self) -> None:
        self.limit(None)


class Brake(Quota):
    """Stops all processes for a part of each tenth of a second, for machines on which the kernel grants no control group."""

    def __init__(self, processes: Processes, cores: int | None = None) -> None:
        self._processes, self._cores = processes, cores or os.cpu_count() or 1
        self._share = 1.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def limit(self, cores: float | None) -> None:
        self._share = 1.0 if cores is None else min(1.0, cores / self._cores)
        if self._share < 1 and self._thread is None:
            self._thread = threading.Thread(target=self._brake, name="brake", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _brake(self) -> None:
        while not self._over.wait(STEP_S * self._share):
            if self._share >= 1:
                continue
            stopped = self._processes()
            _signal(stopped, signal.SIGSTOP)
            self._over.wait(STEP_S * (1 - self._share))
            _signal(stopped, signal.SIGCONT)


def quota(name: str, processes: Processes) -> Quota:
    """Return a control group of this name if the kernel grants one, else a brake."""
    for parent in (V1, V2):
        try:
            return ControlGroup(parent / name)
        except OSError:
            remove_group(name)
    return Brake(processes)


def remove_group(name: str) -> None:
    """Remove the control group of this name, whose processes have ended."""
    wait_for(lambda: all(_is_removed(parent / name) for parent in (V1, V2)), END_S)


def _is_removed(group: Path) -> bool:
    """Remove a group; false as long as the kernel still counts a process that has just ended."""
    try:
        group.rmdir()
    except OSError:
        return not group.is_dir()
    return True


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
