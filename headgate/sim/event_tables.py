"""Events in a scenario file: changes of jobs, hosts and lanes, with their times."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.core.quantities import about, check_fields, choice, number, seconds, shown
from headgate.errors import ScenarioError
from headgate.sim.job_tables import JobReader, read_intent
from headgate.sim.spec import Event, JobSpec
from headgate.sim.tables import Table, existing, lane_count, rows_in, table_in, whole

EVENT_KINDS = (
    "add", "remove", "intent", "fail-link", "restore-link", "fail-host", "restore-host", "slow-host", "cpu-load",
    "lanes", "slow-lane", "skew", "cut-host", "mend-host",
)  # fmt: skip
EVENT_FIELDS = ("at", "kind", "job", "host", "value", "intent", "jobs", "operator", "lane", "lanes")


def read_events(
    rows: list[Table], reader: JobReader, jobs: tuple[JobSpec, ...], hosts: set[str] | None
) -> Iterable[Event]:
    """Yield the events in the order of their times, checked against the jobs running then; `hosts` is None for leased hosts."""
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


def _event(at_s: float, row: Table, reader: JobReader, running: set[str], hosts: set[str] | None) -> Iterable[Event]:
    kind = choice(row.get("kind", "missing"), "kind", EVENT_KINDS, ScenarioError)
    if kind == "add":
        return [Event(at_s, kind, job.name, job=job) for job in _added(row, reader, running)]
    if kind in ("remove", "intent"):
        target = existing(row.get("job"), "job", running)
        running -= {target} if kind == "remove" else set()
        intent = read_intent(table_in(row, "intent")) if kind == "intent" else None
        return [Event(at_s, kind, target, intent=intent)]
    if kind in ("lanes", "slow-lane", "skew"):
        return [_job_event(at_s, kind, row, existing(row.get("job"), "job", running))]
    target = existing(row["host"], "host", hosts if hosts is not None else {row["host"]}) if "host" in row else ""
    return [Event(at_s, kind, target, _event_value(kind, row))]


def _job_event(at_s: float, kind: str, row: Table, job: str) -> Event:
    """Return an event about the lanes of one job."""
    if kind == "lanes":
        lanes = {name: lane_count(count, f"lanes of {name}") for name, count in table_in(row, "lanes").items()}
        return Event(at_s, kind, job, lanes=lanes)
    if not isinstance(row.get("operator"), str):
        raise ScenarioError(f"operator is {shown(row.get('operator'))}; it must name an operator of the job")
    lane = whole(row.get("lane", 0), "lane", low=0)
    return Event(at_s, kind, job, _event_value(kind, row), row["operator"], lane)


def _added(row: Table, reader: JobReader, running: set[str]) -> list[JobSpec]:
    added = list(reader.jobs(rows_in(row, "jobs")))
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
