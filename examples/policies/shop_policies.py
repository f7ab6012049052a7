"""Two policies of a shop: one tells a person when rows wait for too long, one provisions, but never leaves an operator alone.

They are named in a cluster file or a scenario file:

    [user_policies]
    lag = "shop_policies:Lag"
    careful = "shop_policies:Careful"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

from headgate.health.policies import HealthPolicy, Provision
from headgate.health.records import (
    Alert,
    Diagnosis,
    DiagnosisKind,
    Measurement,
    Measurements,
    ObservedJob,
    Remedy,
    Symptom,
)
from headgate.health.resolving import ScaleDown, lanes_changed


class LagSensor:
    """For how many seconds' worth of input rows wait."""

    def measure(self, observed: ObservedJob) -> Iterable[Measurement]:
        span = observed.span
        if span is not None and span.last.reading.backlog is not None and span.arrival_rows_s() > 0:
            yield Measurement("lag", span.last.reading.backlog / span.arrival_rows_s())


class LagDetector:
    """More than a minute is too much."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        lag_s = measured.one("lag")
        if lag_s is not None and lag_s > 60:
            source = observed.view.job.graph.sources[0]
            yield Symptom("lag", source, lag_s, f"rows wait for {lag_s:.0f} s", (), (Measurement("lag", lag_s),))


class Lag(HealthPolicy):
    """Looks at every job, changes none."""

    name = "lag"
    sensors = (LagSensor(),)
    detectors = (LagDetector(),)

    def alerts(
        self, symptoms: Sequence[Symptom], diagnoses: Sequence[Diagnosis], observed: ObservedJob
    ) -> Iterable[Alert]:
        return [Alert(symptom.text, symptom.operator) for symptom in symptoms]


class PairsStay(ScaleDown):
    """Takes spare lanes away, but leaves two wherever there were two."""

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        remedy = super().resolve(diagnosis, measured, observed)
        if not isinstance(remedy, Remedy):
            return remedy
        now = observed.view.allocation
        lanes = {name: max(left, min(2, now.lanes[name])) for name, left in remedy.allocation.lanes.items()}
        if lanes == now.lanes:
            return None
        return dataclasses.replace(remedy, allocation=now.with_lanes(lanes), what=lanes_changed(now.lanes, lanes))


class Careful(Provision):
    """Provisions like the built-in policy; a job uses it with `policy = "careful"` in its intent."""

    name = "careful"
    resolvers: ClassVar = {**Provision.resolvers, DiagnosisKind.SPARE_LANES: (PairsStay(),)}
