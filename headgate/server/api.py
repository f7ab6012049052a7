"""What the dashboard asks for, as documented JSON under `/api/v1`; OpenAPI describes it at `/api/v1/openapi.json`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse

from headgate.config import ServiceSettings
from headgate.core.metrics import JobView
from headgate.errors import UnknownJobError
from headgate.ports import JobPhase
from headgate.server.anatomy import EdgeDetail, EpochDetail, OperatorDetail, edges_of, epochs_of, operators_of
from headgate.server.answers import json_answer, refusal
from headgate.server.board import FailureStatus
from headgate.server.changes import Change, Changes
from headgate.server.chronicle import StoryEntry, chronicle
from headgate.server.gate import PAGE, caller_of, cookie_name, cookie_of, port_of
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
from headgate.server.service import Service
from headgate.server.sessions import HOUR_S, Sessions
from headgate.server.status import HostStatus, JobStatus, LeasesStatus, LeaseStatus, Status

PREFIX = "/api/v1"
WEB = resources.files("headgate.server") / "web"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
LOOK_S, BEAT_S = 1.0, 15.0
"""How often an open stream looks for news, and says that it is still there."""
SHOWN_ACTIONS, SHOWN_CHANGES = 300, 50
WEEK_S = 604_800.0

RangeS = Annotated[
    float, Query(ge=60, le=53 * WEEK_S, description="Seconds back from now that series and actions cover.")
]
Points = Annotated[int, Query(ge=2, le=2000, description="Most points of a series; every n-th round is read.")]


# -- what is answered --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host: what it has, how loaded it is, and for how long it is paid."""

    name: str
    cores: float | None
    load: float | None
    memory_used: float | None
    lease: LeaseStatus | None
    slots: float | None = None
    silent_s: float | None = None
    """Seconds since its last heartbeat, if that is too long ago to judge jobs with lanes there."""


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
    hosts: list[HostRow]
    bill: BillRow | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as a row: what it should do, what it does, and how that went lately."""

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
    """One job: its inside, its past, its failures."""

    now_s: float
    name: str
    status: JobStatus
    lanes: int | None
    operators: tuple[OperatorDetail, ...]
    edges: tuple[EdgeDetail, ...]
    epochs: tuple[EpochDetail, ...]
    latency: LatencySeries
    actions: list[ActionEntry]
    failures: list[FailureStatus]
    intent: dict[str, Any]
    """The goals of the intent, for a form."""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a job, newest first."""

    entries: list[StoryEntry]


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """Who is logged in, empty without a session, and what requests that change something must repeat in `X-CSRF-Token`."""

    who: str
    csrf: str


@dataclass(frozen=True, slots=True)
class LoginLink:
    """A path of the service that logs in one browser, once."""

    path: str


# -- questions ---------------------------------------------------------------------------------------------------------


class Dashboard:
    """Answers what the pages show, from the board and the journal."""

    def __init__(self, service: Service, changes: Changes) -> None:
        self._service, self._changes = service, changes

    def cluster(self, range_s: float, points: int) -> Cluster:
        """The cluster and its past."""
        service, now_s = self._service, self._service.now_s()
        status, journal = service.status(), service.journal
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
            utility=utility_series(journal, now_s - range_s, points),
            actions=action_entries(journal.actions(since_s=now_s - range_s)[-SHOWN_ACTIONS:]),
            hosts=_hosts(status),
            bill=_bill(status.leases),
            changes=self._changes.all()[-SHOWN_CHANGES:],
        )

    def jobs(self, range_s: float, points: int) -> JobList:
        """All jobs and their past."""
        now_s, status = self._service.now_s(), self._service.status()
        at_s, series = job_series(self._service.journal, now_s - range_s, points)
        rows = [JobRow(name, job, total_lanes(job.lanes), series.get(name)) for name, job in status.jobs.items()]
        return JobList(now_s, at_s, rows)

    def job(self, name: str, range_s: float, points: int) -> JobDetail:
        """One job and its past."""
        service, now_s = self._service, self._service.now_s()
        status = self._status(name)
        view = self._view(name, status)
        return JobDetail(
            now_s=now_s,
            name=name,
            status=status,
            lanes=total_lanes(status.lanes),
            operators=operators_of(view) if view is not None else (),
            edges=edges_of(view) if view is not None else (),
            epochs=epochs_of(view) if view is not None else (),
            latency=latency_series(service.journal.sampled(now_s - range_s, points, (name,)), name),
            actions=action_entries(service.journal.actions(name, now_s - range_s)[-SHOWN_ACTIONS:]),
            failures=[one for one in service.board.failures if one.job == name],
            intent=self._intent(name),
        )

    def story(self, name: str, range_s: float, points: int) -> Story:
        """What happened to one job."""
        self._status(name)
        journal, since_s = self._service.journal, self._service.now_s() - range_s
        rounds = [one for one in journal.sampled(since_s, points, (name,)) if name in one.jobs]
        changes = [one for one in self._changes.all(name) if one.at_s >= since_s]
        return Story(chronicle(name, rounds, journal.actions(name, since_s)[-SHOWN_ACTIONS:], changes))

    def _status(self, name: str) -> JobStatus:
        found = self._service.status().jobs.get(name)
        if found is None:
            raise UnknownJobError(f'there is no job "{name}"')
        return found

    def _view(self, name: str, status: JobStatus) -> JobView | None:
        """What was measured of a job that runs; a job that does not has no inside."""
        picture = self._service.board.picture()
        if picture is None or status.state != JobPhase.RUNNING.value:
            return None
        return picture.view.jobs.get(name)

    def _intent(self, name: str) -> dict[str, Any]:
        known = self._service.board.known.now().get(name)
        if known is None or known.intent is None:
            return {}
        intent = known.intent
        return {
            "latency_s": intent.latency_s,
            "percentile": intent.percentile,
            "juice": intent.juice,
            "worth": intent.worth,
            "policy": intent.policy,
        }

    def mark(self) -> tuple[object, ...]:
        """Differs whenever there is something new to show."""
        board = self._service.board
        return (id(board.picture()), board.phase(), tuple(board.states().items()), len(self._changes.all()))


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


def _host(host: HostStatus, lease: LeaseStatus | None) -> HostRow:
    silent_s = host.silent_s if host.suspect else None
    return HostRow(host.name, host.cores, host.load, host.memory_used, lease, host.slots, silent_s)


def _bill(leases: LeasesStatus | None) -> BillRow | None:
    if leases is None:
        return None
    bill = leases.bill
    by_job = dict(bill.cost_by_job)
    return BillRow(bill.cost, leases.spending_per_hour, bill.paid_btus, bill.leases, bill.wasted_s, by_job)


def questions(dashboard: Dashboard, closing: threading.Event) -> APIRouter:
    """Everything that can be asked under `/api/v1`."""
    router = APIRouter(prefix=PREFIX, tags=["questions"])

    @router.get("/cluster", responses=_documented(Cluster), summary="Total utility, actions, hosts, bill")
    def cluster(range_s: RangeS = 3600.0, points: Points = 300) -> Response:
        return json_answer(dashboard.cluster(range_s, points))

    @router.get("/jobs", responses=_documented(JobList), summary="All jobs with short series")
    def jobs(range_s: RangeS = 3600.0, points: Points = 40) -> Response:
        return json_answer(dashboard.jobs(range_s, points))

    @router.get("/jobs/{name}", responses=_documented(JobDetail), summary="One job: operators, lanes, latency, epochs")
    def job(name: str, range_s: RangeS = 3600.0, points: Points = 300) -> Response:
        return json_answer(dashboard.job(name, range_s, points))

    @router.get("/jobs/{name}/story", responses=_documented(Story), summary="What happened to a job, and why")
    def story(name: str, range_s: RangeS = 3600.0, points: Points = 720) -> Response:
        return json_answer(dashboard.story(name, range_s, points))

    @router.get("/events", summary="Server-sent events: `round` whenever there is something new to ask for")
    async def events(request: Request) -> StreamingResponse:
        return StreamingResponse(_news(dashboard, request, closing), media_type="text/event-stream")

    return router


async def _news(dashboard: Dashboard, request: Request, closing: threading.Event) -> AsyncIterator[bytes]:
    """One event for each change; a stream ends with the service, so that a stop does not wait for it."""
    told, quiet_s = dashboard.mark(), 0.0
    yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
    while not closing.is_set() and not await request.is_disconnected():
        await asyncio.sleep(LOOK_S)
        quiet_s += LOOK_S
        now = dashboard.mark()
        if now != told:
            told, quiet_s = now, 0.0
            yield b"event: round\ndata: {}\n\n"
        elif quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield b": still here\n\n"


def _documented(model: type) -> dict[int | str, dict[str, Any]]:
    """The shape of an answer for OpenAPI; the answer itself is encoded without a second check."""
    return {200: {"model": model}}


# -- logging in --------------------------------------------------------------------------------------------------------


def logins(sessions: Sessions, settings: ServiceSettings) -> APIRouter:
    """Sessions of browsers."""
    router = APIRouter(prefix=PREFIX, tags=["sessions"])

    @router.post("/session", responses=_documented(SessionAnswer), summary="Log in with a login code or the token")
    def log_in(request: Request, secret: Annotated[str, Body(embed=True, max_length=200)]) -> Response:
        cookie, session = sessions.log_in(secret)
        answer = json_answer(SessionAnswer(session.who, session.csrf))
        answer.set_cookie(
            cookie_name(port_of(request.scope)),
            cookie,
            max_age=int(settings.session_h * HOUR_S),
            httponly=True,
            samesite="strict",
        )
        return answer

    @router.get("/session", responses=_documented(SessionAnswer), summary="Who is logged in")
    def session(request: Request) -> Response:
        found = sessions.find(cookie_of(request.scope))
        return json_answer(SessionAnswer(found.who, found.csrf) if found is not None else SessionAnswer("", ""))

    @router.delete("/session", summary="Log out")
    def log_out(request: Request) -> Response:
        sessions.log_out(cookie_of(request.scope))
        answer = json_answer({})
        answer.delete_cookie(cookie_name(port_of(request.scope)), httponly=True, samesite="strict")
        return answer

    @router.post("/login-links", responses=_documented(LoginLink), summary="A link that logs in one browser, once")
    def login_link(request: Request) -> Response:
        return json_answer(LoginLink(login_path(sessions, caller_of(request).who)), 201)

    return router


def login_path(sessions: Sessions, who: str) -> str:
    """The code is behind the #, which browsers keep to themselves: it is in no log, and no preview of a link uses it up."""
    return f"/#login={sessions.new_code(who)}"


# -- the page ----------------------------------------------------------------------------------------------------------


def add_page(app: FastAPI) -> None:
    """The page and its files, which are the same for all users and hold no data."""

    @app.get(PAGE, include_in_schema=False)
    def page() -> Response:
        return _asset(["index.html"])

    @app.get("/web/{path:path}", include_in_schema=False)
    def asset(path: str) -> Response:
        return _asset(path.split("/"))


def _asset(parts: Sequence[str]) -> Response:
    ending = f".{parts[-1].rpartition('.')[2]}"
    file = WEB.joinpath(*parts)
    if ".." in parts or ending not in TYPES or not file.is_file():
        return refusal(f"there is no file {'/'.join(parts)}", 404)
    return Response(file.read_bytes(), media_type=TYPES[ending], headers={"Cache-Control": "no-cache"})


def described(table: Any) -> str:
    """A change in a few signs, for whoever reads the list of changes: `intent latency 1s, worth 50; share 3`."""
    if not isinstance(table, dict):
        return "change"
    return "; ".join(_described(str(name), value) for name, value in table.items())


def _described(name: str, value: Any) -> str:
    inner = (
        ", ".join(f"{key} {_plain(one)}" for key, one in value.items()) if isinstance(value, dict) else _plain(value)
    )
    return f"{name.replace('_', ' ')} {inner}"


def _plain(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
