"""Weighted fairness among tenants: the objective `fair`.

The satisfaction of a tenant is the utility of its jobs as a share of their worth; the weighted satisfaction is the satisfaction divided by
the tenant's weight. The objective is the lowest weighted satisfaction. The total utility decides between equally fair allocations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.core.metrics import JobView

TOTAL_PART = 0.05
"""Weight of the total utility in the score: too small to outweigh the satisfaction of a tenant."""


def weighted_satisfactions(jobs: Collection[JobView]) -> dict[str, float]:
    """The weighted satisfaction of each tenant; jobs that are not judged are left out."""
    utility: dict[str, float] = {}
    worth: dict[str, float] = {}
    for job in jobs:
        tenant = job.job.tenant
        utility[tenant] = utility.get(tenant, 0.0) + (job.utility or 0.0)
        worth[tenant] = worth.get(tenant, 0.0) + (job.worth if job.utility is not None else 0.0)
    weights = _weights(jobs)
    return {name: (utility[name] / worth[name] if worth[name] else 1.0) / weights[name] for name in utility}


def fair_score(jobs: Collection[JobView]) -> float:
    """The lowest weighted satisfaction, plus `TOTAL_PART` times the total utility as a share of the total worth."""
    lowest = min(weighted_satisfactions(jobs).values(), default=1.0)
    worth = sum(job.worth for job in jobs)
    total = sum(job.utility or 0.0 for job in jobs) / worth if worth else 1.0
    return lowest + TOTAL_PART * total


def most_fair_score(jobs: Collection[JobView]) -> float:
    """The score when all intents are met."""
    return 1.0 / max(_weights(jobs).values(), default=1.0) + TOTAL_PART


def _weights(jobs: Collection[JobView]) -> Mapping[str, float]:
    return {job.job.tenant: job.job.weight for job in jobs}
