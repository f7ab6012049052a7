"""Run a scenario under a policy on the simulator, with the controller that drives real jobs, and record the rounds."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.controller import Controller
from headgate.core.metrics import JobView, View
from headgate.core.model import HOST_KINDS, Action, ActionKind, SearchPhase
from headgate.core.windows import span_of
from headgate.health.isolation.processes import guarded
from headgate.loads import median_rate
from headgate.ports import Journal
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import Headgate, Policy, Static, policy_named
from headgate.sim.engine import SimulatedEngine
from headgate.sim.models.continuous import ContinuousEngine
from headgate.sim.models.epochs import EpochEngine
from headgate.sim.models.lanes import LaneEngine
from headgate.sim.spec import JobSpec, OperatorSpec, Scenario
from headgate.threads import in_parallel

Watcher = Callable[[View, Decision, Policy], None]


@dataclass(frozen=True, slots=True)
class Logged:
    """An action in the log of a run."""

    at_s: float
    job: str | None
    kind: str
    cause: str
    touched: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A diagnosis of one job."""

    at_s: float
    job: str
    kind: str
    operator: str
    lanes: tuple[int, ...]


COLUMNS = ("at_s", "satisfaction", "juice", "backlog", "arrival_rows_s", "output_rows_s", "held", "newest_rows_s")


class MeasuredSeries:
    """Measurements of one job, one row per round, in compact columns, because two days of forty jobs have to fit into memory."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in COLUMNS}

    def append(self, *row: float) -> None:
        """Add one round, in the order of `COLUMNS`."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def pairs(self, name: str) -> list[tuple[float, float]]:
        """(time, value) of one column."""
        return list(zip(self._columns["at_s"], self._columns[name], strict=True))


@dataclass(slots=True)
class Run:
    """The record of one policy on one scenario, round by round."""

    scenario: Scenario
    policy: str
    seed: int
    times_s: list[float] = field(default_factory=list)
    satisfaction: list[float] = field(default_factory=list)
    """Total utility in each sub-window, as a share of the maximum."""
    series: dict[str, MeasuredSeries] = field(default_factory=dict)
    worths: dict[str, float] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)
    """Mean load per core."""
    memory: list[float] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)
    diagnoses: list[Diagnosed] = field(default_factory=list)
    """Each diagnosis when made, and again when different from the diagnosis before."""
    lanes: dict[str, list[tuple[float, Mapping[str, int]]]] = field(default_factory=dict)
    """The times at which the lanes of each job changed, with the new lanes."""
    converged_at_s: list[float] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    final: View | None = None
    skipped: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    alerts: list[tuple[float, str]] = field(default_factory=list)
    """The time and the text of each alert."""
    leased: Mapping[str, Any] | None = None
    """Figures of leased hosts, as in VISP's table 3; None where hosts are not leased."""

    def reconfigurations(self, job: str) -> int:
        """Return the number of reconfigurations of the job, by actions about this job or about several jobs at once."""
        wanted = ActionKind.RECONFIGURE.value
        return sum(one.kind == wanted and (one.job or job) == job and job in one.touched for one in self.log)

    def column(self, name: str) -> dict[str, list[tuple[float, float]]]:
        """(time, value) of one column of `COLUMNS`, per job."""
        return {job: series.pairs(name) for job, series in self.series.items()}

    def controlled(self) -> list[tuple[float, float]]:
        """(time, satisfaction) from when control began."""
        return [
            (at_s, value)
            for at_s, value in zip(self.times_s, self.satisfaction, strict=True)
            if at_s > self.scenario.control_after_s
        ]


def engine_for(scenario: Scenario, seed: int) -> SimulatedEngine:
    """The scenario's execution model."""
    return _ENGINES[scenario.engine](scenario, seed)


_ENGINES: Mapping[str, type[SimulatedEngine]] = {
    "continuous": ContinuousEngine,
    "epochs": EpochEngine,
    "lanes": LaneEngine,
}


def run(
    scenario: Scenario, policy_name: str, seed: int, journal: Journal | None = None, watch: Watcher | None = None,
    observe_only: bool = False,
) -> Run:  # fmt: skip
    """Run the scenario to its end; a run with a journal that has rounds continues at the end of the journal."""
    if policy_name == "manual":
        scenario = sized_for_median(scenario)
    result = Run(scenario, policy_name, seed)
    with ExitStack() as stack:
        examiners = guarded(scenario.user_policies, Path(scenario.directory), scenario.settings.policy_patience_s)
        for examiner in examiners.values():
            stack.callback(examiner.close)
        policy = policy_named(policy_name, scenario.settings, examiners, in_parallel)
        _run(result, policy, journal, watch, observe_only)
    return result


def _run(result: Run, policy: Policy, journal: Journal | None, watch: Watcher | None, observe_only: bool) -> None:
    scenario = result.scenario
    engine = engine_for(scenario, result.seed)
    controller = Controller(
        engine,
        policy,
        journal,
        scenario.settings,
        observe_only,
        lambda at_s, alert: result.alerts.append((at_s, alert.sentence)),
    )
    replayed = Replay(journal)
    held_back = Controller(engine, replayed, None, scenario.settings)
    while engine.now_s() + scenario.settings.round_s <= scenario.duration_s + 1e-6:
        engine.sleep_until(engine.now_s() + scenario.settings.round_s)
        waits = engine.now_s() < scenario.control_after_s or engine.now_s() <= replayed.until_s
        active = held_back if waits else controller
        view, decision = active.round()
        note_round(result, view, active.policy)
        _note_diagnosis(result, view.at_s, decision)
        if decision.action is not None and active.outcome is not None and active.outcome.applied:
            log_action(result, view.at_s, decision.action)
        if active is held_back:
            _hand_over(held_back, controller, result, view)
        if watch is not None:
            watch(view, decision, active.policy)
    if isinstance(policy, Headgate):
        result.skipped = tuple(
            name for name, skip in sorted(policy.state.skipped.items()) if skip.until_s > engine.now_s()
        )


class Replay(Static):
    """Takes no action until control begins, except for the actions that a journal recorded."""

    def __init__(self, journal: Journal | None) -> None:
        restored = journal.restore() if journal is not None else None
        self.until_s = restored.at_s if restored is not None else -1.0
        self._actions = (
            {recorded.at_s: recorded.action for recorded in restored.actions} if restored is not None else {}
        )
        self._phases = {found.at_s: found.phase for found in journal.rounds()} if journal is not None else {}
        self._now_s = -1.0

    def decide(self, view: View) -> Decision:
        self._now_s = view.at_s
        return Decision("replay", "as before", self._actions.get(view.at_s))

    def phase(self) -> str:
        return self._phases.get(self._now_s, "held back")


def _hand_over(held_back: Controller, controller: Controller, result: Run, view: View) -> None:
    """Hand the measurements to the controller; at the end of a restored journal, let the controller resume from the journal."""
    assert isinstance(held_back.policy, Replay)
    if view.at_s == held_back.policy.until_s and controller.journal is not None:
        restored = controller.journal.restore()
        assert restored is not None
        for recorded in restored.unfinished:
            log_action(result, recorded.at_s, recorded.action)
        controller.resume(view.at_s)
    controller.windows = held_back.windows


def note_round(result: Run, view: View, policy: Policy) -> None:
    """Record the measurements of a round."""
    total = worth = 0.0
    for name, job in view.jobs.items():
        changes = result.lanes.setdefault(name, [])
        if not changes or changes[-1][1] != job.allocation.lanes:
            changes.append((view.at_s, job.allocation.lanes))
        if job.recent is None:
            continue
        total += job.recent
        worth += job.worth
        result.worths[name] = job.worth
        if name not in result.series:
            result.series[name] = MeasuredSeries()
        if job.span is None or job.juice is None:
            unknown = [math.nan] * (len(COLUMNS) - 2)
            result.series[name].append(view.at_s, job.recent / job.worth, *unknown)
            continue
        put_out = job.span.latency.rows / job.span.seconds if job.span.latency is not None else 0.0
        backlog = job.span.last.reading.backlog or 0.0
        result.series[name].append(
            view.at_s,
            job.recent / job.worth,
            job.juice,
            backlog,
            job.span.arrival_rows_s(),
            put_out,
            _held(job),
            _newest_rows_s(job),
        )
    result.times_s.append(view.at_s)
    result.satisfaction.append(total / worth if worth else math.nan)
    result.load.append(_mean_load(view))
    result.memory.append(_mean_memory(view))
    phase = policy.phase()
    if phase == SearchPhase.CONVERGED.value and (not result.phases or result.phases[-1] != phase):
        result.converged_at_s.append(view.at_s)
    result.phases.append(phase)
    result.final = view
    result.advice = tuple(alert.sentence for alert in policy.advice(view))


def _newest_rows_s(job: JobView) -> float:
    """Return the input rate in the newest sub-window alone."""
    newest = span_of(job.samples[-2:])
    return newest.arrival_rows_s() if newest is not None else math.nan


def _held(job: JobView) -> float:
    """Return the share of the newest sub-window in which the job's input was held back; NaN in models without back-pressure."""
    first, last = job.samples[-2].reading.held_s, job.samples[-1].reading.held_s
    if first is None or last is None:
        return math.nan
    return (last - first) / (job.samples[-1].at_s - job.samples[-2].at_s)


def _note_diagnosis(result: Run, at_s: float, decision: Decision) -> None:
    for job, found in decision.diagnoses.items():
        for one in found:
            made = Diagnosed(at_s, job, one.kind, one.operator, one.lanes)
            last = result.diagnoses[-1] if result.diagnoses else None
            if last is None or dataclasses.replace(last, at_s=at_s) != made:
                result.diagnoses.append(made)


def log_action(result: Run, at_s: float, action: Action) -> None:
    """Record an action that was carried out."""
    result.log.append(Logged(at_s, action.job, action.kind.value, action.sentence, tuple(action.changes)))


def _mean_load(view: View) -> float:
    cores = sum(host.cores for host in view.hosts)
    return sum(host.load or 0.0 for host in view.hosts) / cores if cores else math.nan


def _mean_memory(view: View) -> float:
    return sum(host.memory_used or 0.0 for host in view.hosts) / len(view.hosts) if view.hosts else math.nan


# -- manual sizing ---------------------------------------------------------------------------------------------------------------


def sized_for_median(scenario: Scenario) -> Scenario:
    """Return the scenario with lanes sized for the median load of each job, as in manual sizing."""

    def sized(spec: JobSpec) -> JobSpec:
        rates = {source: median_rate(load, scenario.duration_s) for source, load in spec.loads.items()}
        return sized_for(spec, rates, scenario.settings.target_busy)

    events = tuple(
        dataclasses.replace(event, job=sized(event.job)) if event.job is not None else event
        for event in scenario.events
    )
    return dataclasses.replace(scenario, jobs=tuple(map(sized, scenario.jobs)), events=events)


def sized_for(spec: JobSpec, source_rates: Mapping[str, float], target_busy: float) -> JobSpec:
    """Return the job with as many lanes as are busy for `target_busy` of their time at these input rates."""
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
    """Return the number of actions about jobs, by kind."""
    kinds = [kind for kind in ActionKind if kind not in HOST_KINDS]
    return {kind.value: sum(entry.kind == kind.value for entry in log) for kind in kinds}
