"""`headgate bench` and `headgate demo`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType

from headgate import explain as explaining
from headgate.bench import NAMES
from headgate.cli.output import as_json, console_of_stdout, opened, plain_table, show, show_json, time_of_day, verbatim
from headgate.cli.simulate import check_picture
from headgate.core.quantities import show_seconds
from headgate.screen import Screen

if TYPE_CHECKING:
    from headgate.core.metrics import JobView
    from headgate.demo import Course

DEMO_HOME = Path(".headgate/demo")


@click.command(short_help="Watch three tenants share an embedded Spark.")
def demo() -> None:
    """Run three tenants on an embedded Spark, break one of them, and watch; then the same without control. Takes 4 minutes."""
    from headgate import demo as demonstration

    shutil.rmtree(DEMO_HOME, ignore_errors=True)
    journal = DEMO_HOME / "journal.sqlite"
    console = console_of_stdout()
    with opened(str(journal), demonstration.SETTINGS) as record, Screen(console, time_of_day, LINE_EVERY_S) as screen:
        assert record is not None
        record.set_about(explaining.CLOCK_KEY, explaining.WALL_CLOCK)
        controlled, alone = demonstration.run(
            DEMO_HOME, record, screen.show, lambda text: console.print(verbatim(text))
        )
    show("", *_demo_summary(controlled, alone), "", *_next_commands(controlled, journal))


LINE_EVERY_S = 10.0


def _demo_summary(controlled: Course, alone: Course) -> Iterator[RenderableType]:
    yield plain_table(
        ("job", "intent", "worth", "with Headgate", "", "without control", ""), list(_ends(controlled, alone))
    )
    yield ""
    shares = (f"{100 * course.satisfaction():.0f} %" for course in (controlled, alone))
    yield verbatim(
        "Since the load stepped up, the jobs got {} of their utility, and {} without control.".format(*shares)
    )
    if controlled.actions:
        count = len(controlled.actions)
        yield verbatim("One action did it:" if count == 1 else f"{count} actions did it:")
    for at_s, action in controlled.actions:
        yield verbatim(f"  {time_of_day(at_s)}  {action.job or action.kind.value}: {action.sentence}")


def _ends(controlled: Course, alone: Course) -> Iterator[tuple[str, ...]]:
    for name, job in controlled.last.items():
        ends = (cell for one in (job, alone.last.get(name)) for cell in _end(one))
        yield name, job.job.intent.describe(), f"{job.worth:g}", *ends


def _end(job: JobView | None) -> tuple[str, str]:
    if job is None or job.met is None:
        return "-", ""
    latency = f"{show_seconds(job.latency_s, 2)}" if job.latency_s is not None else ""
    return "met" if job.met else "missed", latency


def _next_commands(controlled: Course, journal: Path) -> Iterator[RenderableType]:
    touched = [action.job for _, action in controlled.actions if action.job] or list(controlled.last)
    yield "Now try:"
    yield verbatim(f"  headgate explain {touched[0]} --journal {journal}")
    yield verbatim("  headgate run examples/cluster.toml --fast")
    yield verbatim("  headgate simulate diurnal --plot diurnal.png")


# -- benchmarks ------------------------------------------------------------------------------------------------------------------


@click.command(epilog="NAME is one of: " + ", ".join(NAMES) + ".", short_help="Measure what it costs and gains.")
@click.argument("name", metavar="NAME")
@click.option("--plot", metavar="FILE", help="Draw what happened, where there is something to draw (.png, .svg, .pdf).")
@as_json
def bench(name: str, plot: str | None, json_too: bool) -> None:
    """Measure something, side by side with what it is compared with; takes up to a quarter of an hour."""
    from dataclasses import asdict

    from headgate.bench import bench as measure
    from headgate.sim import report

    check_picture(plot)
    result = measure(name, Path(plot) if plot is not None else None)
    rows = [(figure.name, report.figure(figure.value), figure.unit) for figure in result.figures]
    show(plain_table(("measured", "value", "unit"), rows), "", report.bars_table(result.bars))
    if json_too:
        bars = [report.bar_summary(bar) for bar in result.bars]
        show_json({"bench": name, "figures": [asdict(figure) for figure in result.figures], "bars": bars})


COMMANDS = (bench, demo)
