"""Data types of the health pipeline (Dhalion, section 4); every record links to the records behind it.

sensor -> Measurement -> detector -> Symptom -> diagnoser -> Diagnosis -> resolver -> Remedy (an action) or Alert
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headgate.config import Settings
from headgate.core.alerts import Alert as Alert  # noqa: PLC0414  # user policies import all records from here
from headgate.core.metrics import JobView, View
from headgate.core.model import Action, ActionKind, Cause, HostReading, JobAllocation
from headgate.core.windows import Sample, Span, newest, span_of

# -- names of the built-in parts; user-defined parts may use other names -------------------------------------------------------


class MeasurementKind(StrEnum):
    """Kinds of measurements of the built-in sensor."""

    ROWS = "rows"
    """Rows per second that a lane or an operator received."""
    BUSY = "busy"
    """Share of the time in which a lane was busy."""
    COST = "cost"
    """Busy seconds per row of a lane or an operator."""
    PENDING = "pending"
    """Rows queued in front of a lane; without queues, the lane's share of busy time."""
    HELD = "held"
    """Share of the time in which a lane, an operator or the job held back input."""
    EMITTED = "emitted"
    """Rows per second that the sources emitted."""
    WAIT = "wait"
    """Seconds that rows wait at the sources."""
    MEMORY = "memory"
    """Share of the memory of a host that is in use."""


class SymptomKind(StrEnum):
    """Kinds of symptoms of the built-in detectors."""

    HELD_BACK = "input held back"
    BACKLOG = "standing backlog"
    LATE = "late"
    UNEVEN_PENDING = "pending uneven"
    UNEVEN_ROWS = "rates uneven"
    UNEVEN_COST = "lanes unlike"
    UNCLEAR = "lanes unclear"
    NOTHING_WAITS = "nothing waits"
    EMIT_COUNT = "emit count"
    SHORT_OF_MEMORY = "short of memory"


class DiagnosisKind(StrEnum):
    """Kinds of diagnoses of the built-in diagnosers."""

    TOO_FEW_LANES = "too few lanes"
    SLOW_LANES = "slow host"
    SKEW = "skew"
    SPARE_LANES = "spare lanes"
    TOO_LITTLE_INPUT = "too little input"
    MEMORY = "memory shortage"


NAMED = "named in the diagnosis"
"""Key of the fact that marks a symptom as named in the diagnosis, so that a story has no line of its own for the symptom."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a lane, an operator (`lane` is None) or the job (`operator` is None) over a window."""

    name: str
    value: float
    operator: str | None = None
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Symptom:
    """A possible sign of an unhealthy job, with the measurements that show the sign."""

    kind: str
    operator: str
    value: float
    text: str
    lanes: tuple[int, ...] = ()
    """The lanes that show the symptom; empty if all lanes do."""
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """An explanation of symptoms."""

    kind: str
    operator: str
    text: str
    symptoms: tuple[Symptom, ...] = ()
    lanes: tuple[int, ...] = ()
    """The lanes that cause the symptoms; empty if no lane differs from the others."""
    confidence: float = 1.0
    """Confidence in the diagnosis, 0..1; a policy resolves the highest confidence first."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """The change that a resolver proposes for a diagnosis."""

    resolver: str
    diagnosis: Diagnosis
    allocation: JobAllocation
    what: str
    """The change in short form: `split 8 → 11 lanes`."""
    frees: bool = False
    """Whether the remedy removes lanes."""

    def action(self, job: str) -> Action:
        """The remedy as an action, with its whole chain of causes."""
        kind = ActionKind.REDUCE if self.frees else ActionKind.RECONFIGURE
        return Action(kind, job, {job: self.allocation}, cause_of(self.diagnosis), self.what, self.resolver)


def cause_of(diagnosis: Diagnosis) -> Cause:
    """A diagnosis with its symptoms and their measurements, as the cause of an action."""
    facts: dict[str, float | str] = {"diagnosis": diagnosis.kind, "operator": diagnosis.operator}
    if diagnosis.lanes:
        facts["lanes"] = ", ".join(map(str, diagnosis.lanes))
    return Cause(diagnosis.text, facts, tuple(_symptom_cause(symptom, diagnosis) for symptom in diagnosis.symptoms))


def _symptom_cause(symptom: Symptom, diagnosis: Diagnosis) -> Cause:
    facts: dict[str, float | str] = {"symptom": symptom.kind, "operator": symptom.operator, "value": symptom.value}
    if symptom.text in diagnosis.text:
        facts[NAMED] = 1.0
    return Cause(symptom.text, facts, _measured_causes(symptom.measurements))


def _measured_causes(measurements: tuple[Measurement, ...]) -> tuple[Cause, ...]:
    """One cause per kind of measurement, with the figures of all lanes in one line."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.name, one.operator or "job"), []).append(one)
    return tuple(
        Cause(f"{name} of {owner}: {', '.join(f'{one.value:.3g}' for one in found)}", _lane_facts(found))
        for (name, owner), found in groups.items()
    )


def _lane_facts(found: list[Measurement]) -> dict[str, float | str]:
    return {("value" if one.lane is None else f"lane {one.lane}"): one.value for one in found}


# -- the observed job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job as a policy sees it: its allocation, its measurements since the last change, and the hosts."""

    view: JobView
    samples: tuple[Sample, ...]
    """The readings of the policy's window, all of the same allocation; the view may hold older readings."""
    hosts: tuple[HostReading, ...]
    at_s: float
    settings: Settings
    misses: bool = False
    """Whether the job misses its intent, with or without held-back input."""
    congested: bool = False
    """Whether the cluster is congested, so that resolvers add lanes in smaller steps."""

    @property
    def name(self) -> str:
        return self.view.job.name

    @property
    def span(self) -> Span | None:
        """Activity of the job in the window; None with fewer than two readings."""
        return span_of(self.samples)

    def halves(self) -> tuple[Span, Span] | None:
        """The older and the newer half of the window, each with a finished epoch; None with too few readings."""
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
        """Whether the window has its full length, so that waiting longer yields no more epochs."""
        regulated = self.view.job.intent.policy is not None
        longest_s = self.settings.health_window_s if regulated else self.settings.window_s
        return self.span is not None and self.span.seconds >= longest_s - self.settings.round_s

    def sub_spans(self, seconds: float) -> tuple[Span, ...]:
        """The window, split into parts of about `seconds` length."""
        parts: list[Span] = []
        start = 0
        for end in range(1, len(self.samples)):
            last = end == len(self.samples) - 1
            if self.samples[end].at_s - self.samples[start].at_s >= seconds - 1e-6 or (last and not parts):
                part = span_of(self.samples[start : end + 1])
                parts += [part] if part is not None else []
                start = end
        return tuple(parts)


def observed_job(job: JobView, view: View, settings: Settings) -> ObservedJob:
    """A scheduled job that misses its intent, with the readings of its newest sub-windows."""
    window = newest(job.samples, 2)
    return ObservedJob(job, window, view.hosts, view.at_s, settings, misses=True, congested=bool(view.congested))


class Measurements:
    """All measurements of the sensors, by name, operator and lane."""

    def __init__(self, measured: Iterable[Measurement]) -> None:
        self.all = tuple(measured)
        self._one: dict[tuple[str, str | None, int | None], float] = {}
        self._lanes: dict[tuple[str, str | None], list[Measurement]] = {}
        for found in self.all:
            self._one[(found.name, found.operator, found.lane)] = found.value
            if found.lane is not None:
                self._lanes.setdefault((found.name, found.operator), []).append(found)

    def one(self, name: str, operator: str | None = None) -> float | None:
        """The figure of an operator or of the job; None if not measured."""
        return self._one.get((name, operator, None))

    def lanes(self, name: str, operator: str) -> tuple[Measurement, ...]:
        """The measurements of an operator's lanes, in order; empty if not measured."""
        return tuple(self._lanes.get((name, operator), ()))

    def values(self, name: str, operator: str) -> tuple[float, ...]:
        """The figures of an operator's lanes, in order; empty if not measured."""
        return tuple(found.value for found in self.lanes(name, operator))


# -- the action log ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An action of a policy, with its diagnosis and its effect."""

    at_s: float
    job: str
    policy: str
    diagnosis: str
    operator: str
    resolver: str
    before: Mapping[str, float] = field(default_factory=dict)
    """The policy's own measures before the action."""
    after: Mapping[str, float] = field(default_factory=dict)
    """The policy's own measures after the action; empty until the effect is measured."""
    useful: bool | None = None
    """Whether the action helped; None: not measured yet, or the input changed meanwhile."""
    what: str = ""

    def same_pair(self, diagnosis: Diagnosis, resolver: str) -> bool:
        """Whether the entry has the same resolver for the same diagnosis."""
        return (self.diagnosis, self.operator, self.resolver) == (diagnosis.kind, diagnosis.operator, resolver)


Log = tuple[LogEntry, ...]


def purged(log: Log, at_s: float, settings: Settings) -> Log:
    """The newest `log_entries` entries that are at most `log_keep_h` hours old (Dhalion, section 4.2)."""
    young = tuple(entry for entry in log if at_s - entry.at_s <= settings.log_keep_h * 3600)
    return young[-settings.log_entries :]


def blacklisted(log: Log, job: str, diagnosis: Diagnosis, resolver: str, settings: Settings) -> bool:
    """Whether this resolver has been useless for this diagnosis too often (Dhalion, section 4.3)."""
    judged = [e for e in log if e.job == job and e.useful is not None and e.same_pair(diagnosis, resolver)]
    useless = sum(not entry.useful for entry in judged)
    return bool(judged) and useless / len(judged) > settings.blacklist_ratio


# -- the four extension points ---------------------------------------------------------------------------------------------------


class Sensor(Protocol):
    """Turns readings into measurements."""

    def measure(self, observed: ObservedJob) -> Iterable[Measurement]:
        """Measurements over the window; empty if the readings yield none."""


class Detector(Protocol):
    """Finds symptoms in measurements."""

    def detect(self, measured: Measurements, observed: ObservedJob) -> Iterable[Symptom]:
        """Symptoms in the measurements; empty if the job is healthy."""


class Diagnoser(Protocol):
    """Explains symptoms."""

    def diagnose(self, symptoms: tuple[Symptom, ...], observed: ObservedJob) -> Iterable[Diagnosis]:
        """Diagnoses that explain the symptoms; may be empty."""


class Resolver(Protocol):
    """Proposes a remedy for a diagnosis."""

    @property
    def name(self) -> str:
        """Name of the resolver in the action log."""

    def resolve(self, diagnosis: Diagnosis, measured: Measurements, observed: ObservedJob) -> Remedy | Alert | None:
        """A remedy, an alert for people, or None if the resolver cannot help."""
