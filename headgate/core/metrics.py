"""From readings to judgements: windows, juice, capacity, latency, utility (Henge, sections 4 to 6).

Engines report counters that only grow. A window is two readings and their difference, so a lost reading costs nothing and a
window never needs to be re-summed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.config import Settings
from headgate.core.latency import Latency, merge
from headgate.core.model import OUTSIDE, Graph, HostReading, Job, JobAllocation, JobReading, Snapshot
from headgate.errors import IntentError


@dataclass(frozen=True, slots=True)
class Sample:
    """A reading and when it was taken."""

    at_s: float
    reading: JobReading


@dataclass(frozen=True, slots=True)
class Span:
    """What a job did between two readings of the same allocation."""

    first: Sample
    last: Sample
    latency: Latency | None

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.last.at_s - self.first.at_s

    def ages_s(self) -> tuple[float, float]:
        """For how long the last epoch had ended, at both ends of the span: what an epoch does shows only when it ends.

        Never longer than epochs are apart, so that one that does not end is no excuse.
        """
        first, last = self.first.reading, self.last.reading
        if first.epochs == last.epochs:
            return 0.0, 0.0
        before_s, after_s = (min(one.epoch_age_s or 0.0, period_s(self)) for one in (first, last))
        return (before_s, after_s) if self.seconds + before_s > after_s else (0.0, 0.0)

    @property
    def whole_epochs_s(self) -> float:
        """From the end of one epoch to the end of another; without epochs, the span."""
        before_s, after_s = self.ages_s()
        return self.seconds + before_s - after_s

    def arrived(self, source: str) -> float:
        """Rows that reached a source."""
        return self.last.reading.arrived[source] - self.first.reading.arrived.get(source, 0.0)

    def processed(self, operator: str, parent: str) -> float:
        """Rows of one parent that an operator processed."""
        before = self.first.reading.operators[operator].processed
        return self.last.reading.operators[operator].processed[parent] - before.get(parent, 0.0)

    def sent(self, operator: str, child: str) -> float:
        """Rows an operator sent to one child."""
        before = self.first.reading.operators[operator].sent
        return self.last.reading.operators[operator].sent[child] - before.get(child, 0.0)

    def busy_s(self, operator: str) -> tuple[float, ...]:
        """Seconds each lane of an operator was busy."""
        before = self.first.reading.operators[operator].busy_s
        now = self.last.reading.operators[operator].busy_s
        return tuple(b - a for a, b in zip(before, now, strict=True))

    def of_lanes(self, operator: str, counter: str) -> tuple[float, ...] | None:
        """By how much an optional counter of each lane, or slice, grew: `lane_rows`, `queued`, `held_s`, `slice_rows`.

        One that was not told yet, because nothing had run, began at 0.
        """
        before = getattr(self.first.reading.operators[operator], counter)
        now = getattr(self.last.reading.operators[operator], counter)
        if now is None or (before is not None and len(before) != len(now)):
            return None
        if before is None:
            return tuple(now)
        return tuple(b - a for a, b in zip(before, now, strict=True))

    def rows_in(self, operator: str) -> float:
        """Rows an operator processed, whatever their parent."""
        before = sum(self.first.reading.operators[operator].processed.values())
        return sum(self.last.reading.operators[operator].processed.values()) - before

    def arrival_rows_s(self) -> float:
        """Input of the job, all sources together."""
        return sum(self.arrived(source) for source in self.last.reading.arrived) / self.seconds


# -- windows ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Windows:
    """The readings of the last window, per job."""

    samples: Mapping[str, tuple[Sample, ...]]
    unread: frozenset[str] = frozenset()
    """Jobs that run but could not be read the last time."""
    hosts: tuple[tuple[float, tuple[HostReading, ...]], ...] = ()
    """The hosts at each moment of the last window."""

    def push(self, snapshot: Snapshot, window_s: float, longer_s: Mapping[str, float] | None = None) -> Windows:
        """Add one snapshot and forget what is older than the window or belongs to jobs that are gone.

        `longer_s` has the jobs whose windows are of another length. A reading that is not later than the last one of its job is
        ignored: nothing can be measured between the two.
        """
        own = longer_s or {}
        kept = {
            name: self._appended(name, reading, snapshot.at_s, own.get(name, window_s))
            for name, reading in snapshot.jobs.items()
        }
        unread = frozenset(name for name, reading in snapshot.jobs.items() if reading is None)
        hosts = tuple(one for one in self.hosts if snapshot.at_s - window_s - 1e-6 <= one[0] < snapshot.at_s)
        return Windows(kept, unread, (*hosts, (snapshot.at_s, snapshot.hosts)))

    def _appended(self, name: str, reading: JobReading | None, at_s: float, window_s: float) -> tuple[Sample, ...]:
        old = self.samples.get(name, ())
        if reading is None or (old and at_s <= old[-1].at_s):
            return old
        oldest_s = at_s - window_s - 1e-6
        return (*(sample for sample in old if sample.at_s >= oldest_s), Sample(at_s, reading))


def span_of(samples: tuple[Sample, ...]) -> Span | None:
    """The span over these samples; None if there are fewer than two."""
    if len(samples) < 2:
        return None
    return Span(samples[0], samples[-1], merge(sample.reading.latency for sample in samples[1:]))


def newest(samples: tuple[Sample, ...], sub_windows: int) -> tuple[Sample, ...]:
    """The last sub-windows, as many as asked for; with epochs, as many more as it takes to hold three of them."""
    for count in range(sub_windows + 1, len(samples)):
        first, last = samples[-count].reading.epochs, samples[-1].reading.epochs
        if first is None or last is None or last - first >= ENOUGH_EPOCHS:
            return samples[-count:]
    return samples


ENOUGH_EPOCHS = 3
"""Fewer say nothing: what is measured would depend on where between two of them the reading fell."""

# -- juice (Henge, section 6) ----------------------------------------------------------------------------------------------------


def _source_juice(span: Span, source: str) -> float:
    """Share of the arrived rows that are not late: with epochs, a row is late when it has waited for two periods."""
    arrived = span.arrived(source)
    if arrived <= 0:
        waits = span.last.reading.arrived[source] > span.last.reading.operators[source].processed[OUTSIDE]
        return 0.0 if waits and span.processed(source, OUTSIDE) <= 0 else 1.0
    rows_s = arrived / span.seconds
    late = [
        _waiting(sample, source) - rows_s * (age_s + grace_s(span))
        for sample, age_s in zip((span.first, span.last), span.ages_s(), strict=True)
    ]
    came = rows_s * span.whole_epochs_s
    return min(1.0, max(0.0, 1 - (max(0.0, late[1]) - max(0.0, late[0])) / came))


def _waiting(sample: Sample, source: str) -> float:
    return sample.reading.arrived[source] - sample.reading.operators[source].processed[OUTSIDE]


def grace_s(span: Span) -> float:
    """Two periods between epochs, but never more than half the span: a job that falls behind must not excuse itself."""
    return min(2 * period_s(span), span.seconds / 2)


def period_s(span: Span) -> float:
    """Mean time between two epochs, at most the span; 0 without epochs."""
    first, last = span.first.reading.epochs, span.last.reading.epochs
    if first is None or last is None:
        return 0.0
    return span.seconds / max(1, last - first)


def _edge_shares(graph: Graph, span: Span, parent: str, child: str) -> tuple[float, float]:
    """Share of the parent's rows that the child processed, and that it was offered."""
    children = graph.children[parent]
    offered = span.sent(parent, child)
    total = offered if len(children) == 1 else sum(span.sent(parent, other) for other in children)
    if total <= 0:
        reading = span.last.reading.operators
        waits = reading[parent].sent[child] > reading[child].processed[parent]
        stuck = waits and span.processed(child, parent) <= 0
        return 0.0 if stuck else 1 / len(children), 1 / len(children)
    return min(span.processed(child, parent), offered) / total, offered / total


def job_juice(graph: Graph, span: Span) -> float | None:
    """Eq. 6, with sink weights: what the sinks got of what they would get if nothing waited; None if it is not known what waits.

    With equal weights the denominator is the number of sources, as in the paper. Eq. 5 is linear, so the sources are summed
    on the way: no table per operator is needed.
    """
    if span.first.reading.backlog is None or span.last.reading.backlog is None:
        return None
    if span.last.reading.backlog == 0:
        return 1.0  # nothing waits: no need to look at every edge
    actual: dict[str, float] = {}
    ideal: dict[str, float] = {}
    for name, operator in graph.operators.items():
        shares = [(parent, *_edge_shares(graph, span, parent, name)) for parent in operator.inputs]
        actual[name] = sum(actual[parent] * processed for parent, processed, _ in shares)
        ideal[name] = sum(ideal[parent] * offered for parent, _, offered in shares)
        if not shares:
            actual[name], ideal[name] = _source_juice(span, name), 1.0
    got, due = (sum(graph.operators[sink].weight * juice[sink] for sink in graph.sinks) for juice in (actual, ideal))
    share = got / due
    return 1.0 if share > 1 else share  # a share that is no number stays one, so that no decision is made on it


# -- capacity and congestion (Henge, sections 5.1 and 5.2) -----------------------------------------------------------------------


def capacities(graph: Graph, span: Span) -> dict[str, float]:
    """Eq. 3: share of the span in which each operator's busiest lane was busy.

    Where stages run one after another, the operators of a job share the time spent in epochs: the slowest operator counts as
    busy for all of it, the others in proportion.
    """
    busiest = {name: max(span.busy_s(name), default=0.0) for name in graph.operators}
    in_epochs_s = _in_epochs_s(span)
    if in_epochs_s is None:
        return {name: min(1.0, busy / span.seconds) for name, busy in busiest.items()}
    slowest = max(busiest.values())
    share = min(1.0, in_epochs_s / span.seconds)
    return {name: share * busy / slowest if slowest > 0 else 0.0 for name, busy in busiest.items()}


def _in_epochs_s(span: Span) -> float | None:
    first, last = span.first.reading.in_epochs_s, span.last.reading.in_epochs_s
    return None if first is None or last is None else last - first


def epoch_s(span: Span) -> float | None:
    """Mean duration of an epoch; None without epochs."""
    spent = _in_epochs_s(span)
    first, last = span.first.reading.epochs, span.last.reading.epochs
    if spent is None or first is None or last is None or last <= first:
        return None
    return spent / (last - first)


def cluster_congested(hosts: tuple[HostReading, ...]) -> bool | None:
    """A cluster is congested when the majority of its hosts are; None if no host is known."""
    known = [host.congested for host in hosts if host.congested is not None]
    return None if not known else sum(known) * 2 > len(known)


def steady_hosts(windows: Windows, now: tuple[HostReading, ...]) -> tuple[HostReading, ...]:
    """The hosts of now with the least that was wanted of each in the window: congestion counts only if it holds throughout."""
    seen: dict[str, list[HostReading]] = {host.name: [host] for host in now}
    for _, hosts in windows.hosts:
        for host in hosts:
            if host.name in seen and not host.suspect:
                seen[host.name].append(host)
    return tuple(_steady(host, seen[host.name]) for host in now)


def _steady(now: HostReading, seen: list[HostReading]) -> HostReading:
    loads = [host.load for host in seen if host.load is not None]
    calmest = min(seen, key=lambda host: math.inf if host.demand is None else host.demand)
    running, waiting = calmest.running, calmest.waiting
    return dataclasses.replace(now, load=min(loads, default=None), running=running, waiting=waiting)


# -- the view that decisions are made on -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as the scheduler sees it: measured over the window, and over the newest sub-windows."""

    job: Job
    allocation: JobAllocation
    span: Span | None
    latency_s: float | None
    juice: float | None
    utility: float | None
    met: bool | None
    recent: float | None
    """Utility in the newest sub-window alone."""
    recent_latency_s: float | None
    samples: tuple[Sample, ...]
    trouble: str = ""
    """Why the job cannot be judged although it was measured: what its utility did; empty if it can."""

    @property
    def worth(self) -> float:
        """The utility when the intent is met."""
        return self.job.intent.worth

    @property
    def satisfaction(self) -> float | None:
        """Utility as a share of the maximum."""
        return None if self.utility is None else self.utility / self.worth

    def is_new(self, warm_up_s: float) -> bool:
        """Whether the job was measured for too short a time to be judged."""
        return self.span is None or self.span.seconds < warm_up_s - 1e-6

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing was put out since the start, or nothing says how late or how much: nothing can be judged."""
        unknown = self.latency_s is None or self.juice is None
        return self.span is not None and unknown and self.utility is None

    @property
    def lag_unknown(self) -> bool:
        """Whether the job was measured and its sources do not say how many rows wait: its juice is not known."""
        return self.span is not None and self.juice is None


@dataclass(frozen=True, slots=True)
class View:
    """All jobs and hosts at one moment."""

    at_s: float
    jobs: Mapping[str, JobView]
    hosts: tuple[HostReading, ...]
    unread: frozenset[str]
    steady: tuple[HostReading, ...] | None = None
    """The hosts with the least that was wanted of each in the window; None: only one moment is known."""

    @property
    def congested(self) -> bool | None:
        """Whether the cluster was congested throughout the window."""
        return cluster_congested(self.lasting)

    @property
    def lasting(self) -> tuple[HostReading, ...]:
        """What was wanted of each host throughout the window."""
        return self.hosts if self.steady is None else self.steady

    @property
    def suspects(self) -> dict[str, HostReading]:
        """Hosts that have been silent for too long."""
        return {host.name: host for host in self.hosts if host.suspect}


def view_of(
    windows: Windows, snapshot: Snapshot, jobs: Mapping[str, Job], since_s: Mapping[str, float], settings: Settings
) -> View:
    """Judge every job on its window; `since_s` cuts a job's window after an action that has just settled.

    A job that could not be read has no measurements, however fresh the last ones were.
    """
    views = {
        name: _job_view(
            job,
            snapshot.allocation[name],
            windows.samples.get(name, ()) if name not in windows.unread else (),
            since_s.get(name, 0.0),
            settings,
        )
        for name, job in jobs.items()
        if name in snapshot.allocation  # one that came after the others were read has its turn in the next round
    }
    return View(snapshot.at_s, views, snapshot.hosts, windows.unread, steady_hosts(windows, snapshot.hosts))


def with_output(view: View) -> View:
    """The view as people are told it: a job that has put out no row yet does not meet its intent, it is being measured.

    Decisions are made on the view as it is: a job whose rows were all processed needs no help, whether or not output is due.
    """
    measuring = {
        name: dataclasses.replace(job, met=None, utility=None, latency_s=None)
        for name, job in view.jobs.items()
        if job.met and not _puts_out(job)
    }
    return dataclasses.replace(view, jobs={**view.jobs, **measuring}) if measuring else view


def _puts_out(job: JobView) -> bool:
    return job.span is not None and _has_output(job.job.graph, job.span)


def _job_view(
    job: Job, allocation: JobAllocation, readings: tuple[Sample, ...], since_s: float, settings: Settings
) -> JobView:
    """The window never spans two allocations of the job; the newest sub-window may, and shows what the change cost."""
    samples = tuple(
        sample
        for sample in readings
        if sample.at_s >= since_s - 1e-6 and sample.reading.version == readings[-1].reading.version
    )
    recent_latency_s, recent = sub_window(job, newest(readings, 1), settings)
    span = span_of(samples)
    if span is None:
        return JobView(job, allocation, None, None, None, None, None, recent, recent_latency_s, samples)
    juice = job_juice(job.graph, span)
    latency_s = _latency_s(job, span, juice, settings)
    try:
        utility = job.intent.utility(latency_s, juice, settings.juice_tolerance)
        met = job.intent.met(latency_s, juice, settings.juice_tolerance)
    except IntentError as error:
        return JobView(job, allocation, span, latency_s, juice, None, None, None, recent_latency_s, samples, str(error))
    return JobView(job, allocation, span, latency_s, juice, utility, met, recent, recent_latency_s, samples)


def sub_window(job: Job, samples: tuple[Sample, ...], settings: Settings) -> tuple[float | None, float | None]:
    """Latency and utility between two readings."""
    span = span_of(samples)
    if span is None:
        return None, None
    juice_matters = job.intent.juice is not None or span.latency is None
    juice = job_juice(job.graph, span) if juice_matters else None
    latency_s = _latency_s(job, span, juice, settings)
    return latency_s, utility_of(job, latency_s, juice, settings)


def utility_of(job: Job, latency_s: float | None, juice: float | None, settings: Settings) -> float | None:
    """Utility at this latency and juice; None if it is not known, or if the job's utility fails."""
    try:
        return job.intent.utility(latency_s, juice, settings.juice_tolerance)
    except IntentError:
        return None


def _latency_s(job: Job, span: Span, juice: float | None, settings: Settings) -> float | None:
    """Latency as the intent asks for it; None while it is being measured."""
    intent = job.intent
    if span.latency is None:
        return None if intent.latency_s is None else _latency_without_output_s(job, span, juice, settings)
    if intent.percentile is None:
        return span.latency.mean_s
    return span.latency.percentile_s(intent.percentile)


def _latency_without_output_s(job: Job, span: Span, juice: float | None, settings: Settings) -> float | None:
    """Nothing was due (all input was processed, a filter dropped it): 0. Or rows wait, for the length of the span at least.

    Before its first output a job is neither fine nor late: it is measured until it has had time to warm up. Rows that waited
    before the start do not make it later than that. Nothing is known of rows either that do not say when they arrived.
    """
    if any(span.rows_in(sink) > 0 for sink in job.graph.sinks):
        return None
    waits = in_one_epoch(span) or (juice is not None and juice <= NOTHING_DUE)
    if not waits and juice is None:
        return None
    if not has_worked(job.graph, span):
        return span.seconds if waits and span.seconds >= settings.warm_up_s - 1e-6 else None
    return max(span.seconds, _age_s(span)) if waits else 0.0


def has_worked(graph: Graph, span: Span) -> bool:
    """Whether any row has reached a sink since the job started, or rows were processed in this span and none was due."""
    return _has_output(graph, span) or any(span.processed(source, OUTSIDE) > 0 for source in graph.sources)


def _has_output(graph: Graph, span: Span) -> bool:
    """Whether any row has reached a sink since the job started."""
    sinks = (span.last.reading.operators[sink].processed for sink in graph.sinks)
    return any(rows > 0 for processed in sinks for rows in processed.values())


def in_one_epoch(span: Span) -> bool:
    """Whether an epoch was in flight during all of the span: its rows wait, whatever the source says."""
    spent_s = _in_epochs_s(span)
    return spent_s is not None and spent_s > 0 and epoch_s(span) is None and spent_s >= NEARLY * span.seconds


NEARLY = 0.9
"""Share of a span that counts as all of it: readings are not taken at the very moment at which an epoch starts."""
NOTHING_DUE = 0.999
"""Juice from which on a job without output is taken to have dropped its rows, not to hold them back."""


def _age_s(span: Span) -> float:
    """How long it took the rows that wait to arrive."""
    rate = span.arrival_rows_s()
    return (span.last.reading.backlog or 0.0) / rate if rate > 0 else 0.0
