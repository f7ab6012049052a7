"""Quotas: what the jobs of a tenant use together, and whether a job still fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from headgate.core.alerts import Alert, AlertKind
from headgate.errors import QuotaError
from headgate.server.board import StatusBoard
from headgate.server.registry import Demand
from headgate.server.state_sizes import SPEND_S, StateSizes
from headgate.server.status import Status, TenantStatus, Usage
from headgate.server.tenants import Quota, Tenant, Tenants

MB = 1_000_000
REMEDIES = {
    "jobs": "remove a job",
    "lanes": "remove a job, or submit this one with fewer lanes",
    "share": "give a job a smaller share",
    "memory_mb": "remove a job, or submit this one with fewer lanes",
    "state_mb": "remove a job, or give its operators a shorter retention",
    "worth": "give a job less worth",
}
UNITS = {"jobs": "jobs", "lanes": "lanes", "share": "of share", "memory_mb": "MB of memory", "state_mb": "MB of state"}


class Accounts:
    """The usage of all tenants, computed from the status board; any thread may ask at any time."""

    def __init__(self, tenants: Tenants, board: StatusBoard, sizes: StateSizes, lane_memory_mb: float) -> None:
        self.tenants, self._board, self._sizes, self._lane_memory_mb = tenants, board, sizes, lane_memory_mb

    def _of_others(self, tenant: str, without: str) -> Usage:
        """Return the present usage of a tenant's jobs except the job `without`; the time to count their state is not limited."""
        mine = [name for name, job in self._board.declared.now().items() if job.tenant == tenant and name != without]
        return _sum(self._of(mine, math.inf).values())

    def _of(self, names: Iterable[str], spend_s: float = SPEND_S) -> dict[str, Usage]:
        """Return the usage of each of these jobs; jobs that are not declared are left out."""
        declared, states, sizes = self._board.declared.now(), self._board.states(), self._sizes.of(names, spend_s)
        found = {}
        for name in names:
            job, state = declared.get(name), states.get(name)
            if job is not None:
                lanes, share = self._lanes(name, job.lanes), state.share if state is not None else 1
                found[name] = Usage(1, lanes, share, self._memory(lanes), sizes.get(name, 0) / MB, job.worth)
        return found

    def _lanes(self, name: str, declared: int) -> int:
        picture = self._board.picture()
        view = picture.view.jobs.get(name) if picture is not None else None
        return sum(view.allocation.lanes.values()) if view is not None else declared

    def _memory(self, lanes: int) -> float:
        return lanes * self._lane_memory_mb

    def check(self, tenant: str, name: str, asked: Demand, granted: Demand | None = None) -> None:
        """Refuse a job, or its change, beyond the quotas of the tenant; what the job already has, or was granted, stays allowed."""
        own = self._of([name], math.inf).get(name, Usage())
        has = own if granted is None else self._demanded(granted, own.state_mb)
        check_quota(
            self.tenants.get(tenant), self._of_others(tenant, without=name), self._demanded(asked, own.state_mb), has
        )

    def _demanded(self, demand: Demand, state_mb: float) -> Usage:
        return Usage(1, demand.lanes, demand.share, self._memory(demand.lanes), state_mb, demand.worth)

    def lane_limit(self, tenant: str) -> int | None:
        """Return the most lanes that the jobs of a tenant may have together, by its quotas of lanes and of memory."""
        quota = self.tenants.get(tenant).quota
        by_memory = None if quota.memory_mb is None else int(quota.memory_mb // self._lane_memory_mb)
        limits = [one for one in (quota.lanes, by_memory) if one is not None]
        return min(limits, default=None)

    def above_state(self) -> list[Alert]:
        """Return an alert for each tenant above its quota of state: quotas are checked at a submit, and state grows later."""
        limits = {name: one.quota.state_mb for name, one in self.tenants.all().items()}
        owners = {name: job.tenant for name, job in self._board.declared.now().items()}
        usage = self._of([name for name, owner in owners.items() if limits.get(owner) is not None])
        alerts = []
        for tenant, most in limits.items():
            mine = {name: one.state_mb for name, one in usage.items() if owners[name] == tenant}
            used = sum(mine.values())
            if most is not None and used > most:
                alerts.append(
                    Alert(
                        _growth(tenant, used, most),
                        about=tenant,
                        job=max(mine, key=mine.__getitem__),
                        kind=AlertKind.STATE_QUOTA,
                    )
                )
        return alerts

    def statuses(self, status: Status) -> dict[str, TenantStatus]:
        """Return the status of each tenant that is registered, has a job, or has a part of the bill."""
        costs = status.leases.bill.cost_by_tenant if status.leases is not None else {}
        names = dict.fromkeys([*self.tenants.all(), *(job.tenant for job in status.jobs.values()), *costs])
        usage = self._of(self._board.declared.now())
        return {name: self._status(name, status, usage, costs.get(name, 0.0)) for name in names}

    def _status(self, name: str, status: Status, usage: Mapping[str, Usage], cost: float) -> TenantStatus:
        tenant = self.tenants.get(name)
        jobs = {job: one for job, one in status.jobs.items() if one.tenant == name}
        judged = [one for one in jobs.values() if one.utility is not None]
        utility, worth = sum(one.utility or 0.0 for one in judged), sum(one.worth for one in judged)
        return TenantStatus(
            usage=_sum(usage[job] for job in jobs if job in usage),
            quota=tenant.quota,
            weight=tenant.weight,
            utility=utility,
            satisfaction=utility / worth if worth else None,
            cost=cost,
            jobs_met=sum(one.met is True for one in jobs.values()),
        )


def _growth(tenant: str, used: float, most: float) -> str:
    return (
        f'tenant "{tenant}" may have {most:g} {UNITS["state_mb"]} and has {used:.0f}, most of it in this job;'
        " give its operators a shorter retention, or ask the operator of the service for a higher quota"
    )


def check_quota(tenant: Tenant, before: Usage, wanted: Usage, own: Usage) -> None:
    """Refuse a usage above a limit; a job that is already above a limit may keep or lower its usage."""
    for limit in dataclasses.fields(Quota):
        most = getattr(tenant.quota, limit.name)
        used, more, has = (getattr(one, limit.name) for one in (before, wanted, own))
        if most is not None and used + more > most and (more > has or own.jobs == 0):
            raise QuotaError(_sentence(tenant.name, limit.name, most, used, more))


def _sentence(tenant: str, what: str, most: float, used: float, more: float) -> str:
    unit = UNITS.get(what, "points of worth")
    return (
        f'tenant "{tenant}" may have {most:g} {unit}: {used:g} are used and this needs {more:g};'
        f" {REMEDIES[what]}, or ask the operator of the service for a higher quota"
    )


def _sum(parts: Iterable[Usage]) -> Usage:
    found = list(parts)
    return Usage(*(sum(getattr(one, limit.name) for one in found) for limit in dataclasses.fields(Usage)))
