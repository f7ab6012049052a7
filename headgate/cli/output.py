"""Functions with which the commands print, and options that several commands share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.config import Settings
    from headgate.journal import SqliteJournal
    from headgate.server.client import Access

Callback = TypeVar("Callback", bound=Callable[..., Any])
PIPED_WIDTH = 140
"""Width of tables in characters if the output is not a terminal."""

as_json = click.option("--json", "json_too", is_flag=True, help="Print one line of JSON at the end.")
home_option = click.option(
    "--home", metavar="DIR", default=".headgate", show_default=True, help="Directory of the service's files."
)

SERVER_KEY, TOKEN_FILE_KEY = "headgate.server", "headgate.token_file"


def _kept(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        context.meta[key] = value

    return keep


def service_option(command: Callback) -> Callback:
    """Add the options that name the service: its home, or the address of a service elsewhere and the token of a tenant."""
    options = (
        home_option,
        click.option(
            "--server",
            metavar="URL",
            expose_value=False,
            callback=_kept(SERVER_KEY),
            help="Address of a service whose home is elsewhere [default: HEADGATE_SERVER].",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            expose_value=False,
            callback=_kept(TOKEN_FILE_KEY),
            help="File with the token of a tenant [default: HEADGATE_TOKEN, or the token of the home].",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def access_of_command() -> Access:
    """Return how the current command reaches its service, by its options or by the environment."""
    from headgate.server.client import Access

    given = context.meta if (context := click.get_current_context(silent=True)) is not None else {}
    return Access.of(os.environ, given.get(SERVER_KEY), given.get(TOKEN_FILE_KEY))


def console_of_stdout() -> Console:
    """A console that does not squeeze tables into 80 columns when it writes to a file."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED_WIDTH, highlight=False)


def show(*parts: RenderableType) -> None:
    """Print tables and sentences."""
    console = console_of_stdout()
    for part in parts:
        # A sentence goes on one line where the output is not a terminal, so that it can be searched for.
        console.print(part, soft_wrap=isinstance(part, str | Text) and not console.is_terminal)


def complain(sentence: str) -> None:
    """Print one line on standard error."""
    with suppress(OSError):  # standard error may be closed
        print(f"headgate: {' '.join(sentence.split())}", file=sys.stderr, flush=True)


def verbatim(text: str) -> Text:
    """Return text that rich prints as given, without reading square brackets as markup."""
    return Text(text)


def show_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[RenderableType]]) -> RenderableType:
    """Return a table with a header; cells are text or other renderables."""
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(verbatim(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def pairs(given: Sequence[str], option: str = "set", example: str = "round_s=5") -> dict[str, str]:
    """Parse the values of a repeated option that takes `name=value`."""
    for text in given:
        if "=" not in text:
            raise InputError(f'--{option} is "{text}"; it must be name=value, such as {example}')
    return dict(text.split("=", 1) for text in given)


def clock_time(at_s: float) -> str:
    """Return a time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def time_of_day(at_s: float) -> str:
    """Return a time as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


@contextmanager
def opened(journal: str | None, settings: Settings) -> Iterator[SqliteJournal | None]:
    """Open a journal for writing and create its directory; yields None if `journal` is None."""
    if journal is None:
        yield None
        return
    from headgate.config import snapshots_needed
    from headgate.journal import SqliteJournal

    path = Path(journal)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be created: {error.strerror}") from None
    with SqliteJournal(path, window=snapshots_needed(settings)) as written:
        try:
            yield written
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error


@contextmanager
def progress_bar(what: str, total: int, hidden: bool = False) -> Iterator[Progress]:
    """Show a progress bar on standard error, if standard error is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        progress.add_task(what, total=total)
        yield progress


def by_the_clock(about: Mapping[str, str]) -> bool:
    """Whether the times of a journal are wall-clock times, not simulated times."""
    from headgate import explain

    return about.get(explain.CLOCK_KEY) == explain.WALL_CLOCK
