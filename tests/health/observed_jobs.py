"""Jobs to be examined: a source and an operator `work`, every lane of which behaves as a test says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.metrics import view_of
from headgate.core.model import (
    OUTSIDE,
    Graph,
    HostReading,
    Job,
    JobAllocation,
    JobReading,
    Operator,
    OperatorReading,
    Snapshot,
)
from headgate.core.windows import Sample, Windows
from headgate.health.policies import HealthPolicy, Provision
from headgate.health.records import Diagnosis, Measurements, ObservedJob, Symptom

HOSTS = tuple(HostReading(f"host-{number}", 8, 2.0) for number in range(1, 5))


PROVISION = Intent(policy="provision")


@dataclass(frozen=True)
class Lanes:
    """What each lane of `work` does per second, and what holds back the source."""

    rows: tuple[float, ...] = (100.0, 100.0)
    busy: tuple[float, ...] = (0.5, 0.5)
    queued: tuple[float, ...] | None = (0.0, 0.0)
    held: tuple[float, ...] | None = (0.0, 0.0)
    job_held: float | None = 0.0
    source_rows: float | None = None
    """What the source puts out; what the lanes do if it is not given."""
    source_lanes: int = 1
    source_busy: float = 1.0
    max_source_lanes: int | None = None
    arrived: float | None = None
    """What arrives at the source; what it puts out if it is not given."""
    hosts: tuple[str, ...] | None = None
    slices: tuple[float, ...] | None = None
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    avoided: tuple[str, ...] = ()
    max_lanes: int | None = None
    epochs_s: float | None = None
    """Share of the time spent in epochs, of one second each; None for an engine without."""
    read_limit: int | None = None
    slice_lanes: tuple[int, ...] | None = None
    intent: Intent = PROVISION

    @property
    def job(self) -> Job:
        source = Operator("in", max_lanes=self.max_source_lanes)
        return Job("job", Graph.of(source, Operator("work", ("in",), max_lanes=self.max_lanes)), self.intent)

    @property
    def allocation(self) -> JobAllocation:
        lanes = {"in": self.source_lanes, "work": len(self.rows)}
        return JobAllocation(lanes, None if self.epochs_s is None else 0.0, self.places, self.avoided)

    def reading(self, at_s: float, version: int = 1) -> JobReading:
        sent = (self.source_rows if self.source_rows is not None else sum(self.rows)) * at_s
        source = OperatorReading(
            {OUTSIDE: sent}, {"work": sent}, (self.source_busy * at_s,) * self.source_lanes,
            lane_rows=(sent / self.source_lanes,) * self.source_lanes,
        )  # fmt: skip
        work = OperatorReading(
            {"in": sum(self.rows) * at_s}, {}, _times(self.busy, at_s),
            lane_rows=_times(self.rows, at_s), queued=self.queued,
            held_s=None if self.held is None else _times(self.held, at_s),
            hosts=self.hosts or _in_turn(len(self.rows)),
            slice_rows=None if self.slices is None else _times(self.slices, at_s),
            slice_lanes=self.slice_lanes,
        )  # fmt: skip
        arrived = sent if self.arrived is None else self.arrived * at_s
        return JobReading(
            version,
            {"in": source, "work": work},
            {"in": arrived},
            arrived - sent,
            latency=None,
            in_epochs_s=None if self.epochs_s is None else self.epochs_s * at_s,
            epochs=None if self.epochs_s is None else int(at_s),
            held_s=None if self.job_held is None else self.job_held * at_s,
            read_limit=self.read_limit,
        )


def _times(values: tuple[float, ...], at_s: float) -> tuple[float, ...]:
    return tuple([value * at_s for value in values])  # a list is faster, and there are thousands of readings


@cache
def _in_turn(lanes: int) -> tuple[str, ...]:
    return tuple(f"host-{1 + lane % len(HOSTS)}" for lane in range(lanes))


def observed(
    lanes: Lanes, settings: Settings | None = None, seconds: float = 900.0, at_s: float = 1000.0, misses: bool = False
) -> ObservedJob:
    """The job after it has behaved like this for so long."""
    settings = settings or Settings()
    samples = tuple(
        Sample(at_s - seconds + step * 10, lanes.reading(100 + step * 10)) for step in range(int(seconds / 10) + 1)
    )
    now = Snapshot(at_s, {"job": samples[-1].reading}, {"job": lanes.allocation}, HOSTS)
    view = view_of(Windows({"job": samples}), now, {"job": lanes.job}, {}, settings).jobs["job"]
    return ObservedJob(view, samples, HOSTS, at_s, settings, misses)


def looked_at(
    one: ObservedJob, policy: HealthPolicy | None = None
) -> tuple[Measurements, tuple[Symptom, ...], list[Diagnosis]]:
    """What the parts of a policy make of it."""
    policy = policy or Provision()
    measured = Measurements(found for sensor in policy.sensors for found in sensor.measure(one))
    symptoms = tuple(found for detector in policy.detectors for found in detector.detect(measured, one))
    return measured, symptoms, [d for diagnoser in policy.diagnosers for d in diagnoser.diagnose(symptoms, one)]


def too_few(lanes: int = 8, held: float = 0.2) -> Lanes:
    """All lanes busy, input held back."""
    rows = (100.0,) * lanes
    return Lanes(rows, (1.0,) * lanes, (5000.0,) * lanes, (held,) * lanes, held)


def one_slow(lanes: int = 8, slower: float = 0.25, held: float = 0.2) -> Lanes:
    """Rows alike; the last lane takes longer for each, the others wait for it."""
    busy = (*((1 - slower),) * (lanes - 1), 1.0)
    return Lanes((100.0,) * lanes, busy, (*(0.0,) * (lanes - 1), 5000.0), (*(0.0,) * (lanes - 1), held), held)


def one_hot(lanes: int = 8, times: float = 1.6, held: float = 0.2) -> Lanes:
    """The last lane gets more rows than the others, and takes as long for each."""
    rows = (*(100.0,) * (lanes - 1), 100.0 * times)
    busy = tuple(row / (100.0 * times) for row in rows)
    slices = (*(50.0,) * (2 * (lanes - 1)), *(100.0 * times / 2,) * 2)
    places = tuple(number // 2 for number in range(2 * lanes))
    return Lanes(
        rows, busy, (*(0.0,) * (lanes - 1), 5000.0), (*(0.0,) * (lanes - 1), held), held,
        slices=slices, places={"work": places},
    )  # fmt: skip
