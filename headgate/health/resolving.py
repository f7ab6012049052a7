"""Resolvers: what to do about a diagnosis (Dhalion, section 5, resolution phase).

Each may be asked about a diagnosis that is not its own, when the remedies before it have been useless: it then answers if it can.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from headgate.core.metrics import epoch_s
from headgate.core.model import JobAllocation, spread_evenly
from headgate.core.sizing import more_lanes
from headgate.health.demand import (
    Evening,
    capped,
    evening,
    needed_lanes,
    places_now,
    reads_to_its_limit,
    sources_held_short,
    spare_lanes,
)
from headgate.health.diagnosing import hosts_of
from headgate.health.records import Alert, Diagnosis, DiagnosisKind, MeasurementKind, Measurements, Patient, Remedy
from headgate.state.placement.routing import best_places, imbalance, lane_loads, rebalanced


class ResolverName(StrEnum):
    """The built-in resolvers."""

    SCALE_UP = "scale up"
    SCALE_DOWN = "scale down"
    MOVE_LANES = "move lanes"
    REASSIGN_SLICES = "re-assign slices"
    SCALE_SOURCE = "scale up source"


class ScaleUp:
    """Lanes for the input that could not be handled, at the operator that holds back and at those behind it."""

    name: ClassVar[str] = ResolverName.SCALE_UP

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, patient: Patient) -> Remedy | Alert | None:
        now = patient.view.allocation.lanes
        if diagnosis.kind == DiagnosisKind.SKEW and evening(patient, diagnosis.operator) is Evening.NOTHING:
            return None
        wanted = _more(patient, diagnosis.operator)
        if wanted.get(diagnosis.operator, 0) <= now[diagnosis.operator] and wanted == now:
            return None
        allocation = with_lanes(patient, wanted)
        return Remedy(self.name, diagnosis, allocation, lanes_changed(now, wanted))


def _more(patient: Patient, operator: str) -> dict[str, int]:
    """With epochs the stages share the time, and the scheduler's sizing knows how; else each operator is on its own."""
    now, settings, span = patient.view.allocation.lanes, patient.settings, patient.span
    if span is not None and epoch_s(span) is not None:
        return dict(more_lanes(patient.view, settings))
    needed = needed_lanes(patient, 1 + settings.scale_up_headroom)
    needed[operator] = max(needed.get(operator, 0), now[operator] + 1)
    limited = {name: min(lanes, math.ceil(now[name] * settings.growth_limit)) for name, lanes in needed.items()}
    return {**now, **{name: max(now[name], lanes) for name, lanes in capped(patient, limited).items()}}


def with_lanes(patient: Patient, lanes: Mapping[str, int]) -> JobAllocation:
    """The job's allocation with other lanes, and slices spread over them by what was measured of each."""
    before, span = patient.view.allocation, patient.span
    after = before.with_lanes(lanes)
    placed = dict(after.slices)
    for name, count in lanes.items():
        loads = span.of_lanes(name, "slice_rows") if span is not None and count != before.lanes.get(name) else None
        if loads and sum(loads) > 0 and (best := best_places(loads, count)) != spread_evenly(len(loads), count):
            placed[name] = best
    return dataclasses.replace(after, slices=placed)


def lanes_changed(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """`split 8 → 11, count 8 → 12 lanes`."""
    return (
        ", ".join(f"{name} {before[name]} → {lanes}" for name, lanes in after.items() if lanes != before[name])
        + " lanes"
    )


class ScaleDown:
    """Fewer lanes for every operator that has some to spare, a limited share at once."""

    name: ClassVar[str] = ResolverName.SCALE_DOWN

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, patient: Patient) -> Remedy | Alert | None:
        now, settings = patient.view.allocation.lanes, patient.settings
        spare = spare_lanes(patient)
        least = {name: math.ceil(lanes * (1 - settings.scale_down) - 1e-9) for name, lanes in now.items()}
        wanted = {name: min(lanes, max(1, least[name], spare.get(name, lanes))) for name, lanes in now.items()}
        if wanted == now:
            return None
        return Remedy(self.name, diagnosis, with_lanes(patient, wanted), lanes_changed(now, wanted), frees=True)


class MoveLanes:
    """Lanes leave the hosts on which they are slow; the job keeps off those from then on."""

    name: ClassVar[str] = ResolverName.MOVE_LANES

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, patient: Patient) -> Remedy | Alert | None:
        known = {host.name for host in patient.hosts}
        slow = tuple(host for host in hosts_of(patient, diagnosis.operator, _suspects(diagnosis)) if host in known)
        old = tuple(host for host in patient.view.allocation.avoided if host in known and host not in slow)
        # A job that has been moved often must not run out of hosts: the oldest are given another chance.
        avoided = (*old, *slow)[-max(1, len(known) // 2) :]
        if not slow or not known - set(avoided) or set(slow) >= known:
            return None
        allocation = dataclasses.replace(patient.view.allocation, avoided=avoided)
        return Remedy(self.name, diagnosis, allocation, f"lanes leave {', '.join(slow)}")


def _suspects(diagnosis: Diagnosis) -> tuple[int, ...]:
    """The lanes to blame; if the diagnosis names none, those that show its symptoms."""
    return diagnosis.lanes or next((symptom.lanes for symptom in diagnosis.symptoms if symptom.lanes), ())


class ReassignSlices:
    """Slices move from lanes with much to do to lanes with little, by measured load."""

    name: ClassVar[str] = ResolverName.REASSIGN_SLICES

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, patient: Patient) -> Remedy | Alert | None:
        span, operator = patient.span, diagnosis.operator
        loads = span.of_lanes(operator, "slice_rows") if span is not None else None
        if span is None or not loads or sum(loads) <= 0:
            return None
        lanes = patient.view.allocation.lanes[operator]
        before = places_now(patient, operator, len(loads))
        after = rebalanced(loads, before, lanes)
        unevenness = [imbalance(lane_loads(loads, places, lanes)) for places in (before, after)]
        if unevenness[1] > unevenness[0] * (1 - patient.settings.improvement):
            return _one_hot_slice(diagnosis, loads, patient, measured)
        moved = sum(one != other for one, other in zip(before, after, strict=True))
        effect = f"busiest lane {unevenness[0]:.2f} → {unevenness[1]:.2f} times the mean"
        what = f"{moved} of {operator}'s {len(loads)} slices to other lanes ({effect})"
        slices = {**patient.view.allocation.slices, operator: after}
        return Remedy(self.name, diagnosis, dataclasses.replace(patient.view.allocation, slices=slices), what)


def _one_hot_slice(
    diagnosis: Diagnosis, loads: tuple[float, ...], patient: Patient, measured: Measurements
) -> Alert | None:
    """A slice that fills a lane alone cannot be helped by lanes: its key has to be combined before it gets there."""
    cost_s = measured.one(MeasurementKind.COST, diagnosis.operator)
    span = patient.span
    if cost_s is None or span is None or max(loads) / span.seconds * cost_s < patient.settings.spare_below:
        return None
    share = max(loads) / sum(loads)
    return Alert(
        f"{patient.name}: one slice of {diagnosis.operator} has {share:.0%} of its rows, more than a lane can do;"
        " no number of lanes helps, combine rows of the same key before they get there",
        diagnosis,
    )


class ScaleSource:
    """More for the sources to put out, by target / actual in limited steps: their read limit where they read up to it, else lanes, and
    never more of them than they have partitions.
    """

    name: ClassVar[str] = ResolverName.SCALE_SOURCE

    def __init__(self, target_rows_s: float) -> None:
        self.target_rows_s = target_rows_s

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, patient: Patient) -> Remedy | Alert | None:
        if sources_held_short(patient):
            return Alert(f"{patient.name}: there is not enough input for {self.target_rows_s:,.0f} rows/s", diagnosis)
        emitted, settings = measured.one(MeasurementKind.EMITTED), patient.settings
        missing = self.target_rows_s * (1 + settings.source_headroom) / emitted if emitted else settings.source_step
        factor = min(settings.source_step, missing)
        span = patient.span
        if span is not None and reads_to_its_limit(span):
            return self._higher_limit(diagnosis, patient, span.last.reading.read_limit or 1, factor)
        return self._more_lanes(diagnosis, patient, factor)

    def _higher_limit(self, diagnosis: Diagnosis, patient: Patient, limit: int, factor: float) -> Remedy:
        raised = max(limit + 1, math.ceil(limit * factor))
        allocation = dataclasses.replace(patient.view.allocation, read_limit=raised)
        return Remedy(self.name, diagnosis, allocation, f"read limit {limit:,} → {raised:,} rows")

    def _more_lanes(self, diagnosis: Diagnosis, patient: Patient, factor: float) -> Remedy | Alert:
        now = patient.view.allocation.lanes
        sources = [name for name in patient.view.job.graph.sources if name in now]
        wanted = capped(patient, {name: max(now[name] + 1, math.ceil(now[name] * factor - 1e-9)) for name in sources})
        lanes = {**now, **{name: max(now[name], count) for name, count in wanted.items()}}
        if lanes == now:
            most = ", ".join(f"{name} {now[name]}" for name in sources)
            return Alert(
                f"{patient.name}: its sources have as many lanes as they may ({most}); the target is not met", diagnosis
            )
        return Remedy(self.name, diagnosis, patient.view.allocation.with_lanes(lanes), lanes_changed(now, lanes))
