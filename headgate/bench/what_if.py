"""Benchmark of `headgate what-if`: satisfaction predicted from a journal, against satisfaction measured on real Spark.

A few jobs run until the journal has enough readings. Each change is predicted from that journal alone, then carried out, and
measured for as long as was simulated: once with lanes and pace held on both sides, which tests the model, and once with the scheduler
acting on both sides, which also tests the prediction of the scheduler's actions.

A prediction is useful only where satisfaction changes, so its error is compared with the error of predicting no change.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.bench import Figure, Result
from headgate.bench.workload import Round, Work, engine, job, mean, watched
from headgate.config import FAST, SparkSettings
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.journal import MemoryJournal
from headgate.loads import Load, Sine
from headgate.scheduler.policies import Static, policy_named
from headgate.sim.reports.bars import Bar
from headgate.sim.whatif import Question, WhatIfChanges, answer_question
from headgate.spark.engine import SparkEngine

SLOTS, FEW_SLOTS = 8, 3
"""FEW_SLOTS is not the number of cores of this machine; otherwise what-if would let cores grow with slots."""
WARM_UP_S, CALIBRATE_S, CHANGED_S = 10.0, 30.0, 20.0
LAST_ROUNDS = 5
"""Satisfaction is the mean of this many last rounds, because a job is not judged for three rounds after an action."""
MOST_ERROR = 10.0
"""The largest allowed error, in points of satisfaction."""
MATTERS = 10.0
"""A change matters if it moves satisfaction by more points than this."""
LEAST_THAT_MATTER = 3
SETTINGS = settings_from(FAST)


@dataclass(frozen=True, slots=True)
class Bench:
    """A job of the benchmark."""

    intent: Intent
    rate_rows_s: float
    work: Work
    lanes: int
    pace_s: float

    def load(self) -> Load:
        """Return a load that varies a little, because constant intervals do not show the cost of a row."""
        return Sine(self.rate_rows_s, 0.3 * self.rate_rows_s, period_s=SETTINGS.window_s)


JOBS: Mapping[str, Bench] = {
    "look-up": Bench(Intent(latency="1.2s", worth=50), 500.0, Work(wait_s=1.2e-3), 2, 0.0),
    "score": Bench(Intent(latency="1.5s", worth=30), 300.0, Work(cpu_s=2e-4, wait_s=4e-4), 1, 1.0),
    "report": Bench(Intent(latency="4s", worth=20), 300.0, Work(wait_s=5e-4), 1, 3.0),
}


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change that is predicted and then carried out."""

    label: str
    changes: WhatIfChanges
    intents: Mapping[str, Intent] = field(default_factory=dict)


BUSY = TriedChange("all x 3", WhatIfChanges({"all": 3.0}))
CHANGES = (
    TriedChange("look-up x 3", WhatIfChanges({"look-up": 3.0})),
    TriedChange("look-up x 5", WhatIfChanges({"look-up": 5.0})),
    TriedChange(
        "tighter intents",
        WhatIfChanges(intents={"score": {"latency": 0.7}, "report": {"latency": 1.5}}),
        intents={"score": Intent(latency=0.7, worth=30), "report": Intent(latency=1.5, worth=20)},
    ),
    BUSY,
)
FEWER = TriedChange(f"{FEW_SLOTS} slots, all x 3", WhatIfChanges({"all": 3.0}, slots=FEW_SLOTS))
MORE = TriedChange(f"{SLOTS} slots instead of {FEW_SLOTS}, all x 3", WhatIfChanges(slots=SLOTS))
"""A change that is predicted from the jobs on few slots, and carried out by `BUSY`."""


@dataclass(frozen=True, slots=True)
class Before:
    """The satisfaction and the journal of jobs before a change, with lanes and pace held."""

    satisfaction: float
    journal: MemoryJournal


@dataclass(frozen=True, slots=True)
class Compared:
    """The satisfaction predicted and measured for one change."""

    label: str
    hold: bool
    """Whether lanes and pace were held; otherwise the scheduler acted."""
    before: float
    """Satisfaction as it was measured before the change."""
    predicted: float
    measured: float

    @property
    def name(self) -> str:
        """The name of the change in figures."""
        return f"{self.label}, {'held' if self.hold else 'scheduler acting'}"

    @property
    def points(self) -> float:
        """The error of the prediction, in points."""
        return 100 * abs(self.predicted - self.measured)

    @property
    def unchanged_points(self) -> float:
        """The error of predicting no change, in points."""
        return 100 * abs(self.before - self.measured)


def measure() -> Result:
    """Measure the jobs without change and with six changes, held and with the scheduler acting."""
    before, compared = _first_cluster()
    fewer, on_few = _second_cluster(before)
    compared += fewer
    compared += [_more_slots(on_few, one) for one in compared if one.label == BUSY.label]
    modelled = answer_question(before.journal, Question(hold=True, after_s=CHANGED_S)).modelled_now
    figures = (
        Figure("satisfaction as it is: measured", before.satisfaction, ""),
        Figure("satisfaction as it is: modelled", modelled, ""),
        *(Figure(f"{one.name}: predicted", one.predicted, "") for one in compared),
        *(Figure(f"{one.name}: measured", one.measured, "") for one in compared),
        *(Figure(f"{one.name}: error", one.points, "points") for one in compared),
        *(Figure(f"{one.name}: error of no change", one.unchanged_points, "points") for one in compared),
        Figure("largest error", max(one.points for one in compared), "points"),
        Figure("load of the machine at the end, mean of 15 minutes", os.getloadavg()[2], "processes"),
    )
    return Result(figures, bars(compared))


def bars(compared: Sequence[Compared]) -> tuple[Bar, ...]:
    """Return the bars: predictions are close, and closer than predicting no change where satisfaction changes."""
    held, acting = ([one.points for one in compared if one.hold is hold] for hold in (True, False))
    matter = [one for one in compared if one.unchanged_points > MATTERS]
    median = statistics.median(one.points for one in matter) if matter else None
    unchanged = statistics.median(one.unchanged_points for one in matter) if matter else MATTERS
    return (
        Bar("median error with lanes and pace held, in points", statistics.median(held), "<=", MOST_ERROR),
        Bar("median error with the scheduler acting, in points", statistics.median(acting), "<=", MOST_ERROR),
        Bar(f"changes that move satisfaction by more than {MATTERS:g} points", len(matter), ">=", LEAST_THAT_MATTER),
        Bar("median error of these, in points, below that of predicting no change", median, "<", unchanged),
    )


def _first_cluster() -> tuple[Before, list[Compared]]:
    """Calibrate the model on a cluster with many slots, and compare changes that this cluster can carry out."""
    with engine(SparkSettings(slots=SLOTS)) as spark:
        _warm_up(spark)
        _say("calibrating")
        journal = MemoryJournal()
        before = Before(_held(spark, CALIBRATE_S, journal), journal)
        return before, [_compared(spark, before, one, hold) for one in CHANGES for hold in (True, False)]


def _second_cluster(before: Before) -> tuple[list[Compared], Before]:
    """Compare changes to fewer slots, which need a new Spark; return also the start of a prediction of more slots."""
    with engine(SparkSettings(slots=FEW_SLOTS)) as spark:
        _warm_up(spark)
        journal = MemoryJournal()
        held = _compared(spark, before, FEWER, hold=True, journal=journal)
        acting = _compared(spark, before, FEWER, hold=False)
        return [held, acting], Before(held.measured, journal)


def _more_slots(before: Before, busy: Compared) -> Compared:
    """Compare a prediction of more slots, from few slots, with the measurement on many slots."""
    predicted = _predicted(before.journal, MORE.changes, busy.hold)
    return Compared(MORE.label, busy.hold, before.satisfaction, predicted, busy.measured)


def _compared(
    spark: SparkEngine, before: Before, change: TriedChange, hold: bool, journal: MemoryJournal | None = None
) -> Compared:
    _say(f"{change.label}, {'held' if hold else 'scheduler acting'}")
    predicted = _predicted(before.journal, change.changes, hold)
    for name in JOBS:
        spark.remove(name)
    _submit(spark, change.changes, change.intents)
    measured = _held(spark, CHANGED_S, journal) if hold else _acted(spark, CHANGED_S)
    return Compared(change.label, hold, before.satisfaction, predicted, measured)


def _predicted(journal: MemoryJournal, changes: WhatIfChanges, hold: bool) -> float:
    """Return the predicted satisfaction over the last rounds; each answer has the last round of one simulation."""
    ends_s = [CHANGED_S - late * SETTINGS.round_s for late in range(LAST_ROUNDS)]
    return satisfaction([answer_question(journal, Question(changes, hold, at_s)).then.jobs for at_s in ends_s])


def _submit(spark: SparkEngine, changes: WhatIfChanges, intents: Mapping[str, Intent]) -> None:
    for name, one in JOBS.items():
        factor = changes.loads.get(name, changes.loads.get("all", 1.0))
        asked = dataclasses.replace(one, rate_rows_s=one.rate_rows_s * factor)
        spark.submit(job(name, intents.get(name, one.intent), asked.load(), one.work, one.lanes, pace_s=one.pace_s))


def _warm_up(spark: SparkEngine) -> None:
    _say("warming up")
    _submit(spark, WhatIfChanges(), {})
    time.sleep(WARM_UP_S)


def _held(spark: SparkEngine, for_s: float, journal: MemoryJournal | None = None) -> float:
    """Return the satisfaction at the end of that time, without any action."""
    return _at_the_end(watched(Controller(spark, Static(), journal, SETTINGS, observe_only=True), for_s))


def _acted(spark: SparkEngine, for_s: float) -> float:
    """Return the satisfaction at the end of that time, with the scheduler acting as in a service."""
    return _at_the_end(watched(Controller(spark, policy_named("headgate", SETTINGS), None, SETTINGS), for_s))


def _at_the_end(rounds: Sequence[Round]) -> float:
    return satisfaction([view.jobs for view, _ in rounds[-LAST_ROUNDS:]])


class Judged(Protocol):
    """A job in one round."""

    @property
    def utility(self) -> float | None:
        """The utility of the job; None if the job is not judged."""


def satisfaction(rounds: Sequence[Mapping[str, Judged]]) -> float:
    """Return the utility of all jobs as a share of their worth; the utility of a job is the mean over the rounds that judge the job."""
    known = {name: [one[name].utility for one in rounds if name in one] for name in JOBS}
    total = sum(mean([value for value in values if value is not None]) for values in known.values())
    return total / sum(one.intent.worth for one in JOBS.values())


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)
