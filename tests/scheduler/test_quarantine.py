"""A utility of the user's that fails takes its own job out of the round, and no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Custom, Intent
from headgate.core.model import Job, JobAllocation
from headgate.journal import MemoryJournal
from headgate.scheduler.policies import Headgate, policy_named
from tests.core.builders import PLAIN, Cluster, Response


class Moody:
    """A utility that is sound when it is checked, and does something else later."""

    def __init__(self, later: Callable[[], object]) -> None:
        self.sound, self.later = True, later

    def __call__(self, latency_s: float) -> object:
        return (1.0 if latency_s <= 1 else 0.5) if self.sound else self.later()


@dataclass(frozen=True)
class OwnShape:
    """A shape that is no `Custom`."""

    moody: Moody

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return self.moody(value_s)  # type: ignore[return-value]

    def for_juice(self, value: float, threshold: float) -> float:
        return 1.0


def boom() -> object:
    raise ZeroDivisionError("division by zero")


def leave() -> object:
    raise SystemExit(3)


FAULTS: dict[str, Callable[[], object]] = {
    "raises": boom, "exits": leave, "nan": lambda: math.nan, "infinite": lambda: math.inf, "text": lambda: "much",
    "negative": lambda: -1.0, "nothing": lambda: None,
}  # fmt: skip


def late(name: str, has: JobAllocation) -> Response:
    return Response(2.0 / has.lanes["work"], min(1.0, 0.9 / has.lanes["work"]))


class Stage:
    """Two jobs that miss their intents, one with a utility of its own, and a controller."""

    def __init__(self, moody: Moody, own_shape: bool = False, policy: str = "headgate") -> None:
        shape = OwnShape(moody) if own_shape else Custom(moody)  # type: ignore[arg-type]
        self.innocent = Job("innocent", PLAIN, Intent(latency="1s", worth=10))
        culprit = Job("culprit", PLAIN, Intent(latency="1s", worth=5, shape=shape))
        self.cluster = Cluster((self.innocent, culprit), late)
        self.journal, self.alerts = MemoryJournal(), []  # type: ignore[var-annotated]
        self.policy = policy_named(policy, Settings())
        self.controller = Controller(
            self.cluster, self.policy, self.journal, Settings(), alert=lambda at_s, alert: self.alerts.append(alert)
        )

    def run(self, seconds: float) -> None:
        self.controller.run(self.cluster, self.cluster.now_s() + seconds)

    @property
    def last(self):
        return list(self.journal.rounds())[-1]


@pytest.mark.parametrize("own_shape", [False, True], ids=["Custom", "class of the user's"])
@pytest.mark.parametrize("fault", FAULTS)
def test_others_are_helped_while_a_utility_fails(fault: str, own_shape: bool) -> None:
    moody = Moody(FAULTS[fault])
    stage = Stage(moody, own_shape)
    moody.sound = False
    stage.run(600)
    assert {action.job for action in stage.cluster.applied} == {"innocent"}
    assert stage.last.jobs["innocent"].met
    assert (stage.last.jobs["culprit"].utility, stage.last.jobs["culprit"].met) == (None, None)


def test_reason_is_alerted_once_and_stands_in_the_advice() -> None:
    moody = Moody(boom)
    stage = Stage(moody)
    moody.sound = False
    stage.run(600)
    (told,) = stage.alerts
    assert told.sentence.startswith("culprit: not judged and keeps its lanes: function ")
    assert "ZeroDivisionError: division by zero" in told.text
    assert [alert.key for alert in stage.last.advice] == [told.key]


def test_utility_that_fails_now_and_then_does_not_make_the_scheduler_forget() -> None:
    moody = Moody(boom)
    stage = Stage(moody)
    rules = []
    for number in range(60):
        moody.sound = number % 2 == 0
        stage.cluster.sleep_until(stage.cluster.now_s() + 10)
        rules.append(stage.controller.round()[1].rule)
    assert rules.count("new workload") == 2
    assert stage.last.jobs["innocent"].met


def test_job_is_judged_again_after_its_skip_time() -> None:
    moody = Moody(boom)
    stage = Stage(moody)
    moody.sound = False
    stage.run(100)
    moody.sound = True
    stage.run(Settings().skip_s + 300)
    assert isinstance(stage.policy, Headgate) and stage.policy.state.quarantined == {}
    assert "culprit" in {action.job for action in stage.cluster.applied}


@pytest.mark.parametrize("policy", ["static", "threshold"])
def test_baselines_go_on_and_say_so_too(policy: str) -> None:
    moody = Moody(boom)
    stage = Stage(moody, policy=policy)
    moody.sound = False
    stage.run(120)
    assert stage.last.advice[0].sentence.startswith("culprit: not judged: function ")
