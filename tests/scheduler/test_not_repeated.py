"""An action that was not carried out is not decided again within `retry_s`, whichever rule decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from headgate.core.model import HostReading, JobAllocation
from headgate.scheduler.events import withdrawn
from headgate.scheduler.memory import Decision, State
from headgate.scheduler.rules import TRANSITIONS
from tests.core.builders import CONGESTED, IDLE, Seen, Story, started

WITHOUT_ACTION = {
    "regulated", "no data", "after outage", "new workload", "settle", "warm up", "overtaken", "converge", "hold", "catch up", "refused",
    "give up", "fell", "rest",
}  # fmt: skip
OF_POLICIES = {"remedy"}
"""The policy of a self-regulating job is not asked for `retry_s`: tests/scheduler/test_trials.py."""

MISSING = Seen("page-load", latency_s=2.0, worth=35)
FINE = Seen("topk", latency_s=0.5, worth=10, busy=0.1, lanes=10)
HARMED = Seen("harmed", latency_s=0.8, worth=20)
HURT = replace(HARMED, latency_s=2.0)
HOG = Seen("hog", latency_s=50.0, worth=10, busy=0.25, lanes=20)
SHORT_OF_CORES = Seen("short", latency_s=2.0, worth=20, busy=0.2, lanes=4)
UNHURRIED = Seen("unhurried", latency_s=0.4, intent_s=10.0, busy=0.2, source_busy=0.0, pace_s=0.5, epoch_s=0.2)
URGENT = Seen("urgent", latency_s=0.4, worth=50, share=1, raised_share=4)
FIRST, SECOND = Seen("first", 2.0, worth=35), Seen("second", 0.8)
THIRD = Seen("third", 0.8, busy=0.1)
CRUSHED = tuple(replace(host, load=4 * host.cores) for host in CONGESTED)
FREE_SLOTS = (HostReading("host-1", 8, 3.0, slots=4, running=2.0, waiting=0.0),)

Shown = tuple[tuple[Seen, ...], tuple[HostReading, ...]]


@dataclass(frozen=True)
class Scene:
    """What the scheduler sees before the rule acts, step by step, and what it sees when the rule acts."""

    last: Shown
    first: tuple[Shown, ...] = ()
    """Each is seen until an action is decided or judged."""


CROWD: Shown = ((MISSING, FINE, HARMED), IDLE)
IMPROVED = replace(FIRST, latency_s=0.8)
FALLEN: Shown = ((IMPROVED, replace(SECOND, latency_s=2.0), replace(THIRD, latency_s=4.0)), IDLE)
SCENES = {
    "reduce": Scene(((MISSING, FINE, HURT), CONGESTED), (CROWD,)),
    "undo": Scene(((MISSING, replace(FINE, lanes=1), HURT), CONGESTED), (((MISSING, replace(FINE, lanes=1), HARMED), IDLE),)),
    "revert": Scene(((replace(MISSING, latency_s=3.0), FINE), IDLE), (((MISSING, FINE), IDLE),)),
    "relax": Scene(((UNHURRIED, FINE), IDLE)),
    "return shares": Scene(((URGENT, FINE), FREE_SLOTS)),
    "prevent": Scene(((Seen("near", latency_s=0.95), FINE), IDLE)),
    "make room": Scene(((MISSING, replace(MISSING, name="hopeless", latency_s=50.0), FINE), CRUSHED)),
    "reconfigure": Scene(((MISSING, FINE), IDLE)),
    "throttle": Scene(((HOG, SHORT_OF_CORES), CONGESTED)),
    "give back": Scene(FALLEN, (((FIRST, SECOND, THIRD), IDLE), ((IMPROVED, SECOND, THIRD), IDLE), FALLEN)),
}  # fmt: skip


@dataclass(frozen=True)
class Acted:
    """A story up to the action of a rule, with what was true before that round."""

    story: Story
    decision: Decision
    before: State
    given: Mapping[str, JobAllocation]


def played(rule: str) -> Acted:
    scene = SCENES[rule]
    story = started(*(*scene.first, scene.last)[0][0])
    for shown in scene.first:
        next_event(story, shown)
    acted = next_event(story, scene.last)
    assert acted.decision.rule == rule, [decision.rule for decision in story.decisions]
    return acted


def next_event(story: Story, shown: Shown) -> Acted:
    """Rounds until an action is decided or judged."""
    for _ in range(60):
        before, given = story.state, dict(story.given)
        decision = story.see(*shown[0], hosts=shown[1])
        if decision.action is not None or decision.verdicts:
            return Acted(story, decision, before, given)
    raise AssertionError(f"no rule acted: {[decision.rule for decision in story.decisions]}")


def test_each_rule_either_has_a_scene_here_or_decides_no_action() -> None:
    assert {rule.name for rule in TRANSITIONS} == {*SCENES, *WITHOUT_ACTION, *OF_POLICIES}


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "only observed"])
@pytest.mark.parametrize("rule", SCENES)
def test_no_change_of_the_action_is_decided_again_before_the_retry_time(rule: str, refused: bool) -> None:
    acted, shown = played(rule), SCENES[rule].last
    story, action = acted.story, acted.decision.action
    assert action is not None
    after = withdrawn(story.state, action, story.at_s, story.settings, refused)
    end_s = story.at_s + story.settings.retry_s
    again = replace(acted.before, refused=after.refused)  # the same situation, but for the refusal
    for state in (after, again):
        story.state, story.given, story.at_s = state, dict(acted.given), end_s - story.settings.retry_s
        while story.at_s + 10 < end_s:
            later = story.see(*shown[0], hosts=shown[1]).action
            assert later is None or not [
                name for name in later.changes if later.changes[name] == action.changes.get(name)
            ]
