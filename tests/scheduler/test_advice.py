"""What only a person can change (Henge (SoCC '18), section 5.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.config.settings import settings_from
from headgate.core.alerts import Alert, AlertKind
from headgate.core.model import HostReading
from headgate.scheduler.advice import advice
from tests.core.builders import CONGESTED, IDLE, Seen, Story, started, view

HUNGRY = Seen("hungry", latency_s=100.0, worth=35)
FINE = Seen("fine", latency_s=0.5)
HOPELESS = replace(HUNGRY, busy=0.1)


def advised(story: Story, *seen: Seen, hosts: tuple[HostReading, ...] = IDLE) -> tuple[Alert, ...]:
    return advice(story.state, view(story.at_s, *seen, hosts=hosts), story.settings)


def after(minutes: int, *seen: Seen, hosts: tuple[HostReading, ...]) -> Story:
    story = started(*seen, hosts=hosts, settings=settings_from({"round_s": 60, "warm_up_s": 60}))
    for _ in range(minutes):
        story.see(*seen, hosts=hosts, after_s=60)
    return story


def test_cluster_that_is_congested_and_misses_intents_for_most_of_an_hour_is_oversubscribed() -> None:
    story = after(55, HOPELESS, FINE, hosts=CONGESTED)
    (alert,) = advised(story, HOPELESS, FINE, hosts=CONGESTED)
    assert (alert.kind, alert.job) == (AlertKind.OVERSUBSCRIBED, "")
    assert "1 of 2" in alert.text


def test_quarter_of_an_hour_is_not_enough_to_call_a_cluster_oversubscribed() -> None:
    assert advised(after(15, HOPELESS, FINE, hosts=CONGESTED), HOPELESS, FINE, hosts=CONGESTED) == ()


@pytest.mark.parametrize(
    ("seen", "hosts"), [(HOPELESS, IDLE), (FINE, CONGESTED)], ids=["free cores", "all intents met"]
)
def test_cluster_is_not_oversubscribed_when_either_cores_are_free_or_intents_are_met(
    seen: Seen, hosts: tuple[HostReading, ...]
) -> None:
    assert advised(after(55, seen, hosts=hosts), seen, hosts=hosts) == ()


def test_cluster_is_no_longer_oversubscribed_once_all_intents_are_met() -> None:
    story = after(55, HOPELESS, FINE, hosts=CONGESTED)
    better = replace(HOPELESS, latency_s=0.5)
    assert advised(story, better, FINE, hosts=CONGESTED) == ()


def fed(*gains: float) -> tuple[Story, Seen]:
    """A job whose latency became better by these factors, one reconfiguration after another, and still misses its intent."""
    story, seen = started(HUNGRY, FINE), HUNGRY
    story.see(seen, FINE)
    for gain in gains:
        seen = replace(seen, latency_s=seen.latency_s / gain)
        story.wait(seen, FINE)
    return story, seen


def test_job_that_gained_too_little_from_its_second_reconfiguration_is_hungry() -> None:
    story, seen = fed(1.2, 1.01)
    (alert,) = advised(story, seen, FINE)
    assert alert.kind is AlertKind.LITTLE_GAIN
    assert alert.sentence.startswith("hungry: 2 reconfigurations")
    assert "of 35" in alert.text


def test_job_that_goes_on_gaining_is_not_hungry() -> None:
    story, seen = fed(1.2, 1.2, 1.2, 1.2)
    assert advised(story, seen, FINE) == ()


def test_job_that_had_one_reconfiguration_is_not_hungry_yet() -> None:
    story, seen = fed(1.01)
    assert advised(story, seen, FINE) == ()


def test_job_that_meets_its_intent_is_hungry_no_longer() -> None:
    story, seen = fed(1.2, 1.01)
    fed_up = replace(seen, latency_s=0.5)
    story.see(fed_up, FINE)
    assert advised(story, fed_up, FINE) == ()


def test_job_that_is_gone_is_hungry_no_longer() -> None:
    story, _ = fed(1.2, 1.01)
    story.see(FINE)
    assert advised(story, FINE) == ()


def test_hungry_job_may_go_while_another_cannot_be_read() -> None:
    story, _ = fed(1.2, 1.01)
    story.see(FINE, unread=["fine"])
    assert advised(story, FINE) == ()
