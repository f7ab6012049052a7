"""Sensors and detectors: from the readings of lanes to symptoms (Dhalion, section 5.1, symptom detection).

Two kinds of engines report differently and are measured alike. Where lanes have queues, they say how many rows wait and for how
long they held back the input. Where work is done in epochs, a lane with more to do shows as one that is still busy when its peers
are done, and input that is held back as rows that are late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headgate.core.health import outliers
from headgate.core.health.demand import reads_to_its_limit, works_off_backlog
from headgate.core.health.records import (
    BUSY,
    COST,
    EMIT_COUNT,
    EMITTED,
    HELD,
    HELD_BACK,
    LATE,
    NOTHING_WAITS,
    PENDING,
    ROWS,
    UNEVEN_COST,
    UNEVEN_PENDING,
    UNEVEN_ROWS,
    Measurement,
    Measurements,
    Patient,
    Symptom,
)
from headgate.core.metrics import Span, job_juice

# -- the sensor ----------------------------------------------------------------------------------------------------------------


class LaneSensor:
    """Everything the engine reports of lanes, as rates and shares of the window."""

    def measure(self, patient: Patient) -> Iterable[Measurement]:
        """Lane by lane, then the operators, then the job."""
        span = patient.span
        if span is None or span.seconds <= 0:
            return
        yield Measurement(HELD, _held_share(patient, span))
        sources = patient.view.job.graph.sources
        yield Measurement(EMITTED, sum(span.rows_in(source) for source in sources) / span.seconds)
        for operator in patient.view.allocation.lanes:
            yield from _of_lanes(span, operator)
            yield from _pending(patient, span, operator)
            yield from _of_operator(span, operator)


def _held_share(patient: Patient, span: Span) -> float:
    """Share of the window in which input was held back; in epochs, share of the input that came and is late."""
    first, last = span.first.reading.held_s, span.last.reading.held_s
    if first is not None and last is not None:
        return min(1.0, (last - first) / span.seconds)
    if reads_to_its_limit(span):
        return 0.0
    return max(0.0, 1.0 - job_juice(patient.view.job.graph, span))


def _of_lanes(span: Span, operator: str) -> Iterator[Measurement]:
    busy = span.busy_s(operator)
    yield from _each(BUSY, operator, (seconds / span.seconds for seconds in busy))
    rows, queued = span.of_lanes(operator, "lane_rows"), span.of_lanes(operator, "queued")
    if rows is not None:
        # What a lane was given is what it did and what is left of it: one that works off its queue is not given more.
        given = rows if queued is None else tuple(max(0.0, a + b) for a, b in zip(rows, queued, strict=True))
        if sum(given) >= ENOUGH_GIVEN * sum(rows):
            yield from _each(ROWS, operator, (count / span.seconds for count in given))
        if all(count > 0 for count in rows) and any(busy):
            yield from _each(COST, operator, (seconds / count for seconds, count in zip(busy, rows, strict=True)))
    yield from _each(HELD, operator, (held / span.seconds for held in span.of_lanes(operator, "held_s") or ()))


ENOUGH_GIVEN = 0.05
"""If lanes were given less than this share of what they did, they worked off queues: that says nothing about who gets what."""


def _pending(patient: Patient, span: Span, operator: str) -> Iterator[Measurement]:
    """Rows that waited in front of each lane, on average; without queues, what it has to do shows as the time it takes."""
    seen = [sample.reading.operators[operator].queued for sample in patient.samples]
    known = [queued for queued in seen if queued is not None]
    if len(known) < len(seen):
        return _each(PENDING, operator, (seconds / span.seconds for seconds in span.busy_s(operator)))
    return _each(PENDING, operator, (sum(lane) / len(known) for lane in zip(*known, strict=True)))


def _each(name: str, operator: str, values: Iterable[float]) -> Iterator[Measurement]:
    return (Measurement(name, value, operator, lane) for lane, value in enumerate(values))


def _of_operator(span: Span, operator: str) -> Iterator[Measurement]:
    rows, busy_s = span.rows_in(operator), sum(span.busy_s(operator))
    yield Measurement(ROWS, rows / span.seconds, operator)
    if rows > 0 and busy_s > 0:
        yield Measurement(COST, busy_s / rows, operator)
    held = span.of_lanes(operator, "held_s")
    if held:
        yield Measurement(HELD, max(held) / span.seconds, operator)


# -- detectors -----------------------------------------------------------------------------------------------------------------


class HeldBackDetector:
    """Backpressure: which operator holds back the input, by which lanes, and for how much of the time."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        share = measured.one(HELD)
        # A source that works off a backlog puts out all that the others can take.
        if share is None or share <= patient.settings.held_least or works_off_backlog(patient):
            return
        operator = _initiator(measured, patient)
        if operator is None or _in_the_dark(measured, patient, operator):
            return
        held = measured.values(HELD, operator)
        lanes = tuple(lane for lane, value in enumerate(held) if value > MOSTLY * max(held)) if held else ()
        text = f"input was held back for {share:.0%} of the time by {operator}"
        yield Symptom(
            HELD_BACK, operator, share, text, lanes, (*measured.lanes(HELD, operator), Measurement(HELD, share))
        )


MOSTLY = 0.5
"""Lanes that hold back for more than this share of the longest time are the ones that do."""


def _in_the_dark(measured: Measurements, patient: Patient, operator: str) -> bool:
    """Input was held back for so long that lanes got nothing: who is to blame shows only when they get some again."""
    told = patient.samples[-1].reading.operators[operator].lane_rows is not None
    return told and not measured.values(ROWS, operator)


def _initiator(measured: Measurements, patient: Patient) -> str | None:
    """The operator that holds back the longest; in epochs, the one whose slowest lane takes the longest."""
    shares = {name: measured.one(HELD, name) for name in patient.view.allocation.lanes}
    known = {name: share for name, share in shares.items() if share is not None}
    if known:
        worst = max(known, key=lambda name: known[name])
        return worst if known[worst] > 0 else None
    return slowest_operator(measured, patient)


def slowest_operator(measured: Measurements, patient: Patient) -> str | None:
    """The operator with the busiest lane."""
    busiest = {name: max(measured.values(BUSY, name), default=0.0) for name in patient.view.allocation.lanes}
    found = max(busiest, key=lambda name: busiest[name], default=None)
    return found if found is not None and busiest[found] > 0 else None


class LateDetector:
    """A job that misses its intent though nothing is held back: the operator that takes longest is looked at."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        operator = slowest_operator(measured, patient) if patient.misses else None
        if operator is None:
            return
        busy = min(1.0, max(measured.values(BUSY, operator)))
        text = f"{operator} was the bottleneck (busy {busy:.2f} of the time)"
        yield Symptom(LATE, operator, busy, text, (), measured.lanes(BUSY, operator))


class PendingDetector:
    """Lanes with far more waiting than their peers, and operators in front of which almost nothing waits."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        for operator in patient.view.allocation.lanes:
            pending = measured.values(PENDING, operator)
            yield from self._uneven(measured, patient, operator, pending)
            cost_s = measured.one(COST, operator)
            if pending and cost_s is not None and _mean(pending) * cost_s < patient.settings.pending_least_s:
                text = f"almost nothing waits in front of {operator}"
                yield Symptom(NOTHING_WAITS, operator, _mean(pending), text, (), measured.lanes(PENDING, operator))

    def _uneven(
        self, measured: Measurements, patient: Patient, operator: str, pending: tuple[float, ...]
    ) -> Iterator[Symptom]:
        lanes = outliers.above(pending, patient.settings.alike, patient.settings.outlier_cut)
        if lanes:
            times = outliers.ratio(pending, lanes)
            text = f"{_lanes(lanes)} of {operator} had {times:.1f} times as much waiting as the others"
            yield Symptom(UNEVEN_PENDING, operator, times, text, lanes, measured.lanes(PENDING, operator))


class RateSkewDetector:
    """Lanes that are given more rows than their peers, and have more to do or more waiting because of it.

    Rows are counted, not estimated, so any scatter is real. The second part leaves out lanes for which a few rows more make no
    difference, because the fixed cost of an epoch takes most of their time.
    """

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        alike = patient.settings.alike
        for operator in patient.view.allocation.lanes:
            rows = measured.values(ROWS, operator)
            felt = {
                lane for kind in (BUSY, PENDING) for lane in outliers.above(measured.values(kind, operator), alike, 0.0)
            }
            lanes = tuple(lane for lane in outliers.above(rows, alike, 0.0) if lane in felt)
            if lanes:
                times = outliers.ratio(rows, lanes)
                text = f"{_lanes(lanes)} of {operator} got {times:.2f} times as many rows as the others"
                yield Symptom(UNEVEN_ROWS, operator, times, text, lanes, measured.lanes(ROWS, operator))


class LaneSpeedDetector:
    """Lanes that take longer for a row than their peers, and longer than they for all they are given.

    The second part leaves out a lane with hardly any rows, whose fixed costs make each of them dear.
    """

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        for operator in patient.view.allocation.lanes:
            costs, busy = measured.values(COST, operator), measured.values(BUSY, operator)
            most = max(busy, default=0.0) * (1 - patient.settings.alike)
            found = outliers.above(costs, patient.settings.alike, patient.settings.outlier_cut)
            lanes = tuple(lane for lane in found if busy[lane] >= most)
            if lanes:
                times = outliers.ratio(costs, lanes)
                text = f"{_lanes(lanes)} of {operator} took {times:.2f} times as long for a row as the others"
                yield Symptom(UNEVEN_COST, operator, times, text, lanes, measured.lanes(COST, operator))


class EmitCountDetector:
    """How many rows per second the sources put out."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        emitted = measured.one(EMITTED)
        if emitted is not None:
            sources = patient.view.job.graph.sources
            per_source = tuple(
                Measurement(ROWS, rate, source)
                for source in sources
                if (rate := measured.one(ROWS, source)) is not None
            )
            yield Symptom(EMIT_COUNT, sources[0], emitted, f"sources put out {emitted:,.0f} rows/s", (), per_source)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _lanes(lanes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, lanes[:MOST_SHOWN])) + ("..." if len(lanes) > MOST_SHOWN else "")
    return f"lane{'' if len(lanes) == 1 else 's'} {shown}"


MOST_SHOWN = 4
"""Lanes that a sentence names."""
