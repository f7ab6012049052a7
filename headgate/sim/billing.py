"""Run a scenario whose hosts are leased: who decides about lanes, who about hosts, and what it came to (VISP, table 3)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, Protocol

from headgate.controller import Controller
from headgate.core import leasing
from headgate.core.hosts import Bill, HostPhase, OperatorKey, Step, bill
from headgate.core.leasing import LeaseView
from headgate.core.metrics import View
from headgate.core.provision import PROVISIONERS, Provisioner, ProvisionState, ProvisionView
from headgate.errors import InputError
from headgate.policies import Headgate, Policy, Static
from headgate.ports import Journal
from headgate.sim.leased import LeasedEngine
from headgate.sim.run import Run, Watcher, log_action, note_round, sized_for
from headgate.sim.service import LEVELS, Service, compliance
from headgate.sim.spec import Scenario

LOADS_LOOKED_AT = 1000
BUSIEST = 2
"""Operators with the most rows, without which compliance is told as well: VISP's O2 and O6."""


class Landlord(Protocol):
    """Decides about hosts, every `provision_s`."""

    def decide(self, view: View) -> tuple[Step, ...]:
        """What to do now."""


class Alone:
    """A provisioner that decides about lanes and hosts, and knows nothing of intents."""

    def __init__(self, engine: LeasedEngine, provisioner: Provisioner) -> None:
        self._engine, self._provisioner = engine, provisioner
        self._state = ProvisionState(leases=len(engine.pool.hosts()))

    def decide(self, view: View) -> tuple[Step, ...]:
        engine = self._engine
        unplaced = dict(engine.unplaced)
        seen = ProvisionView(engine.now_s(), engine.cluster(), engine.demands(), engine.pool.ledger, unplaced)
        self._state, steps = self._provisioner(self._state, seen, engine.terms)
        return steps


class ForIntents:
    """Hosts for what the scheduler decides: leased when that is worth the price, released when intents hold without them."""

    def __init__(self, engine: LeasedEngine, policy: Headgate) -> None:
        self._engine, self._policy = engine, policy
        self._state = ProvisionState(leases=len(engine.pool.hosts()))
        self._ready = self._hosts_ready()

    def decide(self, view: View) -> tuple[Step, ...]:
        engine = self._engine
        for name, job in view.jobs.items():
            if job.met and not leasing.at_risk(job, self._policy.settings):
                engine.forget_unplaced(name)
        now = LeaseView(view, engine.cluster(), engine.pool.ledger, dict(engine.unplaced), self._set_aside(view.at_s))
        self._state, steps = leasing.step(self._state, now, engine.terms, self._policy.settings)
        self._tell_scheduler()
        return steps

    def _set_aside(self, at_s: float) -> frozenset[str]:
        return frozenset(name for name, skip in self._policy.state.skipped.items() if skip.until_s > at_s)

    def _tell_scheduler(self) -> None:
        ready = self._hosts_ready()
        if ready - self._ready:
            self._policy.cluster_changed()
        self._ready = ready

    def _hosts_ready(self) -> set[str]:
        return {name for name, host in self._engine.pool.hosts().items() if host.phase is HostPhase.READY}


def run_leased(
    scenario: Scenario, policy_name: str, seed: int, journal: Journal | None = None, watch: Watcher | None = None,
    observe_only: bool = False,
) -> Run:  # fmt: skip
    """Run the scenario to its end."""
    if journal is not None and journal.restore() is not None:
        raise InputError("a run with leased hosts cannot go on from a journal; give another file, or delete it")
    engine = LeasedEngine(scenario, seed, lanes_for_peak(scenario) if policy_name == "fixed" else None)
    policy, landlord = _deciders(scenario, policy_name, engine)
    controller = Controller(engine, policy, journal, scenario.settings, observe_only)
    result, watched = Run(scenario, policy_name, seed), Watched()
    decides_s = engine.terms.settings.provision_s
    while engine.now_s() + scenario.settings.round_s <= scenario.duration_s + 1e-6:
        engine.sleep_until(engine.now_s() + scenario.settings.round_s)
        view, decision = controller.round()
        note_round(result, view, policy)
        if decision.action is not None and controller.outcome is not None and controller.outcome.applied:
            log_action(result, view.at_s, decision.action)
        asked = decision.action is not None and any(engine.unplaced.values())
        if (
            asked or engine.now_s() + 1e-6 >= decides_s
        ):  # at its times, and when the scheduler gave what there is no room for
            decides_s = max(decides_s, engine.now_s() + engine.terms.settings.provision_s)
            for step in () if observe_only else landlord.decide(view):
                engine.perform(step)
        watched.look(engine)
        if watch is not None:
            watch(view, decision, policy)
    result.leased = figures(engine, watched)
    if journal is not None:
        journal.set_about("bill", bill(engine.pool.ledger, engine.now_s()).sentence())
    return result


def _deciders(scenario: Scenario, name: str, engine: LeasedEngine) -> tuple[Policy, Landlord]:
    if name != "headgate":
        return Static(), Alone(engine, PROVISIONERS[name])
    policy = Headgate(scenario.settings)
    return policy, ForIntents(engine, policy)


def lanes_for_peak(scenario: Scenario) -> dict[OperatorKey, int]:
    """What a careful person does once: lanes for the highest load of each job, as many hosts as they need."""
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


class Watched:
    """Hosts and spending over time."""

    def __init__(self) -> None:
        self.hosts: list[int] = []
        self.spending: list[float] = []

    def look(self, engine: LeasedEngine) -> None:
        """Note how it is now."""
        self.hosts.append(len(engine.pool.hosts()))
        self.spending.append(engine.pool.ledger.spending_per_hour(engine.now_s()))


def figures(engine: LeasedEngine, watched: Watched) -> dict[str, Any]:
    """The rows of VISP's table 3, and what it cost."""
    services, counts = engine.services(), engine.counts
    found: Bill = bill(engine.pool.ledger, engine.now_s())
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
        "lanes_started": counts["start"],
        "lanes_stopped": counts["stop"],
        "lanes_moved": counts["move"],
        "cost": found.cost,
        "wasted_min": found.wasted_s / 60,
        "cost_by_job": dict(found.cost_by_job),
        "most_hosts": max(watched.hosts),
        "mean_hosts": statistics.fmean(watched.hosts),
        "most_per_hour": max(watched.spending),
    }


def _compliance(services: Mapping[OperatorKey, Service]) -> dict[str, float]:
    busiest = sorted(services, key=lambda key: -services[key].rows)[:BUSIEST]
    everyone = list(services.values())
    others = [service for key, service in services.items() if key not in busiest] or everyone
    return {name: compliance(everyone, name) for name in LEVELS} | {
        f"{name} without the busiest": compliance(others, name) for name in LEVELS
    }
