"""The experiments of the papers hold their bars, at one seed each; `--seeds 10` shows the spread."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from headgate.sim.reports.bars import Bar, bars
from headgate.sim.run import Run, run
from headgate.sim.scenario import load_scenario

QUICK = (
    "greedy-order", "hybrid", "spike", "constrained", "cpu-spike", "stateful", "failure", "memory", "juice-rate",
    "load-change", "throughput-slo", "mixed-25", "mixed-75", "remedies",
)  # fmt: skip


@cache
def controlled(name: str) -> Run:
    """A run is the same every time, so several tests look at one."""
    return run(load_scenario(name), "headgate", seed=3)


def held(name: str) -> list[Bar]:
    return bars(load_scenario(name), {"headgate": controlled(name)}, [])


@pytest.mark.parametrize("name", QUICK)
def test_bars_of_the_scenario_hold(name):
    found = held(name)
    assert found
    assert [bar for bar in found if not bar.holds] == []


def test_a_day_of_web_traffic_is_followed():
    scenario = dataclasses.replace(load_scenario("diurnal"), duration_s=4 * 3600.0)
    found = {policy: run(scenario, policy, 3) for policy in ("headgate", "manual")}
    assert [bar for bar in bars(scenario, found, []) if not bar.holds] == []


def test_first_diagnosis_is_right_and_healthy_jobs_get_none():
    scenario = load_scenario("diagnosers")
    variants = [(variant, {"headgate": run(variant.scenario, "headgate", 3)}) for variant in scenario.sweep]
    found = bars(scenario, variants[0][1], variants)
    assert [bar for bar in found if not bar.holds] == []


def test_noise_of_two_hours_moves_nobody():
    scenario = dataclasses.replace(load_scenario("noise"), duration_s=2 * 3600.0)
    assert run(scenario, "headgate", 3).log == []


def test_diagnosed_remedies_beat_lanes_alone():
    scenario = load_scenario("remedies")
    found = {"headgate": controlled("remedies"), "lanes-only": run(scenario, "lanes-only", 3)}
    assert [bar for bar in bars(scenario, found, []) if not bar.holds] == []


def test_bars_do_not_hold_without_control():
    scenario = load_scenario("greedy-order")
    found = bars(scenario, {"headgate": run(scenario, "static", 3)}, [])
    assert [bar.holds for bar in found] == [False] * len(found)


@pytest.mark.parametrize("name", QUICK)
def test_run_that_is_too_short_to_show_anything_holds_no_bar_by_accident(name):
    scenario = dataclasses.replace(load_scenario(name), duration_s=60.0)
    found = bars(scenario, {"headgate": run(scenario, "headgate", 3)}, [])
    assert not all(bar.holds for bar in found)


def test_constrained_cluster_is_searched_by_all_three_actions_and_called_oversubscribed():
    found = run(load_scenario("constrained"), "headgate", 7)
    assert {"reconfigure", "reduce", "revert"} <= {entry.kind for entry in found.log}
    assert any("oversubscribed" in line for line in found.advice)


@pytest.mark.parametrize("seed", [0, 1])
def test_constrained_cluster_converges_with_all_jobs_met_but_one(seed):
    scenario = dataclasses.replace(load_scenario("constrained"), duration_s=3.5 * 3600.0)
    found = run(scenario, "headgate", seed)
    assert found.phases[-1] == "converged"
    assert found.satisfaction[-1] == pytest.approx(0.8, abs=0.01)


@pytest.mark.slow
def test_crushed_cluster_keeps_most_jobs_by_throttling_some():
    crushed = load_scenario("cluster-size").sweep[0].scenario
    found = run(crushed, "headgate", 3)
    assert found.final is not None
    assert sum(bool(job.met) for job in found.final.jobs.values()) >= 0.4 * len(crushed.jobs)
    assert any(entry.kind == "throttle" for entry in found.log)


def test_impossible_job_is_called_hungry():
    found = controlled("cpu-spike")
    assert any(line.startswith("T8: ") and "gained too little" in line for line in found.advice)


def test_same_seed_gives_the_same_run_and_another_seed_another():
    scenario = load_scenario("greedy-order")
    first, again, other = (run(scenario, "headgate", seed) for seed in (1, 1, 2))
    assert (first.log, first.satisfaction) == (again.log, again.satisfaction)
    assert first.satisfaction != other.satisfaction
