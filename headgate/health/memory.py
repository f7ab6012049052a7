"""Memory of hosts: a shortage is a symptom, and its remedies are smaller epochs and fewer lanes (beyond both papers).

Henge measures memory (SoCC '18, fig. 18), but takes no action on it. A host that is short of memory collects garbage or swaps, so that its
lanes are slow; more lanes, the usual help for slow lanes, would take more memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import ClassVar

from headgate.core.alerts import Alert
from headgate.health.diagnosing import Symptoms, trouble
from headgate.health.records import (
    Diagnosis,
    DiagnosisKind,
    Measurement,
    MeasurementKind,
    Measurements,
    ObservedJob,
    Remedy,
    Symptom,
    SymptomKind,
)
from headgate.health.resolving import ResolverName, lanes_changed, with_lanes

HALF = 0.5
"""Share of the rows or lanes that one action leaves: a shortage of memory has to end soon."""
LEAST_ROWS = 100
"""Rows that an epoch may read in any case."""


class MemoryDetector:
    """Detects hosts that are short of memory, among those that run lanes of the job."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        used = _used(observed)
        short = {name: share for name, share in used.items() if share >= observed.settings.memory_short}
        if not short:
            return
        worst = max(short.values())
        verb = "uses" if len(short) == 1 else "use"
        text = f"{', '.join(sorted(short))} {verb} up to {worst:.0%} of the memory"
        figures = tuple(Measurement(MeasurementKind.MEMORY, share) for share in short.values())
        yield Symptom(SymptomKind.SHORT_OF_MEMORY, _widest(observed), worst, text, (), figures)


def _used(observed: ObservedJob) -> dict[str, float]:
    """Share of memory in use on each host with lanes of the job; on all hosts if the engine does not say where lanes run."""
    operators = observed.samples[-1].reading.operators if observed.samples else {}
    places = {host for one in operators.values() for host in one.hosts or ()}
    return {
        host.name: host.memory_used
        for host in observed.hosts
        if host.memory_used is not None and (not places or host.name in places)
    }


def _widest(observed: ObservedJob) -> str:
    """The operator with the most lanes."""
    lanes = observed.view.allocation.lanes
    return max(lanes, key=lambda name: lanes[name])


class MemoryDiagnoser:
    """Diagnoses a memory shortage: a host of the job is short of memory, and the job holds back input or misses its intent."""

    def diagnose(self, symptoms: Symptoms, observed: ObservedJob) -> Iterable[Diagnosis]:
        main = trouble(symptoms)
        short = next((one for one in symptoms if one.kind == SymptomKind.SHORT_OF_MEMORY), None)
        if main is not None and short is not None:
            text = f"{main.text}; {short.text}: memory shortage"
            yield Diagnosis(DiagnosisKind.MEMORY, short.operator, text, (main, short))


class SmallerEpochs:
    """Halves the rows that an epoch reads; no remedy for an engine without epochs."""

    name: ClassVar[str] = ResolverName.SMALLER_EPOCHS

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        span = observed.span
        first, last = (None, None) if span is None else (span.first.reading.epochs, span.last.reading.epochs)
        if span is None or first is None or last is None or last <= first:
            return None
        rows = max(span.rows_in(source) for source in observed.view.job.graph.sources) / (last - first)
        limit = math.ceil(rows * HALF)
        if limit < LEAST_ROWS:
            return None
        allocation = dataclasses.replace(observed.view.allocation, read_limit=limit)
        return Remedy(self.name, diagnosis, allocation, f"epochs of {rows:,.0f} → {limit:,} rows")


class FewerLanes:
    """Halves the lanes of the operator with the most lanes, so that each host runs fewer lanes at once."""

    name: ClassVar[str] = ResolverName.FEWER_LANES

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        now, widest = observed.view.allocation.lanes, _widest(observed)
        wanted = {**now, widest: max(1, math.floor(now[widest] * HALF))}
        if wanted == now:
            return None
        return Remedy(self.name, diagnosis, with_lanes(observed, wanted), lanes_changed(now, wanted))
