"""Run a scenario under a policy and keep what happened: the same controller that drives real jobs, on the simulator."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.controller import Controller
from headgate.core.metrics import View
from headgate.core.model import ActionKind
from headgate.core.state import Decision, Phase
from headgate.policies import Headgate, Policy, Static, policy_named
from headgate.ports import Journal
from headgate.sim.continuous import ContinuousEngine
from headgate.sim.engine import SimulatedEngine
from headgate.sim.epochs import EpochEngine
from headgate.sim.loads import median_rate
from headgate.sim.spec import JobSpec, OperatorSpec, Scenario

Watcher = Callable[[View, Decision, Policy], None]


@dataclass(frozen=True, slots=True)
class Logged:
    """An action as it stands in the log of a run."""

    at_s: float
    job: str | None
    kind: str
    cause: str
    touched: tuple[str, ...]


@dataclass(slots=True)
class Run:
    """What one policy did to one scenario, round by round."""

    scenario: Scenario
    policy: str
    seed: int
    times_s: list[float] = field(default_factory=list)
    satisfaction: list[float] = field(default_factory=list)
    """Total utility in each sub-window, as a share of the maximum."""
    utilities: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Per job: (time, utility in the sub-window as a share of its worth)."""
    worths: dict[str, float] = field(default_factory=dict)
    juices: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    backlogs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    arrivals: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    outputs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)
    """Mean load per core."""
    memory: list[float] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)
    converged_at_s: list[float] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    final: View | None = None
    skipped: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def controlled(self) -> list[tuple[float, float]]:
        """(time, satisfaction) from when control began."""
        return [
            (at_s, value)
            for at_s, value in zip(self.times_s, self.satisfaction, strict=True)
            if at_s > self.scenario.control_after_s
        ]


def engine_for(scenario: Scenario, seed: int) -> SimulatedEngine:
    """The scenario's execution model."""
    return (EpochEngine if scenario.engine == "epochs" else ContinuousEngine)(scenario, seed)


def run(
    scenario: Scenario, policy_name: str, seed: int, journal: Journal | None = None, watch: Watcher | None = None,
    observe_only: bool = False,
) -> Run:  # fmt: skip
    """Run the scenario to its end; with a journal that has rounds already, go on where it ends."""
    if policy_name == "manual":
        scenario = sized_for_median(scenario)
    result = Run(scenario, policy_name, seed)
    engine = engine_for(scenario, seed)
    policy = policy_named(policy_name, scenario.settings)
    controller = Controller(engine, policy, journal, scenario.settings, observe_only)
    _catch_up(controller, engine)
    held_back = Controller(engine, Static(), None, scenario.settings)
    while engine.now_s() + scenario.settings.round_s <= scenario.duration_s + 1e-6:
        engine.sleep_until(engine.now_s() + scenario.settings.round_s)
        active = controller if engine.now_s() >= scenario.control_after_s else held_back
        controller.windows = (
            held_back.windows if active is controller and not controller.windows.samples else controller.windows
        )
        view, decision = active.round()
        _note(result, view, decision, policy)
        if watch is not None:
            watch(view, decision, policy)
    if isinstance(policy, Headgate):
        result.skipped = tuple(sorted(policy.state.skipped))
    return result


def _catch_up(controller: Controller, engine: SimulatedEngine) -> None:
    """Bring a fresh simulator to where the journal ends, by applying what was applied then."""
    restored = controller.journal.restore() if controller.journal is not None else None
    if restored is None:
        return
    for recorded in restored.actions:
        engine.sleep_until(recorded.at_s)
        engine.observe()
        engine.apply(recorded.action)
    engine.sleep_until(restored.at_s)
    engine.observe()
    controller.resume(engine.now_s())


def _note(result: Run, view: View, decision: Decision, policy: Policy) -> None:
    result.times_s.append(view.at_s)
    known = {name: job for name, job in view.jobs.items() if job.recent is not None}
    worth = sum(job.worth for job in known.values())
    result.satisfaction.append(sum(job.recent or 0.0 for job in known.values()) / worth if worth else math.nan)
    for name, job in known.items():
        result.worths[name] = job.worth
        result.utilities.setdefault(name, []).append((view.at_s, (job.recent or 0.0) / job.worth))
    if view.hosts:
        result.load.append(sum(host.load or 0.0 for host in view.hosts) / sum(host.cores for host in view.hosts))
        result.memory.append(sum(host.memory_used or 0.0 for host in view.hosts) / len(view.hosts))
    else:
        result.load.append(math.nan)
        result.memory.append(math.nan)
    _note_flows(result, view)
    if decision.action is not None:
        action = decision.action
        result.log.append(Logged(view.at_s, action.job, action.kind.value, action.cause.text, tuple(action.changes)))
    phase = policy.phase()
    if phase == Phase.CONVERGED.value and (not result.phases or result.phases[-1] != phase):
        result.converged_at_s.append(view.at_s)
    result.phases.append(phase)
    result.final = view
    result.advice = policy.advice(view)


def _note_flows(result: Run, view: View) -> None:
    """Juice, queue and rates of each job, for the plots."""
    for name, job in view.jobs.items():
        if job.span is None or job.juice is None:
            continue
        result.juices.setdefault(name, []).append((view.at_s, job.juice))
        result.backlogs.setdefault(name, []).append((view.at_s, job.span.last.reading.backlog or 0.0))
        result.arrivals.setdefault(name, []).append((view.at_s, job.span.arrival_rows_s()))
        put_out = job.span.latency.rows / job.span.seconds if job.span.latency is not None else 0.0
        result.outputs.setdefault(name, []).append((view.at_s, put_out))


# -- manual sizing ---------------------------------------------------------------------------------------------------------------


def sized_for_median(scenario: Scenario) -> Scenario:
    """What a careful person does once: lanes for the median load of each job."""

    def sized(spec: JobSpec) -> JobSpec:
        rates = {source: median_rate(load, scenario.duration_s) for source, load in spec.loads.items()}
        return sized_for(spec, rates, scenario.settings.target_busy)

    events = tuple(
        dataclasses.replace(event, job=sized(event.job)) if event.job is not None else event
        for event in scenario.events
    )
    return dataclasses.replace(scenario, jobs=tuple(map(sized, scenario.jobs)), events=events)


def sized_for(spec: JobSpec, source_rates: Mapping[str, float], target_busy: float) -> JobSpec:
    """The job with lanes that are busy for `target_busy` of their time at these input rates."""
    rates = dict(source_rates)
    graph = spec.job().graph
    by_name = {operator.name: operator for operator in spec.operators}
    for name, operator in graph.operators.items():
        if operator.inputs:
            rates[name] = sum(_sent(by_name[p], rates[p], len(graph.children[p])) for p in operator.inputs)

    def lanes(operator: OperatorSpec) -> int:
        return max(1, math.ceil(rates[operator.name] * (operator.cost_s + operator.wait_s) / target_busy))

    return dataclasses.replace(spec, operators=tuple(dataclasses.replace(o, lanes=lanes(o)) for o in spec.operators))


def _sent(parent: OperatorSpec, rate_rows_s: float, children: int) -> float:
    return rate_rows_s * parent.selectivity / (children if parent.split else 1)


def actions_by_kind(log: list[Logged]) -> Mapping[str, int]:
    """How many actions of each kind."""
    return {kind.value: sum(entry.kind == kind.value for entry in log) for kind in ActionKind}
