"""Builds the actions that lease and release hosts, with their causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.hosts import Host, HostPhase, HostType
from headgate.core.model import Action, ActionKind, Cause
from headgate.core.quantities import show_seconds
from headgate.hosts.leases import LeaseHost, PlanStep, ReleaseHost, StartLane

ROOM_ELSEWHERE = Cause("the others have room for all that runs")
NO_OTHER_HOST = Cause("there is no other that works")


def lease(name: str, kind: HostType, cause: Cause, job: str | None = None) -> Action:
    """Lease a host; the name is chosen here, so that a repeated lease has no further effect."""
    what = f"leased for {kind.price:g} per {show_seconds(kind.btu_s)}"
    return Action(ActionKind.LEASE, job, {}, cause, what, host=name, host_type=kind)


def release(name: str, cause: Cause, what: str = "released") -> Action:
    """Release a host once nothing runs on it."""
    return Action(ActionKind.RELEASE, None, {}, cause, what, host=name)


def release_paid(host: Host, at_s: float) -> Action:
    """Release a host before its next billing time unit; a failed host is released at once."""
    if host.phase is HostPhase.FAILED:
        return release(host.name, Cause(host.reason or "it failed"), "given back")
    what = f"released with {show_seconds(host.remaining_s(at_s))} of its BTU to come"
    return release(host.name, ROOM_ELSEWHERE, what)


def action_of(
    step: LeaseHost | ReleaseHost, plan: Sequence[PlanStep], hosts: Mapping[str, Host], at_s: float
) -> Action:
    """The action for a lease or release step of a plan; the cause of a lease names the operators that get lanes on the new host."""
    if isinstance(step, ReleaseHost):
        return release_paid(hosts[step.host], at_s)
    started = [one.operator for one in plan if isinstance(one, StartLane) and one.host == step.host]
    names = sorted({f"{operator} of {job}" for job, operator in started})
    cause = Cause(f"the hosts there are have no room for {', '.join(names)}") if names else NO_OTHER_HOST
    return lease(step.host, step.kind, cause, started[0][0] if started else None)
