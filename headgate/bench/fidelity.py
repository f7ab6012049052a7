"""Benchmark of the simulator's fidelity: the epoch model against real Spark, with the same jobs, several allocations and loads.

The model is calibrated by a short measurement on the same machine, and then predicts latencies that were not part of the calibration.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headgate.bench import Figure, Result
from headgate.bench.workload import Work, engine, job
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.latency import merge
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.loads import Steady
from headgate.sim.reports.bars import Bar
from headgate.sim.run import engine_for
from headgate.sim.spec import EpochCosts, HostSpec, JobSpec, OperatorSpec, Scenario
from headgate.spark.engine import SparkEngine
from headgate.spark.hosts.readings import process_tree_cpu_s

SLOTS, CORES = 16, 2
KINDS: Mapping[str, Work] = {"computes": Work(cpu_s=100e-6), "waits": Work(wait_s=400e-6)}
ALLOCATIONS = ((1, 0.0), (8, 0.0), (2, 1.5), (4, 3.0), (2, 0.0), (4, 0.0))
"""Pairs of lanes and pace in seconds."""
LOADS = (500.0, 1500.0)
IDLE_RATE = 20.0
PASSED = 0.9
"""Share of the rows that pass the filter in front of the work."""


@dataclass(frozen=True, slots=True)
class FidelityForm:
    """The number of allocations, and the seconds of each part."""

    allocations: int
    warm_up_s: float
    settle_s: float
    measure_s: float


SHORT, FULL = FidelityForm(4, 25.0, 5.0, 10.0), FidelityForm(6, 40.0, 6.0, 15.0)
SIMULATED_S, SETTLED_S = 120.0, 30.0


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """The mean latency, epochs, rows and busy time of a job over one measurement."""

    latency_s: float
    epochs: float
    rows: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class EpochModel:
    """The calibrated costs of an epoch, and seconds per row of each kind of work."""

    costs: EpochCosts
    per_row: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Point:
    """A latency, simulated and measured."""

    label: str
    simulated_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """The difference, relative to the measured latency."""
        return abs(self.simulated_s - self.measured_s) / self.measured_s


def measure(full: bool = False) -> Result:
    """Calibrate on three short runs, then compare every allocation under every load."""
    form = FULL if full else SHORT
    with engine(SparkSettings(slots=SLOTS)) as spark:
        costs, per_row = _calibrated(spark, form)
        points = [point for rate in LOADS for point in _compared(spark, rate, EpochModel(costs, per_row), form)]
    errors = [point.error for point in points]
    figures = (
        Figure("calibrated: an epoch takes", costs.fixed_s, "s"),
        Figure("calibrated: and of the cores", costs.fixed_cores_s, "s"),
        Figure("calibrated: a task takes of the cores", costs.task_cores_s, "s"),
        *(Figure(f"calibrated: a row that {kind}", seconds, "s") for kind, seconds in per_row.items()),
        *(Figure(f"{point.label}: simulated", point.simulated_s, "s") for point in points),
        *(Figure(f"{point.label}: measured", point.measured_s, "s") for point in points),
        Figure("latencies compared", len(points), ""),
        Figure("largest relative error", max(errors), ""),
    )
    return Result(figures, (Bar("median relative error of the mean latency", statistics.median(errors), "<=", 0.25),))


# -- on Spark --------------------------------------------------------------------------------------------------------------------


def _calibrated(spark: SparkEngine, form: FidelityForm) -> tuple[EpochCosts, dict[str, float]]:
    """Calibrate the costs of an epoch with an idle job on one and on eight lanes, and of a row with each kind of work on two lanes."""
    _say("calibrating")
    spark.submit(job("idle", Intent(latency="1s"), IDLE_RATE, Work(), 1, pace_s=0))
    time.sleep(form.warm_up_s)
    few, few_cores_s, few_s = _epochs(spark, 1, form)
    many, many_cores_s, _ = _epochs(spark, 8, form)
    spark.remove("idle")
    task_s = max(0.001, (many_cores_s / many - few_cores_s / few) / 7)
    fixed = EpochCosts(few_s / few, max(0.01, few_cores_s / few - task_s), task_s)
    per_row = {}
    for kind, work in KINDS.items():
        spark.submit(job(kind, Intent(latency="1s"), LOADS[0], work, 2, pace_s=1.0))
        time.sleep(form.settle_s)
        found = _measured(spark, [kind], form)[kind]
        spark.remove(kind)
        per_row[kind] = max(0.0, found.busy_s - found.epochs * 2 * task_s) / found.rows
    return fixed, per_row


def _epochs(spark: SparkEngine, lanes: int, form: FidelityForm) -> tuple[float, float, float]:
    """(epochs, core seconds, seconds) of the idle job."""
    _allocate(spark, ["idle"], lanes, 0.0)
    time.sleep(form.settle_s)
    before = spark.job("idle").epochs
    begun_s, cores_s = time.time(), process_tree_cpu_s()
    time.sleep(form.measure_s)
    return spark.job("idle").epochs - before, process_tree_cpu_s() - cores_s, time.time() - begun_s


def _compared(spark: SparkEngine, rate: float, model: EpochModel, form: FidelityForm) -> Iterator[Point]:
    for kind, work in KINDS.items():
        spark.submit(job(kind, Intent(latency="1s"), rate, work, 2, pace_s=0))
    for lanes, pace_s in ALLOCATIONS[: form.allocations]:
        _say(f"{rate:g} rows/s, {lanes} lanes, pace {pace_s:g} s")
        _allocate(spark, list(KINDS), lanes, pace_s)
        time.sleep(form.settle_s)
        measured = _measured(spark, list(KINDS), form)
        simulated = _simulated(rate, lanes, pace_s, model)
        for kind in KINDS:
            label = f"{kind}, {rate:g} rows/s, {lanes} lanes, pace {pace_s:g} s"
            yield Point(label, simulated[kind], measured[kind].latency_s)
    for kind in KINDS:
        spark.remove(kind)


def _allocate(spark: SparkEngine, names: list[str], lanes: int, pace_s: float) -> None:
    changes = {name: JobAllocation({"in": 1, "work": lanes}, pace_s) for name in names}
    spark.apply(Action(ActionKind.RECONFIGURE, None, changes, Cause("measured")))


def _measured(spark: SparkEngine, names: list[str], form: FidelityForm) -> dict[str, MeasuredJob]:
    before = spark.observe().jobs
    parts = []
    for _ in range(round(form.measure_s)):
        time.sleep(1.0)
        parts.append(spark.observe().jobs)
    found = {}
    for name in names:
        first, last = before[name], parts[-1][name]
        assert first is not None and last is not None
        latency = merge(part.latency for jobs in parts if (part := jobs[name]) is not None)
        busy_s = sum(last.operators["work"].busy_s) - sum(first.operators["work"].busy_s)
        rows = last.operators["work"].processed["filter"] - first.operators["work"].processed["filter"]
        epochs = (last.epochs or 0) - (first.epochs or 0)
        found[name] = MeasuredJob(
            latency.mean_s if latency is not None else form.measure_s, epochs, max(1.0, rows), busy_s
        )
    return found


# -- in the simulator ------------------------------------------------------------------------------------------------------------


def _simulated(rate: float, lanes: int, pace_s: float, model: EpochModel) -> dict[str, float]:
    jobs = tuple(_spec(kind, rate, lanes, pace_s, model.per_row[kind]) for kind in KINDS)
    hosts = (HostSpec("localhost", CORES, 8, SLOTS),)
    scenario = Scenario("fidelity", "", "", "epochs", SIMULATED_S, 0.0, hosts, jobs, epoch_costs=model.costs)
    simulator = engine_for(scenario, 0)
    simulator.sleep_until(SETTLED_S)
    simulator.observe()
    simulator.sleep_until(SIMULATED_S)
    last = simulator.observe().jobs
    latencies = {kind: reading.latency for kind, reading in last.items() if reading is not None}
    return {kind: latency.mean_s if latency is not None else 0.0 for kind, latency in latencies.items()}


def _spec(kind: str, rate: float, lanes: int, pace_s: float, row_s: float) -> JobSpec:
    """Return the job for the simulator: the time of a row is spent on a core or in waiting, as its work does."""
    cost_s, wait_s = (row_s, 0.0) if KINDS[kind].cpu_s else (0.0, row_s)
    operators = (
        OperatorSpec("in", selectivity=PASSED),
        OperatorSpec("work", ("in",), cost_s=cost_s, wait_s=wait_s, lanes=lanes),
    )
    return JobSpec(kind, operators, Intent(latency="1s"), {"in": Steady(rate)}, pace_s=pace_s)


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)
