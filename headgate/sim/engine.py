"""The simulator as an engine and a clock: virtual time, seeded, deterministic.

What is common to both execution models: jobs come and go, loads with their noise, events, allocations, the link over which
the controller observes.
"""

from __future__ import annotations

import dataclasses
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from headgate.core.model import Action, EpochTiming, HostReading, Job, JobAllocation, JobReading, Outcome, Snapshot
from headgate.sim import constants
from headgate.sim.spec import Event, Jitter, JobSpec, Scenario

NOISE_S = 10.0
"""Length of an interval of constant input rate."""


class SimulatedEngine(ABC):
    """An `Engine` and a `Clock` in one: time passes only in `sleep_until`."""

    paced = False

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._seed = seed
        self._now_s = 0.0
        self._specs: dict[str, JobSpec] = {}
        self._jobs: dict[str, Job] = {}
        self._allocation: dict[str, JobAllocation] = {}
        self._version: dict[str, int] = {}
        self._noise: dict[str, _Noise] = {}
        self._jitter: dict[str, _Jitters] = {}
        self._linked = True
        self._hosts = scenario.hosts
        self._events = sorted(scenario.events, key=lambda event: event.at_s)
        self._host_noise = _Noise([seed, 1], constants.HOST_NOISE)
        for spec in scenario.jobs:
            self._add(spec)

    # -- Clock

    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    def sleep_until(self, at_s: float) -> None:
        """Let the simulated cluster run until `at_s`, with all events that are due on the way."""
        while self._events and self._events[0].at_s <= at_s:
            event = self._events.pop(0)
            self._run_until(event.at_s)
            self._happen(event)
        self._run_until(at_s)

    # -- Engine

    def jobs(self) -> Mapping[str, Job]:
        """The jobs that run now."""
        return self._jobs

    def observe(self) -> Snapshot:
        """Read all counters; while the link is down, the snapshot has no readings."""
        return Snapshot(
            at_s=self._now_s,
            jobs={name: self._reading(name) if self._linked else None for name in self._jobs},
            allocation=dict(self._allocation),
            hosts=self._host_readings() if self._linked else (),
        )

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        """Return the finished epochs of a job; empty in models without epochs."""
        return ()

    def apply(self, action: Action) -> Outcome:
        """Set new allocations; a job whose allocation stays the same is not interrupted."""
        unknown = [name for name in action.changes if name not in self._jobs]
        if unknown:
            return Outcome(False, f"no such job: {', '.join(unknown)}")
        for name, allocation in action.changes.items():
            self._set(name, allocation)
        return Outcome(True)

    def _set(self, name: str, allocation: JobAllocation) -> None:
        if allocation != self._allocation[name]:
            self._allocation[name] = allocation
            self._version[name] += 1
            self._reallocate(name)

    # -- what happens on the way

    def _happen(self, event: Event) -> None:
        match event.kind:
            case "add":
                assert event.job is not None
                self._add(event.job)
            case "remove":
                self._remove(event.target)
            case "intent":
                assert event.intent is not None
                self._jobs[event.target] = dataclasses.replace(self._jobs[event.target], intent=event.intent)
            case "lanes":
                now = self._allocation[event.target]
                self._set(event.target, now.with_lanes({**now.lanes, **event.lanes}))
            case "fail-link" | "restore-link":
                self._linked = event.kind == "restore-link"
            case _:
                self._host_event(event)

    def _add(self, spec: JobSpec) -> None:
        self._specs[spec.name] = spec
        self._jobs[spec.name] = spec.job()
        self._allocation[spec.name] = spec.allocation(self.paced)
        self._version[spec.name] = 0
        key = zlib.crc32(spec.name.encode())
        self._noise[spec.name] = _Noise([self._seed, key], constants.LOAD_NOISE)
        self._jitter[spec.name] = _Jitters([self._seed, key, 2], spec.jitter)
        self._set_up(spec)

    def _remove(self, name: str) -> None:
        for table in (self._specs, self._jobs, self._allocation, self._version, self._noise, self._jitter):
            table.pop(name)
        self._tear_down(name)

    def _rate_rows_s(self, name: str, source: str, at_s: float) -> float:
        interval = int(at_s / NOISE_S + 1e-9)
        return self._specs[name].loads[source].rate_rows_s(interval * NOISE_S) * self._load_factor(name, interval)

    def _load_factor(self, name: str, interval: int) -> float:
        return self._noise[name].factor(interval) * self._jitter[name].factor(interval)

    # -- what each execution model adds

    @abstractmethod
    def _run_until(self, at_s: float) -> None: ...

    @abstractmethod
    def _reading(self, name: str) -> JobReading: ...

    @abstractmethod
    def _host_readings(self) -> tuple[HostReading, ...]: ...

    @abstractmethod
    def _set_up(self, spec: JobSpec) -> None: ...

    @abstractmethod
    def _tear_down(self, name: str) -> None: ...

    @abstractmethod
    def _reallocate(self, name: str) -> None: ...

    @abstractmethod
    def _host_event(self, event: Event) -> None: ...


class _Noise:
    """Correlated noise around 1, the same for every policy: it depends on the seed and the interval only."""

    def __init__(self, key: list[int], deviation: float) -> None:
        self._random = np.random.default_rng(key)
        self._deviation = deviation
        self._factors: list[float] = []
        self._last = 0.0

    def factor(self, interval: int) -> float:
        """The factor of one interval."""
        while len(self._factors) <= interval:
            self._extend()
        return self._factors[interval]

    def _extend(self) -> None:
        memory = constants.LOAD_NOISE_MEMORY
        fresh = self._deviation * float(np.sqrt(1 - memory**2))
        for innovation in self._random.standard_normal(512).tolist():
            self._last = memory * self._last + fresh * innovation
            self._factors.append(max(0.0, 1.0 + self._last))


class _Jitters:
    """The jitter of a job: each interval has a factor independent of all other intervals."""

    def __init__(self, key: list[int], jitter: Jitter) -> None:
        self._random = np.random.default_rng(key)
        self._jitter = jitter
        self._factors: list[float] = []

    def factor(self, interval: int) -> float:
        """The factor of one interval."""
        if self._jitter == _CALM:
            return 1.0
        while len(self._factors) <= interval:
            self._factors.append(self._next())
        return self._factors[interval]

    def _next(self) -> float:
        spread, off, up = self._random.random(3).tolist()
        if off < self._jitter.outliers_h * NOISE_S / 3600:
            return self._jitter.outlier if up < 0.5 else 0.0
        return float(1.0 + self._jitter.spread * (2 * spread - 1))


_CALM = Jitter()
