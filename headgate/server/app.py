"""The HTTP API of a service: JSON in and out, on loopback, for whoever can show the token.

A web page in the user's browser can reach loopback too. The token keeps it out; and a request must name a loopback host,
so that a page whose name was pointed at 127.0.0.1 is refused as well.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import uvicorn
from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.config import ServiceSettings
from headgate.errors import DuplicateJobError, EngineError, HeadgateError, InputError, UnknownJobError
from headgate.server.limits import KB, BodyLimit, protocol_of
from headgate.server.metrics import PATH as METRICS
from headgate.server.metrics import add_metrics
from headgate.server.service import Service
from headgate.threads import WatchedThread

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEALTH = "/health"
START_S, STOP_S = 20.0, 5.0
CODES: tuple[tuple[type[HeadgateError], int], ...] = (
    (UnknownJobError, 404),
    (DuplicateJobError, 409),
    (InputError, 400),
    (EngineError, 503),
    (HeadgateError, 500),
)
"""The first that fits."""


def app_of(
    service: Service, token: str, settings: ServiceSettings | None = None, metrics_token: str | None = None
) -> FastAPI:
    """The API of a service: `uvicorn.run(app_of(service, token))`. The token of the metrics opens nothing else."""
    settings = settings or ServiceSettings()
    app = FastAPI(title="Headgate", docs_url=None, redoc_url=None, openapi_url=None)
    _add_questions(app, service)
    _add_changes(app, service)
    add_metrics(app, service, settings)
    _add_refusals(app)
    app.add_middleware(BodyLimit, most_bytes=settings.api_body_kb * KB)
    app.add_middleware(Gate, token=token, metrics_token=metrics_token)
    return app


def _add_questions(app: FastAPI, service: Service) -> None:
    @app.get("/status")
    def status() -> Response:
        return _json(service.status())

    @app.get(HEALTH)
    def health() -> Response:
        found = service.health()
        return _json(found, 200 if found.healthy else 503)

    @app.get("/removed")
    def removed() -> Response:
        return _json(service.removed())

    @app.get("/jobs/{name}/explain")
    def explain(name: str) -> Response:
        return _json({"lines": service.story(name), "about": service.journal.about()})


def _add_changes(app: FastAPI, service: Service) -> None:
    @app.post("/jobs")
    def submit(table: Annotated[Any, Body()]) -> Response:
        return _json({"name": service.submit(table)}, 201)

    @app.patch("/jobs/{name}")
    def change(name: str, table: Annotated[Any, Body()]) -> Response:
        service.change(name, table)
        return _json({"name": name})

    @app.post("/jobs/{name}/pause")
    def pause(name: str) -> Response:
        service.pause(name)
        return _json({"name": name})

    @app.post("/jobs/{name}/resume")
    def resume(name: str) -> Response:
        service.resume(name)
        return _json({"name": name})

    @app.delete("/jobs/{name}")
    def remove(name: str) -> Response:
        return _json({"name": name, "note": service.remove(name)})

    @app.post("/removed/{name}/restore")
    def restore(name: str, at: str | None = None) -> Response:
        service.restore(name, at)
        return _json({"name": name})


def _json(value: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(value), code, media_type="application/json")


# -- refusals ----------------------------------------------------------------------------------------------------------


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(HeadgateError)
    def refused(request: Request, error: HeadgateError) -> Response:
        return _refusal(str(error), next(code for kind, code in CODES if isinstance(error, kind)))

    @app.exception_handler(HTTPException)
    def not_here(request: Request, error: HTTPException) -> Response:
        return _refusal(f"{request.method} {request.url.path}: {error.detail}", error.status_code)

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        return _refusal(f"this should not have happened: {type(error).__name__}: {error}", 500)

    @app.exception_handler(RequestValidationError)
    def not_understood(request: Request, error: RequestValidationError) -> Response:
        return _refusal("the body of the request is not JSON", 422)


def _refusal(sentence: str, code: int) -> Response:
    return _json({"error": " ".join(sentence.split())}, code)


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets through what names a loopback host and shows the token; health is told without one, for whatever restarts services."""

    app: ASGIApp
    token: str
    metrics_token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if _host(headers.get("host", "")) not in LOOPBACK:
            return _refusal("requests must be made to 127.0.0.1 or localhost", 403)
        if (scope["method"], scope["path"]) == ("GET", HEALTH):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._opens(given, scope["path"]):
            return _refusal(
                "the request needs the header Authorization: Bearer TOKEN, with the token of the home directory", 401
            )
        return None

    def _opens(self, given: str, path: str) -> bool:
        tokens = [self.token]
        if path == METRICS and self.metrics_token is not None:
            tokens.append(self.metrics_token)
        return any(secrets.compare_digest(given.encode(), token.encode()) for token in tokens)


def _host(header: str) -> str:
    """The name without the port: `[::1]:80` is `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return name.strip("[]").lower()


# -- the server --------------------------------------------------------------------------------------------------------


def listen(port: int = 0, host: str = "127.0.0.1") -> socket.socket:
    """A socket to serve on; port 0 is any free one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"port {port} of {host} cannot be used: {reason}; leave out --port for any free one") from None


@contextmanager
def served(
    app: ASGIApp,
    listening: socket.socket,
    settings: ServiceSettings | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[str]:
    """Answer on a thread of its own while the block runs; yields the address."""
    api = Api(app, listening, settings or ServiceSettings())
    thread = WatchedThread("headgate-api", api.run, tell)
    thread.start()
    try:
        api.await_start()
        host, port = listening.getsockname()[:2]
        yield f"http://{_in_url(host)}:{port}"
    finally:
        thread.close(2 * STOP_S, api.stop)


class Api:
    """One server after another on one socket: a server that ended can be followed by a new one."""

    def __init__(self, app: ASGIApp, listening: socket.socket, settings: ServiceSettings) -> None:
        self._listening = listening
        self._config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=int(STOP_S), http=protocol_of(settings),
        )  # fmt: skip
        self.server = uvicorn.Server(self._config)

    def run(self) -> None:
        """Serve until stopped; uvicorn closes the sockets that it was given, so it is given a copy."""
        self.server = uvicorn.Server(self._config)
        with closing(self._listening.dup()) as copy:
            self.server.run([copy])

    def stop(self) -> None:
        """End the server that runs."""
        self.server.should_exit = True

    def await_start(self) -> None:
        """Return once it answers."""
        deadline_s = time.monotonic() + START_S
        while not self.server.started:
            if time.monotonic() > deadline_s:
                raise EngineError("the API did not start")
            time.sleep(0.01)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
