"""Who may use the dashboard: login codes that work once, the sessions of browsers, and a limit on failed logins."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headgate.config import ServiceSettings
from headgate.errors import LoginError, TooManyLoginsError

COOKIE = "headgate_session"
CSRF_HEADER, NAME_HEADER = "x-csrf-token", "x-headgate-user"
SAFE_METHODS = frozenset({"GET", "HEAD"})
MINUTE_S, HOUR_S = 60.0, 3600.0
SECRET_BYTES = 32
MOST_OPEN = 256
"""Codes, and sessions, that are open at a time; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is logged in."""

    who: str
    csrf: str
    """What a request that changes something must repeat in a header: another site cannot read it."""
    expires_s: float


class Sessions:
    """Codes and sessions of one run of a service; they end with it. Owner: its lock."""

    def __init__(self, settings: ServiceSettings, token: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._token, self._now_s = settings, token, now_s
        self._lock = threading.Lock()
        self._codes: dict[bytes, tuple[str, float]] = {}
        """By hash: for whom, and until when."""
        self._sessions: dict[bytes, Session] = {}
        self._failures: deque[float] = deque()

    def new_code(self, who: str) -> str:
        """A code that logs in one browser, once."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        with self._lock:
            self._codes[_hash(code)] = (who, self._now_s() + self._settings.login_link_s)
            _trim(self._codes)
        return code

    def log_in(self, secret: str, name: str = "") -> tuple[str, Session]:
        """A session for whoever has an unused code, or the token; returns the value of its cookie as well."""
        with self._lock:
            self._check_failures()
            who = self._identified(secret, name)
            if who is None:
                self._failures.append(self._now_s())
                raise LoginError(
                    "the login code is wrong, was used before, or is too old; `headgate ui` makes a new one"
                )
            cookie = secrets.token_urlsafe(SECRET_BYTES)
            lasts_s = self._settings.session_h * HOUR_S
            session = Session(who, secrets.token_urlsafe(SECRET_BYTES), self._now_s() + lasts_s)
            self._sessions[_hash(cookie)] = session
            _trim(self._sessions)
            return cookie, session

    def _check_failures(self) -> None:
        while self._failures and self._failures[0] < self._now_s() - MINUTE_S:
            self._failures.popleft()
        if len(self._failures) >= self._settings.login_failures:
            wait_s = self._failures[0] + MINUTE_S - self._now_s()
            raise TooManyLoginsError(f"too many logins failed; try again in {max(1, round(wait_s))} s")

    def _identified(self, secret: str, name: str) -> str | None:
        """Whose secret it is; a code is used up by this."""
        if secrets.compare_digest(secret.encode(), self._token.encode()):
            return name or "token"
        who, until_s = self._codes.pop(_hash(secret), (None, 0.0))
        return who if self._now_s() < until_s else None

    def find(self, cookie: str) -> Session | None:
        """The session of a browser; None if it has none, or it is over."""
        with self._lock:
            session = self._sessions.get(_hash(cookie))
            return session if session is not None and self._now_s() < session.expires_s else None

    def log_out(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(_hash(cookie), None)


def _hash(secret: str) -> bytes:
    """Secrets are looked up by their hash: the time that takes says nothing about them."""
    return hashlib.sha256(secret.encode()).digest()


def _trim(table: dict[bytes, object] | dict[bytes, tuple[str, float]] | dict[bytes, Session]) -> None:
    while len(table) > MOST_OPEN:
        table.pop(next(iter(table)))
