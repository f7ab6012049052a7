"""Scenario files: TOML in, a checked `Scenario` out; every mistake is one sentence that names its place.

The format is described in docs/scenarios.md; the built-in ones in `scenarios/` are examples of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from headgate.core.intents import Intent, intent_from
from headgate.core.model import Graph, Operator
from headgate.core.quantities import about, check_fields, choice, did_you_mean, number, seconds, show_seconds, shown
from headgate.errors import InputError, ScenarioError
from headgate.health.policies import check_policy, user_policies_from
from headgate.hosts.provision import ProvisionerName
from headgate.loads import Diurnal, Load, Trace, load_from, read_trace
from headgate.settings import settings_from
from headgate.sim.spec import Event, Generated, HostSpec, Jitter, JobSpec, OperatorSpec, Scenario, Variant
from headgate.sim.terms import check_events, read_terms

Table = Mapping[str, Any]

ENGINES = ("continuous", "epochs", "lanes", "leased")
POLICIES = ("headgate", "lanes-only", "static", "manual", "threshold")
LEASED_POLICIES = ("headgate", *ProvisionerName)
TOP_FIELDS = (
    "title", "figure", "engine", "duration", "control_after", "policies", "settings", "paper",
    "cluster", "topology", "job", "event", "sweep", "user_policies", "burst", "host_type", "budget", "provisioning",
)  # fmt: skip
OPERATOR_FIELDS = (
    "name", "from", "cost", "wait", "selectivity", "split", "lanes", "max_lanes", "weight", "state_mb", "retain", "row_kb",
    "slices", "zipf", "transit", "cores", "memory_mb",
)  # fmt: skip
JOB_FIELDS = ("name", "count", "first", "tenant", "topology", "operators", "lanes", "intent", "load", "pace", "jitter")
EVENT_KINDS = (
    "add", "remove", "intent", "fail-link", "restore-link", "fail-host", "restore-host", "slow-host", "cpu-load",
    "lanes", "slow-lane", "skew", "cut-host", "mend-host",
)  # fmt: skip
EVENT_FIELDS = ("at", "kind", "job", "host", "value", "intent", "jobs", "operator", "lane", "lanes")


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
    tables = {**_library(), **_table(table, "topology")}
    topologies = {name: _operators(rows, f'topology "{name}"') for name, rows in tables.items()}
    reader = _JobReader(topologies, path.parent)
    jobs = tuple(reader.jobs(_rows(table, "job")))
    engine = choice(table.get("engine", "continuous"), "engine", ENGINES, ScenarioError)
    terms = read_terms(table, jobs) if engine == "leased" else None
    hosts = tuple(_hosts(_table(table, "cluster"))) if terms is None else ()
    duration_s = seconds(table.get("duration", "1h"), "duration", error=ScenarioError)
    control_after_s = seconds(table.get("control_after", 0), "control_after", zero=True, error=ScenarioError)
    if not jobs:
        raise ScenarioError("there are no jobs; give at least one [[job]]")
    if control_after_s >= duration_s:
        raise ScenarioError(
            f"control_after is {show_seconds(control_after_s)}, but the run ends after {show_seconds(duration_s)}"
        )
    events = tuple(_events(_rows(table, "event"), reader, jobs, None if terms else {host.name for host in hosts}))
    _check_lanes(engine, jobs, events)
    if terms is not None:
        check_events(events, terms)
    own = user_policies_from(_table(table, "user_policies"), ScenarioError)
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
        settings=settings_from(_table(table, "settings")),
        paper={str(key): str(value) for key, value in _table(table, "paper").items()},
        user_policies=own,
        directory=str(path.parent.resolve()),
        burst_s=seconds(table.get("burst", 0), "burst", zero=True, error=ScenarioError),
        terms=terms,
    )


def _check_policies(jobs: tuple[JobSpec, ...], events: tuple[Event, ...], own: Mapping[str, str]) -> None:
    """Jobs that regulate themselves name a policy that there is."""
    intents = [(job.name, job.intent) for job in (*jobs, *(event.job for event in events if event.job is not None))]
    intents += [(event.target, event.intent) for event in events if event.intent is not None]
    for name, intent in intents:
        with about(f'job "{name}": intent', ScenarioError):
            check_policy(intent, own)


def _check_lanes(engine: str, jobs: tuple[JobSpec, ...], events: tuple[Event, ...]) -> None:
    """What only a model with lanes of their own can show, and operators that events name."""
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
            _known(name, f"event {event.kind}: operator", operators[event.target])
        if event.kind == "skew" and not operators[event.target][event.operator].slices:
            raise ScenarioError(f"event skew: operator {shown(event.operator)} has no slices; give it some")


def _library() -> Table:
    """The topologies that ship."""
    return tomllib.loads((resources.files("headgate.sim") / "topologies.toml").read_text(encoding="utf-8"))


def policies_of(engine: str) -> tuple[str, ...]:
    """Who may decide, on an engine."""
    return LEASED_POLICIES if engine == "leased" else POLICIES


def _policies(given: Any, engine: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise ScenarioError(f"policies is {given!r}; it must be a list of {', '.join(policies_of(engine))}")
    return tuple(choice(name, "policy", policies_of(engine), ScenarioError) for name in given)


def _table(table: Table, key: str) -> Table:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{key} is {value!r}; it must be a table")
    return value


def _rows(table: Table, key: str) -> list[Table]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise ScenarioError(f"{key} is {value!r}; it must be a list of tables ([[{key}]])")
    return value


# -- cluster ---------------------------------------------------------------------------------------------------------------------


def _hosts(table: Table) -> Iterable[HostSpec]:
    with about("cluster", ScenarioError):
        check_fields(table, ("hosts", "cores", "memory_gb", "slots"), ScenarioError)
        count = _whole(table.get("hosts", 1), "hosts", low=1)
        cores = number(table.get("cores", 4), "cores", above=0, error=ScenarioError)
        memory_gb = number(table.get("memory_gb", 16), "memory_gb", above=0, error=ScenarioError)
        slots = _whole(table["slots"], "slots", low=1) if "slots" in table else None
    return (HostSpec(f"host-{index + 1}", cores, memory_gb, slots) for index in range(count))


# -- operators -------------------------------------------------------------------------------------------------------------------


def _operators(rows: Any, where: str) -> tuple[OperatorSpec, ...]:
    with about(where, ScenarioError):
        if isinstance(rows, Mapping):
            rows = rows.get("operators")
        if not isinstance(rows, list) or not rows:
            raise ScenarioError("it needs a list of operators")
        operators = tuple(_operator(row, previous) for row, previous in zip(rows, [None, *rows], strict=False))
        Graph.of(*(Operator(o.name, o.inputs) for o in operators))
        return operators


def _operator(row: Any, previous: Any) -> OperatorSpec:
    """An operator reads from the one before it unless it says otherwise; the first is a source."""
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str) or not row["name"]:
        raise ScenarioError(f"operator {shown(row)} must be a table with a name")
    with about(f'operator "{row["name"]}"', ScenarioError):
        check_fields(row, OPERATOR_FIELDS, ScenarioError)
        inputs = row.get("from", [] if previous is None else [previous["name"]])
        inputs = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
            raise ScenarioError(f"from is {shown(inputs)}; it must be the name of an operator, or a list of names")
        return OperatorSpec(
            name=str(row["name"]),
            inputs=tuple(inputs),
            cost_s=seconds(row.get("cost", 0), "cost", zero=True, error=ScenarioError),
            wait_s=seconds(row.get("wait", 0), "wait", zero=True, error=ScenarioError),
            selectivity=number(row.get("selectivity", 1), "selectivity", low=0, error=ScenarioError),
            split=bool(row.get("split", False)),
            lanes=_lanes(row.get("lanes", 1), "lanes"),
            max_lanes=_lanes(row["max_lanes"], "max_lanes") if "max_lanes" in row else None,
            weight=number(row.get("weight", 1), "weight", above=0, error=ScenarioError),
            state_mb=number(row.get("state_mb", 0), "state_mb", low=0, error=ScenarioError),
            retain_s=seconds(row.get("retain", 0), "retain", zero=True, error=ScenarioError),
            row_kb=number(row.get("row_kb", 1), "row_kb", above=0, error=ScenarioError),
            slices=_whole(row.get("slices", 0), "slices", low=0),
            zipf=number(row.get("zipf", 0), "zipf", low=0, error=ScenarioError),
            transit_s=seconds(row.get("transit", 0), "transit", zero=True, error=ScenarioError),
            cores=number(row.get("cores", 0), "cores", low=0, error=ScenarioError),
            memory_mb=number(row.get("memory_mb", 0), "memory_mb", low=0, error=ScenarioError),
        )


def _lanes(value: Any, what: str) -> int:
    return _whole(value, what, low=1)


def _whole(value: Any, what: str, low: int, high: int = 10_000) -> int:
    amount = number(value, what, low=low, high=high, error=ScenarioError)
    if amount != int(amount):
        raise ScenarioError(f"{what} is {shown(value)}; it must be a whole number")
    return int(amount)


# -- jobs ------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _JobReader:
    """Reads job tables; `count` copies of a job take their values from lists, in order and round again."""

    topologies: Mapping[str, tuple[OperatorSpec, ...]]
    folder: Path

    def jobs(self, rows: Iterable[Table], start: int = 1) -> Iterable[JobSpec]:
        names: set[str] = set()
        for row in rows:
            for job in self._copies(row, start):
                if job.name in names:
                    raise ScenarioError(f'there are two jobs named "{job.name}"; names must differ')
                names.add(job.name)
                yield job

    def _copies(self, row: Table, start: int) -> Iterable[JobSpec]:
        check_fields(row, JOB_FIELDS, ScenarioError)
        count = _whole(row.get("count", 1), "count", low=1)
        first = _whole(row.get("first", start), "first", low=0)
        for copy in range(count):
            yield self._job(_nth(row, copy), first + copy, numbered=count > 1)

    def _job(self, row: Table, number_: int, numbered: bool) -> JobSpec:
        given = row.get("name")
        if not isinstance(given, str) or not given.strip() or not given.isprintable():
            raise ScenarioError(
                f"a job's name is {shown(given) if given is not None else 'missing'}; it must be text to print"
            )
        name = given.replace("#", str(number_))
        if numbered and "#" not in given:
            name = f"{name}{number_}"
        with about(f'job "{name}"', ScenarioError):
            operators = self._scaled(self._job_operators(row), row)
            intent = read_intent(_table(row, "intent"))
            loads = self._loads(row, operators)
            pace_s = seconds(row.get("pace", 0), "pace", zero=True, error=ScenarioError)
            return JobSpec(name, operators, intent, loads, str(row.get("tenant", "default")), pace_s, _jitter(row))

    def _job_operators(self, row: Table) -> tuple[OperatorSpec, ...]:
        if "operators" in row:
            return _operators(row["operators"], "operators")
        wanted = row.get("topology")
        if not isinstance(wanted, str) or wanted not in self.topologies:
            given = shown(wanted) if wanted is not None else "missing"
            hint = did_you_mean(wanted, self.topologies)
            raise ScenarioError(f"topology is {given}; known are {', '.join(self.topologies)}.{hint}")
        return self.topologies[str(wanted)]

    def _scaled(self, operators: tuple[OperatorSpec, ...], row: Table) -> tuple[OperatorSpec, ...]:
        """`lanes` of the job's own replace the topology's, by operator."""
        lanes = _table(row, "lanes")
        unknown = set(lanes) - {operator.name for operator in operators}
        if unknown:
            raise ScenarioError(f"lanes names {sorted(unknown)[0]!r}, which is no operator of the job")
        return tuple(
            dataclasses.replace(o, lanes=_lanes(lanes[o.name], f"lanes of {o.name}")) if o.name in lanes else o
            for o in operators
        )

    def _loads(self, row: Table, operators: tuple[OperatorSpec, ...]) -> dict[str, Load]:
        given = _table(row, "load")
        sources = [operator.name for operator in operators if not operator.inputs]
        if "pattern" in given or not given:
            given = dict.fromkeys(sources, given)
        missing = [source for source in sources if source not in given]
        unknown = [name for name in given if name not in sources]
        if missing or unknown:
            raise ScenarioError(
                f"load must be given for each source ({', '.join(sources)}), got {', '.join(given) or 'none'}"
            )
        return {source: self._load(given[source]) for source in sources}

    def _load(self, given: Any) -> Load:
        if given == {"pattern": "generated"}:
            return Generated()
        return load_from(given, "load", self.folder)


def _nth(value: Any, index: int) -> Any:
    """The value of one copy: a table's lists under `each` give every copy its own."""
    if isinstance(value, Mapping):
        if set(value) == {"each"}:
            choices = value["each"]
            if not isinstance(choices, list) or not choices:
                raise ScenarioError(f"each is {choices!r}; it must be a list of values")
            return choices[index % len(choices)]
        return {key: _nth(inner, index) for key, inner in value.items()}
    return value


def _jitter(row: Table) -> Jitter:
    table = _table(row, "jitter")
    with about("jitter", ScenarioError):
        check_fields(table, ("spread", "outliers_h", "outlier"), ScenarioError)
        return Jitter(
            spread=number(table.get("spread", 0), "spread", low=0, high=1, error=ScenarioError),
            outliers_h=number(table.get("outliers_h", 0), "outliers_h", low=0, error=ScenarioError),
            outlier=number(table.get("outlier", 1), "outlier", low=0, error=ScenarioError),
        )


def read_intent(table: Table) -> Intent:
    """An intent from TOML; a utility function may be named as `package.module:function`."""
    return intent_from(table, "intent", _function)


def _function(path: str) -> Callable[[float], float]:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ScenarioError(f'function "{path}" cannot be loaded: {error}') from None
    if not callable(function):
        raise ScenarioError(f'function "{path}" is not a function')
    return function  # type: ignore[no-any-return]


# -- events ----------------------------------------------------------------------------------------------------------------------


def _events(
    rows: list[Table], reader: _JobReader, jobs: tuple[JobSpec, ...], hosts: set[str] | None
) -> Iterable[Event]:
    """Events in the order of their times, checked against the jobs that run then; hosts that are leased are not known yet."""
    running = {job.name for job in jobs}
    timed = []
    for index, row in enumerate(rows, 1):
        with about(f"event {index}", ScenarioError):
            check_fields(row, EVENT_FIELDS, ScenarioError)
            if "at" not in row:
                raise ScenarioError('at is missing: when does it happen? Such as at = "30m"')
            timed.append((seconds(row["at"], "at", zero=True, error=ScenarioError), index, row))
    for at_s, index, row in sorted(timed, key=lambda entry: entry[:2]):
        with about(f"event {index}", ScenarioError):
            yield from _event(at_s, row, reader, running, hosts)


def _event(at_s: float, row: Table, reader: _JobReader, running: set[str], hosts: set[str] | None) -> Iterable[Event]:
    kind = choice(row.get("kind", "missing"), "kind", EVENT_KINDS, ScenarioError)
    if kind == "add":
        return [Event(at_s, kind, job.name, job=job) for job in _added(row, reader, running)]
    if kind in ("remove", "intent"):
        target = _known(row.get("job"), "job", running)
        running -= {target} if kind == "remove" else set()
        intent = read_intent(_table(row, "intent")) if kind == "intent" else None
        return [Event(at_s, kind, target, intent=intent)]
    if kind in ("lanes", "slow-lane", "skew"):
        return [_job_event(at_s, kind, row, _known(row.get("job"), "job", running))]
    target = _known(row["host"], "host", hosts if hosts is not None else {row["host"]}) if "host" in row else ""
    return [Event(at_s, kind, target, _event_value(kind, row))]


def _job_event(at_s: float, kind: str, row: Table, job: str) -> Event:
    """Something that happens to the lanes of one job."""
    if kind == "lanes":
        lanes = {name: _lanes(count, f"lanes of {name}") for name, count in _table(row, "lanes").items()}
        return Event(at_s, kind, job, lanes=lanes)
    if not isinstance(row.get("operator"), str):
        raise ScenarioError(f"operator is {shown(row.get('operator'))}; it must name an operator of the job")
    lane = _whole(row.get("lane", 0), "lane", low=0)
    return Event(at_s, kind, job, _event_value(kind, row), row["operator"], lane)


def _added(row: Table, reader: _JobReader, running: set[str]) -> list[JobSpec]:
    added = list(reader.jobs(_rows(row, "jobs")))
    if not added:
        raise ScenarioError("it adds no jobs; give them as [[event.jobs]]")
    for job in added:
        if job.name in running:
            raise ScenarioError(f'job "{job.name}" runs already; names must differ')
        running.add(job.name)
    return added


def _event_value(kind: str, row: Table) -> float:
    if kind not in ("slow-host", "cpu-load", "slow-lane", "skew"):
        return 0.0
    if "value" not in row:
        raise ScenarioError(f"value is missing: {kind} needs one")
    if kind in ("slow-host", "slow-lane", "skew"):
        return number(row["value"], "value", above=0, high=1, error=ScenarioError)
    return number(row["value"], "value", low=0, error=ScenarioError)


def _known(value: Any, what: str, known: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in set(known):
        raise ScenarioError(f"{what} is {shown(value)}, which does not exist then.{did_you_mean(value, known)}")
    return str(value)


# -- sweeps ----------------------------------------------------------------------------------------------------------------------


def _variants(table: Table, path: Path) -> Iterable[Variant]:
    """`[sweep]` runs the scenario once per value of one field, or once per row of changes."""
    sweep = _table(table, "sweep")
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
    """The table with one field replaced; a list position is named by its number, from 1."""
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


# -- changes from the command line -----------------------------------------------------------------------------------------------


def with_trace(scenario: Scenario, path: Path) -> Scenario:
    """Every job's load follows the trace's shape, at the height of its own pattern's peak."""
    points = read_trace(path)
    jobs = tuple(dataclasses.replace(job, loads=_traced(job, points, scenario)) for job in scenario.jobs)
    events = tuple(
        dataclasses.replace(event, job=dataclasses.replace(event.job, loads=_traced(event.job, points, scenario)))
        if event.job is not None
        else event
        for event in scenario.events
    )
    return dataclasses.replace(scenario, jobs=jobs, events=events)


def _traced(job: JobSpec, points: tuple[tuple[float, float], ...], scenario: Scenario) -> dict[str, Load]:
    return {
        source: Trace(
            points, load.hour_s / 3600 if isinstance(load, Diurnal) else 1.0, peak=_peak(load, scenario.duration_s)
        )
        for source, load in job.loads.items()
    }


def _peak(load: Load, duration_s: float) -> float:
    return max(load.rate_rows_s(duration_s * index / 1000) for index in range(1001))


def with_hours(scenario: Scenario, hours: float) -> Scenario:
    """The scenario for another length of simulated time."""
    if not hours > 0 or hours == float("inf"):
        raise InputError(f"hours is {hours}; it must be a number above 0")
    variants = tuple(dataclasses.replace(v, scenario=with_hours(v.scenario, hours)) for v in scenario.sweep)
    return dataclasses.replace(scenario, duration_s=hours * 3600, sweep=variants)
