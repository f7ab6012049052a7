"""Readings from counts, views from a few figures, and a cluster whose jobs respond to lanes as a test says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.metrics import JobView, View, view_of
from headgate.core.model import (
    OUTSIDE,
    Action,
    Allocation,
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
from headgate.core.windows import Sample, Span, Windows
from headgate.scheduler.memory import Decision, State
from headgate.scheduler.rules import TRANSITIONS, step
from tests.examples import examples

WINDOW_S = 60.0
ROUND_S = 10.0
IDLE = (HostReading("host-1", 8, 2.0), HostReading("host-2", 8, 3.0))
CONGESTED = (HostReading("host-1", 8, 9.0), HostReading("host-2", 8, 12.0))
UNKNOWN = (HostReading("host-1", 8, None),)

PLAIN = Graph.of(Operator("in"), Operator("work", ("in",)))
LAW = examples(50)

Edge = tuple[str, str]


def chain(*names: str) -> Graph:
    parents: list[tuple[str, ...]] = [(), *((name,) for name in names)]
    return Graph.of(*(Operator(name, inputs) for name, inputs in zip(names, parents, strict=False)))


# -- readings from counts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Rows since the start: arrived and processed per source, sent and processed per edge, busy seconds per lane."""

    graph: Graph
    sources: Mapping[str, tuple[float, float]]
    edges: Mapping[Edge, tuple[float, float]] = field(default_factory=dict)
    busy_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def scaled(self, factor: float) -> Counts:
        return dataclasses.replace(
            self,
            sources={name: (a * factor, b * factor) for name, (a, b) in self.sources.items()},
            edges={edge: (a * factor, b * factor) for edge, (a, b) in self.edges.items()},
        )

    def with_nothing_waiting(self) -> Counts:
        return dataclasses.replace(
            self,
            sources={name: (arrived, arrived) for name, (arrived, _) in self.sources.items()},
            edges={edge: (sent, sent) for edge, (sent, _) in self.edges.items()},
        )

    def processing(self, edge: Edge, rows: float) -> Counts:
        return dataclasses.replace(self, edges={**self.edges, edge: (self.edges[edge][0], rows)})

    def reading(
        self,
        version: int = 1,
        latency: Latency | None = None,
        in_epochs_s: float | None = None,
        epochs: int | None = None,
    ) -> JobReading:
        return JobReading(
            version=version,
            operators={name: self._operator(name, operator) for name, operator in self.graph.operators.items()},
            arrived={name: arrived for name, (arrived, _) in self.sources.items()},
            backlog=sum(there - done for there, done in (*self.sources.values(), *self.edges.values())),
            latency=latency,
            in_epochs_s=in_epochs_s,
            epochs=epochs,
        )

    def _operator(self, name: str, operator: Operator) -> OperatorReading:
        processed = {parent: self.edges[(parent, name)][1] for parent in operator.inputs}
        return OperatorReading(
            processed=processed if operator.inputs else {OUTSIDE: self.sources[name][1]},
            sent={child: self.edges[(name, child)][0] for child in self.graph.children[name]},
            busy_s=self.busy_s.get(name, (0.0,)),
        )


def nothing(counts: Counts) -> Counts:
    return dataclasses.replace(counts.scaled(0.0), busy_s={name: (0.0,) * len(b) for name, b in counts.busy_s.items()})


def span_of_counts(
    counts: Counts,
    before: Counts | None = None,
    seconds: float = WINDOW_S,
    in_epochs_s: float | None = None,
    epochs: int | None = None,
) -> Span:
    started = {} if epochs is None else {"in_epochs_s": 0.0, "epochs": 0}
    first = (before or nothing(counts)).reading(**started)  # type: ignore[arg-type]
    last = counts.reading(in_epochs_s=in_epochs_s, epochs=epochs)
    return Span(Sample(0.0, first), Sample(seconds, last), None)


def snapshot(
    at_s: float,
    readings: Mapping[str, JobReading | None],
    hosts: tuple[HostReading, ...] = IDLE,
    allocation: Allocation | None = None,
) -> Snapshot:
    return Snapshot(at_s, readings, allocation or {name: JobAllocation({}) for name in readings}, hosts)


# -- views from a few figures ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A job as it is measured: everything steady over the window, in a chain of operators `in` and `work`."""

    name: str
    latency_s: float = 0.5
    worth: float = 10.0
    intent_s: float = 1.0
    percentile: float | None = None
    juice: float | None = None
    shape: str = "knee"
    newest_s: float | None = None
    """Latency in the newest sub-window, where it differs from that before."""
    rows_s: float = 1000.0
    busy: float = 0.9
    """Share of the time in which the lanes of `work` are busy."""
    source_busy: float = 0.1
    lanes: int = 2
    pace_s: float | None = None
    epoch_s: float | None = None
    span_s: float = WINDOW_S
    waiting: float = 0.0
    """Rows in front of `work` now."""
    draining_rows_s: float = 0.0
    """By how much they become fewer."""
    share: int | None = None
    """Declared share; None: the engine has no shares."""
    raised_share: int | None = None
    tenant: str = "default"
    tenant_weight: float = 1.0

    @property
    def job(self) -> Job:
        intent = _intent(self.intent_s, self.percentile, self.juice, self.worth, self.shape)
        return Job(self.name, PLAIN, intent, self.tenant, self.tenant_weight)

    @property
    def allocation(self) -> JobAllocation:
        return JobAllocation({"in": 1, "work": self.lanes}, self.pace_s, share=self.raised_share)

    def reading(self, at_s: float, back_s: float = 0.0) -> JobReading:
        """As it was `back_s` seconds before `at_s`."""
        then_s = at_s - back_s
        rows = self.rows_s * then_s
        counts = Counts(
            PLAIN,
            sources={"in": (rows, rows)},
            edges={("in", "work"): (rows, rows - self.waiting - self.draining_rows_s * back_s)},
            busy_s={"in": (self.source_busy * then_s,), "work": (self.busy * then_s,) * self.lanes},
        )
        latency_s = self.latency_s if back_s or self.newest_s is None else self.newest_s
        latency = _latency(latency_s, self.rows_s * ROUND_S)
        share = self.share if self.raised_share is None else self.raised_share
        if self.epoch_s is None:
            return dataclasses.replace(counts.reading(latency=latency), share=share)
        epochs = round(then_s / max(self.epoch_s, self.pace_s or 0.0))
        found = counts.reading(latency=latency, in_epochs_s=epochs * self.epoch_s, epochs=epochs)
        return dataclasses.replace(found, share=share)

    def samples(self, at_s: float) -> Iterable[tuple[float, JobReading]]:
        for rounds in range(round(self.span_s / ROUND_S), -1, -1):
            yield at_s - rounds * ROUND_S, self.reading(at_s, rounds * ROUND_S)


@cache
def _intent(latency_s: float, percentile: float | None, juice: float | None, worth: float, shape: str) -> Intent:
    """A story asks for the same few intents in every round, and each is checked at hundreds of points."""
    return Intent(latency_s, percentile, juice, worth, shape)


@cache
def _latency(latency_s: float, rows: float) -> Latency:
    return Latency.weighted([(latency_s, rows)])


def view(
    at_s: float,
    *seen: Seen,
    hosts: tuple[HostReading, ...] = IDLE,
    unread: Iterable[str] = (),
    settings: Settings | None = None,
) -> View:
    windows = Windows(
        {one.name: tuple(Sample(then_s, reading) for then_s, reading in one.samples(at_s)) for one in seen},
        frozenset(unread),
    )
    now = snapshot(
        at_s, {one.name: one.reading(at_s) for one in seen}, hosts, {one.name: one.allocation for one in seen}
    )
    return view_of(windows, now, {one.name: one.job for one in seen}, {}, settings or Settings())


def job_view(seen: Seen, settings: Settings | None = None, at_s: float = 600.0) -> JobView:
    return view(at_s, seen, settings=settings).jobs[seen.name]


@dataclass
class Story:
    """A scheduler that is shown one view after another; what it decides is carried out."""

    settings: Settings = field(default_factory=Settings)
    at_s: float = 600.0
    state: State = field(default_factory=State)
    given: dict[str, JobAllocation] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def see(
        self,
        *seen: Seen,
        hosts: tuple[HostReading, ...] = IDLE,
        unread: Iterable[str] = (),
        after_s: float = ROUND_S,
    ) -> Decision:
        self.at_s += after_s
        now = view(self.at_s, *map(self._as_given, seen), hosts=hosts, unread=unread, settings=self.settings)
        self.state, decision = step(self.state, now, self.settings)
        (rule,) = [rule for rule in TRANSITIONS if rule.name == decision.rule]
        assert rule.after in (None, self.state.phase), f"rule {rule.name} ended in {self.state.phase}"
        if decision.action is not None:
            self.given.update(decision.action.changes)
        self.decisions.append(decision)
        return decision

    def wait(self, *seen: Seen, hosts: tuple[HostReading, ...] = IDLE) -> Decision:
        """Rounds until the last action has been judged; the decision of that round."""
        for _ in range(60):
            decision = self.see(*seen, hosts=hosts)
            if decision.verdicts:
                return decision
        raise AssertionError("the last action was never judged")

    def until(self, rule: str, *seen: Seen, hosts: tuple[HostReading, ...] = IDLE) -> Decision:
        for _ in range(60):
            decision = self.see(*seen, hosts=hosts)
            if decision.rule == rule:
                return decision
        raise AssertionError(f"{rule} never happened, but {[decision.rule for decision in self.decisions]}")

    def lanes(self, name: str) -> int:
        return self.given[name].lanes["work"]

    def _as_given(self, seen: Seen) -> Seen:
        if seen.name not in self.given:
            return seen
        given = self.given[seen.name]
        return dataclasses.replace(seen, lanes=given.lanes["work"], pace_s=given.pace_s, raised_share=given.share)


def started(*seen: Seen, settings: Settings | None = None, hosts: tuple[HostReading, ...] = IDLE) -> Story:
    """A story whose scheduler knows these jobs and has done nothing yet."""
    story = Story(settings or Settings())
    assert story.see(*seen, hosts=hosts).rule == "new workload"
    return story


# -- a cluster whose jobs respond to lanes as a test says ------------------------------------------------------------------------


@dataclass(frozen=True)
class Response:
    """How a job runs with what it has."""

    latency_s: float
    busy: float
    """Share of the time in which the lanes of `work` are busy."""
    epoch_s: float | None = None
    rows_s: float = 1000.0


@dataclass
class _Counters:
    rows: float = 0.0
    new_rows: float = 0.0
    busy_s: float = 0.0
    in_epochs_s: float = 0.0
    epochs: float = 0.0


class Cluster:
    """An engine without noise: each job's performance is a function of its own allocation."""

    def __init__(
        self,
        jobs: Iterable[Job],
        response: Callable[[str, JobAllocation], Response],
        *,
        pace_s: float | None = None,
        hosts: tuple[HostReading, ...] = IDLE,
    ) -> None:
        self.at_s = 0.0
        self.response = response
        self.running = {job.name: job for job in jobs}
        self.allocation: dict[str, JobAllocation] = {
            name: JobAllocation({"in": 1, "work": 1}, pace_s) for name in self.running
        }
        self.version = dict.fromkeys(self.running, 0)
        self.hosts = hosts
        self.applied: list[Action] = []
        self.refusing = False
        self._counters = {name: _Counters() for name in self.running}

    def jobs(self) -> Mapping[str, Job]:
        return self.running

    def now_s(self) -> float:
        return self.at_s

    def sleep_until(self, at_s: float) -> None:
        for name, counters in self._counters.items():
            self._advance(counters, self.response(name, self.allocation[name]), self.allocation[name], at_s - self.at_s)
        self.at_s = at_s

    def _advance(self, counters: _Counters, response: Response, has: JobAllocation, seconds: float) -> None:
        counters.rows += response.rows_s * seconds
        counters.new_rows += response.rows_s * seconds
        counters.busy_s += response.busy * seconds
        if response.epoch_s is not None:
            finished = int(counters.epochs)
            counters.epochs += seconds / max(response.epoch_s, has.pace_s or 0.0)
            counters.in_epochs_s += (int(counters.epochs) - finished) * response.epoch_s

    def observe(self) -> Snapshot:
        readings = {name: self._reading(name, counters) for name, counters in self._counters.items()}
        return Snapshot(self.at_s, readings, dict(self.allocation), self.hosts)

    def _reading(self, name: str, counters: _Counters) -> JobReading:
        has, response = self.allocation[name], self.response(name, self.allocation[name])
        new_rows, counters.new_rows = counters.new_rows, 0.0
        counts = Counts(
            PLAIN,
            sources={"in": (counters.rows, counters.rows)},
            edges={("in", "work"): (counters.rows, counters.rows)},
            busy_s={"in": (0.0,), "work": (counters.busy_s,) * has.lanes["work"]},
        )
        latency = Latency.weighted([(response.latency_s, new_rows)]) if new_rows else None
        if response.epoch_s is None:
            return counts.reading(self.version[name], latency)
        return counts.reading(self.version[name], latency, counters.in_epochs_s, int(counters.epochs))

    def apply(self, action: Action) -> Outcome:
        if self.refusing:
            return Outcome(False, "no slots")
        self.applied.append(action)
        for name, allocation in action.changes.items():
            if self.allocation[name] != allocation:
                self.allocation[name] = allocation
                self.version[name] += 1
        return Outcome(True)
