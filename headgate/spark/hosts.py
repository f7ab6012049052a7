"""The hosts that jobs run on, and how many tasks or threads want their cores.

The machine of the embedded Spark is looked at directly, several times a second; of other machines only Spark's own count of
task seconds is known.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from headgate.core.model import HostReading
from headgate.spark.metering import TaskRecords
from headgate.threads import WatchedThread

LOOK_S = 0.2
EMBEDDED = "localhost"
KNOWN_S = 0.1
"""How long it is taken for granted which hosts there are: whoever plans an epoch asks Spark once, which takes a few milliseconds."""


class Hosts:
    """Reads the load of every host since the reading before."""

    def __init__(self, records: TaskRecords, embedded_slots: int | None) -> None:
        """`embedded_slots` are the slots of the embedded Spark; None on a cluster."""
        self._records = records
        self._before: dict[str, float] = {}
        self.started_s = self._read_s = time.monotonic()
        self._runnable = _Runnable() if embedded_slots is not None else None
        self._embedded_slots = embedded_slots
        self._cpu_s = process_tree_cpu_s() if embedded_slots is not None else 0.0
        self._known: tuple[float, Mapping[str, float]] = (-KNOWN_S, {})
        """When Spark was last asked for the hosts, and their cores: replaced as a whole by any thread that plans an epoch."""

    def readings(self) -> tuple[HostReading, ...]:
        now_s = time.monotonic()
        elapsed_s = max(0.001, now_s - self._read_s)
        self._read_s = now_s
        if self._runnable is not None:
            return (self._embedded(self._runnable.mean(), elapsed_s),)
        cores, spent = self._executors()
        found = tuple(
            HostReading(
                host, cores[host], _grown(spent[host], self._before.get(host), elapsed_s), slots=round(cores[host])
            )
            for host in cores
        )
        self._before = spent
        return found

    def _embedded(self, load: float | None, elapsed_s: float) -> HostReading:
        before_s, self._cpu_s = self._cpu_s, process_tree_cpu_s()
        # A process that ended took its time with it, unless its parent has waited for it.
        used = max(0.0, self._cpu_s - before_s) / elapsed_s
        return HostReading(EMBEDDED, float(os.cpu_count() or 1), load, slots=self._embedded_slots, used=used)

    def cores(self) -> Mapping[str, float]:
        """Cores of every host that runs tasks; there is nothing to choose from on the embedded Spark."""
        asked_s, cores = self._known
        if self._runnable is None and time.monotonic() - asked_s >= KNOWN_S:
            cores = self._executors()[0]
            self._known = (time.monotonic(), cores)
        return cores

    def _executors(self) -> tuple[dict[str, float], dict[str, float]]:
        """Cores and task seconds of every host, all its executors together."""
        cores: dict[str, float] = {}
        spent: dict[str, float] = {}
        for host, count, task_s in self._records.hosts():
            cores[host] = cores.get(host, 0.0) + count
            spent[host] = spent.get(host, 0.0) + task_s
        return cores, spent

    def close(self) -> None:
        if self._runnable is not None:
            self._runnable.close()


def _grown(now: float, before: float | None, elapsed_s: float) -> float | None:
    return None if before is None else (now - before) / elapsed_s


def process_tree_cpu_s() -> float:
    """Core seconds of this process and all that it started, so far."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


class _Runnable:
    """The mean number of threads that ran or wanted to run on this machine."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = WatchedThread("headgate-load", self._look, logging.getLogger(__name__).warning)
        self._thread.start()

    def mean(self) -> float | None:
        """Since it was last asked for; None if nobody has looked since."""
        with self._lock:
            mean = self._sum / self._count if self._count else None
            self._sum, self._count = 0.0, 0
        return mean

    def close(self) -> None:
        self._thread.close(None, self._closing.set)

    def _look(self) -> None:
        while not self._closing.wait(LOOK_S):
            runnable = _runnable_now()
            with self._lock:
                self._sum, self._count = self._sum + runnable, self._count + 1


def _runnable_now() -> float:
    """Without this thread itself."""
    running = Path("/proc/loadavg")
    if not running.exists():
        return os.getloadavg()[0]
    return max(0.0, float(running.read_text().split()[3].split("/")[0]) - 1)
