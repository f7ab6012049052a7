"""`headgate state`: shows the state of a keyed operator, or doubles the slices of a job."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.output import as_json, home_option, plain_table, show, show_json, verbatim
from headgate.core.quantities import did_you_mean
from headgate.errors import InputError
from headgate.server.home import Home

if TYPE_CHECKING:
    from headgate.state.inspect import Entry

SHOWN_KEYS = 20


class ShowsByDefault(click.Group):
    """A group that runs `show` if no command is named: `headgate state JOB OPERATOR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ShowsByDefault, short_help="Show keyed state, or double its slices.")
def state() -> None:
    """Show the state of a keyed operator (`headgate state JOB OPERATOR`), or double its slices (`headgate state split JOB`)."""


@state.command(short_help="Double the slices of a job that does not run.")
@click.argument("job", metavar="JOB")
@home_option
@as_json
def split(job: str, home: str, json_too: bool) -> None:
    """Double the slices of all keyed operators of a job, and with them the lanes that each may have.

    The job must be paused, failed or stopped. Counts, timers and all other state stay exactly as they are.
    """
    from headgate.state.split import split_slices, splitting

    place = _job(Path(home), job)
    _refuse_running(Home(Path(home)), job)
    with splitting(place):
        found = {path.name: split_slices(place, path.name).slices for path in sorted((place / "keyed").iterdir())}
    for operator, slices in found.items():
        show(verbatim(f'Operator "{operator}" of job "{job}" has {slices} slices now.'))
    if json_too:
        show_json(found)


def _refuse_running(home: Home, job: str) -> None:
    from headgate.cli.jobs import client_of

    if home.read_address() is None:
        return
    known = client_of(str(home.path)).status().jobs.get(job)
    if known is not None and known.state not in ("paused", "failed"):
        raise InputError(f'job "{job}" is {known.state}; run `headgate pause {job}` first')


@state.command("show", short_help="Show the state of a keyed operator.")
@click.argument("job", metavar="JOB")
@click.argument("operator", metavar="OPERATOR")
@click.option(
    "--key",
    "keys",
    metavar="VALUE",
    multiple=True,
    help="Show the state of this key; give it once for each key column.",
)
@click.option(
    "--most", type=click.IntRange(1), default=SHOWN_KEYS, show_default=True, metavar="N", help="Show at most N keys."
)
@click.option("--hosts", is_flag=True, help="Show the number of slices and backups on each host, instead of the state.")
@home_option
@as_json
def show_state(
    job: str, operator: str, keys: tuple[str, ...], most: int, hosts: bool, home: str, json_too: bool
) -> None:
    """Show the state of a keyed operator as of its last epoch, whether or not the job runs.

    The command reads the checkpoint of the operator and does not delay the job.
    """
    from headgate.state.inspect import durable_checkpoint, read_state

    if hosts:
        _show_hosts(_job(Path(home), job, operator), operator, json_too)
        return
    entries = read_state(durable_checkpoint(_job(Path(home), job, operator), operator), keys or None)
    if not entries and keys:
        raise InputError(f'operator "{operator}" of job "{job}" has no state of {", ".join(keys)}')
    show(*_entry_rows(entries, most))
    if json_too:
        show_json([{"key": _plain(one.key), "slice": one.slice, "state": _plain(one.state)} for one in entries[:most]])


def _show_hosts(job: Path, operator: str, json_too: bool) -> None:
    from headgate.state.hosting import read_placement
    from headgate.state.inspect import durable_checkpoint, read_opens
    from headgate.state.location import Location

    placement = read_placement(Location.of(durable_checkpoint(job, operator)))
    if placement is None:
        raise InputError(
            f'operator "{operator}" of job "{job.name}" does not run on a cluster: all of its slices are here'
        )
    active = Counter(placement.homes())
    backups = Counter(host for place in placement.places for host in place.ready)
    coming = Counter(place.migration.destination for place in placement.places if place.migration is not None)
    opens = read_opens(job, operator)
    share = None if opens is None else opens.local_share()
    rows = [(host, str(active[host]), str(backups[host]), str(coming[host])) for host in placement.hosts]
    show(plain_table(("host", "slices", "backups", "on their way"), rows))
    if share is not None:
        show(verbatim(f"{100 * share:.1f} % of the slices were opened on the host of their lane."))
    if json_too:
        found = {
            host: {"slices": active[host], "backups": backups[host], "coming": coming[host]} for host in placement.hosts
        }
        show_json({"hosts": found, "local": share})


def _job(home: Path, job: str, operator: str | None = None) -> Path:
    """Return the directory of a job; refuses a job or an operator without keyed state."""
    places = {place.parent.parent.name for place in (home / "jobs").glob("*/keyed/*")}
    if job not in places:
        raise InputError(f'no job "{job}" has keyed state in "{home}".{did_you_mean(job, places)}')
    operators = [place.name for place in (home / "jobs" / job / "keyed").iterdir()]
    if operator is not None and operator not in operators:
        known = ", ".join(sorted(operators))
        raise InputError(
            f'operator "{operator}" of job "{job}" has no keyed state; there is state of {known}.'
            f"{did_you_mean(operator, operators)}"
        )
    return home / "jobs" / job


def _entry_rows(entries: list[Entry], most: int) -> list[Any]:
    if not entries:
        return ["There is no state yet."]
    rows = [
        (*map(str, one.key.values()), str(one.slice), json.dumps(_plain(one.state), ensure_ascii=False))
        for one in entries[:most]
    ]
    parts: list[Any] = [plain_table((*entries[0].key, "slice", "state"), rows)]
    if len(entries) > most:
        parts.append(verbatim(f"{len(entries) - most:,} keys more; --key shows one, --most N shows more."))
    return parts


def _plain(value: Any) -> Any:
    """Convert a value to types of JSON; keys of a dict become text."""
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return json.loads(json.dumps(value, default=str))


COMMANDS = (state,)
