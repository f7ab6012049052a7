"""The HTTP API of a service: JSON in and out for authenticated callers, and the dashboard, which uses the API."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import headgate
from headgate.config import ServiceSettings
from headgate.errors import (
    BusyError,
    DuplicateJobError,
    EngineError,
    HeadgateError,
    InputError,
    LoginError,
    QuotaError,
    TooManyLoginsError,
    UnknownJobError,
)
from headgate.server.answers import Named, documented, json_answer, refusal
from headgate.server.api import PREFIX, Dashboard, questions
from headgate.server.changes import Changes, described, submitted
from headgate.server.gate import HEALTH, Gate, caller_of
from headgate.server.limits import KB, BodyLimit, protocol_of
from headgate.server.listening import Tls
from headgate.server.login_routes import logins
from headgate.server.metrics import add_metrics
from headgate.server.page import add_page
from headgate.server.permissions import Owned
from headgate.server.service import Service
from headgate.server.sessions import Sessions
from headgate.server.tenant_routes import change_by, tenant_routes
from headgate.server.visible import seen
from headgate.threads import WatchedThread

START_S, STOP_S = 20.0, 5.0
CODES: tuple[tuple[type[HeadgateError], int], ...] = (
    (UnknownJobError, 404),
    (DuplicateJobError, 409),
    (BusyError, 409),
    (TooManyLoginsError, 429),
    (LoginError, 401),
    (QuotaError, 403),
    (InputError, 400),
    (EngineError, 503),
    (HeadgateError, 500),
)
"""HTTP status codes by kind of error; the first matching kind applies."""


@dataclass(frozen=True, slots=True)
class RemovedAnswer:
    """A job that was removed."""

    name: str
    note: str
    """What the user still has to do; empty if nothing."""


def app_of(
    service: Service, token: str, settings: ServiceSettings | None = None, metrics_token: str | None = None
) -> FastAPI:
    """Return the API of a service, for `uvicorn.run(app_of(service, token))`; `metrics_token` gives access to the metrics only."""
    settings = settings or ServiceSettings()
    app = FastAPI(
        title="Headgate",
        version=headgate.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{PREFIX}/openapi.json",
    )
    app.state.closing = threading.Event()
    app.state.sessions = Sessions(settings, token, tenants=service.tenants)
    changes = service.changes
    _add_questions(app, service)
    app.include_router(tenant_routes(service, changes, settings))
    add_metrics(app, service, settings)
    app.include_router(
        questions(Dashboard(service, changes, settings.what_if_s), app.state.closing, app.state.sessions)
    )
    app.include_router(logins(app.state.sessions, settings))
    app.include_router(_changes(service, changes), prefix=PREFIX, tags=["changes"])
    app.include_router(_changes(service, changes), include_in_schema=False)
    add_page(app)
    _add_refusals(app)
    app.add_middleware(BodyLimit, most_bytes=settings.api_body_kb * KB)
    app.add_middleware(Gate, sessions=app.state.sessions, owns=partial(_owns, service), metrics_token=metrics_token)
    return app


def _owns(service: Service, tenant: str, kind: Owned, name: str) -> bool:
    if kind is Owned.JOB:
        return service.jobs.owner(name) == tenant
    if kind is Owned.REMOVED:
        return any(one.name == name for one in service.jobs.removed(tenant))
    return name == tenant


def _add_questions(app: FastAPI, service: Service) -> None:
    @app.get("/status", include_in_schema=False)
    def status(request: Request) -> Response:
        return json_answer(seen(service, caller_of(request).tenant).status)

    @app.get(HEALTH, include_in_schema=False)
    def health() -> Response:
        found = service.health(detailed=False)
        return json_answer(found, 200 if found.healthy else 503)

    @app.get("/removed", include_in_schema=False)
    def removed(request: Request) -> Response:
        return json_answer(service.jobs.removed(caller_of(request).tenant))

    @app.get("/jobs/{name}/explain", include_in_schema=False)
    def explain(request: Request, name: str) -> Response:
        past = seen(service, caller_of(request).tenant).past
        return json_answer({"lines": service.story(name, past), "about": past.about()})


def _changes(service: Service, changes: Changes) -> APIRouter:
    """Return the routes that change jobs; each change is recorded in the audit log with its author."""
    router = APIRouter()

    def note(request: Request, job: str, what: str) -> None:
        changes.add(change_by(caller_of(request), service.now_s(), job, what))

    @router.post("/jobs", status_code=201, responses=documented(Named, 201), summary="Submit a job")
    def submit(request: Request, table: Annotated[Any, Body()]) -> Response:
        name = service.jobs.submit(table, caller_of(request).tenant)
        note(request, name, submitted(table))
        return json_answer(Named(name), 201)

    @router.patch(
        "/jobs/{name}", responses=documented(Named), summary="Change the intent, share or read limit of a job"
    )
    def change(request: Request, name: str, table: Annotated[Any, Body()]) -> Response:
        service.jobs.change(name, table, caller_of(request).tenant)
        note(request, name, described(table))
        return json_answer(Named(name))

    @router.post("/jobs/{name}/pause", responses=documented(Named), summary="Stop a job after its epoch")
    def pause(request: Request, name: str) -> Response:
        service.jobs.pause(name, caller_of(request).tenant)
        note(request, name, "pause")
        return json_answer(Named(name))

    @router.post(
        "/jobs/{name}/resume",
        responses=documented(Named),
        summary="Continue a paused job, or start a failed one again",
    )
    def resume(request: Request, name: str) -> Response:
        service.jobs.resume(name, caller_of(request).tenant)
        note(request, name, "resume")
        return json_answer(Named(name))

    @router.delete("/jobs/{name}", responses=documented(RemovedAnswer), summary="Remove a job")
    def remove(request: Request, name: str) -> Response:
        left_to_do = service.jobs.remove(name, caller_of(request).tenant)
        note(request, name, "remove")
        return json_answer(RemovedAnswer(name, left_to_do))

    @router.post("/removed/{name}/restore", responses=documented(Named), summary="Continue a removed job")
    def restore(request: Request, name: str, at: str | None = None) -> Response:
        service.jobs.restore(name, at, caller_of(request).tenant)
        note(request, name, "restore" if at is None else f"restore {at}")
        return json_answer(Named(name))

    return router


# -- refusals ----------------------------------------------------------------------------------------------------------


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(HeadgateError)
    def refused(request: Request, error: HeadgateError) -> Response:
        return refusal(str(error), next(code for kind, code in CODES if isinstance(error, kind)))

    @app.exception_handler(HTTPException)
    def not_here(request: Request, error: HTTPException) -> Response:
        return refusal(f"{request.method} {request.url.path}: {error.detail}", error.status_code)

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        return refusal(f"this should not have happened: {type(error).__name__}: {error}", 500)

    @app.exception_handler(RequestValidationError)
    def not_understood(request: Request, error: RequestValidationError) -> Response:
        return refusal("the body of the request is not JSON", 422)


# -- the server --------------------------------------------------------------------------------------------------------


def listen(port: int = 0, host: str = "127.0.0.1") -> socket.socket:
    """Open a listening socket; port 0 takes any free port."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"port {port} of {host} cannot be used: {reason}; leave out --port for any free one") from None
    # Connections inherit the option; without the option, the body of an answer waits 40 ms for the client to acknowledge the head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


@contextmanager
def served(
    app: FastAPI,
    listening: socket.socket,
    settings: ServiceSettings | None = None,
    tell: Callable[[str], None] = lambda text: None,
    tls: Tls | None = None,
) -> Iterator[str]:
    """Serve requests on a separate thread while the block runs; yields the address."""
    api = Api(app, listening, settings or ServiceSettings(), tls)
    thread = WatchedThread("headgate-api", api.run, tell)
    thread.start()
    try:
        api.await_start()
        host, port = listening.getsockname()[:2]
        yield f"{'http' if tls is None else 'https'}://{_in_url(host)}:{port}"
    finally:
        thread.close(2 * STOP_S, api.stop)


class Api:
    """The API server on one socket; after a server has ended, `run` starts a new one."""

    def __init__(
        self, app: FastAPI, listening: socket.socket, settings: ServiceSettings, tls: Tls | None = None
    ) -> None:
        self._listening = listening
        self._closing: threading.Event = app.state.closing
        self._config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=int(STOP_S), http=protocol_of(settings), proxy_headers=False,
            ssl_certfile=tls.certificate if tls is not None else None, ssl_keyfile=tls.key if tls is not None else None,
        )  # fmt: skip
        self.server = uvicorn.Server(self._config)

    def run(self) -> None:
        """Serve until stopped, on a copy of the socket, because uvicorn closes the sockets that it serves."""
        self.server = uvicorn.Server(self._config)
        self._closing.clear()
        with closing(self._listening.dup()) as copy:
            self.server.run([copy])

    def stop(self) -> None:
        """End the running server; event streams end by themselves."""
        self._closing.set()
        self.server.should_exit = True

    def await_start(self) -> None:
        """Wait until the server has started."""
        deadline_s = time.monotonic() + START_S
        while not self.server.started:
            if time.monotonic() > deadline_s:
                raise EngineError("the API did not start")
            time.sleep(0.01)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
