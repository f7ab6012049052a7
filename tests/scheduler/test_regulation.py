"""Jobs that regulate themselves beside jobs of the scheduler, and what a person can read about it afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.model import Action, Outcome
from headgate.explain import story
from headgate.journal import MemoryJournal
from headgate.loads import Steady
from headgate.scheduler.policies import Headgate
from headgate.scheduler.trials import SEARCH
from headgate.sim.engine import SimulatedEngine
from headgate.sim.run import engine_for
from headgate.sim.spec import Event, HostSpec, JobSpec, OperatorSpec, Scenario

SLOW = Event(0, "slow-lane", "words", 0.3, "work", 1)


def job(name: str, intent: Intent, rate: float = 3500.0, lanes: int = 4) -> JobSpec:
    operators = (
        OperatorSpec("in", cost_s=0.0002, lanes=2),
        OperatorSpec("work", ("in",), cost_s=0.001, lanes=lanes, slices=32),
    )
    return JobSpec(name, operators, intent, {"in": Steady(rate)})


WORDS = job("words", Intent(policy="provision"))
OTHER = job("other", Intent(latency="1s", worth=10), rate=3000.0, lanes=2)


def engine(*events: Event, jobs: tuple[JobSpec, ...] = (WORDS, OTHER)) -> SimulatedEngine:
    hosts = tuple(HostSpec(f"host-{number}", 8, 8) for number in (1, 2, 3))
    return engine_for(Scenario("two", "", "", "lanes", 3600.0, 0.0, hosts, jobs, tuple(events)), 1)


def driven(engine_: SimulatedEngine, until_s: float, journal: MemoryJournal, observe_only: bool = False) -> Headgate:
    settings = Settings()
    policy = Headgate(settings)
    Controller(engine_, policy, journal, settings, observe_only).run(engine_, until_s)
    return policy


def test_each_kind_of_job_gets_what_it_needs() -> None:
    journal = MemoryJournal()
    driven(engine(SLOW), 1200, journal)
    done = {(recorded.action.job, recorded.action.remedy) for recorded in journal.actions()}
    assert ("words", "move lanes") in done
    assert {recorded.action.owner for recorded in journal.actions("words")} == {"words"}
    assert {recorded.action.owner for recorded in journal.actions("other")} == {SEARCH}
    assert ("other", "scale up") in done


def test_job_that_regulates_itself_has_its_effect_beside_its_action() -> None:
    journal = MemoryJournal()
    driven(engine(SLOW), 1200, journal)
    (moved,) = [recorded for recorded in journal.actions("words") if recorded.action.remedy == "move lanes"]
    assert moved.effect is not None
    assert moved.effect.verdict.startswith("kept (work can process ")


def test_story_tells_the_symptoms_the_diagnosis_the_remedy_and_the_effect() -> None:
    journal = MemoryJournal()
    driven(engine(SLOW), 1200, journal)
    lines = [line.text for line in story(journal, "words")]
    at = next(place for place, text in enumerate(lines) if "moved its lanes off host-" in text)
    assert "times the backlog of the other lanes" in lines[at - 1]
    assert "lane 1 of work took" in lines[at] and "slow on host-" in lines[at]
    assert any(text.endswith("of the time).") and "Kept" in text for text in lines[at:])


def test_scheduler_is_not_kept_waiting_by_a_job_that_regulates_itself() -> None:
    """It has no utility of its own that could be missing, and its windows are longer."""
    journal = MemoryJournal()
    driven(engine(SLOW), 120, journal)
    assert [recorded.action.job for recorded in journal.actions()][:1] == ["other"]


def test_restarted_controller_goes_on_with_what_was_learnt() -> None:
    journal = MemoryJournal()
    engine_ = engine(SLOW)
    before = driven(engine_, 300, journal)
    assert "words" in before.state.trials.awaited
    after = Headgate(Settings())
    controller = Controller(engine_, after, journal, Settings())
    controller.resume(engine_.now_s())
    assert after.state.trials == before.state.trials
    controller.run(engine_, 1200)
    (moved,) = [recorded for recorded in journal.actions("words") if recorded.action.remedy == "move lanes"]
    assert moved.effect is not None
    assert moved.effect.score_before == before.state.trials.awaited["words"].total


def test_observed_only_proposes_the_same_remedy_and_blames_nobody() -> None:
    journal = MemoryJournal()
    policy = driven(engine(SLOW, jobs=(WORDS,)), 2400, journal, observe_only=True)
    assert {recorded.action.remedy for recorded in journal.actions()} == {"move lanes"}
    assert policy.state.trials.log == ()


class Stubborn:
    """An engine that cannot move lanes."""

    def __init__(self, engine_: SimulatedEngine) -> None:
        self._engine = engine_

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def apply(self, action: Action) -> Outcome:
        if any(change.avoided for change in action.changes.values()):
            return Outcome(False, "lanes cannot be moved")
        return self._engine.apply(action)


def test_engine_that_cannot_move_lanes_gets_another_remedy() -> None:
    journal = MemoryJournal()
    driven(Stubborn(engine(SLOW, jobs=(WORDS,))), 600, journal)  # type: ignore[arg-type]
    tried = [(recorded.action.remedy, recorded.applied) for recorded in journal.actions()]
    assert tried[:2] == [("move lanes", False), ("scale up", True)]


def test_job_may_begin_to_regulate_itself_while_it_runs() -> None:
    begin = Event(300, "intent", "other", intent=Intent(policy="provision"))
    engine_, journal = engine(begin, jobs=(dataclasses.replace(OTHER, intent=Intent(juice=0.01)),)), MemoryJournal()
    driven(engine_, 1500, journal)
    assert [recorded.action.remedy for recorded in journal.actions()] == ["scale up"]


@pytest.mark.parametrize("target", [2000.0, 3000.0])
def test_throughput_target_is_reached_from_one_lane_everywhere(target: float) -> None:
    operators = (OperatorSpec("in", cost_s=0.002), OperatorSpec("work", ("in",), cost_s=0.001))
    from headgate.sim.spec import Generated

    small = JobSpec("small", operators, Intent(policy=f"throughput:{target:g}/s"), {"in": Generated()})
    engine_, journal = engine(jobs=(small,)), MemoryJournal()
    driven(engine_, 3000, journal)
    last = list(journal.rounds("small"))[-1].jobs["small"]
    assert last.arrival_rows_s is not None and last.arrival_rows_s >= target


def test_job_that_regulates_itself_grows_in_small_steps_on_a_congested_cluster() -> None:
    """More tasks than slots: lanes that wait for a slot do not speed up the job."""
    settings, journal = Settings(), MemoryJournal()
    others = tuple(job(f"other-{number}", Intent(juice=0.1), rate=4000.0, lanes=6) for number in (1, 2))
    words = job("words", Intent(policy="provision"), rate=3500.0, lanes=1)
    hosts = (HostSpec("host-1", 4, 8, 4),)
    congested = engine_for(Scenario("full", "", "", "epochs", 3600.0, 0.0, hosts, (words, *others)), 1)
    Controller(congested, Headgate(settings), journal, settings).run(congested, 600)
    grown = [one.action.changes["words"].lanes["work"] for one in journal.actions("words")]
    assert grown and grown[0] <= settings.crowded_growth
