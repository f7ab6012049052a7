"""Who may use the dashboard: login codes that work once, the sessions of browsers, and a limit on failed logins."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.config import ServiceSettings
from headgate.errors import LoginError, TooManyLoginsError
from headgate.server.tenants import Role, Tenants, TokenRecord

COOKIE = "headgate_session"
CSRF_HEADER, NAME_HEADER = "x-csrf-token", "x-headgate-user"
SAFE_METHODS = frozenset({"GET", "HEAD"})
MINUTE_S, HOUR_S = 60.0, 3600.0
SECRET_BYTES = 32
MOST_OPEN = 256
"""Most login codes, and most sessions, of one tenant, and most addresses with failed logins; the oldest is dropped first."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a token or a session."""

    who: str
    tenant: str | None = None
    """Tenant of the owner; None for the operator of the service, who may do everything."""
    role: Role = Role.OPERATOR
    token_id: str = ""


def identity_of(token: TokenRecord) -> Identity:
    """Return the identity of a tenant's token; a name that the client claims is ignored, because it proves nothing."""
    return Identity(f"{token.tenant}, token {token.id}", token.tenant, token.role, token.id)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is logged in."""

    identity: Identity
    csrf: str
    """Secret that a changing request must repeat in a header, because another site cannot read the secret."""
    expires_s: float


class FailedLogins:
    """Counts failed logins and wrong tokens by the address that they came from. Owner: its lock."""

    def __init__(self, most: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now_s = most, now_s
        self._lock = threading.Lock()
        self._failures: dict[str, deque[float]] = {}

    def add(self, address: str) -> None:
        """Count a failed login of this address."""
        with self._lock:
            self._failures.setdefault(address, deque(maxlen=self._most)).append(self._now_s())
            _drop_oldest(self._failures, list(self._failures))

    def check(self, address: str) -> None:
        """Refuse an address that failed too often within a minute."""
        with self._lock:
            failures = self._failures.get(address, deque())
            while failures and failures[0] < self._now_s() - MINUTE_S:
                failures.popleft()
            if len(failures) >= self._most:
                wait_s = failures[0] + MINUTE_S - self._now_s()
                raise TooManyLoginsError(f"too many logins failed; try again in {max(1, round(wait_s))} s")


class Sessions:
    """The login codes and the browser sessions of one run of a service. Owner: its lock."""

    def __init__(
        self,
        settings: ServiceSettings,
        token: str,
        now_s: Callable[[], float] = time.monotonic,
        tenants: Tenants | None = None,
    ) -> None:
        self._settings, self._token, self._now_s, self._tenants = settings, token, now_s, tenants
        self.failed = FailedLogins(settings.login_failures, now_s)
        self._lock = threading.Lock()
        self._codes: dict[bytes, tuple[Identity, float]] = {}
        """The identity and the time of expiry, by hash of the login code."""
        self._sessions: dict[bytes, Session] = {}

    def new_code(self, who: Identity) -> str:
        """Make a code that logs in one browser, once."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        with self._lock:
            self._codes[_hash(code)] = (who, self._now_s() + self._settings.login_link_s)
            _drop_oldest(self._codes, [key for key, (one, _) in self._codes.items() if one.tenant == who.tenant])
        return code

    def log_in(self, secret: str, name: str = "", address: str = "") -> tuple[str, Session]:
        """Open a session for an unused login code or a token; returns the value of its cookie, and the session."""
        with self._lock:
            who = self._identified(secret, name)
            if who is None:
                self.failed.check(address)
                self.failed.add(address)
                raise LoginError(
                    "the login code is wrong, was used before, or is too old; `headgate ui` makes a new one"
                )
            cookie = secrets.token_urlsafe(SECRET_BYTES)
            lasts_s = self._settings.session_h * HOUR_S
            session = Session(who, secrets.token_urlsafe(SECRET_BYTES), self._now_s() + lasts_s)
            self._sessions[_hash(cookie)] = session
            own = [key for key, one in self._sessions.items() if one.identity.tenant == who.tenant]
            _drop_oldest(self._sessions, own)
            return cookie, session

    def identify(self, token: str, name: str = "") -> Identity | None:
        """Return the identity of a token; None if the token is not valid."""
        if secrets.compare_digest(token.encode(), self._token.encode()):
            return Identity(name or "token")
        found = self._tenants.identify(token) if self._tenants is not None else None
        return identity_of(found) if found is not None else None

    def _identified(self, secret: str, name: str) -> Identity | None:
        """Return the identity of a token or a login code, which is used up; None if the secret is not valid."""
        found = self.identify(secret, name)
        if found is not None:
            return found
        who, until_s = self._codes.pop(_hash(secret), (None, 0.0))
        return who if self._now_s() < until_s else None

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if there is no such session, or if the session has ended."""
        with self._lock:
            session = self._sessions.get(_hash(cookie))
            return session if session is not None and self._is_valid(session) else None

    def _is_valid(self, session: Session) -> bool:
        return self._now_s() < session.expires_s and self.holds(session.identity)

    def holds(self, who: Identity) -> bool:
        """Whether the token of an identity is neither revoked nor expired; True for an identity without a tenant's token."""
        return not who.token_id or (self._tenants is not None and self._tenants.valid(who.token_id))

    def log_out(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(_hash(cookie), None)


def _hash(secret: str) -> bytes:
    """Hash a secret for a look-up, so that the duration of the look-up reveals nothing about the secret."""
    return hashlib.sha256(secret.encode()).digest()


def _drop_oldest(table: dict[Any, Any], keys: Sequence[Any]) -> None:
    """Delete all but the newest `MOST_OPEN` of these keys, which are in the order of the table."""
    for key in keys[:-MOST_OPEN]:
        del table[key]
