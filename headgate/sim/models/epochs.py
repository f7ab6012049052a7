"""The epoch model: one micro-batch after another per job, stages one after another, tasks on slots (as in Spark).

Each epoch reads the rows that have arrived, but at most as many as take a few seconds. An epoch has a fixed cost whatever its size, and
ends with its last stage. Epochs of different jobs run in parallel and share the cores; the slowdown of an epoch by other epochs is
computed when the epoch starts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from headgate.core.latency import Latency
from headgate.core.model import (
    OUTSIDE,
    EpochTiming,
    HostReading,
    JobReading,
)
from headgate.core.phases import fair_gap_s, spread_start_s
from headgate.sim import constants
from headgate.sim.engine import NOISE_S, SimulatedEngine
from headgate.sim.models.epoch_runs import (
    ClusterMeans,
    ClusterSums,
    EpochJob,
    EpochLanes,
    crowding,
    operator_reading,
    rows_per_edge,
    rows_per_operator,
    slots_of,
    timing,
)
from headgate.sim.models.keys import lane_shares, skew_slices, slice_weights
from headgate.sim.spec import Event, HostSpec, JobSpec, OperatorSpec, Scenario

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Rows of an epoch are reported as five points of equal weight: they arrived evenly over its interval."""

STUCK_S = 0.5
"""Time between two checks whether an epoch on a host that is cut off can continue."""


class EpochEngine(SimulatedEngine):
    """Simulates a cluster that runs every job as a sequence of epochs."""

    paced = True
    phase_slack = constants.PHASE_SLACK
    """Share of its pace by which an epoch starts earlier than due at most; 0: epochs start when they are due."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._runs: dict[str, EpochJob] = {}
        self._agenda: list[tuple[float, int, str, str]] = []
        self._count = 0
        self._dead: set[str] = set()
        self._speed: dict[str, float] = {}
        self._outside_load: dict[str, float] = {}
        self._slow: dict[tuple[str, str, int], tuple[str, float]] = {}
        """The host on which each slow lane is slow, and the share of its speed that the lane has there."""
        self._weights: dict[tuple[str, str], list[float]] = {}
        self._cut_s: dict[str, float] = {}
        """The time at which each host that is cut off was cut off, in virtual seconds."""
        self._peak_kb = self._read_kb = 0.0
        """Peak memory of the rows of running epochs, in kilobytes: since the last reading, and in the interval before that reading."""
        self._since = ClusterSums()
        self._means = ClusterMeans(0.0, 0.0, 0.0)
        self._costs = scenario.epoch_costs
        self._all_slots = max(1, sum(slots_of(host) for host in scenario.hosts))
        super().__init__(scenario, seed)

    # -- jobs

    def _set_up(self, spec: JobSpec) -> None:
        graph = self._jobs[spec.name].graph
        self._runs[spec.name] = EpochJob(
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
        """Place lanes round-robin on usable hosts that are not avoided; the counters of the lanes start at zero."""
        run, allocation = self._runs[name], self._allocation[name]
        alive = [host.name for host in self._usable()] or [host.name for host in self._hosts]
        allowed = [host for host in alive if host not in allocation.avoided] or alive
        for operator, lanes in allocation.lanes.items():
            hosts = tuple(allowed[lane % len(allowed)] for lane in range(lanes))
            weights = self._weights[(name, operator)]
            shares = lane_shares(weights, lanes, allocation.slices.get(operator))
            speeds = [self._lane_speed(name, operator, lane, host) for lane, host in enumerate(hosts)]
            factors = [share * lanes / speed for share, speed in zip(shares, speeds, strict=True)]
            run.lanes[operator] = EpochLanes(
                hosts, shares, factors, weights, [0.0] * lanes, [0.0] * lanes, [0.0] * len(weights)
            )

    def _lane_speed(self, job: str, operator: str, lane: int, host: str) -> float:
        where, speed = self._slow.get((job, operator, lane), (host, 1.0))
        return self._speed.get(host, 1.0) * (speed if where == host else 1.0)

    def _tear_down(self, name: str) -> None:
        del self._runs[name]
        self._agenda = [entry for entry in self._agenda if entry[2] != name]
        heapq.heapify(self._agenda)

    def _reallocate(self, name: str) -> None:
        """Apply a new allocation without a pause: the next epoch has the new lanes, and a shorter pace moves its start forward."""
        run = self._runs[name]
        run.as_given = 0
        self._settle(name)
        for entry in [entry for entry in self._agenda if entry[2] == name and entry[3] in ("start", "choose")]:
            self._agenda.remove(entry)
            heapq.heapify(self._agenda)
            self._plan_start(name)

    def _plan_start(self, name: str) -> None:
        """Plan the start of the next epoch by the pace, and within the slack at a moment at which few other epochs start."""
        run, pace_s = self._runs[name], self._allocation[name].pace_s or 0.0
        run.next_s = max(self._now_s, run.started_s + pace_s)
        if run.next_s > self._now_s and self.phase_slack:
            self._plan(max(self._now_s, run.next_s - self.phase_slack * pace_s), name, "choose")
        else:
            self._plan(run.next_s, name, "start")

    def _choose_start(self, name: str) -> None:
        run, slack_s = self._runs[name], self.phase_slack * (self._allocation[name].pace_s or 0.0)
        others_s = [other.next_s for other in self._runs.values() if other is not run]
        gap_s = fair_gap_s(one.pace_s or 0.0 for one in self._allocation.values())
        run.next_s = max(self._now_s, spread_start_s(run.next_s, slack_s, gap_s, others_s))
        self._plan(run.next_s, name, "start")

    def _plan(self, at_s: float, name: str, what: str) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (at_s, self._count, name, what))

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        """The last finished epochs; the wait for the pace is not part of an epoch of the model."""
        return tuple(self._runs[job].finished)

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
            case "choose":
                self._choose_start(name)
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
        rows = run.pending = self._read(name, run)
        run.pending_kb = sum(rows.values()) * _row_kb(run)
        self._peak_kb = max(self._peak_kb, self._rows_kb())
        offered = rows_per_operator(run, rows)
        staged = {operator: count for operator, count in offered.items() if operator in lanes}
        stretch, crowd, duration_s = self._stretch(name, lanes, staged)
        self._count_busy(run, lanes, staged, stretch)
        running_s, waiting_s = self._tasks_s(run, lanes, staged, (stretch, crowd))
        run.tasks = running_s / duration_s, waiting_s / duration_s
        run.hosts = frozenset(host for one in run.lanes.values() for host in one.hosts)
        run.version = self._version[name]
        run.started_s = self._now_s
        run.next_s = self._now_s + (self._allocation[name].pace_s or 0.0)
        run.fixed_s = run.costs.fixed_s * stretch
        run.busy_cores = self._cores_s(run, lanes, staged) / duration_s * stretch
        run.busy_slots = max(self._slots_s(run, staged, stretch), self._slots_s(run, staged, 1.0) * crowd) / duration_s
        self._plan(self._now_s + duration_s, name, "finish")

    def _count_busy(
        self, run: EpochJob, lanes: Mapping[str, int], offered: Mapping[str, float], stretch: float
    ) -> None:
        for operator, count in offered.items():
            run.lanes[operator].add(count, self._row_s(run.specs[operator], stretch) * count / lanes[operator])

    def _tasks_s(
        self, run: EpochJob, lanes: Mapping[str, int], offered: Mapping[str, float], slowed: tuple[float, float]
    ) -> tuple[float, float]:
        """Seconds for which tasks run, and for which tasks wait for a slot, all together: other jobs hold slots, and a stage with more
        lanes than slots runs in waves.
        """
        slots, running_s, waiting_s = self._slots(), 0.0, 0.0
        for operator, rows in offered.items():
            count, spec, factor = lanes[operator], run.specs[operator], run.lanes[operator].mean_factor()
            row_s, task_s = (
                self._slowed_row_s(spec, slowed[0], 1.0),
                rows / count * factor * self._slowed_row_s(spec, *slowed),
            )
            running_s += rows * factor * row_s
            waiting_s += count * task_s - rows * factor * row_s + sum(range(count - slots, 0, -slots)) * task_s
        return running_s, waiting_s

    def _read(self, name: str, run: EpochJob) -> dict[str, float]:
        """The oldest rows that wait, as many as an epoch may read."""
        waiting = {source: run.arrived[source] - run.processed[source][OUTSIDE] for source in run.arrived}
        share = min(1.0, run.most_rows / max(1e-9, sum(waiting.values())))
        limit = self._allocation[name].read_limit
        if limit is not None:
            share = min(share, limit / max(1e-9, *waiting.values()))
        run.until_s = run.read_to_s + share * (self._now_s - run.read_to_s)
        return {source: rows * share for source, rows in waiting.items()}

    def _stretch(self, name: str, lanes: Mapping[str, int], staged: Mapping[str, float]) -> tuple[float, float, float]:
        """Return the factors by which demand for cores and demand for slots slow the epoch, and the epoch's duration."""
        run = self._runs[name]
        alone_s = self._duration_s(run, lanes, staged, 1.0, 1.0)
        others = sum(other.busy_cores for other in self._runs.values()) + sum(self._outside_load.values())
        wanted = others + self._cores_s(run, lanes, staged) / alone_s
        stretch = max(1.0, wanted / self._cores()) * self._host_noise.factor(int(self._now_s / NOISE_S))
        stretch /= self._memory_speed(run)
        wants = [(self._share(other), one.busy_slots) for other, one in self._runs.items() if other != name]
        own = self._share(name)
        crowd = crowding(own, [(own, self._slots_s(run, staged, 1.0) / alone_s), *wants], self._slots())
        return stretch, crowd, self._duration_s(run, lanes, staged, stretch, crowd)

    def _cores_s(self, run: EpochJob, lanes: Mapping[str, int], staged: Mapping[str, float]) -> float:
        """Core seconds of an epoch."""
        per_task_s = run.costs.task_cores_s
        return run.costs.fixed_cores_s + sum(
            rows * run.specs[operator].cost_s + lanes[operator] * per_task_s for operator, rows in staged.items()
        )

    def _share(self, name: str) -> int:
        return self._allocation[name].share or self._specs[name].share

    def _slots_s(self, run: EpochJob, staged: Mapping[str, float], stretch: float) -> float:
        """Seconds for which the tasks of an epoch hold slots, all together."""
        return sum(rows * self._row_s(run.specs[operator], stretch) for operator, rows in staged.items())

    def _duration_s(
        self, run: EpochJob, lanes: Mapping[str, int], staged: Mapping[str, float], stretch: float, crowd: float
    ) -> float:
        """Return the duration of an epoch: stages run one after another, and a task holds its slot also during a look-up."""
        slots = self._slots()
        stages_s = 0.0
        for operator, rows in staged.items():
            waves = math.ceil(lanes[operator] / slots)
            slowest = max(run.lanes[operator].factors)
            spec = run.specs[operator]
            stages_s += waves * (rows / lanes[operator] * self._slowed_row_s(spec, stretch, crowd)) * slowest
            stages_s += run.costs.task_cores_s * lanes[operator] / slots * stretch
        return run.costs.fixed_s * stretch + stages_s

    def _rows_kb(self) -> float:
        """Memory that the rows of running epochs take, on all hosts together."""
        return sum(run.pending_kb for run in self._runs.values())

    def _memory_used(self, host: HostSpec, rows_kb: float) -> float | None:
        """Share of the memory of a host that lanes and the rows of running epochs take; None if the size of the memory is not known."""
        if not host.memory_gb:
            return None
        lanes = sum(one.hosts.count(host.name) for run in self._runs.values() for one in run.lanes.values())
        used_mb = lanes * constants.LANE_MB + rows_kb / 1024 / max(1, len(self._usable()))
        return used_mb / (host.memory_gb * 1024)

    def _memory_speed(self, run: EpochJob) -> float:
        """Share of their speed that lanes keep on the host of this job that has the least memory left: an epoch waits for its last task."""
        places = {host for one in run.lanes.values() for host in one.hosts}
        rows_kb = self._rows_kb()
        used = max(
            (self._memory_used(host, rows_kb) or 0.0 for host in self._hosts if host.name in places), default=0.0
        )
        over = max(0.0, used - constants.MEMORY_PRESSURE)
        return max(constants.LEAST_SPEED, 1.0 - constants.MEMORY_SLOPE * over)

    def _slots(self) -> int:
        if not self._dead and not self._cut_s:
            return self._all_slots  # asked for at every step
        return max(1, sum(slots_of(host) for host in self._usable()))

    def _slowed_row_s(self, spec: OperatorSpec, stretch: float, crowd: float) -> float:
        """Return the seconds per row under the scarcer of cores and slots: a task that waits for a slot wants no core."""
        return max(self._row_s(spec, stretch), self._row_s(spec, 1.0) * crowd)

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
            run.busy_cores, run.tasks, run.pending, run.pending_kb = 0.0, (0.0, 0.0), {}, 0.0
            self._plan(self._now_s, name, "start")
        else:
            self._plan(self._now_s + STUCK_S, name, "finish")

    def _finish(self, name: str) -> None:
        """Count the epoch's rows, report their latency, and plan the next epoch by the pace."""
        run = self._runs[name]
        rows = rows_per_operator(run, run.pending)
        for source, count in run.pending.items():
            run.processed[source][OUTSIDE] += count
        for parent, child, count in rows_per_edge(run, rows):
            run.sent[parent][child] += count
            run.processed[child][parent] += count
        out = sum(rows[sink] for sink in run.graph.sinks)
        self._report(run, out)
        run.epochs += 1
        run.as_given += run.version == self._version[name]
        run.in_epochs_s += self._now_s - run.started_s
        run.ended_s = self._now_s
        run.finished.append(timing(run))
        if sum(run.pending.values()) > 0:
            run.cost = run.cost.after(sum(run.pending.values()), self._now_s - run.started_s)
            run.most_rows = max(constants.LEAST_EPOCH_ROWS, run.cost.rows_in(constants.LONGEST_EPOCH_S))
        run.read_to_s, run.busy_cores, run.busy_slots = run.until_s, 0.0, 0.0
        run.tasks, run.pending, run.pending_kb = (0.0, 0.0), {}, 0.0
        self._plan_start(name)

    def _report(self, run: EpochJob, rows: float) -> None:
        if rows > 0:
            least_s, spread_s = self._now_s - run.until_s, run.until_s - run.read_to_s
            run.points += [(least_s + spread_s * quantile, rows / len(_QUANTILES)) for quantile in _QUANTILES]

    def _count_arrivals(self, name: str, run: EpochJob) -> None:
        """Count the rows that have arrived; the rate is constant within an interval."""
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
            self._weights[key] = skew_slices(self._weights[key], event.value, self._seed, event.target, event.operator)
        else:
            self._hosts_changed(event)
        for name in self._runs:
            self._settle_again(name)

    def _settle_again(self, name: str) -> None:
        """Place the lanes of a job again, and keep their counters."""
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
        """Return the readings of living hosts; the cluster's load is divided by cores, running and waiting tasks are divided by slots."""
        if self._since.seconds > 0:
            self._means, self._since = self._since.means(), ClusterSums()
            self._read_kb, self._peak_kb = self._peak_kb, self._rows_kb()
        cores = sum(host.cores for host in self._usable()) or 1.0
        alive = (host for host in self._hosts if host.name not in self._dead)
        return tuple(self._host_reading(host, self._means, cores) for host in alive)

    def _host_reading(self, host: HostSpec, means: ClusterMeans, cores: float) -> HostReading:
        silent_s, slots = self._silent_s(host.name), float(slots_of(host))
        if self._is_suspect(host.name):
            return HostReading(host.name, host.cores, None, slots=slots, silent_s=silent_s, suspect=True)
        share = slots / self._slots()
        return HostReading(
            host.name,
            host.cores,
            means.load * host.cores / cores,
            self._memory_used(host, self._read_kb),
            slots,
            running=means.running * share,
            waiting=means.waiting * share,
            silent_s=silent_s,
        )

    # -- readings

    def _reading(self, name: str) -> JobReading:
        run = self._runs[name]
        self._count_arrivals(name, run)
        points, run.points = run.points, []
        operators = {name: operator_reading(run, name) for name in run.graph.operators}
        unread = sum(run.arrived[source] - run.processed[source][OUTSIDE] for source in run.arrived)
        return JobReading(
            version=self._version[name],
            operators=operators,
            arrived=dict(run.arrived),
            backlog=unread,
            latency=Latency.weighted(points) if points else None,
            in_epochs_s=run.in_epochs_s,
            epochs=run.epochs,
            read_limit=self._allocation[name].read_limit,
            epoch_age_s=None if run.ended_s is None else self._now_s - run.ended_s,
            epochs_as_given=run.as_given,
            share=self._share(name),
        )


def _row_kb(run: EpochJob) -> float:
    """Memory of a row, at the operator whose rows are largest."""
    return max(spec.row_kb for spec in run.specs.values())
