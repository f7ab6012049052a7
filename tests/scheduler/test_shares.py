"""With slots short, an urgent job's share rises before its lanes; a share that was undone is not tried again within its skip time."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headgate.config.settings import settings_from
from headgate.core.model import MOST_SHARE, ActionKind, HostReading
from headgate.scheduler.memory import State
from tests.core.builders import IDLE, Story, started
from tests.core.builders import Seen as Job

SHORT = (HostReading("host-1", 8, 3.0, slots=4, running=4.0, waiting=3.0),)
FREE = (HostReading("host-1", 8, 3.0, slots=4, running=2.0, waiting=0.0),)
FREE_CORES = (HostReading("host-1", 8, 3.0, slots=8, running=5.0, waiting=2.0),)
URGENT = Job("urgent", latency_s=2.0, worth=50, share=1)
PATIENT = Job("patient", latency_s=0.5, worth=10, share=1)
MET = replace(URGENT, latency_s=0.4)
HURT = replace(PATIENT, latency_s=4.0)


def shares(story: Story) -> list[tuple[str, int | None]]:
    """Each change of a share that was decided."""
    had: dict[str, int | None] = {}
    changes = []
    for decision in story.decisions:
        for name, given in (decision.action.changes if decision.action is not None else {}).items():
            if given.share != had.get(name):
                had[name] = given.share
                changes.append((name, given.share))
    return changes


def test_share_of_an_urgent_job_rises_before_its_lanes_while_slots_are_short() -> None:
    story = started(URGENT, PATIENT)
    action = story.see(URGENT, PATIENT, hosts=SHORT).action
    assert action is not None and action.kind is ActionKind.RECONFIGURE
    assert action.changes == {"urgent": replace(URGENT.allocation, share=4)}
    assert action.sentence == (
        "share 1 → 4: latency 2 s misses 1 s; slots are short: tasks wait for a slot for 43% of their time"
    )


def test_job_gets_lanes_once_its_share_gained_too_little() -> None:
    story = started(URGENT, PATIENT)
    story.see(URGENT, PATIENT, hosts=SHORT)
    decision = story.wait(URGENT, PATIENT, hosts=SHORT)
    assert [verdict.text for verdict in decision.verdicts] == ["gained too little; trying another remedy"]
    assert decision.action is not None and decision.action.changes["urgent"].lanes["work"] > URGENT.lanes
    assert story.given["urgent"].share == 4


@pytest.mark.parametrize(
    ("seen", "hosts", "setting"),
    [
        ((URGENT, PATIENT), FREE, {}),
        ((URGENT, PATIENT), IDLE, {}),
        ((URGENT, PATIENT), SHORT, {"share_step": 1.0}),
        ((URGENT,), SHORT, {}),
        ((URGENT, replace(PATIENT, worth=60)), SHORT, {}),
        ((replace(URGENT, share=None), PATIENT), SHORT, {}),
        ((replace(URGENT, share=MOST_SHARE), PATIENT), SHORT, {}),
    ],
    ids=[
        "slots are free",
        "slots are unknown",
        "switched off",
        "alone",
        "others are worth more",
        "engine without shares",
        "highest share",
    ],
)
def test_lanes_come_first_where_a_share_cannot_help(seen, hosts, setting) -> None:
    story = started(*seen, settings=settings_from(setting))
    action = story.see(*seen, hosts=hosts).action
    assert action is not None and action.changes["urgent"].share is None
    assert action.changes["urgent"].lanes["work"] > URGENT.lanes


def test_least_urgent_job_does_not_outrank_jobs_that_also_miss_their_intents() -> None:
    """The more urgent job has its raised share already, and no other job could wait."""
    first = replace(URGENT, raised_share=4)
    story = started(first, HURT)
    for _ in range(60):
        story.see(first, HURT, hosts=SHORT)
    assert ("patient", 4) not in shares(story)


def test_job_that_is_only_close_to_missing_its_intent_keeps_its_share() -> None:
    close = replace(URGENT, latency_s=0.95)
    story = started(close, PATIENT)
    action = story.until("prevent", close, PATIENT, hosts=FREE_CORES).action
    assert action is not None and action.changes["urgent"].share is None


def test_share_never_exceeds_the_highest() -> None:
    job = replace(URGENT, share=3)
    story = started(job, PATIENT)
    action = story.see(job, PATIENT, hosts=SHORT).action
    assert action is not None and action.changes["urgent"].share == MOST_SHARE


def harmed() -> Story:
    """A share that made another job, worth more in sum, miss its intent, and was taken back."""
    story = started(URGENT, PATIENT)
    story.see(URGENT, PATIENT, hosts=SHORT)
    (verdict,) = story.wait(replace(URGENT, latency_s=3.0), HURT, hosts=SHORT).verdicts
    assert verdict.harmful
    return story


def test_share_that_did_harm_is_taken_back_and_not_tried_again_within_its_skip_time() -> None:
    story = harmed()
    assert story.given["urgent"].share is None
    history = story.state.lanes["urgent"]
    for _ in range(50):
        story.see(URGENT, PATIENT, hosts=SHORT)
    assert shares(story) == [("urgent", 4), ("urgent", None)]
    assert history["*"].before == 0 and story.state.lanes["urgent"]["*"].bars(4)
    assert story.lanes("urgent") > URGENT.lanes
    assert msgspec.json.decode(msgspec.json.encode(story.state), type=State) == story.state


def test_share_that_did_harm_may_be_tried_again_after_its_skip_time() -> None:
    story = harmed()
    for _ in range(round(2 * story.settings.skip_s / 10)):
        story.see(MET, PATIENT, hosts=SHORT)
    for _ in range(5):
        story.see(URGENT, PATIENT, hosts=SHORT)
    assert shares(story) == [("urgent", 4), ("urgent", None), ("urgent", 4)]


def test_raised_share_is_returned_once_slots_are_free_and_the_intent_is_met() -> None:
    story = started(URGENT, PATIENT)
    story.see(URGENT, PATIENT, hosts=SHORT)
    story.wait(MET, PATIENT, hosts=SHORT)
    for _ in range(20):
        story.see(MET, PATIENT, hosts=SHORT)
    assert shares(story) == [("urgent", 4)]
    decision = story.until("return shares", MET, PATIENT, hosts=FREE)
    assert decision.action is not None and decision.action.kind is ActionKind.RELAX
    assert decision.action.sentence == (
        "urgent back to its declared share: slots are no longer short, and the intent is met"
    )


def test_share_does_not_go_up_and_down_with_the_slots() -> None:
    """A return that had to be taken back is not repeated within the skip time, whatever the slots do."""
    story = started(URGENT, PATIENT)
    for _ in range(12):
        for _ in range(8):
            story.see(replace(URGENT, raised_share=None), PATIENT, hosts=SHORT)
        for _ in range(8):
            story.see(MET, PATIENT, hosts=FREE)
    assert story.at_s < 600 + 10 + 12 * 160 + 1
    ups = [at for at, change in enumerate(shares(story)) if change == ("urgent", 4)]
    assert len(ups) <= 2 + (12 * 160) // story.settings.skip_s
