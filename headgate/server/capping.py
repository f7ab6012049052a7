"""An engine that keeps the lanes and shares of jobs within the quotas of their tenants, for every policy.

The controller sees a limit of lanes for each operator, so that it asks only for lanes that the quota leaves. `CappedEngine` refuses
an action beyond a quota. Only the control loop uses a `CappedEngine`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping

from headgate.core.model import Action, Allocation, Graph, Job, Outcome, Snapshot
from headgate.ports import Engine

Limit = Callable[[str], float | None]
"""Returns the most lanes, or the most share, that the jobs of a tenant may have together; None means no limit."""


class CappedEngine:
    """The engine that the controller of a service uses; it enforces the quotas and weights of tenants."""

    def __init__(self, engine: Engine, lane_limit: Limit, share_limit: Limit, weight: Callable[[str], float]) -> None:
        self._engine, self._lane_limit, self._share_limit, self._weight = engine, lane_limit, share_limit, weight
        self._allocation: Allocation = {}
        self._shares: dict[str, int] = {}
        """Share of each job by its last reading, used unless the share was raised; `_allocation` is from the last reading, too."""

    def jobs(self) -> Mapping[str, Job]:
        """Return the jobs, each limited to the lanes that its tenant has left, and with the weight of the tenant."""
        jobs = self._engine.jobs()
        return {name: self._capped(job, self._lanes_left(job.tenant, jobs)) for name, job in jobs.items()}

    def observe(self) -> Snapshot:
        """Read every counter once."""
        snapshot = self._engine.observe()
        self._allocation = snapshot.allocation
        readings = {name: one for name, one in snapshot.jobs.items() if one is not None}
        self._shares |= {name: one.share for name, one in readings.items() if one.share is not None}
        return snapshot

    def apply(self, action: Action) -> Outcome:
        """Apply an action; refuse an action that puts a tenant above a quota and above its present usage."""
        jobs, before = self._engine.jobs(), self._allocation
        after = {**before, **action.changes}
        told = _beyond("lanes", self._lane_limit, _lanes_by_tenant(jobs, before), _lanes_by_tenant(jobs, after))
        told = told or _beyond(
            "of share", self._share_limit, self._share_by_tenant(jobs, before), self._share_by_tenant(jobs, after)
        )
        return Outcome(False, told) if told else self._engine.apply(action)

    def _share_by_tenant(self, jobs: Mapping[str, Job], allocation: Allocation) -> Counter[str]:
        shares: Counter[str] = Counter()
        for name, job in jobs.items():
            raised = allocation[name].share if name in allocation else None
            shares[job.tenant] += self._shares.get(name, 1) if raised is None else raised
        return shares

    def _lanes_left(self, tenant: str, jobs: Mapping[str, Job]) -> int | None:
        limit = self._lane_limit(tenant)
        return None if limit is None else max(0, int(limit) - _lanes_by_tenant(jobs, self._allocation)[tenant])

    def _capped(self, job: Job, left: int | None) -> Job:
        weight = self._weight(job.tenant)
        graph = job.graph if left is None else _with_limits(job, self._allocation, left)
        return (
            job if graph is job.graph and weight == job.weight else dataclasses.replace(job, graph=graph, weight=weight)
        )


def _with_limits(job: Job, allocation: Allocation, left: int) -> Graph:
    has = allocation[job.name].lanes if job.name in allocation else {}
    operators = {
        name: dataclasses.replace(one, max_lanes=_least(one.max_lanes, has[name] + left)) if name in has else one
        for name, one in job.graph.operators.items()
    }
    return dataclasses.replace(job.graph, operators=operators)


def _least(own: int | None, limit: int) -> int:
    return limit if own is None else min(own, limit)


def _beyond(unit: str, limit: Limit, now: Mapping[str, int], then: Mapping[str, int]) -> str:
    """Return why an action is refused: a tenant would have more than its limit and more than now; empty if no tenant would."""
    for tenant, wanted in then.items():
        most = limit(tenant)
        if most is not None and wanted > max(most, now[tenant]):
            return f'tenant "{tenant}" may have {most:g} {unit}, and this would make {wanted}'
    return ""


def _lanes_by_tenant(jobs: Mapping[str, Job], allocation: Allocation) -> Counter[str]:
    lanes: Counter[str] = Counter()
    for name, job in jobs.items():
        if name in allocation:
            lanes[job.tenant] += sum(allocation[name].lanes.values())
    return lanes
