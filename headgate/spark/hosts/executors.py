"""A pool whose hosts are executors of a cluster that others run: standalone, YARN or Kubernetes.

Spark's own allocation client asks the cluster manager for executors and gives them back. Executors end with the application, so that
nothing is on file: a service that starts again finds no executor, and leases new ones.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from headgate.core.hosts import Host, HostPhase, HostType
from headgate.errors import EngineError
from headgate.hosts.provision import Terms
from headgate.spark import jvm
from headgate.spark.reasons import reason_of

GRACEFUL = {
    "spark.decommission.enabled": "true",
    # Cached rows and the output of finished tasks move to other hosts before theirs goes.
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.rddBlocks.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    # An executor goes when it has looked once more, after its last task, whether all has moved: by default every 30 s.
    "spark.storage.decommission.replicationReattemptInterval": "1s",
}
"""Configuration of an application whose executors come and go."""

LEAVES = "Headgate releases the host"
UNASKED = -1


class AllocationClient(Protocol):
    """The part of Spark's allocation client that the pool needs."""

    def alive(self) -> Mapping[str, str]: ...

    def remaining(self) -> frozenset[str]: ...

    def request(self, total: int) -> bool: ...

    def decommission(self, executor: str, why: str) -> None: ...

    def kill(self, executor: str) -> None: ...


@dataclass(slots=True)
class _Lease:
    """One leased host. Owner: the lock of its pool."""

    name: str
    kind: HostType
    leased_s: float
    wanted_s: float
    """Time in seconds since which the lease has waited for an executor."""
    executor: str = ""
    """Id of the executor; empty until the cluster manager has given one."""
    releasing_s: float | None = None
    killed: bool = False


class ExecutorPool:
    """A `HostPool` of executors. Each host has one executor; one that is lost is replaced under the same lease."""

    def __init__(
        self,
        master_url: str,
        clock: Callable[[], float] = time.time,
        patience_s: float = 120.0,
        drain_s: float = 20.0,
        client: Callable[[], AllocationClient | None] = jvm.executors,
    ) -> None:
        """The cluster manager has `patience_s` to give an executor; an executor that is released has `drain_s` to finish."""
        self.master_url = master_url
        self._clock, self._patience_s, self._drain_s, self._client = clock, patience_s, drain_s, client
        self._leases: dict[str, _Lease] = {}
        self._asked = UNASKED
        """Number of executors in the last request to the cluster manager."""
        self._lock = threading.RLock()

    def application(self, terms: Terms) -> dict[str, str]:
        """Return the settings of a Spark application on this pool: executors of one size, at most as many as may be leased."""
        (kind,), most = terms.kinds, terms.budget.most_hosts or 1
        cores = max(1, round(kind.cores))
        return {
            "spark.executor.cores": str(cores),
            "spark.executor.memory": f"{round(kind.memory_mb)}m",
            "spark.executor.instances": "1",
            "spark.cores.max": str(cores * most),
            "spark.dynamicAllocation.enabled": "false",
            "spark.sql.shuffle.partitions": str(cores * most),
            **GRACEFUL,
        }

    # -- the port

    def lease(self, name: str, kind: HostType) -> None:
        """Ask for one executor more; before Spark runs, note that one is wanted."""
        with self._lock:
            if name not in self._leases:
                now_s = self._clock()
                self._leases[name] = _Lease(name, kind, now_s, now_s)
                try:
                    self._ask()
                except EngineError:
                    del self._leases[name]
                    raise

    def release(self, name: str) -> None:
        """Let the executor finish its tasks and take no new ones; `hosts` completes the release."""
        with self._lock:
            lease = self._leases.get(name)
            if lease is None or lease.releasing_s is not None:
                return
            lease.releasing_s = self._clock()
            self._ask()
            if lease.executor and (client := self._client()) is not None:
                _called(lambda: client.decommission(lease.executor, LEAVES))

    def hosts(self) -> Mapping[str, Host]:
        """Return the hosts as they are now; this call also assigns new executors to leases."""
        with self._lock:
            client = self._client()
            alive, remaining = (
                ({}, frozenset[str]()) if client is None else _called(lambda: (client.alive(), client.remaining()))
            )
            self._forget_gone(remaining)
            if client is not None:
                self._ask()
                self._match(client, alive)
            shared = Counter(alive.get(lease.executor) for lease in self._leases.values())
            return {lease.name: self._host(lease, alive, shared) for lease in self._leases.values()}

    def close(self) -> None:
        """Forget every lease and kill the executors that still run; without a Spark application, there is nothing to kill."""
        with self._lock:
            client = self._client()
            held = [lease.executor for lease in self._leases.values() if lease.executor]
            self._leases.clear()
            if client is None:
                return  # they ended with their application
            with suppress(EngineError):
                self._ask()
                for executor in held:
                    _called(partial(client.kill, executor))

    # -- under the lock

    def _ask(self) -> None:
        """Tell the cluster manager how many executors are wanted, if that has changed."""
        client = self._client()
        wanted = sum(lease.releasing_s is None for lease in self._leases.values())
        if client is None or wanted == self._asked:
            return
        if not _called(lambda: client.request(wanted)):
            raise EngineError(f"the cluster manager of {self.master_url} did not take a request for {wanted} executors")
        self._asked = wanted

    def _forget_gone(self, remaining: frozenset[str]) -> None:
        """Let a lease without its executor wait for another one, or end the lease if the host is being released."""
        for lease in list(self._leases.values()):
            if lease.executor and lease.executor not in remaining:
                lease.executor, lease.wanted_s = "", self._clock()
            if lease.releasing_s is not None and not lease.executor:
                del self._leases[lease.name]

    def _match(self, client: AllocationClient, alive: Mapping[str, str]) -> None:
        """Give free executors to leases, the oldest lease first; kill executors without a lease, and executors that leave too late."""
        now_s = self._clock()
        for lease in self._leases.values():
            late = lease.releasing_s is not None and now_s - lease.releasing_s > self._drain_s
            if late and not lease.killed:
                _called(partial(client.kill, lease.executor))
                lease.killed = True
        held = {lease.executor for lease in self._leases.values()}
        free = [executor for executor in alive if executor not in held]
        for lease in self._leases.values():
            if free and not lease.executor and lease.releasing_s is None:
                lease.executor = free.pop(0)
        for executor in free:
            _called(partial(client.kill, executor))

    def _host(self, lease: _Lease, alive: Mapping[str, str], shared: Mapping[str | None, int]) -> Host:
        """Return the host of a lease; its address is empty if its machine has several executors: losing one does not empty the machine."""
        machine = alive.get(lease.executor, "")
        host = Host(lease.name, lease.kind, lease.leased_s, address=machine if shared.get(machine) == 1 else "")
        if lease.releasing_s is not None:
            return _in_phase(host, HostPhase.RELEASING)
        if machine:
            return _in_phase(host, HostPhase.READY)
        waits_s = self._clock() - lease.wanted_s
        if not lease.executor and waits_s > self._patience_s:
            return _in_phase(host, HostPhase.FAILED, f"the cluster manager has given no executor for {waits_s:.0f} s")
        return host


def _in_phase(host: Host, phase: HostPhase, reason: str = "") -> Host:
    return Host(host.name, host.kind, host.leased_s, phase, reason=reason, address=host.address)


Answer = TypeVar("Answer")


def _called(call: Callable[[], Answer]) -> Answer:
    """Return the answer of Spark; turn an error of Spark into one sentence."""
    try:
        return call()
    except EngineError:
        raise
    except Exception as error:  # py4j raises whatever the JVM raised
        raise EngineError(f"Spark's allocation client failed: {reason_of(error)}") from error
