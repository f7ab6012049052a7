"""The lane model: every lane has its own host and its own queue, and full queues hold back the sources (as in Heron).

A fluid model in steps. Rows go to lanes in turn, or by their slice. A lane whose queue exceeds the high-water mark stops the
sources of its job until the queue is below the low-water mark. Lanes stay on their hosts unless their host is avoided; a slow lane is
slow only on the host on which the lane became slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headgate.core.latency import Latency
from headgate.core.model import (
    OUTSIDE,
    HostReading,
    JobReading,
    OperatorReading,
)
from headgate.sim import constants
from headgate.sim.engine import NOISE_S, SimulatedEngine
from headgate.sim.models.keys import lane_shares, number_of, skew_slices, slice_weights
from headgate.sim.spec import Event, JobSpec, OperatorSpec, Scenario

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

NEAR_MARK = 0.5
"""Share of its high-water mark from which on a queue makes steps short, because the queue might pass the mark in a long step."""


@dataclass(slots=True)
class _RunningOperator:
    """A running operator: the rows of each lane, and the counters."""

    spec: OperatorSpec
    processed: dict[str, float]
    sent: dict[str, float]
    waiting: dict[str, float]
    """Rows in its queues, by the parent they came from."""
    weights: Floats
    """Share of the rows that each slice gets; empty without slices."""
    slice_rows: Floats
    hosts: Indices
    own_speed: Floats
    share: Floats
    """Share of the rows that each lane gets."""
    queue: Floats
    rows: Floats
    busy_s: Floats
    held_s: Floats
    holding: NDArray[np.bool_]
    marks: tuple[float, float]
    """Rows at which a lane begins and ceases to hold back."""
    inflow: float = 0.0
    busy: Floats = field(default_factory=lambda: np.zeros(0))
    """Share of the last step in which each lane was busy."""
    latency_s: float = 0.0
    """Mean time from arrival to the end of this operator, of the rows of the last step."""


@dataclass(slots=True)
class _Run:
    """A running job."""

    operators: dict[str, _RunningOperator]
    arrived: dict[str, float]
    held_s: float = 0.0
    paused_until_s: float = 0.0
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return any(bool(operator.holding.any()) for operator in self.operators.values())


class LaneEngine(SimulatedEngine):
    """Simulates a cluster lane by lane."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._runs: dict[str, _Run] = {}
        self._names = [host.name for host in scenario.hosts]
        self._cores = np.array([host.cores for host in scenario.hosts], float)
        self._alive = np.ones(len(scenario.hosts))
        self._speed = np.ones(len(scenario.hosts))
        self._outside_load = np.zeros(len(scenario.hosts))
        self._stretch = np.ones(len(scenario.hosts))
        self._load = np.zeros(len(scenario.hosts))
        self._slow: dict[tuple[str, str, int], tuple[int, float]] = {}
        """The host on which each slow lane is slow, and the share of its speed that the lane has there."""
        super().__init__(scenario, seed)

    # -- jobs

    def _set_up(self, spec: JobSpec) -> None:
        graph = self._jobs[spec.name].graph
        by_name = {operator.name: operator for operator in spec.operators}
        self._runs[spec.name] = _Run(
            {name: self._new_operator(spec.name, by_name[name]) for name in graph.operators},
            dict.fromkeys(graph.sources, 0.0),
        )
        self._reallocate(spec.name)
        self._runs[spec.name].paused_until_s = self._now_s

    def _new_operator(self, job: str, spec: OperatorSpec) -> _RunningOperator:
        none = np.zeros(0)
        weights = np.array(slice_weights(self._seed, job, spec))
        rows_at = [mb * 1024 / spec.row_kb for mb in (constants.HIGH_WATER_MB, constants.LOW_WATER_MB)]
        parents = spec.inputs or (OUTSIDE,)
        children = self._jobs[job].graph.children[spec.name]
        return _RunningOperator(
            spec, dict.fromkeys(parents, 0.0), dict.fromkeys(children, 0.0), dict.fromkeys(parents, 0.0),
            weights, np.zeros(len(weights)), np.zeros(0, np.intp), none, none, none, none, none, none,
            np.zeros(0, np.bool_), (rows_at[0], rows_at[1]),
        )  # fmt: skip

    def _tear_down(self, name: str) -> None:
        del self._runs[name]

    def _reallocate(self, name: str) -> None:
        """Apply a new allocation: lanes that stay keep their host, queues are spread over all lanes, and the job pauses."""
        run, allocation = self._runs[name], self._allocation[name]
        for operator, lanes in allocation.lanes.items():
            self._settle(name, run.operators[operator], lanes)
        state_mb = sum(operator.spec.state_mb for operator in run.operators.values())
        run.paused_until_s = self._now_s + constants.PAUSE_S + state_mb / constants.RESTORE_MB_S

    def _settle(self, job: str, operator: _RunningOperator, lanes: int) -> None:
        allowed = self._allowed(self._allocation[job].avoided)
        hosts = operator.hosts[:lanes].tolist()
        operator.hosts = np.array(hosts, np.intp)
        hosts = [host if host in allowed else self._calmest(allowed) for host in hosts]
        while len(hosts) < lanes:
            operator.hosts = np.array(hosts, np.intp)
            hosts.append(self._calmest(allowed))
        operator.hosts = np.array(hosts, np.intp)
        operator.own_speed = np.array([self._own_speed(job, operator.spec.name, n, h) for n, h in enumerate(hosts)])
        places = self._allocation[job].slices.get(operator.spec.name)
        operator.share = np.array(lane_shares(operator.weights.tolist(), lanes, places))
        operator.queue = float(operator.queue.sum()) * operator.share
        if len(operator.rows) != lanes:
            operator.rows, operator.busy_s, operator.held_s, operator.busy = np.zeros((4, lanes))
        operator.holding = operator.queue > operator.marks[0]

    def _allowed(self, avoided: tuple[str, ...]) -> set[int]:
        alive = {place for place, living in enumerate(self._alive) if living}
        return {place for place in alive if self._names[place] not in avoided} or alive or set(range(len(self._names)))

    def _calmest(self, allowed: set[int]) -> int:
        """The host with the fewest lanes."""
        taken = np.zeros(len(self._names))
        for run in self._runs.values():
            for operator in run.operators.values():
                taken += np.bincount(operator.hosts, minlength=len(taken))
        return min(allowed, key=lambda place: (taken[place], place))

    def _own_speed(self, job: str, operator: str, lane: int, host: int) -> float:
        """Return the speed of a lane on a host: lanes differ at random, and a slow-lane event makes a lane slow on one host."""
        random = np.random.default_rng([self._seed, number_of(job, operator), lane, host, 4])
        where, speed = self._slow.get((job, operator, lane), (host, 1.0))
        own = 1 + constants.LANE_SPREAD * float(np.clip(random.standard_normal(), -3, 3))
        return own * (speed if where == host else 1.0)

    # -- time

    def _run_until(self, at_s: float) -> None:
        while self._now_s < at_s - 1e-9:
            boundary_s = (int(self._now_s / NOISE_S + 1e-9) + 1) * NOISE_S
            step_s = boundary_s - self._now_s if self._calm() else constants.LANE_STEP_S
            self._step(min(step_s, at_s - self._now_s, boundary_s - self._now_s))

    def _calm(self) -> bool:
        """Whether no job is held back, paused or close to being held back, so that flows are constant for the whole interval."""
        return all(
            run.paused_until_s <= self._now_s + 1e-9
            and all(o.queue.max(initial=0.0) < NEAR_MARK * o.marks[0] for o in run.operators.values() if o.spec.inputs)
            for run in self._runs.values()
        )

    def _step(self, step_s: float) -> None:
        wanted = np.zeros(len(self._names))
        for name, run in self._runs.items():
            self._flow(name, run, step_s)
            for operator in run.operators.values():
                core = operator.spec.cost_s / max(1e-12, operator.spec.cost_s + operator.spec.wait_s)
                wanted += np.bincount(operator.hosts, operator.busy * core, len(wanted))
        self._load = wanted + self._outside_load
        # Lanes that are stretched are busy for longer, until all are busy all of the time: then each has its share of the cores.
        self._stretch = np.maximum(1.0, self._load / self._cores)
        self._now_s += step_s

    def _flow(self, name: str, run: _Run, step_s: float) -> None:
        held, stands = run.held, run.paused_until_s > self._now_s + 1e-9
        for operator_name, operator in run.operators.items():
            rate = np.zeros(len(operator.hosts)) if stands else self._lane_rate(operator)
            if operator.spec.inputs:
                done, waited = self._work(operator, rate, step_s)
            else:
                done, waited = self._read(name, run, operator_name, rate, step_s, held)
            self._count(operator, rate, done, step_s)
            self._pass_on(name, run, operator_name, float(done.sum()), waited)
        run.held_s += step_s * held
        for operator in run.operators.values():
            operator.held_s += step_s * operator.holding
            high, low = operator.marks
            if operator.spec.inputs:
                operator.holding = (operator.queue > high) | (operator.holding & (operator.queue > low))

    def _lane_rate(self, operator: _RunningOperator) -> Floats:
        """Return the rows per second that each lane can process on its host."""
        noise = self._host_noise.factor(int(self._now_s / NOISE_S + 1e-9))
        slow = noise * self._stretch / np.maximum(1e-6, self._speed * self._alive)
        per_row = operator.spec.cost_s * slow[operator.hosts] / operator.own_speed + operator.spec.wait_s + 1e-9
        return np.asarray(self._alive[operator.hosts] / per_row)

    def _read(self, name: str, run: _Run, source: str, rate: Floats, step_s: float, held: bool) -> tuple[Floats, float]:
        """Return the rows that a source puts out, arrived or generated, and their mean wait; no rows while input is held back."""
        operator, interval = run.operators[source], int(self._now_s / NOISE_S + 1e-9)
        arriving = self._rate_rows_s(name, source, self._now_s) * step_s
        can = rate * step_s * (0.0 if held else 1.0)
        if math.isinf(arriving):
            done = can * self._load_factor(name, interval)
            run.arrived[source] += float(done.sum())
            operator.processed[OUTSIDE] += float(done.sum())
            return done, 0.0
        run.arrived[source] += arriving
        backlog = run.arrived[source] - operator.processed[OUTSIDE]
        rows = min(backlog, float(can.sum()))
        operator.processed[OUTSIDE] += rows
        waited_s = (backlog - rows) / max(arriving / step_s, 1e-9)
        return can * (rows / max(float(can.sum()), 1e-12)), waited_s

    def _work(self, operator: _RunningOperator, rate: Floats, step_s: float) -> tuple[Floats, float]:
        """Process queued and incoming rows; return the rows done by each lane, and their mean wait in seconds."""
        before, offered = operator.queue, operator.queue + operator.inflow * operator.share
        done = np.minimum(offered, rate * step_s)
        operator.queue = offered - done
        total, gone = sum(operator.waiting.values()), float(done.sum())
        for parent, rows in operator.waiting.items():
            part = gone * rows / total if total > 0 else 0.0
            operator.processed[parent] += part
            operator.waiting[parent] = max(0.0, rows - part)
        operator.inflow = 0.0
        return done, self._waited_s(rate, done, (before + operator.queue) / 2, step_s)

    def _waited_s(self, rate: Floats, done: Floats, queued: Floats, step_s: float) -> float:
        """Return the mean wait of rows: exact for backlog, and Allen-Cunneen's approximation for a queue without backlog."""
        usable = np.maximum(rate, 1e-9)
        busy = np.minimum(done / (usable * step_s), constants.MOST_BUSY)
        waited = queued / usable + constants.VARIABILITY / usable * busy / (1 - busy)
        return float((waited * done).sum() / max(float(done.sum()), 1e-12))

    def _count(self, operator: _RunningOperator, rate: Floats, done: Floats, step_s: float) -> None:
        operator.rows += done
        operator.busy = np.minimum(1.0, done / np.maximum(rate * step_s, 1e-12))
        operator.busy_s += operator.busy * step_s
        if len(operator.weights):
            operator.slice_rows += float(done.sum()) * operator.weights

    def _pass_on(self, name: str, run: _Run, operator_name: str, rows: float, waited_s: float) -> None:
        """Send rows to the children of an operator, or put out the rows of a sink."""
        operator, graph = run.operators[operator_name], self._jobs[name].graph
        inputs = operator.spec.inputs
        above = max((run.operators[parent].latency_s + constants.HOP_S for parent in inputs), default=0.0)
        operator.latency_s = above + waited_s + operator.spec.cost_s + operator.spec.wait_s
        children = graph.children[operator_name]
        factor = operator.spec.selectivity / (len(children) if operator.spec.split and children else 1)
        for child in children:
            sent = rows * factor
            operator.sent[child] += sent
            run.operators[child].inflow += sent
            run.operators[child].waiting[operator_name] += sent
        if not children and rows > 0:
            run.points.append((operator.latency_s, rows))

    # -- hosts

    def _host_event(self, event: Event) -> None:
        match event.kind:
            case "slow-lane":
                operator = self._runs[event.target].operators[event.operator]
                host = int(operator.hosts[event.lane])
                self._slow[(event.target, event.operator, event.lane)] = (host, event.value)
                operator.own_speed[event.lane] *= event.value
            case "skew":
                self._skew(self._runs[event.target].operators[event.operator], event)
            case _:
                self._hosts_changed(event)

    def _skew(self, operator: _RunningOperator, event: Event) -> None:
        """Give one key this share of all rows, on top of the share of its slice."""
        operator.weights = np.array(
            skew_slices(operator.weights.tolist(), event.value, self._seed, event.target, event.operator)
        )
        lanes, places = len(operator.hosts), self._allocation[event.target].slices.get(event.operator)
        operator.share = np.array(lane_shares(operator.weights.tolist(), lanes, places))

    def _hosts_changed(self, event: Event) -> None:
        for place in [self._names.index(event.target)] if event.target else range(len(self._names)):
            match event.kind:
                case "slow-host":
                    self._speed[place] = event.value
                case "cpu-load":
                    self._outside_load[place] = event.value
                case "fail-host" | "restore-host":
                    self._alive[place] = float(event.kind == "restore-host")
        if event.kind in ("fail-host", "restore-host"):
            self._settle_all(again=event.kind == "restore-host")

    def _settle_all(self, again: bool) -> None:
        """Move lanes away from dead hosts; with `again`, spread all lanes over the hosts again."""
        placed = [(name, o, lanes) for name in self._runs for o, lanes in self._allocation[name].lanes.items()]
        for name, operator, _ in placed if again else ():
            self._runs[name].operators[operator].hosts = np.zeros(0, np.intp)
        for name, operator, lanes in placed:
            self._settle(name, self._runs[name].operators[operator], lanes)

    def _host_readings(self) -> tuple[HostReading, ...]:
        rows = zip(self._hosts, self._load.tolist(), self._alive.tolist(), strict=True)
        return tuple(HostReading(host.name, host.cores, load) for host, load, alive in rows if alive)

    # -- readings

    def _reading(self, name: str) -> JobReading:
        run = self._runs[name]
        points, run.points = run.points, []
        backlog = sum(run.arrived[s] - run.operators[s].processed[OUTSIDE] for s in run.arrived) + sum(
            sum(operator.waiting.values()) for operator in run.operators.values() if operator.spec.inputs
        )
        return JobReading(
            version=self._version[name],
            operators={key: self._operator_reading(operator) for key, operator in run.operators.items()},
            arrived=dict(run.arrived),
            backlog=backlog,
            latency=Latency.weighted(points) if points else None,
            held_s=run.held_s,
        )

    def _operator_reading(self, operator: _RunningOperator) -> OperatorReading:
        return OperatorReading(
            dict(operator.processed),
            dict(operator.sent),
            tuple(operator.busy_s.tolist()),
            lane_rows=tuple(operator.rows.tolist()),
            queued=tuple(operator.queue.tolist()) if operator.spec.inputs else None,
            held_s=tuple(operator.held_s.tolist()) if operator.spec.inputs else None,
            hosts=tuple(self._names[host] for host in operator.hosts),
            slice_rows=tuple(operator.slice_rows.tolist()) if len(operator.weights) else None,
        )
