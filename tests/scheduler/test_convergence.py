"""Theorem 1 of Henge (SoCC '18), section 5.4: a well-behaved cluster converges in finitely many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.config import Settings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.model import Job, JobAllocation, SearchPhase
from headgate.scheduler.policies import Headgate
from tests.core.builders import CONGESTED, IDLE, PLAIN, Cluster, Response
from tests.examples import examples

NEVER_S = 1e9
ROUNDS = 4000


@dataclass(frozen=True)
class Saturating:
    """A job whose latency falls with its lanes, from `slowest_s` with one lane towards `fastest_s`."""

    worth: float
    slowest_s: float
    fastest_s: float
    half: float
    """Lanes beyond the first that bring half of the difference."""
    work: float
    """Busy lanes that the input needs; lanes are never busy for less than `least_busy`."""
    least_busy: float

    def respond(self, allocation: JobAllocation) -> Response:
        more = allocation.lanes["work"] - 1
        gained = more / (more + self.half)
        busy = max(self.least_busy, min(1.0, self.work / allocation.lanes["work"]))
        return Response(self.slowest_s + (self.fastest_s - self.slowest_s) * gained, busy)


@st.composite
def jobs(draw: st.DrawFn) -> Saturating:
    slowest_s = draw(st.floats(0.5, 8.0))
    return Saturating(
        worth=draw(st.sampled_from((5.0, 20.0, 35.0))),
        slowest_s=slowest_s,
        fastest_s=draw(st.floats(0.1, 1.0)) * slowest_s,
        half=draw(st.floats(0.5, 60.0)),
        work=draw(st.floats(0.1, 30.0)),
        least_busy=draw(st.sampled_from((0.05, 0.35, 0.7))),
    )


def utility(job: Saturating, allocation: JobAllocation) -> float:
    return job.worth * min(1.0, 1 / job.respond(allocation).latency_s)


def most_steps(of: list[Saturating], initial: dict[str, float], settings: Settings) -> int:
    """A job takes a whole number of steps, so the logarithm of the theorem is rounded up."""
    factor = max(1 + settings.improvement, *(job.worth / initial[str(n)] for n, job in enumerate(of)))
    return len(of) * math.ceil(math.log(factor, 1 + settings.improvement)) + 2


@examples(40)
@given(
    st.lists(jobs(), min_size=1, max_size=4),
    st.sampled_from(("model", "paper")),
    st.sampled_from(("total", "lowest")),
    st.booleans(),
)
@example([Saturating(5.0, 8.0, 0.8, 60.0, 30.0, 0.7)] * 4, "paper", "total", False)
@example([Saturating(5.0, 1.06, 1.003, 0.05, 30.0, 0.7)] * 4, "model", "total", False)
@example(
    [Saturating(5.0, 1.0, 1.0, 1.0, 1.0, 0.05), Saturating(5.0, 2.0, 1.0, 1.0, 1.0, 0.05)], "model", "total", False
)
def test_well_behaved_cluster_converges_within_the_steps_of_the_theorem(
    of: list[Saturating], sizing: str, objective: str, congested: bool
) -> None:
    chosen = settings_from({"sizing": sizing, "objective": objective, "skip_s": NEVER_S})
    by_name = {str(number): job for number, job in enumerate(of)}
    cluster = Cluster(
        [Job(name, PLAIN, Intent(latency=1.0, worth=job.worth)) for name, job in by_name.items()],
        lambda name, allocation: by_name[name].respond(allocation),
        hosts=CONGESTED if congested else IDLE,
    )
    initial = {name: utility(job, cluster.allocation[name]) for name, job in by_name.items()}
    policy = Headgate(chosen)
    controller = Controller(cluster, policy, None, chosen)
    for _ in range(ROUNDS):
        cluster.sleep_until(cluster.at_s + chosen.round_s)
        controller.round()
        if policy.state.phase is SearchPhase.CONVERGED and policy.state.trials.search is None:
            break
    else:
        raise AssertionError(f"still searching after {ROUNDS} rounds and {len(cluster.applied)} actions")
    controller.run(
        cluster, cluster.at_s + 600
    )  # jobs that only just meet their intents may get a step once no other wants help
    assert len(cluster.applied) <= most_steps(of, initial, chosen)
    final = {name: utility(job, cluster.allocation[name]) for name, job in by_name.items()}
    assert sum(final.values()) >= sum(initial.values()) - 1e-9

    steps = len(cluster.applied)
    controller.run(cluster, cluster.at_s + 600)
    assert len(cluster.applied) == steps


@dataclass(frozen=True)
class Batched:
    """A job in epochs: each costs something fixed, and time in proportion to what arrived since the one before."""

    intent_s: float
    fixed_s: float
    work: float

    def respond(self, allocation: JobAllocation) -> Response:
        busy = self.work / allocation.lanes["work"]
        period_s = max(allocation.pace_s or 0.0, self.fixed_s / (1 - busy))
        epoch_s = self.fixed_s + busy * period_s
        return Response(period_s / 2 + epoch_s, busy, epoch_s)


def relaxed(job: Batched, rounds: int = 200) -> tuple[Cluster, Headgate, list[float]]:
    chosen = Settings()
    cluster = Cluster([Job("job", PLAIN, Intent(latency=job.intent_s))], lambda _, has: job.respond(has), pace_s=0.0)
    policy = Headgate(chosen)
    controller = Controller(cluster, policy, None, chosen)
    latencies_s = []
    for _ in range(rounds):
        cluster.sleep_until(cluster.at_s + chosen.round_s)
        controller.round()
        latencies_s.append(job.respond(cluster.allocation["job"]).latency_s)
    return cluster, policy, latencies_s


@pytest.mark.parametrize("work", [0.02, 0.1, 0.3, 0.7, 0.8, 0.95])
def test_job_in_epochs_finds_its_pace_and_rests(work: float) -> None:
    job = Batched(intent_s=2.0, fixed_s=0.1, work=work)
    cluster, policy, latencies_s = relaxed(job)
    assert policy.state.phase is SearchPhase.CONVERGED
    assert len(cluster.applied) <= 6
    assert latencies_s[-1] <= job.intent_s


@pytest.mark.parametrize("work", [0.02, 0.1, 0.3, 0.5, 0.7, 0.8])
def test_job_that_is_relaxed_goes_on_meeting_its_intent(work: float) -> None:
    job = Batched(intent_s=2.0, fixed_s=0.1, work=work)
    _, _, latencies_s = relaxed(job)
    assert max(latencies_s) <= job.intent_s


def test_job_in_epochs_that_is_in_no_hurry_starts_them_less_often() -> None:
    job = Batched(intent_s=10.0, fixed_s=0.1, work=0.05)
    cluster, _, _ = relaxed(job)
    assert (cluster.allocation["job"].pace_s or 0) > 5
