"""Talks to the service that runs in a home directory; needs neither Spark nor the server's parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from headgate.errors import EngineError, InputError, NoServiceError
from headgate.explain import Line
from headgate.server.home import Home, user_name
from headgate.server.removed import RemovedJob
from headgate.server.status import Status

if TYPE_CHECKING:
    import httpx

    from headgate.jobfile import JobRequest

TIMEOUT_S = 120.0
"""A job that is paused or removed may finish a long epoch first."""


@dataclass(frozen=True, slots=True)
class JobStory:
    """What happened to a job, and how its times are shown."""

    lines: list[Line]
    about: dict[str, str]


@dataclass(frozen=True, slots=True)
class Client:
    """One method per thing that can be asked: `Client(Home(Path(".headgate"))).status()`."""

    home: Home

    def status(self) -> Status:
        """Everything at this moment."""
        return msgspec.json.decode(self.raw_status(), type=Status)

    def raw_status(self) -> bytes:
        """The same as JSON."""
        return self._asked("GET", "/status")

    def metrics(self) -> str:
        """Everything that Prometheus reads, in its text format."""
        return self._asked("GET", "/metrics").decode()

    def story(self, job: str) -> JobStory:
        """What happened to a job."""
        return msgspec.json.decode(self._asked("GET", _path(job, "explain")), type=JobStory)

    def submit(self, request: JobRequest) -> str:
        """Start one more job; returns its name."""
        return str(self._answer("POST", "/jobs", msgspec.to_builtins(request))["name"])

    def change(self, job: str, changes: Mapping[str, Any]) -> None:
        """Another intent, share or read limit; what is not named stays."""
        self._asked("PATCH", _path(job), dict(changes))

    def pause(self, job: str) -> None:
        self._asked("POST", _path(job, "pause"))

    def resume(self, job: str) -> None:
        self._asked("POST", _path(job, "resume"))

    def remove(self, job: str) -> str:
        """Returns what else there is to do, if anything."""
        return str(self._answer("DELETE", _path(job))["note"])

    def removed(self) -> list[RemovedJob]:
        """Removed jobs that can be restored, oldest first."""
        return msgspec.json.decode(self._asked("GET", "/removed"), type=list[RemovedJob])

    def restore(self, job: str, at: str | None = None) -> None:
        """Let a removed job go on; without a time, the one that was removed last."""
        when = "" if at is None else f"?at={quote(at, safe='')}"
        self._asked("POST", f"/removed/{quote(job, safe='')}/restore{when}")

    def login_link(self) -> str:
        """An address that logs in one browser, once."""
        path = str(self._answer("POST", "/api/v1/login-links")["path"])
        address = self.home.read_address()
        if address is None:
            raise self._nobody()
        return address.url + path

    def _answer(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return msgspec.json.decode(self._asked(method, path, body), type=dict[str, Any])

    def _asked(self, method: str, path: str, body: Any = None) -> bytes:
        import httpx

        address, token = self.home.read_address(), self.home.read_token()
        if address is None:
            raise self._nobody()
        if token is None:
            raise InputError(f'"{self.home.token}" holds no token; restart the service, which writes a new one')
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        headers["X-Headgate-User"] = quote(user_name(), safe=" ")
        try:
            # Not by way of a proxy that the environment names: it is this very machine.
            with httpx.Client(base_url=address.url, timeout=TIMEOUT_S, trust_env=False) as connection:
                return _checked(connection.request(method, path, content=content, headers=headers))
        except httpx.TimeoutException:
            raise EngineError(f"Headgate has not answered for {TIMEOUT_S:g} s; it may still be doing it") from None
        except httpx.HTTPError:
            raise self._nobody() from None

    def _nobody(self) -> NoServiceError:
        return NoServiceError(f'no Headgate runs in "{self.home.path}"; start one with `headgate run FILE`')


def _path(job: str, *more: str) -> str:
    return "/".join(("/jobs", quote(job, safe=""), *more))


def _checked(response: httpx.Response) -> bytes:
    if response.is_success:
        return response.content
    try:
        sentence = str(msgspec.json.decode(response.content, type=dict[str, Any])["error"])
    except (msgspec.MsgspecError, KeyError):
        sentence = f"what answers at {response.url.netloc.decode()} is not Headgate (HTTP {response.status_code})"
    raise (InputError if response.is_client_error else EngineError)(sentence)
