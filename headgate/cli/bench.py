"""`headgate bench`: measures Headgate and its baselines, one benchmark or all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from headgate.bench import NAMES
from headgate.cli.output import as_json, plain_table, show, show_json, verbatim
from headgate.cli.simulate import check_picture
from headgate.core.quantities import show_seconds
from headgate.errors import InputError

ALL = "all"


@click.command(
    epilog=f"NAME is one of: {', '.join(NAMES)}; or {ALL}.", short_help="Measure what Headgate costs and gains."
)
@click.argument("name", metavar="NAME")
@click.option("--full", is_flag=True, help="Run the long form of a benchmark that has one.")
@click.option(
    "--plot", metavar="FILE", help="Draw the result to this file, where there is one to draw (.png, .svg, .pdf)."
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    metavar="N",
    help="chaos: duration of the run in minutes.",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="chaos, tables, kafka: seed of the faults; the same seed repeats the same faults.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=1),
    metavar="N",
    help="tables: kills of the writer of each table. kafka: kills of job, driver and broker, which are then all it does.",
)
@as_json
def bench(
    name: str, full: bool, plot: str | None, minutes: float | None, seed: int | None, kills: int | None, json_too: bool
) -> int:
    """Measure Headgate and its baseline in one run; takes up to five minutes. The exit code is 1 if a bar does not hold.

    "all" runs every benchmark in an hour, writes the results to a dated file in out/bench, and compares them with the last results.
    """
    if name == ALL:
        return _bench_all(full, plot, json_too)
    from dataclasses import asdict

    from headgate.bench import bench as measure
    from headgate.sim.reports import report

    check_picture(plot)
    result = measure(name, Path(plot) if plot is not None else None, full, minutes=minutes, seed=seed, kills=kills)
    rows = [
        (figure.name, report.figure(figure.value), _spread(figure.low, figure.high), figure.unit)
        for figure in result.figures
    ]
    show(plain_table(("measured", "value", "spread", "unit"), rows), "", report.bars_table(result.bars))
    show(*map(verbatim, result.notes))
    if json_too:
        bars = [report.bar_summary(bar) for bar in result.bars]
        figures = [asdict(figure) for figure in result.figures]
        show_json({"bench": name, "figures": figures, "bars": bars, "notes": list(result.notes)})
    return 0 if all(bar.holds for bar in result.bars) else 1


def _spread(low: float | None, high: float | None) -> str:
    """Return the least and greatest value as text; empty if the figure was measured once."""
    from headgate.sim.reports import report

    return "" if low is None or high is None else f"{report.figure(low)} – {report.figure(high)}"


def _bench_all(full: bool, plot: str | None, json_too: bool) -> int:
    from datetime import datetime

    from headgate.bench import record

    if plot is not None:
        raise InputError("all benchmarks together have nothing to draw; leave out --plot, or name one of them")
    before = record.newest(full)
    begun = datetime.now()
    results = []
    for found in record.all_measured(full):
        results.append(found)
        show(*_outcome(found))
    now = record.recorded(results, full, begun)
    path = record.write(now)
    show("", plain_table(record.COLUMNS, [_compared(*row) for row in record.compared(now, before)]), "")
    show(verbatim(f"The results are in {path}." + (f" Before: {before['at']}." if before is not None else "")))
    if json_too:
        show_json(now)
    return 0 if record.all_hold(now) else 1


def _outcome(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the outcome of a benchmark that has ended: bars that hold, duration and notes."""
    held = sum(bar["holds"] for bar in found["bars"])
    planned = f" ({show_seconds(found['planned_s'])} planned)" if found.get("planned_s") else ""
    took = f"{show_seconds(found['took_s'])}{planned}"
    yield verbatim(f"{found['bench']}: {held} of {len(found['bars'])} bars hold, {took}")
    yield from (verbatim(f"  {note}") for note in found["notes"])


def _compared(
    name: str, title: str, bar: str, before: float | None, now: float | None, change: float | None, holds: bool
) -> tuple[str, ...]:
    from headgate.sim.reports import report

    changed = "" if change is None else f"{100 * change:+.0f} %"
    return name, title, bar, report.figure(before), report.figure(now), changed, "yes" if holds else "NO"


COMMANDS = (bench,)
