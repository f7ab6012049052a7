"""Jobs and their operators in a scenario file."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headgate.core.intents import Intent, intent_from
from headgate.core.model import MOST_SHARE, Graph, Operator
from headgate.core.quantities import about, check_fields, did_you_mean, number, seconds, shown
from headgate.errors import ScenarioError
from headgate.loads import Load, load_from
from headgate.sim.spec import Generated, Jitter, JobSpec, OperatorSpec
from headgate.sim.tables import Table, lane_count, table_in, whole

OPERATOR_FIELDS = (
    "name", "from", "cost", "wait", "selectivity", "split", "lanes", "max_lanes", "weight", "state_mb", "retain", "row_kb",
    "slices", "zipf", "transit", "cores", "memory_mb",
)  # fmt: skip
JOB_FIELDS = (
    "name", "count", "first", "tenant", "tenant_weight", "topology", "operators", "lanes", "intent", "load", "pace", "jitter",
    "share",
)  # fmt: skip


def read_operators(rows: Any, where: str) -> tuple[OperatorSpec, ...]:
    """The operators of a topology, checked as a graph."""
    with about(where, ScenarioError):
        if isinstance(rows, Mapping):
            rows = rows.get("operators")
        if not isinstance(rows, list) or not rows:
            raise ScenarioError("it needs a list of operators")
        operators = tuple(_operator(row, previous) for row, previous in zip(rows, [None, *rows], strict=False))
        Graph.of(*(Operator(o.name, o.inputs) for o in operators))
        return operators


def _operator(row: Any, previous: Any) -> OperatorSpec:
    """Read one operator; without `from`, an operator reads from the operator of the row before, and the first operator is a source."""
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
            lanes=lane_count(row.get("lanes", 1), "lanes"),
            max_lanes=lane_count(row["max_lanes"], "max_lanes") if "max_lanes" in row else None,
            weight=number(row.get("weight", 1), "weight", above=0, error=ScenarioError),
            state_mb=number(row.get("state_mb", 0), "state_mb", low=0, error=ScenarioError),
            retain_s=seconds(row.get("retain", 0), "retain", zero=True, error=ScenarioError),
            row_kb=number(row.get("row_kb", 1), "row_kb", above=0, error=ScenarioError),
            slices=whole(row.get("slices", 0), "slices", low=0),
            zipf=number(row.get("zipf", 0), "zipf", low=0, error=ScenarioError),
            transit_s=seconds(row.get("transit", 0), "transit", zero=True, error=ScenarioError),
            cores=number(row.get("cores", 0), "cores", low=0, error=ScenarioError),
            memory_mb=number(row.get("memory_mb", 0), "memory_mb", low=0, error=ScenarioError),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class JobReader:
    """Reads job tables; the copies of a job with a `count` take their values from lists in turn."""

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
        count = whole(row.get("count", 1), "count", low=1)
        first = whole(row.get("first", start), "first", low=0)
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
            intent = read_intent(table_in(row, "intent"))
            loads = self._loads(row, operators)
            pace_s = seconds(row.get("pace", 0), "pace", zero=True, error=ScenarioError)
            share = whole(row.get("share", 1), "share", low=1, high=MOST_SHARE)
            weight = number(row.get("tenant_weight", 1), "tenant_weight", low=0.01, high=100, error=ScenarioError)
            tenant = str(row.get("tenant", "default"))
            return JobSpec(
                name, operators, intent, loads, tenant, pace_s, _jitter(row), share=share, tenant_weight=weight
            )

    def _job_operators(self, row: Table) -> tuple[OperatorSpec, ...]:
        if "operators" in row:
            return read_operators(row["operators"], "operators")
        wanted = row.get("topology")
        if not isinstance(wanted, str) or wanted not in self.topologies:
            given = shown(wanted) if wanted is not None else "missing"
            hint = did_you_mean(wanted, self.topologies)
            raise ScenarioError(f"topology is {given}; known are {', '.join(self.topologies)}.{hint}")
        return self.topologies[str(wanted)]

    def _scaled(self, operators: tuple[OperatorSpec, ...], row: Table) -> tuple[OperatorSpec, ...]:
        """Replace the lanes of the topology's operators by the `lanes` of the job."""
        lanes = table_in(row, "lanes")
        unknown = set(lanes) - {operator.name for operator in operators}
        if unknown:
            raise ScenarioError(f"lanes names {sorted(unknown)[0]!r}, which is no operator of the job")
        return tuple(
            dataclasses.replace(o, lanes=lane_count(lanes[o.name], f"lanes of {o.name}")) if o.name in lanes else o
            for o in operators
        )

    def _loads(self, row: Table, operators: tuple[OperatorSpec, ...]) -> dict[str, Load]:
        given = table_in(row, "load")
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
    """Return the value for one copy of a job: a list under `each` has one value per copy."""
    if isinstance(value, Mapping):
        if set(value) == {"each"}:
            choices = value["each"]
            if not isinstance(choices, list) or not choices:
                raise ScenarioError(f"each is {choices!r}; it must be a list of values")
            return choices[index % len(choices)]
        return {key: _nth(inner, index) for key, inner in value.items()}
    return value


def _jitter(row: Table) -> Jitter:
    table = table_in(row, "jitter")
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
