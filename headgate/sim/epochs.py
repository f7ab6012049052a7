"""The epoch model: one micro-batch after another per job, stages one after another, tasks on slots (as in Spark).

Each epoch takes what has arrived, but no more rows than take a few seconds beyond its fixed cost, which it has whatever its size;
it ends when its last stage does. Epochs of different jobs run side by side and share the cores; how
much an epoch is stretched by the others is decided when it starts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.core.epoch_cost import EpochCost
from headgate.core.latency import Latency
from headgate.core.model import OUTSIDE, Graph, HostReading, JobReading, OperatorReading
from headgate.sim import constants
from headgate.sim.engine import NOISE_S, SimulatedEngine
from headgate.sim.keys import lane_shares, skewed, slice_weights
from headgate.sim.spec import EpochCosts, Event, HostSpec, JobSpec, OperatorSpec, Scenario

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Rows of an epoch are reported as five points of equal weight: they arrived evenly over its interval."""

STUCK_S = 0.5
"""Time between two checks whether an epoch on a host that is cut off can continue."""


@dataclass(slots=True)
class _Lanes:
    """The lanes of one operator: where they run, how the rows are divided among them, and their counters."""

    hosts: tuple[str, ...]
    shares: list[float]
    """Share of the rows that each lane gets."""
    factors: list[float]
    """How much longer each lane takes for its rows than it would for an even share at full speed."""
    weights: list[float]
    """Share of the rows that each slice gets; empty without slices."""
    busy_s: list[float]
    rows: list[float]
    slice_rows: list[float]

    def add(self, rows: float, even_s: float) -> None:
        """Count an epoch: all its rows, and what an even share of them takes."""
        for lane, (share, factor) in enumerate(zip(self.shares, self.factors, strict=True)):
            self.busy_s[lane] += even_s * factor
            self.rows[lane] += rows * share
        for number, weight in enumerate(self.weights):
            self.slice_rows[number] += rows * weight

    def mean_factor(self) -> float:
        """How much longer a lane takes than it would with an even share at full speed, on average."""
        return sum(self.factors) / len(self.factors)


@dataclass(slots=True)
class _Run:
    """A job at work: its counters, its epoch in flight, and until when its sources have been read."""

    graph: Graph
    specs: Mapping[str, OperatorSpec]
    processed: dict[str, dict[str, float]]
    sent: dict[str, dict[str, float]]
    lanes: dict[str, _Lanes]
    arrived: dict[str, float]
    costs: EpochCosts
    read_to_s: float
    counted_to_s: float
    epochs: int = 0
    in_epochs_s: float = 0.0
    ended_s: float | None = None
    started_s: float = 0.0
    until_s: float = 0.0
    """When the newest row of the epoch in flight arrived."""
    most_rows: float = constants.FIRST_EPOCH_ROWS
    """Rows that the next epoch reads at most, of all sources together."""
    cost: EpochCost = field(default_factory=EpochCost)
    busy_cores: float = 0.0
    tasks: tuple[float, float] = (0.0, 0.0)
    """Tasks of the epoch in flight that run and that wait for a slot, on average."""
    hosts: frozenset[str] = frozenset()
    """Where the lanes of the epoch in flight are."""
    version: int = -1
    """The allocation of the epoch in flight."""
    as_given: int = 0
    """Epochs finished with the allocation of now."""
    busy_slots: float = 0.0
    pending: dict[str, float] = field(default_factory=dict)
    points: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Means:
    """What was wanted of the cluster, on average."""

    load: float
    running: float
    waiting: float


@dataclass(slots=True)
class _Sums:
    """What was wanted of the cluster, multiplied by the time for which it was."""

    seconds: float = 0.0
    load: float = 0.0
    running: float = 0.0
    waiting: float = 0.0

    def add(self, seconds: float, load: float, running: float, waiting: float) -> None:
        self.seconds += seconds
        self.load += load * seconds
        self.running += running * seconds
        self.waiting += waiting * seconds

    def means(self) -> _Means:
        return _Means(self.load / self.seconds, self.running / self.seconds, self.waiting / self.seconds)


class EpochEngine(SimulatedEngine):
    """Simulates a cluster that runs every job as a sequence of epochs."""

    paced = True

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._runs: dict[str, _Run] = {}
        self._agenda: list[tuple[float, int, str, str]] = []
        self._count = 0
        self._dead: set[str] = set()
        self._speed: dict[str, float] = {}
        self._outside_load: dict[str, float] = {}
        self._slow: dict[tuple[str, str, int], tuple[str, float]] = {}
        """Lanes that are slow where they are: their host, and the share of their speed that is left."""
        self._weights: dict[tuple[str, str], list[float]] = {}
        self._cut_s: dict[str, float] = {}
        """Hosts that are cut off, and since when."""
        self._since = _Sums()
        self._means = _Means(0.0, 0.0, 0.0)
        self._costs = scenario.epoch_costs
        self._all_slots = max(1, sum(_slots_of(host) for host in scenario.hosts))
        super().__init__(scenario, seed)

    # -- jobs

    def _added(self, spec: JobSpec) -> None:
        graph = self._jobs[spec.name].graph
        self._runs[spec.name] = _Run(
            graph=graph,
            specs={operator.name: operator for operator in spec.operators},
            processed={name: dict.fromkeys(o.inputs or (OUTSIDE,), 0.0) for name, o in graph.operators.items()},
            sent={name: dict.fromkeys(graph.children[name], 0.0) for name in graph.operators},
            lanes={},
            arrived=dict.fromkeys(graph.sources, 0.0),
            costs=spec.epoch_costs or self._costs,
            read_to_s=self._now_s,
            counted_to_s=self._now_s,
        )
        self._weights |= {(spec.name, o.name): slice_weights(self._seed, spec.name, o) for o in spec.operators}
        self._settle(spec.name)
        self._plan(self._now_s, spec.name, "start")

    def _settle(self, name: str) -> None:
        """Lanes go round the hosts that live and are not avoided; their counters start at zero."""
        run, allocation = self._runs[name], self._allocation[name]
        alive = [host.name for host in self._usable()] or [host.name for host in self._hosts]
        allowed = [host for host in alive if host not in allocation.avoided] or alive
        for operator, lanes in allocation.lanes.items():
            hosts = tuple(allowed[lane % len(allowed)] for lane in range(lanes))
            weights = self._weights[(name, operator)]
            shares = lane_shares(weights, lanes, allocation.slices.get(operator))
            speeds = [self._lane_speed(name, operator, lane, host) for lane, host in enumerate(hosts)]
            factors = [share * lanes / speed for share, speed in zip(shares, speeds, strict=True)]
            run.lanes[operator] = _Lanes(
                hosts, shares, factors, weights, [0.0] * lanes, [0.0] * lanes, [0.0] * len(weights)
            )

    def _lane_speed(self, job: str, operator: str, lane: int, host: str) -> float:
        where, speed = self._slow.get((job, operator, lane), (host, 1.0))
        return self._speed.get(host, 1.0) * (speed if where == host else 1.0)

    def _removed(self, name: str) -> None:
        del self._runs[name]
        self._agenda = [entry for entry in self._agenda if entry[2] != name]
        heapq.heapify(self._agenda)

    def _reallocated(self, name: str) -> None:
        """Nothing stops: the next epoch has the new lanes; a shorter pace moves its start forward."""
        run = self._runs[name]
        run.as_given = 0
        self._settle(name)
        for entry in [entry for entry in self._agenda if entry[2] == name and entry[3] == "start"]:
            self._agenda.remove(entry)
            heapq.heapify(self._agenda)
            self._plan(max(self._now_s, run.started_s + (self._allocation[name].pace_s or 0.0)), name, "start")

    def _plan(self, at_s: float, name: str, what: str) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (at_s, self._count, name, what))

    # -- time

    def _run_until(self, at_s: float) -> None:
        while self._agenda and self._agenda[0][0] <= at_s:
            due_s, _, name, what = heapq.heappop(self._agenda)
            self._pass(due_s)
            self._due(name, what)
        self._pass(at_s)

    def _due(self, name: str, what: str) -> None:
        match what:
            case "start":
                self._start(name)
            case "finish":
                self._end(name)
            case _:
                self._suspect_host()

    def _pass(self, at_s: float) -> None:
        wanted = sum(run.busy_cores for run in self._runs.values()) + sum(self._outside_load.values())
        ready = sum(run.tasks[0] for run in self._runs.values())
        running = min(ready, self._slots())
        waiting = ready - running + sum(run.tasks[1] for run in self._runs.values())
        self._since.add(at_s - self._now_s, wanted, running, waiting)
        self._now_s = at_s

    def _start(self, name: str) -> None:
        """Read what has arrived, and find out when the epoch will be done."""
        run, lanes = self._runs[name], self._allocation[name].lanes
        if not self._usable():
            self._plan(self._now_s + 1.0, name, "start")  # no host is left to start it on
            return
        self._count_arrivals(name, run)
        rows = self._read(run)
        offered = _rows_per_operator(run, rows)
        staged = {operator: count for operator, count in offered.items() if operator in lanes}
        stretch, crowd, duration_s = self._stretch(run, lanes, staged)
        self._count_busy(run, lanes, staged, stretch)
        run.tasks = self._tasks(run, lanes, staged, stretch, duration_s)
        run.hosts = frozenset(host for one in run.lanes.values() for host in one.hosts)
        run.version = self._version[name]
        run.pending = rows
        run.started_s = self._now_s
        run.busy_cores = self._cores_s(run, lanes, staged) / duration_s * stretch
        run.busy_slots = max(self._slots_s(run, staged, stretch), self._slots_s(run, staged, 1.0) * crowd) / duration_s
        self._plan(self._now_s + duration_s, name, "finish")

    def _count_busy(self, run: _Run, lanes: Mapping[str, int], offered: Mapping[str, float], stretch: float) -> None:
        for operator, count in offered.items():
            run.lanes[operator].add(count, self._row_s(run.specs[operator], stretch) * count / lanes[operator])

    def _tasks(
        self, run: _Run, lanes: Mapping[str, int], offered: Mapping[str, float], stretch: float, duration_s: float
    ) -> tuple[float, float]:
        """Tasks that run and that wait for a slot during an epoch, on average: a stage with more lanes than slots runs in waves."""
        slots, running_s, waiting_s = self._slots(), 0.0, 0.0
        for operator, rows in offered.items():
            count = lanes[operator]
            task_s = rows / count * self._row_s(run.specs[operator], stretch) * run.lanes[operator].mean_factor()
            running_s += count * task_s
            waiting_s += sum(range(count - slots, 0, -slots)) * task_s
        return running_s / duration_s, waiting_s / duration_s

    def _read(self, run: _Run) -> dict[str, float]:
        """The oldest rows that wait, as many as an epoch may read."""
        waiting = {source: run.arrived[source] - run.processed[source][OUTSIDE] for source in run.arrived}
        share = min(1.0, run.most_rows / max(1e-9, sum(waiting.values())))
        run.until_s = run.read_to_s + share * (self._now_s - run.read_to_s)
        return {source: rows * share for source, rows in waiting.items()}

    def _stretch(self, run: _Run, lanes: Mapping[str, int], staged: Mapping[str, float]) -> tuple[float, float, float]:
        """How much the epoch is slowed by all that want the cores, and all that want the slots, and its duration."""
        alone_s = self._duration_s(run, lanes, staged, 1.0, 1.0)
        others = sum(other.busy_cores for other in self._runs.values()) + sum(self._outside_load.values())
        wanted = others + self._cores_s(run, lanes, staged) / alone_s
        stretch = max(1.0, wanted / self._cores()) * self._host_noise.factor(int(self._now_s / NOISE_S))
        crowd = self._crowd(self._slots_s(run, staged, 1.0) / alone_s)
        return stretch, crowd, self._duration_s(run, lanes, staged, stretch, crowd)

    def _cores_s(self, run: _Run, lanes: Mapping[str, int], staged: Mapping[str, float]) -> float:
        """Core seconds of an epoch."""
        per_task_s = run.costs.task_cores_s
        return run.costs.fixed_cores_s + sum(
            rows * run.specs[operator].cost_s + lanes[operator] * per_task_s for operator, rows in staged.items()
        )

    def _crowd(self, wanted: float) -> float:
        """How much longer tasks take because other jobs hold slots."""
        return max(1.0, (sum(other.busy_slots for other in self._runs.values()) + wanted) / self._slots())

    def _slots_s(self, run: _Run, staged: Mapping[str, float], stretch: float) -> float:
        """Seconds for which the tasks of an epoch hold slots, all together."""
        return sum(rows * self._row_s(run.specs[operator], stretch) for operator, rows in staged.items())

    def _duration_s(
        self, run: _Run, lanes: Mapping[str, int], staged: Mapping[str, float], stretch: float, crowd: float
    ) -> float:
        """Stages one after another; a task holds its slot also while it waits for a look-up.

        Whatever is shorter, cores or slots, sets the pace of a row: a task that waits for a slot wants no core.
        """
        slots = self._slots()
        stages_s = 0.0
        for operator, rows in staged.items():
            waves = math.ceil(lanes[operator] / slots)
            slowest = max(run.lanes[operator].factors)
            spec = run.specs[operator]
            row_s = max(self._row_s(spec, stretch), self._row_s(spec, 1.0) * crowd)
            stages_s += waves * (rows / lanes[operator] * row_s) * slowest
            stages_s += run.costs.task_cores_s * lanes[operator] / slots * stretch
        return run.costs.fixed_s * stretch + stages_s

    def _slots(self) -> int:
        if not self._dead and not self._cut_s:
            return self._all_slots  # asked for at every step
        return max(1, sum(_slots_of(host) for host in self._usable()))

    def _row_s(self, spec: OperatorSpec, stretch: float) -> float:
        return spec.cost_s * stretch + spec.wait_s

    def _cores(self) -> float:
        return max(0.1, sum(host.cores * self._speed.get(host.name, 1.0) for host in self._usable()))

    def _usable(self) -> list[HostSpec]:
        """The hosts that epochs are planned on: those that live and are not suspect."""
        return [host for host in self._hosts if host.name not in self._dead and not self._is_suspect(host.name)]

    def _end(self, name: str) -> None:
        """An epoch with lanes on a host that is cut off does not end; once the host is suspect, the epoch is planned again elsewhere."""
        run = self._runs[name]
        cut = run.hosts & self._cut_s.keys()
        if not cut:
            self._finish(name)
        elif any(self._is_suspect(host) for host in cut):
            run.in_epochs_s += self._now_s - run.started_s
            run.busy_cores, run.tasks, run.pending = 0.0, (0.0, 0.0), {}
            self._plan(self._now_s, name, "start")
        else:
            self._plan(self._now_s + STUCK_S, name, "finish")

    def _finish(self, name: str) -> None:
        """Count the epoch's rows, report their latency, and plan the next epoch by the pace."""
        run = self._runs[name]
        rows = _rows_per_operator(run, run.pending)
        for source, count in run.pending.items():
            run.processed[source][OUTSIDE] += count
        for parent, child, count in _edges(run, rows):
            run.sent[parent][child] += count
            run.processed[child][parent] += count
        out = sum(rows[sink] for sink in run.graph.sinks)
        self._report(run, out)
        run.epochs += 1
        run.as_given += run.version == self._version[name]
        run.in_epochs_s += self._now_s - run.started_s
        run.ended_s = self._now_s
        if sum(run.pending.values()) > 0:
            run.cost = run.cost.after(sum(run.pending.values()), self._now_s - run.started_s)
            run.most_rows = max(constants.LEAST_EPOCH_ROWS, run.cost.rows_in(constants.LONGEST_EPOCH_S))
        run.read_to_s, run.busy_cores, run.busy_slots = run.until_s, 0.0, 0.0
        run.tasks, run.pending = (0.0, 0.0), {}
        self._plan(max(self._now_s, run.started_s + (self._allocation[name].pace_s or 0.0)), name, "start")

    def _report(self, run: _Run, rows: float) -> None:
        if rows > 0:
            least_s, spread_s = self._now_s - run.until_s, run.until_s - run.read_to_s
            run.points += [(least_s + spread_s * quantile, rows / len(_QUANTILES)) for quantile in _QUANTILES]

    def _count_arrivals(self, name: str, run: _Run) -> None:
        """Rows arrive at a rate that holds for an interval."""
        while run.counted_to_s < self._now_s - 1e-9:
            boundary_s = (int(run.counted_to_s / NOISE_S + 1e-9) + 1) * NOISE_S
            until_s = min(boundary_s, self._now_s)
            for source in run.arrived:
                run.arrived[source] += self._rate_rows_s(name, source, run.counted_to_s) * (until_s - run.counted_to_s)
            run.counted_to_s = until_s

    # -- hosts

    def _host_event(self, event: Event) -> None:
        if event.kind == "slow-lane":
            host = self._runs[event.target].lanes[event.operator].hosts[event.lane]
            self._slow[(event.target, event.operator, event.lane)] = (host, event.value)
        elif event.kind == "skew":
            key = (event.target, event.operator)
            self._weights[key] = skewed(self._weights[key], event.value, self._seed, event.target, event.operator)
        else:
            self._hosts_changed(event)
        for name in self._runs:
            self._settle_again(name)

    def _settle_again(self, name: str) -> None:
        """Lanes are where they should be now, and their counters go on."""
        before = dict(self._runs[name].lanes)
        self._settle(name)
        for operator, lanes in self._runs[name].lanes.items():
            old = before[operator]
            lanes.busy_s, lanes.rows, lanes.slice_rows = old.busy_s, old.rows, old.slice_rows

    def _hosts_changed(self, event: Event) -> None:
        hosts = [event.target] if event.target else [host.name for host in self._hosts]
        for host in hosts:
            match event.kind:
                case "slow-host":
                    self._speed[host] = event.value
                case "cpu-load":
                    self._outside_load[host] = event.value
                case "fail-host":
                    self._dead.add(host)
                case "restore-host":
                    self._dead.discard(host)
                case "cut-host":
                    self._cut_s.setdefault(host, self._now_s)
                    self._plan(self._now_s + constants.SUSPECT_S, "", "suspect")
                case "mend-host":
                    self._cut_s.pop(host, None)

    def _is_suspect(self, host: str) -> bool:
        return self._silent_s(host) >= constants.SUSPECT_S - 1e-9

    def _silent_s(self, host: str) -> float:
        return self._now_s - self._cut_s.get(host, self._now_s)

    def _suspect_host(self) -> None:
        """Lanes leave a host that has become suspect."""
        for name in self._runs:
            self._settle_again(name)

    def _host_readings(self) -> tuple[HostReading, ...]:
        """Epochs take cores and slots wherever they are free: what is wanted is spread by cores and by slots."""
        if self._since.seconds > 0:
            self._means, self._since = self._since.means(), _Sums()
        cores = sum(host.cores for host in self._usable()) or 1.0
        alive = (host for host in self._hosts if host.name not in self._dead)
        return tuple(self._host_reading(host, self._means, cores) for host in alive)

    def _host_reading(self, host: HostSpec, means: _Means, cores: float) -> HostReading:
        silent_s, slots = self._silent_s(host.name), float(_slots_of(host))
        if self._is_suspect(host.name):
            return HostReading(host.name, host.cores, None, slots=slots, silent_s=silent_s, suspect=True)
        share = slots / self._slots()
        return HostReading(
            host.name,
            host.cores,
            means.load * host.cores / cores,
            slots=slots,
            running=means.running * share,
            waiting=means.waiting * share,
            silent_s=silent_s,
        )

    # -- readings

    def _reading(self, name: str) -> JobReading:
        run = self._runs[name]
        self._count_arrivals(name, run)
        points, run.points = run.points, []
        operators = {name: _operator_reading(run, name) for name in run.graph.operators}
        unread = sum(run.arrived[source] - run.processed[source][OUTSIDE] for source in run.arrived)
        return JobReading(
            version=self._version[name],
            operators=operators,
            arrived=dict(run.arrived),
            backlog=unread,
            latency=Latency.weighted(points) if points else None,
            in_epochs_s=run.in_epochs_s,
            epochs=run.epochs,
            epoch_age_s=None if run.ended_s is None else self._now_s - run.ended_s,
            epochs_as_given=run.as_given,
        )


def _slots_of(host: HostSpec) -> int:
    return host.slots or round(host.cores)


def _operator_reading(run: _Run, name: str) -> OperatorReading:
    lanes = run.lanes.get(name)
    if lanes is None:
        return OperatorReading(dict(run.processed[name]), dict(run.sent[name]), ())
    return OperatorReading(
        dict(run.processed[name]),
        dict(run.sent[name]),
        tuple(lanes.busy_s),
        lane_rows=tuple(lanes.rows),
        hosts=lanes.hosts,
        slice_rows=tuple(lanes.slice_rows) if lanes.weights else None,
    )


def _rows_per_operator(run: _Run, rows: Mapping[str, float]) -> dict[str, float]:
    """Rows that reach each operator when these are read at the sources."""
    offered = {name: rows.get(name, 0.0) for name in run.graph.operators}
    for parent, children in run.graph.children.items():
        for child in children:
            offered[child] += offered[parent] * _rows_per_row(run, parent)
    return offered


def _edges(run: _Run, offered: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """(parent, child, rows) of an epoch."""
    return [
        (parent, child, offered[parent] * _rows_per_row(run, parent))
        for parent, children in run.graph.children.items()
        for child in children
    ]


def _rows_per_row(run: _Run, parent: str) -> float:
    spec = run.specs[parent]
    return spec.selectivity / (len(run.graph.children[parent]) if spec.split else 1)
