"""Authentication of requests: by a token, or by the cookie of a browser that is logged in; a tenant reaches only its own jobs.

A foreign web page in the user's browser can reach loopback, but has neither token nor cookie: the cookie is `SameSite=Strict`, and a
request that changes something must repeat a secret of its session. Without TLS, a request must name a loopback host, which refuses
pages that point their own host name at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.errors import TooManyLoginsError
from headgate.server.answers import refusal
from headgate.server.listening import LOOPBACK
from headgate.server.metrics import PATH as METRICS
from headgate.server.permissions import Owns, refused
from headgate.server.sessions import COOKIE, CSRF_HEADER, NAME_HEADER, SAFE_METHODS, Identity, Session, Sessions

HEALTH, PAGE, ASSETS, SESSION = "/health", "/", "/web/", "/api/v1/session"
CALLER = "headgate.caller"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page may load files of the service only, and nothing inline."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The author of a request, its interface, and its address."""

    identity: Identity
    via: str
    address: str

    @property
    def who(self) -> str:
        """The caller in words."""
        return self.identity.who

    @property
    def tenant(self) -> str | None:
        """The tenant that the caller is restricted to; None for the operator of the service."""
        return self.identity.tenant


def caller_of(request: Request) -> Caller:
    """Return the caller that the gate identified for this request."""
    found: Caller = request.scope[CALLER]
    return found


def cookie_name(port: int) -> str:
    """Return the name of the session cookie, with the port, because browsers share cookies between all ports of a host."""
    return f"{COOKIE}_{port}"


def cookie_of(scope: Scope) -> str:
    """Return the session cookie of a request; empty without a cookie."""
    try:
        jar = SimpleCookie(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return ""
    found = jar.get(cookie_name(port_of(scope)))
    return found.value if found is not None else ""


def port_of(scope: Scope) -> int:
    """Return the port at which the service received a request."""
    return int((scope.get("server") or ("", 0))[1] or 0)


@dataclass(frozen=True, slots=True)
class Gate:
    """Middleware that passes allowed requests to a loopback host; health and the empty page need no login.

    Under TLS a request may name any host: a page that points its own host name at the service has no certificate for the name.
    """

    app: ASGIApp
    sessions: Sessions
    owns: Owns
    metrics_token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = self._refused(scope, Headers(scope=scope))
        await (answer or self.app)(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["scheme"] != "https" and _host(headers.get("host", "")) not in LOOPBACK:
            return refusal("requests must be made to 127.0.0.1 or localhost", 403)
        if _is_open(scope["method"], scope["path"]):
            return None
        if _is_foreign(headers):
            return refusal("requests from other sites are refused", 403)
        if (scope["method"], scope["path"]) == ("POST", SESSION):
            return None
        if "authorization" in headers:
            return self._refused_token(scope, headers)
        session = self.sessions.find(cookie_of(scope))
        if session is None:
            return refusal(
                "the request needs the header Authorization: Bearer TOKEN, with the token of the home directory; a browser"
                " logs in with the link that `headgate ui` opens",
                401,
            )
        return _refused_session(headers, scope["method"], session) or self._refused_caller(
            scope, session.identity, "dashboard"
        )

    def _refused_token(self, scope: Scope, headers: Headers) -> Response | None:
        scheme, _, given = headers["authorization"].partition(" ")
        if scheme.lower() == "bearer" and self._opens_metrics(given, scope["path"]):
            return self._refused_caller(scope, Identity("metrics token"), "command line")
        found = self.sessions.identify(given, headers.get(NAME_HEADER, "")) if scheme.lower() == "bearer" else None
        if found is None:
            return self._wrong_token(address_of(scope))
        return self._refused_caller(scope, found, "command line")

    def _wrong_token(self, address: str) -> Response:
        """Refuse a wrong token and count the failure; failed logins of an address never lock out valid tokens of the address."""
        try:
            self.sessions.failed.check(address)
        except TooManyLoginsError as error:
            return refusal(str(error), 429)
        self.sessions.failed.add(address)
        return refusal(
            "the request needs the header Authorization: Bearer TOKEN, with the token of the home directory, or a token"
            " of a tenant that is neither expired nor revoked",
            401,
        )

    def _opens_metrics(self, given: str, path: str) -> bool:
        token = self.metrics_token
        return path == METRICS and token is not None and secrets.compare_digest(given.encode(), token.encode())

    def _refused_caller(self, scope: Scope, identity: Identity, via: str) -> Response | None:
        scope[CALLER] = Caller(identity, via, address_of(scope))
        if identity.tenant is None:
            return None
        found = refused(identity.tenant, identity.role, scope["method"], scope["path"], self.owns)
        return refusal(found.sentence, found.code) if found is not None else None


def _refused_session(headers: Headers, method: str, session: Session) -> Response | None:
    given = headers.get(CSRF_HEADER, "")
    if method in SAFE_METHODS or secrets.compare_digest(given.encode(), session.csrf.encode()):
        return None
    return refusal("the request needs the header X-CSRF-Token of its session; reload the page", 403)


def address_of(scope: Scope) -> str:
    """Return the address that a request came from."""
    return str((scope.get("client") or ("", 0))[0])


def _is_open(method: str, path: str) -> bool:
    """Whether a request needs no login: health checks of supervisors have no token, and the page holds no data."""
    return method == "GET" and (path in (HEALTH, PAGE, SESSION) or path.startswith(ASSETS))


def _is_foreign(headers: Headers) -> bool:
    """Whether a request comes from a page of another site; programs send no header `Origin`."""
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            found = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                found.setdefault(name, value)
        await send(message)

    return send_with_headers


def _host(header: str) -> str:
    """Return the host name of a header `Host` without its port: `[::1]:80` gives `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return name.strip("[]").lower()
