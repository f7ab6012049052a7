"""Leased hosts on the simulator: what VISP's evaluation shows, in short runs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli import cli
from headgate.core.hosts import HostPhase
from headgate.core.model import ActionKind
from headgate.errors import HeadgateError
from headgate.explain import story
from headgate.hosts.leases import Budget, StartLane, StopLane
from headgate.journal import MemoryJournal
from headgate.sim.leased_run import lanes_for_peak, run_leased
from headgate.sim.models.leased import LeasedEngine
from headgate.sim.models.service import OperatorService, compliance
from headgate.sim.reports.billing_report import ROWS
from headgate.sim.scenario import load_scenario, read_scenario
from headgate.sim.simulate import Experiment
from headgate.sim.spec import Event, Scenario

STEPWISE = load_scenario("billing-stepwise")
KEY = ("oee", "temperature")


assert STEPWISE.terms is not None
KIND = STEPWISE.terms.kinds[0]


def figures_of(scenario: Scenario, policy: str, seed: int) -> Mapping[str, Any]:
    found = run_leased(scenario, policy, seed).leased
    assert found is not None
    return found


def short(hours: float, name: str = "billing-stepwise", **changes: Any) -> Scenario:
    return dataclasses.replace(load_scenario(name), duration_s=hours * 3600, **changes)


def test_peak_of_the_evaluation_needs_the_eight_hosts_of_the_paper():
    engine = LeasedEngine(STEPWISE, 0, lanes_for_peak(STEPWISE))
    assert len(engine.pool.hosts()) == 8
    assert figures_of(short(0.5), "fixed", 0)["paid_btus"] == 24


def test_one_lane_of_each_operator_takes_the_two_hosts_of_the_paper():
    assert len(LeasedEngine(STEPWISE, 0).pool.hosts()) == 2


def test_btu_based_pays_less_than_threshold_and_is_in_time_more_often():
    btu, threshold = (figures_of(short(1.0), policy, 3) for policy in ("btu", "threshold"))
    assert btu["paid_btus"] < 0.95 * threshold["paid_btus"]
    assert btu["near-real-time"] > threshold["near-real-time"]
    assert (btu["early_releases"], threshold["lanes_moved"]) == (0, 0)
    assert btu["wasted_min"] < threshold["wasted_min"]


def test_paid_btus_are_leases_and_renewals_and_the_cost_is_split_among_the_jobs():
    found = figures_of(short(0.5, "billing-intents"), "btu", 0)
    assert found["paid_btus"] == found["leases"] + found["renewals"]
    assert set(found["cost_by_job"]) == {"alerts", "planning", "archive"}
    assert sum(found["cost_by_job"].values()) == pytest.approx(found["cost"])


@pytest.mark.parametrize("policy", ["headgate", "btu", "threshold"])
@pytest.mark.parametrize("budget", [Budget(most_hosts=5), Budget(most_per_hour=36)], ids=["hosts", "money"])
def test_budget_is_never_exceeded(policy, budget):
    scenario = short(0.4, "billing-intents")
    assert scenario.terms is not None
    scenario = dataclasses.replace(scenario, terms=dataclasses.replace(scenario.terms, budget=budget))
    found = figures_of(scenario, policy, 1)
    assert found["most_hosts"] <= (budget.most_hosts or 100)
    assert found["most_per_hour"] <= (budget.most_per_hour or 1000) + 1e-9


def test_host_is_not_leased_for_intents_that_are_not_worth_it():
    scenario = short(0.25, "billing-intents")
    terms = scenario.terms
    assert terms is not None

    def leases(point_price: float) -> int:
        settings = dataclasses.replace(terms.settings, point_price=point_price)
        priced = dataclasses.replace(scenario, terms=dataclasses.replace(terms, settings=settings))
        return int(figures_of(priced, "headgate", 0)["leases"])

    begun_with = len(LeasedEngine(scenario, 0).pool.hosts())
    assert leases(0.0) == begun_with
    assert leases(10.0) > begun_with


def test_same_seed_gives_the_same_run():
    first, again, other = (run_leased(short(0.2), "btu", seed) for seed in (1, 1, 2))
    assert (first.leased, first.satisfaction) == (again.leased, again.satisfaction)
    assert first.satisfaction != other.satisfaction


@pytest.mark.parametrize("policy", ["headgate", "btu", "threshold"])
def test_journal_says_why_each_host_came_and_went_and_what_it_cost(policy):
    with MemoryJournal() as journal:
        found = run_leased(short(0.6, "billing-intents"), policy, 0, journal).leased
        assert found is not None
        recorded = [one for one in journal.actions() if one.action.concerns_host]
        leased = [one for one in recorded if one.action.kind is ActionKind.LEASE]
        released = [one for one in recorded if one.action.kind is ActionKind.RELEASE and one.effect is not None]
        begun_with = len(LeasedEngine(load_scenario("billing-intents"), 0).pool.hosts())
        assert len(leased) == found["leases"] - begun_with > 0
        assert len(released) == found["releases"] + found["early_releases"] > 0
        assert all(one.applied for one in recorded)
        assert all("have no room for" in one.action.cause.text and one.action.job for one in leased)
        assert all(one.effect is not None and "BTUs paid" in one.effect.verdict for one in released)
        assert story(journal, released[0].action.host)


# -- the engine


def engine() -> LeasedEngine:
    return LeasedEngine(STEPWISE, 0)


def working(of: LeasedEngine) -> int:
    return sum(lane.operator == KEY and lane.works_s <= of.now_s() < lane.leaves_s for lane in of._lanes)


def test_lane_starts_faster_where_its_image_is():
    world = engine()
    (host,) = [name for name, lanes in world.cluster().placed.items() if KEY in lanes]
    (other,) = [name for name in world.cluster().hosts if name != host]
    world.place(StartLane(KEY, host))
    world.place(StartLane(KEY, other))
    world.sleep_until(6)
    assert working(world) == 2
    world.sleep_until(11)
    assert working(world) == 3


def test_lane_on_a_new_host_works_once_the_host_is_up():
    world = engine()
    world.pool.lease("new", KIND)
    world.place(StartLane(KEY, "new"))
    world.sleep_until(39)
    assert working(world) == 1
    world.sleep_until(71)
    assert working(world) == 2 and world.pool.hosts()["new"].phase is HostPhase.READY


def test_released_host_is_paid_until_its_lanes_have_finished():
    world = engine()
    world.pool.lease("new", KIND)
    world.place(StartLane(KEY, "new"))
    world.sleep_until(100)
    world.place(StopLane(KEY, "new"))
    world.pool.release("new")
    world.sleep_until(119)
    assert "new" in world.pool.hosts()
    world.sleep_until(120)
    assert "new" not in world.pool.hosts()


def test_rows_are_neither_lost_nor_made_while_lanes_come_and_go():
    world = engine()
    for number in range(30):
        world.sleep_until(20.0 * (number + 1))
        host = next(iter(world.cluster().hosts))
        if world.cluster().on(host).get(KEY, 0) > 1:
            world.place(StopLane(KEY, host))
        elif number % 2:
            world.place(StartLane(KEY, host))
    reading = world.observe().jobs["oee"]
    assert reading is not None
    done, waiting = reading.operators["temperature"].processed["*"], reading.arrived["temperature"]
    flow = world._flows[KEY]
    assert done + sum(flow.waiting.values()) == pytest.approx(waiting)
    assert sum(flow.sent.values()) == pytest.approx(done * 0.01)


def test_dead_host_is_replaced_and_its_lanes_come_up_again():
    scenario = short(0.2, events=(Event(300.0, "fail-host", "leased-1"),))
    found = run_leased(scenario, "btu", 0)
    assert found.final is not None
    lanes = found.final.jobs["oee"].allocation.lanes
    assert all(count >= 1 for count in lanes.values())
    assert "leased-1" not in {host.name for host in found.final.hosts}


@pytest.mark.parametrize("policy", ["btu", "threshold", "headgate"])
def test_job_that_comes_later_gets_a_place(policy):
    spec = dataclasses.replace(STEPWISE.jobs[0], name="late-comer")
    found = run_leased(short(0.1, events=(Event(60.0, "add", "late-comer", job=spec),)), policy, 0)
    assert found.final is not None
    assert all(count >= 1 for count in found.final.jobs["late-comer"].allocation.lanes.values())
    assert found.series["late-comer"].pairs("output_rows_s")[-1][1] > 0


def test_share_of_rows_in_real_time_without_waiting_is_the_best_of_the_paper():
    service = OperatorService(expected_s=0.6, occupies_s=0.1)
    service.serve(rows=100, backlog=0, lanes=100, busy=0.01, step_s=1.0)
    assert compliance([service], "real-time") == pytest.approx(0.5828, abs=0.01)
    assert compliance([service], "relaxed") == pytest.approx(1.0, abs=1e-3)


# -- scenario files and the command line

GOOD = Path("headgate/sim/scenarios/billing-stepwise.toml")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('btu = "10m"', "btu = 0", 'host_type "docker-host": btu is 0; it must be a duration'),
        ('btu = "10m"', 'btu = "-5m"', 'host_type "docker-host": btu is "-5m"; it must be a duration'),
        ("cores = 3", "cores = 0.5", 'a lane of operator "parse" needs 0.9 cores and 554 MB, which fits on no host type'),
        ("[paper]", "[budget]\nmost_hosts = 0\n[paper]", "budget: the budget allows 0 hosts; jobs need at least 1"),
        ("[paper]", "[budget]\nmost_per_hour = 5\n[paper]", "budget: the budget is 5 per hour, but one host of the cheapest type"),
        ("[paper]", "[budget]\nmost_hosts = 1\n[paper]", "the budget pays for 1 host(s), with no room for one lane of each operator"),
        ("[[host_type]]", "[[nothing]]", 'there is no field "nothing"'),
        ('duration = "2h"', 'duration = "2h"\ncontrol_after = "1m"', "control_after is for hosts that are there"),
        ("[paper]", "[[event]]\nat = 60\nkind = 'slow-host'\nvalue = 0.5\n[paper]", "event slow-host cannot happen to hosts"),
        ("price = 1", "price = -1", 'host_type "docker-host": price is -1; it must be a number of at least 0'),
        ('topology = "manufacturing"', 'topology = "linear"', "says neither cores nor memory_mb of a lane"),
        ('policies = ["btu", ', 'policies = ["static", ', 'policy is "static"; allowed are headgate, btu, threshold, fixed'),
    ],
)  # fmt: skip
def test_wrong_hosts_and_budgets_are_refused_with_a_sentence(tmp_path, old, new, sentence):
    text = GOOD.read_text().replace(old, new, 1)
    if "linear" in new:
        text = re.sub(r"\[job\.load\].*?\n\n", 'load = { pattern = "steady", rate = 1 }\n\n', text, flags=re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(HeadgateError) as refusal:
        read_scenario(path)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_command_line_shows_all_rows_for_all_provisioners():
    done = CliRunner().invoke(cli, ["simulate", "billing-two-level", "--hours", "0.3", "--json"])
    assert done.exit_code == 0, done.output
    whole = json.loads(done.output.splitlines()[-1])
    assert list(whole["policies"]) == ["btu", "threshold", "fixed"]
    for policy in whole["policies"].values():
        assert set(ROWS) <= set(policy["hosts"])
    assert [bar["op"] for bar in whole["bars"]] == ["<=", "<=", ">="]
    assert all(label in done.output for label, _ in ROWS.values())


def test_settings_of_hosts_can_be_set_like_all_others():
    scenario = Experiment("billing-stepwise", settings={"spare_busy": "0.7", "target_busy": "0.5"}).load()
    assert scenario.terms is not None
    assert (scenario.terms.settings.spare_busy, scenario.settings.target_busy) == (0.7, 0.5)
    with pytest.raises(HeadgateError, match='there is no setting "spare_bussy"'):
        Experiment("billing-stepwise", settings={"spare_bussy": "0.7"}).load()
