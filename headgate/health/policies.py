"""Health policies: combinations of sensors, detectors, diagnosers and resolvers, with a measure of success.

A user-defined policy is a subclass of `HealthPolicy` (docs/health.md has an example). An invasive policy may change its job; a job has
one invasive policy at most. All other policies examine every job and only raise alerts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headgate.core.intents import THROUGHPUT, Intent
from headgate.core.quantities import about, did_you_mean, rows_s, shown
from headgate.errors import InputError, IntentError
from headgate.health.diagnosing import (
    SkewDiagnoser,
    SlowLanesDiagnoser,
    SpareLanesDiagnoser,
    TooFewLanesDiagnoser,
    TooLittleInputDiagnoser,
)
from headgate.health.memory import FewerLanes, MemoryDetector, MemoryDiagnoser, SmallerEpochs
from headgate.health.records import (
    Alert,
    Detector,
    Diagnoser,
    Diagnosis,
    DiagnosisKind,
    LogEntry,
    MeasurementKind,
    Measurements,
    ObservedJob,
    Resolver,
    Sensor,
    Symptom,
)
from headgate.health.resolving import MoveLanes, ReassignSlices, ResolverName, ScaleDown, ScaleSource, ScaleUp
from headgate.health.sensing import (
    BacklogDetector,
    CostChangeDetector,
    EmitCountDetector,
    HeldBackDetector,
    LaneSensor,
    LaneSpeedDetector,
    LateDetector,
    PendingDetector,
    RateSkewDetector,
)


class HealthPolicy:
    """Base class of every policy: override the attributes and methods that differ.

    `resolvers` lists the resolvers for each kind of diagnosis in the order of trial; a resolver that was useless for a diagnosis too
    often is skipped.
    """

    name: str = ""
    invasive: bool = False
    sensors: Sequence[Sensor] = (LaneSensor(),)
    detectors: Sequence[Detector] = ()
    diagnosers: Sequence[Diagnoser] = ()
    resolvers: Mapping[str, Sequence[Resolver]] = {}

    def select(self, diagnoses: Sequence[Diagnosis]) -> Sequence[Diagnosis]:
        """The diagnoses in the order of resolution: highest confidence first."""
        return sorted(diagnoses, key=lambda diagnosis: -diagnosis.confidence)

    def measures(self, measured: Measurements, observed: ObservedJob, operator: str) -> Mapping[str, float]:
        """The figures by which an action on this operator is judged; taken before and after the action."""
        return {
            "held": measured.one(MeasurementKind.HELD) or 0.0,
            "wait": measured.one(MeasurementKind.WAIT) or 0.0,
            "held by operator": measured.one(MeasurementKind.HELD, operator) or 0.0,
            "emitted": measured.one(MeasurementKind.EMITTED) or 0.0,
            "sustains": sustained_rows_s(measured, operator),
        }

    def helped(self, entry: LogEntry, after: Mapping[str, float], observed: ObservedJob) -> bool | None:
        """Whether an action helped; None if unknown."""
        return None

    def alerts(
        self, symptoms: Sequence[Symptom], diagnoses: Sequence[Diagnosis], observed: ObservedJob
    ) -> Iterable[Alert]:
        """Alerts for people, besides those of the resolvers."""
        return ()


LANE_REMEDIES = (ResolverName.SCALE_UP, ResolverName.SCALE_DOWN, ResolverName.SCALE_SOURCE, ResolverName.FEWER_LANES)
"""Resolvers that remain when only lane counts may change."""

_UP, _MOVE, _REASSIGN, _DOWN = ScaleUp(), MoveLanes(), ReassignSlices(), ScaleDown()


class Provision(HealthPolicy):
    """Dynamic resource provisioning (Dhalion, section 5.1): as few lanes as possible without holding back input."""

    name = "provision"
    invasive = True
    detectors: Sequence[Detector] = (
        HeldBackDetector(),
        BacklogDetector(),
        PendingDetector(),
        RateSkewDetector(),
        LaneSpeedDetector(),
        CostChangeDetector(),
        MemoryDetector(),
    )
    diagnosers: Sequence[Diagnoser] = (
        SlowLanesDiagnoser(),
        SkewDiagnoser(),
        TooFewLanesDiagnoser(),
        MemoryDiagnoser(),
        SpareLanesDiagnoser(),
    )
    resolvers: Mapping[str, Sequence[Resolver]] = {
        DiagnosisKind.TOO_FEW_LANES: (_UP, _REASSIGN),
        DiagnosisKind.SLOW_LANES: (_MOVE, _UP, _REASSIGN),
        DiagnosisKind.SKEW: (_REASSIGN, _UP),
        DiagnosisKind.MEMORY: (SmallerEpochs(), FewerLanes()),
        DiagnosisKind.SPARE_LANES: (_DOWN,),
    }

    def helped(self, entry: LogEntry, after: Mapping[str, float], observed: ObservedJob) -> bool | None:
        """Whether the operator now sustains more rows, rows wait less, or less input is held back; fewer lanes: no input is held back.

        The sustained rate is reliable at any time; the held-back share is not while queues are still filling.
        """
        settings = observed.settings
        if entry.diagnosis == DiagnosisKind.SPARE_LANES:
            return after["held"] <= settings.held_least
        if after["sustains"] > entry.before["sustains"] * (1 + settings.improvement) > 0:
            return True
        if entry.before.get("wait", 0.0) > settings.backlog_wait_s:
            return after.get("wait", 0.0) < entry.before["wait"] * (1 - settings.improvement)
        before, now = (_held(measures) for measures in (entry.before, after))
        if now <= settings.held_least or now < before * (1 - settings.improvement):
            return True
        moved = abs(_input(after) - _input(entry.before)) > settings.load_change * _input(entry.before)
        return None if moved else False


def sustained_rows_s(measured: Measurements, operator: str) -> float:
    """Rows per second of an operator at which its first lane saturates; 0 without per-lane measurements."""
    rows, costs = measured.values(MeasurementKind.ROWS, operator), measured.values(MeasurementKind.COST, operator)
    total = sum(rows)
    if not total or len(rows) != len(costs):
        return 0.0
    return min(
        (total / (given * cost) for given, cost in zip(rows, costs, strict=True) if given * cost > 0), default=0.0
    )


def _held(measures: Mapping[str, float]) -> float:
    """Share of time in which the operator held back input; in which any operator did, if the operator's own share is unknown."""
    return measures["held by operator"] or measures["held"]


def _input(measures: Mapping[str, float]) -> float:
    """Rows per second that the sources would emit if no input were held back."""
    return measures["emitted"] / max(1e-9, 1 - measures["held"])


class Throughput(Provision):
    """Throughput target (Dhalion, section 5.2): sources get lanes until they emit the target rate, other operators keep up."""

    def __init__(self, target_rows_s: float) -> None:
        self.name = f"throughput:{target_rows_s * 60:.0f}/min"
        self.target_rows_s = target_rows_s
        # A job with a throughput target may read an endless backlog, so a backlog is no symptom.
        kept = (detector for detector in Provision.detectors if not isinstance(detector, BacklogDetector))
        self.detectors = (*kept, EmitCountDetector())
        self.diagnosers = (*Provision.diagnosers[:4], TooLittleInputDiagnoser(target_rows_s))
        self.resolvers = {**Provision.resolvers, DiagnosisKind.TOO_LITTLE_INPUT: (ScaleSource(target_rows_s),)}

    def helped(self, entry: LogEntry, after: Mapping[str, float], observed: ObservedJob) -> bool | None:
        """Whether the unthrottled output of the sources rose, for a remedy against too little input."""
        if entry.diagnosis != DiagnosisKind.TOO_LITTLE_INPUT:
            return super().helped(entry, after, observed)
        return _input(after) > entry.before["emitted"] * (1 + observed.settings.improvement)


class Late(Provision):
    """Diagnoses a job that the scheduler selected because it misses its intent."""

    name = "late"
    detectors = (HeldBackDetector(), LateDetector(), *Provision.detectors[2:])
    diagnosers = Provision.diagnosers[:4]


# -- by name -------------------------------------------------------------------------------------------------------------------

PROVISION = "provision"


def built_in(text: str) -> HealthPolicy | None:
    """The built-in policy with this name; None for any other name, which may be a user-defined policy.

    >>> built_in("throughput:4000000/min").name
    'throughput:4000000/min'
    """
    name, colon, target = text.partition(":")
    if name == PROVISION and not colon:
        return Provision()
    if name == THROUGHPUT:
        return Throughput(rows_s(target, "policy", IntentError))
    return None


def check_policy(intent: Intent, own: Collection[str]) -> None:
    """Raise an error if the intent's policy is neither built in nor one of the user-defined policies `own`."""
    if intent.policy is None or intent.policy in own or built_in(intent.policy) is not None:
        return
    allowed = (PROVISION, f"{THROUGHPUT}:RATE", *own)
    raise IntentError(
        f"policy is {shown(intent.policy)}; allowed are {', '.join(allowed)}, and the policies of [user_policies] in a cluster file."
        f"{did_you_mean(intent.policy, (PROVISION, THROUGHPUT, *own))}"
    )


def user_policies_from(table: object, error: type[InputError]) -> dict[str, str]:
    """The `[user_policies]` table of a file: policy names and their import paths."""
    with about("user_policies", error):
        if not isinstance(table, Mapping):
            raise error(f'it is {shown(table)}; it must be a table such as {{mine = "my_policies:Mine"}}')
        for name, path in table.items():
            if not isinstance(path, str) or not path:
                raise error(f'{name} is {shown(path)}; it must be "module:Class", or the name of an entry point')
            if name == PROVISION or name.partition(":")[0] == THROUGHPUT:
                raise error(f"{shown(name)} is a built-in policy; choose another name")
        return dict(table)
