"""The demo: three jobs on one small Spark, two of them overloaded by a load step, first with Headgate and then without.

`clicks` and `fraud` look up every row in a slow service; `reports` has a long latency intent. After the warm-up and `STEP_S` seconds,
`clicks` and `fraud` receive three times as many rows, more than one lane can look up. Look-ups wait without using a core, so that the
outcome is the same on a slow machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.bench.workload import Work, job, watched
from headgate.config import FAST, FAST_SPARK, Settings, SparkSettings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import JobView, View
from headgate.core.model import Action
from headgate.ports import Journal
from headgate.scheduler.policies import policy_named
from headgate.spark import sources
from headgate.spark.engine import SparkEngine, open_engine
from headgate.topology import Topology

SETTINGS: Settings = settings_from(dict(FAST))
SPARK = SparkSettings(slots=16, first_pace_s=FAST_SPARK["first_pace_s"])
WARM_UP_S = 15.0
"""Time, in seconds, for the first epochs of a JVM, which are slow and are not measured."""
STEP_S = 15.0
"""Time from the end of the warm-up until the load steps up, in seconds."""
RUN_S = 90.0
URGENT = "clicks"
"""The job whose latency the chart shows."""

Show = Callable[[View, str, Action | None], None]


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Views and actions of one run, with or without Headgate."""

    views: list[View]
    actions: list[tuple[float, Action]]

    def ends(self) -> dict[str, JobView]:
        """Each job in its last view with a known latency; right after a change, a job has no known latency."""
        return {name: job for view in self.views for name, job in view.jobs.items() if job.latency_s is not None}

    def latencies_s(self, name: str) -> list[tuple[float, float]]:
        """The latency of a job at each time since the end of the warm-up at which it is known."""
        start_s = self.views[0].at_s
        measured = ((view.at_s - start_s, view.jobs.get(name)) for view in self.views)
        return [(at_s, job.latency_s) for at_s, job in measured if job is not None and job.latency_s is not None]


def topologies() -> list[Topology]:
    """The same jobs for both runs; each load begins when its job is submitted."""
    tripled = sources.Steps([(0, 100), (WARM_UP_S + STEP_S, 300)])
    look_up = Work(wait_s=0.005)
    return [
        job(URGENT, Intent(latency="4s", worth=100), tripled, look_up, 1),
        job("fraud", Intent(latency="6s", worth=50), tripled, look_up, 1),
        job("reports", Intent(latency="15s", worth=10), 1000, Work(cpu_s=5e-6), 1),
    ]


def run(home: Path, journal: Journal, show: Show, say: Callable[[str], None]) -> tuple[DemoRun, DemoRun]:
    """Run the jobs with Headgate and then without, on one embedded Spark."""
    say("starting Spark …")
    engine = open_engine(home, SPARK)
    try:
        say(
            f"three jobs with Headgate, {WARM_UP_S + RUN_S:.0f} s; the load of two jobs triples after {WARM_UP_S + STEP_S:.0f} s"
        )
        controlled = _run_jobs(engine, "headgate", journal, show)
        say(f"the same jobs without Headgate, {WARM_UP_S + RUN_S:.0f} s …")
        alone = _run_jobs(engine, "static", None, lambda view, phase, action: None)
    finally:
        engine.close()
    return controlled, alone


def _run_jobs(engine: SparkEngine, policy: str, journal: Journal | None, show: Show) -> DemoRun:
    jobs = topologies()
    for topology in jobs:
        engine.submit(topology)
    time.sleep(WARM_UP_S)
    controller = Controller(engine, policy_named(policy, SETTINGS), journal, SETTINGS)
    rounds = watched(controller, RUN_S, lambda view, decision: show(view, controller.policy.phase(), decision.action))
    for topology in jobs:
        engine.remove(topology.name)
    actions = [(view.at_s, decision.action) for view, decision in rounds if decision.action is not None]
    return DemoRun([view for view, _ in rounds], actions)
