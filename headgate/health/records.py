"""What passes through the health pipeline (Dhalion, section 4): every record keeps what it came from.

sensor -> Measurement -> detector -> Symptom -> diagnoser -> Diagnosis -> resolver -> Remedy (an action) or Alert
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headgate.config import Settings
from headgate.core.metrics import JobView, Sample, Span, newest, span_of
from headgate.core.model import Action, ActionKind, Cause, HostReading, JobAllocation

# -- names of the built-in parts; a part of a user may use a name of its own ---------------------------------------------------------


class MeasurementKind(StrEnum):
    """What the built-in sensor measures."""

    ROWS = "rows"
    """Rows/s that a lane or an operator was given."""
    BUSY = "busy"
    """Share of the time in which it was busy."""
    COST = "cost"
    """Seconds per row."""
    PENDING = "pending"
    """Rows that wait."""
    HELD = "held"
    """Share of the time in which it held its input back."""
    EMITTED = "emitted"
    """Rows/s that it put out."""
    WAIT = "wait"
    """Seconds that rows wait at the sources."""


class SymptomKind(StrEnum):
    """What the built-in detectors find."""

    HELD_BACK = "input held back"
    BACKLOG = "standing backlog"
    LATE = "late"
    UNEVEN_PENDING = "pending uneven"
    UNEVEN_ROWS = "rates uneven"
    UNEVEN_COST = "lanes unlike"
    UNCLEAR = "lanes unclear"
    NOTHING_WAITS = "nothing waits"
    EMIT_COUNT = "emit count"


class DiagnosisKind(StrEnum):
    """What the built-in diagnosers conclude."""

    TOO_FEW_LANES = "too few lanes"
    SLOW_LANES = "slow host"
    SKEW = "skew"
    SPARE_LANES = "spare lanes"
    TOO_LITTLE_INPUT = "too little input"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure over a window: of a lane, of an operator, or of the job."""

    name: str
    value: float
    operator: str | None = None
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something that may be a sign of ill health, and the measurements that show it."""

    kind: str
    operator: str
    value: float
    text: str
    lanes: tuple[int, ...] = ()
    """The lanes that show it; empty if all do alike."""
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains the symptoms."""

    kind: str
    operator: str
    text: str
    symptoms: tuple[Symptom, ...] = ()
    lanes: tuple[int, ...] = ()
    """The lanes that are to blame; empty if all are alike."""
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a resolver would change because of a diagnosis."""

    resolver: str
    diagnosis: Diagnosis
    allocation: JobAllocation
    what: str
    """What changes, in a few signs."""
    frees: bool = False
    """It takes lanes away instead of giving any."""

    def action(self, job: str) -> Action:
        """As an action, with its whole chain of causes."""
        kind = ActionKind.REDUCE if self.frees else ActionKind.RECONFIGURE
        return Action(kind, job, {job: self.allocation}, cause_of(self.diagnosis), self.what, self.resolver)


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that only a person can change."""

    text: str
    diagnosis: Diagnosis | None = None


def cause_of(diagnosis: Diagnosis) -> Cause:
    """A diagnosis with its symptoms and their measurements, as the cause of an action."""
    facts: dict[str, float | str] = {"diagnosis": diagnosis.kind, "operator": diagnosis.operator}
    if diagnosis.lanes:
        facts["lanes"] = ", ".join(map(str, diagnosis.lanes))
    return Cause(diagnosis.text, facts, tuple(_symptom_cause(symptom) for symptom in diagnosis.symptoms))


def _symptom_cause(symptom: Symptom) -> Cause:
    facts: dict[str, float | str] = {"symptom": symptom.kind, "operator": symptom.operator, "value": symptom.value}
    return Cause(symptom.text, facts, _measured_causes(symptom.measurements))


def _measured_causes(measurements: tuple[Measurement, ...]) -> tuple[Cause, ...]:
    """One line per kind of measurement, its lanes side by side."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.name, one.operator or "job"), []).append(one)
    return tuple(
        Cause(f"{name} of {owner}: {', '.join(f'{one.value:.3g}' for one in found)}", _lane_facts(found))
        for (name, owner), found in groups.items()
    )


def _lane_facts(found: list[Measurement]) -> dict[str, float | str]:
    return {("value" if one.lane is None else f"lane {one.lane}"): one.value for one in found}


# -- the patient ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patient:
    """A job under examination: what it has, what was measured of it since its last change, and where it runs."""

    view: JobView
    samples: tuple[Sample, ...]
    """The readings of the window, all of the same allocation; the view has those of before as well."""
    hosts: tuple[HostReading, ...]
    at_s: float
    settings: Settings
    misses: bool = False
    """It misses its intent, whether or not its input is held back."""

    @property
    def name(self) -> str:
        return self.view.job.name

    @property
    def span(self) -> Span | None:
        """What the job did in the window."""
        return span_of(self.samples)

    def halves(self) -> tuple[Span, Span] | None:
        """The older and the newer half of the window, each with an epoch that ended; None if there are too few readings."""
        middle, ends = len(self.samples) // 2, range(1, len(self.samples) - 1)
        between = [place for place in ends if self._has_epochs(0, place) and self._has_epochs(place, -1)]
        if not between:
            return None
        split = min(between, key=lambda place: abs(place - middle))
        older, newer = span_of(self.samples[: split + 1]), span_of(self.samples[split:])
        return None if older is None or newer is None else (older, newer)

    def _has_epochs(self, first: int, last: int) -> bool:
        before, after = self.samples[first].reading.epochs, self.samples[last].reading.epochs
        return before is None or after is None or after > before

    @property
    def is_full(self) -> bool:
        """Whether the window is as long as it gets: more epochs than it has cannot be waited for."""
        regulated = self.view.job.intent.policy is not None
        longest_s = self.settings.health_window_s if regulated else self.settings.window_s
        return self.span is not None and self.span.seconds >= longest_s - self.settings.round_s

    def sub_spans(self, seconds: float) -> tuple[Span, ...]:
        """The window in parts of about this length."""
        parts: list[Span] = []
        start = 0
        for end in range(1, len(self.samples)):
            last = end == len(self.samples) - 1
            if self.samples[end].at_s - self.samples[start].at_s >= seconds - 1e-6 or (last and not parts):
                part = span_of(self.samples[start : end + 1])
                parts += [part] if part is not None else []
                start = end
        return tuple(parts)


def patient_of(view: JobView, hosts: tuple[HostReading, ...], at_s: float, settings: Settings) -> Patient:
    """A job that the scheduler looks at because it misses its intent: its newest sub-windows count."""
    return Patient(view, newest(view.samples, 2), hosts, at_s, settings, misses=True)


class Measurements:
    """All that the sensors measured, by name, operator and lane."""

    def __init__(self, measured: Iterable[Measurement]) -> None:
        self.all = tuple(measured)
        self._one: dict[tuple[str, str | None, int | None], float] = {}
        self._lanes: dict[tuple[str, str | None], list[Measurement]] = {}
        for found in self.all:
            self._one[(found.name, found.operator, found.lane)] = found.value
            if found.lane is not None:
                self._lanes.setdefault((found.name, found.operator), []).append(found)

    def one(self, name: str, operator: str | None = None) -> float | None:
        """The figure of an operator or of the job; None if it was not measured."""
        return self._one.get((name, operator, None))

    def lanes(self, name: str, operator: str) -> tuple[Measurement, ...]:
        """The figures of an operator's lanes, in order; empty if they were not measured."""
        return tuple(self._lanes.get((name, operator), ()))

    def values(self, name: str, operator: str) -> tuple[float, ...]:
        """The same as plain numbers."""
        return tuple(found.value for found in self.lanes(name, operator))


# -- what is remembered --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An action of a policy, why it was taken, and what came of it."""

    at_s: float
    job: str
    policy: str
    diagnosis: str
    operator: str
    resolver: str
    before: Mapping[str, float] = field(default_factory=dict)
    """The policy's own measures when it was taken."""
    after: Mapping[str, float] = field(default_factory=dict)
    """And once its effect was measured."""
    useful: bool | None = None
    """Whether it helped; None: not known (yet), or something else changed meanwhile."""
    what: str = ""

    def same_pair(self, diagnosis: Diagnosis, resolver: str) -> bool:
        """Whether it was the same answer to the same trouble."""
        return (self.diagnosis, self.operator, self.resolver) == (diagnosis.kind, diagnosis.operator, resolver)


Log = tuple[LogEntry, ...]


def purged(log: Log, at_s: float, settings: Settings) -> Log:
    """The newest entries, and none that is too old (Dhalion, section 4.2): both rules hold."""
    young = tuple(entry for entry in log if at_s - entry.at_s <= settings.log_keep_h * 3600)
    return young[-settings.log_entries :]


def blacklisted(log: Log, job: str, diagnosis: Diagnosis, resolver: str, settings: Settings) -> bool:
    """Whether this answer to this trouble has been useless too often (Dhalion, section 4.3)."""
    judged = [e for e in log if e.job == job and e.useful is not None and e.same_pair(diagnosis, resolver)]
    useless = sum(not entry.useful for entry in judged)
    return bool(judged) and useless / len(judged) > settings.blacklist_ratio


# -- the four extension points ---------------------------------------------------------------------------------------------------


class Sensor(Protocol):
    """Turns readings into measurements."""

    def measure(self, patient: Patient) -> Iterable[Measurement]:
        """What it measured over the window; nothing where nothing is known."""


class Detector(Protocol):
    """Finds symptoms in measurements."""

    def detect(self, measured: Measurements, patient: Patient) -> Iterable[Symptom]:
        """The symptoms, if there are any."""


class Diagnoser(Protocol):
    """Explains symptoms."""

    def diagnose(self, symptoms: tuple[Symptom, ...], patient: Patient) -> Iterable[Diagnosis]:
        """The diagnoses, if there are any."""


class Resolver(Protocol):
    """Knows what to do about a diagnosis."""

    @property
    def name(self) -> str:
        """The word under which the action log knows it."""

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, patient: Patient) -> Remedy | Alert | None:
        """What to change, what to tell a person, or None where it can do nothing."""
