"""Decides on Spark which hosts are leased and released: by sums of slots, because lanes share the slots of all hosts by turns.

A lane of Spark runs in any free slot. The decision about hosts is therefore one comparison: the slots that the work of all jobs needs
(busy lane-seconds per second, divided by `target_busy`) against the slots of the hosts. docs/decisions/0035 gives the reasons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.config import HostSettings, Settings
from headgate.core.hosts import EXACT_S, Host, HostPhase, HostType, OperatorKey, host_name
from headgate.core.metrics import View
from headgate.core.model import Action, Cause, Graph
from headgate.core.sizing import needed_work
from headgate.core.windows import Span
from headgate.hosts import actions as host_actions
from headgate.hosts.leases import Ledger
from headgate.hosts.provision import ProvisionState, Terms, at_end_of_btu, count_failures
from headgate.hosts.worth import at_risk, points_gained

EXACT = 1e-9
"""Slots are sums of floats; a difference below this counts as 0."""

Work = Mapping[OperatorKey, float]
"""Busy lane-seconds per second of each operator."""
Slots = Mapping[str, float]
"""Slots by job, in the order in which jobs receive slots."""


# -- what jobs need --------------------------------------------------------------------------------------------------------------


def measured_work(view: View, settings: Settings) -> dict[OperatorKey, float]:
    """The work that operators need to keep up and to drain their backlog, of jobs that were measured for `warm_up_s`."""
    return {
        (name, operator): amount
        for name, job in view.jobs.items()
        if job.span is not None and job.span.seconds >= settings.warm_up_s - EXACT_S
        for operator, amount in _work_of(job.job.graph, job.span, settings).items()
        if amount is not None
    }


def _work_of(graph: Graph, span: Span, settings: Settings) -> Mapping[str, float | None]:
    if span.arrival_rows_s() <= 0 and _has_no_backlog(graph, span):
        return dict.fromkeys(graph.operators, 0.0)
    return needed_work(graph, span, settings)


def _has_no_backlog(graph: Graph, span: Span) -> bool:
    """Whether no rows wait; if the source does not report its backlog, whether no lane worked."""
    backlog = span.last.reading.backlog
    return backlog == 0 if backlog is not None else not any(sum(span.busy_s(name)) for name in graph.operators)


def slots_needed(view: View, work: Work, settings: Settings) -> Slots:
    """Slots that each measured job needs: first jobs that meet their intents, then the other jobs by falling worth."""
    measured = {job for job, _ in work} & view.jobs.keys()
    in_turn = sorted(measured, key=lambda name: (at_risk(view.jobs[name], settings), -view.jobs[name].worth, name))
    return {
        name: sum(amount for (job, _), amount in work.items() if job == name) / settings.target_busy for name in in_turn
    }


def slots_missing(needed: Slots, slots: float) -> Slots:
    """Slots that each job still lacks when `slots` slots are given to the jobs in turn."""
    missing: dict[str, float] = {}
    for name, amount in needed.items():
        if amount > slots + EXACT:
            missing[name] = amount - slots
        slots = max(0.0, slots - amount)
    return missing


def slots_of(hosts: Iterable[Host]) -> float:
    """Tasks that these hosts run at once."""
    return sum(host.kind.cores for host in hosts)


# -- the decision ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsView:
    """The input of decisions about hosts with shared slots."""

    view: View
    hosts: Mapping[str, Host]
    ledger: Ledger
    work: Work

    def in_phase(self, *phases: HostPhase) -> list[Host]:
        """Hosts in these phases, oldest first."""
        return [host for host in self.hosts.values() if host.phase in phases]


@dataclass(frozen=True, slots=True)
class _Draft:
    """The slots and the ledger after the leases so far."""

    at_s: float
    ledger: Ledger
    leases: int
    slots: float
    may_lease: bool
    actions: tuple[Action, ...] = ()

    def affordable(self, terms: Terms) -> HostType | None:
        """The kind of host with the lowest price per slot within the budget; None if the budget allows no host.

        Without any host, a pause after failed leases does not apply.
        """
        if not self.may_lease and self.slots > 0:
            return None
        kinds = [kind for kind in terms.kinds if terms.budget.allows(self.ledger, kind, self.at_s)]
        return min(kinds, key=lambda kind: (kind.price_per_hour / kind.cores, kind.name), default=None)

    def leased(self, kind: HostType, cause: Cause, job: str | None = None) -> _Draft:
        """The draft with one more host."""
        name = host_name(self.leases + 1)
        return dataclasses.replace(
            self,
            ledger=self.ledger.leased(name, kind, self.at_s),
            leases=self.leases + 1,
            slots=self.slots + kind.cores,
            actions=(*self.actions, host_actions.lease(name, kind, cause, job)),
        )


def step(
    state: ProvisionState, now: SlotsView, terms: Terms, settings: Settings
) -> tuple[ProvisionState, tuple[Action, ...]]:
    """One decision: replace failed hosts, lease hosts that earn their price, release hosts that are not needed."""
    at_s = now.view.at_s
    state = count_failures(state, now.hosts.values(), at_s, terms.settings)
    needed = slots_needed(now.view, now.work, settings)
    usable = slots_of(now.in_phase(HostPhase.STARTING, HostPhase.READY))
    draft = _Draft(at_s, now.ledger, state.leases, usable, may_lease=at_s >= state.no_lease_until_s)
    draft = _replace_failed(draft, now, sum(needed.values()), terms)
    draft = _lease_for_intents(draft, now.view, needed, terms, settings)
    given_back = [host_actions.release_paid(host, at_s) for host in now.in_phase(HostPhase.FAILED)]
    released = [host_actions.release_paid(host, at_s) for host in _not_needed(now, needed, terms.settings, settings)]
    return dataclasses.replace(state, leases=draft.leases), (*given_back, *draft.actions, *released)


def _replace_failed(draft: _Draft, now: SlotsView, total: float, terms: Terms) -> _Draft:
    """Replace the slots of failed hosts that the work needs, at any price; at least one host remains."""
    failed = now.in_phase(HostPhase.FAILED)
    wanted = min(total, draft.slots + slots_of(failed))
    while (draft.slots <= 0 or draft.slots < wanted - EXACT) and (kind := draft.affordable(terms)) is not None:
        names = ", ".join(host.name for host in failed)
        lacking = Cause(f"{names} failed, and the others lack {wanted - draft.slots:.2g} slots for the same work")
        draft = draft.leased(kind, lacking if draft.slots > 0 else host_actions.NO_OTHER_HOST)
    return draft


def _lease_for_intents(draft: _Draft, view: View, needed: Slots, terms: Terms, settings: Settings) -> _Draft:
    """Lease hosts for jobs that miss their intents because slots are short, as long as each host earns its price."""
    missing = slots_missing(needed, draft.slots)
    # A job that meets its intent needs no further slots, whatever the sums say.
    missing = {name: amount for name, amount in missing.items() if at_risk(view.jobs[name], settings)}
    while missing and (kind := draft.affordable(terms)) is not None:
        left = slots_missing(missing, kind.cores)
        points = points_gained(missing, left, view, kind.btu_s / 2, settings)
        if points * terms.settings.point_price < kind.price_per_hour:
            break
        helped = [name for name, amount in missing.items() if left.get(name, 0.0) < amount]
        draft = draft.leased(kind, _lacking(helped, sum(needed.values()), draft.slots, points, kind), helped[0])
        missing = left
    return draft


def _lacking(jobs: Iterable[str], needed: float, slots: float, points: float, kind: HostType) -> Cause:
    return Cause(
        f"{', '.join(jobs)} cannot do with the hosts there are ({needed:.2g} slots needed, {slots:g} there)",
        {"slots_needed": needed, "slots": slots, "points": points, "price_per_hour": kind.price_per_hour},
    )


def _not_needed(now: SlotsView, needed: Slots, terms: HostSettings, settings: Settings) -> list[Host]:
    """Hosts at the end of their BTU, the dearest and newest first, if the other ready hosts have enough slots."""
    if any(name not in needed or at_risk(job, settings) for name, job in now.view.jobs.items()):
        return []  # intents might not hold with fewer hosts
    at_s, staying, going = now.view.at_s, now.in_phase(HostPhase.READY), list[Host]()
    ending = [host for host in now.in_phase(HostPhase.STARTING, HostPhase.READY) if _may_go(host, at_s, terms)]
    ending.sort(key=lambda host: host.kind.price_per_hour)
    for host in reversed(ending):
        others = [one for one in staying if one is not host]
        if others and slots_of(others) >= sum(needed.values()) - EXACT:
            staying, going = others, [*going, host]
    return going


def _may_go(host: Host, at_s: float, settings: HostSettings) -> bool:
    """Whether the BTU of a host ends soon, with enough time left for its tasks to finish."""
    return at_end_of_btu(host, at_s, settings) and host.remaining_s(at_s) >= settings.lane_drain_s
