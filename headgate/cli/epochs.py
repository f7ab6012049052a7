"""`headgate epochs`: the last epochs of a job as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.measure import Measurement

from headgate.cli.output import as_json, home_option, plain_table, show, show_json, time_of_day, verbatim
from headgate.core.model import EpochPart, EpochTiming
from headgate.core.quantities import show_seconds

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

NARROWEST, WIDEST = 10, 60
"""Least and most characters of the longest bar; between these limits, the bar is as wide as the terminal allows."""
SIGNS = {
    EpochPart.READ: "r",
    EpochPart.LOG: "l",
    EpochPart.PLAN: "p",
    EpochPart.FAILED: "x",
    EpochPart.SINK: "s",
    EpochPart.STATE: "k",
    EpochPart.COUNT: "c",
    EpochPart.WAIT: ".",
    EpochPart.COMMIT: "m",
}
LEGEND = (
    "r: Spark reads offsets; l: log; p: plan; x: failed attempt; s: operators and sinks; k: keyed state; c: counts;"
    " .: wait for the pace; m: Spark's commit"
)


@click.command(short_help="Show the last epochs of a job as a waterfall.")
@click.argument("job", metavar="JOB")
@click.option(
    "--most", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Show the last N epochs."
)
@home_option
@as_json
def epochs(job: str, most: int, home: str, json_too: bool) -> None:
    """Show the last epochs of a job as a waterfall: one row per epoch, one letter per part.

    The bars of all epochs have the same scale. The engine keeps the last `kept_epochs` epochs of each job.
    """
    import msgspec

    from headgate.server.client import Client
    from headgate.server.home import Home

    found = Client(Home(Path(home))).epochs(job)[-most:]
    if found:
        show(_table(found), verbatim(LEGEND))
    else:
        show(verbatim(f'job "{job}" has not finished an epoch that the engine measured'))
    if json_too:
        show_json(msgspec.to_builtins(found))


def _table(found: Sequence[EpochTiming]) -> RenderableType:
    longest_s = max(one.took_s for one in found)
    rows = [
        (
            str(one.number),
            time_of_day(one.started_s),
            f"{one.rows:,.0f}",
            show_seconds(one.took_s),
            show_seconds(one.seconds_of(EpochPart.WAIT)),
            EpochBar(one, longest_s),
        )
        for one in found
    ]
    return plain_table(("epoch", "started", "rows", "took", "waited", "parts"), rows)


@dataclass(frozen=True, slots=True)
class EpochBar:
    """The bar of one epoch: its parts in characters, on the scale of the longest epoch."""

    epoch: EpochTiming
    longest_s: float

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST, WIDEST)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield verbatim(self.text(min(options.max_width, WIDEST)))

    def text(self, width: int) -> str:
        """Return the bar, scaled so that the longest epoch has `width` characters.

        The times at which parts begin and end are rounded to characters, so rounding errors never add up.
        """
        return "".join(self._pieces(width / self.longest_s if self.longest_s > 0 else 0.0))

    def _pieces(self, characters_per_s: float) -> Iterator[str]:
        at_s = 0.0
        for span in self.epoch.spans:
            begin, at_s = round(at_s * characters_per_s), at_s + span.took_s
            yield SIGNS[span.part] * (round(at_s * characters_per_s) - begin)


COMMANDS = (epochs,)
