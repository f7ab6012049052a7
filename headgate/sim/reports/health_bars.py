"""The bars of the scenarios about health: the results of Dhalion (VLDB '17) about self-regulation must hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from headgate.health.records import DiagnosisKind
from headgate.sim.run import Run, run
from headgate.sim.scenario import load_scenario
from headgate.sim.spec import Scenario

HEALTHY_RUNS = 10
"""The number of healthy runs per seed, so that ten seeds have a hundred healthy runs."""
LAST_S = 600.0


def _mean_of(run_: Run, column: str, start_s: float, end_s: float) -> float:
    values = [v for pairs in run_.column(column).values() for at_s, v in pairs if start_s < at_s <= end_s]
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def held_in_the_end(run_: Run) -> float:
    """Share of the last ten minutes in which input was held back."""
    end_s = run_.times_s[-1] if run_.times_s else 0.0
    return _mean_of(run_, "held", end_s - LAST_S, end_s)


def emitted_in_the_end(run_: Run) -> float:
    """Return the rows per second that came in during the last ten minutes."""
    end_s = run_.times_s[-1] if run_.times_s else 0.0
    return _mean_of(run_, "newest_rows_s", end_s - LAST_S, end_s)


def lanes_in_the_end(run_: Run, *operators: str) -> float:
    """Lanes of these operators of the only job; NaN if the run was too short for any."""
    if run_.final is None:
        return math.nan
    (job,) = run_.final.jobs.values()
    return float(sum(job.allocation.lanes[operator] for operator in operators))


def actions(run_: Run, kind: str | None = None, since_s: float = 0.0) -> int:
    """Return the number of actions of a kind, or of all kinds, from `since_s` on."""
    return sum(entry.kind == (kind or entry.kind) and entry.at_s >= since_s for entry in run_.log)


def throughput(run_: Run, scenario: Scenario) -> float:
    """Return the rows per second in the ten minutes before the input rises for the second time."""
    rose_s = scenario.events[1].at_s
    return _mean_of(run_, "newest_rows_s", rose_s - LAST_S, rose_s)


def right_at_first(variants: Sequence[tuple[str, Run]]) -> int:
    """Return the number of faults whose first diagnosis names the right cause, operator and lane."""
    return sum(_right(name, run_) for name, run_ in variants if name != "none")


def _right(name: str, run_: Run) -> bool:
    first = run_.diagnoses[0] if run_.diagnoses else None
    if first is None:
        return False
    if name.startswith("slow lane"):
        return (first.kind, first.operator, first.lanes) == (DiagnosisKind.SLOW_LANES, "split", (4,))
    return (first.kind, first.operator) == (DiagnosisKind.SKEW, "count") and len(first.lanes) == 1


def false_diagnoses(scenario: Scenario, seed: int) -> int:
    """Return the number of diagnoses in runs without any fault."""
    healthy = dataclasses.replace(scenario, events=(), sweep=())
    return sum(len(run(healthy, "headgate", 1000 + seed * HEALTHY_RUNS + i).diagnoses) for i in range(HEALTHY_RUNS))


def lanes_of_the_easier_case(seed: int) -> float:
    """Return the lanes at the end of scenario `mixed-25`."""
    return lanes_in_the_end(run(load_scenario("mixed-25"), "headgate", seed), "split", "count")


CAUSES = {"skewed": DiagnosisKind.SKEW, "slowed": DiagnosisKind.SLOW_LANES, "small": DiagnosisKind.TOO_FEW_LANES}
"""What is wrong with each job of the scenario `remedies`."""


def right_for_each(run_: Run) -> int:
    """Return the number of jobs whose first diagnosis names the fault of the job."""
    first = {found.job: found.kind for found in reversed(run_.diagnoses)}
    return sum(first.get(job) == kind for job, kind in CAUSES.items())


def all_lanes(run_: Run) -> float:
    """Lanes of all jobs in the end."""
    if run_.final is None:
        return math.nan
    return float(sum(sum(job.allocation.lanes.values()) for job in run_.final.jobs.values()))
