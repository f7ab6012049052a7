"""Relaxed jobs spread their epochs in time, and an urgent job beside them has a shorter tail of its latency."""

from __future__ import annotations

import pytest

from headgate.core.intents import Intent
from headgate.loads import Steady
from headgate.sim import constants
from headgate.sim.models.epochs import EpochEngine
from headgate.sim.spec import HostSpec, JobSpec, OperatorSpec, Scenario

RELAXED, PACE_S = 30, 10.0
URGENT = "urgent"
SETTLED_S, END_S = 300.0, 1500.0


def spec(name: str, latency: str, pace_s: float) -> JobSpec:
    operators = (OperatorSpec("in", cost_s=0.0001), OperatorSpec("work", ("in",), cost_s=0.001, lanes=1))
    return JobSpec(name, operators, Intent(latency=latency), {"in": Steady(20.0)}, pace_s=pace_s)


def tail_s(slack: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """The 99th percentile of the urgent job's latency."""
    monkeypatch.setattr(EpochEngine, "phase_slack", slack)
    jobs = (spec(URGENT, "1s", 0.3), *(spec(f"relaxed-{number}", "15s", PACE_S) for number in range(RELAXED)))
    scenario = Scenario("phases", "", "", "epochs", END_S, 0.0, (HostSpec("host-1", 2, 16),), jobs)
    engine = EpochEngine(scenario, 1)
    engine.sleep_until(SETTLED_S)
    engine.observe()
    engine.sleep_until(END_S)
    reading = engine.observe().jobs[URGENT]
    assert reading is not None and reading.latency is not None
    (tail,) = reading.latency.percentiles_s(99)
    return tail


def test_spread_epochs_of_relaxed_jobs_shorten_the_tail_of_an_urgent_job_by_a_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together_s = tail_s(0.0, monkeypatch)
    spread_s = tail_s(constants.PHASE_SLACK, monkeypatch)
    assert spread_s <= 0.67 * together_s, f"{spread_s:.2f} s spread, {together_s:.2f} s together"
