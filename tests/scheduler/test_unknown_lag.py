"""A job whose sources do not say how many rows wait: its juice is unknown, and nothing is decided on it."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.metrics import JobView, View, job_juice, view_of
from headgate.core.model import Job, JobAllocation, JobReading
from headgate.core.windows import Sample, Windows, span_of
from headgate.health.policies import Provision
from headgate.scheduler.memory import State
from headgate.scheduler.rules import step
from tests.core.builders import IDLE, PLAIN, Counts, snapshot
from tests.health.observed_jobs import Lanes, looked_at, observed

SETTINGS = Settings()


def reading(at_s: float, backlog: float | None, latency_s: float | None) -> JobReading:
    rows = 100 * at_s
    counts = Counts(PLAIN, {"in": (rows, rows)}, {("in", "work"): (rows, rows)}, {"in": (at_s,), "work": (at_s,)})
    latency = None if latency_s is None else Latency.weighted([(latency_s, 10.0)])
    return dataclasses.replace(counts.reading(latency=latency, in_epochs_s=at_s / 2, epochs=int(at_s)), backlog=backlog)


def seen(intent: Intent, backlog: float | None = None, latency_s: float | None = 0.5) -> View:
    samples = tuple(Sample(at_s, reading(at_s, backlog, latency_s)) for at_s in range(100, 170, 10))
    now = snapshot(160.0, {"job": samples[-1].reading}, IDLE, {"job": JobAllocation({"work": 1}, 0.0)})
    return view_of(Windows({"job": samples}), now, {"job": Job("job", PLAIN, intent)}, {}, SETTINGS)


def job(intent: Intent, backlog: float | None = None, latency_s: float | None = 0.5) -> JobView:
    return seen(intent, backlog, latency_s).jobs["job"]


def test_juice_is_unknown_if_the_backlog_is_at_either_end() -> None:
    for ends in ((None, None), (None, 0.0), (0.0, None)):
        span = span_of(
            tuple(Sample(at_s, reading(at_s, end, None)) for at_s, end in zip((100, 160), ends, strict=True))
        )
        assert span is not None
        assert job_juice(PLAIN, span) is None
    assert job(Intent(latency="1s")).lag_unknown
    assert not job(Intent(latency="1s"), backlog=0.0).lag_unknown


def test_latency_intent_is_judged_although_juice_is_unknown() -> None:
    assert job(Intent(latency="1s", worth=7)).utility == 7
    assert job(Intent(latency="0.1s", worth=7)).met is False


@pytest.mark.parametrize("intent", [Intent(juice=0.9), Intent(latency="1s", juice=0.9)])
def test_juice_intent_is_not_judged_and_holds_up_no_other_job(intent: Intent) -> None:
    found = job(intent)
    assert (found.utility, found.met, found.utility_unknown) == (None, None, True)
    _, decision = step(State(), seen(intent), SETTINGS)
    assert decision.action is None
    assert decision.rule != "warm up"


def test_job_without_output_is_neither_fine_nor_late() -> None:
    assert job(Intent(latency="1s"), latency_s=None).latency_s is None


def test_health_pipeline_finds_nothing_in_a_job_whose_lag_is_unknown() -> None:
    falling_behind = Lanes((100.0, 100.0), (1.0, 1.0), None, None, None, arrived=400.0, epochs_s=1.0)
    _, _, found = looked_at(observed(falling_behind))
    assert [one.kind for one in found] == ["too few lanes"]
    one = observed(falling_behind)
    unknown = tuple(dataclasses.replace(s, reading=dataclasses.replace(s.reading, backlog=None)) for s in one.samples)
    blind = dataclasses.replace(one, samples=unknown, view=dataclasses.replace(one.view, samples=unknown))
    _, symptoms, found = looked_at(blind, Provision())
    assert not found
    assert "nothing waits" not in {symptom.kind for symptom in symptoms}
