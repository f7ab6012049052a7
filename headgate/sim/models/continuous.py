"""The continuous model: the lanes of operators are long-lived threads, and rows flow continuously (as in Storm).

A fluid model in steps of `STEP_S`: a queue per edge, lanes as servers, the cores of a host shared among the lanes that want to
run. The mean wait in a queue without backlog is Allen-Cunneen's approximation; backlog is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headgate.core.latency import Latency
from headgate.core.model import OUTSIDE, HostReading, JobReading, OperatorReading, Snapshot
from headgate.sim import constants
from headgate.sim.engine import NOISE_S, SimulatedEngine
from headgate.sim.spec import Event, JobSpec, Scenario

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_TAIL = ((0.5, 0.3069), (0.4, 1.2907), (0.09, 3.0470), (0.01, 5.6052))
"""An exponential variable in four points: share of the rows, and their mean in units of the overall mean."""


@dataclass(slots=True)
class _Edge:
    """A queue between two operators (or from outside to a source) and its counters."""

    job: str
    parent: str
    child: str


@dataclass(frozen=True, slots=True)
class _Level:
    """Operators at the same distance from their sources; a row passes one level after the other."""

    operators: Indices
    edges: Indices
    edge_child: Indices
    """Position of each edge's child within `operators`."""
    out: Indices
    out_parent: Indices
    """Position of each outgoing edge's parent within `operators`."""


@dataclass(frozen=True, slots=True)
class _Counters:
    """All counters of all jobs at one moment."""

    sent: list[float]
    processed: list[float]
    queue: list[float]
    busy: list[float]


EdgeIndices = list[tuple[str, int]]


class _Operators(Mapping[str, OperatorReading]):
    """The operators of one job at one moment; a reading is made only when it is asked for."""

    __slots__ = ("_counters", "_lanes", "_wiring")

    def __init__(
        self, counters: _Counters, wiring: Mapping[str, tuple[int, EdgeIndices, EdgeIndices]], lanes: Mapping[str, int]
    ) -> None:
        self._counters, self._wiring, self._lanes = counters, wiring, lanes

    def __getitem__(self, operator: str) -> OperatorReading:
        position, inputs, outputs = self._wiring[operator]
        counters = self._counters
        return OperatorReading(
            {parent: counters.processed[edge] for parent, edge in inputs},
            {child: counters.sent[edge] for child, edge in outputs},
            (counters.busy[position],) * self._lanes[operator],
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._wiring)

    def __len__(self) -> int:
        return len(self._wiring)


class ContinuousEngine(SimulatedEngine):
    """Simulates a cluster of hosts with long-lived lanes."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._order: list[tuple[str, str]] = []
        self._index: dict[tuple[str, str], int] = {}
        self._saved: dict[tuple[str, str, str], tuple[float, float, float]] = {}
        self._busy_saved: dict[tuple[str, str], float] = {}
        self._paused_until: dict[str, float] = {}
        self._place: dict[tuple[str, str], Floats] = {}
        self._failing: list[tuple[float, int]] = []
        hosts = len(scenario.hosts)
        self._cores = np.array([host.cores for host in scenario.hosts], float)
        self._memory_mb = np.array([host.memory_gb * 1024 for host in scenario.hosts], float)
        self._host_index = {host.name: index for index, host in enumerate(scenario.hosts)}
        self._alive = np.ones(hosts)
        self._speed = np.ones(hosts)
        self._outside_load = np.zeros(hosts)
        self._stretch = np.ones(hosts)
        self._load = np.zeros(hosts)
        self._memory_used = np.zeros(hosts)
        self._dirty = True
        self._steady = False
        self._all_run_from_s = 0.0
        self._rates_interval = -1
        super().__init__(scenario, seed)

    # -- structure: arrays over all operators and edges, laid out again when jobs or lanes change

    def _set_up(self, spec: JobSpec) -> None:
        self._paused_until[spec.name] = 0.0
        self._settle_lanes(spec.name)

    def _tear_down(self, name: str) -> None:
        self._save()
        self._place = {key: value for key, value in self._place.items() if key[0] != name}
        self._busy_saved = {key: value for key, value in self._busy_saved.items() if key[0] != name}
        self._saved = {key: value for key, value in self._saved.items() if key[0] != name}
        del self._paused_until[name]

    def _reallocate(self, name: str) -> None:
        self._settle_lanes(name)
        state_mb = sum(operator.state_mb for operator in self._specs[name].operators)
        self._paused_until[name] = self._now_s + constants.PAUSE_S + state_mb / constants.RESTORE_MB_S
        self._all_run_from_s = max(self._all_run_from_s, self._paused_until[name])

    def _settle_lanes(self, name: str) -> None:
        """Spread a job's lanes evenly over living hosts, the hosts with the fewest lanes first; lanes do not move if no host lives."""
        self._save()
        if not self._alive.any() and (name, self._specs[name].operators[0].name) in self._place:
            return
        for operator in self._specs[name].operators:
            self._place.pop((name, operator.name), None)
        taken = sum(self._place.values(), np.zeros(len(self._hosts))) + (1 - self._alive) * 1e9
        living = int(self._alive.sum()) or len(self._hosts)
        for operator in self._specs[name].operators:
            lanes = self._allocation[name].lanes[operator.name]
            spread = self._alive * float(lanes // living)
            first = np.argsort(taken + spread, kind="stable")[: lanes % living]
            spread[first] += 1
            self._place[(name, operator.name)] = spread
            taken = taken + spread
        self._dirty = True

    def _save(self) -> None:
        """Move counters out of the arrays before they are laid out again."""
        if self._dirty:
            return
        for position, edge in enumerate(self._edges):
            key = (edge.job, edge.parent, edge.child)
            self._saved[key] = (self._queue[position], self._processed[position], self._sent[position])
        for position, operator in enumerate(self._order):
            self._busy_saved[operator] = self._busy[position]
        self._dirty = True

    def _lay_out(self) -> None:
        specs = [(name, operator) for name, spec in self._specs.items() for operator in spec.operators]
        self._order = [(name, operator.name) for name, operator in specs]
        self._index = {key: position for position, key in enumerate(self._order)}
        self._cost = np.array([operator.cost_s for _, operator in specs])
        self._wait = np.array([operator.wait_s for _, operator in specs])
        self._retained_mb = np.array([operator.retain_s * operator.row_kb / 1024 for _, operator in specs])
        self._lanes = np.array([self._place[key] for key in self._order])
        self._lane_count = self._lanes.sum(axis=1)
        self._job_of = np.array([list(self._specs).index(name) for name, _ in self._order], np.intp)
        self._busy = np.array([self._busy_saved.get(key, 0.0) for key in self._order])
        self._lay_out_edges()
        self._wire()
        self._lay_out_levels()
        self._done = np.zeros(len(self._order))
        self._rates_interval = -1
        self._steady = False
        self._dirty = False

    def _lay_out_edges(self) -> None:
        self._edges = [
            _Edge(name, parent, operator.name)
            for name, spec in self._specs.items()
            for operator in spec.operators
            for parent in (operator.inputs or (OUTSIDE,))
        ]
        saved = [self._saved.get((e.job, e.parent, e.child), (0.0, 0.0, 0.0)) for e in self._edges]
        self._queue, self._processed, self._sent = (np.array(column, float) for column in zip(*saved, strict=True))
        self._factor = np.array([self._rows_per_row(edge) for edge in self._edges])
        self._inflow = np.zeros(len(self._edges))
        self._edge_child = np.array([self._index[(e.job, e.child)] for e in self._edges], np.intp)
        self._edge_parent = np.array([self._index.get((e.job, e.parent), -1) for e in self._edges], np.intp)
        self._from_outside = [(p, e.job, e.child) for p, e in enumerate(self._edges) if e.parent == OUTSIDE]

    def _wire(self) -> None:
        """Note the positions of each job's counters in the arrays, so that a reading only looks counters up."""
        inputs: dict[tuple[str, str], list[tuple[str, int]]] = {key: [] for key in self._order}
        outputs: dict[tuple[str, str], list[tuple[str, int]]] = {key: [] for key in self._order}
        positions: dict[str, list[int]] = {name: [] for name in self._specs}
        for position, edge in enumerate(self._edges):
            positions[edge.job].append(position)
            inputs[(edge.job, edge.child)].append((edge.parent, position))
            if edge.parent != OUTSIDE:
                outputs[(edge.job, edge.parent)].append((edge.child, position))
        self._edges_of = {name: (min(found), max(found) + 1) for name, found in positions.items()}
        self._arrivals = {name: [(e, p) for p, job, e in self._from_outside if job == name] for name in self._specs}
        self._wiring = {
            name: {key[1]: (self._index[key], inputs[key], outputs[key]) for key in self._order if key[0] == name}
            for name in self._specs
        }

    def _rows_per_row(self, edge: _Edge) -> float:
        if edge.parent == OUTSIDE:
            return 0.0
        parent = next(o for o in self._specs[edge.job].operators if o.name == edge.parent)
        children = len(self._jobs[edge.job].graph.children[edge.parent])
        return parent.selectivity / (children if parent.split else 1)

    def _lay_out_levels(self) -> None:
        depth = np.zeros(len(self._order), np.intp)
        for name in self._specs:
            for operator in self._jobs[name].graph.operators.values():
                above = [depth[self._index[(name, parent)]] + 1 for parent in operator.inputs]
                depth[self._index[(name, operator.name)]] = max(above, default=0)
        self._levels = []
        for level in range(int(depth.max()) + 1):
            operators = np.flatnonzero(depth == level)
            edges = np.flatnonzero(depth[self._edge_child] == level)
            out = np.flatnonzero((self._edge_parent >= 0) & (depth[self._edge_parent] == level))
            within = {int(operator): position for position, operator in enumerate(operators)}
            child = np.array([within[int(o)] for o in self._edge_child[edges]], np.intp)
            parent = np.array([within[int(o)] for o in self._edge_parent[out]], np.intp)
            self._levels.append(_Level(operators, edges, child, out, parent))
        self._sinks = {
            name: [self._index[(name, sink)] for sink in self._jobs[name].graph.sinks] for name in self._specs
        }
        self._all_sinks = np.array([s for sinks in self._sinks.values() for s in sinks], np.intp)
        self._sink_job = np.array(
            [position for position, sinks in enumerate(self._sinks.values()) for _ in sinks], np.intp
        )
        self._job_position = {name: position for position, name in enumerate(self._specs)}
        self._job_output = np.zeros((3, len(self._specs)))

    # -- time

    def _run_until(self, at_s: float) -> None:
        if not self._specs:
            self._now_s = at_s
        while self._now_s < at_s - 1e-9:
            self._fail_over()
            if self._dirty:
                self._lay_out()
            boundary_s = (int(self._now_s / NOISE_S + 1e-9) + 1) * NOISE_S
            step_s = boundary_s - self._now_s if self._steady else constants.STEP_S
            self._step(min(step_s, at_s - self._now_s, boundary_s - self._now_s))

    def _step(self, step_s: float) -> None:
        service, capacity, spread = self._service()
        self._take_in()
        queued = self._flow(capacity, step_s)
        self._latencies(service, capacity, queued, step_s)
        busy = np.divide(self._done, capacity * step_s, out=np.zeros_like(capacity), where=capacity > 0)
        self._busy += np.minimum(busy, 1.0) * step_s
        self._share_cores(spread, step_s)
        self._now_s += step_s

    def _service(self) -> tuple[Floats, Floats, Floats]:
        """Seconds per row, rows per second of each operator, and how its rows spread over hosts."""
        slow = self._stretch / (self._speed * self._pressure())
        per_row = self._cost[:, None] * slow[None, :] + self._wait[:, None] + 1e-9
        rate = self._lanes * self._alive[None, :] / per_row
        capacity = rate.sum(axis=1)
        share = np.divide(rate, capacity[:, None], out=np.zeros_like(rate), where=capacity[:, None] > 0)
        service = np.divide(self._lane_count, capacity, out=np.zeros_like(capacity), where=capacity > 0)
        return service, capacity * self._running(), share

    def _running(self) -> Floats | float:
        """1 for each operator whose job runs, 0 where it stands still after a reconfiguration."""
        if self._now_s + 1e-9 >= self._all_run_from_s:
            return 1.0
        running = np.array([self._paused_until[name] <= self._now_s + 1e-9 for name in self._specs], float)
        return running[self._job_of]

    def _pressure(self) -> Floats:
        """Return the speed of each host, as a share: a host short of memory slows down."""
        over = np.maximum(0.0, self._memory_used - constants.MEMORY_PRESSURE)
        return np.maximum(constants.LEAST_SPEED, 1.0 - constants.MEMORY_SLOPE * over)

    def _take_in(self) -> None:
        """Set the rate of rows from outside; the rate is constant within an interval."""
        interval = int(self._now_s / NOISE_S + 1e-9)
        if interval != self._rates_interval:
            for position, job, source in self._from_outside:
                self._inflow[position] = self._rate_rows_s(job, source, self._now_s)
            self._rates_interval = interval

    def _flow(self, capacity: Floats, step_s: float) -> Floats:
        """Move rows down level by level; returns the rows that waited in front of each operator, mean over the step."""
        queued = np.zeros(len(self._order))
        for level in self._levels:
            arriving = self._inflow[level.edges] * step_s
            before = self._queue[level.edges]
            size = len(level.operators)
            offered = np.bincount(level.edge_child, before + arriving, size)
            done = np.minimum(offered, capacity[level.operators] * step_s)
            share = np.divide(done, offered, out=np.zeros(size), where=offered > 0)[level.edge_child]
            processed = (before + arriving) * share
            after = before + arriving - processed
            self._sent[level.edges] += arriving
            self._processed[level.edges] += processed
            self._queue[level.edges] = after
            self._done[level.operators] = done
            queued[level.operators] = np.bincount(level.edge_child, (before + after) / 2, size)
            if len(level.out):
                self._inflow[level.out] = done[level.out_parent] * self._factor[level.out] / step_s
        return queued

    def _latencies(self, service: Floats, capacity: Floats, queued: Floats, step_s: float) -> None:
        """Add up the time from arrival to output over the rows that leave in this step."""
        wait = self._waiting_s(service, capacity, queued, step_s)
        passing = wait + service
        total = np.zeros(len(self._order))
        fixed = np.zeros(len(self._order))
        for number, level in enumerate(self._levels):
            inherited = inherited_fixed = np.zeros(len(level.operators))
            if number:
                inherited = self._mean_over_parents(total, level) + constants.HOP_S
                inherited_fixed = self._mean_over_parents(fixed, level) + constants.HOP_S
            total[level.operators] = passing[level.operators] + inherited
            fixed[level.operators] = service[level.operators] + inherited_fixed
        rows = self._done[self._all_sinks]
        jobs = len(self._specs)
        self._job_output[0] += np.bincount(self._sink_job, rows, jobs)
        self._job_output[1] += np.bincount(self._sink_job, rows * total[self._all_sinks], jobs)
        self._job_output[2] += np.bincount(self._sink_job, rows * fixed[self._all_sinks], jobs)

    def _waiting_s(self, service: Floats, capacity: Floats, queued: Floats, step_s: float) -> Floats:
        throughput = self._done / step_s
        backlog = np.divide(queued, throughput, out=np.zeros_like(queued), where=throughput > 0)
        lanes = np.maximum(self._lane_count, 1.0)
        busy = np.divide(throughput, capacity, out=np.zeros_like(queued), where=capacity > 0)
        busy = np.minimum(busy, constants.MOST_BUSY)
        crowd = busy ** (np.sqrt(2 * (lanes + 1)) - 1) / (lanes * (1 - busy))
        return np.asarray(backlog + constants.VARIABILITY * service * crowd)

    def _mean_over_parents(self, value: Floats, level: _Level) -> Floats:
        size = len(level.operators)
        weight = self._inflow[level.edges] + 1e-12
        summed = np.bincount(level.edge_child, value[self._edge_parent[level.edges]] * weight, size)
        weights = np.bincount(level.edge_child, weight, size)
        return np.asarray(summed / weights)

    def _share_cores(self, share: Floats, step_s: float) -> None:
        """Update the factor by which core time is stretched on each host, from the cores that lanes and other processes want there."""
        noise = self._host_noise.factor(int(self._now_s / NOISE_S + 1e-9))
        wanted = ((self._done * self._cost / step_s)[:, None] * share).sum(axis=0) / (self._speed * noise)
        lanes = (self._lanes * self._alive[None, :]).sum(axis=0)
        running = wanted * self._stretch
        idle = np.minimum(lanes * constants.IDLE_LANE_CORES, constants.MOST_IDLE * self._cores)
        self._load = running + idle + self._outside_load
        # Others that want the cores get their fair share of a full host, not all they ask for.
        others = self._outside_load * np.minimum(1.0, self._cores / np.maximum(self._load, self._cores))
        lost = np.minimum(
            constants.MOST_SWITCHING, constants.OVERSUBSCRIPTION_COST * np.maximum(0.0, self._load / self._cores - 1)
        )
        used = (wanted + idle + others) / (constants.FULL_HOST * self._cores / (1 + lost))
        before, self._stretch = (
            self._stretch,
            np.maximum(
                1 + np.minimum(used, 1.0) ** constants.STRETCH_POWER,
                np.minimum(self._stretch * used, constants.MOST_STRETCH),
            ),
        )
        # Hosts in a steady state need no small steps; queues between them are exact in steps of any length.
        self._steady = bool(np.abs(self._stretch / before - 1).max() < 0.01) and self._now_s >= self._all_run_from_s
        retained = ((self._done * self._retained_mb / step_s)[:, None] * share).sum(axis=0)
        self._memory_used = (lanes * constants.LANE_MB + retained) / self._memory_mb

    # -- hosts

    def _host_event(self, event: Event) -> None:
        hosts = [self._host_index[event.target]] if event.target else list(range(len(self._hosts)))
        for host in hosts:
            match event.kind:
                case "slow-host":
                    self._speed[host] = event.value
                case "cpu-load":
                    self._outside_load[host] = event.value
                case "fail-host":
                    self._alive[host] = 0.0
                    self._failing.append((self._now_s + constants.FAILOVER_S, host))
                case "restore-host":
                    self._alive[host] = 1.0
                    for name in self._specs:
                        self._settle_lanes(name)

    def _fail_over(self) -> None:
        """Move the lanes of each host that has been dead for `FAILOVER_S` to living hosts."""
        due = [host for at_s, host in self._failing if at_s <= self._now_s]
        if due:
            self._failing = [(at_s, host) for at_s, host in self._failing if host not in due]
            for name in self._specs:
                self._settle_lanes(name)

    def _host_readings(self) -> tuple[HostReading, ...]:
        rows = zip(self._hosts, self._load.tolist(), self._alive.tolist(), self._memory_used.tolist(), strict=True)
        return tuple(HostReading(host.name, host.cores, load, memory) for host, load, alive, memory in rows if alive)

    # -- readings

    def observe(self) -> Snapshot:
        """Read all counters."""
        if not self._specs:
            return super().observe()
        if self._dirty:
            self._lay_out()
        counters = (self._sent, self._processed, self._queue, self._busy)
        self._now = _Counters(*(array.tolist() for array in counters))
        return super().observe()

    def _reading(self, name: str) -> JobReading:
        arrived = {source: self._now.sent[edge] for source, edge in self._arrivals[name]}
        first, last = self._edges_of[name]
        operators = _Operators(self._now, self._wiring[name], self._allocation[name].lanes)
        return JobReading(
            self._version[name], operators, arrived, sum(self._now.queue[first:last]), self._latency(name)
        )

    def _latency(self, name: str) -> Latency | None:
        """Return the latency of the rows put out since the last reading: a fixed part and an exponential part."""
        position = self._job_position[name]
        rows, total_s, fixed_s = self._job_output[:, position].tolist()
        self._job_output[:, position] = 0.0
        if rows <= 0:
            return None
        base, mean = fixed_s / rows, total_s / rows
        points = tuple((base + (mean - base) * multiple, rows * share) for share, multiple in _TAIL)
        return Latency(rows, total_s, points)
