"""Summaries of runs that are made by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from headgate.core.intents import Intent
from headgate.core.model import ActionKind
from headgate.loads import Steady
from headgate.sim.reports import report
from headgate.sim.reports.bars import Bar
from headgate.sim.reports.plot import draw
from headgate.sim.run import Logged, MeasuredSeries, Run, run
from headgate.sim.spec import Event, HostSpec, JobSpec, OperatorSpec, Scenario, Variant


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


def test_all_met_is_the_share_of_the_controlled_time_that_could_be_read():
    assert report.all_met(made([0.0, 1.0, math.nan, 1 - 1e-12, 0.999])) == pytest.approx(2 / 3)
    assert report.all_met(made([])) is None


def test_share_of_a_job_counts_from_when_control_began():
    found = made([1.0, 1.0, 0.9], series={"T1": MeasuredSeries()})
    for at_s, value in ((290.0, 0.0), (310.0, 1.0), (320.0, 0.9), (330.0, 1.0), (340.0, 1.0)):
        found.series["T1"].append(at_s, value, 1.0, 0.0, 100.0, 100.0, 0.0, 100.0)
    assert report.job_met(found, "T1") == 0.75
    assert report.job_met(found, "T2") is None


@pytest.mark.parametrize(
    ("phases", "rate", "shown"),
    [
        (["not converged", "converged"], 100, "40 s"),
        (["not converged", "converged"], 100_000, "gave up"),
        (["converged", "not converged"], 100, "no"),
        (["static"], 100, "-"),
        ([], 100, "-"),
    ],
)
def test_converged_counts_only_if_it_ended_so_with_all_intents_met(phases, rate, shown):
    job = dataclasses.replace(scenario().jobs[0], loads={"spout": Steady(rate)})
    final = run(scenario(jobs=(job,)), "static", 0).final
    assert report.ended(made([], phases=phases, converged_at_s=[340.0], final=final)) == shown


@pytest.mark.parametrize(
    ("shares", "values", "answer"),
    [
        ([0, 1, 1], [2, 3, 4], "hosts: 3 is the least at which headgate keeps"),
        ([1, 1, 0], [4, 3, 2], "hosts: 3 is the least at which headgate keeps"),
        ([1, 1, 0], [2, 3, 4], "hosts: 3 is the most at which headgate keeps"),
        ([1, 0, 1], [2, 3, 4], "hosts: headgate keeps all intents for at least 99 % of the time at 2, 4"),
        ([0, 1, 1], ["few", "some", "many"], "hosts: headgate keeps all intents for at least 99 % of the time at some"),
        ([1, 1], [2, 3], "hosts: headgate keeps all intents for at least 99 % of the time at all of them"),
        ([0, 0.98], [2, 3], "hosts: at none of them does headgate keep"),
        ([0, 0.99], [2, 3], "hosts: 3 is the least"),
    ],
)
def test_sweep_is_answered_in_a_sentence(shares, values, answer):
    variants = [
        (
            Variant("hosts", value, scenario()),
            {"headgate": made([0.0] * (101 - round(100 * share)) + [1.0] * round(100 * share))},
        )
        for share, value in zip(shares, values, strict=True)
    ]
    assert report.sweep_answer(variants).startswith(answer)


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
    assert summary["jobs"]["T1"].pop("lanes")
    assert summary["jobs"] == {"T1": {"utility": 35.0, "max_utility": 35.0, "met": True, "reconfigurations": 0}}
    assert summary["log"] == summary["diagnoses"] == summary["advice"] == summary["alerts"] == []


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


@pytest.mark.parametrize(
    ("share", "shown"), [(None, "-"), (0.9998, "99.9 %"), (1 - 1e-14, "100.0 %"), (0.29, "29.0 %"), (1.0, "100.0 %")]
)
def test_shares_are_cut_not_rounded(share, shown):
    assert report.percent(share) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (math.nan, "-"), (0.12345, "0.1235"), (12345.6, "12,346")])
def test_figures_are_short(value, shown):
    assert report.figure(value) == shown


@pytest.mark.parametrize("policies", [("headgate",), ("headgate", "static", "threshold")])
def test_picture_is_drawn_for_any_number_of_policies(tmp_path, policies):
    runs = {policy: run(scenario(), policy, 0) for policy in policies}
    draw(scenario(), runs, [], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def drawn(path: Path, scenario_: Scenario, runs: dict[str, Run], variants: report.Variants = ()) -> str:
    """A picture as text: what is written in an SVG stands in its comments."""
    draw(scenario_, runs, variants, path / "picture.svg")
    return (path / "picture.svg").read_text()


@pytest.mark.parametrize("values", [(10, "many"), (10, 20), (1, 1000)])
def test_picture_of_a_sweep_is_drawn(tmp_path, values):
    runs = {"headgate": run(scenario(), "headgate", 0)}
    variants = [(Variant("hosts", value, scenario()), runs) for value in values]
    picture = drawn(tmp_path, scenario(), runs, variants)
    assert "Time in which all intents are met" in picture
    assert all(f"<!-- {value} -->" in picture for value in values)


def test_picture_tells_events_and_the_time_that_could_not_be_read(tmp_path):
    events = (
        Event(400.0, "fail-link"),
        Event(500.0, "restore-link"),
        Event(500.0, "cpu-load"),
        Event(500.0, "cpu-load"),
    )
    cut_off = scenario(events=events)
    picture = drawn(tmp_path, cut_off, {"headgate": run(cut_off, "headgate", 0)})
    assert "fail-link -->" in picture
    assert "restore-link, 2 x cpu-load -->" in picture
    assert "<!-- not read -->" in picture
    assert "<!-- Input per job -->" in picture


def test_picture_counts_the_actions_that_find_no_room(tmp_path):
    found = run(scenario(), "static", 0)
    found.log = [logged(kind.value, "T1", "T1") for kind in ActionKind]
    picture = drawn(tmp_path, scenario(), {"headgate": found})
    assert f"<!-- +{len(ActionKind) - 3} more actions -->" in picture
    found.log = found.log[:3]
    assert "more actions" not in drawn(tmp_path, scenario(), {"headgate": found})


@pytest.mark.parametrize(
    ("name", "share", "shown"), [("memory", 0.01, True), ("one", 0.01, False), ("one", 0.06, True)]
)
def test_picture_shows_memory_where_it_matters(tmp_path, name, share, shown):
    found = run(scenario(), "static", 0)
    found.memory = [share] * len(found.times_s)
    assert ("Memory in use" in drawn(tmp_path, scenario(name=name), {"static": found})) == shown


def test_picture_of_nothing_is_drawn(tmp_path):
    assert "<svg" in drawn(tmp_path, scenario(), {"headgate": Run(scenario(), "headgate", 0)})
