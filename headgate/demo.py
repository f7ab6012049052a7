"""The demo: three tenants on one small Spark, a load step that breaks one of them, and the same without anybody at the levers.

`clicks` is urgent, `fraud` asks a slow database about every row, `reports` has time. After a while three times as many rows
arrive for `fraud`, more than the lane it has can look up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.bench.workload import Work, job, mean, satisfaction, watched
from headgate.config import FAST, Settings, SparkSettings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import JobView, View
from headgate.core.model import Action
from headgate.ports import Journal
from headgate.scheduler.policies import policy_named
from headgate.settings import settings_from
from headgate.spark import sources
from headgate.spark.engine import SparkEngine, open_engine
from headgate.topology import Topology

SETTINGS: Settings = settings_from(dict(FAST))
SPARK = SparkSettings(slots=16)
STEP_S = 25.0
"""When the load steps up."""
RUN_S = 75.0
WARM_UP_S = 20.0
"""The first epochs of a JVM are slow; they are nobody's fault."""

Show = Callable[[View, str, Action | None], None]


@dataclass(frozen=True, slots=True)
class Course:
    """What became of the jobs, with somebody at the levers or without."""

    views: list[View]
    actions: list[tuple[float, Action]]

    @property
    def last(self) -> dict[str, JobView]:
        """The jobs at the end."""
        return dict(self.views[-1].jobs)

    def satisfaction(self) -> float:
        """Share of the utility that the jobs got since the load stepped up."""
        stepped_s = self.views[-1].at_s - (RUN_S - STEP_S)
        return mean([satisfaction(view) for view in self.views if view.at_s >= stepped_s])


def topologies() -> list[Topology]:
    """The same jobs for both courses; each load begins when its job is submitted."""
    stepped = sources.Steps([(0, 100), (WARM_UP_S + STEP_S, 300)])
    return [
        job("clicks", Intent(latency="2s", worth=100), 1000, Work(cpu_s=20e-6), 2),
        job("fraud", Intent(latency="5s", worth=50), stepped, Work(wait_s=0.005), 1),
        job("reports", Intent(latency="15s", worth=10), 2000, Work(cpu_s=5e-6), 2),
    ]


def run(home: Path, journal: Journal, show: Show, say: Callable[[str], None]) -> tuple[Course, Course]:
    """Both courses, one after the other, on one embedded Spark."""
    say("starting Spark …")
    engine = open_engine(home, SPARK)
    try:
        say(f"three tenants; at {STEP_S:.0f} s three times as many rows arrive for fraud")
        controlled = _course(engine, "headgate", journal, show)
        say(f"the same jobs without control, {RUN_S + WARM_UP_S:.0f} s …")
        alone = _course(engine, "static", None, lambda view, phase, action: None)
    finally:
        engine.close()
    return controlled, alone


def _course(engine: SparkEngine, policy: str, journal: Journal | None, show: Show) -> Course:
    jobs = topologies()
    for topology in jobs:
        engine.submit(topology)
    time.sleep(WARM_UP_S)
    controller = Controller(engine, policy_named(policy, SETTINGS), journal, SETTINGS)
    rounds = watched(controller, RUN_S, lambda view, decision: show(view, controller.policy.phase(), decision.action))
    for topology in jobs:
        engine.remove(topology.name)
    actions = [(view.at_s, decision.action) for view, decision in rounds if decision.action is not None]
    return Course([view for view, _ in rounds], actions)
