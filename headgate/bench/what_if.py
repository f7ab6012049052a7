"""Whether `headgate what-if` can be trusted: satisfaction as it predicts it from a journal, against what real Spark then does.

A few jobs run until the journal has enough readings. Each change is predicted from that journal alone, then carried out, and
measured for as long as was simulated: once with lanes and pace held on both sides, so that the model has to be right, and once with
the scheduler acting on both sides, so that the prediction has to meet what the scheduler makes of the change.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.bench import Figure, Result
from headgate.bench.workload import Work, engine, job, satisfaction, watched
from headgate.config import FAST, SparkSettings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.journal import MemoryJournal
from headgate.loads import Load, Sine
from headgate.scheduler.policies import Static, policy_named
from headgate.sim.reports.bars import Bar
from headgate.sim.whatif import Question, WhatIfChanges, answer_question
from headgate.spark.engine import SparkEngine

SLOTS, FEW_SLOTS = 8, 2
WARM_UP_S, CALIBRATE_S, CHANGED_S = 15.0, 32.0, 22.0
MOST_ERROR = 10.0
"""Points of satisfaction."""
SETTINGS = settings_from(FAST)


@dataclass(frozen=True, slots=True)
class Bench:
    """One of the jobs."""

    intent: Intent
    rate_rows_s: float
    work: Work
    lanes: int
    pace_s: float

    def load(self) -> Load:
        """Up and down a little, as any input is: intervals that are all alike say little about the cost of a row."""
        return Sine(self.rate_rows_s, 0.3 * self.rate_rows_s, period_s=SETTINGS.window_s)


JOBS: Mapping[str, Bench] = {
    "look-up": Bench(Intent(latency="1.2s", worth=50), 500.0, Work(wait_s=1.2e-3), 2, 0.0),
    "score": Bench(Intent(latency="1.5s", worth=30), 300.0, Work(cpu_s=2e-4, wait_s=4e-4), 1, 1.0),
    "report": Bench(Intent(latency="4s", worth=20), 300.0, Work(wait_s=5e-4), 1, 3.0),
}


@dataclass(frozen=True, slots=True)
class TriedChange:
    """One change, as it is predicted and as it is carried out."""

    label: str
    changes: WhatIfChanges
    slots: int = SLOTS
    intents: Mapping[str, Intent] = field(default_factory=dict)


CHANGES = (
    TriedChange("look-up x 2", WhatIfChanges({"look-up": 2.0})),
    TriedChange("look-up x 5", WhatIfChanges({"look-up": 5.0})),
    TriedChange("all x 0.5", WhatIfChanges({"all": 0.5})),
    TriedChange(
        "tighter intents",
        WhatIfChanges(intents={"score": {"latency": 0.7}, "report": {"latency": 1.5}}),
        intents={"score": Intent(latency=0.7, worth=30), "report": Intent(latency=1.5, worth=20)},
    ),
    TriedChange("2 slots, all x 2", WhatIfChanges({"all": 2.0}, slots=FEW_SLOTS), slots=FEW_SLOTS),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One change, predicted and measured."""

    label: str
    hold: bool
    """Whether lanes and pace were held; otherwise the scheduler acted."""
    predicted: float
    measured: float

    @property
    def name(self) -> str:
        """What a figure of it is called."""
        return f"{self.label}, {'held' if self.hold else 'scheduler acting'}"

    @property
    def points(self) -> float:
        """How far apart they are."""
        return 100 * abs(self.predicted - self.measured)


def measure() -> Result:
    """Measure the jobs as they are, then five changes, held and with the scheduler acting."""
    now, journal, compared = _first_cluster()
    compared += _second_cluster(journal)
    modelled = answer_question(journal, Question(hold=True, after_s=CHANGED_S)).modelled_now
    figures = (
        Figure("satisfaction as it is: measured", now, ""),
        Figure("satisfaction as it is: modelled", modelled, ""),
        *(Figure(f"{one.name}: predicted", one.predicted, "") for one in compared),
        *(Figure(f"{one.name}: measured", one.measured, "") for one in compared),
        *(Figure(f"{one.name}: error", one.points, "points") for one in compared),
        Figure("largest error", max(one.points for one in compared), "points"),
        Figure("load of the machine at the end, mean of 15 minutes", os.getloadavg()[2], "processes"),
    )
    held, acting = ([one.points for one in compared if one.hold is hold] for hold in (True, False))
    bars = (
        Bar("median error with lanes and pace held, in points", statistics.median(held), "<=", MOST_ERROR),
        Bar("median error with the scheduler acting, in points", statistics.median(acting), "<=", MOST_ERROR),
    )
    return Result(figures, bars)


def _first_cluster() -> tuple[float, MemoryJournal, list[Compared]]:
    """The cluster that the model is calibrated on, and the changes that it can be given."""
    with engine(SparkSettings(slots=SLOTS)) as spark:
        _say("warming up")
        _submit(spark, WhatIfChanges())
        time.sleep(WARM_UP_S)
        _say("calibrating")
        journal = MemoryJournal()
        now = satisfaction(_view(spark, CALIBRATE_S, journal))
        return now, journal, _both_ways(spark, journal, SLOTS)


def _second_cluster(journal: MemoryJournal) -> list[Compared]:
    """The same jobs on fewer slots, which only a new Spark has."""
    with engine(SparkSettings(slots=FEW_SLOTS)) as spark:
        _say("warming up with fewer slots")
        _submit(spark, WhatIfChanges())
        time.sleep(WARM_UP_S)
        return _both_ways(spark, journal, FEW_SLOTS)


def _both_ways(spark: SparkEngine, journal: MemoryJournal, slots: int) -> list[Compared]:
    wanted = [one for one in CHANGES if one.slots == slots]
    return [_compared(spark, journal, one, hold) for one in wanted for hold in (True, False)]


def _compared(spark: SparkEngine, journal: MemoryJournal, change: TriedChange, hold: bool) -> Compared:
    _say(f"{change.label}, {'held' if hold else 'scheduler acting'}")
    predicted = answer_question(journal, Question(change.changes, hold=hold, after_s=CHANGED_S)).then.satisfaction
    for name in JOBS:
        spark.remove(name)
    _submit(spark, change.changes, change.intents)
    measured = _view(spark, CHANGED_S) if hold else _acted_view(spark, CHANGED_S)
    return Compared(change.label, hold, predicted, satisfaction(measured))


def _submit(spark: SparkEngine, changes: WhatIfChanges, intents: Mapping[str, Intent] | None = None) -> None:
    for name, one in JOBS.items():
        factor = changes.loads.get(name, changes.loads.get("all", 1.0))
        asked = dataclasses.replace(one, rate_rows_s=one.rate_rows_s * factor)
        intent = (intents or {}).get(name, one.intent)
        spark.submit(job(name, intent, asked.load(), one.work, one.lanes, pace_s=one.pace_s))


def _view(spark: SparkEngine, for_s: float, journal: MemoryJournal | None = None) -> View:
    """The last round of that time; nothing is changed."""
    controller = Controller(spark, Static(), journal, SETTINGS, observe_only=True)
    return watched(controller, for_s)[-1][0]


def _acted_view(spark: SparkEngine, for_s: float) -> View:
    """The last round of that time; the scheduler acts as it does in a service."""
    controller = Controller(spark, policy_named("headgate", SETTINGS), None, SETTINGS)
    return watched(controller, for_s)[-1][0]


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)
