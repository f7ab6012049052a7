"""Runs a scenario with leased hosts, with planners of single lanes on these hosts, and reports figures as in VISP's table 3."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.hosts import Host, OperatorKey
from headgate.core.metrics import View
from headgate.core.model import Action
from headgate.errors import InputError
from headgate.hosts.actions import action_of
from headgate.hosts.landlord import Landlord
from headgate.hosts.leases import LaneStep, LeaseHost, MoveLane, PlanStep, ReleaseHost, StartLane, StopLane
from headgate.hosts.planners import HostsView
from headgate.hosts.provision import PROVISIONERS, Provisioner, ProvisionerName, ProvisionState, ProvisionView
from headgate.hosts.worth import at_risk
from headgate.journal import MemoryJournal
from headgate.ports import Journal
from headgate.scheduler.policies import Headgate, Policy, Static
from headgate.sim import lane_leasing
from headgate.sim.constants import LEASED_STEP_S
from headgate.sim.models.leased import LeasedEngine
from headgate.sim.models.service import LEVELS, OperatorService, compliance
from headgate.sim.run import Run, Watcher, log_action, note_round, sized_for
from headgate.sim.spec import Scenario

LOADS_LOOKED_AT = 1000
BUSIEST = 2
"""The number of operators with the most rows that a second compliance figure leaves out: VISP's O2 and O6."""


PlanLanes = Callable[[ProvisionState, HostsView], tuple[ProvisionState, tuple[PlanStep, ...]]]


class LanePlanner:
    """A planner for an engine that places single lanes; a job pays for the cores and memory reserved for its lanes."""

    def __init__(self, engine: LeasedEngine, settings: Settings, plan: PlanLanes) -> None:
        self.terms, self.settings = engine.terms, settings
        self.place, self.take_use = engine.place, engine.take_use
        self._plan = plan

    def observe(self, view: View, hosts: Mapping[str, Host]) -> None:
        """Do nothing: the engine already knows which lanes run on which hosts."""

    def decide(self, state: ProvisionState, now: HostsView) -> tuple[ProvisionState, Sequence[Action | LaneStep]]:
        """Lanes to start, stop and move, hosts to lease and to release."""
        state, steps = self._plan(state, now)

        def with_cause(step: PlanStep) -> Action | LaneStep:
            return (
                action_of(step, steps, now.hosts, now.view.at_s) if isinstance(step, LeaseHost | ReleaseHost) else step
            )

        return state, [with_cause(step) for step in steps]


def plan_alone(engine: LeasedEngine, provisioner: Provisioner) -> PlanLanes:
    """Return a plan function in which a provisioner decides lanes and hosts without regard to intents."""

    def plan(state: ProvisionState, now: HostsView) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
        seen = ProvisionView(now.view.at_s, engine.cluster(), engine.demands(), now.ledger, dict(engine.unplaced))
        return provisioner(state, seen, engine.terms)

    return plan


def plan_for_intents(engine: LeasedEngine, policy: Headgate) -> PlanLanes:
    """Return a plan function that leases hosts worth their price for the scheduler's lanes, and releases hosts that intents do not need."""

    def plan(state: ProvisionState, now: HostsView) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
        view = now.view
        for name, job in view.jobs.items():
            if job.met and not at_risk(job, policy.settings):
                engine.forget_unplaced(name)
        aside = frozenset(name for name, skip in policy.state.skipped.items() if skip.until_s > view.at_s)
        seen = lane_leasing.LeaseView(view, engine.cluster(), now.ledger, dict(engine.unplaced), aside)
        return lane_leasing.step(state, seen, engine.terms, policy.settings)

    return plan


def run_leased(
    scenario: Scenario, policy_name: str, seed: int, journal: Journal | None = None, watch: Watcher | None = None,
    observe_only: bool = False,
) -> Run:  # fmt: skip
    """Run the scenario to its end."""
    if journal is not None and journal.restore() is not None:
        raise InputError("a run with leased hosts cannot go on from a journal; give another file, or delete it")
    engine = LeasedEngine(scenario, seed, lanes_for_peak(scenario) if policy_name == ProvisionerName.FIXED else None)
    policy, plan = _deciders(scenario, policy_name, engine)
    planner = LanePlanner(engine, scenario.settings, plan)
    controller = Controller(engine, policy, journal, scenario.settings, observe_only)
    landlord = Landlord(engine.pool, planner, journal or MemoryJournal(), observe_only=observe_only)
    landlord.begin(engine.now_s())
    result, watched, came = Run(scenario, policy_name, seed), HostsOverTime(), False
    while engine.now_s() + scenario.settings.round_s <= scenario.duration_s + 1e-6:
        came = _let_pass(scenario.settings.round_s, engine, landlord) or came
        view, decision = controller.round()
        note_round(result, view, policy)
        if decision.action is not None and controller.outcome is not None and controller.outcome.applied:
            log_action(result, view.at_s, decision.action)
        asked = decision.action is not None and any(engine.unplaced.values())
        came = landlord.look(view, at_once=asked) or came
        # The figures of docs/decisions/0032 are of a scheduler that hears of new hosts when hosts are next decided about.
        if came and landlord.decided_s == view.at_s:
            policy.cluster_changed()
            came = False
        watched.look(landlord, engine.now_s())
        if watch is not None:
            watch(view, decision, policy)
    result.leased = figures(engine, landlord, watched)
    return result


def _let_pass(seconds: float, engine: LeasedEngine, landlord: Landlord) -> bool:
    """Advance time in steps so that the landlord sees at once that a host is gone; return whether hosts came."""
    until_s, came = engine.now_s() + seconds, False
    while engine.now_s() < until_s - 1e-9:
        engine.sleep_until(min(until_s, engine.now_s() + LEASED_STEP_S))
        came = landlord.refresh(engine.now_s()) or came
    return came


def _deciders(scenario: Scenario, name: str, engine: LeasedEngine) -> tuple[Policy, PlanLanes]:
    if name != "headgate":
        return Static(), plan_alone(engine, PROVISIONERS[ProvisionerName(name)])
    policy = Headgate(scenario.settings)
    return policy, plan_for_intents(engine, policy)


def lanes_for_peak(scenario: Scenario) -> dict[OperatorKey, int]:
    """Return the lanes for the highest load of each job, as in manual sizing for the peak."""
    lanes: dict[OperatorKey, int] = {}
    for job in scenario.jobs:
        peaks = {
            source: max(load.rate_rows_s(scenario.duration_s * i / LOADS_LOOKED_AT) for i in range(LOADS_LOOKED_AT))
            for source, load in job.loads.items()
        }
        sized = sized_for(job, peaks, scenario.settings.target_busy)
        lanes |= {(job.name, operator.name): operator.lanes for operator in sized.operators}
    return lanes


# -- what it came to -------------------------------------------------------------------------------------------------------------


class HostsOverTime:
    """Hosts and spending over time."""

    def __init__(self) -> None:
        self.hosts: list[int] = []
        self.spending: list[float] = []

    def look(self, landlord: Landlord, at_s: float) -> None:
        """Record the current number of hosts and the spending per hour."""
        self.hosts.append(len(landlord.hosts()))
        self.spending.append(landlord.spending_per_hour(at_s))


def figures(engine: LeasedEngine, landlord: Landlord, watched: HostsOverTime) -> dict[str, Any]:
    """Return the figures of VISP's table 3 and the cost."""
    services, counts = engine.services(), engine.counts
    found = landlord.bill(engine.now_s())
    delays = [delay for one in services.values() for delay in one.delays_s]
    return {
        "paid_btus": found.paid_btus,
        "leases": found.leases,
        "renewals": found.renewals,
        "releases": found.releases,
        "early_releases": found.early_releases,
        **_compliance(services),
        "time_to_adapt_s": statistics.fmean(delays) if delays else 0.0,
        "time_to_adapt_deviation_s": statistics.pstdev(delays) if delays else 0.0,
        "lanes_started": counts[StartLane],
        "lanes_stopped": counts[StopLane],
        "lanes_moved": counts[MoveLane],
        "cost": found.cost,
        "wasted_min": found.wasted_s / 60,
        "cost_by_job": dict(found.cost_by_job),
        "most_hosts": max(watched.hosts),
        "mean_hosts": statistics.fmean(watched.hosts),
        "most_per_hour": max(watched.spending),
    }


def _compliance(services: Mapping[OperatorKey, OperatorService]) -> dict[str, float]:
    busiest = sorted(services, key=lambda key: -services[key].rows)[:BUSIEST]
    everyone = list(services.values())
    others = [service for key, service in services.items() if key not in busiest] or everyone
    return {name: compliance(everyone, name) for name in LEVELS} | {
        f"{name} without the busiest": compliance(others, name) for name in LEVELS
    }
