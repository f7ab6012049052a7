"""From the readings of running jobs to a scenario of the epoch model that behaves like them: frozen data in, frozen data out.

Readings contain operators and their inputs, lanes, pace, input, selectivity and the duration of epochs. The calibration estimates:

- Seconds per row of an operator, by a line through (rows per task, busy seconds per task) of the intervals between readings. Where
  the intervals are alike, no line can be fitted, and all busy time counts as time for rows. Where rows vary besides a steady
  trend over time, the trend is ignored, because a JVM that becomes faster makes tasks shorter and epochs smaller.
- The fixed part of an epoch: the duration of the epoch without the time for rows and the waits of tasks for slots.
- The share of the busy time that takes a core: the used cores, less the model's usual cost of epochs and tasks. All operators have
  the same share, because Spark does not count the core seconds of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.model import OUTSIDE, HostReading, JobAllocation, JobReading, Snapshot
from headgate.core.windows import ENOUGH_EPOCHS, Sample, Span
from headgate.journal.definitions import JobDefinition, OperatorLimits
from headgate.loads import Steady
from headgate.sim import constants
from headgate.sim.spec import EpochCosts, Event, HostSpec, JobSpec, OperatorSpec, Scenario

ALIKE = 0.05
"""Spread of the rows per task, as a share of their mean, at which a line counts as much as the assumption that all time is for rows."""
LEAST_FOR_TREND = 6
"""The number of intervals from which on a trend over time is removed from rows and busy time."""
LEAST_FIXED_S = 0.001
MOST_FIXED_CORES = 4.0
"""The core seconds of epochs and tasks are at most this multiple of the costs that the model assumes."""
DURATION_S = 900.0


@dataclass(frozen=True, slots=True)
class JobMeasurements:
    """Measurements of running jobs: the newest readings, and the intents, definitions and settings that readings lack."""

    snapshots: Sequence[Snapshot]
    intents: Mapping[str, Intent]
    definitions: Mapping[str, JobDefinition]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A scenario that behaves like the running jobs, and the jobs that are left out of the scenario."""

    scenario: Scenario
    left_out: Mapping[str, str]
    """The reason, in a sentence, for each job that is left out."""


def calibrate(measured: JobMeasurements) -> Calibrated:
    """The scenario of the jobs that have been measured for long enough."""
    spans = {name: _spans(measured.snapshots, name) for name in measured.snapshots[-1].allocation}
    left_out = {name: why for name, found in spans.items() if (why := _why_not(name, found, measured.intents))}
    kept = {name: found for name, found in spans.items() if name not in left_out}
    hosts = _hosts(measured.snapshots)
    since_s = measured.snapshots[-1].at_s - measured.settings.window_s
    fits = _without_waits({name: _fitted(found, _slots(hosts), since_s) for name, found in kept.items()}, measured)
    shares = _core_shares(fits, measured.snapshots)
    jobs = tuple(_spec(name, fits[name], shares, measured) for name in kept)
    outside = tuple(
        Event(0.0, "cpu-load", host.name, shares.outside * host.cores / _cores(hosts))
        for host in hosts
        if shares.outside > 0
    )
    scenario = Scenario(
        "what-if", "", "", "epochs", DURATION_S, 0.0, hosts, jobs, outside, settings=measured.settings
    )  # fmt: skip
    return Calibrated(scenario, left_out)


def _why_not(name: str, spans: Sequence[Span], intents: Mapping[str, Intent]) -> str:
    if name not in intents:
        return f"the journal has no intent of {name}"
    if not spans:
        return f"{name} was not read twice with the same lanes and pace"
    if spans[-1].last.reading.epochs is None:
        return f"{name} does not run in epochs, and only epochs are simulated"
    epochs = sum(map(_epochs, spans))
    if epochs < ENOUGH_EPOCHS:
        return f"{name} finished {epochs} of the {ENOUGH_EPOCHS} epochs that a model needs"
    return ""


# -- intervals between readings --------------------------------------------------------------------------------------------------


def _spans(snapshots: Sequence[Snapshot], name: str) -> list[Span]:
    """Return the spans between consecutive readings between which the allocation stayed the same and counters grew."""
    read = [Sample(one.at_s, reading) for one in snapshots if (reading := one.jobs.get(name)) is not None]
    pairs = (Span(first, last, None) for first, last in pairwise(read) if last.at_s > first.at_s)
    return [span for span in pairs if _comparable(span.first.reading, span.last.reading)]


def _comparable(first: JobReading, last: JobReading) -> bool:
    """Whether two readings have the same allocation and counters that did not start again."""
    same = first.version == last.version and first.operators.keys() == last.operators.keys()
    return same and (last.epochs or 0) >= (first.epochs or 0) and _lanes(first) == _lanes(last)


def _lanes(reading: JobReading) -> dict[str, int]:
    return {name: len(one.busy_s) for name, one in reading.operators.items()}


def _epochs(span: Span) -> int:
    return (span.last.reading.epochs or 0) - (span.first.reading.epochs or 0)


def _in_epochs_s(span: Span) -> float:
    return (span.last.reading.in_epochs_s or 0.0) - (span.first.reading.in_epochs_s or 0.0)


# -- one job ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OperatorFit:
    """The measurements of one operator over all intervals."""

    inputs: tuple[str, ...]
    selectivity: float
    lanes: int
    """The number of lanes; 0 if the operator is fused with its input."""
    row_s: float
    """Busy seconds per row, for processing and waiting together."""
    skew_s: float
    """Seconds that the slowest lane takes longer than the mean lane, per row of an even share."""
    rows_s: float
    tasks_s: float
    """Tasks per second."""


@dataclass(frozen=True, slots=True)
class _JobFit:
    """The measurements of one job over all intervals."""

    operators: Mapping[str, _OperatorFit]
    rates: Mapping[str, float]
    """Input of each source, in rows per second."""
    fixed_s: float
    """Seconds of an epoch that are not for rows."""
    stages_s: float
    """Seconds of an epoch in which its stages run one after another, for rows."""
    epochs_s: float
    """Epochs per second."""


def _fitted(spans: Sequence[Span], slots: int, since_s: float) -> _JobFit:
    """Fit a job; the input rate comes from the newest window, all other values from all intervals."""
    ended = [span for span in spans if _epochs(span) > 0]
    reading = spans[-1].last.reading
    operators = {name: _operator(name, reading, ended) for name in reading.operators}
    seconds, epochs = sum(span.seconds for span in spans), sum(map(_epochs, spans))
    rows_s = sum(_staged_s(name, fit, ended, slots) for name, fit in operators.items() if fit.lanes)
    return _JobFit(
        operators,
        _rates([span for span in spans if span.first.at_s >= since_s - 1e-6] or spans[-1:]),
        max(LEAST_FIXED_S, (sum(map(_in_epochs_s, spans)) - rows_s) / epochs),
        rows_s / epochs,
        epochs / seconds,
    )


def _without_waits(fits: Mapping[str, _JobFit], measured: JobMeasurements) -> dict[str, _JobFit]:
    """Subtract waits for slots from the fixed time of epochs; as in the model, the wait of an epoch is a share of its time for rows."""
    busy = sum(one.rows_s * one.row_s for fit in fits.values() for one in fit.operators.values())
    waiting = _mean(measured.snapshots, "waiting")
    share = waiting / busy if waiting is not None and busy > 0 else 0.0
    return {
        name: replace(fit, fixed_s=max(LEAST_FIXED_S, fit.fixed_s - share * fit.stages_s)) for name, fit in fits.items()
    }


def _rates(spans: Sequence[Span]) -> dict[str, float]:
    seconds = sum(span.seconds for span in spans)
    sources = spans[-1].last.reading.arrived
    return {source: sum(span.arrived(source) for span in spans) / seconds for source in sources}


def _operator(name: str, reading: JobReading, spans: Sequence[Span]) -> _OperatorFit:
    one = reading.operators[name]
    rows, seconds = sum(span.rows_in(name) for span in spans), sum(span.seconds for span in spans)
    children = len(one.sent)
    sent = sum(span.sent(name, child) for span in spans for child in one.sent)
    points = list(_points(name, spans))
    slowest_s = sum(max(busy) * len(busy) - sum(busy) for span in spans if (busy := span.busy_s(name)))
    return _OperatorFit(
        inputs=tuple(parent for parent in one.processed if parent != OUTSIDE),
        selectivity=sent / rows / children if rows > 0 and children else 1.0,
        lanes=len(one.busy_s),
        row_s=slope(points),
        skew_s=slowest_s / rows if rows > 0 else 0.0,
        rows_s=rows / seconds if seconds > 0 else 0.0,
        tasks_s=sum(tasks for _, _, tasks in points) / seconds if seconds > 0 else 0.0,
    )


def _points(name: str, spans: Sequence[Span]) -> Iterator[tuple[float, float, float]]:
    """(rows, busy seconds, tasks) of each interval."""
    for span in spans:
        busy = span.busy_s(name)
        if busy:
            yield span.rows_in(name), sum(busy), _epochs(span) * len(busy)


def slope(points: Sequence[tuple[float, float, float]]) -> float:
    """Seconds per row, from (rows, seconds, tasks) of intervals: the line through seconds and rows per task, never below 0.

    The more alike the intervals are, the closer the line is to one through the origin. The more the intervals vary besides a trend over
    time, the less the trend counts.

    >>> slope([(100, 1.0, 10), (100, 1.0, 10)])
    0.01
    >>> round(slope([(100, 2.0, 10), (300, 4.0, 10)]), 3)
    0.01
    """
    tasks = sum(count for _, _, count in points)
    rows, busy_s = sum(rows for rows, _, _ in points), sum(busy for _, busy, _ in points)
    if tasks <= 0 or rows <= 0:
        return 0.0
    mean, mean_s = rows / tasks, busy_s / tasks
    counts = [count for _, _, count in points if count]
    apart = [one / count - mean for one, _, count in points if count]
    apart_s = [busy / count - mean_s for _, busy, count in points if count]
    prior = (ALIKE * mean) ** 2
    line = _line(apart, apart_s, counts, (mean_s / mean, prior))
    line = _line(_without_trend(apart, counts), _without_trend(apart_s, counts), counts, (line, prior))
    return min(max(0.0, line), mean_s / mean)


def _line(
    apart: Sequence[float], apart_s: Sequence[float], counts: Sequence[float], before: tuple[float, float]
) -> float:
    """Return the slope of a line through deviations from the mean; `before` is the slope assumed beforehand, and its weight."""
    tasks, (slope_before, prior) = sum(counts), before
    variance = sum(count * one**2 for one, count in zip(apart, counts, strict=True)) / tasks
    together = sum(count * one * busy for one, busy, count in zip(apart, apart_s, counts, strict=True)) / tasks
    return (together + prior * slope_before) / (variance + prior)


def _without_trend(values: Sequence[float], counts: Sequence[float]) -> list[float]:
    """Remove the linear trend from values with mean 0; fewer than `LEAST_FOR_TREND` values stay as they are."""
    if len(values) < LEAST_FOR_TREND:
        return list(values)
    middle = sum(at * count for at, count in enumerate(counts)) / sum(counts)
    times = [at - middle for at in range(len(values))]
    spread = sum(count * at**2 for at, count in zip(times, counts, strict=True))
    trend = sum(count * at * value for at, value, count in zip(times, values, counts, strict=True)) / spread
    return [value - trend * at for at, value in zip(times, values, strict=True)]


def _staged_s(name: str, fit: _OperatorFit, spans: Sequence[Span], slots: int) -> float:
    """Seconds that the stage of an operator took for rows, in all epochs together."""
    total = 0.0
    for span in spans:
        lanes = len(span.last.reading.operators[name].busy_s)
        total += -(-lanes // slots) * (fit.row_s + fit.skew_s) * span.rows_in(name) / lanes
    return total


# -- cores -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CoreShares:
    """The use of the cores by all jobs together."""

    stretch: float
    """The factor by which everything took longer because cores were short."""
    busy: float
    """Core seconds per busy second of a lane."""
    fixed: float
    """Core seconds of epochs and tasks, as a multiple of the costs that the model assumes."""
    outside: float
    """Cores that processes outside the jobs want."""


def _core_shares(fits: Mapping[str, _JobFit], snapshots: Sequence[Snapshot]) -> _CoreShares:
    """Divide the used cores among rows, epochs and other processes."""
    load, used = _mean(snapshots, "load"), _mean(snapshots, "used")
    cores = sum(host.cores for host in snapshots[-1].hosts)
    if load is None or cores <= 0:
        return _CoreShares(1.0, 1.0, 1.0, 0.0)
    stretch = max(1.0, load / cores)
    taken = used if used is not None else load / stretch
    epochs = sum(fit.epochs_s for fit in fits.values()) * constants.EPOCH_FIXED_CORES_S
    tasks = sum(one.tasks_s for fit in fits.values() for one in fit.operators.values()) * constants.TASK_CORES_S
    busy = sum(one.rows_s * one.row_s for fit in fits.values() for one in fit.operators.values())
    share = min(1 / stretch, max(0.0, taken - epochs - tasks) / busy) if busy > 0 else 0.0
    fixed = (taken - share * busy) / (epochs + tasks) if epochs + tasks > 0 else 1.0
    outside = 0.0 if used is None else max(0.0, load - used * stretch)
    return _CoreShares(stretch, share, min(MOST_FIXED_CORES, fixed), outside)


def _mean(snapshots: Sequence[Snapshot], field: str) -> float | None:
    """Return the mean over time of a field, summed over all hosts; None if no snapshot has the field for every host."""
    sums = [_sum(snapshot.hosts, field) for snapshot in snapshots[1:]]
    known = [found for found in sums if found is not None]
    return sum(known) / len(known) if known else None


def _sum(hosts: Sequence[HostReading], field: str) -> float | None:
    values = [getattr(host, field) for host in hosts]
    return None if not values or None in values else sum(values)


def _hosts(snapshots: Sequence[Snapshot]) -> tuple[HostSpec, ...]:
    newest = next((one.hosts for one in reversed(snapshots) if one.hosts), ())
    return tuple(
        HostSpec(host.name, host.cores, 0.0, None if host.slots is None else round(host.slots)) for host in newest
    )


def _slots(hosts: Sequence[HostSpec]) -> int:
    return max(1, sum(host.slots or round(host.cores) for host in hosts))


def _cores(hosts: Sequence[HostSpec]) -> float:
    return sum(host.cores for host in hosts)


# -- the scenario ----------------------------------------------------------------------------------------------------------------


def _spec(name: str, fit: _JobFit, shares: _CoreShares, measured: JobMeasurements) -> JobSpec:
    allocation, reading = measured.snapshots[-1].allocation[name], measured.snapshots[-1].jobs.get(name)
    definition = measured.definitions.get(name)
    limits = definition.operators if definition is not None else {}
    tasks_s = sum(_tasks_s(fit, allocation, shares)) / _slots(_hosts(measured.snapshots))
    return JobSpec(
        name,
        tuple(_operator_spec(one, found, shares, allocation, limits) for one, found in fit.operators.items()),
        measured.intents[name],
        {source: Steady(rate) for source, rate in fit.rates.items()},
        definition.tenant if definition is not None else "default",
        allocation.pace_s or 0.0,
        epoch_costs=EpochCosts(
            max(LEAST_FIXED_S, fit.fixed_s / shares.stretch - tasks_s),
            constants.EPOCH_FIXED_CORES_S * shares.fixed,
            constants.TASK_CORES_S * shares.fixed,
        ),
        share=(reading.share if reading is not None else None) or 1,
        tenant_weight=definition.tenant_weight if definition is not None else 1.0,
    )


def _tasks_s(fit: _JobFit, allocation: JobAllocation, shares: _CoreShares) -> Iterator[float]:
    for name, one in fit.operators.items():
        yield allocation.lanes.get(name, one.lanes) * constants.TASK_CORES_S * shares.fixed


def _operator_spec(
    name: str, fit: _OperatorFit, shares: _CoreShares, allocation: JobAllocation, limits: Mapping[str, OperatorLimits]
) -> OperatorSpec:
    own = limits.get(name, OperatorLimits())
    cost_s = fit.row_s * shares.busy
    return OperatorSpec(
        name,
        fit.inputs,
        cost_s,
        max(0.0, fit.row_s - cost_s * shares.stretch) + fit.skew_s,
        fit.selectivity,
        lanes=allocation.lanes.get(name, fit.lanes),
        max_lanes=own.max_lanes,
        weight=own.weight,
    )
