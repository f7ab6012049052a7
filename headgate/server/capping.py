"""An engine that keeps the lanes of jobs within the quotas of their tenants, for every policy.

The controller sees a limit of lanes for each operator, so that it asks for what is left. An action that goes beyond is refused, as an
engine refuses what it cannot do. Only the loop uses it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping

from headgate.core.model import Action, Allocation, Graph, Job, Outcome, Snapshot
from headgate.ports import Engine

LaneLimit = Callable[[str], int | None]
"""Lanes that the jobs of a tenant may have together; None: no limit."""


class CappedEngine:
    """The engine of a service, as its controller sees it."""

    def __init__(self, engine: Engine, lane_limit: LaneLimit, weight: Callable[[str], float]) -> None:
        self._engine, self._lane_limit, self._weight = engine, lane_limit, weight
        self._allocation: Allocation = {}
        """As of the last reading."""

    def jobs(self) -> Mapping[str, Job]:
        """The jobs with the lanes that are left to their tenants, and the weights of these."""
        jobs = self._engine.jobs()
        return {name: self._capped(job, self._lanes_left(job.tenant, jobs)) for name, job in jobs.items()}

    def observe(self) -> Snapshot:
        """Read every counter once."""
        snapshot = self._engine.observe()
        self._allocation = snapshot.allocation
        return snapshot

    def apply(self, action: Action) -> Outcome:
        """Refuse what goes beyond a quota; jobs that are above it already may only shrink."""
        jobs = self._engine.jobs()
        now = _lanes_by_tenant(jobs, self._allocation)
        then = _lanes_by_tenant(jobs, {**self._allocation, **action.changes})
        for tenant, lanes in then.items():
            limit = self._lane_limit(tenant)
            if limit is not None and lanes > max(limit, now[tenant]):
                return Outcome(False, f'tenant "{tenant}" may have {limit} lanes, and this would make {lanes}')
        return self._engine.apply(action)

    def _lanes_left(self, tenant: str, jobs: Mapping[str, Job]) -> int | None:
        limit = self._lane_limit(tenant)
        return None if limit is None else max(0, limit - _lanes_by_tenant(jobs, self._allocation)[tenant])

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


def _lanes_by_tenant(jobs: Mapping[str, Job], allocation: Allocation) -> Counter[str]:
    lanes: Counter[str] = Counter()
    for name, job in jobs.items():
        if name in allocation:
            lanes[job.tenant] += sum(allocation[name].lanes.values())
    return lanes
