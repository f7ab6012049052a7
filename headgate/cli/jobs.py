"""Commands that change the jobs of a running service: submit, intent, pause, resume, remove, restore, share, limit; and `headgate ui`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.output import (
    access_of_command,
    as_json,
    plain_table,
    service_option,
    show,
)
from headgate.cli.run import param_option, read_files
from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.server.client import Client
    from headgate.server.removed import RemovedJob

NONE = "none"


def client_of(home: str) -> Client:
    """Return a client of the service that the command talks to."""
    from headgate.server.client import Client
    from headgate.server.home import Home

    return Client(Home(Path(home)), access_of_command())


@click.command()
@click.argument("file")
@click.option("--name", metavar="NAME", help="Run the job under this name.")
@param_option
@service_option
def submit(file: str, name: str | None, params: tuple[str, ...], home: str) -> None:
    """Add the jobs of a file to the running service."""
    import dataclasses

    (read,) = read_files([file], params)
    if read.settings:
        raise InputError(f"{file}: settings are fixed when a service starts; take out [settings], or start another one")
    if name is not None and len(read.jobs) > 1:
        raise InputError(f"{file}: --name is for one job, and there are {len(read.jobs)} in it")
    client = client_of(home)
    for request in read.jobs:
        named = request if name is None else dataclasses.replace(request, name=name)
        click.echo(f"submitted: {client.submit(named)}")


@click.command(short_help="Change the intent of a job.")
@click.argument("job")
@click.option("--latency", metavar="TIME", help="Latency goal, such as 2s.")
@click.option("--juice", metavar="SHARE", help="Share of the input that the job must keep up with, such as 0.95.")
@click.option("--worth", metavar="POINTS", help="Points for meeting the intent.")
@click.option(
    "--percentile", metavar="P", help="Percentile that the latency goal applies to, such as 99; the mean without it."
)
@click.option(
    "--policy", metavar="P", help="Let the job regulate itself: provision, throughput:500/s or a user policy."
)
@service_option
def intent(job: str, home: str, **given: str | None) -> None:
    """Change the intent of a job; goals that are not named stay, "none" removes a goal."""
    fields = {name: field_value(text) for name, text in given.items() if text is not None}
    if not fields:
        raise InputError(f"what should change? give {', '.join(f'--{name}' for name in given)}, or some of them")
    client = client_of(home)
    client.change(job, {"intent": fields})
    now = client.status().jobs[job]
    click.echo(f"{job}: {now.intent}, worth {now.worth:g}")


def field_value(text: str) -> float | str | None:
    """Parse a value of the command line: a number, None for "none", or else the text, which the service checks."""
    if text.lower() == NONE:
        return None
    try:
        return float(text)
    except ValueError:
        return text


@click.command()
@click.argument("job")
@service_option
def pause(job: str, home: str) -> None:
    """Stop a job after the epoch in flight, until `headgate resume`."""
    client_of(home).pause(job)
    click.echo(f"paused: {job}")


@click.command()
@click.argument("job")
@service_option
def resume(job: str, home: str) -> None:
    """Continue a paused job, or try a failed job again."""
    client_of(home).resume(job)
    click.echo(f"resumed: {job}")


@click.command()
@click.argument("job")
@service_option
def remove(job: str, home: str) -> None:
    """Stop a job after the epoch in flight and remove it; `headgate restore` brings it back within `keep_removed_h` hours."""
    note = client_of(home).remove(job)
    click.echo(f"removed: {job}" + (f"; {note}" if note else ""))


@click.command()
@service_option
@as_json
def removed(home: str, json_too: bool) -> None:
    """List removed jobs that can be restored, with their size and the time of their deletion."""
    import msgspec

    found = client_of(home).removed()
    if json_too:
        click.echo(msgspec.json.encode(found).decode())
    elif found:
        show(plain_table(("job", "removed at", "size", "deleted at"), [_removed_row(one) for one in found]))
    else:
        click.echo("there is no removed job")


def _removed_row(one: RemovedJob) -> tuple[str, ...]:
    deleted = datetime.fromtimestamp(one.deleted_s).astimezone()
    return one.name, one.at, f"{one.bytes / 1e6:,.1f} MB", f"{deleted:%Y-%m-%d %H:%M}"


@click.command()
@click.argument("job")
@click.option("--at", metavar="TIME", help="Restore the removal of this time, as `headgate removed` lists it.")
@service_option
def restore(job: str, at: str | None, home: str) -> None:
    """Continue a removed job where it stopped."""
    client_of(home).restore(job, at)
    click.echo(f"restored: {job}")


@click.command()
@click.argument("job")
@click.argument("share", metavar="N")
@service_option
def share(job: str, share: str, home: str) -> None:
    """Set the weight of a job when slots are short, 1 to 10."""
    client_of(home).change(job, {"share": field_value(share)})
    click.echo(f"{job}: share {share}")


@click.command()
@click.argument("job")
@click.argument("rows", metavar="ROWS")
@service_option
def limit(job: str, rows: str, home: str) -> None:
    """Set the maximum number of rows that an epoch of a job reads; "none" returns to the settings."""
    client_of(home).change(job, {"read_limit": field_value(rows)})
    click.echo(
        f"{job}: {'no read limit of its own' if field_value(rows) is None else f'at most {rows} rows per epoch'}"
    )


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@service_option
def ui(only_print: bool, home: str) -> None:
    """Open the dashboard of the running service in a browser, by a link that logs in once."""
    import webbrowser

    link = client_of(home).login_link()
    opened = not only_print and webbrowser.open(link)
    click.echo(f"opened {link.partition('#')[0]}" if opened else link)


COMMANDS = (ui, submit, intent, pause, resume, remove, removed, restore, share, limit)
