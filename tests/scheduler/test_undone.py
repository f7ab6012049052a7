"""Lane counts that were tried and undone are not tried again within the skip time of their job."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headgate.config import Settings
from headgate.core.model import ActionKind, HostReading
from headgate.scheduler.memory import State
from headgate.scheduler.undone import LaneHistory, ObservedLanes, follow_lanes
from tests.core.builders import CONGESTED, IDLE, Story, started
from tests.core.builders import Seen as Job

SKIP_S = 600.0
REVERT, RECONFIGURE, THROTTLE = ActionKind.REVERT, ActionKind.RECONFIGURE, ActionKind.THROTTLE


def after(*steps: tuple[int, ActionKind | None], rows_s: float = 1000.0) -> LaneHistory:
    """The history of an operator whose lanes were changed like this, every 10 s."""
    histories: dict[str, LaneHistory] = {}
    for number, (lanes, kind) in enumerate(steps):
        histories = follow_lanes(histories, ObservedLanes({"work": lanes}, rows_s, kind, SKIP_S), 10.0 * number, 0.2)
    return histories["work"]


def test_lanes_that_were_taken_and_given_again_are_too_few() -> None:
    history = after((4, None), (1, THROTTLE), (2, RECONFIGURE), (4, RECONFIGURE))
    assert [history.bars(lanes) for lanes in (1, 2, 8)] == [True, False, False]


def test_lanes_that_were_given_and_reverted_are_too_many() -> None:
    history = after((4, None), (8, RECONFIGURE), (4, REVERT))
    assert [history.bars(lanes) for lanes in (6, 8, 9, 2)] == [False, True, True, False]


def test_lanes_that_a_person_takes_back_are_too_many() -> None:
    assert after((4, None), (8, RECONFIGURE), (4, None)).bars(8)


@pytest.mark.parametrize("kind", [THROTTLE, ActionKind.REDUCE])
def test_lanes_that_were_taken_for_others_did_no_harm(kind: ActionKind) -> None:
    assert not after((4, None), (8, RECONFIGURE), (2, kind)).bars(8)


def test_steps_the_same_way_undo_nothing() -> None:
    assert after((2, None), (4, RECONFIGURE), (8, RECONFIGURE)).undone == ()


@pytest.mark.parametrize(
    ("at_s", "rows_s", "barred"),
    [(30.0, 1000.0, True), (30.0 + SKIP_S, 1000.0, False), (30.0, 1300.0, True), (30.0, 700.0, False)],
    ids=["at once", "after the skip time", "input grew", "input shrank"],
)
def test_too_few_lanes_may_be_tried_again_later_or_with_less_input(at_s: float, rows_s: float, barred: bool) -> None:
    history = after((4, None), (1, THROTTLE), (4, REVERT))
    later = follow_lanes({"work": history}, ObservedLanes({"work": 4}, rows_s, None, SKIP_S), at_s, 0.2)
    assert later["work"].bars(1) is barred


def test_change_that_is_taken_back_after_its_skip_time_was_not_undone() -> None:
    history = after((4, None), (1, THROTTLE))
    later = follow_lanes({"work": history}, ObservedLanes({"work": 4}, 1000.0, RECONFIGURE, SKIP_S), 20.0 + SKIP_S, 0.2)
    assert later["work"].undone == ()


HOG = Job("hog", latency_s=50.0, worth=10, busy=0.25, lanes=20)
SHORT = Job("short", latency_s=2.0, worth=20, busy=0.2, lanes=4)


def throttled(story: Story) -> int:
    return sum(one.action is not None and one.action.kind is THROTTLE for one in story.decisions)


def seen_for(story: Story, seconds: float, hosts: tuple[HostReading, ...]) -> None:
    for _ in range(round(seconds / 10)):
        story.see(HOG, SHORT, hosts=hosts)


def test_throttling_that_was_undone_is_not_tried_again_though_history_is_forgotten() -> None:
    story = started(HOG, SHORT)
    seen_for(story, 10, CONGESTED)
    seen_for(story, 300, IDLE)
    assert throttled(story) == 1 and story.lanes("hog") == 20
    for worth in (21, 22, 23):
        other = replace(SHORT, worth=worth)
        for _ in range(30):
            story.see(HOG, other, hosts=CONGESTED)
    assert throttled(story) == 1
    assert story.lanes("hog") == 20


LATE = Job("late", latency_s=2.0, worth=35)
VICTIM = Job("victim", latency_s=0.8, worth=20)


def test_step_that_does_harm_is_taken_back_to_lanes_that_it_had_undone() -> None:
    story = started(LATE, VICTIM)
    for rows_s in (1000.0, 1300.0):
        late = replace(LATE, rows_s=rows_s)
        assert story.until("reconfigure", late, VICTIM).action is not None
        assert story.lanes("late") > LATE.lanes
        (verdict,) = story.wait(late, replace(VICTIM, latency_s=4.0), hosts=CONGESTED).verdicts
        assert verdict is not None and verdict.harmful
        assert story.lanes("late") == LATE.lanes
        story.wait(late, VICTIM)


def test_job_that_had_its_turn_after_its_skip_time_may_be_throttled_again() -> None:
    busy = replace(HOG, busy=0.9)
    story = started(HOG, SHORT)
    seen_for(story, 10, CONGESTED)
    assert throttled(story) == 1
    story.wait(HOG, replace(SHORT, latency_s=1.2), hosts=CONGESTED)
    few = story.lanes("hog")
    for _ in range(400):
        story.see(busy, replace(SHORT, latency_s=0.5), hosts=CONGESTED)
    assert story.lanes("hog") > few
    seen_for(story, 600, CONGESTED)
    assert throttled(story) == 2
    assert story.lanes("hog") <= few


def test_undone_counts_survive_being_written_and_read() -> None:
    story = started(HOG, SHORT)
    seen_for(story, 10, CONGESTED)
    seen_for(story, 300, IDLE)
    assert story.state.lanes["hog"]["work"].undone[0].until_s > story.at_s + Settings().skip_s / 2
    assert msgspec.json.decode(msgspec.json.encode(story.state), type=State) == story.state
