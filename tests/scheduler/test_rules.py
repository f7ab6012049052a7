"""The state machine of Henge (SoCC '18), section 5: each rule of the table, told on views made by hand."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import msgspec
import pytest

from headgate.config import Settings
from headgate.config.settings import settings_from
from headgate.core.model import ActionKind, HostReading, SearchPhase
from headgate.errors import InvalidTransitionError
from headgate.scheduler import rules
from headgate.scheduler.events import cluster_changed, withdrawn
from headgate.scheduler.memory import Decision, State
from headgate.scheduler.policies import Headgate
from headgate.scheduler.rules import TRANSITIONS, transition_table
from tests.core.builders import CONGESTED, IDLE, UNKNOWN, Seen, Story, started, view

RULES = (
    "remedy", "regulated", "no data", "after outage", "new workload", "settle", "warm up", "reduce", "undo", "revert", "overtaken", "relax",
    "return shares", "prevent", "converge", "hold", "make room", "reconfigure", "catch up", "throttle", "give back", "refused", "give up",
    "fell", "rest",
)  # fmt: skip

MISSING = Seen("page-load", latency_s=2.0, worth=35)
FINE = Seen("topk", latency_s=0.5, worth=10, busy=0.1, lanes=10)
HOPELESS = replace(MISSING, busy=0.1)
MET = replace(MISSING, latency_s=0.9)
HOUR_S = 3600.0


def helped(decision: Decision) -> str | None:
    assert decision.action is not None
    assert decision.action.kind is ActionKind.RECONFIGURE
    return decision.action.job


def resting(*seen: Seen) -> Story:
    story = started(*seen)
    for _ in range(4):
        story.see(*seen)
    assert story.state.phase is SearchPhase.CONVERGED
    return story


# -- the table


def test_names_of_rules_are_unique() -> None:
    names = [rule.name for rule in TRANSITIONS]
    assert len(set(names)) == len(names)


def test_table_holds_the_rules_that_are_told_here() -> None:
    assert set(RULES) == {rule.name for rule in TRANSITIONS}


def test_transition_table_lists_every_rule_with_its_reason() -> None:
    settings = settings_from({"outage_data_s": 90.0, "stable_rounds": 7, "drop": 0.25})
    table = transition_table(settings).splitlines()
    assert len(table) == 2 + len(TRANSITIONS)
    for row, rule in zip(table[2:], TRANSITIONS, strict=True):
        assert rule.name in row and rule.sentence(settings) in row
    text = "\n".join(table)
    assert "90 s" in text or "1.5 min" in text
    assert "7 rounds" in text and "25 %" in text


@pytest.mark.parametrize("phase", SearchPhase)
def test_each_phase_ends_with_a_rule_that_always_fits(phase: SearchPhase) -> None:
    story = Story(state=State(phase=phase))
    assert story.see().rule in {rule.name for rule in TRANSITIONS}


# -- no data, after outage


@pytest.mark.parametrize("phase", SearchPhase)
def test_nothing_is_decided_while_a_job_cannot_be_read(phase: SearchPhase) -> None:
    story = started(MISSING, FINE)
    story.state = replace(story.state, phase=phase)
    decision = story.see(MISSING, FINE, unread=["topk"])
    assert decision.rule == "no data"
    assert decision.action is None
    assert "topk" in decision.cause
    assert story.state.phase is phase


def test_five_minutes_of_data_are_collected_after_an_outage() -> None:
    story = started(MISSING)
    story.see(MISSING, unread=["page-load"])
    back_s = story.at_s + 10
    decisions = [story.see(MISSING) for _ in range(31)]
    assert [decision.rule for decision in decisions] == ["after outage"] * 30 + ["reconfigure"]
    assert story.at_s == back_s + 300


def test_second_outage_starts_the_wait_anew() -> None:
    story = started(MISSING)
    story.see(MISSING, unread=["page-load"])
    for _ in range(20):
        story.see(MISSING)
    story.see(MISSING, unread=["page-load"])
    assert [story.see(MISSING).rule for _ in range(31)] == ["after outage"] * 30 + ["reconfigure"]


def test_action_is_judged_only_after_an_outage_is_over() -> None:
    story = started(MISSING)
    story.see(MISSING)
    story.see(MISSING, unread=["page-load"])
    better = replace(MISSING, latency_s=0.8)
    assert all(story.see(better).verdicts == () for _ in range(30))
    assert story.wait(better).verdicts


# -- new workload


def test_first_round_takes_note_of_the_workload() -> None:
    assert Story().see(MISSING).rule == "new workload"


def remembering() -> Story:
    """A story with a history, a reduction, a job set aside, in the Converged state."""
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    assert story.wait(MISSING, FINE).rule == "give up"
    story.state = replace(story.state, reduced=True)
    assert story.state.best is not None
    assert set(story.state.skipped) == {"page-load"}
    return story


CHANGED = {
    "job added": (MISSING, FINE, Seen("new")),
    "job removed": (MISSING,),
    "job replaced": (MISSING, Seen("new")),
    "priority changed": (MISSING, replace(FINE, worth=11)),
    "intent changed": (MISSING, replace(FINE, intent_s=2.0)),
    "percentile changed": (MISSING, replace(FINE, percentile=99)),
}


@pytest.mark.parametrize("seen", CHANGED.values(), ids=CHANGED.keys())
def test_changed_workload_starts_the_search_afresh(seen: tuple[Seen, ...]) -> None:
    story = remembering()
    assert story.see(*seen).rule == "new workload"
    assert story.state.phase is SearchPhase.SEARCHING
    assert (story.state.best, story.state.reduced, story.state.trials.search) == (None, False, None)


def test_changed_intent_of_a_skipped_job_lifts_its_skip() -> None:
    story = remembering()
    harder = replace(MISSING, intent_s=0.5)
    story.see(harder, FINE)
    assert helped(story.see(harder, FINE)) == "page-load"


def test_change_of_another_job_does_not_lift_a_skip() -> None:
    story = remembering()
    other = replace(FINE, worth=11)
    story.see(MISSING, other)
    assert story.see(MISSING, other).action is None


def test_job_that_goes_ends_the_wait_for_its_action() -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    story.see(FINE)
    assert [story.see(FINE).rule for _ in range(4)] == ["hold", "hold", "hold", "converge"]


# -- reconfigure: who is helped


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        ((Seen("a", 2.0, worth=5), Seen("b", 1.1, worth=35), Seen("c", 3.0, worth=20)), "b"),
        ((Seen("a", 2.0), Seen("b", 4.0), Seen("c", 3.0)), "b"),
        ((Seen("a", 0.9, worth=90), Seen("b", 1.1, worth=5)), "b"),
    ],
    ids=["highest worth", "lowest utility among equals", "only those that miss their intents"],
)
def test_helps_the_most_worthy_of_those_that_miss_their_intents(seen: tuple[Seen, ...], first: str) -> None:
    decision = started(*seen).see(*seen)
    assert decision.rule == "reconfigure"
    assert helped(decision) == first


FAIR = settings_from({"objective": "fair"})
HEAVY = replace(MISSING, tenant="heavy", tenant_weight=4.0)
LIGHT = replace(MISSING, tenant="light")


def test_fair_objective_helps_a_heavier_tenant_first_where_no_tenant_has_anything() -> None:
    seen = replace(LIGHT, name="a", shape="step"), replace(HEAVY, name="b", shape="step")
    assert helped(started(*seen, settings=FAIR).see(*seen)) == "b"


def test_fair_objective_counts_a_job_that_recovers_as_served() -> None:
    recovers = replace(LIGHT, name="light-1", latency_s=20.0, waiting=30_000, draining_rows_s=300)
    seen = replace(HEAVY, name="heavy-1", latency_s=0.5, busy=0.1), recovers
    late = replace(LIGHT, name="light-2", latency_s=20.0), replace(HEAVY, name="z-heavy-2", latency_s=20.0)
    assert helped(started(*seen, *late, settings=FAIR).see(*seen, *late)) == "z-heavy-2"


def test_lowest_objective_helps_the_job_with_the_least_share_of_its_worth() -> None:
    seen = (Seen("a", 2.0, worth=100), Seen("b", 4.0, worth=5))
    assert helped(started(*seen).see(*seen)) == "a"
    assert helped(started(*seen, settings=settings_from({"objective": "lowest"})).see(*seen)) == "b"


def test_only_one_job_is_changed_at_a_time() -> None:
    seen = (Seen("a", 2.0, worth=20), Seen("b", 2.0))
    action = started(*seen).see(*seen).action
    assert action is not None and list(action.changes) == ["a"]


def test_reconfiguration_gives_lanes_to_what_is_congested_and_says_why() -> None:
    decision = started(MISSING).see(MISSING)
    assert decision.action is not None
    assert decision.action.changes["page-load"].lanes == {"in": 1, "work": 3}
    for part in ("latency 2 s misses 1 s", "work", "0.90", "2 → 3 lanes"):
        assert part in decision.action.sentence


def test_paper_sizing_is_used_when_it_is_set() -> None:
    action = started(MISSING, settings=settings_from({"sizing": "paper"})).see(MISSING).action
    assert action is not None and action.changes["page-load"].lanes == {"in": 1, "work": 22}


def test_job_that_cannot_be_helped_does_not_keep_others_waiting() -> None:
    seen = (HOPELESS, Seen("late", 2.0, worth=5))
    story = started(*seen)
    assert helped(story.see(*seen)) == "late"
    assert "page-load" in story.state.skipped


# -- settle


def test_no_action_while_the_last_one_settles() -> None:
    seen = (Seen("a", 2.0, worth=20), Seen("b", 2.0))
    story = started(*seen)
    story.see(*seen)
    acted_s = story.at_s
    while (decision := story.see(*seen)).verdicts == ():
        assert decision.rule == "settle"
        assert decision.action is None
    assert story.at_s - acted_s >= Settings().settle_min_s


def test_waits_while_measurements_still_move_but_not_for_ever() -> None:
    story = started(MISSING)
    story.see(MISSING)
    acted_s = story.at_s
    story.wait(replace(MISSING, newest_s=1.2))
    assert 180 <= story.at_s - acted_s <= 200


def test_touched_jobs_are_measured_anew_from_when_they_stood_still() -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    acted_s = story.at_s
    story.wait(MISSING, FINE)
    assert acted_s < story.state.trials.since_s["page-load"] < story.at_s
    assert "topk" not in story.state.trials.since_s


def test_verdict_tells_what_an_action_gained() -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    (verdict,) = story.wait(replace(MISSING, latency_s=1.25), FINE).verdicts
    assert verdict is not None
    assert (verdict.job, verdict.kind, verdict.harmful) == ("page-load", ActionKind.RECONFIGURE, False)
    assert (verdict.utility_before, verdict.utility_after) == pytest.approx((17.5, 28))
    assert (verdict.total_before, verdict.total_after) == pytest.approx((27.5, 38))


def test_no_action_is_judged_while_another_job_is_not_measured() -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    better, unmeasured = replace(MISSING, latency_s=1.5), replace(FINE, span_s=0.0)
    for _ in range(10):
        assert story.see(better, unmeasured, hosts=CONGESTED).verdicts == ()
    assert "page-load" not in story.state.skipped


# -- warm up


def test_no_action_before_all_jobs_have_enough_data() -> None:
    story = started(MISSING, FINE)
    assert story.see(MISSING, replace(FINE, span_s=20)).rule == "warm up"
    assert story.see(MISSING, replace(FINE, span_s=0)).rule == "warm up"
    assert story.see(MISSING, replace(FINE, span_s=30)).rule == "reconfigure"


def test_job_that_never_had_input_blocks_no_decision_about_others() -> None:
    idle = Seen("idle", rows_s=0.0)
    story = started(MISSING, idle)
    assert story.see(MISSING, idle).rule == "reconfigure"


# -- skipping jobs that gain too little


def test_job_that_gains_less_than_five_percent_is_skipped_and_keeps_its_lanes() -> None:
    seen = (MISSING, Seen("late", 2.0, worth=5))
    story = started(*seen)
    story.see(*seen)
    decision = story.wait(replace(MISSING, latency_s=1.92), seen[1])
    assert set(story.state.skipped) == {"page-load"}
    assert helped(decision) == "late"
    assert story.lanes("page-load") == 3


def test_job_that_gains_five_percent_is_helped_again() -> None:
    seen = (MISSING, Seen("late", 2.0, worth=5))
    story = started(*seen)
    story.see(*seen)
    assert helped(story.wait(replace(MISSING, latency_s=1.9), seen[1])) == "page-load"
    assert story.state.skipped == {}


def test_job_that_meets_its_intent_is_not_skipped_however_little_it_gained() -> None:
    near = replace(MISSING, latency_s=1.02)
    story = started(near)
    story.see(near)
    story.wait(replace(near, latency_s=1.0))
    assert story.state.skipped == {}


def test_job_that_has_no_utility_and_gains_none_is_skipped() -> None:
    nothing = replace(MISSING, shape="step")
    story = started(nothing, FINE)
    story.see(nothing, FINE)
    story.wait(nothing, FINE)
    assert set(story.state.skipped) == {"page-load"}


def skipping() -> Story:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    story.wait(MISSING, FINE)
    assert set(story.state.skipped) == {"page-load"}
    return story


def test_nobody_left_to_help_means_converged() -> None:
    story = skipping()
    assert story.decisions[-1].rule == "give up"
    assert story.state.phase is SearchPhase.CONVERGED


def test_skip_expires_after_an_hour() -> None:
    story = skipping()
    assert story.see(MISSING, FINE, after_s=HOUR_S - 10).rule == "rest"
    assert story.see(MISSING, FINE).rule == "fell"
    assert helped(story.see(MISSING, FINE)) == "page-load"


def test_skip_lasts_twice_as_long_each_time_in_a_row() -> None:
    story = skipping()
    for hours in (2, 4, 8):
        while story.see(MISSING, FINE, after_s=HOUR_S / 2).action is None:
            pass
        story.wait(MISSING, FINE)
        assert story.see(MISSING, FINE, after_s=hours * HOUR_S - 20).rule == "rest"


def test_job_that_met_its_intent_in_between_is_skipped_for_an_hour_again() -> None:
    story = skipping()
    story.see(replace(MISSING, latency_s=0.5), FINE)
    story.until("reconfigure", MISSING, FINE)
    story.wait(MISSING, FINE)
    assert story.see(MISSING, FINE, after_s=HOUR_S - 10).rule == "rest"
    assert story.see(MISSING, FINE).rule == "fell"


@pytest.mark.parametrize("rows_s", [850.0, 1150.0])
def test_skip_holds_while_input_is_about_the_same(rows_s: float) -> None:
    story = skipping()
    assert story.see(replace(MISSING, rows_s=rows_s), FINE).rule == "rest"


@pytest.mark.parametrize("rows_s", [750.0, 1250.0])
def test_skip_is_lifted_when_input_changes_by_over_a_fifth(rows_s: float) -> None:
    story = skipping()
    changed = replace(MISSING, rows_s=rows_s)
    assert story.see(changed, FINE).rule == "fell"
    assert helped(story.see(changed, FINE)) == "page-load"


# -- reduce, revert


HARMED = Seen("harmed", latency_s=0.8, worth=20)
CROWD = (MISSING, FINE, HARMED)
SHRUNK = (MISSING, FINE, replace(HARMED, latency_s=2.0))


def after_harm() -> tuple[Story, Decision]:
    story = started(*CROWD)
    assert helped(story.see(*CROWD)) == "page-load"
    return story, story.wait(*SHRUNK, hosts=CONGESTED)


def test_harm_on_a_congested_cluster_takes_idle_lanes_from_jobs_that_meet_their_intents() -> None:
    story, decision = after_harm()
    assert decision.rule == "reduce"
    assert decision.verdicts and decision.verdicts[0].harmful
    assert decision.action is not None and decision.action.kind is ActionKind.REDUCE
    assert list(decision.action.changes) == ["topk"]
    assert story.lanes("topk") == 2
    assert story.lanes("page-load") == 3
    assert story.state.phase is SearchPhase.SEARCHING


def test_second_harm_reverts_to_the_best_configuration() -> None:
    story, _ = after_harm()
    assert helped(story.until("reconfigure", *SHRUNK, hosts=CONGESTED)) == "harmed"
    worse = (replace(MISSING, latency_s=4.0), *SHRUNK[1:])
    decision = story.wait(*worse, hosts=CONGESTED)
    assert decision.rule == "revert"
    assert decision.action is not None and decision.action.kind is ActionKind.REVERT
    assert {name: story.lanes(name) for name in ("page-load", "topk", "harmed")} == {
        "page-load": 2,
        "topk": 10,
        "harmed": 2,
    }
    assert story.state.phase is SearchPhase.CONVERGED


def test_step_of_a_job_that_recovers_is_taken_back_when_the_reduction_after_it_did_harm_too() -> None:
    grown = replace(MISSING, waiting=100_000, draining_rows_s=50)
    before, after = (grown, FINE, HARMED), (grown, FINE, replace(HARMED, latency_s=2.0))
    story = started(*before)
    assert helped(story.see(*before)) == "page-load"
    assert story.wait(*after, hosts=CONGESTED).rule == "reduce"
    assert story.lanes("page-load") > grown.lanes
    decision = story.wait(grown, replace(FINE, latency_s=9.0), replace(HARMED, latency_s=9.0), hosts=CONGESTED)
    assert decision.action is not None and decision.action.kind is ActionKind.REVERT
    assert {name: story.lanes(name) for name in ("page-load", "topk")} == {"page-load": 2, "topk": 10}


def test_search_goes_on_after_a_reduction_that_helped() -> None:
    story, _ = after_harm()
    decision = story.wait(*CROWD)
    assert decision.verdicts and not decision.verdicts[0].harmful
    assert decision.rule not in ("reduce", "revert")


def test_reverts_when_no_job_has_idle_lanes_to_give() -> None:
    busy = (MISSING, replace(FINE, lanes=1), HARMED)
    story = started(*busy)
    story.see(*busy)
    decision = story.wait(busy[0], busy[1], SHRUNK[2], hosts=CONGESTED)
    assert decision.rule == "undo"
    assert story.lanes("page-load") == 2


def test_reverts_to_the_best_of_several_steps() -> None:
    story = started(MISSING, HARMED)
    story.see(MISSING, HARMED)
    second = story.wait(replace(MISSING, latency_s=1.5), HARMED)
    assert helped(second) == "page-load"
    best = 3
    assert story.lanes("page-load") > best
    decision = story.wait(replace(MISSING, latency_s=1.9), HARMED)
    assert decision.rule == "revert"
    assert story.lanes("page-load") == best
    assert story.state.phase is SearchPhase.CONVERGED


def test_job_that_hurt_itself_is_reverted_though_cores_are_free() -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    decision = story.wait(replace(MISSING, latency_s=3.0), FINE)
    assert decision.rule == "revert"
    assert story.lanes("page-load") == 2


@pytest.mark.parametrize("hosts", [IDLE, UNKNOWN], ids=["free cores", "unknown load"])
def test_loss_of_others_without_congestion_is_not_blamed_on_the_action(hosts: tuple) -> None:
    story = started(*CROWD)
    story.see(*CROWD)
    decision = story.wait(replace(MISSING, latency_s=1.5), *SHRUNK[1:], hosts=hosts)
    assert decision.rule == "overtaken"
    assert decision.action is None
    assert story.lanes("page-load") == 3
    assert story.state.phase is SearchPhase.SEARCHING


def test_history_is_forgotten_when_the_workload_overtook_an_action() -> None:
    story = started(*CROWD)
    story.see(*CROWD)
    story.wait(replace(MISSING, latency_s=1.5), *SHRUNK[1:])
    best = story.state.best
    assert best is not None
    assert best.allocation["page-load"].lanes["work"] == 3
    assert best.score == pytest.approx(35 / 1.5 + 10 + 10)
    assert story.state.reduced is False


def test_small_loss_is_noise() -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    decision = story.wait(replace(MISSING, latency_s=2.02), FINE, hosts=CONGESTED)
    assert decision.rule == "give up"
    assert story.lanes("page-load") == 3


def test_workload_that_changes_allows_another_reduction() -> None:
    story, _ = after_harm()
    assert story.state.reduced
    story.see(*SHRUNK, Seen("new"), hosts=CONGESTED)
    assert not story.state.reduced


WORSE = replace(MISSING, latency_s=3.0)


def refused_reversion() -> Story:
    """A story whose way back from three lanes to two was refused."""
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    before = dict(story.given)
    decision = story.wait(WORSE, FINE)
    assert decision.action is not None and decision.action.kind is ActionKind.REVERT
    story.state, story.given = withdrawn(story.state, decision.action, story.at_s, story.settings), before
    return story


def test_reversion_that_was_refused_is_asked_for_again_only_after_five_minutes() -> None:
    story = refused_reversion()
    refused_s = story.at_s
    assert {story.see(WORSE, FINE).rule for _ in range(29)} == {"refused"}
    assert story.see(WORSE, FINE).rule == "give back"
    assert story.at_s - refused_s == Settings().retry_s


def test_reversion_that_was_refused_is_asked_for_again_when_the_lanes_of_its_job_change() -> None:
    story = refused_reversion()
    story.see(WORSE, FINE)
    story.given["page-load"] = story.given["page-load"].with_lanes({"in": 1, "work": 4})
    assert story.see(WORSE, FINE).rule == "give back"


def test_refusals_do_not_outlive_a_change_of_the_hosts() -> None:
    story = refused_reversion()
    story.state = cluster_changed(story.state)
    assert helped(story.see(WORSE, FINE)) == "page-load"


def test_refusals_do_not_outlive_a_change_of_the_jobs() -> None:
    story = refused_reversion()
    story.see(WORSE, FINE, Seen("new"))
    assert story.state.refused == {}


def test_reduction_that_was_refused_may_be_tried_again() -> None:
    story, decision = after_harm()
    assert decision.action is not None
    state = withdrawn(story.state, decision.action, story.at_s, story.settings)
    assert (state.reduced, state.trials.search) == (False, None)


# -- hold, converge


def test_converges_after_four_rounds_in_which_all_intents_hold() -> None:
    story = started(FINE)
    decisions = [story.see(FINE) for _ in range(5)]
    assert [decision.rule for decision in decisions] == ["hold", "hold", "hold", "converge", "rest"]
    assert all(decision.action is None for decision in decisions)
    assert story.state.phase is SearchPhase.CONVERGED


def test_four_rounds_must_follow_one_another() -> None:
    story = started(MISSING, FINE)
    met = replace(MISSING, latency_s=0.9)
    assert [story.see(met, FINE).rule for _ in range(3)] == ["hold"] * 3
    story.see(MISSING, FINE)
    assert story.wait(met, FINE).rule == "hold"
    assert [story.see(met, FINE).rule for _ in range(3)] == ["hold", "hold", "converge"]


# -- give back, give up


def test_gives_up_when_nobody_can_be_helped() -> None:
    story = started(HOPELESS, FINE)
    decision = story.see(HOPELESS, FINE)
    assert decision.rule == "give up"
    assert "page-load" in decision.cause
    assert story.state.phase is SearchPhase.CONVERGED


def test_gives_back_what_did_not_help_when_an_earlier_configuration_was_better() -> None:
    first, second, third = Seen("first", 2.0, worth=35), Seen("second", 0.8), Seen("third", 0.8, busy=0.1)
    story = started(first, second, third)
    assert helped(story.see(first, second, third)) == "first"
    improved = replace(first, latency_s=0.8)
    assert story.wait(improved, second, third).rule == "hold"
    fallen = (improved, replace(second, latency_s=2.0), replace(third, latency_s=4.0))
    assert helped(story.see(*fallen)) == "second"
    decision = story.wait(*fallen)
    assert decision.rule == "give back"
    assert decision.action is not None and decision.action.kind is ActionKind.REVERT
    assert (story.lanes("first"), story.lanes("second")) == (3, 2)
    assert story.state.phase is SearchPhase.CONVERGED


def test_step_that_made_a_job_faster_is_not_given_back_once_its_backlog_is_old() -> None:
    story = started(MISSING, FINE)
    assert helped(story.see(MISSING, FINE)) == "page-load"
    faster = replace(MISSING, rows_s=1500.0, busy=0.1)
    assert story.wait(replace(faster, waiting=20_000.0, draining_rows_s=1_000.0), FINE).rule == "catch up"
    assert story.see(replace(faster, latency_s=4.0), FINE).rule == "give up"
    assert story.lanes("page-load") == 3


# -- rest, fell


def test_rests_while_nothing_changes() -> None:
    story = resting(MET, FINE)
    assert {story.see(MET, FINE).rule for _ in range(20)} == {"rest"}


def test_loss_of_over_five_percent_ends_the_rest_and_forgets_history() -> None:
    story = resting(MET, FINE)
    fallen = replace(MISSING, latency_s=1.1)
    assert story.see(fallen, FINE).rule == "fell"
    assert story.state.phase is SearchPhase.SEARCHING
    assert (story.state.best, story.state.reduced, story.state.rest_score) == (None, False, None)
    assert helped(story.see(fallen, FINE)) == "page-load"


def test_smaller_loss_does_not_end_the_rest_at_once() -> None:
    story = resting(MET, FINE)
    assert story.see(replace(MISSING, latency_s=1.03), FINE).rule == "rest"


def test_short_burst_does_not_end_the_rest() -> None:
    story = resting(MET, FINE)
    assert story.see(replace(MISSING, latency_s=1.08, newest_s=0.5, worth=35), FINE).rule == "rest"


def test_small_job_that_loses_its_share_ends_the_rest_though_the_total_hardly_falls() -> None:
    small = Seen("small", 0.9, worth=1)
    story = resting(MET, small)
    assert story.see(MET, replace(small, latency_s=2.0)).rule == "fell"


def test_slow_decay_ends_the_rest_too() -> None:
    story = resting(MET, FINE)
    rules = [story.see(replace(MISSING, latency_s=1 + percent / 100), FINE).rule for percent in range(1, 9)]
    assert "fell" in rules


def test_job_that_misses_its_intent_by_little_is_helped_when_it_does_so_for_five_minutes() -> None:
    story, near = resting(MET, FINE), replace(MISSING, latency_s=1.03)
    rules = [story.see(near, FINE).rule for _ in range(32)]
    assert rules == ["rest"] * 30 + ["fell", "reconfigure"]


# -- jobs that mend by themselves


MENDING = Seen("page-load", latency_s=20.0, worth=35, waiting=30_000, draining_rows_s=100)


def test_job_that_works_off_its_backlog_is_left_alone() -> None:
    story = started(MENDING, FINE)
    assert all(story.see(MENDING, FINE).action is None for _ in range(20))


def test_job_that_would_take_too_long_with_its_backlog_is_helped() -> None:
    slow = replace(MENDING, draining_rows_s=10)
    assert helped(started(slow, FINE).see(slow, FINE)) == "page-load"


ENDLESS = replace(MENDING, waiting=1_000_000)
"""Recovers, but takes hours."""


def test_search_does_not_wait_hours_for_a_backlog_while_cores_are_short() -> None:
    story = started(ENDLESS, FINE)
    assert story.see(ENDLESS, FINE, hosts=CONGESTED).rule == "give up"
    assert all(story.see(ENDLESS, FINE, hosts=CONGESTED).action is None for _ in range(60))
    assert story.state.phase is SearchPhase.CONVERGED


def test_hopeless_job_makes_room_for_a_job_that_takes_hours_to_recover() -> None:
    story = started(ENDLESS, HOG)
    decision = story.see(ENDLESS, HOG, hosts=CONGESTED)
    assert decision.rule == "throttle"
    assert decision.action is not None and decision.action.job == "hog"


def test_job_that_is_fine_again_is_left_alone() -> None:
    over = replace(MISSING, newest_s=0.5)
    story = started(over, FINE)
    assert all(story.see(over, FINE).action is None for _ in range(20))


def test_others_are_helped_while_a_job_mends() -> None:
    seen = (MENDING, Seen("late", 2.0, worth=5))
    assert helped(started(*seen).see(*seen)) == "late"


def test_job_that_mends_after_its_reconfiguration_is_neither_skipped_nor_blamed() -> None:
    stuck = replace(MENDING, draining_rows_s=0)
    story = started(stuck, FINE)
    assert helped(story.see(stuck, FINE)) == "page-load"
    decision = story.wait(replace(MENDING, latency_s=30.0), FINE, hosts=CONGESTED)
    assert decision.verdicts and not decision.verdicts[0].harmful
    assert decision.action is None


def test_job_whose_backlog_stops_falling_is_helped_after_all() -> None:
    story = started(MENDING, FINE)
    for _ in range(5):
        story.see(MENDING, FINE)
    stuck = replace(MENDING, draining_rows_s=0)
    assert any(story.see(stuck, FINE).action is not None for _ in range(30))


# -- throttle


HOG = Seen("hog", latency_s=50.0, worth=10, busy=0.25, lanes=20)
SHORT = Seen("short", latency_s=2.0, worth=20, busy=0.2, lanes=4)


def test_hopeless_job_that_takes_the_cores_of_others_is_made_smaller() -> None:
    story = started(HOG, SHORT)
    decision = story.see(HOG, SHORT, hosts=CONGESTED)
    assert decision.rule == "throttle"
    assert decision.action is not None and decision.action.kind is ActionKind.THROTTLE
    assert decision.action.changes["hog"].lanes == {"in": 1, "work": 4}


@pytest.mark.parametrize(
    ("seen", "hosts", "objective"),
    [
        ((HOG, SHORT), IDLE, "total"),
        ((HOG,), CONGESTED, "total"),
        ((HOG, FINE), CONGESTED, "total"),
        ((replace(HOG, latency_s=5.0), SHORT), CONGESTED, "total"),
        ((HOG, SHORT), CONGESTED, "lowest"),
    ],
    ids=["cores are free", "it is alone", "others are fine", "it is not hopeless", "the lowest counts"],
)
def test_nobody_is_throttled_when(seen: tuple[Seen, ...], hosts: tuple, objective: str) -> None:
    story = started(*seen, settings=settings_from({"objective": objective}))
    assert story.see(*seen, hosts=hosts).rule == "give up"


def test_throttling_that_helped_others_is_kept() -> None:
    story = started(HOG, SHORT)
    story.see(HOG, SHORT, hosts=CONGESTED)
    decision = story.wait(HOG, replace(SHORT, latency_s=1.2), hosts=CONGESTED)
    assert decision.rule == "give up"
    assert story.lanes("hog") == 4


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((), id="no idle lanes"),
        pytest.param((FINE,), id="idle lanes elsewhere"),
    ],
)
def test_throttling_that_helped_nobody_is_taken_back(others: tuple[Seen, ...]) -> None:
    story = started(HOG, SHORT, *others)
    story.see(HOG, SHORT, *others, hosts=CONGESTED)
    for _ in range(60):
        story.see(HOG, SHORT, *others)
    assert story.state.phase is SearchPhase.CONVERGED
    assert story.lanes("hog") == 20


def test_throttling_is_kept_while_cores_are_still_short() -> None:
    story = started(HOG, SHORT)
    story.see(HOG, SHORT, hosts=CONGESTED)
    decision = story.wait(HOG, SHORT, hosts=CONGESTED)
    assert decision.verdicts and not decision.verdicts[0].harmful
    assert story.lanes("hog") == 4


def test_job_without_an_epoch_that_ended_gets_no_lanes_and_loses_none() -> None:
    """At a cold start or during an outage nothing is known of the job: lanes would only make its next epoch dearer."""
    stalled = replace(HOG, epoch_s=1e6)
    story = started(stalled, FINE)
    for hosts in (IDLE, CONGESTED):
        decision = story.see(stalled, FINE, hosts=hosts)
        assert (decision.rule, decision.action) == ("catch up", None)


RECOVERING = Seen("recovering", latency_s=50.0, worth=10, busy=0.25, lanes=20, waiting=100_000, draining_rows_s=50)
FALLING = Seen("falling", latency_s=50.0, newest_s=45.0, worth=10, busy=0.25, lanes=20)


@pytest.mark.parametrize("recovering", [RECOVERING, FALLING], ids=["backlog falls", "latency falls"])
@pytest.mark.parametrize("crush", [1, 4])
def test_job_that_recovers_is_never_throttled(recovering: Seen, crush: int) -> None:
    hosts = tuple(replace(host, load=crush * 1.5 * host.cores) for host in IDLE)
    story = started(recovering, SHORT)
    for _ in range(60):
        story.see(recovering, SHORT, hosts=hosts)
    assert not [one for one in story.decisions if one.action and one.action.kind is ActionKind.THROTTLE]


def test_job_that_is_worth_more_than_all_that_want_its_cores_is_not_throttled() -> None:
    precious = replace(HOG, worth=100)
    assert started(precious, SHORT).see(precious, SHORT, hosts=CONGESTED).rule == "give up"


def test_least_worth_is_throttled_first_however_busy_the_others_are() -> None:
    poor, rich = replace(HOG, name="poor", worth=5, lanes=5), replace(HOG, worth=50)
    decision = started(rich, poor, replace(SHORT, worth=100)).see(
        rich, poor, replace(SHORT, worth=100), hosts=CONGESTED
    )
    assert decision.rule == "throttle"
    assert decision.action is not None and decision.action.job == "poor"
    assert "frees cores for short, hog" in decision.action.sentence


def test_busiest_of_equals_is_throttled_first() -> None:
    busier = replace(HOG, name="busier", busy=0.28)
    action = started(HOG, busier, SHORT).see(HOG, busier, SHORT, hosts=CONGESTED).action
    assert action is not None and action.job == "busier"


CRUSHED = tuple(replace(host, load=4 * host.cores) for host in CONGESTED)


HOPELESS_TOO = replace(MISSING, name="hopeless too", latency_s=50.0)


@pytest.mark.parametrize(("hosts", "rule"), [(CRUSHED, "make room"), (CONGESTED, "reconfigure")])
def test_room_is_made_before_anybody_is_helped_on_a_crushed_cluster(hosts: tuple[HostReading, ...], rule: str) -> None:
    assert started(MISSING, HOPELESS_TOO, FINE).see(MISSING, HOPELESS_TOO, FINE, hosts=hosts).rule == rule


def test_reduction_that_costs_a_job_its_intent_and_the_total_is_undone() -> None:
    story, decision = after_harm()
    assert decision.rule == "reduce"
    (verdict,) = story.wait(*(replace(seen, latency_s=9.0) for seen in SHRUNK), hosts=CONGESTED).verdicts
    assert verdict is not None and verdict.harmful


# -- relax, pace


UNHURRIED = Seen("unhurried", latency_s=0.4, intent_s=10.0, busy=0.2, source_busy=0.0, pace_s=0.5, epoch_s=0.2)


def test_job_with_time_to_spare_starts_epochs_less_often() -> None:
    story = started(UNHURRIED, FINE)
    decision = story.see(UNHURRIED, FINE)
    assert decision.rule == "relax"
    assert decision.action is not None and decision.action.kind is ActionKind.RELAX
    assert list(decision.action.changes) == ["unhurried"]
    assert story.given["unhurried"].pace_s == pytest.approx((0.7 * 10 - 0.1) / (0.5 + 0.2), abs=0.01)
    assert story.lanes("unhurried") == UNHURRIED.lanes


def test_all_jobs_with_time_to_spare_are_relaxed_at_once_and_only_once() -> None:
    seen = (UNHURRIED, replace(UNHURRIED, name="other", percentile=99))
    story = started(*seen)
    action = story.see(*seen).action
    assert action is not None and set(action.changes) == {"unhurried", "other"}
    slower = tuple(replace(one, latency_s=5.0) for one in seen)
    assert story.wait(*slower).rule == "hold"
    assert [story.see(*slower).rule for _ in range(3)] == ["hold", "hold", "converge"]


def test_nobody_is_relaxed_without_epochs() -> None:
    continuous = replace(UNHURRIED, pace_s=None, epoch_s=None)
    assert started(continuous).see(continuous).rule == "hold"


def test_job_that_misses_its_intent_is_not_relaxed() -> None:
    late = replace(UNHURRIED, latency_s=11.0)
    assert started(late).see(late).rule != "relax"


def test_epochs_start_more_often_before_lanes_are_added() -> None:
    slow = Seen("slow", latency_s=4.5, intent_s=2.0, busy=0.05, source_busy=0.0, pace_s=8.0, epoch_s=0.5)
    story = started(slow)
    assert helped(story.see(slow)) == "slow"
    assert story.given["slow"].pace_s == pytest.approx((0.7 * 2 - 0.1) / (0.5 + 0.05), abs=0.05)
    assert story.lanes("slow") == slow.lanes


def test_lanes_are_added_when_the_pace_is_not_the_problem() -> None:
    slow = Seen("slow", latency_s=4.5, intent_s=2.0, pace_s=0.0, epoch_s=3.0)
    story = started(slow)
    assert helped(story.see(slow)) == "slow"
    assert story.given["slow"].pace_s == 0
    assert story.lanes("slow") > slow.lanes


# -- state


def test_step_leaves_the_state_it_was_given_alone() -> None:
    story = started(MISSING, FINE)
    before, copy = story.state, msgspec.json.decode(msgspec.json.encode(story.state), type=State)
    story.see(MISSING, FINE)
    assert before == copy != story.state


@pytest.mark.parametrize("rounds", [0, 1, 4, 8, 20])
def test_state_survives_being_written_and_read(rounds: int) -> None:
    story, _ = after_harm()
    story.see(*SHRUNK, unread=["topk"])
    for _ in range(rounds):
        story.see(*SHRUNK, hosts=CONGESTED, after_s=60)
    again = msgspec.json.decode(msgspec.json.encode(story.state), type=State)
    assert again == story.state


def test_scheduler_that_reads_its_state_back_every_round_decides_alike() -> None:
    plain, restored = started(*CROWD), started(*CROWD)
    for number in range(60):
        seen, hosts = (CROWD, IDLE) if number % 20 < 8 else (SHRUNK, CONGESTED)
        left = plain.see(*seen, hosts=hosts)
        right = restored.see(*seen, hosts=hosts)
        restored.state = msgspec.json.decode(msgspec.json.encode(restored.state), type=State)
        assert dataclasses.asdict(left) == dataclasses.asdict(right)


# -- rounds that are not on the dot


@pytest.mark.parametrize("late_s", [-0.2, 0.005, 0.7])
def test_harm_is_seen_though_rounds_come_early_or_late(late_s: float) -> None:
    story = started(MISSING, FINE, HARMED)
    story.see(MISSING, FINE, HARMED)
    decisions = [
        story.see(MISSING, *SHRUNK[1:], hosts=CONGESTED, after_s=10 + late_s * (-1) ** number) for number in range(12)
    ]
    judged = [decision for decision in decisions if decision.verdicts]
    assert judged[0].verdicts and judged[0].verdicts[0].harmful
    assert judged[0].rule in ("reduce", "undo", "revert")


@pytest.mark.parametrize("after_s", [0.0, -10.0, -HOUR_S])
def test_clock_that_stands_still_or_goes_back_ends_no_round(after_s: float) -> None:
    story = started(MISSING, FINE)
    story.see(MISSING, FINE)
    story.see(MISSING, FINE, after_s=after_s)
    assert [story.see(MISSING, FINE) for _ in range(5)]


# -- prevent


NEAR = Seen("near", latency_s=0.95, busy=0.9)


def test_job_that_is_about_to_miss_its_intent_is_helped_before() -> None:
    decision = started(NEAR, FINE).see(NEAR, FINE)
    assert decision.rule == "prevent"
    assert decision.action is not None and decision.action.job == "near"
    assert "is close to 1 s" in decision.action.cause.text


def test_nobody_is_helped_before_the_need_when_cores_are_short() -> None:
    assert started(NEAR, FINE).see(NEAR, FINE, hosts=CONGESTED).rule == "hold"


def test_job_that_stays_near_its_intent_whatever_it_gets_is_left_alone() -> None:
    story = started(NEAR, FINE)
    story.see(NEAR, FINE)
    decision = story.wait(NEAR, FINE)
    assert decision.verdicts and decision.verdicts[0].plateaued
    assert all(story.see(NEAR, FINE).action is None for _ in range(20))


# -- actions that were not carried out


def test_action_that_was_not_carried_out_is_not_asked_for_again_for_five_minutes() -> None:
    story = started(MISSING, FINE)
    decision = story.see(MISSING, FINE)
    assert decision.action is not None
    declined_s = story.at_s
    story.state, story.given = withdrawn(story.state, decision.action, declined_s, story.settings), {}
    asked_s = next(story.at_s for _ in range(60) if story.see(MISSING, FINE).action is not None)
    assert asked_s - declined_s >= 300


def test_impossible_transition_carries_the_last_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Headgate(Settings())
    decided = [policy.decide(view(600.0 + 10 * number, MISSING)) for number in range(7)]
    monkeypatch.setattr(rules, "TRANSITIONS", ())
    with pytest.raises(InvalidTransitionError, match="no rule fits while") as error:
        policy.decide(view(700.0, MISSING))
    assert [line.partition(": ")[2] for line in error.value.story] == [one.cause for one in decided[-5:]]
