"""Hosts whose slots lanes share by turns, as on Spark: how much of them each operator needs, and what is left over.

Nothing is kept for a lane there: Spark runs it in whichever slot is free. So what is placed on hosts is not lanes but work, cut into
parts of `PART` of a slot, as many as leave slots busy for no more than `target_busy`. A plan for these parts (core/provision.py) says
whether hosts have room for all work; where each part goes is up to Spark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from headgate.config import Settings
from headgate.core.hosts import Cluster, Host, HostPhase, Need, OperatorKey
from headgate.core.leasing import at_risk
from headgate.core.metrics import JobView, View
from headgate.core.sizing import needed_work

PART = 0.1
"""Of a slot."""
SERVICE: OperatorKey = ("", "")
"""Takes nothing, but must run somewhere: there is always one host."""

Work = Mapping[OperatorKey, float]
"""Busy lane-seconds per second of each operator."""


def measured_work(view: View, settings: Settings) -> dict[OperatorKey, float]:
    """What operators need to keep up and to work off what waits, as far as their jobs have been measured for long enough."""
    found: dict[OperatorKey, float] = {}
    for name, job in view.jobs.items():
        if job.span is not None and job.span.seconds >= settings.warm_up_s - 1e-6:
            found |= {(name, operator): amount for operator, amount in _work_of(job, settings).items()}
    return found


def _work_of(job: JobView, settings: Settings) -> dict[str, float]:
    assert job.span is not None
    if job.span.arrival_rows_s() <= 0 and not job.span.last.reading.backlog:
        return dict.fromkeys(job.job.graph.operators, 0.0)
    work = needed_work(job.job.graph, job.span, settings)
    return {operator: amount for operator, amount in work.items() if amount is not None}


def cluster_of(
    view: View, hosts: Mapping[str, Host], work: Work, settings: Settings
) -> tuple[Cluster, dict[OperatorKey, int]]:
    """Hosts with the work that they have room for, and the parts that are left over: those of jobs that miss their intents."""
    part = Need(PART, PART * min((host.kind.memory_mb / host.kind.cores for host in hosts.values()), default=0.0))
    needs = {**dict.fromkeys(work, part), SERVICE: Need(0.0, 0.0)}
    cluster = Cluster(hosts, needs, pinned=frozenset(hosts) if _unclear(view, work, settings) else frozenset())
    unplaced: Counter[OperatorKey] = Counter()
    for operator, parts in [(SERVICE, 1), *_in_turn(view, work, settings)]:
        cluster, left = _filled(cluster, operator, parts)
        unplaced[operator] += left
    return cluster, dict(unplaced)


def _unclear(view: View, work: Work, settings: Settings) -> bool:
    """Whether it cannot be said that intents would hold with fewer hosts: some job misses its own, or was never measured."""
    known = {job for job, _ in work}
    return any(name not in known or at_risk(job, settings) for name, job in view.jobs.items())


def _in_turn(view: View, work: Work, settings: Settings) -> list[tuple[OperatorKey, int]]:
    """Jobs that meet their intents have what they need; what there is no room for is missing to the others."""
    jobs = {name: job for name, job in view.jobs.items() if name in {job for job, _ in work}}
    in_turn = sorted(jobs, key=lambda name: (at_risk(jobs[name], settings), -jobs[name].worth, name))
    return [
        (key, math.ceil(amount / settings.target_busy / PART - 1e-9))
        for name in in_turn
        for key, amount in work.items()
        if key[0] == name
    ]


def _filled(cluster: Cluster, operator: OperatorKey, parts: int) -> tuple[Cluster, int]:
    """As many parts as there is room for, on the oldest hosts first; one at least, because lanes take turns."""
    for host in _in_order(cluster.hosts.values()):
        if parts:
            room = cluster.needs[operator].times_in(cluster.room(host.name))
            fits = max(0, min(parts, math.floor(room + 1e-9))) if math.isfinite(room) else parts
            cluster, parts = cluster.changed(operator, host.name, fits), parts - fits
    first = next(iter(cluster.usable()), None)
    if parts and first is not None and not cluster.lanes(operator):
        cluster, parts = cluster.changed(operator, first.name, 1), parts - 1
    return cluster, parts


def _in_order(hosts: Iterable[Host]) -> list[Host]:
    """Those that failed come last: what only they have room for has to be replaced."""
    held = (host for host in hosts if host.phase is not HostPhase.RELEASING)
    return sorted(held, key=lambda host: host.phase is HostPhase.FAILED)
