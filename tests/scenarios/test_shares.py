"""Slots of the epochs model go to jobs by share, and the scheduler raises the share of an urgent job while slots are short."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.core.model import Action
from headgate.journal import MemoryJournal
from headgate.loads import Load, Steady, Steps
from headgate.scheduler.policies import Headgate, Static
from headgate.sim.run import engine_for
from headgate.sim.spec import HostSpec, JobSpec, OperatorSpec, Scenario

LENGTH_S = 1200.0
HOSTS = (HostSpec("host-1", 8, 16, slots=4),)


def job(name: str, latency_s: float, worth: float, load: Load, share: int = 1) -> JobSpec:
    """Rows wait for an answer, so that tasks hold slots rather than cores."""
    operators = (OperatorSpec("in", lanes=1), OperatorSpec("ask", ("in",), wait_s=0.002, lanes=4))
    return JobSpec(name, operators, Intent(latency=latency_s, worth=worth), {"in": load}, share=share)


PATIENT = tuple(job(f"patient-{number}", 600.0, 10, Steady(600)) for number in range(3))
URGENT = job("urgent", 0.8, 100, Steps([(0, 225), (300, 900)]))


def scenario(urgent: JobSpec) -> Scenario:
    return Scenario("shares", "", "", "epochs", LENGTH_S, 0.0, HOSTS, (urgent, *PATIENT))


def run(seen: Scenario, policy: Headgate | Static, settings: Settings) -> tuple[list[View], list[tuple[float, Action]]]:
    journal, views = MemoryJournal(), []
    engine = engine_for(seen, 1)
    controller = Controller(engine, policy, journal, settings)
    while engine.now_s() < LENGTH_S:
        engine.sleep_until(engine.now_s() + settings.round_s)
        view, _ = controller.round()
        views.append(view)
    return views, [(one.at_s, one.action) for one in journal.actions()]


def latency_s(views: list[View], name: str) -> float:
    found = [view.jobs[name].latency_s for view in views[len(views) // 2 :]]
    return sum(one for one in found if one is not None) / len(found)


@pytest.fixture(scope="module")
def by_share() -> Mapping[int, float]:
    """Latency of the urgent job by declared share, while nothing is changed."""
    return {
        share: latency_s(run(scenario(dataclasses.replace(URGENT, share=share)), Static(), Settings())[0], "urgent")
        for share in (1, 4)
    }


def test_job_with_a_larger_share_is_faster_while_slots_are_short(by_share: Mapping[int, float]) -> None:
    assert by_share[4] < 0.7 * by_share[1]


def utility(views: list[View]) -> float:
    return sum(job.utility or 0.0 for view in views for job in view.jobs.values()) / len(views)


def test_scheduler_raises_the_share_of_the_urgent_job_before_its_lanes() -> None:
    """Without the lever, lanes are added and taken back, because other jobs hold the slots."""
    runs = {}
    for step in (1.0, 4.0):
        settings = dataclasses.replace(Settings(), share_step=step)
        runs[step] = run(scenario(URGENT), Headgate(settings), settings)
    (without, _), (views, actions) = runs[1.0], runs[4.0]
    changes = [(at_s, action.changes["urgent"]) for at_s, action in actions if "urgent" in action.changes]
    raised_s = next(at_s for at_s, given in changes if given.share is not None)
    assert all(given.lanes == {"in": 1, "ask": 4} for at_s, given in changes if at_s <= raised_s)
    assert not any(given.share is not None for view in without for given in [view.jobs["urgent"].allocation])
    assert views[-1].jobs["urgent"].allocation.share == 4
    assert utility(views) > 1.2 * utility(without)
