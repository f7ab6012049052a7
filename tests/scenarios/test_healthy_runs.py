"""Healthy jobs get no diagnosis: with few keys, on uneven hosts, after cold starts of all hosts and of one of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.journal import MemoryJournal
from headgate.loads import Steady
from headgate.scheduler.policies import Headgate
from headgate.sim.run import engine_for
from headgate.sim.spec import Event, HostSpec, JobSpec, OperatorSpec, Scenario

FEW, RUNS, LENGTH_S = 2, 100, 600.0
HOSTS = ("host-1", "host-2", "host-3")
WARM = ((0.0, 0.25), (10.0, 0.5), (20.0, 0.75), (30.0, 1.0))
"""Seconds after the start of a JVM, and its speed from then on."""


def job(name: str, intent: Intent, slices: int, lanes: int, rate: float = 1500.0) -> JobSpec:
    operators = (
        OperatorSpec("in", cost_s=0.00005, lanes=1),
        OperatorSpec("work", ("in",), cost_s=0.0002, wait_s=0.0004, lanes=lanes, slices=slices),
    )
    return JobSpec(name, operators, intent, {"in": Steady(rate)})


JOBS = (
    job("few-keys", Intent(latency="4s", juice=0.9, worth=10), slices=2, lanes=3),
    job("uneven-hosts", Intent(latency="4s", worth=10), slices=0, lanes=5),
    job("regulated", Intent(policy="provision"), slices=64, lanes=3),
    job("regulated-few-keys", Intent(policy="provision"), slices=2, lanes=3),
)


def cold(host: str, at_s: float, speed: float) -> Iterator[Event]:
    """A JVM starts on a host that is no faster than this."""
    return (Event(at_s + after_s, "slow-host", host, speed * share) for after_s, share in WARM)


def healthy(seed: int) -> Scenario:
    draws = random.Random(seed)
    speeds = {host: draws.uniform(0.85, 1.0) for host in HOSTS}
    again, when_s = draws.choice(HOSTS), draws.uniform(120.0, 400.0)
    starts = [(host, 0.0) for host in HOSTS] + [(again, when_s)]
    events = sorted((event for host, at_s in starts for event in cold(host, at_s, speeds[host])), key=lambda e: e.at_s)
    hosts = tuple(HostSpec(host, 4, 16, slots=6) for host in HOSTS)
    return Scenario("healthy", "", "", "epochs", LENGTH_S, 0.0, hosts, JOBS, tuple(events))


def remedies(seed: int) -> list[str]:
    """What was done because of a diagnosis in one run."""
    journal, settings = MemoryJournal(), Settings(health_window_s=120.0, health_least_s=60.0, health_pause_s=60.0)
    engine = engine_for(healthy(seed), seed)
    Controller(engine, Headgate(settings), journal, settings).run(engine, LENGTH_S)
    return [f"{seed} {one.at_s:.0f} {one.action.sentence}" for one in journal.actions() if one.action.remedy]


def test_healthy_runs_have_no_diagnosis() -> None:
    assert [text for seed in range(FEW) for text in remedies(seed)] == []


@pytest.mark.slow
def test_hundred_healthy_runs_have_no_diagnosis() -> None:
    assert [text for seed in range(FEW, FEW + RUNS) for text in remedies(seed)] == []
