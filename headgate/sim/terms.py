"""Leased hosts in a scenario file: types, prices, a budget, and the provisioner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.config.settings import host_settings_from
from headgate.core.hosts import HostType, OperatorKey
from headgate.core.quantities import about, check_fields, number, seconds, shown
from headgate.errors import ScenarioError
from headgate.hosts.leases import Budget, Need, check_needs
from headgate.hosts.provision import Terms, check_budget
from headgate.sim.spec import Event, JobSpec

Table = Mapping[str, Any]

TYPE_FIELDS = ("name", "cores", "memory_mb", "price", "btu", "startup")
BUDGET_FIELDS = ("most_hosts", "most_per_hour")


def read_terms(table: Table, jobs: tuple[JobSpec, ...]) -> Terms:
    """The terms of a scenario, checked against what its jobs need."""
    if "control_after" in table:
        raise ScenarioError("control_after is for hosts that are there; who leases hosts decides from the start")
    rows = table.get("host_type")
    if not isinstance(rows, list) or not rows:
        raise ScenarioError("hosts are leased, but there is nothing to lease; give at least one [[host_type]]")
    kinds = tuple(_kind(row) for row in rows)
    with about("budget", ScenarioError):
        budget = _budget(table.get("budget", {}))
        terms = Terms(kinds, budget, host_settings_from(table.get("provisioning", {})))
    check_needs(needs_of(jobs), kinds)
    check_budget(needs_of(jobs), terms)
    return terms


def check_events(events: tuple[Event, ...], terms: Terms) -> None:
    """Refuse events that leased hosts cannot have, and later jobs with lanes that no host type can hold."""
    for event in events:
        if event.kind in ("restore-host", "slow-host", "cpu-load"):
            raise ScenarioError(f"event {event.kind} cannot happen to hosts that are leased; fail-host can")
        if event.job is not None:
            check_needs(needs_of((event.job,)), terms.kinds)


def needs_of(jobs: tuple[JobSpec, ...]) -> dict[OperatorKey, Need]:
    """Return the cores and memory reserved for one lane of each operator."""
    needs = {(job.name, one.name): Need(one.cores, one.memory_mb) for job in jobs for one in job.operators}
    for (job, operator), need in needs.items():
        if need == Need(0, 0):
            raise ScenarioError(f'job "{job}": operator "{operator}" says neither cores nor memory_mb of a lane')
    return needs


def _kind(row: Any) -> HostType:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise ScenarioError(f"host_type {shown(row)} must be a table with a name")
    with about(f'host_type "{row["name"]}"', ScenarioError):
        check_fields(row, TYPE_FIELDS, ScenarioError)
        return HostType(
            name=row["name"],
            cores=number(row.get("cores", 4), "cores", above=0, error=ScenarioError),
            memory_mb=number(row.get("memory_mb", 16384), "memory_mb", above=0, error=ScenarioError),
            price=number(row.get("price", 1), "price", low=0, error=ScenarioError),
            btu_s=seconds(row.get("btu", "1h"), "btu", error=ScenarioError),
            startup_s=seconds(row.get("startup", 45), "startup", zero=True, error=ScenarioError),
        )


def _budget(table: Any) -> Budget:
    if not isinstance(table, Mapping):
        raise ScenarioError(f"it is {shown(table)}; it must be a table")
    check_fields(table, BUDGET_FIELDS, ScenarioError)
    hosts, money = table.get("most_hosts"), table.get("most_per_hour")
    return Budget(
        None if hosts is None else int(number(hosts, "most_hosts", error=ScenarioError)),
        None if money is None else number(money, "most_per_hour", error=ScenarioError),
    )
