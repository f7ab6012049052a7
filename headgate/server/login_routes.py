"""Sessions of browsers and links that log in, under `/api/v1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from headgate.config import ServiceSettings
from headgate.server.answers import documented, json_answer
from headgate.server.api import PREFIX
from headgate.server.gate import address_of, caller_of, cookie_name, cookie_of, port_of
from headgate.server.sessions import HOUR_S, Identity, Session, Sessions


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The logged-in user, empty without a session, and the secret that changing requests must repeat in `X-CSRF-Token`."""

    who: str
    csrf: str
    tenant: str | None = None
    """The tenant that the session is restricted to; null for the operator of the service."""
    role: str = ""


@dataclass(frozen=True, slots=True)
class LoginLink:
    """A path of the service that logs in one browser, once."""

    path: str


@dataclass(frozen=True, slots=True)
class LoggedOut:
    """The empty answer to a logout."""


def logins(sessions: Sessions, settings: ServiceSettings) -> APIRouter:
    """Return the routes of browser sessions and login links."""
    router = APIRouter(prefix=PREFIX, tags=["sessions"])

    @router.post("/session", responses=documented(SessionAnswer), summary="Log in with a login code or the token")
    def log_in(request: Request, secret: Annotated[str, Body(embed=True, max_length=200)]) -> Response:
        cookie, session = sessions.log_in(secret, address=address_of(request.scope))
        answer = json_answer(_answer(session))
        answer.set_cookie(
            cookie_name(port_of(request.scope)),
            cookie,
            max_age=int(settings.session_h * HOUR_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @router.get("/session", responses=documented(SessionAnswer), summary="Who is logged in")
    def session(request: Request) -> Response:
        found = sessions.find(cookie_of(request.scope))
        return json_answer(_answer(found) if found is not None else SessionAnswer("", ""))

    @router.delete("/session", responses=documented(LoggedOut), summary="Log out")
    def log_out(request: Request) -> Response:
        sessions.log_out(cookie_of(request.scope))
        answer = json_answer(LoggedOut())
        answer.delete_cookie(cookie_name(port_of(request.scope)), httponly=True, samesite="strict")
        return answer

    @router.post(
        "/login-links",
        status_code=201,
        responses=documented(LoginLink, 201),
        summary="A link that logs in one browser, once",
    )
    def login_link(request: Request) -> Response:
        return json_answer(LoginLink(login_path(sessions, caller_of(request).identity)), 201)

    return router


def _answer(session: Session) -> SessionAnswer:
    who = session.identity
    return SessionAnswer(who.who, session.csrf, who.tenant, who.role.value)


def login_path(sessions: Sessions, who: Identity) -> str:
    """Return a path with a login code after the #: browsers never send this part, so no log shows the code and no preview uses it up."""
    return f"/#login={sessions.new_code(who)}"
