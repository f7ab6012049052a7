"""Who gets in: requests to loopback that show the token, or the cookie of a browser that is logged in.

A web page in the user's browser can reach loopback too. It has neither token nor cookie: the cookie is `SameSite=Strict`, and a request
that changes something must repeat a secret of its session. A request must also name a loopback host, so that a page whose name was
pointed at 127.0.0.1 is refused as well.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.server.answers import refusal
from headgate.server.metrics import PATH as METRICS
from headgate.server.sessions import COOKIE, CSRF_HEADER, NAME_HEADER, SAFE_METHODS, Session, Sessions

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEALTH, PAGE, ASSETS, SESSION = "/health", "/", "/web/", "/api/v1/session"
CALLER = "headgate.caller"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: what the service itself serves, and nothing inline."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, and by which way."""

    who: str
    via: str


def caller_of(request: Request) -> Caller:
    """Who makes this request; the gate has found out."""
    found: Caller = request.scope[CALLER]
    return found


def cookie_name(port: int) -> str:
    """Browsers share cookies between all ports of a host: each service has a cookie of its own."""
    return f"{COOKIE}_{port}"


def cookie_of(scope: Scope) -> str:
    """What a browser shows; empty if nothing."""
    try:
        jar = SimpleCookie(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return ""
    found = jar.get(cookie_name(port_of(scope)))
    return found.value if found is not None else ""


def port_of(scope: Scope) -> int:
    """The port that a request came in by."""
    return int((scope.get("server") or ("", 0))[1] or 0)


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets through what names a loopback host and is allowed in; health and the empty page need no login."""

    app: ASGIApp
    token: str
    sessions: Sessions
    metrics_token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = self._refused(scope, Headers(scope=scope))
        await (answer or self.app)(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        if _host(headers.get("host", "")) not in LOOPBACK:
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
        return _refused_session(scope, headers, session)

    def _refused_token(self, scope: Scope, headers: Headers) -> Response | None:
        scheme, _, given = headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or not self._opens(given, scope["path"]):
            return refusal(
                "the request needs the header Authorization: Bearer TOKEN, with the token of the home directory", 401
            )
        scope[CALLER] = Caller(headers.get(NAME_HEADER, "") or "token", "command line")
        return None

    def _opens(self, given: str, path: str) -> bool:
        tokens = [self.token]
        if path == METRICS and self.metrics_token is not None:
            tokens.append(self.metrics_token)
        return any(secrets.compare_digest(given.encode(), token.encode()) for token in tokens)


def _refused_session(scope: Scope, headers: Headers, session: Session) -> Response | None:
    if scope["method"] not in SAFE_METHODS:
        given = headers.get(CSRF_HEADER, "")
        if not secrets.compare_digest(given.encode(), session.csrf.encode()):
            return refusal("the request needs the header X-CSRF-Token of its session; reload the page", 403)
    scope[CALLER] = Caller(session.who, "dashboard")
    return None


def _is_open(method: str, path: str) -> bool:
    """Whether anybody may ask: for health, because whatever restarts services has no token; for the page, which holds no data."""
    return method == "GET" and (path in (HEALTH, PAGE, SESSION) or path.startswith(ASSETS))


def _is_foreign(headers: Headers) -> bool:
    """Whether the page of another site asks; programs send no origin."""
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            found = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                found.setdefault(name, value)
        await send(message)

    return sent


def _host(header: str) -> str:
    """The name without the port: `[::1]:80` is `::1`."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return name.strip("[]").lower()
