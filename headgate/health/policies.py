"""Policies: sensors, detectors, diagnosers and resolvers put together, a choice among them, and a measure of success.

A policy of the user's is a class like these (docs/health.md has an example). An invasive one may change its job, and a job has one
at a time. Any other only raises alerts, and all of them look at every job.
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
from headgate.health.records import (
    Alert,
    Detector,
    Diagnoser,
    Diagnosis,
    DiagnosisKind,
    LogEntry,
    MeasurementKind,
    Measurements,
    Patient,
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
    """The base of every policy: override what differs.

    `resolvers` lists, for each kind of diagnosis, the resolvers in the order in which they are tried; one that has been useless for
    a diagnosis too often is passed over.
    """

    name: str = ""
    invasive: bool = False
    sensors: Sequence[Sensor] = (LaneSensor(),)
    detectors: Sequence[Detector] = ()
    diagnosers: Sequence[Diagnoser] = ()
    resolvers: Mapping[str, Sequence[Resolver]] = {}

    def select(self, diagnoses: Sequence[Diagnosis]) -> Sequence[Diagnosis]:
        """The diagnoses in the order in which they are answered: the surest first."""
        return sorted(diagnoses, key=lambda diagnosis: -diagnosis.confidence)

    def measures(self, measured: Measurements, patient: Patient, operator: str) -> Mapping[str, float]:
        """What an action on this operator is judged by, before it and after it."""
        return {
            "held": measured.one(MeasurementKind.HELD) or 0.0,
            "wait": measured.one(MeasurementKind.WAIT) or 0.0,
            "held by operator": measured.one(MeasurementKind.HELD, operator) or 0.0,
            "emitted": measured.one(MeasurementKind.EMITTED) or 0.0,
            "sustains": sustained_rows_s(measured, operator),
        }

    def helped(self, entry: LogEntry, after: Mapping[str, float], patient: Patient) -> bool | None:
        """Whether an action was of use; None if there is no telling."""
        return None

    def alerts(self, symptoms: Sequence[Symptom], diagnoses: Sequence[Diagnosis], patient: Patient) -> Iterable[Alert]:
        """What to tell a person, whatever is done."""
        return ()


LANE_REMEDIES = (ResolverName.SCALE_UP, ResolverName.SCALE_DOWN, ResolverName.SCALE_SOURCE)
"""What is left when only lanes may change."""

_UP, _MOVE, _REASSIGN, _DOWN = ScaleUp(), MoveLanes(), ReassignSlices(), ScaleDown()


class Provision(HealthPolicy):
    """Dynamic resource provisioning (Dhalion, section 5.1): as few lanes as possible, and no input held back."""

    name = "provision"
    invasive = True
    detectors: Sequence[Detector] = (
        HeldBackDetector(),
        BacklogDetector(),
        PendingDetector(),
        RateSkewDetector(),
        LaneSpeedDetector(),
        CostChangeDetector(),
    )
    diagnosers: Sequence[Diagnoser] = (
        SlowLanesDiagnoser(),
        SkewDiagnoser(),
        TooFewLanesDiagnoser(),
        SpareLanesDiagnoser(),
    )
    resolvers: Mapping[str, Sequence[Resolver]] = {
        DiagnosisKind.TOO_FEW_LANES: (_UP, _REASSIGN),
        DiagnosisKind.SLOW_LANES: (_MOVE, _UP, _REASSIGN),
        DiagnosisKind.SKEW: (_REASSIGN, _UP),
        DiagnosisKind.SPARE_LANES: (_DOWN,),
    }

    def helped(self, entry: LogEntry, after: Mapping[str, float], patient: Patient) -> bool | None:
        """That operator can take more rows, rows wait less, or it holds back less; fewer lanes helped if nothing is held back.

        How much is held back says little while queues are still filling up; what an operator can take does at any time.
        """
        settings = patient.settings
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
    """Rows per second of an operator at which its first lane has no time left; 0 where lanes are not measured one by one."""
    rows, costs = measured.values(MeasurementKind.ROWS, operator), measured.values(MeasurementKind.COST, operator)
    total = sum(rows)
    if not total or len(rows) != len(costs):
        return 0.0
    return min(
        (total / (given * cost) for given, cost in zip(rows, costs, strict=True) if given * cost > 0), default=0.0
    )


def _held(measures: Mapping[str, float]) -> float:
    """By that operator; where operators do not say, by any."""
    return measures["held by operator"] or measures["held"]


def _input(measures: Mapping[str, float]) -> float:
    """What the sources would put out if nothing were held back."""
    return measures["emitted"] / max(1e-9, 1 - measures["held"])


class Throughput(Provision):
    """A throughput target (Dhalion, section 5.2): sources get lanes until they put out enough, the others what that takes."""

    def __init__(self, target_rows_s: float) -> None:
        self.name = f"throughput:{target_rows_s * 60:.0f}/min"
        self.target_rows_s = target_rows_s
        # A job that should put out so much may read an endless backlog: that rows wait is no symptom.
        kept = (detector for detector in Provision.detectors if not isinstance(detector, BacklogDetector))
        self.detectors = (*kept, EmitCountDetector())
        self.diagnosers = (*Provision.diagnosers[:3], TooLittleInputDiagnoser(target_rows_s))
        self.resolvers = {**Provision.resolvers, DiagnosisKind.TOO_LITTLE_INPUT: (ScaleSource(target_rows_s),)}

    def helped(self, entry: LogEntry, after: Mapping[str, float], patient: Patient) -> bool | None:
        """More lanes for a source helped if more is put out, or would be were it not held back."""
        if entry.diagnosis != DiagnosisKind.TOO_LITTLE_INPUT:
            return super().helped(entry, after, patient)
        return _input(after) > entry.before["emitted"] * (1 + patient.settings.improvement)


class Late(Provision):
    """For a job that the scheduler picked because it misses its intent: the trouble is known, its cause is asked for."""

    name = "late"
    detectors = (HeldBackDetector(), LateDetector(), *Provision.detectors[2:])
    diagnosers = Provision.diagnosers[:3]


# -- by name -------------------------------------------------------------------------------------------------------------------

PROVISION = "provision"


def built_in(text: str) -> HealthPolicy | None:
    """The built-in policy of that name; None if there is none, in which case it may be one of the user's.

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
    """Refuse the name of a policy that is neither built in nor one of the user's `own`."""
    if intent.policy is None or intent.policy in own or built_in(intent.policy) is not None:
        return
    allowed = (PROVISION, f"{THROUGHPUT}:RATE", *own)
    raise IntentError(
        f"policy is {shown(intent.policy)}; allowed are {', '.join(allowed)}, and those of [user_policies] in a cluster file."
        f"{did_you_mean(intent.policy, (PROVISION, THROUGHPUT, *own))}"
    )


def user_policies_from(table: object, error: type[InputError]) -> dict[str, str]:
    """The `[user_policies]` of a file: names, and where each policy is to be found."""
    with about("user_policies", error):
        if not isinstance(table, Mapping):
            raise error(f'it is {shown(table)}; it must be a table such as {{mine = "my_policies:Mine"}}')
        for name, path in table.items():
            if not isinstance(path, str) or not path:
                raise error(f'{name} is {shown(path)}; it must be "module:Class", or the name of an entry point')
            if name == PROVISION or name.partition(":")[0] == THROUGHPUT:
                raise error(f"{shown(name)} is a policy of Headgate's own; give yours another name")
        return dict(table)
