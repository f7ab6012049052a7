"""Trials: an action whose effect is awaited, by the search or by a job that regulates itself."""

from __future__ import annotations

import dataclasses

import msgspec

from headgate.config import Settings
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.health.records import DiagnosisKind, LogEntry
from headgate.scheduler import events
from headgate.scheduler.memory import State
from headgate.scheduler.trials import SEARCH, Trial, Trials

SETTINGS = Settings()
PAUSE_S = SETTINGS.health_pause_s


def entry(job: str, resolver: str = "move lanes") -> LogEntry:
    return LogEntry(100.0, job, "provision", DiagnosisKind.SLOW_LANES, "work", resolver)


def trial(job: str, settled_s: float | None = None, resolver: str = "move lanes") -> Trial:
    utilities = {job: 1.0}
    return Trial(
        ActionKind.RECONFIGURE, job, (job,), 100.0, 1.0, 1.0, utilities, settled_s=settled_s, entry=entry(job, resolver)
    )


def action(job: str, owner: str = SEARCH) -> Action:
    return Action(ActionKind.RECONFIGURE, job, {job: JobAllocation({"work": 2})}, Cause("slow"), owner=owner)


BOTH = Trials().begin(SEARCH, trial("shop")).begin("words", trial("words", 100.0 + PAUSE_S))
"""The search awaits the effect on one job, and another job that of its own remedy."""


def test_job_that_regulates_itself_is_measured_only_after_a_pause() -> None:
    assert BOTH.since_s == {"words": 100.0 + PAUSE_S}


def test_action_carried_out_late_delays_only_its_own_trial() -> None:
    after = events.carried_out(State(trials=BOTH), action("words", "words"), 500.0, SETTINGS).trials
    assert after.since_s == {"words": 500.0 + PAUSE_S}
    assert after.search == BOTH.search
    after = events.carried_out(State(trials=BOTH), action("shop"), 500.0, SETTINGS).trials
    assert after.search is not None and after.search.at_s == 500.0
    assert after.awaited["words"] == BOTH.awaited["words"] and after.since_s == BOTH.since_s


def test_remedy_that_the_engine_refused_counts_as_useless() -> None:
    for job, owner in (("words", "words"), ("shop", SEARCH)):
        after = events.withdrawn(State(trials=BOTH), action(job, owner), 200.0, SETTINGS).trials
        assert owner not in after.awaited and len(after.awaited) == 1
        assert [(one.job, one.useful) for one in after.log] == [(job, False)]


def test_remedy_that_was_only_observed_blames_no_resolver_and_waits() -> None:
    after = events.withdrawn(State(trials=BOTH), action("words", "words"), 200.0, SETTINGS, refused=False)
    assert after.trials.log == () and "words" not in after.trials.awaited
    assert after.trials.since_s["words"] == 200.0 + SETTINGS.retry_s
    assert not after.refused


def test_lanes_that_the_search_was_refused_are_not_held_against_lanes() -> None:
    state = State(trials=Trials().begin(SEARCH, trial("shop", resolver="scale up")))
    after = events.withdrawn(state, action("shop"), 200.0, SETTINGS)
    assert after.trials.log == () and after.trials.search is None
    assert after.refused["shop"].until_s == 200.0 + SETTINGS.retry_s


def test_what_is_awaited_can_be_written_down_and_read_back() -> None:
    trials = BOTH.remember(entry("words"), 100.0, SETTINGS)
    assert msgspec.json.decode(msgspec.json.encode(trials), type=Trials) == trials


def test_jobs_that_are_gone_are_forgotten_but_for_the_log() -> None:
    kept = BOTH.remember(entry("words"), 100.0, SETTINGS).forget({"shop": None})
    assert list(kept.awaited) == [SEARCH] and kept.since_s == {}
    assert [one.job for one in kept.log] == ["words"]


def test_window_of_a_settled_trial_starts_where_measurements_stood_still() -> None:
    after = BOTH.settle(SEARCH, 160.0, {"shop": 130.0})
    assert after.since_s["shop"] == 130.0
    assert after.search == dataclasses.replace(trial("shop"), settled_s=160.0)
