"""Tenants of a service: tokens, roles and quotas; in `tenants.json` of the home.

A token has 256 random bits and cannot be guessed, so its SHA-256 is stored: a slow hash would add no security.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from headgate import files
from headgate.core.quantities import check_fields, choice, did_you_mean, number, shown
from headgate.errors import EngineError, InputError
from headgate.topology import name_trouble

FILE = "tenants.json"
TOKEN_BYTES, ID_BYTES = 32, 4
PREFIX = "hgt_"
"""Prefix of every token, by which scanners for secrets find tokens."""
DAY_S = 86400.0
MOST_DAYS = 3650


class Role(Enum):
    """What a token may do with the jobs of its tenant."""

    VIEWER = "viewer"
    EDITOR = "editor"
    OPERATOR = "operator"

    def includes(self, other: Role) -> bool:
        """Whether this role may do what the other one may."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that the jobs of a tenant may use together; a limit of None means no limit."""

    jobs: int | None = None
    lanes: int | None = None
    share: int | None = None
    memory_mb: float | None = None
    """Memory that its lanes may reserve, at `lane_memory_mb` each."""
    state_mb: float | None = None
    worth: float | None = None
    """Budget of worth that the tenant divides among its jobs."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """An owner of jobs, with quotas and a weight."""

    name: str
    quota: Quota = field(default_factory=Quota)
    weight: float = 1.0
    """How much its satisfaction counts under the objective `fair`."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret."""

    id: str
    tenant: str
    role: Role
    hash: str
    created_s: float
    expires_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class _TenantsFile:
    tenants: dict[str, Tenant] = field(default_factory=dict)
    tokens: dict[str, TokenRecord] = field(default_factory=dict)


LIMITS = tuple(one.name for one in dataclasses.fields(Quota))
WHOLE = ("jobs", "lanes", "share")


def tenant_from(table: Any) -> Tenant:
    """A tenant from `[[tenant]]` of a cluster file, or from a request.

    >>> tenant_from({"name": "shop", "jobs": 3, "worth": 100}).quota.worth
    100.0
    """
    if not isinstance(table, dict):
        raise InputError(f"the tenant is {shown(table)}; it must be a table")
    check_fields(table, ("name", "weight", *LIMITS))
    if trouble := name_trouble(table.get("name")):
        raise InputError(f"name of the tenant is {shown(table.get('name'))}; {trouble}")
    limits = {name: _limit(table[name], name) for name in LIMITS if table.get(name) is not None}
    weight = number(table.get("weight", 1.0), "weight", low=0.01, high=100)
    return Tenant(table["name"], msgspec.convert(limits, Quota), weight)


def tenant_added(tenant: Tenant) -> str:
    """Describe a new tenant, or new quotas of a tenant, in a few words for the audit log.

    >>> tenant_added(Tenant("shop", Quota(jobs=3, worth=100.0), 2.0))
    'tenant add shop: jobs 3, worth 100, weight 2'
    """
    limits = {name: getattr(tenant.quota, name) for name in LIMITS}
    weight = {} if tenant.weight == 1.0 else {"weight": tenant.weight}
    given = ", ".join(f"{name} {value:g}" for name, value in {**limits, **weight}.items() if value is not None)
    return f"tenant add {tenant.name}{given and f': {given}'}"


def _limit(value: Any, name: str) -> float | int:
    found = number(value, name, low=0)
    if name in WHOLE and found != int(found):
        raise InputError(f"{name} is {shown(value)}; it must be a whole number")
    return int(found) if name in WHOLE else found


class Tenants:
    """The tenants and tokens of a home; each change is on disk before it returns. Owner: its lock; readers keep what they took."""

    def __init__(self, home: Path, now_s: Callable[[], float]) -> None:
        self._path, self._now_s = home / FILE, now_s
        self._lock = threading.Lock()
        self._file = self._read()

    def all(self) -> Mapping[str, Tenant]:
        """Every tenant by its name."""
        return self._file.tenants

    def get(self, name: str) -> Tenant:
        """Return the tenant of this name; a tenant that was never added has no limits."""
        return self._file.tenants.get(name, Tenant(name))

    def put(self, *tenants: Tenant) -> None:
        """Add tenants, or give them other quotas."""
        with self._lock:
            found = self._file
            self._write(dataclasses.replace(found, tenants={**found.tenants, **{one.name: one for one in tenants}}))

    def remove(self, name: str) -> None:
        """Forget a tenant; its tokens are void from now on."""
        with self._lock:
            self._check_known(name)
            found = self._file
            tenants = {other: one for other, one in found.tenants.items() if other != name}
            tokens = {id_: one for id_, one in found.tokens.items() if one.tenant != name}
            self._write(_TenantsFile(tenants, tokens))

    # -- tokens

    def new_token(self, tenant: str, role: str, days: float, note: str = "") -> tuple[str, TokenRecord]:
        """Make a token; returns the secret, which is shown only once, and the stored record."""
        choice(role, "role", [one.value for one in Role])
        lasts_s = number(days, "days", low=0.001, high=MOST_DAYS) * DAY_S
        secret, now_s = PREFIX + secrets.token_urlsafe(TOKEN_BYTES), self._now_s()
        record = TokenRecord(
            secrets.token_hex(ID_BYTES), tenant, Role(role), _hash(secret), now_s, now_s + lasts_s, str(note)[:200]
        )
        with self._lock:
            self._check_known(tenant)
            found = self._file
            valid = {id_: one for id_, one in found.tokens.items() if one.expires_s > now_s}
            self._write(dataclasses.replace(found, tokens={**valid, record.id: record}))
        return secret, record

    def tokens(self, tenant: str) -> list[TokenRecord]:
        """The tokens of a tenant that are valid."""
        self._check_known(tenant)
        return [one for one in self._file.tokens.values() if one.tenant == tenant and self.valid(one.id)]

    def revoke(self, tenant: str, id_: str) -> None:
        """Make a token of a tenant void."""
        with self._lock:
            found = self._file
            if id_ not in found.tokens or found.tokens[id_].tenant != tenant:
                raise InputError(f"tenant {shown(tenant)} has no token {shown(id_)}; `headgate tenant list` shows them")
            tokens = {other: one for other, one in found.tokens.items() if other != id_}
            self._write(dataclasses.replace(found, tokens=tokens))

    def identify(self, secret: str) -> TokenRecord | None:
        """Return the record of a token; None if the token is unknown, expired or revoked."""
        if not secret.startswith(PREFIX):
            return None
        given = _hash(secret)
        found = next((one for one in self._file.tokens.values() if secrets.compare_digest(one.hash, given)), None)
        return found if found is not None and self.valid(found.id) else None

    def valid(self, id_: str) -> bool:
        """Whether a token is neither revoked nor expired."""
        found = self._file.tokens.get(id_)
        return found is not None and self._now_s() < found.expires_s

    def _check_known(self, name: str) -> None:
        if name not in self._file.tenants:
            hint = did_you_mean(name, self._file.tenants)
            raise InputError(f"there is no tenant {shown(name)}; `headgate tenant add NAME` adds one.{hint}")

    def _read(self) -> _TenantsFile:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_TenantsFile)
        except FileNotFoundError:
            return _TenantsFile()
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Without its quotas and tokens, a service would let tenants do what they may not.
            raise InputError(f"{self._path}: is not a list of tenants ({error}); correct it, or remove it") from None

    def _write(self, content: _TenantsFile) -> None:
        try:
            files.replace(self._path, msgspec.json.format(msgspec.json.encode(content), indent=2))
        except OSError as error:
            raise EngineError(f"{self._path}: cannot be written: {error.strerror or error}") from None
        self._file = content


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def tenants_from(entries: Any) -> tuple[Tenant, ...]:
    """The tenants of a cluster file; their names must differ."""
    if not isinstance(entries, list):
        raise InputError(f"tenant is {shown(entries)}; begin each one with [[tenant]]")
    found = tuple(map(tenant_from, entries))
    names: Iterable[str] = [one.name for one in found]
    for name in names:
        if list(names).count(name) > 1:
            raise InputError(f"two tenants are named {shown(name)}; names must differ")
    return found
