"""Sensors and detectors: from the readings of lanes to symptoms (Dhalion, section 5.1, symptom detection).

Two kinds of engines report differently and are measured alike. Where lanes have queues, they say how many rows wait and for how
long they held back the input. Where work is done in epochs, a lane with more to do shows as one that is still busy when its peers
are done, and input that is held back as rows that are late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median

from headgate.core.metrics import Span, capacities, grace_s, job_juice, newest, span_of
from headgate.health import outliers
from headgate.health.demand import reads_to_its_limit, waits_s, works_off_backlog
from headgate.health.records import Measurement, MeasurementKind, Measurements, Patient, Symptom, SymptomKind

# -- the sensor ----------------------------------------------------------------------------------------------------------------


class LaneSensor:
    """Everything the engine reports of lanes, as rates and shares of the window."""

    def measure(self, patient: Patient) -> Iterable[Measurement]:
        """Lane by lane, then the operators, then the job."""
        span = patient.span
        if span is None or span.seconds <= 0:
            return
        yield from _of_job(MeasurementKind.HELD, _held_share(patient, span))
        yield from _of_job(MeasurementKind.WAIT, waits_s(span))
        sources = patient.view.job.graph.sources
        yield Measurement(MeasurementKind.EMITTED, sum(span.rows_in(source) for source in sources) / span.seconds)
        for operator in patient.view.allocation.lanes:
            yield from _of_lanes(span, operator)
            yield from _pending(patient, span, operator)
            yield from _of_operator(span, operator)


def _of_job(name: str, value: float | None) -> Iterator[Measurement]:
    return iter(()) if value is None else iter((Measurement(name, value),))


def _held_share(patient: Patient, span: Span) -> float | None:
    """Share of the window in which input was held back; in epochs, share of the input that came and is late, if it is known."""
    first, last = span.first.reading.held_s, span.last.reading.held_s
    if first is not None and last is not None:
        return min(1.0, (last - first) / span.seconds)
    if reads_to_its_limit(span):
        return 0.0
    juice = job_juice(patient.view.job.graph, span)
    return None if juice is None else max(0.0, 1.0 - juice)


def _of_lanes(span: Span, operator: str) -> Iterator[Measurement]:
    busy = span.busy_s(operator)
    yield from _each(MeasurementKind.BUSY, operator, (seconds / span.seconds for seconds in busy))
    rows, queued = span.of_lanes(operator, "lane_rows"), span.of_lanes(operator, "queued")
    if rows is not None:
        # What a lane was given is what it did and what is left of it: one that works off its queue is not given more.
        given = rows if queued is None else tuple(max(0.0, a + b) for a, b in zip(rows, queued, strict=True))
        if sum(given) >= ENOUGH_GIVEN * sum(rows):
            yield from _each(MeasurementKind.ROWS, operator, (count / span.seconds for count in given))
        if all(count > 0 for count in rows) and any(busy):
            yield from _each(
                MeasurementKind.COST, operator, (seconds / count for seconds, count in zip(busy, rows, strict=True))
            )
    yield from _each(
        MeasurementKind.HELD, operator, (held / span.seconds for held in span.of_lanes(operator, "held_s") or ())
    )


ENOUGH_GIVEN = 0.05
"""If lanes were given less than this share of what they did, they worked off queues: that says nothing about who gets what."""


def _pending(patient: Patient, span: Span, operator: str) -> Iterator[Measurement]:
    """Rows that waited in front of each lane, on average; without queues, what it has to do shows as the time it takes."""
    seen = [sample.reading.operators[operator].queued for sample in patient.samples]
    known = [queued for queued in seen if queued is not None]
    if len(known) < len(seen):
        return _each(MeasurementKind.PENDING, operator, (seconds / span.seconds for seconds in span.busy_s(operator)))
    return _each(MeasurementKind.PENDING, operator, (sum(lane) / len(known) for lane in zip(*known, strict=True)))


def _each(name: str, operator: str, values: Iterable[float]) -> Iterator[Measurement]:
    return (Measurement(name, value, operator, lane) for lane, value in enumerate(values))


def _of_operator(span: Span, operator: str) -> Iterator[Measurement]:
    yield Measurement(MeasurementKind.ROWS, span.rows_in(operator) / span.seconds, operator)
    cost_s = _cost_s(span, operator)
    if cost_s is not None:
        yield Measurement(MeasurementKind.COST, cost_s, operator)
    held = span.of_lanes(operator, "held_s")
    if held:
        yield Measurement(MeasurementKind.HELD, max(held) / span.seconds, operator)


# -- detectors -----------------------------------------------------------------------------------------------------------------


class HeldBackDetector:
    """Backpressure: which operator holds back the input, by which lanes, and for how much of the time."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        share = measured.one(MeasurementKind.HELD)
        # A source that works off a backlog puts out all that the others can take.
        if share is None or share <= patient.settings.held_least or works_off_backlog(patient) or _is_over(patient):
            return
        operator = _initiator(measured, patient)
        if operator is None or _in_the_dark(measured, patient, operator):
            return
        held = measured.values(MeasurementKind.HELD, operator)
        lanes = tuple(lane for lane, value in enumerate(held) if value > MOSTLY * max(held)) if held else ()
        text = f"input was held back for {share:.0%} of the time by {operator}"
        yield Symptom(
            SymptomKind.HELD_BACK,
            operator,
            share,
            text,
            lanes,
            (*measured.lanes(MeasurementKind.HELD, operator), Measurement(MeasurementKind.HELD, share)),
        )


def _is_over(patient: Patient) -> bool:
    """Whether rows of epochs were late before, and the newest are not: input that is held back by lanes comes and goes."""
    newer = span_of(newest(patient.samples, 2))
    if newer is None or newer.last.reading.held_s is not None:
        return False
    share = _held_share(patient, newer)
    return share is not None and share <= patient.settings.held_least


MOSTLY = 0.5
"""Lanes that hold back for more than this share of the longest time are the ones that do."""


def _in_the_dark(measured: Measurements, patient: Patient, operator: str) -> bool:
    """Input was held back for so long that lanes got nothing: who is to blame shows only when they get some again."""
    told = patient.samples[-1].reading.operators[operator].lane_rows is not None
    return told and not measured.values(MeasurementKind.ROWS, operator)


def _initiator(measured: Measurements, patient: Patient) -> str | None:
    """The operator that holds back the longest; in epochs, the one whose slowest lane takes the longest."""
    shares = {name: measured.one(MeasurementKind.HELD, name) for name in patient.view.allocation.lanes}
    known = {name: share for name, share in shares.items() if share is not None}
    if known:
        worst = max(known, key=lambda name: known[name])
        return worst if known[worst] > 0 else None
    return slowest_operator(measured, patient)


def slowest_operator(measured: Measurements, patient: Patient) -> str | None:
    """The operator with the busiest lane."""
    busiest = {
        name: max(measured.values(MeasurementKind.BUSY, name), default=0.0) for name in patient.view.allocation.lanes
    }
    found = max(busiest, key=lambda name: busiest[name], default=None)
    return found if found is not None and busiest[found] > 0 else None


class BacklogDetector:
    """Rows that wait for long and do not become fewer, though nothing is held back any more than before: juice sees only growth."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        wait_s, span = measured.one(MeasurementKind.WAIT), patient.span
        operator = slowest_operator(measured, patient)
        if span is None or operator is None or wait_s is None or wait_s <= patient.settings.backlog_wait_s:
            return
        busy = capacities(patient.view.job.graph, span)[operator]
        if reads_to_its_limit(span) or works_off_backlog(patient) or busy <= patient.settings.capacity_threshold:
            return
        text = f"rows wait for {wait_s:,.0f} s and do not become fewer; {operator} was busy for {busy:.0%} of the time"
        yield Symptom(SymptomKind.BACKLOG, operator, wait_s, text, (), (Measurement(MeasurementKind.WAIT, wait_s),))


class LateDetector:
    """A job that misses its intent though nothing is held back: the operator that takes longest is looked at."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        operator = slowest_operator(measured, patient) if patient.misses else None
        if operator is None:
            return
        busy = min(1.0, max(measured.values(MeasurementKind.BUSY, operator)))
        text = f"{operator} was the bottleneck (busy {busy:.2f} of the time)"
        yield Symptom(SymptomKind.LATE, operator, busy, text, (), measured.lanes(MeasurementKind.BUSY, operator))


class PendingDetector:
    """Lanes with far more waiting than their peers, and operators in front of which almost nothing waits."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        for operator in patient.view.allocation.lanes:
            pending = measured.values(MeasurementKind.PENDING, operator)
            yield from self._uneven(measured, patient, operator, pending)
            if _nothing_waits(measured, patient, operator):
                text = f"almost nothing waits in front of {operator}"
                yield Symptom(
                    SymptomKind.NOTHING_WAITS,
                    operator,
                    _mean(pending),
                    text,
                    (),
                    measured.lanes(MeasurementKind.PENDING, operator),
                )

    def _uneven(
        self, measured: Measurements, patient: Patient, operator: str, pending: tuple[float, ...]
    ) -> Iterator[Symptom]:
        lanes = outliers.above(pending, patient.settings.alike, patient.settings.outlier_cut)
        if lanes:
            times = outliers.ratio(pending, lanes)
            text = f"{_lanes(lanes)} of {operator} had {times:.1f} times as much waiting as the others"
            yield Symptom(
                SymptomKind.UNEVEN_PENDING,
                operator,
                times,
                text,
                lanes,
                measured.lanes(MeasurementKind.PENDING, operator),
            )


def _nothing_waits(measured: Measurements, patient: Patient, operator: str) -> bool:
    """Whether almost no work waits in front of the lanes; without queues, whether rows wait for no more than two epochs."""
    least_s, span, cost_s = patient.settings.pending_least_s, patient.span, measured.one(MeasurementKind.COST, operator)
    if span is None or cost_s is None:
        return False
    if patient.samples[-1].reading.operators[operator].queued is None:
        wait_s = measured.one(MeasurementKind.WAIT)
        return wait_s is not None and wait_s <= max(least_s, grace_s(span))
    pending = measured.values(MeasurementKind.PENDING, operator)
    return bool(pending) and _mean(pending) * cost_s < least_s


# -- lanes that differ: by enough to matter, on enough data, and not only for a moment -----------------------------------------


def _matter(patient: Patient, measured: Measurements, operator: str, lanes: tuple[int, ...]) -> bool:
    """Whether the busiest of these lanes costs the job time, compared with its peers."""
    span, busy = patient.span, measured.values(MeasurementKind.BUSY, operator)
    others = [share for lane, share in enumerate(busy) if lane not in lanes]
    if span is None or not others or not lanes:
        return False
    queued = (
        measured.values(MeasurementKind.PENDING, operator)
        if span.last.reading.operators[operator].queued is not None
        else ()
    )
    if queued and max(queued[lane] for lane in lanes) > 0:
        return True
    spent_s = (span.last.reading.in_epochs_s or 0.0) - (span.first.reading.in_epochs_s or 0.0)
    share = spent_s / span.seconds if spent_s > 0 else 1.0
    return max(busy[lane] for lane in lanes) - median(others) >= patient.settings.health_effect * share


def _enough_epochs(patient: Patient) -> bool:
    span = patient.span
    first, last = (None, None) if span is None else (span.first.reading.epochs, span.last.reading.epochs)
    if first is None or last is None:
        return True
    return last - first >= patient.settings.health_least_epochs or (patient.is_full and last > first)


def _lasting(
    patient: Patient, lanes: tuple[int, ...], figures: Callable[[Span], tuple[float, ...] | None]
) -> tuple[int, ...]:
    """Those of the lanes that differ in both halves of the window, and no less in the newer half.

    A lane on a host whose JVM has just started is slow at first and becomes faster: that passes by itself. A full window with
    one epoch has no halves, and counts as a whole.
    """
    halves, alike = patient.halves(), patient.settings.alike
    if not _enough_epochs(patient):
        return ()
    if halves is None and patient.is_full:
        return lanes
    older, newer = (figures(half) for half in halves) if halves is not None else (None, None)
    if older is None or newer is None:
        return ()
    stay = set(outliers.above(older, alike, 0.0)) & set(outliers.above(newer, alike, 0.0))
    kept = tuple(lane for lane in lanes if lane in stay)
    fades = kept and outliers.ratio(newer, kept) < outliers.ratio(older, kept) * (1 - alike)
    return () if fades else kept


def _unclear(operator: str, lanes: tuple[int, ...]) -> Symptom:
    text = f"{_lanes(lanes)} of {operator} differed from the others, but not for long enough to say why"
    return Symptom(SymptomKind.UNCLEAR, operator, float(len(lanes)), text, lanes)


def _rows(operator: str) -> Callable[[Span], tuple[float, ...] | None]:
    return lambda span: span.of_lanes(operator, "lane_rows")


def _costs(operator: str) -> Callable[[Span], tuple[float, ...] | None]:
    def of(span: Span) -> tuple[float, ...] | None:
        rows, busy = span.of_lanes(operator, "lane_rows"), span.busy_s(operator)
        if rows is None or not all(count > 0 for count in rows):
            return None
        return tuple(seconds / count for seconds, count in zip(busy, rows, strict=True))

    return of


class RateSkewDetector:
    """Lanes that are given more rows than their peers, and have more to do or more waiting because of it.

    Rows are counted, not estimated: they scatter like any count. The second part leaves out lanes for which a few rows more make
    no difference, because the fixed cost of an epoch takes most of their time.
    """

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        alike, cut = patient.settings.alike, patient.settings.outlier_cut
        seconds = patient.span.seconds if patient.span is not None else 0.0
        for operator in patient.view.allocation.lanes:
            rows = measured.values(MeasurementKind.ROWS, operator)
            counts = [rate * seconds for rate in rows]
            felt = {
                lane
                for kind in (MeasurementKind.BUSY, MeasurementKind.PENDING)
                for lane in outliers.above(measured.values(kind, operator), alike, 0.0)
            }
            more = tuple(lane for lane in outliers.above_counts(counts, alike, cut) if lane in felt)
            if not _matter(patient, measured, operator, more):
                continue
            lanes = _lasting(patient, more, _rows(operator))
            if not lanes:
                yield _unclear(operator, more)
            else:
                times = outliers.ratio(rows, lanes)
                text = f"{_lanes(lanes)} of {operator} got {_share(rows, lanes, times)}"
                yield Symptom(
                    SymptomKind.UNEVEN_ROWS,
                    operator,
                    times,
                    text,
                    lanes,
                    measured.lanes(MeasurementKind.ROWS, operator),
                )


class LaneSpeedDetector:
    """Lanes that take longer for a row than their peers, and longer than they for all they are given.

    The second part leaves out a lane with hardly any rows, whose fixed costs make each of them dear.
    """

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        for operator in patient.view.allocation.lanes:
            costs, busy = (
                measured.values(MeasurementKind.COST, operator),
                measured.values(MeasurementKind.BUSY, operator),
            )
            most = max(busy, default=0.0) * (1 - patient.settings.alike)
            found = outliers.above(costs, patient.settings.alike, patient.settings.outlier_cut)
            slow = tuple(lane for lane in found if busy[lane] >= most)
            if not _matter(patient, measured, operator, slow):
                continue
            lanes = _lasting(patient, slow, _costs(operator))
            if not lanes:
                yield _unclear(operator, slow)
            else:
                times = outliers.ratio(costs, lanes)
                text = f"{_lanes(lanes)} of {operator} took {times:.2f} times as long for a row as the others"
                yield Symptom(
                    SymptomKind.UNEVEN_COST,
                    operator,
                    times,
                    text,
                    lanes,
                    measured.lanes(MeasurementKind.COST, operator),
                )


class CostChangeDetector:
    """Operators whose time per row has just changed: after a cold start or beside a busy neighbour it says little about lanes."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        span, alike = patient.span, patient.settings.alike
        parts = patient.sub_spans(span.seconds / PARTS) if span is not None else ()
        for operator in patient.view.allocation.lanes:
            costs = [cost for part in parts if (cost := _cost_s(part, operator)) is not None]
            usual_s = median(costs) if len(costs) > 1 else 0.0
            if usual_s > 0 and abs(costs[-1] - usual_s) > alike * usual_s:
                text = f"a row of {operator} took {costs[-1] / usual_s:.2f} times as long lately as before"
                yield Symptom(SymptomKind.UNCLEAR, operator, costs[-1] / usual_s, text)


PARTS = 6
"""The newest of so many parts of a window is compared with the others."""


def _cost_s(span: Span, operator: str) -> float | None:
    rows, busy_s = span.rows_in(operator), sum(span.busy_s(operator))
    return busy_s / rows if rows > 0 and busy_s > 0 else None


class EmitCountDetector:
    """How many rows per second the sources put out."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        emitted = measured.one(MeasurementKind.EMITTED)
        if emitted is not None:
            sources = patient.view.job.graph.sources
            per_source = tuple(
                Measurement(MeasurementKind.ROWS, rate, source)
                for source in sources
                if (rate := measured.one(MeasurementKind.ROWS, source)) is not None
            )
            yield Symptom(
                SymptomKind.EMIT_COUNT, sources[0], emitted, f"sources put out {emitted:,.0f} rows/s", (), per_source
            )


def _share(rows: tuple[float, ...], lanes: tuple[int, ...], times: float) -> str:
    all_rows = sum(rows[lane] for lane in lanes) >= sum(rows)
    return "all of its rows" if all_rows else f"{times:.2f} times as many rows as the others"


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _lanes(lanes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, lanes[:MOST_SHOWN])) + ("..." if len(lanes) > MOST_SHOWN else "")
    return f"lane{'' if len(lanes) == 1 else 's'} {shown}"


MOST_SHOWN = 4
"""Lanes that a sentence names."""
