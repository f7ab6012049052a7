"""Applies VISP's provisioners to engines whose lanes share slots: each lane reserves a slot in the books, but may run in any slot.

The baselines decide about lanes and hosts by queues and durations, as in the simulator (hosts/provision.py), and ignore the worth of
intents. The expected duration of a row is the latency intent of its job.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headgate.config import Settings
from headgate.core.hosts import Host, OperatorKey, host_name
from headgate.core.metrics import JobView, View, capacities
from headgate.core.model import Action, ActionKind, Cause
from headgate.core.sizing import Lanes, lane_limit, waiting
from headgate.health.resolving import lanes_changed
from headgate.hosts import actions as host_actions
from headgate.hosts.leases import LeasedCluster, LeaseHost, Need, PlanStep, ReleaseHost, StopLane, apply_step
from headgate.hosts.planners import HostsView, SharedSlots
from headgate.hosts.provision import PROVISIONERS, OperatorDemand, ProvisionerName, ProvisionState, ProvisionView, Terms

NO_EXPECTATION_S = float("inf")
"""Expected duration of the rows of a job without a latency intent: no row takes too long."""


class ReservedSlots(SharedSlots):
    """A planner that lets a provisioner of VISP decide about the lanes of all jobs, and about hosts."""

    def __init__(self, name: ProvisionerName, terms: Terms, settings: Settings) -> None:
        super().__init__(terms, settings)
        self._decide, self._cause = PROVISIONERS[name], Cause(f"the provisioner {name} reserves these slots")
        self._cluster = LeasedCluster({}, {})

    def decide(self, state: ProvisionState, now: HostsView) -> tuple[ProvisionState, Sequence[Action]]:
        """Decide on hosts to lease and to release, and on new lane counts of jobs; without a usable host, lease one."""
        cluster, unplaced = matched(self._cluster, now.view, now.hosts, self.terms)
        demands = {key: one for job in now.view.jobs.values() for key, one in demands_of(job).items()}
        seen = ProvisionView(now.view.at_s, cluster, demands, now.ledger, unplaced)
        state, steps = self._decide(state, seen, self.terms)
        if not any(isinstance(one, LeaseHost) for one in steps) and not cluster.usable():
            steps = (LeaseHost(host_name(state.leases + 1), self.terms.kinds[0]), *steps)
            state = dataclasses.replace(state, leases=state.leases + 1)
        for one in steps:
            cluster = apply_step(cluster, one, now.view.at_s)
        self._cluster = cluster
        return state, list(self._actions(steps, now))

    def _actions(self, steps: Sequence[PlanStep], now: HostsView) -> Iterator[Action]:
        """The steps as actions, in order; all lane steps of a job become one new allocation, at the place of the first lane step."""
        changed = set()
        for step in steps:
            if isinstance(step, LeaseHost | ReleaseHost):
                yield host_actions.action_of(step, steps, now.hosts, now.view.at_s)
                continue
            job = now.view.jobs[step.operator[0]]
            wanted = self._reserved_lanes(job)
            if job.job.name not in changed and wanted != job.allocation.lanes:
                changed.add(job.job.name)
                yield self._reconfigure(job, wanted)

    def _reserved_lanes(self, job: JobView) -> Lanes:
        """Lanes with a reserved slot, by operator: at least 1, and at most the lane limit."""
        name = job.job.name
        return {
            operator: max(1, min(self._cluster.lanes((name, operator)), lane_limit(job, operator, self.settings)))
            for operator in job.allocation.lanes
        }

    def _reconfigure(self, job: JobView, wanted: Lanes) -> Action:
        name, had = job.job.name, job.allocation.lanes
        changes = {name: job.allocation.with_lanes(wanted)}
        return Action(ActionKind.RECONFIGURE, name, changes, self._cause, lanes_changed(had, wanted))


def matched(
    before: LeasedCluster, view: View, hosts: Mapping[str, Host], terms: Terms
) -> tuple[LeasedCluster, dict[OperatorKey, int]]:
    """The reserved slots, matched to the current lanes and hosts, and the lanes for which no slot is reserved."""
    lanes = {(name, one): count for name, job in view.jobs.items() for one, count in job.allocation.lanes.items()}
    needs = {key: need_of(view.jobs[key[0]], key[1], terms) for key in lanes}
    cluster = LeasedCluster(dict(hosts), needs, {host: before.on(host) for host in hosts})
    kept = {host: {key: count for key, count in cluster.on(host).items() if key in lanes} for host in hosts}
    cluster = dataclasses.replace(cluster, placed=kept)
    for key, count in lanes.items():
        for _ in range(cluster.lanes(key) - count):
            holding = max(
                (host for host in hosts if cluster.on(host).get(key)), key=lambda host: cluster.room(host).cores
            )
            cluster = apply_step(cluster, StopLane(key, holding), view.at_s)
    missing = {key: count - cluster.lanes(key) for key, count in lanes.items()}
    return cluster, {key: count for key, count in missing.items() if count > 0}


def need_of(job: JobView, operator: str, terms: Terms) -> Need:
    """One slot and its part of the memory; nothing for a source, because its tasks end before the tasks of other operators begin."""
    kind = min(terms.kinds, key=lambda kind: kind.cores)
    return Need(1.0, kind.memory_mb / kind.cores) if job.job.graph.operators[operator].inputs else Need(0.0, 0.0)


def demands_of(job: JobView) -> Mapping[OperatorKey, OperatorDemand]:
    """The measured demand of each operator with lanes; rows that wait for an epoch count as queued at the busiest operator."""
    operators, name = job.allocation.lanes, job.job.name
    expected_s = job.job.intent.latency_s or NO_EXPECTATION_S
    if job.span is None:
        return {(name, one): OperatorDemand(expected_s, None, None) for one in operators}
    queues = _queues(job, operators)
    duration_s = job.recent_latency_s if job.recent_latency_s is not None else job.latency_s
    return {
        (name, one): OperatorDemand(expected_s, duration_s, queues[one], sum(job.span.busy_s(one)) / job.span.seconds)
        for one in operators
    }


def _queues(job: JobView, operators: Iterable[str]) -> Mapping[str, float]:
    assert job.span is not None
    graph, reading = job.job.graph, job.span.last.reading
    queues = Counter({one: waiting(graph, reading, one) for one in graph.operators})
    if reading.epochs is not None:
        busy = capacities(graph, job.span)
        slowest = max(operators, key=lambda one: busy[one])
        return {one: sum(queues.values()) if one == slowest else 0.0 for one in operators}
    return {one: queues[one] for one in operators}
