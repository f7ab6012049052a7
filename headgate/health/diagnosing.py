"""Diagnosers: explain the symptoms (Dhalion, table 1); at most one of the first three diagnoses holds.

The paper distinguishes a slow lane from too few lanes by queue length. Queue length misleads where lanes differ by a few per cent: the
slowest of many overloaded lanes has the only long queue. Headgate compares the time per row instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.health.demand import Evening, evening, sources_held_short, spare_lanes
from headgate.health.records import Diagnosis, DiagnosisKind, ObservedJob, Symptom, SymptomKind

Symptoms = tuple[Symptom, ...]


def trouble(symptoms: Symptoms) -> Symptom | None:
    """The symptom that calls for a diagnosis: held-back input, a standing backlog, or a missed intent; None if healthy."""
    found = {symptom.kind: symptom for symptom in reversed(symptoms)}
    return found.get(SymptomKind.HELD_BACK) or found.get(SymptomKind.BACKLOG) or found.get(SymptomKind.LATE)


def _at(symptoms: Symptoms, kind: str, operator: str) -> Symptom | None:
    return next((symptom for symptom in symptoms if (symptom.kind, symptom.operator) == (kind, operator)), None)


def _unlike(symptoms: Symptoms, main: Symptom) -> Symptom | None:
    """The larger difference between the operator's lanes, in rows or in time per row; None if the lanes are evenly loaded."""
    rows, cost = (_at(symptoms, kind, main.operator) for kind in (SymptomKind.UNEVEN_ROWS, SymptomKind.UNEVEN_COST))
    present = [symptom for symptom in (rows, cost) if symptom is not None and _holds_back(symptom, main)]
    return max(present, key=lambda symptom: symptom.value, default=None)


def _needs_lanes(unlike: Symptom, observed: ObservedJob) -> bool:
    """Whether more lanes would even out the rows, because the slices cannot be spread better over the current lanes."""
    return unlike.kind == SymptomKind.UNEVEN_ROWS and evening(observed, unlike.operator) is Evening.LANES


def _is_remediable(unlike: Symptom, observed: ObservedJob) -> bool:
    """Whether a remedy can even out the rows, or one key saturates a lane, which calls for an alert."""
    if evening(observed, unlike.operator) is not Evening.NOTHING:
        return True
    span = observed.span
    busy = span.busy_s(unlike.operator) if span is not None else ()
    return span is not None and max(busy, default=0.0) >= observed.settings.spare_below * span.seconds


def is_unclear(symptoms: Symptoms) -> bool:
    """Whether the lanes of the unhealthy operator differ, but more readings are needed to tell why."""
    main = trouble(symptoms)
    return (
        main is not None
        and _unlike(symptoms, main) is None
        and _at(symptoms, SymptomKind.UNCLEAR, main.operator) is not None
    )


def _holds_back(symptom: Symptom, main: Symptom) -> bool:
    """Whether the lanes that differ are among the lanes that hold back the input; True if the latter are unknown."""
    return not main.lanes or bool(set(symptom.lanes) & set(main.lanes))


def is_short_of_memory(symptoms: Symptoms) -> bool:
    """Whether a host of the job is short of memory, so that more lanes would make the shortage worse."""
    return any(symptom.kind == SymptomKind.SHORT_OF_MEMORY for symptom in symptoms)


class TooFewLanesDiagnoser:
    """Diagnoses too few lanes: all lanes are evenly loaded, equally fast, have memory, and still hold back the input."""

    def diagnose(self, symptoms: Symptoms, observed: ObservedJob) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        if main is None or is_unclear(symptoms) or is_short_of_memory(symptoms):
            return
        unlike = _unlike(symptoms, main)
        if unlike is not None and not _needs_lanes(unlike, observed):
            return
        lanes = observed.view.allocation.lanes[main.operator]
        balance = f"its {lanes} lanes evenly loaded" if lanes > 1 else "its only lane busy"
        balance = balance if unlike is None else f"{unlike.text}, and the slices cannot be spread better"
        yield Diagnosis(DiagnosisKind.TOO_FEW_LANES, main.operator, f"{main.text}, {balance}: too few lanes", (main,))


class SlowLanesDiagnoser:
    """Diagnoses slow lanes: some lanes take longer per row than the other lanes, and hold back the input."""

    def diagnose(self, symptoms: Symptoms, observed: ObservedJob) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        unlike = _unlike(symptoms, main) if main is not None else None
        if main is None or unlike is None or unlike.kind != SymptomKind.UNEVEN_COST:
            return
        where = _hosts(observed, main.operator, unlike.lanes)
        text = f"{main.text}; {unlike.text}: slow{where}"
        yield Diagnosis(
            DiagnosisKind.SLOW_LANES, main.operator, text, _with_pending(symptoms, main, unlike), unlike.lanes
        )


class SkewDiagnoser:
    """Diagnoses skew: some lanes receive more rows than the other lanes, and hold back the input."""

    def diagnose(self, symptoms: Symptoms, observed: ObservedJob) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        unlike = _unlike(symptoms, main) if main is not None else None
        if main is None or unlike is None or unlike.kind != SymptomKind.UNEVEN_ROWS:
            return
        if _needs_lanes(unlike, observed) or not _is_remediable(unlike, observed):
            return
        text = f"{main.text}; {unlike.text}: skewed keys"
        yield Diagnosis(DiagnosisKind.SKEW, main.operator, text, _with_pending(symptoms, main, unlike), unlike.lanes)


def _with_pending(symptoms: Symptoms, main: Symptom, unlike: Symptom) -> Symptoms:
    pending = _at(symptoms, SymptomKind.UNEVEN_PENDING, main.operator)
    return (main, unlike, pending) if pending is not None else (main, unlike)


def _hosts(observed: ObservedJob, operator: str, lanes: tuple[int, ...]) -> str:
    places = hosts_of(observed, operator, lanes)
    return f" on {', '.join(places)}" if places else " lanes"


def hosts_of(observed: ObservedJob, operator: str, lanes: tuple[int, ...]) -> tuple[str, ...]:
    """The hosts of these lanes; a lane without a known host is left out."""
    hosts = observed.samples[-1].reading.operators[operator].hosts or ()
    return tuple(dict.fromkeys(hosts[lane] for lane in lanes if lane < len(hosts)))


class SpareLanesDiagnoser:
    """Diagnoses spare lanes: no input is held back, the backlog is near zero, and fewer lanes would have sufficed for a long time."""

    def diagnose(self, symptoms: Symptoms, observed: ObservedJob) -> Iterable[Diagnosis]:
        spare = spare_lanes(observed) if trouble(symptoms) is None else {}
        for symptom in symptoms:
            lanes = observed.view.allocation.lanes.get(symptom.operator, 0)
            if symptom.kind == SymptomKind.NOTHING_WAITS and symptom.operator in spare:
                text = f"{symptom.text}, and {spare[symptom.operator]} of its {lanes} lanes would suffice"
                yield Diagnosis(DiagnosisKind.SPARE_LANES, symptom.operator, text, (symptom,))


class TooLittleInputDiagnoser:
    """Diagnoses too little input: the job is healthy, but its sources emit less than the target (Dhalion, section 5.2)."""

    def __init__(self, target_rows_s: float) -> None:
        self.target_rows_s = target_rows_s

    def diagnose(self, symptoms: Symptoms, observed: ObservedJob) -> Iterable[Diagnosis]:
        emitted = next((symptom for symptom in symptoms if symptom.kind == SymptomKind.EMIT_COUNT), None)
        if emitted is None or trouble(symptoms) is not None or emitted.value >= self.target_rows_s:
            return
        why = "too little input arrives" if sources_held_short(observed) else "the lanes of the sources are busy"
        text = f"{emitted.text} instead of {self.target_rows_s:,.0f} rows/s; no input is held back, {why}"
        yield Diagnosis(DiagnosisKind.TOO_LITTLE_INPUT, emitted.operator, text, (emitted,))
