"""The leased model: lanes are containers with reserved cores and memory, on hosts that are paid per billing time unit.

A fluid model in steps of `LEASED_STEP_S`: one queue per operator, filled by all its parents and emptied by all its lanes (as with a
message broker). Lanes need time to start, and drain before they end. docs/decisions/0031 argues the choices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headgate.core.hosts import OperatorKey
from headgate.core.latency import Latency
from headgate.core.model import OUTSIDE, HostReading, JobAllocation, JobReading, OperatorReading
from headgate.errors import ScenarioError
from headgate.hosts.leases import (
    LaneStep,
    LeasedCluster,
    LeaseHost,
    MoveLane,
    Need,
    StartLane,
    StopLane,
    TenantJob,
    check_needs,
)
from headgate.hosts.provision import OperatorDemand, Terms, best_host, lanes_on_hosts
from headgate.sim import constants
from headgate.sim.engine import NOISE_S, SimulatedEngine
from headgate.sim.models.service import OperatorService
from headgate.sim.pool import SimulatedPool
from headgate.sim.spec import Event, JobSpec, OperatorSpec, Scenario

NEVER_S = math.inf


@dataclass(slots=True)
class _LeasedLane:
    """A lane on a host, with the times at which the lane starts to process rows and stops taking rows."""

    operator: OperatorKey
    host: str
    works_s: float
    drain_s: float
    leaves_s: float = NEVER_S

    @property
    def stays(self) -> bool:
        return self.leaves_s == NEVER_S

    @property
    def gone_s(self) -> float:
        """When its cores and memory are free again."""
        return self.leaves_s + self.drain_s


@dataclass(slots=True)
class _Flow:
    """One running operator, and its counters."""

    spec: OperatorSpec
    service: OperatorService
    children: tuple[str, ...]
    waiting: dict[str, float]
    """Rows in its queue, by parent."""
    processed: dict[str, float]
    sent: dict[str, float]
    lane_busy_s: list[float] = field(default_factory=list)
    inflow: dict[str, float] = field(default_factory=dict)
    """Rows that come in this step, by parent."""
    took_s: float = 0.0
    """Mean seconds from arrival at the job to the end of this operator, over the rows of the last step."""


class LeasedEngine(SimulatedEngine):
    """Simulates jobs on hosts that are leased and released."""

    def __init__(
        self, scenario: Scenario, seed: int, first: Mapping[OperatorKey, int] | None = None, failures: float = 0.0
    ) -> None:
        if scenario.terms is None:
            raise ScenarioError(
                f"{scenario.name} says nothing about the hosts that can be leased; give a [[host_type]]"
            )
        self.terms: Terms = scenario.terms
        self.pool = SimulatedPool(self.now_s, seed, self._empty, failures)
        self.unplaced: Counter[OperatorKey] = Counter()
        """Requested lanes that no host has room for."""
        self.counts: Counter[type[LaneStep]] = Counter()
        """Steps that were carried out, by kind."""
        self._use: dict[str, dict[TenantJob, float]] = {}
        self._flows: dict[OperatorKey, _Flow] = {}
        self._lanes: list[_LeasedLane] = []
        self._arrived: dict[OperatorKey, float] = {}
        self._put_out: dict[str, list[tuple[float, float]]] = {}
        self._samples = 0
        self._dead: set[str] = set()
        self._burst_s = scenario.burst_s
        super().__init__(scenario, seed)
        self._begin(first or {key: flow.spec.lanes for key, flow in self._flows.items()})

    def _begin(self, first: Mapping[OperatorKey, int]) -> None:
        """Place the hosts and lanes that exist from the start."""
        check_needs(self.needs, self.terms.kinds)
        for step in lanes_on_hosts(first, self.needs, self.terms).steps:
            if isinstance(step, LeaseHost):
                self.pool.lease_ready(step.host, step.kind)
            elif isinstance(step, StartLane):
                self._lanes.append(_LeasedLane(step.operator, step.host, 0.0, self.terms.settings.lane_drain_s))
                self.pool.keep_image(step.host, step.operator)
        placed = Counter(lane.operator for lane in self._lanes)
        self.unplaced.update({key: lanes - placed[key] for key, lanes in first.items() if lanes > placed[key]})
        for job in self._jobs:
            self._count_lanes(job)

    # -- what a provisioner sees

    @property
    def needs(self) -> dict[OperatorKey, Need]:
        """Cores and memory reserved for one lane of each operator."""
        return {key: Need(flow.spec.cores, flow.spec.memory_mb) for key, flow in self._flows.items()}

    def cluster(self) -> LeasedCluster:
        """Hosts, and the lanes on them that stay."""
        placed: dict[str, Counter[OperatorKey]] = {}
        for lane in self._lanes:
            if lane.stays:
                placed.setdefault(lane.host, Counter())[lane.operator] += 1
        return LeasedCluster(self.pool.hosts(), self.needs, placed)

    def demands(self) -> dict[OperatorKey, OperatorDemand]:
        """Return the demand of every operator since the last call; the queue length is a sample of one moment."""
        self._samples += 1
        late = Counter(lane.operator for lane in self._lanes if lane.stays and lane.works_s > self._now_s)
        chances = np.random.default_rng([self._seed, 3, self._samples]).uniform(size=len(self._flows)).tolist()
        return {
            key: OperatorDemand(
                flow.service.expected_s, *flow.service.sampled(sum(flow.waiting.values()), chance), late[key]
            )
            for (key, flow), chance in zip(self._flows.items(), chances, strict=True)
        }

    def take_use(self) -> dict[str, dict[TenantJob, float]]:
        """Return the core seconds reserved for each job since the last call, by host."""
        use, self._use = self._use, {}
        return use

    def services(self) -> dict[OperatorKey, OperatorService]:
        """How each operator served its rows."""
        return {key: flow.service for key, flow in self._flows.items()}

    # -- what it does

    def place(self, step: LaneStep) -> None:
        """Start, stop or move a lane."""
        self.counts[type(step)] += 1
        match step:
            case StartLane(operator, host):
                self._start(operator, host)
                self.unplaced[operator] = max(0, self.unplaced[operator] - 1)
            case StopLane(operator, host):
                self._newest(operator, host).leaves_s = self._now_s
            case MoveLane(operator, source, target):
                leaving = self._newest(operator, source)
                leaving.leaves_s = self._start(operator, target).works_s
        self._count_lanes(step.operator[0])

    def _newest(self, operator: OperatorKey, host: str) -> _LeasedLane:
        """Return the operator's lane on a host that starts to process rows last."""
        there = [one for one in self._lanes if one.operator == operator and one.host == host and one.stays]
        return max(there, key=lambda one: one.works_s)

    def _start(self, operator: OperatorKey, host: str) -> _LeasedLane:
        cached = self.pool.has_image(host, operator)
        begins_s = max(self.pool.ready_s(host), self._room_from_s(operator, host))
        takes_s = constants.LANE_START_CACHED_S if cached else constants.LANE_START_S
        lane = _LeasedLane(operator, host, begins_s + takes_s, self.terms.settings.lane_drain_s)
        self.pool.keep_image(host, operator)
        self._lanes.append(lane)
        return lane

    def _room_from_s(self, operator: OperatorKey, host: str) -> float:
        """When enough leaving lanes are gone for one more lane."""
        needs, kind = self.needs, self.pool.hosts()[host].kind
        there = sorted((lane for lane in self._lanes if lane.host == host), key=lambda lane: lane.gone_s)
        room = Need(kind.cores, kind.memory_mb)
        for lane in there:
            room = room.plus(needs[lane.operator], -1)
        from_s = self._now_s
        while there and there[0].gone_s < NEVER_S and needs[operator].times_in(room) < 1 - 1e-9:
            from_s = max(from_s, there[0].gone_s)
            room = room.plus(needs[there.pop(0).operator])
        return from_s

    def _empty(self, host: str) -> bool:
        return all(lane.host != host or lane.gone_s <= self._now_s + 1e-9 for lane in self._lanes)

    def _count_lanes(self, job: str) -> None:
        """Set the allocation of a job to its placed lanes plus its lanes without room."""
        placed = Counter(lane.operator for lane in self._lanes if lane.stays)
        names = self._jobs[job].graph.operators
        lanes = {name: placed[(job, name)] + self.unplaced[(job, name)] for name in names}
        if lanes != self._allocation[job].lanes:
            self._allocation[job] = JobAllocation(lanes)
            self._version[job] += 1
        for name, count in lanes.items():
            busy_s = self._flows[(job, name)].lane_busy_s
            busy_s[count:] = [0.0] * (count - len(busy_s))

    # -- what a scheduler does: lanes as asked for, where there is room

    def _reallocate(self, name: str) -> None:
        for operator, lanes in self._allocation[name].lanes.items():
            key = (name, operator)
            self.unplaced[key] = 0
            placed = sum(lane.operator == key and lane.stays for lane in self._lanes)
            for _ in range(placed - lanes):
                self._stop_one(key)
            self.unplaced[key] = max(0, lanes - placed)
        self.place_waiting()

    def _stop_one(self, operator: OperatorKey) -> None:
        """Stop a lane on the host with the most free memory, so that hosts become empty."""
        cluster = self.cluster()
        there = [name for name, lanes in cluster.placed.items() if lanes[operator]]
        host = max(there, key=lambda name: (cluster.room(name).memory_mb, name))
        self._newest(operator, host).leaves_s = self._now_s
        self.counts[StopLane] += 1

    def forget_unplaced(self, job: str) -> None:
        """Drop the job's lanes that have no room."""
        for operator in self._jobs[job].graph.operators:
            self.unplaced[(job, operator)] = 0
        self._count_lanes(job)

    def place_waiting(self) -> None:
        """Start lanes without room on hosts that have room now."""
        for operator, lanes in self.unplaced.items():
            for _ in range(lanes):
                host = best_host(self.cluster(), operator, self.terms.settings)
                if host is None:
                    break
                self._start(operator, host)
                self.unplaced[operator] -= 1
                self.counts[StartLane] += 1
        for job in self._jobs:
            self._count_lanes(job)

    # -- jobs start and end

    def _set_up(self, spec: JobSpec) -> None:
        graph = self._jobs[spec.name].graph
        by_name = {operator.name: operator for operator in spec.operators}
        for name, operator in graph.operators.items():
            parents = operator.inputs or (OUTSIDE,)
            self._flows[(spec.name, name)] = _Flow(
                spec=by_name[name],
                service=_service(by_name[name], self._burst_s),
                children=graph.children[name],
                waiting=dict.fromkeys(parents, 0.0),
                processed=dict.fromkeys(parents, 0.0),
                sent=dict.fromkeys(graph.children[name], 0.0),
            )
        self._arrived |= {(spec.name, source): 0.0 for source in graph.sources}
        self._put_out[spec.name] = []
        if self._now_s > 0:  # those that are there from the start are placed together
            self.unplaced.update({(spec.name, one.name): one.lanes for one in spec.operators})
            self.place_waiting()

    def _tear_down(self, name: str) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if key[0] != name}
        self._lanes = [lane for lane in self._lanes if lane.operator[0] != name]
        self._arrived = {key: rows for key, rows in self._arrived.items() if key[0] != name}
        self.unplaced = Counter({key: count for key, count in self.unplaced.items() if key[0] != name})
        del self._put_out[name]

    def _host_event(self, event: Event) -> None:
        if event.kind != "fail-host":
            raise ScenarioError(f"event {event.kind} cannot happen to hosts that are leased")
        for name in [event.target] if event.target else list(self.pool.hosts()):
            self.pool.kill(name)
            self._dead.add(name)

    # -- time

    def _run_until(self, at_s: float) -> None:
        while self._now_s < at_s - 1e-9:
            step_s = min(constants.LEASED_STEP_S, at_s - self._now_s)
            self._step(step_s)
            self._now_s += step_s
            self._lanes = [lane for lane in self._lanes if lane.gone_s > self._now_s]

    def _step(self, step_s: float) -> None:
        at_work = Counter(
            lane.operator
            for lane in self._lanes
            if lane.works_s <= self._now_s + 1e-9 and self._now_s < lane.leaves_s and lane.host not in self._dead
        )
        slow = self._host_noise.factor(int(self._now_s / NOISE_S + 1e-9))
        for job, graph in ((name, job.graph) for name, job in self._jobs.items()):
            for source in graph.sources:
                rows = self._rate_rows_s(job, source, self._now_s) * step_s
                self._arrived[(job, source)] += rows
                self._flows[(job, source)].inflow = {OUTSIDE: rows}
            for operator in graph.operators:
                self._serve(job, operator, at_work[(job, operator)], slow, step_s)
        self._note_use()

    def _serve(self, job: str, operator: str, lanes: int, slow: float, step_s: float) -> None:
        """Process one operator for one step: take rows from the queue in equal shares of each parent's rows, and pass the results on."""
        flow = self._flows[(job, operator)]
        inherited_s = self._inherited_s(job, flow)
        offered = {parent: rows + flow.inflow.get(parent, 0.0) for parent, rows in flow.waiting.items()}
        before, total = sum(flow.waiting.values()), sum(offered.values())
        capacity = lanes / (flow.service.occupies_s * slow) * step_s
        done = min(total, capacity)
        share = done / total if total > 0 else 0.0
        for parent, rows in offered.items():
            flow.processed[parent] += rows * share
            flow.waiting[parent] = rows * (1 - share)
        busy = done / capacity if capacity > 0 else 1.0
        backlog = (before + total - done) / 2
        flow.took_s = inherited_s + flow.service.serve(done, backlog, lanes, busy, step_s)
        for index in range(min(lanes, len(flow.lane_busy_s))):
            flow.lane_busy_s[index] += busy * step_s
        self._pass_on(job, operator, flow, done)

    def _inherited_s(self, job: str, flow: _Flow) -> float:
        """Return the mean seconds that the rows of this step took before they reached this operator."""
        total = sum(flow.inflow.values())
        if total <= 0 or OUTSIDE in flow.inflow:
            return 0.0
        return sum(rows * self._flows[(job, parent)].took_s for parent, rows in flow.inflow.items()) / total

    def _pass_on(self, job: str, operator: str, flow: _Flow, done: float) -> None:
        rows = done * flow.spec.selectivity / (len(flow.children) if flow.spec.split and flow.children else 1)
        for child in flow.children:
            flow.sent[child] += rows
            self._flows[(job, child)].inflow[operator] = rows
        if not flow.children and done > 0:
            self._put_out[job].append((flow.took_s, done))

    def _note_use(self) -> None:
        """Add the use of each host by each job; a lane counts by its larger share of the host's cores or memory."""
        if round(self._now_s) % round(NOISE_S):
            return
        hosts = self.pool.hosts()
        for lane in self._lanes:
            if lane.host in hosts:
                kind, need, job = hosts[lane.host].kind, self._flows[lane.operator].spec, lane.operator[0]
                part = max(need.cores / kind.cores, need.memory_mb / kind.memory_mb)
                of_host, owned = self._use.setdefault(lane.host, {}), (self._jobs[job].tenant, job)
                of_host[owned] = of_host.get(owned, 0.0) + part * kind.cores * NOISE_S

    # -- readings

    def _reading(self, name: str) -> JobReading:
        flows = {key[1]: flow for key, flow in self._flows.items() if key[0] == name}
        points, self._put_out[name] = self._put_out[name], []
        return JobReading(
            version=self._version[name],
            operators={
                operator: OperatorReading(dict(flow.processed), dict(flow.sent), tuple(flow.lane_busy_s))
                for operator, flow in flows.items()
            },
            arrived={source: rows for (job, source), rows in self._arrived.items() if job == name},
            backlog=sum(sum(flow.waiting.values()) for flow in flows.values()),
            latency=Latency.weighted(points) if points else None,
        )

    def _host_readings(self) -> tuple[HostReading, ...]:
        """Return the load of each host: the larger of the reserved shares of its cores and memory, because lanes do not compete."""
        cluster = self.cluster()
        return tuple(
            HostReading(host.name, host.kind.cores, host.kind.cores * self._taken(cluster, host.name))
            for host in cluster.usable()
        )

    def _taken(self, cluster: LeasedCluster, host: str) -> float:
        room, kind = cluster.room(host), cluster.hosts[host].kind
        return max(1 - room.cores / kind.cores, 1 - room.memory_mb / kind.memory_mb)


def _service(spec: OperatorSpec, burst_s: float) -> OperatorService:
    occupies_s = spec.cost_s + spec.wait_s
    return OperatorService(occupies_s + spec.transit_s, occupies_s, burst_s)
