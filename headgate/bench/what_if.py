"""Whether `headgate what-if` can be trusted: satisfaction as it predicts it from a journal, against what real Spark then does.

A few jobs run until the journal has enough readings. Each change is predicted from that journal alone, then carried out, and
measured for as long as was simulated: once with lanes and pace held on both sides, so that the model has to be right, and once with
the scheduler acting on both sides, so that the prediction has to meet what the scheduler makes of the change.

A prediction is worth something only where satisfaction changes, so that its error is compared with the error of predicting no change.
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
"""Few slots are not as many as this machine has cores: what-if would take cores to grow with slots."""
WARM_UP_S, CALIBRATE_S, CHANGED_S = 10.0, 30.0, 20.0
LAST_ROUNDS = 5
"""Satisfaction is the mean of so many rounds at the end, predicted as well as measured: for three, a job is not judged after an action."""
MOST_ERROR = 10.0
"""Points of satisfaction."""
MATTERS = 10.0
"""A change matters if it moves satisfaction by more points than this."""
LEAST_THAT_MATTER = 3
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
"""Predicted from the jobs as they ran on few slots, and carried out by `BUSY`."""


@dataclass(frozen=True, slots=True)
class Before:
    """Jobs as they ran before a change, with lanes and pace held."""

    satisfaction: float
    journal: MemoryJournal


@dataclass(frozen=True, slots=True)
class Compared:
    """One change, predicted and measured."""

    label: str
    hold: bool
    """Whether lanes and pace were held; otherwise the scheduler acted."""
    before: float
    """Satisfaction as it was measured before the change."""
    predicted: float
    measured: float

    @property
    def name(self) -> str:
        """What a figure of it is called."""
        return f"{self.label}, {'held' if self.hold else 'scheduler acting'}"

    @property
    def points(self) -> float:
        """How far the prediction is off."""
        return 100 * abs(self.predicted - self.measured)

    @property
    def unchanged_points(self) -> float:
        """How far a prediction that nothing changes is off."""
        return 100 * abs(self.before - self.measured)


def measure() -> Result:
    """Measure the jobs as they are, then six changes, held and with the scheduler acting."""
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
    """Predictions are near, and nearer than predicting no change where satisfaction changes."""
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
    """The cluster that the model is calibrated on, and the changes that it can be given."""
    with engine(SparkSettings(slots=SLOTS)) as spark:
        _warm_up(spark)
        _say("calibrating")
        journal = MemoryJournal()
        before = Before(_held(spark, CALIBRATE_S, journal), journal)
        return before, [_compared(spark, before, one, hold) for one in CHANGES for hold in (True, False)]


def _second_cluster(before: Before) -> tuple[list[Compared], Before]:
    """The same jobs on fewer slots, which only a new Spark has; and what a prediction of more slots begins with."""
    with engine(SparkSettings(slots=FEW_SLOTS)) as spark:
        _warm_up(spark)
        journal = MemoryJournal()
        held = _compared(spark, before, FEWER, hold=True, journal=journal)
        acting = _compared(spark, before, FEWER, hold=False)
        return [held, acting], Before(held.measured, journal)


def _more_slots(before: Before, busy: Compared) -> Compared:
    """From few slots to many: what was measured on many is the truth."""
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
    """The simulator has the same rounds each time, and answers with the last one."""
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
    """Satisfaction at the end of that time; nothing is changed."""
    return _at_the_end(watched(Controller(spark, Static(), journal, SETTINGS, observe_only=True), for_s))


def _acted(spark: SparkEngine, for_s: float) -> float:
    """Satisfaction at the end of that time; the scheduler acts as it does in a service."""
    return _at_the_end(watched(Controller(spark, policy_named("headgate", SETTINGS), None, SETTINGS), for_s))


def _at_the_end(rounds: Sequence[Round]) -> float:
    return satisfaction([view.jobs for view, _ in rounds[-LAST_ROUNDS:]])


class Judged(Protocol):
    """A job in one round."""

    @property
    def utility(self) -> float | None:
        """None if the job is not judged."""


def satisfaction(rounds: Sequence[Mapping[str, Judged]]) -> float:
    """Utility of all jobs as a share of what they are worth; that of a job is the mean of the rounds in which it is judged."""
    known = {name: [one[name].utility for one in rounds if name in one] for name in JOBS}
    total = sum(mean([value for value in values if value is not None]) for values in known.values())
    return total / sum(one.intent.worth for one in JOBS.values())


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)
