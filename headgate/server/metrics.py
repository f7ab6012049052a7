"""`/metrics` for Prometheus: the status board and the tally of rounds, read at each scrape.

A value that is not known has no sample; it is never 0. The number of series is bounded: jobs, operators and hosts beyond the settings share
series labelled `other`, and only where a sum makes sense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

import headgate
from headgate.config import ServiceSettings
from headgate.core.hosts import HostPhase
from headgate.core.metrics import JobView, capacities
from headgate.core.model import HOST_KINDS, ActionKind, HostReading, OperatorReading
from headgate.ports import JobPhase
from headgate.server.board import STALE
from headgate.server.service import Service
from headgate.server.status import JobStatus, LeasesStatus, Status, Tally

PATH = "/metrics"
OTHER = "other"
"""Label value of the jobs, operators or hosts that share one series; a job named `other` shares the series, too."""
TENANT = "tenant"
JOB = ("job_name", TENANT)
"""Labels of a job; no label is named `job`, because Prometheus sets `job` to the name of the scrape job."""
Labels = tuple[str, ...]
Sample = tuple[Labels, float]


class Type(Enum):
    """The type of a metric in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Described:
    """A metric: its name as Prometheus shows it, its meaning, its labels, and whether jobs without own series are summed."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    type: Type = Type.GAUGE
    is_summed: bool = False

    def family(self, samples: Iterable[Sample]) -> Metric:
        """Return the metric with its samples."""
        kind = CounterMetricFamily if self.type is Type.COUNTER else GaugeMetricFamily
        found = kind(self.name, self.text, labels=self.labels)
        for labels, value in samples:
            found.add_metric(labels, value)
        return found


Gauge = Described


def counter(name: str, text: str, labels: tuple[str, ...] = (), is_summed: bool = False) -> Described:
    """Return a metric that only grows, until the service restarts."""
    return Described(name, text, labels, Type.COUNTER, is_summed)


# -- jobs --------------------------------------------------------------------------------------------------------------

ReadJob = Callable[[JobStatus], float | None]
JOB_METRICS: Mapping[Described, ReadJob] = {
    Gauge("headgate_job_worth", "Utility of the job when its intent is met.", JOB, is_summed=True): lambda job: (
        job.worth
    ),
    Gauge("headgate_job_utility", "Utility of the job as it runs now.", JOB, is_summed=True): lambda job: job.utility,
    Gauge("headgate_job_met", "1 if the job meets its intent, 0 if it misses it.", JOB): lambda job: _flag(job.met),
    Gauge("headgate_job_intent_latency_seconds", "Latency that the intent of the job asks for.", JOB): lambda job: (
        job.latency_intent_s
    ),
    Gauge(
        "headgate_job_judged_latency_seconds",
        "Latency of the job as its intent measures it: a mean or a percentile.",
        JOB,
    ): lambda job: job.latency_s,
    Gauge(
        "headgate_job_mean_latency_seconds", "Mean latency of the rows that the job put out in the window.", JOB
    ): lambda job: job.latency.mean_s if job.latency is not None else None,
    Gauge("headgate_job_intent_juice_ratio", "Juice that the intent of the job asks for.", JOB): lambda job: (
        job.juice_intent
    ),
    Gauge("headgate_job_juice_ratio", "Share of the arriving input that the job processes.", JOB): lambda job: (
        job.juice
    ),
    Gauge(
        "headgate_job_arrival_rows_per_second", "Rows that arrive at the sources of the job.", JOB, is_summed=True
    ): lambda job: job.arrival_rows_s,
    Gauge(
        "headgate_job_backlog_rows", "Rows that arrived and are not processed yet.", JOB, is_summed=True
    ): lambda job: job.backlog,
    Gauge("headgate_job_lanes", "Lanes of all operators of the job.", JOB, is_summed=True): lambda job: (
        sum(job.lanes.values()) if job.lanes else None
    ),
    Gauge("headgate_job_pace_seconds", "Time between two epoch starts of the job.", JOB): lambda job: job.pace_s,
    Gauge("headgate_job_share", "Weight of the job when slots are short.", JOB): lambda job: job.share,
    Gauge("headgate_job_reading_age_seconds", "Age of the reading that the job was measured on.", JOB): lambda job: (
        job.age_s
    ),
    Gauge(
        "headgate_job_stale", "1 if the last reading of the job is too old to judge the job by.", JOB, is_summed=True
    ): lambda job: float(job.stale),
    counter(
        "headgate_job_epochs_total", "Epochs that the job finished since its query started.", JOB, is_summed=True
    ): lambda job: job.epochs,
}
LATENCY = Gauge(
    "headgate_job_latency_seconds",
    "Latency of the rows that the job put out in the window, by percentile.",
    (*JOB, "percentile"),
)
PHASE = Gauge(
    "headgate_job_phase",
    "1 for the phase that the job is in, 0 for the other phases; a number of jobs for `other`.",
    (*JOB, "phase"),
    is_summed=True,
)
FAILURES = counter(
    "headgate_job_failures_total", "Times that the job failed since the service started.", JOB, is_summed=True
)
VERDICTS = counter(
    "headgate_job_rounds_total",
    "Rounds since the service started in which the job met or missed its intent.",
    (*JOB, "verdict"),
    is_summed=True,
)
STATE = Gauge(
    "headgate_job_state_bytes", "Size of the checkpoints of the job's keyed state on disk.", JOB, is_summed=True
)
COST = counter(
    "headgate_job_cost_total", "Money that the hosts of the job have cost, as the bill divides it.", JOB, is_summed=True
)


def _flag(value: bool | None) -> float | None:
    return None if value is None else float(value)


# -- operators ---------------------------------------------------------------------------------------------------------

OPERATOR = (*JOB, "operator")
ReadOperator = Callable[[OperatorReading], float | None]
OPERATOR_METRICS: Mapping[Described, ReadOperator] = {
    counter(
        "headgate_operator_rows_total",
        "Rows that the operator processed since its job started.",
        OPERATOR,
        is_summed=True,
    ): lambda reading: sum(reading.processed.values()),
    counter(
        "headgate_operator_sent_rows_total", "Rows that the operator sent to other operators.", OPERATOR, is_summed=True
    ): lambda reading: sum(reading.sent.values()) if reading.sent else None,
    counter(
        "headgate_operator_busy_seconds_total",
        "Time that the lanes of the operator were busy, since its lanes last changed.",
        OPERATOR,
        is_summed=True,
    ): lambda reading: sum(reading.busy_s) if reading.busy_s else None,
    Gauge(
        "headgate_operator_queued_rows",
        "Rows that wait in front of the lanes of the operator.",
        OPERATOR,
        is_summed=True,
    ): lambda reading: sum(reading.queued) if reading.queued is not None else None,
}
OPERATOR_LANES = Gauge("headgate_operator_lanes", "Lanes of the operator.", OPERATOR, is_summed=True)
CAPACITY = Gauge(
    "headgate_operator_capacity_ratio",
    "Share of the window in which the busiest lane of the operator was busy.",
    OPERATOR,
)

# -- hosts and money ---------------------------------------------------------------------------------------------------

HOST = ("host",)
HOST_METRICS: Mapping[Described, Callable[[HostReading], float | None]] = {
    Gauge("headgate_host_cores", "Cores of the host.", HOST, is_summed=True): lambda host: host.cores,
    Gauge("headgate_host_load", "Lanes that run or want to run on the host.", HOST, is_summed=True): lambda host: (
        host.load
    ),
    Gauge("headgate_host_memory_used_ratio", "Share of the host's memory in use.", HOST): lambda host: host.memory_used,
}
LEASES = Gauge("headgate_leases", "Leased hosts by phase.", ("phase",))
LOST = counter(
    "headgate_hosts_lost_total", "Hosts that left although no release was decided, since the service started."
)
BILL_METRICS: Mapping[Described, Callable[[LeasesStatus], float]] = {
    counter("headgate_bill_cost_total", "Money that all leased hosts have cost."): lambda leases: leases.bill.cost,
    counter("headgate_bill_btus_total", "Billing time units that were paid."): lambda leases: leases.bill.paid_btus,
    Gauge("headgate_bill_wasted_seconds", "Paid time in which hosts were not used."): lambda leases: (
        leases.bill.wasted_s
    ),
    Gauge("headgate_spending_per_hour", "Price of all hosts that are leased now."): lambda leases: (
        leases.spending_per_hour
    ),
}

# -- the control loop --------------------------------------------------------------------------------------------------

INFO = Gauge("headgate_info", "1; the labels name the version and the policy.", ("version", "policy"))
HEALTHY = Gauge("headgate_healthy", "1 if the control loop turns and the engine answers.")
JOBS = Gauge("headgate_jobs", "Jobs by phase.", ("phase",))
UTILITY = Gauge("headgate_utility", "Total utility of all jobs that are not paused.")
WORTH = Gauge("headgate_worth", "Total worth of all jobs that are not paused.")
SATISFACTION = Gauge(
    "headgate_satisfaction_ratio", "Total utility as a share of the worth of the jobs that are judged."
)
OBJECTIVE = Gauge(
    "headgate_objective_ratio", "Share of rounds in which an intent should be met: setting `objective_share`."
)
LAST_ROUND = Gauge("headgate_last_round_timestamp_seconds", "When the last round was completed, as a Unix time.")
ROUND = Described(
    "headgate_round_duration_seconds", "Duration of rounds of the control loop, failed ones too.", type=Type.SUMMARY
)
FAILED_ROUNDS = counter("headgate_rounds_failed_total", "Rounds that were not completed since the service started.")
ACTIONS = counter(
    "headgate_actions_total",
    "Actions that were applied, by kind: about jobs since the service started, about hosts since the first lease.",
    ("kind",),
)

ALL: tuple[Described, ...] = (
    *(INFO, HEALTHY, JOBS, UTILITY, WORTH, SATISFACTION, OBJECTIVE, LAST_ROUND, ROUND, FAILED_ROUNDS, ACTIONS),
    *JOB_METRICS,
    *(LATENCY, PHASE, FAILURES, VERDICTS, STATE, COST),
    *OPERATOR_METRICS,
    *(OPERATOR_LANES, CAPACITY),
    *HOST_METRICS,
    *(LEASES, LOST),
    *BILL_METRICS,
)


def reference() -> str:
    """Return every metric as a row of a Markdown table."""
    rows = [
        f"| `{one.name}` | {one.type.value} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |"
        for one in ALL
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


# -- the bound on series -----------------------------------------------------------------------------------------------


def own_series(names: Iterable[str], most: int) -> dict[str, str]:
    """The label of each name: the first `most` names have their own, the rest share `other`.

    >>> own_series(["a", "other", "b", "c"], 2)
    {'a': 'a', 'other': 'other', 'b': 'b', 'c': 'other'}
    """
    named = frozenset([name for name in names if name != OTHER][:most])
    return {name: name if name in named else OTHER for name in names}


def bounded(metric: Described, samples: Iterable[tuple[Labels, float | None]]) -> Metric:
    """The metric without unknown values; samples of the same labels are summed, or left out where a sum has no meaning."""
    sums: dict[Labels, float] = {}
    for labels, value in samples:
        if value is not None and (metric.is_summed or not _is_shared(metric, labels)):
            sums[labels] = sums.get(labels, 0.0) + value
    return metric.family(sums.items())


def _is_shared(metric: Described, labels: Labels) -> bool:
    """Whether these labels stand for several jobs, operators or hosts; a tenant may be named `other`."""
    return any(value == OTHER for name, value in zip(metric.labels, labels, strict=True) if name != TENANT)


# -- the collector -----------------------------------------------------------------------------------------------------


class Collector:
    """Collects the metrics of a service at each scrape."""

    def __init__(self, service: Service, settings: ServiceSettings) -> None:
        self._service, self._settings = service, settings

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics at this moment."""
        status, tally = self._service.status(), self._service.tally
        yield from self._loop(status, tally)
        yield from self._jobs(status, tally)
        yield from self._operators(status)
        yield from self._hosts(status, tally)
        if status.leases is not None:
            yield from self._money(status.leases, status)

    def _loop(self, status: Status, tally: Tally) -> Iterator[Metric]:
        health, fresh = self._service.health(), status.at_s is not None and status.phase != STALE
        phases = Counter(job.state for job in status.jobs.values())
        yield INFO.family([((headgate.__version__, status.policy), 1.0)])
        yield HEALTHY.family([((), float(health.healthy))])
        yield JOBS.family(((phase.value,), float(phases[phase.value])) for phase in JobPhase)
        yield _single(UTILITY, status.score if fresh else None)
        yield WORTH.family([((), status.max_score)])
        yield _single(SATISFACTION, status.satisfaction)
        yield OBJECTIVE.family([((), self._settings.objective_share)])
        picture = self._service.board.picture()
        yield _single(LAST_ROUND, picture.taken_s if picture is not None else None)
        yield SummaryMetricFamily(ROUND.name, ROUND.text, tally.rounds + tally.failed_rounds, tally.seconds)
        yield FAILED_ROUNDS.family([((), float(tally.failed_rounds))])
        yield ACTIONS.family(_actions(tally, status.leases))

    def _jobs(self, status: Status, tally: Tally) -> Iterator[Metric]:
        labels = self._job_labels(status)
        named = [(labels[name], name, job) for name, job in status.jobs.items()]
        for metric, read in JOB_METRICS.items():
            yield bounded(metric, ((label, read(job)) for label, _, job in named))
        yield bounded(LATENCY, (one for label, _, job in named for one in _percentiles(label, job)))
        yield bounded(
            PHASE,
            (((*label, phase.value), float(job.state == phase.value)) for label, _, job in named for phase in JobPhase),
        )
        yield bounded(FAILURES, ((label, float(tally.failures[name])) for label, name, _ in named))
        sizes = self._service.sizes.of(status.jobs)
        yield bounded(STATE, ((label, sizes.get(name)) for label, name, _ in named))
        yield bounded(VERDICTS, (one for label, name, _ in named for one in _verdicts(label, name, tally)))

    def _job_labels(self, status: Status) -> dict[str, Labels]:
        own = own_series(status.jobs, self._settings.metrics_jobs)
        return {name: (own[name], job.tenant if own[name] != OTHER else OTHER) for name, job in status.jobs.items()}

    def _operators(self, status: Status) -> Iterator[Metric]:
        readings = list(self._readings(status))
        for metric, read in OPERATOR_METRICS.items():
            yield bounded(metric, ((one.labels, read(one.reading)) for one in readings))
        yield bounded(OPERATOR_LANES, ((one.labels, one.lanes) for one in readings))
        yield bounded(CAPACITY, ((one.labels, one.capacity) for one in readings))

    def _readings(self, status: Status) -> Iterator[_OperatorSample]:
        picture, labels = self._service.board.picture(), self._job_labels(status)
        view = picture.view if picture is not None else None
        for name, job in status.jobs.items():
            measured = view.jobs.get(name) if view is not None and job.state == JobPhase.RUNNING.value else None
            if measured is not None:
                yield from _operators_of(measured, labels[name], self._settings.metrics_operators)

    def _hosts(self, status: Status, tally: Tally) -> Iterator[Metric]:
        own = own_series([host.name for host in status.hosts], self._settings.metrics_hosts)
        for metric, read in HOST_METRICS.items():
            yield bounded(metric, (((own[host.name],), read(host)) for host in status.hosts))
        yield LOST.family([((), float(tally.hosts_lost))])

    def _money(self, leases: LeasesStatus, status: Status) -> Iterator[Metric]:
        phases = Counter(host.phase for host in leases.hosts)
        yield LEASES.family(((phase.value,), float(phases[phase.value])) for phase in HostPhase)
        for metric, read in BILL_METRICS.items():
            yield metric.family([((), read(leases))])
        labels, costs = self._job_labels(status), leases.bill.cost_by_job
        yield bounded(COST, ((labels[name], costs.get(name)) for name in status.jobs))


@dataclass(frozen=True, slots=True)
class _OperatorSample:
    """One operator of a running job."""

    labels: Labels
    reading: OperatorReading
    lanes: float | None
    capacity: float | None


def _operators_of(job: JobView, labels: Labels, most: int) -> Iterator[_OperatorSample]:
    if job.span is None:
        return
    busy, lanes = capacities(job.job.graph, job.span), job.allocation.lanes
    readings = job.span.last.reading.operators
    for name, label in own_series(readings, most).items():
        # A fused operator has no lanes: its time counts in the operator before it, and its own time is not known.
        busy_s = busy.get(name) if readings[name].busy_s else None
        yield _OperatorSample((*labels, label), readings[name], lanes.get(name), busy_s)


def _single(metric: Described, value: float | None) -> Metric:
    return metric.family([((), value)] if value is not None else [])


def _percentiles(labels: Labels, job: JobStatus) -> Iterator[tuple[Labels, float]]:
    if job.latency is not None:
        for percentile, value_s in (("50", job.latency.p50_s), ("95", job.latency.p95_s), ("99", job.latency.p99_s)):
            yield (*labels, percentile), value_s


def _verdicts(labels: Labels, name: str, tally: Tally) -> Iterator[tuple[Labels, float]]:
    met = tally.met[name]
    yield (*labels, "met"), float(met)
    yield (*labels, "missed"), float(tally.judged[name] - met)


def _actions(tally: Tally, leases: LeasesStatus | None) -> Iterator[Sample]:
    for kind in ActionKind:
        if kind not in HOST_KINDS:
            yield (kind.value,), float(tally.actions[kind.value])
    if leases is not None:
        bill = leases.bill
        yield (ActionKind.LEASE.value,), float(bill.leases)
        yield (ActionKind.RELEASE.value,), float(bill.releases + bill.early_releases)


# -- the route ---------------------------------------------------------------------------------------------------------


def registry_of(service: Service, settings: ServiceSettings) -> CollectorRegistry:
    """Return a registry with the metrics of one service, and no metrics of this process."""
    registry = CollectorRegistry()
    registry.register(Collector(service, settings))
    return registry


def add_metrics(app: FastAPI, service: Service, settings: ServiceSettings) -> None:
    """Add the route that Prometheus scrapes."""
    registry = registry_of(service, settings)

    @app.get(PATH, include_in_schema=False)
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
