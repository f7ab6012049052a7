"""Data of the dashboard: JSON under `/api/v1`, described by OpenAPI at `/api/v1/openapi.json`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from headgate.core.metrics import JobView
from headgate.core.model import HostReading
from headgate.errors import UnknownJobError
from headgate.ports import JobPhase
from headgate.server.anatomy import (
    EdgeDetail,
    KeyedDetail,
    OperatorDetail,
    edges_of,
    operators_of,
)
from headgate.server.answers import documented, json_answer
from headgate.server.board import FailureStatus
from headgate.server.changes import Change, Changes
from headgate.server.chronicle import StoryEntry, chronicle
from headgate.server.client import JobEpochs
from headgate.server.gate import caller_of
from headgate.server.history import (
    ActionEntry,
    JobSeries,
    LatencySeries,
    UtilitySeries,
    action_entries,
    job_series,
    latency_series,
    total_lanes,
    utility_series,
)
from headgate.server.removed import JOBS as JOBS_FOLDER
from headgate.server.service import Service
from headgate.server.sessions import Sessions
from headgate.server.state_sizes import slice_bytes
from headgate.server.status import JobStatus, LeasesStatus, LeaseStatus, Status, TenantStatus
from headgate.server.visible import Seen, seen
from headgate.server.what_if import WhatIf, WhatIfAnswer, WhatIfQuestion

PREFIX = "/api/v1"
LOOK_S, BEAT_S = 1.0, 15.0
"""Seconds between two checks of an open event stream for changes, and longest time without a message on the stream."""
SHOWN_ACTIONS, SHOWN_CHANGES, SHOWN_FAILURES = 300, 50, 10
WEEK_S = 604_800.0

RangeS = Annotated[
    float, Query(ge=60, le=53 * WEEK_S, description="Seconds back from now that series and actions cover.")
]
Points = Annotated[int, Query(ge=2, le=2000, description="Most points of a series; every n-th round is read.")]


# -- what is answered --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host: its cores and slots, its load, and its lease."""

    name: str
    cores: float | None
    load: float | None
    memory_used: float | None
    lease: LeaseStatus | None
    slots: float | None = None
    silent_s: float | None = None
    """Seconds since the last heartbeat if too long ago to judge jobs with lanes on the host; None for other hosts."""


@dataclass(frozen=True, slots=True)
class BillRow:
    """What leased hosts have cost."""

    cost: float
    spending_per_hour: float
    paid_btus: int
    leases: int
    wasted_s: float
    cost_by_job: dict[str, float]


@dataclass(frozen=True, slots=True)
class Cluster:
    """All jobs together, and the hosts."""

    now_s: float
    at_s: float | None
    round_s: float
    phase: str
    policy: str
    score: float
    max_score: float
    satisfaction: float | None
    decision: str
    headline: str
    problem: str
    advice: tuple[str, ...]
    utility: UtilitySeries
    actions: list[ActionEntry]
    more_actions: int
    """Number of earlier actions in the range that `actions` leaves out."""
    hosts: list[HostRow]
    bill: BillRow | None
    changes: tuple[Change, ...]
    tenants: dict[str, TenantStatus]
    """Usage, utility and cost of the jobs of each tenant."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as a row: its status, its lanes, and its recent measurements."""

    name: str
    status: JobStatus
    lanes: int | None
    """Lanes of all operators together."""
    series: JobSeries | None


@dataclass(frozen=True, slots=True)
class JobList:
    """All jobs; `at_s` has the times of their series."""

    now_s: float
    at_s: list[float]
    jobs: list[JobRow]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job: its operators, its latency and actions over time, and its failures."""

    now_s: float
    name: str
    status: JobStatus
    lanes: int | None
    operators: tuple[OperatorDetail, ...]
    edges: tuple[EdgeDetail, ...]
    latency: LatencySeries
    actions: list[ActionEntry]
    more_actions: int
    """Number of earlier actions in the range that `actions` leaves out."""
    failures: list[FailureStatus]
    intent: dict[str, Any]
    """The goals of the intent, for a form."""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a job, newest first."""

    entries: list[StoryEntry]


# -- questions ---------------------------------------------------------------------------------------------------------


class Dashboard:
    """Answers the requests of the dashboard from the status board and the journal."""

    def __init__(self, service: Service, changes: Changes, what_if_s: float) -> None:
        self._service, self._changes = service, changes
        self._what_if = WhatIf(getattr(service.journal, "path", None), what_if_s)

    def cluster(self, range_s: float, points: int, tenant: str | None = None) -> Cluster:
        """The cluster and its past, or what a tenant sees of it."""
        service, now_s = self._service, self._service.now_s()
        found = seen(service, tenant)
        status, since_s = found.status, now_s - range_s
        actions = found.past.actions(since_s=since_s)
        return Cluster(
            now_s=now_s,
            at_s=status.at_s,
            round_s=service.loop.settings.round_s,
            phase=status.phase,
            policy=status.policy,
            score=status.score,
            max_score=status.max_score,
            satisfaction=status.satisfaction,
            decision=status.decision,
            headline=status.headline,
            problem=status.problem,
            advice=status.advice,
            utility=utility_series(found.past, since_s, points),
            actions=action_entries(actions[-SHOWN_ACTIONS:]),
            more_actions=max(0, len(actions) - SHOWN_ACTIONS),
            hosts=_hosts(status),
            bill=_bill(status.leases),
            changes=self._changes.seen_by(tenant, found.since_s)[-SHOWN_CHANGES:],
            tenants=status.tenants,
        )

    def jobs(self, range_s: float, points: int, tenant: str | None = None) -> JobList:
        """All jobs and their past, or those of a tenant."""
        now_s, found = self._service.now_s(), seen(self._service, tenant)
        at_s, series = job_series(found.past, now_s - range_s, points)
        rows = [JobRow(name, job, total_lanes(job.lanes), series.get(name)) for name, job in found.status.jobs.items()]
        return JobList(now_s, at_s, rows)

    def job(self, name: str, range_s: float, points: int, tenant: str | None = None) -> JobDetail:
        """One job and its past."""
        now_s, found = self._service.now_s(), seen(self._service, tenant)
        status, since_s = _job_of(found, name), now_s - range_s
        view, actions = self._view(name, status), found.past.actions(name, since_s)
        return JobDetail(
            now_s=now_s,
            name=name,
            status=status,
            lanes=total_lanes(status.lanes),
            operators=operators_of(view, self._keyed(name)) if view is not None else (),
            edges=edges_of(view) if view is not None else (),
            latency=latency_series(found.past.sampled(since_s, points, (name,)), name),
            actions=action_entries(actions[-SHOWN_ACTIONS:]),
            more_actions=max(0, len(actions) - SHOWN_ACTIONS),
            failures=[one for one in found.failures if one.job == name][-SHOWN_FAILURES:],
            intent=self._intent(name),
        )

    def story(self, name: str, range_s: float, points: int, tenant: str | None = None) -> Story:
        """What happened to one job."""
        found, since_s = seen(self._service, tenant), self._service.now_s() - range_s
        _job_of(found, name)
        rounds = [one for one in found.past.sampled(since_s, points, (name,)) if name in one.jobs]
        changes = self._changes.seen_by(tenant, found.since_s)
        about = [one for one in changes if one.job == name and one.at_s >= since_s]
        return Story(chronicle(name, rounds, found.past.actions(name, since_s)[-SHOWN_ACTIONS:], about))

    def what_if(self, table: Any) -> WhatIfAnswer:
        """Predict the running jobs with changes."""
        return self._what_if.answer(table).only(self._service.status().jobs)

    def epochs(self, name: str, tenant: str | None = None) -> JobEpochs:
        """The last finished epochs of one job, with their parts."""
        _job_of(seen(self._service, tenant), name)
        return JobEpochs(self._service.engine.epochs(name))

    def _view(self, name: str, status: JobStatus) -> JobView | None:
        """Return the measurements of a running job; None for any other job."""
        picture = self._service.board.picture()
        if picture is None or status.state != JobPhase.RUNNING.value:
            return None
        return picture.view.jobs.get(name)

    def _keyed(self, name: str) -> KeyedDetail:
        service = self._service
        return KeyedDetail(
            service.engine.hot_keys(name), slice_bytes(service.registry.path.parent / JOBS_FOLDER / name)
        )

    def _intent(self, name: str) -> dict[str, Any]:
        declared = self._service.board.declared.now().get(name)
        if declared is None or declared.intent is None:
            return {}
        intent = declared.intent
        return {
            "latency_s": intent.latency_s,
            "percentile": intent.percentile,
            "juice": intent.juice,
            "worth": intent.worth,
            "policy": intent.policy,
        }

    def mark(self) -> tuple[object, ...]:
        """Return a value that changes whenever the dashboard has something new to show."""
        board = self._service.board
        return (id(board.picture()), board.phase(), tuple(board.states().items()), len(self._changes.all()))


def _job_of(found: Seen, name: str) -> JobStatus:
    status = found.status.jobs.get(name)
    if status is None:
        raise UnknownJobError(f'there is no job "{name}"')
    return status


def _hosts(status: Status) -> list[HostRow]:
    leases = {
        key: one
        for one in (status.leases.hosts if status.leases is not None else ())
        for key in (one.name, one.address)
        if key
    }
    rows = [_host(host, leases.get(host.name)) for host in status.hosts]
    shown = {row.lease.name for row in rows if row.lease is not None}
    waiting = {one.name: one for one in leases.values() if one.name not in shown}
    return rows + [HostRow(name, None, None, None, one) for name, one in waiting.items()]


def _host(host: HostReading, lease: LeaseStatus | None) -> HostRow:
    silent_s = host.silent_s if host.suspect else None
    return HostRow(host.name, host.cores, host.load, host.memory_used, lease, host.slots, silent_s)


def _bill(leases: LeasesStatus | None) -> BillRow | None:
    if leases is None:
        return None
    bill = leases.bill
    by_job = dict(bill.cost_by_job)
    return BillRow(bill.cost, leases.spending_per_hour, bill.paid_btus, bill.leases, bill.wasted_s, by_job)


def questions(dashboard: Dashboard, closing: threading.Event, sessions: Sessions) -> APIRouter:
    """Return the routes of the dashboard's data under `/api/v1`."""
    router = APIRouter(prefix=PREFIX, tags=["questions"])

    @router.get("/cluster", responses=documented(Cluster), summary="Total utility, actions, hosts, bill")
    def cluster(request: Request, range_s: RangeS = 3600.0, points: Points = 300) -> Response:
        return json_answer(dashboard.cluster(range_s, points, caller_of(request).tenant))

    @router.get("/jobs", responses=documented(JobList), summary="All jobs with short series")
    def jobs(request: Request, range_s: RangeS = 3600.0, points: Points = 40) -> Response:
        return json_answer(dashboard.jobs(range_s, points, caller_of(request).tenant))

    @router.get(
        "/jobs/{name}", responses=documented(JobDetail), summary="One job: operators, lanes, keyed state, latency"
    )
    def job(request: Request, name: str, range_s: RangeS = 3600.0, points: Points = 300) -> Response:
        return json_answer(dashboard.job(name, range_s, points, caller_of(request).tenant))

    @router.get("/jobs/{name}/story", responses=documented(Story), summary="What happened to a job, and why")
    def story(request: Request, name: str, range_s: RangeS = 3600.0, points: Points = 720) -> Response:
        return json_answer(dashboard.story(name, range_s, points, caller_of(request).tenant))

    @router.post(
        "/what-if",
        responses=documented(WhatIfAnswer),
        openapi_extra=_body_schema(WhatIfQuestion),
        summary="Predict the jobs with other loads, intents or hosts",
    )
    def what_if(question: Annotated[Any, Body()]) -> Response:
        return json_answer(dashboard.what_if(question))

    @router.get(
        "/jobs/{name}/epochs", responses=documented(JobEpochs), summary="The last epochs of a job, part by part"
    )
    def epochs(request: Request, name: str) -> Response:
        return json_answer(dashboard.epochs(name, caller_of(request).tenant))

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
        summary="Server-sent events: `round` whenever there is something new to ask for",
    )
    async def events(request: Request) -> StreamingResponse:
        who = caller_of(request).identity

        def open_() -> bool:
            return not closing.is_set() and sessions.holds(who)

        return StreamingResponse(_news(dashboard, request, open_), media_type="text/event-stream")

    return router


async def _news(dashboard: Dashboard, request: Request, open_: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield one event per change; the stream ends when the service stops, or when the token expires or is revoked."""
    seen, quiet_s = dashboard.mark(), 0.0
    yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
    while open_() and not await request.is_disconnected():
        await asyncio.sleep(LOOK_S)
        quiet_s += LOOK_S
        now = dashboard.mark()
        if now != seen:
            seen, quiet_s = now, 0.0
            yield b"event: round\ndata: {}\n\n"
        elif quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield b": still here\n\n"


def _body_schema(model: type) -> dict[str, Any]:
    """Return the schema of a body for OpenAPI; the handler checks the body itself, to refuse it in a sentence."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _schema(model)}}}}


def _schema(model: type) -> dict[str, Any]:
    return TypeAdapter(model).json_schema()
