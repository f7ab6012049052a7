"""`headgate adopt`: the streaming queries of a PySpark script become jobs that continue where the queries stopped."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.output import home_option, pairs
from headgate.config.settings import all_settings_from
from headgate.core.quantities import number, seconds, show_seconds
from headgate.errors import InputError, JobFileError

if TYPE_CHECKING:
    from headgate.config.settings import RunSettings
    from headgate.spark.adoption.adopt import Adoption, Script


@click.command()
@click.argument("script", metavar="SCRIPT.py")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@home_option
@click.option("--name", metavar="NAME", help="Name of the job [default: the name of the query, or of the script].")
@click.option(
    "--latency", metavar="TIME", help="Latency goal [default: 60s, or twice the trigger interval if that is longer]."
)
@click.option("--worth", metavar="POINTS", default="1", show_default=True, help="Points for meeting the intent.")
@click.option("--arrival", metavar="COLUMN", help="Timestamp column that says when a row arrived.")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="Change a setting; `headgate settings` lists them."
)
@click.option("--dry-run", is_flag=True, help="Print what was found; change nothing.")
def adopt(
    script: str, arguments: tuple[str, ...], home: str, name: str | None, latency: str | None, worth: str,
    arrival: str | None, settings: tuple[str, ...], dry_run: bool,
) -> None:  # fmt: skip
    """Make the streaming queries of a PySpark script jobs that continue where the queries stopped.

    Stop the script first, and run this command in the directory where the script ran. ARGUMENTs are those of the script; write
    `--` before them if they begin with a dash.
    """
    from headgate.server.home import Home
    from headgate.spark.adoption.adopt import Script

    path = Path(script).resolve()
    if not path.is_file():
        raise InputError(f'there is no file "{script}"')
    if latency is not None:
        seconds(latency, "--latency")
    points, every = _points(worth), all_settings_from(pairs(settings))
    if not dry_run:
        Home(Path(home)).create()
    given = Script(
        path,
        Path.cwd(),
        Path(home).resolve(),
        arguments,
        name,
        latency,
        points,
        arrival,
        every.service.adopt_quiet_s,
    )
    files = [_adopted(one, dry_run) for one in _adoptions_of(given, every)]
    if dry_run:
        click.echo("nothing was changed; run headgate adopt without --dry-run to continue")
    else:
        click.echo(f"next: headgate run {' '.join(files)}, or headgate submit FILE if a service runs")


def _points(text: str) -> float:
    try:
        return number(float(text), "--worth", low=0)
    except ValueError:
        raise InputError(f'--worth is "{text}"; it must be a number of points, such as 10') from None


def _adoptions_of(script: Script, every: RunSettings) -> list[Adoption]:
    """Run the script on a separate Spark, which ends with the script."""
    from headgate.spark import session
    from headgate.spark.adoption.adopt import adoptions
    from headgate.spark.adoption.checkpoint import refuse_running
    from headgate.spark.adoption.recording import record

    refuse_running(script.path)
    with tempfile.TemporaryDirectory(prefix="headgate-adopt-") as place:
        spark = session.start(Path(place), every.spark)
        try:
            with _limited(script.path, every.loop.load_job_s):
                queries = record(spark, script.path, script.arguments)
            return adoptions(script, queries)
        finally:
            session.stop(spark, every.spark.exit_s)


@contextmanager
def _limited(script: Path, limit_s: float) -> Iterator[None]:
    """Stop a script that neither ends nor calls `awaitTermination()` within the limit."""

    def give_up(*_: object) -> None:
        raise JobFileError(
            f"{script}: it neither ended nor called awaitTermination() within {show_seconds(limit_s)};"
            " take out loops that wait for the query"
        )

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _adopted(one: Adoption, dry_run: bool) -> str:
    """Adopt a query and print what was found; returns the name of the job file."""
    from headgate.spark.adoption.adopt import beginning, found

    click.echo(f"query {one.job}")
    for what, text in found(one).items():
        click.echo(f"  {what:9}{text}")
    old = one.take_over.old if dry_run else one.run()
    click.echo(f"  {'start':9}{beginning(old)}")
    if not dry_run:
        click.echo(f"  {'job file':9}{one.file.name}")
    return one.file.name


COMMANDS = (adopt,)
