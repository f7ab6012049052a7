"""Turn windows into juice, capacity, congestion, latency and utility (Henge, sections 4 to 6), and into the view of a round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.config import Settings
from headgate.core.model import OUTSIDE, Graph, HostReading, Job, JobAllocation, Snapshot
from headgate.core.windows import (
    ENOUGH_EPOCHS,
    Sample,
    Span,
    Windows,
    epoch_s,
    grace_s,
    in_epochs_s,
    newest,
    span_of,
)
from headgate.errors import IntentError

# -- juice (Henge, section 6) ----------------------------------------------------------------------------------------------------


def _source_juice(span: Span, source: str) -> float:
    """Share of the arrived rows that are not late; with epochs, a row is late after waiting for two periods.

    At the start of a job no row can be late yet, which says nothing about whether the job keeps up: from there, all growth counts.
    """
    arrived = span.arrived(source)
    if arrived <= 0:
        waits = span.last.reading.arrived[source] > span.last.reading.operators[source].processed[OUTSIDE]
        return 0.0 if waits and span.processed(source, OUTSIDE) <= 0 else 1.0
    rows_s = arrived / span.seconds
    before, after = (
        _waiting(sample, source) - rows_s * (age_s + grace_s(span))
        for sample, age_s in zip((span.first, span.last), span.ages_s(), strict=True)
    )
    if after <= 0:
        return 1.0
    grown = after - (before if _from_start(span) else max(0.0, before))
    return min(1.0, max(0.0, 1 - grown / (rows_s * span.whole_epochs_s)))


def _from_start(span: Span) -> bool:
    """Whether the span begins before the job has finished enough epochs for a steady backlog."""
    return span.first.reading.epochs is not None and span.first.reading.epochs < ENOUGH_EPOCHS


def _waiting(sample: Sample, source: str) -> float:
    return sample.reading.arrived[source] - sample.reading.operators[source].processed[OUTSIDE]


def _edge_shares(graph: Graph, span: Span, parent: str, child: str) -> tuple[float, float]:
    """Share of the parent's rows that the child processed, and share that the parent sent to the child."""
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
    """Juice of a job (eq. 6, with sink weights): share of the ideal output that reached the sinks; None if the backlog is unknown.

    With equal weights the denominator is the number of sources, as in the paper. Eq. 5 is linear, so one pass over the operators
    sums over the sources.
    """
    if span.first.reading.backlog is None or span.last.reading.backlog is None:
        return None
    if span.last.reading.backlog == 0:
        return 1.0  # no backlog: skip the edges
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
    return 1.0 if share > 1 else share  # NaN stays NaN, so that the scheduler does not decide on it


# -- capacity and congestion (Henge, sections 5.1 and 5.2) -----------------------------------------------------------------------


def capacities(graph: Graph, span: Span) -> dict[str, float]:
    """Capacity of each operator (eq. 3): share of the span in which its busiest lane was busy.

    With epochs, the stages of a job run one after another: the slowest operator counts as busy for all time spent in epochs,
    the other operators in proportion.
    """
    busiest = {name: max(span.busy_s(name), default=0.0) for name in graph.operators}
    spent_s = in_epochs_s(span)
    if spent_s is None:
        return {name: min(1.0, busy / span.seconds) for name, busy in busiest.items()}
    slowest = max(busiest.values())
    share = min(1.0, spent_s / span.seconds)
    return {name: share * busy / slowest if slowest > 0 else 0.0 for name, busy in busiest.items()}


def cluster_congested(hosts: tuple[HostReading, ...]) -> bool | None:
    """Whether the majority of the hosts is congested; None if no host can be judged."""
    judged = [congested for host in hosts if (congested := host.congested) is not None]
    return None if not judged else sum(judged) * 2 > len(judged)


def steady_hosts(windows: Windows, now: tuple[HostReading, ...]) -> tuple[HostReading, ...]:
    """The current hosts with the lowest load and demand of each in the window: congestion counts only if it lasts for the window."""
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


def slot_wait(windows: Windows, now: tuple[HostReading, ...]) -> float | None:
    """Share of their time for which tasks waited for a slot in the window; None if no task ran, or tasks are unknown."""
    hosts = [host for _, hosts in windows.hosts for host in hosts] or now
    tasks = [(h.running, h.waiting) for h in hosts if not h.suspect and h.running is not None and h.waiting is not None]
    demand = sum(running + waiting for running, waiting in tasks)
    return sum(waiting for _, waiting in tasks) / demand if demand > 0 else None


# -- the scheduler's view --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as the scheduler sees it: measurements of the whole window and of the newest sub-window; None means unknown."""

    job: Job
    allocation: JobAllocation
    span: Span | None
    latency_s: float | None
    juice: float | None
    utility: float | None
    met: bool | None
    recent: float | None
    """Utility in the newest sub-window alone; None if unknown."""
    recent_latency_s: float | None
    samples: tuple[Sample, ...]
    trouble: str = ""
    """The error of the job's utility function, which keeps a measured job from being judged; empty without an error."""

    @property
    def worth(self) -> float:
        """The job's utility while it meets its intent."""
        return self.job.intent.worth

    @property
    def satisfaction(self) -> float | None:
        """Utility as a share of the job's worth, 0..1; None if the utility is unknown."""
        return None if self.utility is None else self.utility / self.worth

    def is_new(self, warm_up_s: float) -> bool:
        """Whether the job has less than `warm_up_s` seconds of measurements."""
        return self.span is None or self.span.seconds < warm_up_s - 1e-6

    @property
    def utility_unknown(self) -> bool:
        """Whether the measured job has no utility because its latency or juice is unknown, as before its first output."""
        unknown = self.latency_s is None or self.juice is None
        return self.span is not None and unknown and self.utility is None

    @property
    def share(self) -> int | None:
        """Current weight of the job when slots are short; None if the engine has no shares."""
        return (
            self.samples[-1].reading.share if self.samples and self.allocation.share is None else self.allocation.share
        )

    @property
    def lag_unknown(self) -> bool:
        """Whether the juice of a measured job is unknown, because its sources do not report their backlog."""
        return self.span is not None and self.juice is None


@dataclass(frozen=True, slots=True)
class View:
    """All jobs and hosts in one round."""

    at_s: float
    jobs: Mapping[str, JobView]
    hosts: tuple[HostReading, ...]
    unread: frozenset[str]
    steady: tuple[HostReading, ...] | None = None
    """The hosts with the lowest load and demand of each in the window; None if only the current readings are known."""
    slot_wait: float | None = None
    """Share of their time for which tasks waited for a slot in the window, 0..1; None if no task ran, or tasks are unknown."""

    congested: bool | None = field(init=False, repr=False, compare=False)
    """Whether the cluster was congested throughout the window; None if unknown. Computed once, because rules read the value per job."""
    suspects: dict[str, HostReading] = field(init=False, repr=False, compare=False)
    """Hosts whose last heartbeat is too old, by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "congested", cluster_congested(self.lasting))
        object.__setattr__(self, "suspects", {host.name: host for host in self.hosts if host.suspect})

    @property
    def lasting(self) -> tuple[HostReading, ...]:
        """The hosts with the load and demand that lasted throughout the window."""
        return self.hosts if self.steady is None else self.steady


def view_of(
    windows: Windows, snapshot: Snapshot, jobs: Mapping[str, Job], since_s: Mapping[str, float], settings: Settings
) -> View:
    """Compute latency, juice and utility of every job from its window, which starts no earlier than the job's `since_s`.

    A job without a reading in this round has no measurements, however fresh its last readings are.
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
        if name in snapshot.allocation  # a job that started after the snapshot joins in the next round
    }
    return View(
        snapshot.at_s,
        views,
        snapshot.hosts,
        windows.unread,
        steady_hosts(windows, snapshot.hosts),
        slot_wait(windows, snapshot.hosts),
    )


def with_output(view: View) -> View:
    """The view for people: a job without any output yet counts as being measured, not as meeting its intent.

    The scheduler uses the original view: a job that has processed all its rows needs no help, with or without output.
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
    """The view of one job; its window covers one allocation only, its newest sub-window may include the cost of a change."""
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
    """Latency in seconds and utility between the first and the last sample; None if unknown."""
    span = span_of(samples)
    if span is None:
        return None, None
    juice_matters = job.intent.juice is not None or span.latency is None
    juice = job_juice(job.graph, span) if juice_matters else None
    latency_s = _latency_s(job, span, juice, settings)
    return latency_s, utility_of(job, latency_s, juice, settings)


def utility_of(job: Job, latency_s: float | None, juice: float | None, settings: Settings) -> float | None:
    """Utility at this latency and juice; None if it is unknown or if the job's utility function fails."""
    try:
        return job.intent.utility(latency_s, juice, settings.juice_tolerance)
    except IntentError:
        return None


def _latency_s(job: Job, span: Span, juice: float | None, settings: Settings) -> float | None:
    """Mean or percentile of the latency, as the intent asks, in seconds; None while it is being measured."""
    intent = job.intent
    if span.latency is None:
        return None if intent.latency_s is None else _latency_without_output_s(job, span, juice, settings)
    if intent.percentile is None:
        return span.latency.mean_s
    return span.latency.percentile_s(intent.percentile)


def _latency_without_output_s(job: Job, span: Span, juice: float | None, settings: Settings) -> float | None:
    """Latency of a job without output in the span: 0 if a filter dropped all its input, the age of the backlog if rows wait.

    A job that has not yet processed rows has no latency until `warm_up_s` has passed, and then the length of the span: a backlog from
    before the start adds nothing. The latency is None (unknown) for output rows without an arrival time, and for an unknown backlog.
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
    """Whether any row has reached a sink since the job started, or a source has processed rows in this span."""
    return _has_output(graph, span) or any(span.processed(source, OUTSIDE) > 0 for source in graph.sources)


def _has_output(graph: Graph, span: Span) -> bool:
    """Whether any row has reached a sink since the job started."""
    sinks = (span.last.reading.operators[sink].processed for sink in graph.sinks)
    return any(rows > 0 for processed in sinks for rows in processed.values())


def in_one_epoch(span: Span) -> bool:
    """Whether one epoch ran during all of the span: its rows wait, whatever the source reports."""
    spent_s = in_epochs_s(span)
    return spent_s is not None and spent_s > 0 and epoch_s(span) is None and spent_s >= NEARLY * span.seconds


NEARLY = 0.9
"""Share of a span that counts as the whole span: a reading rarely coincides with the start of an epoch."""
NOTHING_DUE = 0.999
"""Juice above which a job without output counts as having dropped its rows; at or below, its rows wait."""


def _age_s(span: Span) -> float:
    """Seconds of input in the backlog, at the arrival rate of the span."""
    rate = span.arrival_rows_s()
    return (span.last.reading.backlog or 0.0) / rate if rate > 0 else 0.0
