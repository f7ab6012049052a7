"""A service without Spark for the dashboard: jobs follow formulas, and the journal looks as if the service had run for long.

Everything is a function of time and of the number of a job, so that a screenshot is the same every time.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headgate.clock import now_s
from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.metrics import View
from headgate.core.model import (
    OUTSIDE,
    Action,
    ActionKind,
    Cause,
    EpochPart,
    EpochSpan,
    EpochTiming,
    Graph,
    HostReading,
    Job,
    JobAllocation,
    JobReading,
    OperatorReading,
    Outcome,
    Snapshot,
)
from headgate.core.quantities import show_seconds
from headgate.errors import InputError
from headgate.health.records import Diagnosis, DiagnosisKind, Measurement, Symptom, cause_of
from headgate.jobfile import JobRequest
from headgate.journal import SqliteJournal
from headgate.ports import Effect, JobPhase, JobRecord, JobState, LatencyRecord, RoundRecord
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import Static
from headgate.server.registry import Registry
from headgate.server.service import Loop, Service
from headgate.state.checkpoint import SNAPSHOTS
from headgate.state.inspect import checkpoint_of
from headgate.topology import Topology

ROUND_S = 10.0
SLICES = 32
SPREAD = ((0.55, 30.0), (0.8, 40.0), (1.1, 20.0), (1.6, 8.0), (2.6, 2.0))
"""Latencies of the rows of a window, as multiples of the mean latency, with weights."""
AT_ONCE = 500
"""The number of rounds that are written in one transaction."""
HOT_KEYS = {
    "customer-1042": 0.19,
    "customer-77": 0.038,
    "customer-9310": 0.031,
    "customer-412": 0.012,
    "customer-5": 0.009,
}
"""The hot keys of keyed operators, with the share of the rows of each key."""
SLICE_BYTES = 6_400_000
"""Bytes of a slice of keyed state of mean size."""
BASE_ROUNDS = 360
"""The number of different rounds of a long journal; the rounds repeat after this number."""


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job of the show: its name, its intent, and the formula of its latency."""

    name: str
    tenant: str
    latency_s: float
    """The latency goal of the intent, in seconds."""
    worth: float
    rate_rows_s: float
    ratio: float
    """Latency as a share of the goal; above 1 the job misses its intent."""
    lanes: int
    keyed: bool = False
    trouble_ago_s: float | None = None
    """Seconds since the input tripled, after which the control loop gave the job lanes; None for a job without trouble."""
    percentile: float | None = None

    def topology(self) -> Topology:
        """Return a topology with a source, a look-up, an aggregation and two sinks."""
        job = Topology(self.name, intent_of(self), tenant=self.tenant, pace_s=0.5)
        events = job.source("events", lambda spark: spark.readStream.load())
        joined = job.transform("look-up", lambda rows: rows, events, lanes=self.lanes)
        summed = job.transform("per-customer", lambda rows: rows, joined, lanes=max(2, self.lanes // 2))
        job.sink("alerts", lambda rows, epoch: None, summed)
        job.sink("archive", lambda rows, epoch: None, joined)
        return job

    def busy(self) -> float:
        return min(0.97, 0.3 + 0.55 * self.ratio)

    def latency_at(self, at_s: float, now_s: float) -> float:
        """Return the latency at a time: slow waves, and a peak during trouble."""
        seed = sum(map(ord, self.name))
        wave = 1 + 0.12 * math.sin(at_s / 900 + seed) + 0.07 * math.sin(at_s / 130 + 2 * seed)
        return self.latency_s * self.ratio * wave * (1 + 2.4 * self.trouble_at(at_s, now_s))

    def trouble_at(self, at_s: float, now_s: float) -> float:
        """Return the severity of the trouble from 0 to 1: two minutes of rise, four minutes at 1, and three minutes of fall."""
        if self.trouble_ago_s is None:
            return 0.0
        since_s = at_s - (now_s - self.trouble_ago_s)
        return max(0.0, min(1.0, since_s / 120, (540 - since_s) / 180))

    def lanes_at(self, at_s: float, now_s: float) -> dict[str, int]:
        """Return the lanes at a time: fewer lanes before the control loop acted."""
        helped_s = now_s - self.trouble_ago_s + 240 if self.trouble_ago_s is not None else -math.inf
        lanes = self.lanes if at_s > helped_s else max(1, self.lanes - 3)
        return {"look-up": lanes, "per-customer": max(2, self.lanes // 2)}


@cache
def intent_of(part: ShownJob) -> Intent:
    """Return the intent of the job."""
    return Intent(latency=part.latency_s, percentile=part.percentile, juice=0.95, worth=part.worth)


NAMED = (
    ShownJob("checkout-alerts", "shop", 2.0, 100, 3040, 0.55, 5, keyed=True, trouble_ago_s=2280),
    ShownJob("page-load", "shop", 1.5, 60, 8120, 0.72, 6, percentile=99),
    ShownJob("stock-levels", "shop", 5.0, 35, 1210, 0.41, 2),
    ShownJob("fraud-score", "risk", 0.8, 90, 4480, 1.46, 8, keyed=True, trouble_ago_s=1260),
    ShownJob("login-anomalies", "risk", 3.0, 45, 950, 0.63, 2),
    ShownJob("bid-floor", "ads", 1.0, 40, 12_300, 0.88, 6, trouble_ago_s=3120),
    ShownJob("click-joins", "ads", 10.0, 25, 6650, 0.37, 4, keyed=True),
    ShownJob("campaign-reach", "ads", 30.0, 15, 5100, 0.52, 3),
    ShownJob("partner-export", "ads", 60.0, 5, 310, 0.30, 1),
)


def parts(count: int) -> list[ShownJob]:
    """Return `count` jobs: first the jobs with a story, then more jobs of the same kind."""
    more = (
        dataclasses.replace(
            NAMED[number % len(NAMED)],
            name=f"{NAMED[number % len(NAMED)].name}-{number:03}",
            ratio=0.3 + 0.9 * ((number * 37) % 100) / 100,
            trouble_ago_s=None,
        )
        for number in range(len(NAMED), count)
    )
    return [*NAMED[:count], *more]


# -- the service -------------------------------------------------------------------------------------------------------


class Resting(Static):
    """A policy that takes no action, because an action cannot change a formula."""

    def phase(self) -> str:
        return "converged"

    def decide(self, view: View) -> Decision:
        return Decision(
            "converged", "no remedy is known that would help fraud-score; all other jobs meet their intents"
        )


class Silent:
    """A watcher that prints nothing."""

    def round(self, view: View, phase: str, action: Action | None, states: Mapping[str, JobState]) -> None:
        """Do nothing."""

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Show:
    """A service with a recorded past, and the engine of the service."""

    service: Service
    engine: ShowEngine


@contextmanager
def show(home: Path, shown: Sequence[ShownJob], length_s: float, clock: Callable[[], float] = now_s) -> Iterator[Show]:
    """Yield a service of these jobs with a journal of `length_s` seconds; its control loop takes no action."""
    with SqliteJournal(home / "journal.sqlite") as journal:
        fill(journal, shown, clock(), length_s)
        _write_snapshots(home, shown)
        engine = ShowEngine(clock, {part.name: part for part in shown})
        loop = Loop(Settings(round_s=ROUND_S))
        service = Service(engine, Registry(home / "jobs.json"), journal, loop, Silent(), clock)
        service.controller.policy = Resting()
        service.prepare([(JobRequest("show.py", part.name, part.tenant), part.topology()) for part in shown])
        service.jobs.starts.run()
        try:
            yield Show(service, engine)
        finally:
            service.alerts.close()


# -- the engine --------------------------------------------------------------------------------------------------------


SHOWN_EPOCHS = 20


@dataclass(slots=True)
class ShowEngine:
    """An engine whose jobs count rows by the clock; every action is applied and succeeds."""

    clock: Callable[[], float]
    shown: Mapping[str, ShownJob]
    topologies: dict[str, Any] = field(default_factory=dict)
    allocations: dict[str, JobAllocation] = field(default_factory=dict)
    phases: dict[str, JobState] = field(default_factory=dict)
    versions: Counter[str] = field(default_factory=Counter)
    began_s: float = 0.0

    def __post_init__(self) -> None:
        self.began_s = self.clock() - 1000.0

    def jobs(self) -> Mapping[str, Job]:
        return {name: self.topologies[name].job() for name in self._running()}

    def observe(self) -> Snapshot:
        now_s, names = self.clock(), self._running()
        return Snapshot(
            now_s,
            {name: self._reading(name, now_s) for name in names},
            {name: self.allocations[name] for name in names},
            tuple(HostReading(f"host-{n}", 8, 4.4 + 2.1 * n, 0.38 + 0.14 * n) for n in range(3)),
        )

    def apply(self, action: Action) -> Outcome:
        self.allocations.update({name: one for name, one in action.changes.items() if name in self.topologies})
        self.versions.update(action.changes.keys())
        return Outcome(True)

    def _running(self) -> list[str]:
        return [name for name, state in self.phases.items() if state.phase is JobPhase.RUNNING]

    def _reading(self, name: str, now_s: float) -> JobReading:
        part, topology = self.shown[name], self.topologies[name]
        graph, elapsed_s = topology.graph(), now_s - self.began_s
        lanes = self.allocations[name].lanes
        mean_s = part.latency_at(now_s, now_s) / (SPREAD[-1][0] if part.percentile is not None else 1.0)
        return JobReading(
            version=self.versions[name],
            operators={one: _operator(part, graph, one, elapsed_s, lanes.get(one, 1)) for one in graph.operators},
            arrived=dict.fromkeys(graph.sources, part.rate_rows_s * elapsed_s),
            backlog=_backlog(part),
            latency=Latency.weighted((mean_s * ratio, weight) for ratio, weight in SPREAD),
            in_epochs_s=part.busy() * elapsed_s,
            epochs=int(2 * elapsed_s),
        )

    # -- what a service asks of it

    def submit(self, topology: Any, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        self.topologies[topology.name] = topology
        self.allocations[topology.name] = allocation or topology.allocation()
        phase = JobPhase.PAUSED if paused else JobPhase.RUNNING
        self.phases[topology.name] = JobState(phase, share=topology.share, since_s=self.clock())

    def remove(self, name: str, keep: bool = False) -> None:
        for table in (self.topologies, self.allocations, self.phases):
            table.pop(name, None)

    def pause(self, name: str) -> None:
        self.set(name, phase=JobPhase.PAUSED, since_s=self.clock())

    def resume(self, name: str) -> None:
        self.set(name, phase=JobPhase.RUNNING, reason="", since_s=self.clock())

    def set_intent(self, name: str, intent: Intent) -> None:
        self.topologies[name].intent = intent

    def set_share(self, name: str, share: int) -> None:
        if share > 10:
            raise InputError(f'job "{name}": share is {share}; it must be at most 10')
        self.set(name, share=share)

    def set_read_limit(self, name: str, rows: int | None) -> None:
        self.set(name, read_limit=rows)

    def set(self, name: str, **changes: Any) -> None:
        """Change what is known of a job's state: `set("orders", phase=JobPhase.FAILED, reason="no disk")`."""
        self.phases[name] = dataclasses.replace(self.phases[name], **changes)

    def states(self) -> Mapping[str, JobState]:
        return dict(self.phases)

    def vacate(self, host: str) -> None:
        """Do nothing: no job runs on a host."""

    def occupy(self, host: str) -> None:
        """Do nothing: no job runs on a host."""

    def is_vacant(self, host: str) -> bool:
        return True

    def hot_keys(self, name: str) -> Mapping[str, Mapping[str, float]]:
        return {"per-customer": HOT_KEYS} if self.shown[name].keyed else {}

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        """Return finished epochs, at two epochs per second."""
        ended = int(2 * (self.clock() - self.began_s))
        rows = self.shown[job].rate_rows_s / 2
        shown = range(ended - SHOWN_EPOCHS, ended)
        return tuple(EpochTiming(number, self.began_s + number / 2, rows, _epoch_spans(number)) for number in shown)

    def lost(self) -> str:
        return ""

    def close(self) -> None:
        """Do nothing: no process runs."""


def _backlog(part: ShownJob) -> float:
    return round(part.rate_rows_s * max(0.0, part.ratio - 0.9) * 3)


def _operator(part: ShownJob, graph: Graph, name: str, elapsed_s: float, lanes: int) -> OperatorReading:
    """Return the reading of an operator; a keyed operator is skewed, because one slice of lane 0 is hot."""
    inputs, rows = graph.operators[name].inputs, part.rate_rows_s * elapsed_s
    skewed = part.keyed and name == "per-customer"
    hot = _slice_weights()
    weights = [sum(hot[lane::lanes]) if skewed else 1.0 + 0.06 * math.sin(lane + len(name)) for lane in range(lanes)]
    busiest = {"look-up": 1.0, "per-customer": 0.7}.get(name, 0.15) * part.busy()
    return OperatorReading(
        processed=dict.fromkeys(inputs, rows)
        if inputs
        else {OUTSIDE: rows - (_backlog(part) if name == "events" else 0)},
        sent=dict.fromkeys(graph.children[name], rows),
        busy_s=tuple(0.4 * busiest * elapsed_s * weight / max(weights) for weight in weights),
        lane_rows=tuple(rows * weight / sum(weights) for weight in weights),
        hosts=tuple(f"host-{lane % 3}" for lane in range(lanes)),
        slice_rows=tuple(rows * one / sum(hot) for one in hot) if skewed else None,
    )


def _epoch_spans(number: int) -> tuple[EpochSpan, ...]:
    """Return the parts of an epoch of half a second; the job waits for the rest of the time that the sinks leave."""
    archive_s = 0.15 + 0.05 * math.sin(number)
    alerts_s = 0.09 + 0.02 * math.sin(3 * number)
    return (
        EpochSpan(EpochPart.READ, 0.02),
        EpochSpan(EpochPart.LOG, 0.01),
        EpochSpan(EpochPart.PLAN, 0.03),
        EpochSpan(EpochPart.SINK, archive_s, "archive"),
        EpochSpan(EpochPart.SINK, alerts_s, "alerts"),
        EpochSpan(EpochPart.STATE, 0.02),
        EpochSpan(EpochPart.COUNT, 0.01),
        EpochSpan(EpochPart.WAIT, 0.395 - archive_s - alerts_s),
        EpochSpan(EpochPart.COMMIT, 0.015),
    )


def _write_snapshots(home: Path, shown: Sequence[ShownJob]) -> None:
    """Write snapshots as sparse files, which have a size and take no space."""
    for part in shown:
        checkpoint = checkpoint_of(home / "jobs" / part.name, "per-customer")
        for slice_, weight in enumerate(_slice_weights() if part.keyed else ()):
            folder = checkpoint / SNAPSHOTS / f"{slice_:05}"
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "000000000010.state").open("wb") as file:
                file.truncate(int(SLICE_BYTES * weight))


def _slice_weights() -> list[float]:
    """Return the weights of slices; slice 0 is hot."""
    return [9.0 if slice_ == 0 else 1.0 + 0.4 * math.sin(2.0 * slice_) for slice_ in range(SLICES)]


# -- the past ----------------------------------------------------------------------------------------------------------


def fill(journal: SqliteJournal, shown: Sequence[ShownJob], until_s: float, length_s: float) -> int:
    """Write past rounds and their actions; return the number of rounds. A long journal repeats its first hour."""
    count = int(length_s / ROUND_S)
    times = [until_s - ROUND_S * (count - number) for number in range(count)]
    varied = {number: _tail(shown, times[-1 - number], until_s) for number in range(min(count, BASE_ROUNDS))}
    rows = ((at_s, _summary(at_s, varied[(count - 1 - number) % BASE_ROUNDS])) for number, at_s in enumerate(times))
    connection = sqlite3.connect(journal.path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        while some := list(islice(rows, AT_ONCE)):
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO rounds (at_s, summary) VALUES (?, ?)", some)
            connection.execute("COMMIT")
    finally:
        connection.close()
    for at_s, action, effect in sorted(_actions(shown, until_s, length_s), key=lambda one: one[0]):
        number = journal.intend(at_s, action)
        journal.outcome(number, Outcome(True))
        if effect is not None:
            journal.effect(number, effect)
    return count


def _summary(at_s: float, tail: str) -> str:
    return f'{{"at_s":{at_s}{tail}'


def _tail(shown: Sequence[ShownJob], at_s: float, now_s: float) -> str:
    """Return a round without its time."""
    records = {part.name: _record(part, at_s, now_s) for part in shown}
    score = sum(one.utility or 0.0 for one in records.values())
    most = sum(part.worth for part in shown)
    found = msgspec.json.encode(RoundRecord(0.0, "converged", score, most, records, "all intents that can be met hold"))
    return found.decode().removeprefix('{"at_s":0.0')


def _record(part: ShownJob, at_s: float, now_s: float) -> JobRecord:
    latency_s = part.latency_at(at_s, now_s)
    juice = 1.0 - 0.2 * part.trouble_at(at_s, now_s)
    intent = intent_of(part)
    return JobRecord(
        utility=intent.utility(latency_s, juice),
        worth=part.worth,
        latency_s=latency_s,
        juice=juice,
        arrival_rows_s=part.rate_rows_s * (0.34 if part.trouble_ago_s and at_s < now_s - part.trouble_ago_s else 1.0),
        backlog=_backlog(part) + 9 * part.rate_rows_s * part.trouble_at(at_s, now_s),
        lanes=part.lanes_at(at_s, now_s),
        pace_s=0.5,
        intent=intent.describe(),
        latency_intent_s=part.latency_s,
        juice_intent=0.95,
        met=intent.met(latency_s, juice),
        latency=_percentiles(part, latency_s),
    )


def _percentiles(part: ShownJob, latency_s: float) -> LatencyRecord:
    mean_s = latency_s / (SPREAD[-1][0] if part.percentile is not None else 1.0)
    return LatencyRecord(mean_s, SPREAD[1][0] * mean_s, SPREAD[3][0] * mean_s, SPREAD[4][0] * mean_s)


def _actions(shown: Sequence[ShownJob], now_s: float, length_s: float) -> Iterator[tuple[float, Action, Effect | None]]:
    total = sum(part.worth for part in shown)
    for part in shown:
        if part.trouble_ago_s is None or part.trouble_ago_s > length_s:
            continue
        at_s = now_s - part.trouble_ago_s + 240
        lost = 0.45 * part.worth
        yield at_s, _help(part), Effect(at_s + 180, total - lost, total - 4, part.worth - lost, part.worth, "kept")
        relaxed = Action(
            ActionKind.RELAX,
            part.name,
            {part.name: JobAllocation(part.lanes_at(now_s, now_s), 0.5)},
            Cause(f"{part.name} meets its intent with time to spare"),
            "pace 0.25 s → 0.5 s",
        )
        yield at_s + 620, relaxed, Effect(at_s + 740, total - 4, total - 4, part.worth, part.worth, "kept")


def _help(part: ShownJob) -> Action:
    lanes = part.lanes_at(math.inf, 0.0)
    before = max(1, part.lanes - 3)
    late = f"latency {show_seconds(2.4 * part.latency_s)} misses {show_seconds(part.latency_s)}"
    measured = tuple(Measurement("busy", 0.93 - 0.02 * lane, "look-up", lane) for lane in range(before))
    symptoms = (
        Symptom("late", "look-up", 2.4 * part.latency_s, late, measurements=measured[:1]),
        Symptom(
            "input held back", "look-up", 0.31, "look-up holds back its input 31 % of the time", measurements=measured
        ),
    )
    text = "look-up is busy 93 % of the time and its lanes are evenly loaded: too few lanes"
    diagnosis = Diagnosis(DiagnosisKind.TOO_FEW_LANES, "look-up", text, symptoms)
    changes = {part.name: JobAllocation(lanes, 0.25)}
    what = f"look-up {before} → {part.lanes} lanes"
    return Action(ActionKind.RECONFIGURE, part.name, changes, cause_of(diagnosis), what, "add lanes")
