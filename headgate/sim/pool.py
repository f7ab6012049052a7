"""A pool of simulated hosts: a host needs time to start, keeps loaded images, and sometimes never becomes ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from headgate.core.hosts import EXACT_S, Host, HostPhase, HostType, OperatorKey
from headgate.sim import constants


class SimulatedPool:
    """A `HostPool` in virtual time; a released host is gone as soon as `empty` says that nothing runs on it."""

    def __init__(
        self,
        clock: Callable[[], float],
        seed: int,
        empty: Callable[[str], bool] = lambda host: True,
        failures: float = 0.0,
    ) -> None:
        self._clock = clock
        self._random = np.random.default_rng([seed, 2])
        self._empty = empty
        self._failures = failures
        """Share of the leases whose host never becomes ready."""
        self._hosts: dict[str, Host] = {}
        self._ready_s: dict[str, float | None] = {}

    def lease(self, name: str, kind: HostType) -> None:
        """Lease a host that becomes ready after a random time around the usual start-up time of its type."""
        if name in self._hosts:
            return
        share, fails = self._random.uniform(-1, 1), self._random.uniform() < self._failures
        startup_s = kind.startup_s * (1 + constants.STARTUP_SPREAD * share)
        self._ready_s[name] = None if fails else self._clock() + startup_s
        self._hosts[name] = Host(name, kind, self._clock())

    def lease_ready(self, name: str, kind: HostType) -> None:
        """Add a host that is ready at once, as at the start of a simulation."""
        self.lease(name, kind)
        self._ready_s[name] = self._clock()

    def release(self, name: str) -> None:
        """Release a host; an unknown host counts as released."""
        if name in self._hosts:
            self._hosts[name] = dataclasses.replace(self._hosts[name], phase=HostPhase.RELEASING)

    def hosts(self) -> Mapping[str, Host]:
        """Return the hosts in their current phases."""
        for name, host in list(self._hosts.items()):
            self._hosts[name] = host = self._as_of_now(host)
            if host.phase is HostPhase.RELEASING and self._empty(name):
                del self._hosts[name]
        return dict(self._hosts)

    def _as_of_now(self, host: Host) -> Host:
        if host.phase is not HostPhase.STARTING:
            return host
        ready_s, now_s = self._ready_s[host.name], self._clock()
        if ready_s is None:
            gives_up_s = host.leased_s + constants.STARTUP_PATIENCE * host.kind.startup_s
            failed = dataclasses.replace(host, phase=HostPhase.FAILED, reason="it never came up")
            return failed if now_s >= gives_up_s else host
        return dataclasses.replace(host, phase=HostPhase.READY) if ready_s <= now_s + EXACT_S else host

    # -- used by the simulated engine

    def ready_s(self, name: str) -> float:
        """When a host will be ready; only the simulator knows it in advance."""
        found = self._ready_s[name]
        return float("inf") if found is None else found

    def has_image(self, name: str, operator: OperatorKey) -> bool:
        """Whether a lane of the operator was on the host before."""
        return operator in self._hosts[name].images

    def keep_image(self, name: str, operator: OperatorKey) -> None:
        """Note that the host has loaded the image of the operator and keeps the image."""
        host = self._hosts[name]
        self._hosts[name] = dataclasses.replace(host, images=host.images | {operator})

    def kill(self, name: str) -> None:
        """Let the host fail if the pool has the host."""
        if name in self._hosts:
            self._hosts[name] = dataclasses.replace(self._hosts[name], phase=HostPhase.FAILED, reason="it died")
