"""Summaries of runs that are made by hand."""

from __future__ import annotations

import json
import math

import pytest

from headgate.core.intents import Intent
from headgate.sim import report
from headgate.sim.bars import Bar
from headgate.sim.loads import Steady
from headgate.sim.plot import draw
from headgate.sim.run import Logged, Run, run
from headgate.sim.spec import HostSpec, JobSpec, OperatorSpec, Scenario, Variant


def scenario(**changes: object) -> Scenario:
    job = JobSpec(
        "T1",
        (OperatorSpec("spout", cost_s=0.0001), OperatorSpec("sink", ("spout",), cost_s=0.0001)),
        Intent(latency="60ms", worth=35),
        {"spout": Steady(100)},
    )
    plain = Scenario("one", "One job", "", "continuous", 600.0, 300.0, (HostSpec("host-1", 4, 16),), (job,))
    return type(plain)(**{**{name: getattr(plain, name) for name in plain.__dataclass_fields__}, **changes})


def made(satisfaction: list[float], log: list[Logged] | None = None, **changes: object) -> Run:
    times_s = [300.0 + 10 * number for number in range(len(satisfaction))]
    return Run(scenario(), "headgate", 0, times_s, satisfaction, log=log or [], **changes)  # type: ignore[arg-type]


def logged(kind: str, job: str | None, *touched: str) -> Logged:
    return Logged(310.0, job, kind, "because", touched)


def test_satisfaction_counts_from_when_control_began_and_leaves_out_what_is_unknown():
    stats = report.satisfaction(made([0.0, 1.0, math.nan, 0.5]))
    assert stats == {"mean": 0.75, "p5": 0.525, "p15": 0.575, "p50": 0.75, "p90": 0.95}


def test_satisfaction_of_nothing_is_unknown():
    assert set(report.satisfaction(made([])).values()) == {None}


def test_converged_is_told_in_seconds_of_control():
    assert report.converged_s(made([], converged_at_s=[340.0, 500.0])) == 40.0
    assert report.converged_s(made([])) is None


def test_reconfigurations_count_for_the_job_they_are_for():
    log = [
        logged("reconfigure", "T1", "T1"),
        logged("reconfigure", "T2", "T2", "T1"),
        logged("reconfigure", None, "T1", "T2"),
        logged("reduce", None, "T1"),
    ]
    found = Run(scenario(), "headgate", 0, log=log)
    assert found.reconfigurations("T1") == 2
    assert found.reconfigurations("T3") == 0


def test_summary_has_the_same_shape_for_any_run():
    summary = report.run_summary(run(scenario(), "static", 0))
    assert summary["actions"] == {"reconfigure": 0, "reduce": 0, "throttle": 0, "revert": 0, "relax": 0}
    assert summary["jobs"] == {"T1": {"utility": 35.0, "max_utility": 35.0, "met": True, "reconfigurations": 0}}
    assert summary["log"] == summary["advice"] == []


def test_nothing_in_the_result_is_infinite_or_not_a_number():
    runs = {"headgate": made([math.nan, math.inf, 1.0])}
    bars = [Bar(name="share", value=math.nan, op=">=", bar=1.0)]
    result = report.result(scenario(), 0, runs, [(Variant("hosts", 10, scenario()), runs)], bars)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["bars"] == [{"name": "share", "value": None, "bar": 1.0, "op": ">=", "holds": False}]
    assert result["sweep"][0]["value"] == 10


def test_without_logs_nothing_else_is_lost():
    runs = {"headgate": made([1.0, 1.0], [logged("reduce", None, "T1")])}
    whole = report.result(scenario(), 0, runs, [(Variant("hosts", 10, scenario()), runs)], [])
    bare = report.without_logs(whole)
    assert "log" in whole["policies"]["headgate"]
    for policies in (bare["policies"], bare["sweep"][0]["policies"]):
        assert policies["headgate"].keys() == whole["policies"]["headgate"].keys() - {"log"}


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        (">=", [0.9, 0.7, 0.8], 0.7),
        ("<=", [3.0, 9.0, 5.0], 9.0),
        ("==", [1.0, 0.0, 1.0], 0.0),
        (">=", [0.9, None, 0.1], None),
    ],
)
def test_worst_is_furthest_on_the_wrong_side(op, values, expected):
    bars = [Bar(name="share", value=value, op=op, bar=1.0) for value in values]
    assert report.worst(bars).value == expected


def test_worst_holds_only_if_all_hold():
    bars = [Bar(name="actions", value=value, op="<=", bar=10) for value in (4.0, 10.0)]
    assert report.worst(bars).holds
    assert not report.worst([*bars, Bar(name="actions", value=11.0, op="<=", bar=10)]).holds


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (math.nan, "-"), (0.12345, "0.1235"), (12345.6, "12,346")])
def test_figures_are_short(value, shown):
    assert report.figure(value) == shown


@pytest.mark.parametrize("policies", [("headgate",), ("headgate", "static", "threshold")])
def test_picture_is_drawn_for_any_number_of_policies(tmp_path, policies):
    runs = {policy: run(scenario(), policy, 0) for policy in policies}
    draw(scenario(), runs, [], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_picture_of_a_sweep_is_drawn(tmp_path):
    runs = {"headgate": run(scenario(), "headgate", 0)}
    variants = [(Variant("hosts", hosts, scenario()), runs) for hosts in (10, "many")]
    draw(scenario(), runs, variants, tmp_path / "sweep.svg")
    assert "<svg" in (tmp_path / "sweep.svg").read_text()
