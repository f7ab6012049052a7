"""`headgate demo`: shows the jobs while they run, then compares both runs in a table and a chart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.text import Text

from headgate import explain as explaining
from headgate.cli.output import console_of_stdout, opened, plain_table, show, time_of_day, verbatim
from headgate.core.quantities import show_seconds
from headgate.screen import Screen

if TYPE_CHECKING:
    from headgate.core.metrics import JobView
    from headgate.demo import DemoRun

HOME = Path(".headgate/demo")
LINE_EVERY_S = 10.0
CHART_COLUMNS, CHART_LINES = 66, 10
WITH, WITHOUT, INTENT = "●", "○", "┄"
STYLES = {WITH: "green", WITHOUT: "red", INTENT: "dim"}

Points = Sequence[tuple[float, float]]
"""Seconds since the start, and a latency in seconds."""


@click.command(short_help="Watch three jobs share an embedded Spark.")
def demo() -> None:
    """Run three jobs on an embedded Spark and triple the load of two, first with Headgate, then without; takes 4 minutes."""
    from headgate import demo as demonstration

    shutil.rmtree(HOME, ignore_errors=True)
    journal = HOME / "journal.sqlite"
    console = console_of_stdout()
    with opened(str(journal), demonstration.SETTINGS) as record, Screen(console, time_of_day, LINE_EVERY_S) as screen:
        assert record is not None
        record.set_about(explaining.CLOCK_KEY, explaining.WALL_CLOCK)
        controlled, alone = demonstration.run(HOME, record, screen.show, lambda text: console.print(verbatim(text)))
    show("", *_actions(controlled), "", *_comparison(controlled, alone), "")
    show(*_latency_chart(controlled, alone, demonstration.URGENT, demonstration.STEP_S), "")
    show(*_next_commands(controlled, journal))


def _actions(controlled: DemoRun) -> Iterator[RenderableType]:
    yield "What Headgate did:" if controlled.actions else "Headgate did nothing."
    for at_s, action in controlled.actions:
        yield verbatim(f"  {time_of_day(at_s)}  {action.job or action.kind.value}: {action.sentence}")


def _comparison(controlled: DemoRun, alone: DemoRun) -> Iterator[RenderableType]:
    ours, theirs = controlled.ends(), alone.ends()
    columns = ("job", "intent", "worth", "with Headgate", "", "without", "")
    rows = [
        (name, job.job.intent.describe(), f"{job.worth:g}", *_end(job), *_end(theirs.get(name)))
        for name, job in ours.items()
    ]
    yield plain_table(columns, rows)
    yield ""
    met, met_alone = (sum(job.met is True for job in ends.values()) for ends in (ours, theirs))
    yield verbatim(f"Intents met at the end: {met} of {len(rows)} with Headgate, {met_alone} of {len(rows)} without.")


def _end(job: JobView | None) -> tuple[str, str]:
    if job is None or job.latency_s is None:
        return "-", "not measured"
    return show_seconds(job.latency_s, 2), "met" if job.met else "missed"


def _latency_chart(controlled: DemoRun, alone: DemoRun, name: str, step_s: float) -> Iterator[RenderableType]:
    intent_s = controlled.views[0].jobs[name].job.intent.latency_s
    marks = f"{WITH} with Headgate, {WITHOUT} without, {INTENT} intent of {intent_s:g} s"
    yield verbatim(f"Latency of {name} in seconds: {marks}")
    yield from chart(controlled.latencies_s(name), alone.latencies_s(name), intent_s or 0.0, step_s)


def chart(ours: Points, theirs: Points, intent_s: float, step_s: float) -> list[Text]:
    """Draw two latencies over time and the intent, in lines of at most 80 columns, with the time at which the load steps up."""
    points = [*ours, *theirs]
    last_s = max((at_s for at_s, _ in points), default=0.0) or 1.0
    top_s = max(intent_s, *(value_s for _, value_s in points)) if points else intent_s
    cells = [[INTENT if line == _line(intent_s, top_s) else " "] * CHART_COLUMNS for line in range(CHART_LINES)]
    for mark, drawn in ((WITHOUT, theirs), (WITH, ours)):
        for at_s, value_s in drawn:
            cells[_line(value_s, top_s)][_column(at_s, last_s)] = mark
    rows = [_chart_row(line, cells[line], top_s) for line in reversed(range(CHART_LINES))]
    step = f"{' ' * _column(min(step_s, last_s), last_s)}▲ load x 3"
    end = f"{last_s:.0f} s".rjust(CHART_COLUMNS - len(step))
    return [*rows, Text(f"{'0':>6} └{'─' * CHART_COLUMNS}"), Text(f"{'':8}{step}{end}")]


def _line(value_s: float, top_s: float) -> int:
    return min(CHART_LINES - 1, int(value_s / top_s * CHART_LINES)) if top_s else 0


def _column(at_s: float, last_s: float) -> int:
    return round(at_s / last_s * (CHART_COLUMNS - 1))


def _chart_row(line: int, cells: Sequence[str], top_s: float) -> Text:
    label = f"{top_s * (line + 1) / CHART_LINES:.0f}" if line % 3 == 0 else ""
    row = Text(f"{label:>6} │", no_wrap=True)
    for cell in cells:
        row.append(cell, STYLES.get(cell, ""))
    return row


def _next_commands(controlled: DemoRun, journal: Path) -> Iterator[RenderableType]:
    touched = [action.job for _, action in controlled.actions if action.job] or list(controlled.ends())
    yield "Now try:"
    yield verbatim(f"  headgate explain {touched[0]} --journal {journal}")
    yield verbatim("  headgate run examples/cluster.toml --fast")
    yield verbatim("  headgate simulate diurnal --plot diurnal.png")


COMMANDS = (demo,)
