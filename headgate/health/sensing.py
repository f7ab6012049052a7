"""Sensors and detectors: from the readings of lanes to symptoms (Dhalion, section 5.1, symptom detection).

The sensor turns the readings of two kinds of engines into the same measurements. An engine with queues reports the rows queued in front of
each lane and the time for which each lane held back input. In an engine with epochs, an overloaded lane is still busy when the other lanes
are done, and held-back input shows as late rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median

from headgate.core.metrics import capacities, job_juice
from headgate.core.windows import Span, grace_s, newest, span_of
from headgate.health import outliers
from headgate.health.demand import reads_to_its_limit, waits_s, works_off_backlog
from headgate.health.records import Measurement, MeasurementKind, Measurements, ObservedJob, Symptom, SymptomKind

# -- the sensor ----------------------------------------------------------------------------------------------------------------


class LaneSensor:
    """Turns the engine's readings of lanes into rates and shares of the window."""

    def measure(self, observed: ObservedJob) -> Iterable[Measurement]:
        """Measurements of the job, then of each operator and its lanes."""
        span = observed.span
        if span is None or span.seconds <= 0:
            return
        yield from _of_job(MeasurementKind.HELD, _held_share(observed, span))
        yield from _of_job(MeasurementKind.WAIT, waits_s(span))
        sources = observed.view.job.graph.sources
        yield Measurement(MeasurementKind.EMITTED, sum(span.rows_in(source) for source in sources) / span.seconds)
        for operator in observed.view.allocation.lanes:
            yield from _of_lanes(span, operator)
            yield from _pending(observed, span, operator)
            yield from _of_operator(span, operator)


def _of_job(name: str, value: float | None) -> Iterator[Measurement]:
    return iter(()) if value is None else iter((Measurement(name, value),))


def _held_share(observed: ObservedJob, span: Span) -> float | None:
    """Share of the window in which input was held back; with epochs, share of the input that is late; None if unknown."""
    first, last = span.first.reading.held_s, span.last.reading.held_s
    if first is not None and last is not None:
        return min(1.0, (last - first) / span.seconds)
    if reads_to_its_limit(span):
        return 0.0
    juice = job_juice(observed.view.job.graph, span)
    return None if juice is None else max(0.0, 1.0 - juice)


def _of_lanes(span: Span, operator: str) -> Iterator[Measurement]:
    busy = span.busy_s(operator)
    yield from _each(MeasurementKind.BUSY, operator, (seconds / span.seconds for seconds in busy))
    rows, queued = span.of_lanes(operator, "lane_rows"), span.of_lanes(operator, "queued")
    if rows is not None:
        # Rows received = rows processed + growth of the queue: a lane that clears its queue does not receive more rows.
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
"""Received rows as a share of processed rows below which lanes only clear their queues, so that received rows show no skew."""


def _pending(observed: ObservedJob, span: Span, operator: str) -> Iterator[Measurement]:
    """Mean rows queued in front of each lane; without queues, each lane's share of busy time."""
    reported = [sample.reading.operators[operator].queued for sample in observed.samples]
    measured = [queued for queued in reported if queued is not None]
    if len(measured) < len(reported):
        return _each(MeasurementKind.PENDING, operator, (seconds / span.seconds for seconds in span.busy_s(operator)))
    return _each(MeasurementKind.PENDING, operator, (sum(lane) / len(measured) for lane in zip(*measured, strict=True)))


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
    """Detects backpressure: the operator and lanes that hold back the input, and the share of time."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        share = measured.one(MeasurementKind.HELD)
        # A source that clears a backlog emits as many rows as the other operators can process.
        if share is None or share <= observed.settings.held_least or works_off_backlog(observed) or _is_over(observed):
            return
        operator = _initiator(measured, observed)
        if operator is None or _lanes_got_no_rows(measured, observed, operator):
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


def _is_over(observed: ObservedJob) -> bool:
    """Whether rows of earlier epochs were late and the newest rows are not; always False for an engine with queues."""
    newer = span_of(newest(observed.samples, 2))
    if newer is None or newer.last.reading.held_s is not None:
        return False
    share = _held_share(observed, newer)
    return share is not None and share <= observed.settings.held_least


MOSTLY = 0.5
"""Share of the longest hold time above which a lane counts as holding back input."""


def _lanes_got_no_rows(measured: Measurements, observed: ObservedJob, operator: str) -> bool:
    """Whether input was held back for so long that the lanes received no rows, so that the slow lanes cannot be identified yet."""
    reported = observed.samples[-1].reading.operators[operator].lane_rows is not None
    return reported and not measured.values(MeasurementKind.ROWS, operator)


def _initiator(measured: Measurements, observed: ObservedJob) -> str | None:
    """The operator that holds back input for the longest time; with epochs, the operator with the busiest lane."""
    reported = {name: measured.one(MeasurementKind.HELD, name) for name in observed.view.allocation.lanes}
    shares = {name: share for name, share in reported.items() if share is not None}
    if shares:
        worst = max(shares, key=lambda name: shares[name])
        return worst if shares[worst] > 0 else None
    return slowest_operator(measured, observed)


def slowest_operator(measured: Measurements, observed: ObservedJob) -> str | None:
    """The operator with the busiest lane; None if no lane was busy."""
    busiest = {
        name: max(measured.values(MeasurementKind.BUSY, name), default=0.0) for name in observed.view.allocation.lanes
    }
    found = max(busiest, key=lambda name: busiest[name], default=None)
    return found if found is not None and busiest[found] > 0 else None


class BacklogDetector:
    """Detects a standing backlog, which is large but not growing; juice shows only growth."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        wait_s, span = measured.one(MeasurementKind.WAIT), observed.span
        operator = slowest_operator(measured, observed)
        if span is None or operator is None or wait_s is None or wait_s <= observed.settings.backlog_wait_s:
            return
        busy = capacities(observed.view.job.graph, span)[operator]
        if reads_to_its_limit(span) or works_off_backlog(observed) or busy <= observed.settings.capacity_threshold:
            return
        text = f"rows wait for {wait_s:,.0f} s and the backlog is not shrinking; {operator} was busy for {busy:.0%} of the time"
        yield Symptom(SymptomKind.BACKLOG, operator, wait_s, text, (), (Measurement(MeasurementKind.WAIT, wait_s),))


class LateDetector:
    """Detects the bottleneck of a job that misses its intent: the operator with the busiest lane."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        operator = slowest_operator(measured, observed) if observed.misses else None
        if operator is None:
            return
        busy = min(1.0, max(measured.values(MeasurementKind.BUSY, operator)))
        text = f"{operator} was the bottleneck (busy {busy:.2f} of the time)"
        yield Symptom(SymptomKind.LATE, operator, busy, text, (), measured.lanes(MeasurementKind.BUSY, operator))


class PendingDetector:
    """Detects lanes with far more backlog than the other lanes, and operators with almost no backlog."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        for operator in observed.view.allocation.lanes:
            pending = measured.values(MeasurementKind.PENDING, operator)
            yield from self._uneven(measured, observed, operator, pending)
            if _nothing_waits(measured, observed, operator):
                text = f"{operator} has almost no backlog"
                yield Symptom(
                    SymptomKind.NOTHING_WAITS,
                    operator,
                    _mean(pending),
                    text,
                    (),
                    measured.lanes(MeasurementKind.PENDING, operator),
                )

    def _uneven(
        self, measured: Measurements, observed: ObservedJob, operator: str, pending: tuple[float, ...]
    ) -> Iterator[Symptom]:
        lanes = outliers.above(pending, observed.settings.alike, observed.settings.outlier_cut)
        if lanes:
            times = outliers.ratio(pending, lanes)
            text = f"{_lanes(lanes)} of {operator} had {times:.1f} times the backlog of the other lanes"
            yield Symptom(
                SymptomKind.UNEVEN_PENDING,
                operator,
                times,
                text,
                lanes,
                measured.lanes(MeasurementKind.PENDING, operator),
            )


def _nothing_waits(measured: Measurements, observed: ObservedJob, operator: str) -> bool:
    """Whether an operator has almost no backlog; without queues, whether rows wait for at most two epochs."""
    least_s, span, cost_s = (
        observed.settings.pending_least_s,
        observed.span,
        measured.one(MeasurementKind.COST, operator),
    )
    if span is None or cost_s is None:
        return False
    if observed.samples[-1].reading.operators[operator].queued is None:
        wait_s = measured.one(MeasurementKind.WAIT)
        return wait_s is not None and wait_s <= max(least_s, grace_s(span))
    pending = measured.values(MeasurementKind.PENDING, operator)
    return bool(pending) and _mean(pending) * cost_s < least_s


# -- lanes that differ: by a relevant amount, on enough data, and lastingly ----------------------------------------------------


def _matter(observed: ObservedJob, measured: Measurements, operator: str, lanes: tuple[int, ...]) -> bool:
    """Whether the busiest of these lanes slows the job, compared with the other lanes."""
    span, busy = observed.span, measured.values(MeasurementKind.BUSY, operator)
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
    return max(busy[lane] for lane in lanes) - median(others) >= observed.settings.health_effect * share


def _enough_epochs(observed: ObservedJob) -> bool:
    span = observed.span
    first, last = (None, None) if span is None else (span.first.reading.epochs, span.last.reading.epochs)
    if first is None or last is None:
        return True
    return last - first >= observed.settings.health_least_epochs or (observed.is_full and last > first)


def _lasting(
    observed: ObservedJob, lanes: tuple[int, ...], figures: Callable[[Span], tuple[float, ...] | None]
) -> tuple[int, ...]:
    """The lanes that differ in both halves of the window, and no less in the newer half.

    A lane on a host whose JVM has just started is slow at first (cold start) and becomes faster by itself. A full window with one epoch
    has no halves and counts as a whole.
    """
    halves, alike = observed.halves(), observed.settings.alike
    if not _enough_epochs(observed):
        return ()
    if halves is None and observed.is_full:
        return lanes
    older, newer = (figures(half) for half in halves) if halves is not None else (None, None)
    if older is None or newer is None:
        return ()
    stay = set(outliers.above(older, alike, 0.0)) & set(outliers.above(newer, alike, 0.0))
    kept = tuple(lane for lane in lanes if lane in stay)
    fades = kept and outliers.ratio(newer, kept) < outliers.ratio(older, kept) * (1 - alike)
    return () if fades else kept


def _unclear(operator: str, lanes: tuple[int, ...]) -> Symptom:
    text = f"{_lanes(lanes)} of {operator} differed from the other lanes, but not yet for long enough to tell why"
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
    """Detects lanes that receive more rows than the other lanes, and are busier or have more backlog.

    Row counts scatter by their square root. The second condition excludes lanes on which a few more rows make no difference, because
    the fixed cost of an epoch takes most of their time.
    """

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        alike, cut = observed.settings.alike, observed.settings.outlier_cut
        seconds = observed.span.seconds if observed.span is not None else 0.0
        for operator in observed.view.allocation.lanes:
            rows = measured.values(MeasurementKind.ROWS, operator)
            counts = [rate * seconds for rate in rows]
            loaded = {
                lane
                for kind in (MeasurementKind.BUSY, MeasurementKind.PENDING)
                for lane in outliers.above(measured.values(kind, operator), alike, 0.0)
            }
            more = tuple(lane for lane in outliers.above_counts(counts, alike, cut) if lane in loaded)
            if not _matter(observed, measured, operator, more):
                continue
            if lanes := _lasting(observed, more, _rows(operator)):
                times = outliers.ratio(rows, lanes)
                text = f"{_lanes(lanes)} of {operator} got {_share(rows, lanes, times)}"
                because = measured.lanes(MeasurementKind.ROWS, operator)
                yield Symptom(SymptomKind.UNEVEN_ROWS, operator, times, text, lanes, because)
            else:
                yield _unclear(operator, more)


class LaneSpeedDetector:
    """Detects lanes that take longer per row than the other lanes, and are among the busiest lanes.

    The second condition excludes a lane with very few rows, whose fixed cost inflates the time per row. Lanes that share their only host
    are not compared: other work on that host delays different lanes at different times, and no other host would be faster.
    """

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        for operator in observed.view.allocation.lanes:
            if _on_one_host(observed, operator):
                continue
            costs = measured.values(MeasurementKind.COST, operator)
            busy = measured.values(MeasurementKind.BUSY, operator)
            most = max(busy, default=0.0) * (1 - observed.settings.alike)
            found = outliers.above(costs, observed.settings.alike, observed.settings.outlier_cut)
            slow = tuple(lane for lane in found if busy[lane] >= most)
            if not _matter(observed, measured, operator, slow):
                continue
            if lanes := _lasting(observed, slow, _costs(operator)):
                times = outliers.ratio(costs, lanes)
                text = f"{_lanes(lanes)} of {operator} took {times:.2f} times as long per row as the other lanes"
                because = measured.lanes(MeasurementKind.COST, operator)
                yield Symptom(SymptomKind.UNEVEN_COST, operator, times, text, lanes, because)
            else:
                yield _unclear(operator, slow)


def _on_one_host(observed: ObservedJob, operator: str) -> bool:
    """Whether all lanes are known to run on the same host."""
    return len(set(observed.samples[-1].reading.operators[operator].hosts or ())) == 1


class CostChangeDetector:
    """Detects operators whose time per row has just changed, as after a cold start or beside a noisy neighbour: no basis for sizing."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        span, alike = observed.span, observed.settings.alike
        parts = observed.sub_spans(span.seconds / PARTS) if span is not None else ()
        for operator in observed.view.allocation.lanes:
            costs = [cost for part in parts if (cost := _cost_s(part, operator)) is not None]
            usual_s = median(costs) if len(costs) > 1 else 0.0
            if usual_s > 0 and abs(costs[-1] - usual_s) > alike * usual_s:
                text = f"{operator} recently took {costs[-1] / usual_s:.2f} times as long per row as before"
                yield Symptom(SymptomKind.UNCLEAR, operator, costs[-1] / usual_s, text)


PARTS = 6
"""Number of parts of a window; the newest part is compared with the median of all parts."""


def _cost_s(span: Span, operator: str) -> float | None:
    rows, busy_s = span.rows_in(operator), sum(span.busy_s(operator))
    return busy_s / rows if rows > 0 and busy_s > 0 else None


class EmitCountDetector:
    """Reports the rows per second that the sources emit."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        emitted = measured.one(MeasurementKind.EMITTED)
        if emitted is not None:
            sources = observed.view.job.graph.sources
            per_source = tuple(
                Measurement(MeasurementKind.ROWS, rate, source)
                for source in sources
                if (rate := measured.one(MeasurementKind.ROWS, source)) is not None
            )
            yield Symptom(
                SymptomKind.EMIT_COUNT, sources[0], emitted, f"sources emit {emitted:,.0f} rows/s", (), per_source
            )


def _share(rows: tuple[float, ...], lanes: tuple[int, ...], times: float) -> str:
    all_rows = sum(rows[lane] for lane in lanes) >= sum(rows)
    return "all of its rows" if all_rows else f"{times:.2f} times as many rows as the other lanes"


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _lanes(lanes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, lanes[:MOST_SHOWN])) + ("..." if len(lanes) > MOST_SHOWN else "")
    return f"lane{'' if len(lanes) == 1 else 's'} {shown}"


MOST_SHOWN = 4
"""Most lanes that a sentence lists."""
