"""Benchmark of sizing: convergence with eq. 4 of the paper and with true rates, on the same scenarios and seeds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from headgate.bench import Figure, Result
from headgate.sim.reports.bars import Bar
from headgate.sim.run import Run, run
from headgate.sim.scenario import load_scenario

SCENARIOS = ("greedy-order", "hybrid", "memory", "initial-config")
SEEDS = range(3)


def measure() -> Result:
    """Measure steps per job, seconds until Converged, final satisfaction and final lanes for each sizing; the bars are on the sums."""
    found = {sizing: {name: _runs(name, sizing) for name in SCENARIOS} for sizing in ("paper", "model")}
    figures = [
        Figure(f"{name}, {sizing}: {what}", measured(found[sizing][name]), unit)
        for name in SCENARIOS
        for sizing in found
        for what, measured, unit in MEASURES
    ]
    converged, steps = (
        {sizing: sum(map(measured, runs.values())) for sizing, runs in found.items()}
        for measured in (_converged_s, _steps)
    )
    bars = (
        Bar(
            "seconds until Converged, all scenarios: model at most paper", converged["model"], "<=", converged["paper"]
        ),
        Bar("reconfigurations per job, all scenarios: model at most paper", steps["model"], "<=", steps["paper"]),
    )
    return Result(tuple(figures), bars)


def _runs(name: str, sizing: str) -> list[Run]:
    scenario = load_scenario(name)
    scenario = dataclasses.replace(scenario, settings=dataclasses.replace(scenario.settings, sizing=sizing))
    return [run(scenario, "headgate", seed) for seed in SEEDS]


def _steps(runs: Sequence[Run]) -> float:
    return statistics.mean(
        sum(entry.kind == "reconfigure" for entry in found.log) / len(found.series) for found in runs
    )


def _converged_s(runs: Sequence[Run]) -> float:
    return statistics.mean(
        (found.converged_at_s or [found.scenario.duration_s])[0] - found.scenario.control_after_s for found in runs
    )


def _satisfaction(runs: Sequence[Run]) -> float:
    return statistics.mean(statistics.mean(value for _, value in found.controlled()) for found in runs)


def _lanes(runs: Sequence[Run]) -> float:
    finals = [found.final for found in runs if found.final is not None]
    return statistics.mean(sum(sum(job.allocation.lanes.values()) for job in final.jobs.values()) for final in finals)


MEASURES = (
    ("reconfigurations per job", _steps, ""),
    ("seconds of control until Converged", _converged_s, "s"),
    ("satisfaction, mean over the run", _satisfaction, ""),
    ("lanes in the end", _lanes, ""),
)
