"""Benchmark of the control loop: core time of a round for 100 and for 1,000 jobs, on snapshots that are built beforehand."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from headgate.bench import Figure, Result, repeated
from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.model import (
    OUTSIDE,
    Action,
    Graph,
    HostReading,
    Job,
    JobAllocation,
    JobReading,
    Operator,
    OperatorReading,
    Outcome,
    Snapshot,
)
from headgate.journal import MemoryJournal, SqliteJournal
from headgate.scheduler.policies import Headgate
from headgate.sim.reports.bars import Bar

FEW, MANY = 100, 1000
OPERATORS = 10
ROUNDS = 24
WARM_UP_ROUNDS = 8
"""The rounds until the window is full, which cost less than all later rounds."""
REPEATS = 5
LIMIT_RATIO = 11.0
ROUND_S = 10.0
MISSING_EVERY = 10
"""One in this number of jobs misses its intent, so that the scheduler has something to decide."""

SomeJournal = MemoryJournal | SqliteJournal
OpenJournal = Callable[[Path], AbstractContextManager[SomeJournal]]


def _on_disk(folder: Path) -> SqliteJournal:
    return SqliteJournal(folder / "journal.sqlite")


JOURNALS: Mapping[str, OpenJournal] = {"journal in memory": lambda _: MemoryJournal(), "journal on disk": _on_disk}


def measure() -> Result:
    """Core milliseconds per round, in memory and on disk, and how they grow with the number of jobs."""
    costs_s = _costs_s([_Case(count, name, opened) for count in (FEW, MANY) for name, opened in JOURNALS.items()])
    figures = [_figure(count, journal, of_case) for (count, journal), of_case in costs_s.items()]
    return Result(tuple(figures), tuple(_bar(journal, costs_s) for journal in JOURNALS))


def _bar(journal: str, costs_s: Mapping[tuple[int, str], Sequence[float]]) -> Bar:
    few, many = (statistics.median(costs_s[count, journal]) for count in (FEW, MANY))
    name = f"a round of {MANY:,} jobs costs so many times a round of {FEW}, {journal}"
    return Bar(name=name, value=many / few, op="<=", bar=LIMIT_RATIO)


def _figure(count: int, name: str, costs_s: Sequence[float]) -> Figure:
    title = f"round, {count:,} jobs of {OPERATORS} operators, {name}"
    return repeated(title, [1000 * cost_s for cost_s in costs_s], "ms")


class _Case:
    """A number of jobs, a kind of journal, and the snapshots that the engine returns."""

    def __init__(self, count: int, journal: str, opened: OpenJournal) -> None:
        self.key = (count, journal)
        self.opened = opened
        self.jobs = {name: job_named(name) for name in (f"job-{index}" for index in range(count))}
        self.snapshots = [snapshot_of(self.jobs, number) for number in range(ROUNDS)]


def _costs_s(cases: Sequence[_Case]) -> dict[tuple[int, str], list[float]]:
    """Return the cost of each round, the least of a few repeats, because other load of the machine only makes a round slower.

    The cases take turns, so that a busy spell of the machine does not fall on one of them alone.
    """
    # Objects that exist only for the benchmark must not cost the garbage collector time during the measurement.
    gc.collect()
    gc.freeze()
    repeats = [[_rounds_s(case.jobs, case.snapshots, case.opened) for case in cases] for _ in range(REPEATS)]
    gc.unfreeze()
    return {
        case.key: [min(of_round) for of_round in zip(*of_case, strict=True)][WARM_UP_ROUNDS:]
        for case, of_case in zip(cases, zip(*repeats, strict=True), strict=True)
    }


def _rounds_s(jobs: Mapping[str, Job], snapshots: Sequence[Snapshot], opened: OpenJournal) -> list[float]:
    settings = Settings(round_s=ROUND_S)
    with TemporaryDirectory() as folder, opened(Path(folder)) as journal:
        controller = Controller(ReplayingEngine(jobs, list(snapshots)), Headgate(settings), journal, settings)
        return [_timed(controller.round) for _ in snapshots]


def _timed(act: Callable[[], object]) -> float:
    """Return core seconds, which hardly depend on other load and leave out waits for the disk."""
    begun_s = time.thread_time()
    act()
    return time.thread_time() - begun_s


# -- an engine that only replays -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReplayingEngine:
    """Returns snapshots one after another and accepts every action."""

    running: Mapping[str, Job]
    snapshots: list[Snapshot]
    applied: list[Action] = field(default_factory=list)

    def jobs(self) -> Mapping[str, Job]:
        return self.running

    def observe(self) -> Snapshot:
        return self.snapshots.pop(0)

    def apply(self, action: Action) -> Outcome:
        self.applied.append(action)
        return Outcome(True)


def job_named(name: str) -> Job:
    """Return a job with a chain of operators."""
    chain = [Operator("op-0"), *(Operator(f"op-{i}", (f"op-{i - 1}",)) for i in range(1, OPERATORS))]
    return Job(name, Graph.of(*chain), Intent(latency="1s", worth=35))


def snapshot_of(jobs: Mapping[str, Job], number: int) -> Snapshot:
    """Return a snapshot with the counters of the jobs after `number` rounds."""
    readings = {name: _reading(number, missing=index % MISSING_EVERY == 0) for index, name in enumerate(jobs)}
    allocation = {name: JobAllocation({f"op-{i}": 2 for i in range(OPERATORS)}) for name in jobs}
    hosts = tuple(HostReading(f"host-{index}", 4, 2.0, 0.5) for index in range(len(jobs) // 2))
    return Snapshot((number + 1) * ROUND_S, readings, allocation, hosts)


def _reading(number: int, missing: bool) -> JobReading:
    """Return counters that grow by the same amount every round."""
    rows, busy_s = 10_000.0 * (number + 1), 7.0 * (number + 1)
    operators = {
        f"op-{i}": OperatorReading(
            processed={f"op-{i - 1}" if i else OUTSIDE: rows},
            sent={f"op-{i + 1}": rows} if i + 1 < OPERATORS else {},
            busy_s=(busy_s, busy_s),
        )
        for i in range(OPERATORS)
    }
    latency = Latency.weighted([(4.0 if missing else 0.4, 5000.0), (5.0 if missing else 0.5, 5000.0)])
    return JobReading(0, operators, {"op-0": rows}, 100.0, latency)
