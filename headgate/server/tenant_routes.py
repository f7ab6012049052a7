"""Tenants and their tokens, and the audit log, under `/api/v1`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from headgate.config import ServiceSettings
from headgate.core.quantities import check_fields
from headgate.errors import InputError
from headgate.server.answers import Named, documented, json_answer
from headgate.server.changes import Change, Changes
from headgate.server.gate import Caller, caller_of
from headgate.server.service import Service
from headgate.server.status import TenantStatus
from headgate.server.tenants import DAY_S, TokenRecord, tenant_added, tenant_from
from headgate.server.visible import owned_since, seen


@dataclasses.dataclass(frozen=True, slots=True)
class TokenStatus:
    """A token as it is listed: its secret is shown only when it is made."""

    id: str
    role: str
    created_s: float
    expires_s: float
    note: str


@dataclasses.dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made."""

    token: str
    status: TokenStatus


@dataclasses.dataclass(frozen=True, slots=True)
class RevokedToken:
    """A token that was made void."""

    id: str


def change_by(caller: Caller, at_s: float, job: str, what: str) -> Change:
    """Return a change by this caller for the audit log."""
    return Change(at_s, caller.who, caller.via, job, what, caller.address, caller.tenant or "")


def tenant_routes(service: Service, changes: Changes, settings: ServiceSettings) -> APIRouter:
    """Return the routes of tenants: the operator of the service adds tenants; operators of a tenant make its tokens."""
    router, tenants = APIRouter(prefix="/api/v1", tags=["tenants"]), service.tenants

    def note(request: Request, what: str) -> None:
        changes.add(change_by(caller_of(request), service.now_s(), "", what))

    @router.get(
        "/tenants",
        responses=documented(dict[str, TenantStatus]),
        summary="Tenants by name: what their jobs take, earn and cost, and their quotas",
    )
    def listed(request: Request) -> Response:
        return json_answer(seen(service, caller_of(request).tenant).status.tenants)

    @router.post(
        "/tenants", status_code=201, responses=documented(Named, 201), summary="Add a tenant, or give it other quotas"
    )
    def add(request: Request, table: Annotated[Any, Body()]) -> Response:
        tenant = tenant_from(table)
        tenants.put(tenant)
        note(request, tenant_added(tenant))
        return json_answer(Named(tenant.name), 201)

    @router.delete(
        "/tenants/{tenant}", responses=documented(Named), summary="Remove a tenant without jobs, and its tokens"
    )
    def remove(request: Request, tenant: str) -> Response:
        jobs = [name for name in service.status().jobs if service.jobs.owner(name) == tenant]
        if jobs:
            raise InputError(f'tenant "{tenant}" has jobs: {", ".join(jobs)}; remove them first')
        tenants.remove(tenant)
        note(request, f"tenant remove {tenant}")
        return json_answer(Named(tenant))

    @router.get(
        "/tenants/{tenant}/tokens",
        responses=documented(list[TokenStatus]),
        summary="Valid tokens of a tenant, without their secrets",
    )
    def tokens(tenant: str) -> Response:
        return json_answer([_status(one) for one in tenants.tokens(tenant)])

    @router.post(
        "/tenants/{tenant}/tokens",
        status_code=201,
        responses=documented(NewToken, 201),
        summary="Make a token; the answer is the only place that shows it",
    )
    def token(request: Request, tenant: str, table: Annotated[Any, Body()]) -> Response:
        fields = table if isinstance(table, dict) else {}
        check_fields(fields, ("role", "days", "note"))
        days = fields.get("days")
        secret, record = tenants.new_token(
            tenant, fields.get("role", "viewer"), settings.token_days if days is None else days, fields.get("note", "")
        )
        days = (record.expires_s - record.created_s) / DAY_S
        note(request, f"tenant token {tenant}: {record.id}, {record.role.value}, {days:g} days")
        return json_answer(NewToken(secret, _status(record)), 201)

    @router.delete("/tenants/{tenant}/tokens/{id}", responses=documented(RevokedToken), summary="Revoke a token")
    def revoke(request: Request, tenant: str, id: str) -> Response:
        tenants.revoke(tenant, id)
        note(request, f"tenant revoke {tenant}: {id}")
        return json_answer(RevokedToken(id))

    @router.get(
        "/audit", responses=documented(tuple[Change, ...]), summary="Who changed what, when, from where; oldest first"
    )
    def audit(request: Request) -> Response:
        tenant = caller_of(request).tenant
        return json_answer(changes.seen_by(tenant, None if tenant is None else owned_since(service, tenant)))

    return router


def _status(token: TokenRecord) -> TokenStatus:
    return TokenStatus(token.id, token.role.value, token.created_s, token.expires_s, token.note)
