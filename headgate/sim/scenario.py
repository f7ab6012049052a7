"""Scenario files: TOML in, a checked `Scenario` out; every error is one sentence that names its place.

The format is described in docs/scenarios.md; the built-in ones in `scenarios/` are examples of it.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from headgate.config.settings import settings_from
from headgate.core.quantities import about, check_fields, choice, did_you_mean, number, seconds, show_seconds, shown
from headgate.errors import ScenarioError
from headgate.health.policies import check_policy, user_policies_from
from headgate.hosts.provision import ProvisionerName
from headgate.sim.event_tables import read_events
from headgate.sim.job_tables import JobReader, read_operators
from headgate.sim.spec import Event, Generated, HostSpec, JobSpec, Scenario, Variant
from headgate.sim.tables import Table, existing, rows_in, table_in, whole
from headgate.sim.terms import check_events, read_terms

ENGINES = ("continuous", "epochs", "lanes", "leased")
POLICIES = ("headgate", "lanes-only", "static", "manual", "threshold")
LEASED_POLICIES = ("headgate", *ProvisionerName)
TOP_FIELDS = (
    "title", "figure", "engine", "duration", "control_after", "policies", "settings", "paper",
    "cluster", "topology", "job", "event", "sweep", "user_policies", "burst", "host_type", "budget", "provisioning",
)  # fmt: skip


def built_in() -> dict[str, Path]:
    """The scenarios that ship, by name."""
    folder = resources.files("headgate.sim") / "scenarios"
    return {path.stem: path for path in sorted(Path(str(folder)).glob("*.toml"))}


def load_scenario(name_or_file: str) -> Scenario:
    """A built-in scenario by its name, or a scenario file by its path."""
    known = built_in()
    if name_or_file in known:
        return read_scenario(known[name_or_file])
    path = Path(name_or_file)
    if path.suffix == ".toml" or path.exists():
        return read_scenario(path)
    hint = did_you_mean(name_or_file, known) or " `headgate scenarios` lists them."
    raise ScenarioError(f'there is no scenario or file "{name_or_file}".{hint}')


def read_scenario(path: Path) -> Scenario:
    """Read and check a scenario file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: is not valid TOML: {error}") from None
    with about(str(path) if path not in built_in().values() else path.stem, ScenarioError):
        return _scenario(table, path)


def _scenario(table: Table, path: Path) -> Scenario:
    check_fields(table, TOP_FIELDS, ScenarioError)
    base = _one_scenario(table, path)
    return dataclasses.replace(base, sweep=tuple(_variants(table, path)))


def _one_scenario(table: Table, path: Path) -> Scenario:
    tables = {**_library(), **table_in(table, "topology")}
    topologies = {name: read_operators(rows, f'topology "{name}"') for name, rows in tables.items()}
    reader = JobReader(topologies, path.parent)
    jobs = tuple(reader.jobs(rows_in(table, "job")))
    engine = choice(table.get("engine", "continuous"), "engine", ENGINES, ScenarioError)
    terms = read_terms(table, jobs) if engine == "leased" else None
    hosts = tuple(_hosts(table_in(table, "cluster"))) if terms is None else ()
    duration_s = seconds(table.get("duration", "1h"), "duration", error=ScenarioError)
    control_after_s = seconds(table.get("control_after", 0), "control_after", zero=True, error=ScenarioError)
    if not jobs:
        raise ScenarioError("there are no jobs; give at least one [[job]]")
    if control_after_s >= duration_s:
        raise ScenarioError(
            f"control_after is {show_seconds(control_after_s)}, but the run ends after {show_seconds(duration_s)}"
        )
    events = tuple(read_events(rows_in(table, "event"), reader, jobs, None if terms else {host.name for host in hosts}))
    _check_lanes(engine, jobs, events)
    if terms is not None:
        check_events(events, terms)
    own = user_policies_from(table_in(table, "user_policies"), ScenarioError)
    _check_policies(jobs, events, own)
    return Scenario(
        name=path.stem,
        title=str(table.get("title", path.stem)),
        figure=str(table.get("figure", "")),
        engine=engine,
        duration_s=duration_s,
        control_after_s=control_after_s,
        hosts=hosts,
        jobs=jobs,
        events=events,
        policies=_policies(table.get("policies", ["headgate", "btu" if terms else "static"]), engine),
        settings=settings_from(table_in(table, "settings")),
        paper={str(key): str(value) for key, value in table_in(table, "paper").items()},
        user_policies=own,
        directory=str(path.parent.resolve()),
        burst_s=seconds(table.get("burst", 0), "burst", zero=True, error=ScenarioError),
        terms=terms,
    )


def _check_policies(jobs: tuple[JobSpec, ...], events: tuple[Event, ...], own: Mapping[str, str]) -> None:
    """Refuse intents with a policy that does not exist."""
    intents = [(job.name, job.intent) for job in (*jobs, *(event.job for event in events if event.job is not None))]
    intents += [(event.target, event.intent) for event in events if event.intent is not None]
    for name, intent in intents:
        with about(f'job "{name}": intent', ScenarioError):
            check_policy(intent, own)


def _check_lanes(engine: str, jobs: tuple[JobSpec, ...], events: tuple[Event, ...]) -> None:
    """Refuse features that the model of the scenario does not have, and events that name unknown operators."""
    added = (*jobs, *(event.job for event in events if event.job is not None))
    operators = {job.name: {operator.name: operator for operator in job.operators} for job in added}
    for job in added:
        if engine != "lanes" and any(isinstance(load, Generated) for load in job.loads.values()):
            raise ScenarioError(f'job "{job.name}": load: a generated load needs engine = "lanes"')
    for event in events:
        if event.kind in ("cut-host", "mend-host") and engine != "epochs":
            raise ScenarioError(f'event {event.kind} needs engine = "epochs", whose hosts have heartbeats')
        if event.kind not in ("lanes", "slow-lane", "skew"):
            continue
        if event.kind != "lanes" and engine == "continuous":
            raise ScenarioError(f'event {event.kind} needs engine = "lanes" or "epochs"')
        for name in event.lanes or (event.operator,):
            existing(name, f"event {event.kind}: operator", operators[event.target])
        if event.kind == "skew" and not operators[event.target][event.operator].slices:
            raise ScenarioError(f"event skew: operator {shown(event.operator)} has no slices; give it some")


def _library() -> Table:
    """The topologies that ship."""
    return tomllib.loads((resources.files("headgate.sim") / "topologies.toml").read_text(encoding="utf-8"))


def policies_of(engine: str) -> tuple[str, ...]:
    """The policies that may decide on an engine."""
    return LEASED_POLICIES if engine == "leased" else POLICIES


def _policies(given: Any, engine: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise ScenarioError(f"policies is {given!r}; it must be a list of {', '.join(policies_of(engine))}")
    return tuple(choice(name, "policy", policies_of(engine), ScenarioError) for name in given)


def _hosts(table: Table) -> Iterable[HostSpec]:
    with about("cluster", ScenarioError):
        check_fields(table, ("hosts", "cores", "memory_gb", "slots"), ScenarioError)
        count = whole(table.get("hosts", 1), "hosts", low=1)
        cores = number(table.get("cores", 4), "cores", above=0, error=ScenarioError)
        memory_gb = number(table.get("memory_gb", 16), "memory_gb", above=0, error=ScenarioError)
        slots = whole(table["slots"], "slots", low=1) if "slots" in table else None
    return (HostSpec(f"host-{index + 1}", cores, memory_gb, slots) for index in range(count))


# -- sweeps -------------------------------------------------------------------------------------------------------------------


def _variants(table: Table, path: Path) -> Iterable[Variant]:
    """`[sweep]` runs the scenario once per value of one field, or once per row of changes."""
    sweep = table_in(table, "sweep")
    if not sweep:
        return
    with about("sweep", ScenarioError):
        check_fields(sweep, ("label", "field", "values", "names"), ScenarioError)
        field, values = sweep.get("field"), sweep.get("values")
        if not isinstance(field, str) or not isinstance(values, list) or not values:
            raise ScenarioError('it needs a field such as "cluster.hosts" and a list of values')
        label, names = str(sweep.get("label", field)), sweep.get("names", values)
        if not isinstance(names, list) or len(names) != len(values):
            raise ScenarioError(f"names is {shown(names)}; it must be a list with a name for each value")
    bare = {key: value for key, value in table.items() if key != "sweep"}
    for name, value in zip(names, values, strict=True):
        yield Variant(label, name, _one_scenario(_with(bare, field.split("."), value), path))


def _with(table: Any, keys: list[str], value: Any) -> Any:
    """Return the table with one field replaced; a key that is a number, from 1, names a position in a list."""
    if not keys:
        return value
    if not isinstance(table, list | Mapping):
        raise ScenarioError(f'sweep: "{keys[0]}" is not a field of anything')
    if isinstance(table, list):
        index = int(keys[0]) - 1 if keys[0].isdigit() else -1
        if not 0 <= index < len(table):
            raise ScenarioError(f'sweep: there is no entry "{keys[0]}"')
        return [_with(row, keys[1:], value) if i == index else row for i, row in enumerate(table)]
    return {**table, keys[0]: _with(table.get(keys[0], {}), keys[1:], value)}
