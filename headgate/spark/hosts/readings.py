"""Readings of hosts: running and waiting tasks, memory, runnable threads, and whether the host sends heartbeats.

Tasks mean the same on every master. Executors report their heap and the memory of their Python processes with their heartbeats. Threads,
CPU pressure and the memory of the whole machine are read on this machine only: the embedded Spark and hosts on loopback addresses. On any
other host a task is taken to want one core.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headgate.core.model import HostReading
from headgate.spark.hosts.tasks import Executor, TaskSnapshot, TaskWatch
from headgate.spark.measuring.metering import TaskRecords
from headgate.threads import WatchedThread

LOOK_S = 0.2
EMBEDDED = "localhost"
KNOWN_S = 0.1
"""Time for which the list of hosts is reused, in seconds: asking Spark takes a few milliseconds."""
PRESSURE = Path("/proc/pressure/cpu")
LOOPBACK = "127."


@dataclass(frozen=True, slots=True)
class _Host:
    """One host with all its executors."""

    slots: float = 0.0
    executors: Mapping[str, Executor] = field(default_factory=dict)

    @property
    def silent_s(self) -> float | None:
        """Seconds since any executor of the host was heard of; None if no executor was ever heard of."""
        return min((one.silent_s for one in self.executors.values() if one.silent_s is not None), default=None)

    def megabytes(self, part: Callable[[Executor], int]) -> float | None:
        """One kind of memory, summed over all executors, in megabytes; None before an executor has collected garbage."""
        measured = [part(one) for one in self.executors.values() if one.heap_bytes]
        return sum(measured) / 2**20 if measured else None

    def running_s(self, before: Mapping[str, Executor]) -> float:
        """Task seconds since the earlier reading; an executor without an earlier reading began at 0."""
        return sum(
            one.running_s - before[name].running_s if name in before else one.running_s
            for name, one in self.executors.items()
        )


class Hosts:
    """Reads running and waiting tasks and memory of every host, on average since the previous reading."""

    def __init__(self, records: TaskRecords, watch: TaskWatch, embedded: bool, suspect_heartbeats: float) -> None:
        self._records = records
        self._watch = watch
        self.suspect_s = suspect_heartbeats * watch.heartbeat_s
        """Seconds of silence after which a host is suspect."""
        self._before = watch.read()
        """The previous snapshot of tasks. Owner: the control loop."""
        self.started_s = time.monotonic()
        self._runnable = _Runnable() if embedded else None
        self._cpu_s = process_tree_cpu_s() if embedded else 0.0
        """Core seconds of this process and its descendants at the previous reading. Owner: the control loop."""
        self._pressure = _Pressure()
        self._known: tuple[float, Mapping[str, float]] = (-KNOWN_S, {})
        """Time of the last list of hosts, and the cores of each host. Owner: any thread that plans an epoch replaces the whole pair."""

    def readings(self) -> tuple[HostReading, ...]:
        before, now = self._before, self._watch.read()
        hosts = self._hosts(now)
        self._before = now
        elapsed_s = max(0.001, now.at_s - before.at_s)
        slots = sum(host.slots for host in hosts.values() if not self._is_suspect(host)) or 1.0
        waiting = (now.waiting_s - before.waiting_s) / elapsed_s / slots
        pressure = self._pressure.share()
        found = []
        for name, host in hosts.items():
            # Spark may tell the start of a task before the end of the one whose slot it has.
            running = min(host.slots, host.running_s(before.executors) / elapsed_s)
            found.append(self._reading(name, host, (running, waiting * host.slots), pressure))
        return tuple(found) if self._runnable is None else tuple(self._with_use(one, elapsed_s) for one in found)

    def _with_use(self, reading: HostReading, elapsed_s: float) -> HostReading:
        before_s, self._cpu_s = self._cpu_s, process_tree_cpu_s()
        # A process that ended took its time with it, unless its parent has waited for it.
        return dataclasses.replace(reading, used=max(0.0, self._cpu_s - before_s) / elapsed_s)

    def _reading(self, name: str, host: _Host, tasks: tuple[float, float], pressure: float | None) -> HostReading:
        if self._runnable is not None:
            cores, load = float(os.cpu_count() or 1), self._runnable.mean()
            return HostReading(EMBEDDED, cores, load, memory_used(), host.slots, *tasks, pressure)
        if self._is_suspect(host):
            return HostReading(name, host.slots, None, slots=host.slots, silent_s=host.silent_s, suspect=True)
        near = name.startswith(LOOPBACK)
        used = [memory_used()] if near else []
        used += [share for one in host.executors.values() if (share := self._watch.limits.used(one)) is not None]
        memory = max(used, default=None)
        stalled = pressure if near else None
        return HostReading(
            name, host.slots, sum(tasks), memory, host.slots, *tasks, stalled, host.silent_s,
            heap_mb=host.megabytes(lambda one: one.heap_bytes), python_mb=host.megabytes(lambda one: one.python_bytes),
        )  # fmt: skip

    def cores(self) -> Mapping[str, float]:
        """Cores of every host that lanes can be planned on: without suspect hosts, unless there is no other.

        There is nothing to choose from on the embedded Spark.
        """
        asked_s, cores = self._known
        if self._runnable is None and time.monotonic() - asked_s >= KNOWN_S:
            hosts = self._hosts(self._watch.read())
            heard = {name: host for name, host in hosts.items() if not self._is_suspect(host)} or hosts
            cores = {name: host.slots for name, host in heard.items()}
            self._known = (time.monotonic(), cores)
        return cores

    def stuck(self) -> list[str]:
        """Tags of the Spark jobs with tasks on silent executors; empty if no other executor could run these tasks."""
        if self._runnable is not None:
            return []
        now = self._watch.read()
        heard = now.heard(self._watch.heartbeat_s)
        silent = frozenset(name for name, one in heard.items() if (one.silent_s or 0.0) > self.suspect_s)
        if not silent or not heard.keys() - silent:
            return []
        return [tag for work in now.works if work.touches(silent) for tag in work.tags.split(",")]

    def _hosts(self, now: TaskSnapshot) -> dict[str, _Host]:
        found: dict[str, _Host] = {}
        silences = now.executors | now.heard(self._watch.heartbeat_s)
        for name, host, slots in self._records.executors():
            known = found.get(host, _Host())
            executors = {**known.executors, name: silences.get(name, Executor())}
            found[host] = _Host(known.slots + slots, executors)
        return found

    def _is_suspect(self, host: _Host) -> bool:
        return self._runnable is None and (host.silent_s or 0.0) > self.suspect_s

    def close(self) -> None:
        self._watch.close()
        if self._runnable is not None:
            self._runnable.close()


def memory_used() -> float:
    """The share of this machine's memory that is not available to processes without swapping."""
    memory = psutil.virtual_memory()
    return 1.0 - float(memory.available) / float(memory.total)


class _Pressure:
    """Share of the time in which a process of this machine waited for a core."""

    def __init__(self) -> None:
        self._before = _stalled_s()
        self._read_s = time.monotonic()

    def share(self) -> float | None:
        """The share since the previous call; None if the kernel does not report it."""
        now, now_s = _stalled_s(), time.monotonic()
        before, elapsed_s = self._before, now_s - self._read_s
        self._before, self._read_s = now, now_s
        if now is None or before is None or elapsed_s <= 0:
            return None
        return min(1.0, max(0.0, (now - before) / elapsed_s))


def _stalled_s() -> float | None:
    try:
        some = PRESSURE.read_text(encoding="ascii").splitlines()[0]
    except (OSError, IndexError):
        return None
    return int(some.rsplit("total=", 1)[1]) / 1e6


def process_tree_cpu_s() -> float:
    """Core seconds that this process and its descendants have used."""
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
        """The mean since the previous call; None if no sample was taken since."""
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
    """The number of runnable threads on this machine, without this thread."""
    running = Path("/proc/loadavg")
    if not running.exists():
        return os.getloadavg()[0]
    return max(0.0, float(running.read_text().split()[3].split("/")[0]) - 1)
