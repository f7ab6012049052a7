"""Talks to the service that runs in a home directory; needs neither Spark nor the server's parts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from headgate.core.model import EpochTiming
from headgate.errors import EngineError, InputError, NoServiceError
from headgate.explain import Line
from headgate.server.home import Home, user_name
from headgate.server.removed import RemovedJob
from headgate.server.status import Status

if TYPE_CHECKING:
    import httpx

    from headgate.jobfile import JobRequest

SERVER, TOKEN, TOKEN_FILE = "HEADGATE_SERVER", "HEADGATE_TOKEN", "HEADGATE_TOKEN_FILE"
CERTIFICATE = "HEADGATE_CERTIFICATE"
"""Environment variables that name the service, the token, and the certificate to trust."""
TIMEOUT_S = 120.0
"""Seconds to wait for an answer: a job that is paused or removed may finish a long epoch first."""


@dataclass(frozen=True, slots=True)
class JobStory:
    """The story of a job, and facts about the journal, such as the clock of its times."""

    lines: list[Line]
    about: dict[str, str]


@dataclass(frozen=True, slots=True)
class JobEpochs:
    """The last finished epochs of a job, oldest first."""

    epochs: tuple[EpochTiming, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """How a client reaches its service; without `server`, fields that are None come from the home directory."""

    server: str | None = None
    token: str | None = None
    certificate: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str], server: str | None = None, token_file: str | None = None) -> Access:
        """Return the access that the options of a command give, or else the environment variables."""
        file = token_file or environment.get(TOKEN_FILE)
        token = _token_in(file) if file else environment.get(TOKEN)
        return cls(server or environment.get(SERVER) or None, token or None, environment.get(CERTIFICATE) or None)


def _token_in(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: no token can be read from it: {getattr(error, 'strerror', error)}") from None


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the API with one method per request: `Client(Home(Path(".headgate"))).status()`."""

    home: Home
    access: Access = field(default_factory=lambda: Access.of(os.environ))

    def status(self) -> Status:
        """Return the status of the service at this moment."""
        return msgspec.json.decode(self.raw_status(), type=Status)

    def raw_status(self) -> bytes:
        """Return the status of the service as JSON."""
        return self._request("GET", "/status")

    def metrics(self) -> str:
        """Return the metrics of the service in the text format of Prometheus."""
        return self._request("GET", "/metrics").decode()

    def story(self, job: str) -> JobStory:
        """What happened to a job."""
        return msgspec.json.decode(self._request("GET", _path(job, "explain")), type=JobStory)

    def detail(self, job: str) -> bytes:
        """Return a job with its operators, its lanes and their hosts, as JSON."""
        return self._request("GET", f"/api/v1{_path(job)}")

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        """The last finished epochs of a job, oldest first."""
        answer = self._request("GET", f"/api/v1{_path(job, 'epochs')}")
        return msgspec.json.decode(answer, type=JobEpochs).epochs

    def submit(self, request: JobRequest) -> str:
        """Start one more job; returns its name."""
        return str(self._answer("POST", "/jobs", msgspec.to_builtins(request))["name"])

    def change(self, job: str, changes: Mapping[str, Any]) -> None:
        """Change the intent, share or read limit of a job; fields that are not named stay."""
        self._request("PATCH", _path(job), dict(changes))

    def pause(self, job: str) -> None:
        self._request("POST", _path(job, "pause"))

    def resume(self, job: str) -> None:
        self._request("POST", _path(job, "resume"))

    def remove(self, job: str) -> str:
        """Remove a job; returns what the user still has to do, or an empty text."""
        return str(self._answer("DELETE", _path(job))["note"])

    def removed(self) -> list[RemovedJob]:
        """Removed jobs that can be restored, oldest first."""
        return msgspec.json.decode(self._request("GET", "/removed"), type=list[RemovedJob])

    def restore(self, job: str, at: str | None = None) -> None:
        """Restore a removed job; without `at`, the last one removed under this name."""
        when = "" if at is None else f"?at={quote(at, safe='')}"
        self._request("POST", f"/removed/{quote(job, safe='')}/restore{when}")

    def login_link(self) -> str:
        """Make an address that logs in one browser, once."""
        path = str(self._answer("POST", "/api/v1/login-links")["path"])
        return self._address()[0] + path

    def tenants(self) -> bytes:
        """Tenants with their usage and quotas, as JSON."""
        return self._request("GET", "/api/v1/tenants")

    def add_tenant(self, table: Mapping[str, Any]) -> None:
        """Add a tenant, or give it other quotas."""
        self._request("POST", "/api/v1/tenants", dict(table))

    def remove_tenant(self, name: str) -> None:
        """Remove a tenant and its tokens."""
        self._request("DELETE", _tenant(name))

    def tokens(self, tenant: str) -> bytes:
        """The valid tokens of a tenant, as JSON."""
        return self._request("GET", _tenant(tenant, "tokens"))

    def new_token(self, tenant: str, role: str, days: float | None, note: str) -> dict[str, Any]:
        """Make a token for a tenant."""
        return self._answer("POST", _tenant(tenant, "tokens"), {"role": role, "days": days, "note": note})

    def revoke_token(self, tenant: str, id_: str) -> None:
        """Make a token void."""
        self._request("DELETE", _tenant(tenant, "tokens", id_))

    def audit(self) -> bytes:
        """Return the audit log as JSON."""
        return self._request("GET", "/api/v1/audit")

    def _address(self) -> tuple[str, str | None]:
        """Return the address of the service, and the certificate to trust; None means the certificates of the system."""
        if self.access.server is not None:
            return self.access.server.rstrip("/"), self.access.certificate
        address = self.home.read_address()
        if address is None:
            raise self._nobody()
        return address.url, self.access.certificate or address.certificate

    def _token(self) -> str:
        token = self.access.token or (self.home.read_token() if self.access.server is None else None)
        if token is None and self.access.server is not None:
            raise InputError(f"a token is missing; set {TOKEN}, or give --token-file FILE")
        if token is None:
            raise InputError(f'"{self.home.token}" holds no token; restart the service, which writes a new one')
        if not token.isascii() or not token.isprintable():
            raise InputError("the token holds signs that no token has; copy it again")
        return token

    def _answer(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return msgspec.json.decode(self._request(method, path, body), type=dict[str, Any])

    def _request(self, method: str, path: str, body: Any = None) -> bytes:
        import httpx

        url, certificate = self._address()
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        headers["X-Headgate-User"] = quote(user_name(), safe=" ")
        try:
            # Ignore a proxy of the environment: the service is on this machine, or the token is not for a proxy.
            with httpx.Client(
                base_url=url, timeout=TIMEOUT_S, trust_env=False, verify=_trust(certificate)
            ) as connection:
                return _checked(connection.request(method, path, content=content, headers=headers))
        except httpx.TimeoutException:
            raise EngineError(f"Headgate has not answered for {TIMEOUT_S:g} s; it may still be doing it") from None
        except httpx.ConnectError as error:
            if "CERTIFICATE" in str(error):
                raise InputError(
                    f"the certificate of {url} is not trusted; {CERTIFICATE} names the file with the one to trust"
                ) from None
            raise self._nobody() from None
        except httpx.HTTPError:
            raise self._nobody() from None

    def _nobody(self) -> NoServiceError:
        if self.access.server is not None:
            return NoServiceError(f"no Headgate answers at {self.access.server}")
        return NoServiceError(f'no Headgate runs in "{self.home.path}"; start one with `headgate run FILE`')


def _trust(certificate: str | None) -> ssl.SSLContext | bool:
    return True if certificate is None else ssl.create_default_context(cafile=certificate)


def _tenant(*parts: str) -> str:
    return "/".join(("/api/v1/tenants", *(quote(part, safe="") for part in parts)))


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
