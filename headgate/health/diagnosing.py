"""Diagnosers: what explains the symptoms (Dhalion, table 1), each on its own; of the first three, one at most holds.

In the paper the length of the queues tells a slow lane from too few of them. It does not where lanes differ by a few per cent:
the slowest of a crowd that is overloaded as a whole has the only long queue. What tells them apart is the time a lane takes per row.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.health.demand import Evening, evening, sources_held_short, spare_lanes
from headgate.health.records import Diagnosis, DiagnosisKind, Patient, Symptom, SymptomKind

Symptoms = tuple[Symptom, ...]


def trouble(symptoms: Symptoms) -> Symptom | None:
    """The symptom that calls for a diagnosis: input held back, rows that wait for long, or an intent missed."""
    found = {symptom.kind: symptom for symptom in reversed(symptoms)}
    return found.get(SymptomKind.HELD_BACK) or found.get(SymptomKind.BACKLOG) or found.get(SymptomKind.LATE)


def _at(symptoms: Symptoms, kind: str, operator: str) -> Symptom | None:
    return next((symptom for symptom in symptoms if (symptom.kind, symptom.operator) == (kind, operator)), None)


def _unlike(symptoms: Symptoms, main: Symptom) -> Symptom | None:
    """How the lanes of the operator differ: by their rows or by their time per row, whichever is more; None if they are alike."""
    rows, cost = (_at(symptoms, kind, main.operator) for kind in (SymptomKind.UNEVEN_ROWS, SymptomKind.UNEVEN_COST))
    known = [symptom for symptom in (rows, cost) if symptom is not None and _holds_back(symptom, main)]
    return max(known, key=lambda symptom: symptom.value, default=None)


def _needs_lanes(unlike: Symptom, patient: Patient) -> bool:
    """Whether lanes have unlike rows only because there are fewer lanes than slices to spread."""
    return unlike.kind == SymptomKind.UNEVEN_ROWS and evening(patient, unlike.operator) is Evening.LANES


def _is_remediable(unlike: Symptom, patient: Patient) -> bool:
    """Whether something can be done about unlike rows, or one key fills a lane, which a person should know."""
    if evening(patient, unlike.operator) is not Evening.NOTHING:
        return True
    span = patient.span
    busy = span.busy_s(unlike.operator) if span is not None else ()
    return span is not None and max(busy, default=0.0) >= patient.settings.spare_below * span.seconds


def is_unclear(symptoms: Symptoms) -> bool:
    """Whether lanes of the operator in trouble differ, but nothing can be said of them yet: the next readings will tell."""
    main = trouble(symptoms)
    return (
        main is not None
        and _unlike(symptoms, main) is None
        and _at(symptoms, SymptomKind.UNCLEAR, main.operator) is not None
    )


def _holds_back(symptom: Symptom, main: Symptom) -> bool:
    """Lanes that differ are to blame only if they are among those that hold back the input."""
    return not main.lanes or bool(set(symptom.lanes) & set(main.lanes))


class TooFewLanesDiagnoser:
    """All lanes get as many rows as the others and take as long for each, and still they hold back the input."""

    def diagnose(self, symptoms: Symptoms, patient: Patient) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        if main is None or is_unclear(symptoms):
            return
        unlike = _unlike(symptoms, main)
        if unlike is not None and not _needs_lanes(unlike, patient):
            return
        lanes = patient.view.allocation.lanes[main.operator]
        alike = f"its {lanes} lanes alike" if lanes > 1 else "its only lane busy"
        alike = alike if unlike is None else f"{unlike.text}, and their slices cannot be spread better"
        yield Diagnosis(DiagnosisKind.TOO_FEW_LANES, main.operator, f"{main.text}, {alike}: too few lanes", (main,))


class SlowLanesDiagnoser:
    """Some lanes take longer for a row than the others, and hold back the input."""

    def diagnose(self, symptoms: Symptoms, patient: Patient) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        unlike = _unlike(symptoms, main) if main is not None else None
        if main is None or unlike is None or unlike.kind != SymptomKind.UNEVEN_COST:
            return
        where = _hosts(patient, main.operator, unlike.lanes)
        text = f"{main.text}; {unlike.text}: slow{where}"
        yield Diagnosis(
            DiagnosisKind.SLOW_LANES, main.operator, text, _with_pending(symptoms, main, unlike), unlike.lanes
        )


class SkewDiagnoser:
    """Some lanes are given more rows than the others, and hold back the input."""

    def diagnose(self, symptoms: Symptoms, patient: Patient) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        unlike = _unlike(symptoms, main) if main is not None else None
        if main is None or unlike is None or unlike.kind != SymptomKind.UNEVEN_ROWS:
            return
        if _needs_lanes(unlike, patient) or not _is_remediable(unlike, patient):
            return
        text = f"{main.text}; {unlike.text}: skewed keys"
        yield Diagnosis(DiagnosisKind.SKEW, main.operator, text, _with_pending(symptoms, main, unlike), unlike.lanes)


def _with_pending(symptoms: Symptoms, main: Symptom, unlike: Symptom) -> Symptoms:
    pending = _at(symptoms, SymptomKind.UNEVEN_PENDING, main.operator)
    return (main, unlike, pending) if pending is not None else (main, unlike)


def _hosts(patient: Patient, operator: str, lanes: tuple[int, ...]) -> str:
    places = hosts_of(patient, operator, lanes)
    return f" on {', '.join(places)}" if places else " lanes"


def hosts_of(patient: Patient, operator: str, lanes: tuple[int, ...]) -> tuple[str, ...]:
    """The hosts that these lanes run on, as far as they are known."""
    known = patient.samples[-1].reading.operators[operator].hosts or ()
    return tuple(dict.fromkeys(known[lane] for lane in lanes if lane < len(known)))


class SpareLanesDiagnoser:
    """Nothing is held back, almost nothing waits, and fewer lanes would have done for a long while."""

    def diagnose(self, symptoms: Symptoms, patient: Patient) -> Iterable[Diagnosis]:
        spare = spare_lanes(patient) if trouble(symptoms) is None else {}
        for symptom in symptoms:
            lanes = patient.view.allocation.lanes.get(symptom.operator, 0)
            if symptom.kind == SymptomKind.NOTHING_WAITS and symptom.operator in spare:
                text = f"{symptom.text}, and {spare[symptom.operator]} of its {lanes} lanes would do"
                yield Diagnosis(DiagnosisKind.SPARE_LANES, symptom.operator, text, (symptom,))


class TooLittleInputDiagnoser:
    """The job is healthy, but its sources put out less than they should (Dhalion, section 5.2)."""

    def __init__(self, target_rows_s: float) -> None:
        self.target_rows_s = target_rows_s

    def diagnose(self, symptoms: Symptoms, patient: Patient) -> Iterable[Diagnosis]:
        emitted = next((symptom for symptom in symptoms if symptom.kind == SymptomKind.EMIT_COUNT), None)
        if emitted is None or trouble(symptoms) is not None or emitted.value >= self.target_rows_s:
            return
        why = "not enough arrives" if sources_held_short(patient) else "its lanes are busy"
        text = f"{emitted.text} of the {self.target_rows_s:,.0f} they should, nothing is held back, {why}"
        yield Diagnosis(DiagnosisKind.TOO_LITTLE_INPUT, emitted.operator, text, (emitted,))
