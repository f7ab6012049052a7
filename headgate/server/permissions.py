"""The requests that a token of a tenant may make: each path with the role that it needs. Tenants are refused all other paths.

The gate checks a path about a job, a removed job or a tenant against its owner, before the request gets any further. The answers to all
other paths hold only what belongs to the tenant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from headgate.server.tenants import Role


class Owned(Enum):
    """The kind of object that the first part in braces of a path names."""

    JOB = "job"
    REMOVED = "removed job"
    TENANT = "tenant"
    NOTHING = ""


@dataclass(frozen=True, slots=True)
class Permission:
    """A path that tenants may request, and the least role for the request."""

    method: str
    path: str
    role: Role
    owned: Owned = Owned.NOTHING

    def named(self, method: str, path: str) -> str | None:
        """Return the name in a matching path, empty if the path has no name; None if the request does not match."""
        if method != self.method:
            return None
        pattern = "".join("([^/]+)" if part.startswith("{") else re.escape(part) for part in _PARTS.split(self.path))
        found = re.fullmatch(pattern, path)
        return None if found is None else (*found.groups(), "")[0]


_PARTS = re.compile(r"(\{[^}]*\})")
API = "/api/v1"
VIEWER, EDITOR, OPERATOR = Role
_CHANGES = (
    ("POST", "/jobs", EDITOR, Owned.NOTHING),
    ("PATCH", "/jobs/{name}", EDITOR, Owned.JOB),
    ("POST", "/jobs/{name}/pause", EDITOR, Owned.JOB),
    ("POST", "/jobs/{name}/resume", EDITOR, Owned.JOB),
    ("DELETE", "/jobs/{name}", EDITOR, Owned.JOB),
    ("POST", "/removed/{name}/restore", EDITOR, Owned.REMOVED),
)
PERMISSIONS = (
    *(Permission(method, prefix + path, role, owned) for prefix in ("", API) for method, path, role, owned in _CHANGES),
    Permission("GET", "/status", VIEWER),
    Permission("GET", "/removed", VIEWER),
    Permission("GET", "/jobs/{name}/explain", VIEWER, Owned.JOB),
    Permission("GET", f"{API}/cluster", VIEWER),
    Permission("GET", f"{API}/jobs", VIEWER),
    Permission("GET", f"{API}/jobs/{{name}}", VIEWER, Owned.JOB),
    Permission("GET", f"{API}/jobs/{{name}}/story", VIEWER, Owned.JOB),
    Permission("GET", f"{API}/jobs/{{name}}/epochs", VIEWER, Owned.JOB),
    Permission("GET", f"{API}/events", VIEWER),
    Permission("GET", f"{API}/openapi.json", VIEWER),
    Permission("DELETE", f"{API}/session", VIEWER),
    Permission("POST", f"{API}/login-links", VIEWER),
    Permission("GET", f"{API}/tenants", VIEWER),
    Permission("GET", f"{API}/audit", VIEWER),
    Permission("GET", f"{API}/tenants/{{tenant}}/tokens", OPERATOR, Owned.TENANT),
    Permission("POST", f"{API}/tenants/{{tenant}}/tokens", OPERATOR, Owned.TENANT),
    Permission("DELETE", f"{API}/tenants/{{tenant}}/tokens/{{id}}", OPERATOR, Owned.TENANT),
)


@dataclass(frozen=True, slots=True)
class Refused:
    """The refusal of a tenant's request: a sentence and an HTTP status code."""

    sentence: str
    code: int


Owns = Callable[[str, Owned, str], bool]
"""Whether a tenant owns the object of this kind and name."""


def refused(tenant: str, role: Role, method: str, path: str, owns: Owns) -> Refused | None:
    """Return why a request of a tenant is refused; None if the request is allowed.

    An object of another tenant is answered like a missing object, so that no tenant learns the names of other tenants' jobs.
    """
    for one in PERMISSIONS:
        name = one.named(method, path)
        if name is None:
            continue
        if one.owned is not Owned.NOTHING and not owns(tenant, one.owned, name):
            return Refused(f'there is no {one.owned.value} "{name}"', 404)
        if not role.includes(one.role):
            return Refused(
                f"{method} {path} needs the role {one.role.value}; this token has the role {role.value}", 403
            )
        return None
    return Refused(f"{method} {path} is not for tenants; ask the operator of the service", 403)
