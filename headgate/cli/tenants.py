"""`headgate tenant` and `headgate audit`: who shares a service, their tokens and quotas, and who changed what."""

from __future__ import annotations

import json
from typing import Any

import click

from headgate.cli.jobs import client_of, field_value
from headgate.cli.output import as_json, clock_time, plain_table, service_option, show, verbatim
from headgate.core.quantities import choice

ROLES = ("viewer", "editor", "operator")
LIMITS = ("jobs", "lanes", "share", "memory_mb", "state_mb", "worth")


@click.group(short_help="Add tenants with quotas, list them, make and revoke their tokens.")
def tenant() -> None:
    """Share the service among tenants, each with its own jobs, tokens and quotas."""


@tenant.command()
@click.argument("name")
@click.option("--jobs", metavar="N", help="Most jobs.")
@click.option("--lanes", metavar="N", help="Most lanes of all jobs together.")
@click.option("--share", metavar="N", help="Largest sum of the shares of all jobs.")
@click.option("--memory", "memory_mb", metavar="MB", help="Most memory, at `lane_memory_mb` for each lane.")
@click.option("--state", "state_mb", metavar="MB", help="Most keyed state; above it, the tenant can submit no job.")
@click.option("--worth", metavar="POINTS", help="Budget of worth that the tenant divides among its jobs.")
@click.option("--weight", metavar="W", help="Weight of the tenant under the objective fair [default: 1].")
@service_option
def add(name: str, home: str, **limits: str | None) -> None:
    """Add a tenant, or give it other quotas; a quota that is not named has no limit."""
    given = {limit: field_value(text) for limit, text in limits.items() if text is not None}
    client_of(home).add_tenant({"name": name, **given})
    click.echo(f"added: {name}; `headgate tenant token {name} --role editor` makes a token")


@tenant.command(name="list")
@service_option
@as_json
def list_(home: str, json_too: bool) -> None:
    """List tenants: what their jobs take of their quotas, what they earn, what they cost."""
    found = json.loads(client_of(home).tenants())
    if json_too:
        click.echo(json.dumps(found))
    elif found:
        show(tenants_table(found))
    else:
        click.echo("there are no tenants; `headgate tenant add NAME` adds one")


def tenants_table(tenants: dict[str, Any]) -> Any:
    """Return a table of tenants with usage and limits, satisfaction, weight and cost."""
    rows = [
        (
            name,
            *(_usage_text(one["usage"][limit], one["quota"][limit]) for limit in LIMITS),
            "-" if one["satisfaction"] is None else f"{one['satisfaction']:.0%}",
            f"{one['weight']:g}",
            f"{one['cost']:.2f}",
        )
        for name, one in tenants.items()
    ]
    return plain_table(
        ("tenant", "jobs", "lanes", "share", "memory MB", "state MB", "worth", "satisfied", "weight", "cost"), rows
    )


def _usage_text(used: float, limit: float | None) -> str:
    return f"{used:,.0f}" if limit is None else f"{used:,.0f} of {limit:,.0f}"


@tenant.command()
@click.argument("name")
@click.option("--role", metavar="ROLE", default="viewer", show_default=True, help="viewer, editor or operator.")
@click.option("--days", type=float, metavar="N", help="Days until it expires [default: setting token_days].")
@click.option("--note", metavar="TEXT", default="", help="What the token is for.")
@service_option
def token(name: str, role: str, days: float | None, note: str, home: str) -> None:
    """Make a token for a tenant; it is shown this once."""
    choice(role, "--role", ROLES)
    made = client_of(home).new_token(name, role, days, note)
    click.echo(made["token"])
    click.echo(f"token {made['status']['id']}, {role}, until {clock_time(made['status']['expires_s'])}", err=True)


@tenant.command()
@click.argument("name")
@service_option
@as_json
def tokens(name: str, home: str, json_too: bool) -> None:
    """List the valid tokens of a tenant, without their secrets."""
    found = json.loads(client_of(home).tokens(name))
    if json_too:
        click.echo(json.dumps(found))
        return
    rows = [
        (one["id"], one["role"], clock_time(one["created_s"]), clock_time(one["expires_s"]), one["note"])
        for one in found
    ]
    show(
        plain_table(("id", "role", "made", "expires", "note"), rows) if rows else verbatim("there are no valid tokens")
    )


@tenant.command()
@click.argument("name")
@click.argument("token_id", metavar="ID")
@service_option
def revoke(name: str, token_id: str, home: str) -> None:
    """Make a token void at once; browsers that logged in with it are logged out."""
    client_of(home).revoke_token(name, token_id)
    click.echo(f"revoked: {token_id}")


@tenant.command()
@click.argument("name")
@service_option
def remove(name: str, home: str) -> None:
    """Remove a tenant that has no jobs, and all its tokens."""
    client_of(home).remove_tenant(name)
    click.echo(f"removed: {name}")


@click.command()
@click.option("--job", metavar="JOB", help="Only changes of this job.")
@service_option
@as_json
def audit(job: str | None, home: str, json_too: bool) -> None:
    """Show who changed what, when, and from where."""
    found = [one for one in json.loads(client_of(home).audit()) if job in (None, one["job"])]
    if json_too:
        click.echo(json.dumps(found))
        return
    rows = [
        (clock_time(one["at_s"]), one["who"], one["address"], one["via"], one["job"] or "-", one["what"])
        for one in found
    ]
    show(
        plain_table(("when", "who", "from", "by", "job", "what"), rows) if rows else verbatim("nothing was changed yet")
    )


COMMANDS = (tenant, audit)
