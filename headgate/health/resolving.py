"""Resolvers: propose a remedy for a diagnosis (Dhalion, section 5, resolution phase).

A policy may ask any resolver about any diagnosis once the preferred remedies have proven useless.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from headgate.core.alerts import Alert, AlertKind
from headgate.core.model import JobAllocation, spread_evenly
from headgate.core.sizing import more_lanes
from headgate.core.windows import epoch_s
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
from headgate.health.records import Diagnosis, DiagnosisKind, MeasurementKind, Measurements, ObservedJob, Remedy
from headgate.state.placement.routing import best_places, imbalance, lane_loads, rebalance


class ResolverName(StrEnum):
    """Names of the built-in resolvers."""

    SCALE_UP = "scale up"
    SCALE_DOWN = "scale down"
    MOVE_LANES = "move lanes"
    REASSIGN_SLICES = "re-assign slices"
    SCALE_SOURCE = "scale up source"
    SMALLER_EPOCHS = "smaller epochs"
    FEWER_LANES = "fewer lanes"


class ScaleUp:
    """Adds lanes for the held-back input, to the bottleneck and to the operators downstream."""

    name: ClassVar[str] = ResolverName.SCALE_UP

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        now = observed.view.allocation.lanes
        if diagnosis.kind == DiagnosisKind.SKEW and evening(observed, diagnosis.operator) is Evening.NOTHING:
            return None
        wanted = _more(observed, diagnosis.operator)
        if wanted.get(diagnosis.operator, 0) <= now[diagnosis.operator] and wanted == now:
            return None
        allocation = with_lanes(observed, wanted)
        return Remedy(self.name, diagnosis, allocation, lanes_changed(now, wanted))


def _more(observed: ObservedJob, operator: str) -> dict[str, int]:
    """Wanted lanes: by `more_lanes` for scheduled jobs and for jobs with epochs, by `needed_lanes` per operator for other jobs."""
    now, settings, span = observed.view.allocation.lanes, observed.settings, observed.span
    if observed.view.job.intent.policy is None or (span is not None and epoch_s(span) is not None):
        return dict(more_lanes(observed.view, settings, observed.congested))
    needed = needed_lanes(observed, 1 + settings.scale_up_headroom)
    needed[operator] = max(needed.get(operator, 0), now[operator] + 1)
    limited = {name: min(lanes, math.ceil(now[name] * settings.growth_limit)) for name, lanes in needed.items()}
    return {**now, **{name: max(now[name], lanes) for name, lanes in capped(observed, limited).items()}}


def with_lanes(observed: ObservedJob, lanes: Mapping[str, int]) -> JobAllocation:
    """The job's allocation with other lanes, and slices placed by measured load."""
    before, span = observed.view.allocation, observed.span
    after = before.with_lanes(lanes)
    placed = dict(after.slices)
    for name, count in lanes.items():
        loads = span.of_lanes(name, "slice_rows") if span is not None and count != before.lanes.get(name) else None
        if loads and sum(loads) > 0 and (best := best_places(loads, count)) != spread_evenly(len(loads), count):
            placed[name] = best
    return dataclasses.replace(after, slices=placed)


def lanes_changed(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """The changed lane counts in short form: `split 8 → 11, count 8 → 12 lanes`."""
    return (
        ", ".join(f"{name} {before[name]} → {lanes}" for name, lanes in after.items() if lanes != before[name])
        + " lanes"
    )


class ScaleDown:
    """Removes spare lanes from every operator, at most the share `scale_down` at once."""

    name: ClassVar[str] = ResolverName.SCALE_DOWN

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        now, settings = observed.view.allocation.lanes, observed.settings
        spare = spare_lanes(observed)
        least = {name: math.ceil(lanes * (1 - settings.scale_down) - 1e-9) for name, lanes in now.items()}
        wanted = {name: min(lanes, max(1, least[name], spare.get(name, lanes))) for name, lanes in now.items()}
        if wanted == now:
            return None
        return Remedy(self.name, diagnosis, with_lanes(observed, wanted), lanes_changed(now, wanted), frees=True)


class MoveLanes:
    """Moves slow lanes to other hosts; the job avoids the slow hosts from then on."""

    name: ClassVar[str] = ResolverName.MOVE_LANES

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        hosts = {host.name for host in observed.hosts}
        slow = tuple(host for host in hosts_of(observed, diagnosis.operator, _suspects(diagnosis)) if host in hosts)
        old = tuple(host for host in observed.view.allocation.avoided if host in hosts and host not in slow)
        # Avoid at most half of the hosts: a job that moved often uses the hosts avoided longest again.
        avoided = (*old, *slow)[-max(1, len(hosts) // 2) :]
        if not slow or not hosts - set(avoided) or set(slow) >= hosts:
            return None
        allocation = dataclasses.replace(observed.view.allocation, avoided=avoided)
        return Remedy(self.name, diagnosis, allocation, f"lanes leave {', '.join(slow)}")


def _suspects(diagnosis: Diagnosis) -> tuple[int, ...]:
    """The lanes that the diagnosis names; if it names none, the lanes that show its symptoms."""
    return diagnosis.lanes or next((symptom.lanes for symptom in diagnosis.symptoms if symptom.lanes), ())


class ReassignSlices:
    """Moves slices from the busiest lanes to less busy lanes, by measured load."""

    name: ClassVar[str] = ResolverName.REASSIGN_SLICES

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        span, operator = observed.span, diagnosis.operator
        loads = span.of_lanes(operator, "slice_rows") if span is not None else None
        if span is None or not loads or sum(loads) <= 0:
            return None
        lanes = observed.view.allocation.lanes[operator]
        before = places_now(observed, operator, len(loads))
        after = rebalance(loads, before, lanes)
        unevenness = [imbalance(lane_loads(loads, places, lanes)) for places in (before, after)]
        if unevenness[1] > unevenness[0] * (1 - observed.settings.improvement):
            return _one_hot_slice(diagnosis, loads, observed, measured)
        moved = sum(one != other for one, other in zip(before, after, strict=True))
        effect = f"busiest lane {unevenness[0]:.2f} → {unevenness[1]:.2f} times the mean"
        what = f"{moved} of {operator}'s {len(loads)} slices to other lanes ({effect})"
        slices = {**observed.view.allocation.slices, operator: after}
        return Remedy(self.name, diagnosis, dataclasses.replace(observed.view.allocation, slices=slices), what)


def _one_hot_slice(
    diagnosis: Diagnosis, loads: tuple[float, ...], observed: ObservedJob, measured: Measurements
) -> Alert | None:
    """Alert for a slice that saturates a lane alone, which no number of lanes relieves; None if no slice does."""
    cost_s = measured.one(MeasurementKind.COST, diagnosis.operator)
    span = observed.span
    if cost_s is None or span is None or max(loads) / span.seconds * cost_s < observed.settings.spare_below:
        return None
    share = max(loads) / sum(loads)
    return Alert(
        f"one slice of {diagnosis.operator} gets {share:.0%} of the rows and saturates its lane;"
        f" no number of lanes helps, combine rows of the same key upstream of {diagnosis.operator}",
        diagnosis.operator,
        observed.name,
        AlertKind.HOT_SLICE,
    )


class ScaleSource:
    """Raises the output of the sources by target / actual rate in limited steps: by a higher read limit if the sources read up to their
    limit, else by more lanes, at most one per partition.
    """

    name: ClassVar[str] = ResolverName.SCALE_SOURCE

    def __init__(self, target_rows_s: float) -> None:
        self.target_rows_s = target_rows_s

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        if sources_held_short(observed):
            text = f"not enough input arrives for {self.target_rows_s:,.0f} rows/s"
            return Alert(text, job=observed.name, kind=AlertKind.TOO_LITTLE_INPUT)
        emitted, settings = measured.one(MeasurementKind.EMITTED), observed.settings
        missing = self.target_rows_s * (1 + settings.source_headroom) / emitted if emitted else settings.source_step
        factor = min(settings.source_step, missing)
        span = observed.span
        if span is not None and reads_to_its_limit(span):
            return self._higher_limit(diagnosis, observed, span.last.reading.read_limit or 1, factor)
        return self._more_lanes(diagnosis, observed, factor)

    def _higher_limit(self, diagnosis: Diagnosis, observed: ObservedJob, limit: int, factor: float) -> Remedy:
        raised = max(limit + 1, math.ceil(limit * factor))
        allocation = dataclasses.replace(observed.view.allocation, read_limit=raised)
        return Remedy(self.name, diagnosis, allocation, f"read limit {limit:,} → {raised:,} rows")

    def _more_lanes(self, diagnosis: Diagnosis, observed: ObservedJob, factor: float) -> Remedy | Alert:
        now = observed.view.allocation.lanes
        sources = [name for name in observed.view.job.graph.sources if name in now]
        wanted = capped(observed, {name: max(now[name] + 1, math.ceil(now[name] * factor - 1e-9)) for name in sources})
        lanes = {**now, **{name: max(now[name], count) for name, count in wanted.items()}}
        if lanes == now:
            most = ", ".join(f"{name} {now[name]}" for name in sources)
            text = f"the sources have reached their lane limit ({most}); the target is not met"
            return Alert(text, job=observed.name, kind=AlertKind.SOURCES_AT_LIMIT)
        return Remedy(self.name, diagnosis, observed.view.allocation.with_lanes(lanes), lanes_changed(now, lanes))
