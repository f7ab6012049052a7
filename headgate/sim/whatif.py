"""Predictions of `headgate what-if`: simulates the running jobs with another load, other intents or another cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headgate.core.intents import Intent
from headgate.core.metrics import JobView
from headgate.core.quantities import about, check_fields, did_you_mean, number
from headgate.errors import InputError, IntentError, UnknownJobError
from headgate.health.policies import built_in
from headgate.journal.definitions import JobDefinition, definitions_in, intent_in, settings_in
from headgate.ports import JobRecord, Journal, RoundRecord
from headgate.sim.calibrate import Calibrated, JobMeasurements, calibrate
from headgate.sim.run import Run, run
from headgate.sim.spec import HostSpec, JobSpec, Scenario

ALL = "all"
"""The name that stands for every job."""
SEED = 1
FIELDS = ("latency", "percentile", "juice", "worth", "shape")
"""The fields of an intent that can be changed."""
DOUBTFUL = 0.1
"""The model is called doubtful if it misses the satisfaction of today by more than this."""
MOST_DOUBLINGS = 6
"""The search for a large enough cluster ends after doubling the cluster this many times."""

# -- what is asked -----------------------------------------------------------------------------------------------------


class Unit(Enum):
    """The unit in which the search for a large enough cluster counts."""

    SLOTS = "slots"
    HOSTS = "hosts"


@dataclass(frozen=True, slots=True)
class WhatIfChanges:
    """The changes to the running jobs and the cluster."""

    loads: Mapping[str, float] = field(default_factory=dict)
    """The factor by which the input of a job is multiplied, by job or `ALL`."""
    intents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The fields of the intent that change, by job."""
    slots: int | None = None
    """Slots of all hosts together."""
    hosts: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the running jobs."""

    changes: WhatIfChanges = field(default_factory=WhatIfChanges)
    hold: bool = False
    """Whether lanes and pace stay as they are; otherwise the scheduler may change lanes and pace."""
    after_s: float = 900.0
    """Seconds for which jobs run with the changes before the jobs are judged."""
    until_met: Unit | None = None
    """The unit in which to search for the smallest cluster that meets all intents; None for no search."""


# -- what is answered --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobOutlook:
    """The outlook of one job, measured or predicted."""

    intent: str
    worth: float
    utility: float | None
    latency_s: float | None
    juice: float | None
    met: bool | None
    lanes: int
    pace_s: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The outlook of all jobs, measured or predicted."""

    jobs: Mapping[str, JobOutlook]
    hosts: int
    slots: int
    course: tuple[float | None, ...] = ()
    """Satisfaction over time, round by round; empty if measured."""

    @property
    def satisfaction(self) -> float:
        """Utility of all jobs as a share of the worth of all jobs."""
        return sum(one.utility or 0.0 for one in self.jobs.values()) / sum(one.worth for one in self.jobs.values())

    @property
    def all_met(self) -> bool:
        """Whether every intent is met."""
        return all(one.met for one in self.jobs.values())


@dataclass(frozen=True, slots=True)
class Tried:
    """One size of the cluster that the search has tried."""

    size: int
    satisfaction: float
    met: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: the jobs as measured now, and the jobs as predicted with the changes."""

    now: Outlook
    """The jobs as measured, without the changes."""
    then: Outlook
    """The jobs as predicted, with the changes."""
    modelled_now: float
    """The satisfaction that the model predicts without any change."""
    notes: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    """The sizes of the cluster that the search tried, in order of size; empty without a search."""
    enough: int | None = None
    """The least size that meets all intents; None without a search, or if none does."""


def answer_question(journal: Journal, question: Question) -> Answer:
    """Calibrate the simulator from a journal and answer the question."""
    last, measured, notes = _measured(journal)
    found = calibrate(measured)
    if not found.scenario.jobs:
        reasons = "; ".join(found.left_out.values()) or "no job runs"
        raise InputError(f"the journal has too little data to simulate its jobs: {reasons}")
    base = dataclasses.replace(found.scenario, duration_s=question.after_s)
    wanted = with_changes(base, question.changes, found.left_out)
    policy = "static" if question.hold else "headgate"
    modelled = predict(base, "static").satisfaction
    now = _recorded_outlook(last, base)
    tried, enough = _search(wanted, question.until_met, policy)
    if question.until_met is not None:
        wanted = _with_size(wanted, question.until_met, enough if enough is not None else tried[-1].size)
    then = predict(wanted, policy)
    doubts = (*notes, *_left_out(found), *_doubts(now, modelled))
    return Answer(now, then, modelled, doubts, tried, enough)


def summary(answer: Answer) -> dict[str, Any]:
    """Return an answer as an object for programs."""
    return {
        "now": _outlook_summary(answer.now),
        "then": _outlook_summary(answer.then),
        "modelled_now": answer.modelled_now,
        "tried": [dataclasses.asdict(one) for one in answer.tried],
        "enough": answer.enough,
        "notes": list(answer.notes),
    }


def _outlook_summary(outlook: Outlook) -> dict[str, Any]:
    return {**dataclasses.asdict(outlook), "satisfaction": outlook.satisfaction, "all_met": outlook.all_met}


def _left_out(found: Calibrated) -> Iterator[str]:
    for name, why in found.left_out.items():
        yield f"{name} is left out: {why}"


def _doubts(now: Outlook, modelled: float) -> Iterator[str]:
    if abs(modelled - now.satisfaction) > DOUBTFUL:
        yield (
            f"the model gives {100 * modelled:.0f} % for the jobs as they are, but {100 * now.satisfaction:.0f} % was"
            " measured: take the prediction as a trend"
        )


# -- from the journal --------------------------------------------------------------------------------------------------


def _measured(journal: Journal) -> tuple[RoundRecord, JobMeasurements, list[str]]:
    restored = journal.restore()
    last = list(journal.rounds(since_s=restored.at_s))[-1:] if restored is not None else []
    if restored is None or not last:
        raise InputError("the journal has no rounds yet; wait for the first round, or name another journal")
    if len(restored.snapshots) < 2:
        raise InputError("the journal has only one reading of the jobs; wait for a few rounds")
    known = journal.about()
    definitions = definitions_in(known)
    intents, notes = _intents(last[0].jobs, definitions)
    return last[0], JobMeasurements(restored.snapshots, intents, definitions, settings_in(known)), notes


def _intents(
    records: Mapping[str, JobRecord], definitions: Mapping[str, JobDefinition]
) -> tuple[dict[str, Intent], list[str]]:
    intents, notes = {}, []
    for name, record in records.items():
        if name in definitions:
            intents[name], note = intent_in(definitions[name], name)
        else:
            intents[name] = Intent(record.latency_intent_s, juice=record.juice_intent, worth=record.worth)
            note = (
                f"{name}: the journal of an earlier version has no shape or percentile; the knee and the mean are used"
            )
        if intents[name].policy is not None and built_in(str(intents[name].policy)) is None:
            intents[name] = dataclasses.replace(intents[name], policy=None)
            note = f"{name}: its own policy is not simulated; the scheduler looks after it"
        notes += [note] if note else []
    return intents, notes


def _recorded_outlook(last: RoundRecord, scenario: Scenario) -> Outlook:
    jobs = {job.name: _recorded_job_outlook(last.jobs[job.name]) for job in scenario.jobs if job.name in last.jobs}
    return Outlook(jobs, len(scenario.hosts), slots_of(scenario))


def _recorded_job_outlook(one: JobRecord) -> JobOutlook:
    lanes = sum(one.lanes.values())
    return JobOutlook(one.intent, one.worth, one.utility, one.latency_s, one.juice, one.met, lanes, one.pace_s)


# -- changes -----------------------------------------------------------------------------------------------------------


def with_changes(scenario: Scenario, changes: WhatIfChanges, left_out: Mapping[str, str] | None = None) -> Scenario:
    """Return the scenario with these changes; refuse a change of a job that the scenario does not have."""
    _check_names(scenario, changes, left_out or {})
    jobs = tuple(_changed_job(job, changes) for job in scenario.jobs)
    scenario = dataclasses.replace(scenario, jobs=jobs)
    if changes.hosts is not None:
        scenario = _with_hosts(scenario, changes.hosts)
    return scenario if changes.slots is None else _with_slots(scenario, changes.slots)


def _check_names(scenario: Scenario, changes: WhatIfChanges, left_out: Mapping[str, str]) -> None:
    known = [job.name for job in scenario.jobs]
    for name in (*(name for name in changes.loads if name != ALL), *changes.intents):
        if name in left_out:
            raise InputError(f'job "{name}" cannot be simulated: {left_out[name]}')
        if name not in known:
            hint = did_you_mean(name, known) or f" The journal has {', '.join(known)}."
            raise UnknownJobError(f'there is no job "{name}".{hint}')


def _changed_job(job: JobSpec, changes: WhatIfChanges) -> JobSpec:
    factor = changes.loads.get(job.name, changes.loads.get(ALL, 1.0))
    loads = {source: _Scaled(load, factor) for source, load in job.loads.items()} if factor != 1.0 else job.loads
    return dataclasses.replace(job, loads=loads, intent=_changed_intent(job, changes.intents.get(job.name, {})))


def _changed_intent(job: JobSpec, fields: Mapping[str, Any]) -> Intent:
    if not fields:
        return job.intent
    with about(f'job "{job.name}": intent', IntentError):
        check_fields(fields, FIELDS, IntentError)
        return dataclasses.replace(job.intent, **fields)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A load multiplied by a factor."""

    load: Any
    factor: float

    def rate_rows_s(self, at_s: float) -> float:
        return float(self.factor * self.load.rate_rows_s(at_s))


def slots_of(scenario: Scenario) -> int:
    """Slots of all hosts."""
    return sum(_host_slots(host) for host in scenario.hosts)


def _host_slots(host: HostSpec) -> int:
    return host.slots or round(host.cores)


def _with_hosts(scenario: Scenario, count: int) -> Scenario:
    """Return the scenario with `count` hosts; added hosts are copies of the last host."""
    count = int(number(count, "hosts", low=1))
    known = scenario.hosts[:count]
    more = (
        dataclasses.replace(scenario.hosts[-1], name=f"host-{index + 1}-more") for index in range(len(known), count)
    )
    return _without_lost_hosts(dataclasses.replace(scenario, hosts=(*known, *more)))


def _without_lost_hosts(scenario: Scenario) -> Scenario:
    """Drop the events of hosts that the scenario no longer has, so that load of others on these hosts does not move to other hosts."""
    names = {host.name for host in scenario.hosts}
    return dataclasses.replace(scenario, events=tuple(one for one in scenario.events if one.target in names))


def _with_slots(scenario: Scenario, count: int) -> Scenario:
    """Return the scenario with `count` slots, spread evenly; a host with one slot per core gets as many cores as slots."""
    hosts = len(scenario.hosts)
    count = int(number(count, "slots", low=hosts))
    shares = [count // hosts + (index < count % hosts) for index in range(hosts)]
    return dataclasses.replace(
        scenario, hosts=tuple(_with_own_slots(host, own) for host, own in zip(scenario.hosts, shares, strict=True))
    )


def _with_own_slots(host: HostSpec, slots: int) -> HostSpec:
    cores = float(slots) if _host_slots(host) == round(host.cores) else host.cores
    return dataclasses.replace(host, slots=slots, cores=cores)


# -- predictions -------------------------------------------------------------------------------------------------------


def predict(scenario: Scenario, policy: str) -> Outlook:
    """All jobs at the end of a run of the scenario."""
    done = run(scenario, policy, SEED)
    if done.final is None:
        least = f"{scenario.settings.round_s:g} s"
        raise InputError(f"{scenario.duration_s:g} s are too short to predict anything; a round takes {least}")
    jobs = {name: _job_outlook(one) for name, one in done.final.jobs.items()}
    return Outlook(jobs, len(scenario.hosts), slots_of(scenario), tuple(_course(done)))


def _course(done: Run) -> Iterator[float | None]:
    for value in done.satisfaction:
        yield None if math.isnan(value) else value


def _job_outlook(one: JobView) -> JobOutlook:
    lanes = sum(one.allocation.lanes.values())
    intent = one.job.intent.describe()
    return JobOutlook(
        intent, one.worth, one.utility, one.latency_s, one.juice, one.met, lanes, one.allocation.pace_s
    )  # fmt: skip


# -- how large must the cluster be? ------------------------------------------------------------------------------------


def _search(scenario: Scenario, unit: Unit | None, policy: str) -> tuple[tuple[Tried, ...], int | None]:
    if unit is None:
        return (), None

    def attempt(size: int) -> Tried:
        outlook = predict(_with_size(scenario, unit, size), policy)
        return Tried(size, outlook.satisfaction, outlook.all_met)

    low = len(scenario.hosts) if unit is Unit.SLOTS else 1
    now = slots_of(scenario) if unit is Unit.SLOTS else len(scenario.hosts)
    return least_size(attempt, low, now, now * 2**MOST_DOUBLINGS)


def least_size(attempt: Callable[[int], Tried], low: int, now: int, high: int) -> tuple[tuple[Tried, ...], int | None]:
    """Search for the least size that is enough, by doubling and then by bisection; return all sizes tried, and the least size or None."""
    tried: dict[int, Tried] = {}

    def is_enough(size: int) -> bool:
        tried[size] = tried.get(size) or attempt(size)
        return tried[size].met

    size = now
    while not is_enough(size) and size < high:
        size = min(high, 2 * size)
    too_few = max((one for one, found in tried.items() if not found.met), default=low - 1)
    enough = size if tried[size].met else None
    while enough is not None and enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return _in_order(tried), enough


def _in_order(tried: Mapping[int, Tried]) -> tuple[Tried, ...]:
    return tuple(tried[size] for size in sorted(tried))


def _with_size(scenario: Scenario, unit: Unit, size: int) -> Scenario:
    return (_with_slots if unit is Unit.SLOTS else _with_hosts)(scenario, size)
