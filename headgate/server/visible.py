"""The view of a service for each caller: a tenant sees its own jobs, and no names of other tenants' jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headgate.ports import JobPhase, Past
from headgate.server.board import FailureStatus
from headgate.server.hiding import hiding, mentions
from headgate.server.owned import OwnedPast
from headgate.server.service import Service
from headgate.server.status import ActionStatus, Status, jobs_headline, problem_of


@dataclass(frozen=True, slots=True)
class Seen:
    """The status and the past of a service, as far as a caller may see them."""

    status: Status
    past: Past
    failures: tuple[FailureStatus, ...]
    since_s: Mapping[str, float] | None
    """Time since which the tenant owns each job; None for the operator of the service, who sees everything."""


def seen(service: Service, tenant: str | None) -> Seen:
    """Return what a tenant sees of a service; without a tenant, what the operator of the service sees."""
    status = service.status()
    if tenant is None:
        return Seen(status, service.journal, service.board.failures, None)
    since_s = owned_since(service, tenant)
    others = (status.jobs.keys() | service.jobs.removed_by_others(tenant)) - since_s.keys()
    past = OwnedPast(service.journal, since_s, others)
    failures = tuple(one for one in service.board.failures if one.at_s >= since_s.get(one.job, float("inf")))
    return Seen(_status_for(status, tenant, since_s, hiding(others)), past, failures, since_s)


def owned_since(service: Service, tenant: str) -> dict[str, float]:
    """Return the jobs of a tenant, each with the time since which the tenant owns the job."""
    return {name: one.since_s for name, one in service.registry.all().items() if service.jobs.owner(name) == tenant}


def _status_for(status: Status, tenant: str, since_s: Mapping[str, float], hide: Callable[[str], str]) -> Status:
    jobs = {name: job for name, job in status.jobs.items() if job.tenant == tenant}
    wanted = [job for job in jobs.values() if job.state != JobPhase.PAUSED.value]
    judged = [job for job in wanted if job.utility is not None]
    worth = sum(job.worth for job in judged)
    return dataclasses.replace(
        status,
        jobs=jobs,
        score=sum(job.utility or 0.0 for job in wanted),
        max_score=sum(job.worth for job in wanted),
        satisfaction=sum(job.utility or 0.0 for job in judged) / worth if worth else None,
        decision="",
        actions=tuple(_hidden(one, hide) for one in status.actions if _is_own(one, since_s)),
        hosts=(),
        advice=tuple(hide(text) for text in status.advice if mentions(text, jobs)),
        leases=None,
        headline=jobs_headline(jobs),
        problem=problem_of(jobs),
        tenants={name: one for name, one in status.tenants.items() if name == tenant},
    )


def _is_own(action: ActionStatus, since_s: Mapping[str, float]) -> bool:
    return action.job is not None and action.at_s >= since_s.get(action.job, float("inf"))


def _hidden(action: ActionStatus, hide: Callable[[str], str]) -> ActionStatus:
    return dataclasses.replace(action, what=hide(action.what), cause=hide(action.cause), detail=hide(action.detail))
