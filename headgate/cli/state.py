"""`headgate state`: what a keyed operator remembers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.output import as_json, home_option, plain_table, show, show_json, verbatim
from headgate.core.quantities import did_you_mean
from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.state.inspect import Entry

SHOWN_KEYS = 20


@click.command(short_help="Show the state of a keyed operator.")
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
def state(job: str, operator: str, keys: tuple[str, ...], most: int, hosts: bool, home: str, json_too: bool) -> None:
    """Show the state of a keyed operator as of its last epoch, whether or not the job runs.

    The command reads the checkpoint of the operator and does not delay the job.
    """
    from headgate.state.inspect import checkpoint_of, read_state

    if hosts:
        _show_hosts(_job(Path(home), job, operator), operator, json_too)
        return
    entries = read_state(checkpoint_of(_job(Path(home), job, operator), operator), keys or None)
    if not entries and keys:
        raise InputError(f'operator "{operator}" of job "{job}" has no state of {", ".join(keys)}')
    show(*_shown(entries, most))
    if json_too:
        show_json([{"key": _plain(one.key), "slice": one.slice, "state": _plain(one.state)} for one in entries[:most]])


def _show_hosts(job: Path, operator: str, json_too: bool) -> None:
    from headgate.state.hosting import read_placement
    from headgate.state.inspect import checkpoint_of, read_opens
    from headgate.state.location import Location

    placement = read_placement(Location.of(checkpoint_of(job, operator)))
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


def _job(home: Path, job: str, operator: str) -> Path:
    """The job's directory; refuses a job or an operator that has no state there."""
    places = {place.parent.parent.name for place in (home / "jobs").glob("*/keyed/*")}
    if job not in places:
        raise InputError(f'no job "{job}" has keyed state in "{home}".{did_you_mean(job, places)}')
    operators = [place.name for place in (home / "jobs" / job / "keyed").iterdir()]
    if operator not in operators:
        known = ", ".join(sorted(operators))
        raise InputError(
            f'operator "{operator}" of job "{job}" has no keyed state; there is state of {known}.'
            f"{did_you_mean(operator, operators)}"
        )
    return home / "jobs" / job


def _shown(entries: list[Entry], most: int) -> list[Any]:
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
    """What JSON has; names of a dict as text."""
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return json.loads(json.dumps(value, default=str))


COMMANDS = (state,)
