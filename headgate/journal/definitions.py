"""Job definitions and loop settings in the journal: together with the readings, all that the simulator needs to run the jobs.

Definitions and settings are notes about the whole run, written when they change: a copy in every round would be repeated thousands of
times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.config import Settings
from headgate.config.settings import RENAMED, describe, settings_from
from headgate.core.intents import SHAPES, Custom, Intent, Linear, Lognormal, Piecewise, Shape, intent_from
from headgate.core.model import Job
from headgate.errors import InputError, JournalDamagedError

JOBS_KEY = "jobs"
"""Key of the job definitions of the newest round."""
SETTINGS_KEY = "settings"
"""Key of the loop settings that differ from their defaults."""


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Properties of an operator that readings do not contain."""

    weight: float = 1.0
    max_lanes: int | None = None


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """Properties of a job that readings do not contain."""

    intent: Mapping[str, Any]
    """The intent as a table of a cluster file."""
    tenant: str = "default"
    operators: Mapping[str, OperatorLimits] = field(default_factory=dict)
    tenant_weight: float = 1.0


def definitions_text(jobs: Mapping[str, Job]) -> str:
    """The definitions of these jobs as JSON."""
    return msgspec.json.encode({name: _definition(job) for name, job in jobs.items()}).decode()


def definitions_in(about: Mapping[str, str]) -> dict[str, JobDefinition]:
    """The definitions in a journal; empty in a journal of an earlier version."""
    try:
        return msgspec.json.decode(about.get(JOBS_KEY, "{}"), type=dict[str, JobDefinition])
    except msgspec.MsgspecError as error:
        raise JournalDamagedError(f"the definitions of jobs in the journal cannot be read: {error}") from error


def settings_text(settings: Settings) -> str:
    """The settings that differ from their defaults, as JSON."""
    values = {row["name"]: getattr(settings, row["name"]) for row in describe(Settings)}
    return msgspec.json.encode(
        {name: value for name, value in values.items() if value != getattr(_USUAL, name)}
    ).decode()


def settings_in(about: Mapping[str, str]) -> Settings:
    """The settings of the loop that wrote a journal; the defaults in a journal of an earlier version."""
    try:
        values = msgspec.json.decode(about.get(SETTINGS_KEY, "{}"), type=dict[str, Any])
        return settings_from({RENAMED.get(name, name): value for name, value in values.items()})
    except (msgspec.MsgspecError, InputError) as error:
        raise JournalDamagedError(f"the settings in the journal cannot be read: {error}") from error


_USUAL = Settings()


def _definition(job: Job) -> JobDefinition:
    limits = {name: OperatorLimits(one.weight, one.max_lanes) for name, one in job.graph.operators.items()}
    own = {name: limit for name, limit in limits.items() if limit != OperatorLimits()}
    return JobDefinition(intent_table(job.intent), job.tenant, own, job.weight)


# -- intents -----------------------------------------------------------------------------------------------------------


def intent_table(intent: Intent) -> dict[str, Any]:
    """The intent as a table of a cluster file.

    >>> intent_table(Intent(latency="2s", worth=35))
    {'latency': 2.0, 'worth': 35.0}
    """
    shapes = {"latency": intent.latency_shape, "juice": intent.juice_shape}
    table = {
        "latency": intent.latency_s,
        "percentile": intent.percentile,
        "juice": intent.juice,
        "worth": intent.worth,
        "policy": intent.policy,
        "shape": {goal: _shape_table(shape) for goal, shape in shapes.items() if shape not in (None, SHAPES["knee"])},
    }
    return {name: value for name, value in table.items() if value not in (None, {})}


def _shape_table(shape: Shape | None) -> str | dict[str, Any]:
    named = {one: name for name, one in SHAPES.items()}
    match shape:
        case Linear(zero_at=zero_at):
            return {"kind": "linear", "zero_at": zero_at}
        case Lognormal(sigma=sigma):
            return {"kind": "lognormal", "sigma": sigma}
        case Piecewise(points=points):
            return {"kind": "piecewise", "points": [list(point) for point in points]}
        case Custom(name=name):
            return {"function": name}
    return named[shape] if shape in named else {"function": f"{type(shape).__module__}:{type(shape).__qualname__}"}


def intent_in(definition: JobDefinition, job: str) -> tuple[Intent, str]:
    """The intent, and a sentence if the intent differs from the original because user functions are not loaded here; else an empty text."""
    table, where = dict(definition.intent), f'job "{job}": intent'
    try:
        return intent_from(table, where), ""
    except InputError:
        table.pop("shape", None)
        return intent_from(table, where), f"{job}: its utility function is not loaded; utility falls as with the knee"
