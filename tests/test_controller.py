"""The round: what is written down, what is done, and what a restart finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config import Settings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, Job, JobAllocation, Outcome, SearchPhase
from headgate.journal import MemoryJournal, SqliteJournal
from headgate.loads import Steady, Steps
from headgate.ports import Journal
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import Headgate, Static, policy_named
from headgate.sim.engine import SimulatedEngine
from headgate.sim.run import engine_for
from headgate.sim.spec import Event, HostSpec, JobSpec, OperatorSpec, Scenario
from tests.core.builders import PLAIN, Cluster, Response

SETTINGS = Settings()


def cluster(busy: float = 0.9) -> Cluster:
    """Two jobs that miss their intents until they have four lanes."""
    jobs = [Job(name, PLAIN, Intent(latency=1.0, worth=worth)) for name, worth in (("page-load", 35), ("topk", 10))]
    return Cluster(jobs, lambda _, has: Response(4.0 / has.lanes["work"], busy))


class Drifting(Cluster):
    """A job whose latency is never quite the same twice."""

    def __init__(self) -> None:
        super().__init__([Job("page-load", PLAIN, Intent(latency=1.0, worth=35))], self.drift)

    def drift(self, name: str, has: JobAllocation) -> Response:
        return Response(4.0 / has.lanes["work"] + self.at_s * 1e-4, 0.9)


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    opened = MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "run.db")
    with opened:
        yield opened


def controller(engine: Cluster | SimulatedEngine, journal: Journal | None, observe_only: bool = False) -> Controller:
    return Controller(engine, Headgate(SETTINGS), journal, SETTINGS, observe_only)


def turn(controlled: Controller, rounds: int = 1) -> list[Decision]:
    decisions = []
    for _ in range(rounds):
        engine = controlled.engine
        assert isinstance(engine, Cluster | SimulatedEngine)
        engine.sleep_until(engine.now_s() + SETTINGS.round_s)
        decisions.append(controlled.round()[1])
    return decisions


def until_action(controlled: Controller) -> Action:
    for _ in range(100):
        if (action := turn(controlled)[0].action) is not None:
            return action
    raise AssertionError("it never acted")


# -- rounds


def test_jobs_are_helped_until_they_meet_their_intents(journal: Journal) -> None:
    engine = cluster()
    controlled = controller(engine, journal)
    turn(controlled, 60)
    assert all(allocation.lanes["work"] >= 4 for allocation in engine.allocation.values())
    assert controlled.policy.phase() == SearchPhase.CONVERGED.value


def test_runs_a_round_at_each_of_its_times() -> None:
    engine, journal = cluster(), MemoryJournal()
    controller(engine, journal).run(engine, 105)
    assert [summary.at_s for summary in journal.rounds()] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_works_without_a_journal() -> None:
    engine = cluster()
    turn(controller(engine, None), 60)
    assert engine.applied


def test_summary_of_a_round_shows_every_job_as_it_was_judged(journal: Journal) -> None:
    turn(controller(cluster(), journal), 4)
    *_, last = journal.rounds()
    assert (last.at_s, last.phase, last.max_score) == (40, "not converged", 45)
    assert last.score == pytest.approx(45 / 4)
    job = last.jobs["page-load"]
    assert (job.utility, job.latency_s, job.juice) == pytest.approx((35 / 4, 4.0, 1.0))
    assert (job.worth, job.met, job.lanes, job.pace_s) == (35, False, {"in": 1, "work": 1}, None)
    assert (job.latency_intent_s, job.juice_intent) == (1.0, None)
    assert job.arrival_rows_s == pytest.approx(1000)


def test_summary_of_a_round_without_data_says_so(journal: Journal) -> None:
    turn(controller(cluster(), journal), 1)
    (only,) = journal.rounds()
    assert only.jobs["topk"].utility is None
    assert only.score == 0


def test_action_is_written_down_before_it_is_carried_out(journal: Journal) -> None:
    engine = cluster()
    apply, seen = engine.apply, []

    def watched(action: Action) -> Outcome:
        seen.append([(recorded.action, recorded.outcome) for recorded in journal.actions()])
        return apply(action)

    engine.apply = watched  # type: ignore[method-assign]
    action = until_action(controller(engine, journal))
    assert seen == [[(action, None)]]
    assert [recorded.outcome for recorded in journal.actions()] == [Outcome(True)]


def test_judged_action_gets_its_effect(journal: Journal) -> None:
    controlled = controller(cluster(), journal)
    until_action(controlled)
    while not turn(controlled)[0].verdicts:
        pass
    first = journal.actions()[0]
    assert first.effect is not None
    assert first.effect.at_s > first.at_s
    assert first.effect.score_before == pytest.approx(45 / 4)
    assert first.effect.score_after == pytest.approx(35 / 2 + 10 / 4)
    assert (first.effect.utility_before, first.effect.utility_after) == pytest.approx((35 / 4, 35 / 2))
    assert first.effect.verdict == "kept"


def test_every_action_of_a_run_is_judged_once_it_has_converged(journal: Journal) -> None:
    controlled = controller(cluster(), journal)
    turn(controlled, 100)
    assert controlled.policy.phase() == SearchPhase.CONVERGED.value
    actions = journal.actions()
    assert len(actions) > 2
    assert all(recorded.effect is not None for recorded in actions)


def test_job_that_comes_while_the_others_are_read_waits_for_the_next_round() -> None:
    engine = cluster()
    come = {"new": Job("new", PLAIN, Intent(latency=1.0))}
    engine.jobs = lambda: engine.running | come  # type: ignore[method-assign]
    controlled = controller(engine, None)
    engine.sleep_until(10)
    assert set(controlled.round()[0].jobs) == {"page-load", "topk"}


def test_threshold_policy_gives_no_operator_more_lanes_than_allowed() -> None:
    chosen, engine = settings_from({"max_lanes": 8}), cluster()
    controlled = Controller(engine, policy_named("threshold", chosen), None, chosen)
    turn(controlled, 100)
    assert engine.allocation["page-load"].lanes["work"] == 8


# -- an engine that refuses


def test_refused_action_is_written_down_as_failed_and_the_loop_goes_on(journal: Journal) -> None:
    engine = cluster()
    engine.refusing = True
    controlled = controller(engine, journal)
    until_action(controlled)
    (failed,) = journal.actions()
    assert failed.outcome == Outcome(False, "no slots")
    engine.refusing = False
    turn(controlled, 60)
    assert controlled.policy.phase() == SearchPhase.CONVERGED.value
    assert journal.actions()[1].applied
    assert journal.actions()[0].effect is None


@pytest.mark.parametrize("policy", ["headgate", "threshold"])
def test_refused_action_is_tried_again_only_after_the_retry_time(policy: str) -> None:
    engine = cluster()
    controlled, tried_s = Controller(engine, policy_named(policy, SETTINGS), None, SETTINGS), []
    engine.refusing = True
    for _ in range(80):
        if turn(controlled)[0].action is not None:
            tried_s.append(engine.now_s())
    by_job = {"headgate": 2, "threshold": 1}[policy]  # headgate helps one job at a time
    assert len(tried_s) > 2
    assert all(later - earlier >= SETTINGS.retry_s for earlier, later in zip(tried_s, tried_s[by_job:], strict=False))


def test_refused_action_is_tried_again_at_once_when_hosts_join() -> None:
    engine = cluster()
    controlled = controller(engine, None)
    engine.refusing = True
    refused = until_action(controlled)
    controlled.policy.cluster_changed()
    engine.refusing = False
    assert until_action(controlled).changes == refused.changes
    assert engine.now_s() < SETTINGS.retry_s


def test_nothing_is_awaited_after_a_refused_action() -> None:
    engine = cluster()
    engine.refusing = True
    controlled = controller(engine, None)
    until_action(controlled)
    assert turn(controlled)[0].rule != "settle"


def test_nothing_is_awaited_after_a_refused_action_and_a_restart(journal: Journal) -> None:
    engine = cluster()
    engine.refusing = True
    until_action(controller(engine, journal))
    again = controller(engine, journal)
    again.resume(again.engine.observe().at_s)
    assert turn(again)[0].rule != "settle"


# -- observe only


def test_observer_decides_and_writes_down_but_touches_nothing(journal: Journal) -> None:
    engine = cluster()
    controlled = controller(engine, journal, observe_only=True)
    action = until_action(controlled)
    assert engine.applied == []
    (proposed,) = journal.actions()
    assert proposed.action == action
    assert proposed.outcome is not None and not proposed.outcome.applied
    assert "observed" in proposed.outcome.detail


def test_observer_writes_a_proposal_down_only_once(journal: Journal) -> None:
    controlled = controller(cluster(), journal, observe_only=True)
    decisions = turn(controlled, 30)
    proposed = [decision.action for decision in decisions if decision.action is not None]
    assert proposed and len(journal.actions()) == len({repr(action.changes) for action in proposed})
    assert sum(1 for _ in journal.rounds()) == 30


def test_observer_writes_a_proposal_down_only_once_when_only_its_figures_differ(journal: Journal) -> None:
    turn(controller(Drifting(), journal, observe_only=True), 30)
    assert len(journal.actions()) == 1


def test_observer_writes_down_another_proposal(journal: Journal) -> None:
    engine = cluster()
    controlled = controller(engine, journal, observe_only=True)
    until_action(controlled)
    engine.running["topk"] = dataclasses.replace(engine.running["topk"], intent=Intent(latency=1.0, worth=90))
    turn(controlled, 10)
    assert [recorded.action.job for recorded in journal.actions()] == ["page-load", "topk"]


class Hears(Static):
    """A policy that notes whether its actions were refused."""

    def __init__(self) -> None:
        self.refused: list[bool] = []

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        self.refused.append(refused)


@pytest.mark.parametrize("observed", [True, False])
def test_proposal_of_an_observer_is_no_refusal_after_a_restart(journal: Journal, observed: bool) -> None:
    engine, policy = cluster(), Hears()
    turn(controller(engine, journal))
    action_id = journal.intend(engine.now_s(), Action(ActionKind.RECONFIGURE, "topk", {}, Cause("late")))
    journal.outcome(action_id, Outcome(False, "whatever the text", observed))
    Controller(engine, policy, journal, SETTINGS).resume(engine.now_s())
    assert policy.refused == [not observed]


# -- restarts


class Crash(BaseException):
    """The process is gone."""


def crash_before_applying(journal: Journal) -> Cluster:
    engine = cluster()
    apply = engine.apply

    def crashing(action: Action) -> Outcome:
        raise Crash

    engine.apply = crashing  # type: ignore[method-assign]
    with pytest.raises(Crash):
        until_action(controller(engine, journal))
    engine.apply = apply  # type: ignore[method-assign]
    return engine


def test_resuming_from_an_empty_journal_starts_from_nothing(journal: Journal) -> None:
    assert controller(cluster(), journal).resume(50) is None


def test_resuming_without_a_journal_starts_from_nothing() -> None:
    assert controller(cluster(), None).resume(50) is None


def test_resuming_tells_when_the_last_round_was(journal: Journal) -> None:
    turn(controller(cluster(), journal), 5)
    assert controller(cluster(), journal).resume(50) == 50


def test_controller_whose_clock_was_set_back_starts_afresh(journal: Journal) -> None:
    first = controller(cluster(), journal)
    first.run(first.engine, 100)  # type: ignore[arg-type]
    again = controller(cluster(), journal)
    assert again.resume(50) == 100
    assert again.windows.samples == {}


def test_resuming_leaves_the_windows_to_the_caller_because_a_new_engine_counts_from_zero(journal: Journal) -> None:
    first = controller(cluster(), journal)
    turn(first, 5)
    again = controller(cluster(), journal)
    again.resume(first.engine.observe().at_s)
    assert again.windows.samples == {}


def test_action_that_was_written_down_but_not_done_is_carried_out_once(journal: Journal) -> None:
    engine = crash_before_applying(journal)
    assert engine.applied == []
    again = controller(engine, journal)
    again.resume(again.engine.observe().at_s)
    (recorded,) = journal.actions()
    assert engine.applied == [recorded.action]
    assert recorded.outcome == Outcome(True)
    controller(engine, journal).resume(engine.now_s())
    assert len(engine.applied) == 1


def test_actions_about_hosts_are_left_to_the_landlord(journal: Journal) -> None:
    engine = cluster()
    turn(controller(engine, journal))
    unfinished, refused = (
        Action(ActionKind.RELEASE, None, {}, Cause("not needed"), host=f"leased-{number}") for number in (1, 2)
    )
    journal.intend(engine.now_s(), unfinished)
    journal.outcome(journal.intend(engine.now_s(), refused), Outcome(False, "no"))
    again = controller(engine, journal)
    again.resume(engine.now_s())
    assert engine.applied == [] and again._proposed is None and again._judged_next == {}
    assert [one.outcome for one in journal.actions()] == [None, Outcome(False, "no")]


def test_action_that_was_done_but_not_confirmed_is_confirmed(journal: Journal) -> None:
    engine = cluster()
    outcome = journal.outcome

    def crashing(action_id: int, outcome: Outcome) -> None:
        raise Crash

    journal.outcome = crashing  # type: ignore[method-assign]
    with pytest.raises(Crash):
        until_action(controller(engine, journal))
    journal.outcome = outcome  # type: ignore[method-assign]
    version = dict(engine.version)
    controller(engine, journal).resume(engine.now_s())
    assert engine.version == version
    assert journal.actions()[0].outcome == Outcome(True)


def test_unfinished_action_that_is_refused_is_not_awaited(journal: Journal) -> None:
    engine = crash_before_applying(journal)
    engine.refusing = True
    again = controller(engine, journal)
    again.resume(again.engine.observe().at_s)
    assert journal.actions()[0].outcome == Outcome(False, "no slots")
    assert turn(again)[0].rule != "settle"


def test_action_that_was_carried_out_on_return_gets_its_effect(journal: Journal) -> None:
    engine = crash_before_applying(journal)
    again = controller(engine, journal)
    again.resume(again.engine.observe().at_s)
    turn(again, 10)
    effect = journal.actions()[0].effect
    assert effect is not None
    assert (effect.utility_before, effect.utility_after) == pytest.approx((35 / 4, 35 / 2))


def test_action_that_was_carried_out_on_return_settles_before_it_is_judged(journal: Journal) -> None:
    engine = crash_before_applying(journal)
    engine.sleep_until(engine.now_s() + 600)
    again = controller(engine, journal)
    again.resume(again.engine.observe().at_s)
    back_s = engine.now_s()
    while not turn(again)[0].verdicts:
        pass
    assert engine.now_s() - back_s >= SETTINGS.settle_min_s


def test_action_applied_before_a_restart_gets_its_effect_after_it(journal: Journal) -> None:
    engine = cluster()
    until_action(controller(engine, journal))
    again = controller(engine, journal)
    again.resume(again.engine.observe().at_s)
    turn(again, 10)
    assert journal.actions()[0].effect is not None


# -- a restart in every round changes nothing


def scenario(engine: str) -> Scenario:
    def job(name: str, rows_s: float, intent: Intent, cost_s: float) -> JobSpec:
        operators = (
            OperatorSpec("in"),
            OperatorSpec("parse", ("in",), cost_s=cost_s, wait_s=cost_s, lanes=1),
            OperatorSpec("store", ("parse",), cost_s=cost_s / 4, lanes=2),
        )
        loads = {"in": Steps([(0, rows_s), (900, 1.6 * rows_s)])}
        return JobSpec(name, operators, intent, loads, pace_s=2.0)

    jobs = (
        job("page-load", 400, Intent(latency="1s", worth=35), 0.002),
        job("alerts", 300, Intent(latency="3s", percentile=95, juice=0.95, worth=20), 0.003),
        job("topk", 200, Intent(juice=0.9, worth=5), 0.004),
    )
    late = JobSpec("late", jobs[0].operators, Intent(latency="2s", worth=10), {"in": Steady(200)}, pace_s=1.0)
    events = (Event(300, "add", job=late), Event(1500, "fail-link"), Event(1560, "restore-link"))
    hosts = tuple(HostSpec(f"host-{number}", 2, 8) for number in (1, 2))
    return Scenario("restart", "", "", engine, 2700.0, 0.0, hosts, jobs, events)


Journey = list[tuple[str, bytes, dict[str, JobAllocation]]]


def journey(engine: SimulatedEngine, journal: Journal, settings: Settings, policy: str, restart: bool) -> Journey:
    def fresh() -> Controller:
        return Controller(engine, policy_named(policy, settings), journal, settings)

    controlled, log = fresh(), []
    for _ in range(270):
        engine.sleep_until(engine.now_s() + settings.round_s)
        if restart:
            windows, controlled = controlled.windows, fresh()
            controlled.resume(engine.now_s())
            controlled.windows = windows
        _, decision = controlled.round()
        log.append((decision.cause, controlled.policy.dump(), dict(engine.observe().allocation)))
    return log


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("continuous", "headgate"),
        ("epochs", "headgate"),
        pytest.param("epochs", "threshold", marks=pytest.mark.slow),
    ],
)
def test_controller_that_is_restarted_every_round_does_the_same(kind: str, policy: str, tmp_path: Path) -> None:
    chosen = settings_from({"skip_s": 600})
    steady, restarted = MemoryJournal(), SqliteJournal(tmp_path / "run.db")
    with restarted:
        expected = journey(engine_for(scenario(kind), 3), steady, chosen, policy, restart=False)
        found = journey(engine_for(scenario(kind), 3), restarted, chosen, policy, restart=True)
        for number, (left, right) in enumerate(zip(expected, found, strict=True)):
            assert left == right, f"round {number}"
        assert len(steady.actions()) > 2
        assert steady.actions() == restarted.actions()
        assert list(steady.rounds()) == list(restarted.rounds())
