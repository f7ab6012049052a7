"""Places single lanes on leased hosts, and leases a host when the utility that the host adds is worth its price.

The scheduler decides lanes; a new host is for lanes without room. This module joins VISP's procedures (hosts/provision.py) with
the utility of Henge: the scheduler decides which job is helped, and this module decides what may be paid for the help. Only the
simulator places single lanes; on Spark, `hosts/slots.py` decides which hosts are leased.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.config import Settings
from headgate.core.hosts import HostType, OperatorKey, host_name
from headgate.core.metrics import JobView, View
from headgate.core.sizing import needed_work
from headgate.hosts.leases import LeasedCluster, LeaseHost, Ledger, PlanStep, StartLane
from headgate.hosts.provision import (
    ProvisionPlan,
    ProvisionState,
    ProvisionView,
    Spare,
    Terms,
    cheapest,
    finish_plan,
    lane_on_hosts,
    start_plan,
)
from headgate.hosts.worth import at_risk, points_gained


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The input of decisions about leased hosts, with intents."""

    view: View
    cluster: LeasedCluster
    ledger: Ledger
    unplaced: Mapping[OperatorKey, int]
    """Lanes that the scheduler decided and that no host has room for."""
    set_aside: frozenset[str] = frozenset()
    """Jobs for which the scheduler has nothing left to give."""


def step(
    state: ProvisionState, now: LeaseView, terms: Terms, settings: Settings
) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
    """Decide once: place lanes without room, lease hosts that are worth their price, and release hosts that are not needed."""
    first = {operator: 1 for operator, count in now.unplaced.items() if count and not now.cluster.lanes(operator)}
    seen = ProvisionView(now.view.at_s, now.cluster, {}, now.ledger, first)
    state, plan = start_plan(state, seen, terms)
    spare = spare_lanes(now.view, terms, settings)
    wanted = lanes_wanted(now, settings)
    plan, wanted = _where_there_is_room(plan, wanted, spare, terms)
    while wanted and (larger := _with_host(plan, wanted, now.view, terms, settings)) is not None:
        plan, wanted = larger
    return finish_plan(state, plan, spare, terms)


# -- lanes that lack room --------------------------------------------------------------------------------------------------------

WantedLanes = tuple[OperatorKey, ...]
"""One entry per lane, the most urgent lane first."""


def lanes_wanted(now: LeaseView, settings: Settings) -> WantedLanes:
    """Return the lanes without room, the lanes of the jobs with the highest worth first."""
    missing = {name: job for name, job in now.view.jobs.items() if at_risk(job, settings)}
    lanes: list[OperatorKey] = []
    for name in sorted(missing, key=lambda name: (-missing[name].worth, name)):
        for operator, has in missing[name].allocation.lanes.items():
            count = now.unplaced.get((name, operator), 0)
            if name in now.set_aside:
                count = max(count, lanes_needed(missing[name], operator, settings.target_busy, settings) - has)
            lanes += [(name, operator)] * count
    return tuple(lanes)


def lanes_needed(job: JobView, operator: str, busy: float, settings: Settings) -> int:
    """Return the number of lanes that are busy for the share `busy` with an operator's work; without measurements, the current number."""
    has = job.allocation.lanes[operator]
    if job.span is None:
        return has
    work = needed_work(job.job.graph, job.span, settings)[operator]
    return has if work is None else max(1, math.ceil(work / busy - 1e-9))


def spare_lanes(view: View, terms: Terms, settings: Settings) -> Spare:
    """Return a function with the number of lanes that an operator can spare; None for an operator of a job that misses its intent."""
    needed = {
        (name, operator): lanes_needed(job, operator, terms.settings.spare_busy, settings)
        for name, job in view.jobs.items()
        if job.met
        for operator in job.allocation.lanes
    }
    return lambda operator, cluster: (
        float(cluster.lanes(operator) - max(1, needed[operator])) if operator in needed else None
    )


def _where_there_is_room(
    plan: ProvisionPlan, wanted: WantedLanes, spare: Spare, terms: Terms
) -> tuple[ProvisionPlan, WantedLanes]:
    left: list[OperatorKey] = []
    for operator in wanted:
        # If one lane finds no room, other lanes of the same operator find none either.
        after = lane_on_hosts(plan, operator, spare, terms) if operator not in left[-1:] else None
        plan = after or plan
        left += [] if after is not None else [operator]
    return plan, tuple(left)


# -- a host that earns its price -------------------------------------------------------------------------------------------------


def _with_host(
    plan: ProvisionPlan, wanted: WantedLanes, view: View, terms: Terms, settings: Settings
) -> tuple[ProvisionPlan, WantedLanes] | None:
    """Return the plan with one more host, filled with wanted lanes; None if the host may not be leased or is not worth its price."""
    kind = cheapest(plan.cluster.needs[wanted[0]], terms.kinds)
    if not plan.may_lease or not terms.budget.allows(plan.ledger, kind, plan.at_s):
        return None
    larger, left = _filled(plan, wanted, kind)
    missing, without = (Counter(job for job, _ in some) for some in (wanted, left))
    points = points_gained(missing, without, view, kind.btu_s / 2, settings)
    if points * terms.settings.point_price < kind.price_per_hour:
        return None
    return larger, left


def _filled(plan: ProvisionPlan, wanted: WantedLanes, kind: HostType) -> tuple[ProvisionPlan, WantedLanes]:
    name = host_name(plan.leases + 1)
    plan = plan.then(LeaseHost(name, kind))
    left: list[OperatorKey] = []
    for operator in wanted:
        fits = operator not in left[-1:] and plan.cluster.needs[operator].times_in(plan.cluster.room(name)) >= 1
        plan = plan.then(StartLane(operator, name)) if fits else plan
        left += [] if fits else [operator]
    return plan, tuple(left)
