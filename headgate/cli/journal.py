"""`headgate explain` and `headgate status`, which read the running service, or the journal of a stopped service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.text import Text

from headgate.cli.output import (
    access_of_command,
    as_json,
    by_the_clock,
    clock_time,
    complain,
    plain_table,
    service_option,
    show,
    show_json,
    time_of_day,
    verbatim,
)
from headgate.core.quantities import show_seconds
from headgate.errors import InputError, NoServiceError
from headgate.ports import JobPhase
from headgate.screen import since_start

if TYPE_CHECKING:
    from headgate.explain import Line
    from headgate.journal import SqliteJournal
    from headgate.ports import RoundRecord
    from headgate.screen import Headline, Row
    from headgate.server.client import Client
    from headgate.server.status import ActionStatus, JobStatus, LeasesStatus, Status

SHOWN_ACTIONS = 5
TROUBLE = 3
"""Exit code of `headgate status` if a job or the control loop needs attention."""
BILL_KEY = "bill"
"""Key under which a journal keeps the bill of leased hosts as a sentence."""

journal_option = click.option("--journal", metavar="FILE", help="Read this journal, whether or not a service runs.")


@contextmanager
def existing(journal: str) -> Iterator[SqliteJournal]:
    """Open an existing journal for reading."""
    from headgate.journal import SqliteJournal

    if not Path(journal).is_file():
        raise InputError(f'there is no journal "{journal}"; `--journal FILE` names another one')
    with SqliteJournal(journal, read_only=True) as opened:
        yield opened


def _client(home: str) -> Client | None:
    """Return a client of the service of this home, or of `--server`; None if the home has no running service."""
    from headgate.server.home import Home

    place, access = Home(Path(home)), access_of_command()
    if access.server is None and place.read_address() is None:
        return None
    from headgate.server.client import Client

    return Client(place, access)


def journal_in(home: str) -> str:
    """Return the path of the journal in a home directory."""
    from headgate.server.home import Home

    return str(Home(Path(home)).journal)


# -- explain -----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("job", metavar="JOB|HOST")
@service_option
@journal_option
@as_json
def explain(job: str, home: str, journal: str | None, json_too: bool) -> None:
    """Show what happened to a job or a leased host, and why."""
    from headgate import explain as explaining

    lines, about = _story(job, home, journal)
    if json_too:
        show_json(json.loads(explaining.as_json(lines)))
        return
    click.echo(explaining.as_text(lines, about) if lines else f"nothing has happened to {job} so far")


def _story(job: str, home: str, journal: str | None) -> tuple[list[Line], Mapping[str, str]]:
    live = _live_story(job, home) if journal is None else None
    if live is not None:
        return live
    from headgate import explain as explaining

    with existing(journal or journal_in(home)) as opened:
        return explaining.story(opened, job), opened.about()


def _live_story(job: str, home: str) -> tuple[list[Line], Mapping[str, str]] | None:
    client = _client(home)
    if client is None:
        return None
    try:
        story = client.story(job)
    except NoServiceError:
        return None
    return story.lines, story.about


# -- status ------------------------------------------------------------------------------------------------------------


@click.command(short_help="Show the jobs as they are now.")
@service_option
@journal_option
@as_json
def status(home: str, journal: str | None, json_too: bool) -> int:
    """Show the jobs as they are now, or the last recorded round.

    Exits with 3 if a job is failed or retrying, if readings are stale, or if no control loop runs.
    """
    if journal is not None:
        _show_recorded(journal, json_too)
        return 0
    raw = _live_status(home)
    if raw is None:
        _show_recorded(journal_in(home), json_too, stopped=True)
        return TROUBLE
    import msgspec

    from headgate.server.status import Status

    found = msgspec.json.decode(raw, type=Status)
    if json_too:
        click.echo(raw.decode())
    else:
        show(*live_status(found))
    return TROUBLE if found.problem else 0


def _live_status(home: str) -> bytes | None:
    client = _client(home)
    if client is None:
        return None
    try:
        return client.raw_status()
    except NoServiceError:
        return None


def _show_recorded(journal: str, json_too: bool, stopped: bool = False) -> None:
    import msgspec

    with existing(journal) as opened:
        restored = opened.restore()
        last = list(opened.rounds(since_s=restored.at_s))[-1:] if restored is not None else []
        about = opened.about()
    if not last:
        raise InputError(f'the journal "{journal}" has no rounds yet')
    if json_too:
        click.echo(msgspec.json.encode(last[0]).decode())
        return
    if stopped and by_the_clock(about):
        complain("no service runs here; this is its last round")
        show(*_recorded(last[0], about, "stopped"))
    else:
        show(*_recorded(last[0], about))


def _recorded(record: RoundRecord, about: Mapping[str, str], note: str = "") -> Iterator[RenderableType]:
    """Yield a recorded round; `note`, such as "stopped", marks figures that are no longer current."""
    import dataclasses

    from headgate import screen

    clock = clock_time(record.at_s) if by_the_clock(about) else since_start(record.at_s)
    utility = screen.total_utility(job.utility for job in record.jobs.values())
    yield screen.headline(screen.Headline(utility, record.max_score), note or record.phase, (), clock)
    yield from screen.jobs_table([dataclasses.replace(row, note=note) for row in screen.rows_of_round(record)])
    if record.decision != record.phase:
        yield verbatim(f" {record.decision}")
    yield from screen.advice_lines(alert.sentence for alert in record.advice)
    if BILL_KEY in about:
        yield verbatim(f" hosts: {about[BILL_KEY]}")


def live_status(status: Status) -> Iterator[RenderableType]:
    """Yield the status of a running service: headline, running jobs, other jobs, last actions, advice, leased hosts."""
    from headgate import screen

    clock = clock_time(status.at_s) if status.at_s is not None else "no round yet"
    yield screen.headline(_cluster(status), status.phase, (), clock)
    yield verbatim(f" {status.headline}")
    running = {name: job for name, job in status.jobs.items() if job.state == JobPhase.RUNNING.value}
    if running:
        yield from screen.jobs_table([_row(name, job) for name, job in running.items()])
    for name, job in status.jobs.items():
        if name not in running:
            yield verbatim(f" {name}  {job.state}{f': {job.reason}' if job.reason else ''}")
    if status.problem:
        yield Text(f" problem: {status.problem}", "red")
    if status.decision and status.decision != status.phase:
        yield verbatim(f" {status.decision}")
    for action in status.actions[-SHOWN_ACTIONS:]:
        yield verbatim(f" {time_of_day(action.at_s)}  {_action(action)}")
    yield from screen.advice_lines(status.advice)
    if status.leases is not None:
        yield from leases_shown(status.leases)


def leases_shown(leases: LeasesStatus) -> Iterator[RenderableType]:
    """Leased hosts with their cost, and the cost of each job."""
    rows = [
        (host.name, host.address, f"{host.phase}{f': {host.reason}' if host.reason else ''}", show_seconds(host.paid_s))
        for host in leases.hosts
    ]
    yield plain_table(("host", "address", "is", "paid for"), rows)
    yield verbatim(f" {leases.bill.sentence()}; {leases.spending_per_hour:.4g} an hour now")
    by_job = {**leases.bill.cost_by_job, "idle": leases.bill.cost - sum(leases.bill.cost_by_job.values())}
    yield verbatim(" by use: " + ", ".join(f"{job} {cost:.3g}" for job, cost in by_job.items()))
    for note in leases.notes[-SHOWN_ACTIONS:]:
        yield verbatim(f" {time_of_day(note.at_s)}  {note.host or 'hosts'}: {note.text}")


def _cluster(status: Status) -> Headline:
    from headgate import screen

    cores = sum(host.cores for host in status.hosts)
    loads = [host.load for host in status.hosts if host.load is not None]
    load = sum(loads) / cores if loads and cores else None
    wanted = (job.utility for job in status.jobs.values() if job.state != JobPhase.PAUSED.value)
    return screen.Headline(screen.total_utility(wanted), status.max_score, cores or None, load)


def _row(name: str, job: JobStatus) -> Row:
    from headgate import screen

    late = None not in (job.latency_s, job.latency_intent_s) and (job.latency_s or 0) > (job.latency_intent_s or 0)
    short = None not in (job.juice, job.juice_intent) and (job.juice or 0) < (job.juice_intent or 0)
    return screen.Row(
        name=name,
        intent=job.intent,
        worth=job.worth,
        utility=job.utility,
        met=job.met,
        latency_s=job.latency_s,
        latency_missed=late,
        juice=job.juice,
        juice_missed=job.met is False and short,
        lanes=sum(job.lanes.values()),
        pace_s=job.pace_s,
        note="stale" if job.stale else "",
        age_s=job.age_s,
        lag_unknown=job.lag_unknown,
    )


def _action(action: ActionStatus) -> str:
    what = f"{action.what}: {action.cause}" if action.what else action.cause
    return f"{action.job or action.kind}  {what}" + ("" if action.applied else f" ({action.detail or 'not confirmed'})")


COMMANDS = (explain, status)
