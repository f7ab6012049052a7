"""The live table: one row per job, drawn from a view, the same for simulated and real clusters.

`table` and its parts are pure; `Screen` shows the table on a terminal or, without a terminal, writes a line per event.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgate.core.metrics import JobView, View
from headgate.core.model import Action, SearchPhase
from headgate.core.quantities import show_seconds
from headgate.ports import JobPhase, JobRecord, RoundRecord

BLOCKS = "▁▂▃▄▅▆▇█"
BAR_CELLS = 8
SPARK_CELLS = 16
SHOWN_ACTIONS = 5
PHASES: Mapping[str, str] = {SearchPhase.SEARCHING: "converging"}
"""Words of the headline for phases, where the name of the phase reads worse."""
STYLES: Mapping[bool | None, str] = {True: "green", False: "red", None: "dim"}
STARTING = JobPhase.STARTING.value
STATES: Mapping[bool | None, str] = {True: "met", False: "missed", None: "measuring"}
"""Words for whether a running job meets its intent; None while the job is being measured."""

# -- rows and figures ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a job and its figures."""

    name: str
    intent: str
    worth: float
    utility: float | None
    met: bool | None
    latency_s: float | None
    latency_missed: bool
    juice: float | None
    juice_missed: bool
    lanes: int
    pace_s: float | None
    note: str = ""
    """Text that replaces the state of the intent."""
    age_s: float | None = None
    """Age of the reading behind the row, in seconds; None if unknown."""
    lag_unknown: bool = False
    """Whether the job was measured and its number of waiting rows is unknown."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An action in words: time, job and cause."""

    at: str
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Headline:
    """Figures of the headline; None means unknown."""

    utility: float | None
    max_utility: float
    cores: float | None = None
    load: float | None = None
    """Load of all hosts together, per core."""


def rows_of_view(view: View) -> list[Row]:
    """The rows of the table for the jobs of a view."""
    return [_row_of_job(job) for job in view.jobs.values()]


def _row_of_job(job: JobView) -> Row:
    intent = job.job.intent
    return Row(
        name=job.job.name,
        intent=intent.describe(),
        worth=job.worth,
        utility=job.utility,
        met=job.met,
        latency_s=job.latency_s,
        latency_missed=_above(job.latency_s, intent.latency_s),
        juice=job.juice,
        juice_missed=job.met is False and _above(intent.juice, job.juice),
        lanes=sum(job.allocation.lanes.values()),
        pace_s=job.allocation.pace_s,
        lag_unknown=job.lag_unknown,
    )


def rows_of_round(record: RoundRecord) -> list[Row]:
    """The rows of the table for the jobs of a round of the journal."""
    return [_row_of_record(name, job) for name, job in record.jobs.items()]


def _row_of_record(name: str, job: JobRecord) -> Row:
    return Row(
        name=name,
        intent=job.intent,
        worth=job.worth,
        utility=job.utility,
        met=job.met,
        latency_s=job.latency_s,
        latency_missed=_above(job.latency_s, job.latency_intent_s),
        juice=job.juice,
        juice_missed=job.met is False and _above(job.juice_intent, job.juice),
        lanes=sum(job.lanes.values()),
        pace_s=job.pace_s,
        lag_unknown=job.lag_unknown,
    )


def _above(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


def cluster_of_view(view: View) -> Headline:
    """The headline figures of a view."""
    loads = [host.load for host in view.hosts if host.load is not None]
    cores = sum(host.cores for host in view.hosts)
    return Headline(
        utility=total_utility(job.utility for job in view.jobs.values()),
        max_utility=sum(job.worth for job in view.jobs.values()),
        cores=cores or None,
        load=sum(loads) / cores if loads and cores else None,
    )


def total_utility(utilities: Iterable[float | None]) -> float | None:
    """Total utility of the measured jobs; None if there are jobs but no job is measured.

    >>> total_utility([30.0, None]), total_utility([None]), total_utility([])
    (30.0, None, 0)
    """
    found = list(utilities)
    known = [utility for utility in found if utility is not None]
    return sum(known) if known or not found else None


def satisfaction(view: View) -> float:
    """Total utility of the measured jobs as a share of their worth; NaN if no job is measured."""
    known = [job for job in view.jobs.values() if job.utility is not None]
    worth = sum(job.worth for job in known)
    return sum(job.utility or 0.0 for job in known) / worth if worth else math.nan


def happened(action: Action, at: str) -> Happened:
    """An action in words."""
    who = action.job or action.kind.value
    return Happened(at, who, action.sentence)


# -- the table -------------------------------------------------------------------------------------------------------------------


def table(
    view: View,
    phase: str,
    history: Sequence[float] = (),
    actions: Sequence[Happened] = (),
    height: int | None = None,
    clock: str = "",
) -> RenderableType:
    """The whole screen: headline, jobs, last actions; `history` is the satisfaction of the last rounds, 0 to 1.

    `console.print(table(view, "converged", [0.5, 0.9, 1.0]))`; jobs that miss their intents come first, and jobs beyond the `height`
    in lines are only counted.
    """
    head = headline(cluster_of_view(view), phase, history, clock)
    shown = actions[-SHOWN_ACTIONS:]
    room = None if height is None else max(3, height - len(shown) - 3)
    return Group(head, *jobs_table(rows_of_view(view), room), *map(_action_line, shown))


def headline(cluster: Headline, phase: str, history: Sequence[float] = (), clock: str = "") -> Text:
    """One line about the cluster as a whole."""
    parts = [f"{_figure(cluster.cores)} cores"] if cluster.cores is not None else []
    parts += [f"load {cluster.load:.2f}"] if cluster.load is not None else []
    parts += [f"utility {_figure(cluster.utility)}/{_figure(cluster.max_utility)}"]
    line = Text(" cluster  ", "bold").append(" · ".join(parts), "not bold")
    line.append(f" {sparkline(history)}" if history else "", "cyan not bold")
    line.append(f"  {PHASES.get(phase, phase)}", "bold" if phase == SearchPhase.CONVERGED else "yellow")
    return line.append(f"  {clock}" if clock else "", "dim not bold")


def sparkline(history: Sequence[float], cells: int = SPARK_CELLS) -> str:
    """The last values between 0 and 1 as a row of blocks.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    known = [min(1.0, max(0.0, value)) for value in history if not math.isnan(value)]
    return "".join(BLOCKS[round(value * (len(BLOCKS) - 1) + 1e-9)] for value in known[-cells:])


def jobs_table(rows: Sequence[Row], room: int | None = None) -> list[RenderableType]:
    """The table of jobs, with jobs that miss their intents first; jobs that do not fit into `room` lines are counted below."""
    ordered = sorted(rows, key=lambda row: row.met is not False)
    fits = len(ordered) if room is None or len(ordered) <= room else room - 1
    return [_Fitting([_draw(ordered[:fits], layout) for layout in LAYOUTS]), *_rest(ordered[fits:])]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A layout of the table of jobs."""

    gap: int
    """Spaces between two columns."""
    bars: bool
    """Whether utility is also drawn as a bar."""


LAYOUTS = (_Layout(3, bars=True), _Layout(1, bars=True), _Layout(1, bars=False))
"""Layouts of the table of jobs, widest first."""
SHRINKING = ("job", "intent")
"""Columns that are cut if even the narrowest table does not fit; figures are never cut."""
UNLIMITED = 10_000
"""Width at which no table is cut."""


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The first of several tables that fits the terminal, else the last table."""

    tables: Sequence[Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=UNLIMITED)
        fits = (one for one in self.tables if console.measure(one, options=unlimited).maximum <= options.max_width)
        yield next(fits, self.tables[-1])


def _draw(rows: Sequence[Row], layout: _Layout) -> Table:
    drawn = Table(box=None, header_style="dim", padding=(0, layout.gap - 1, 0, 1))
    columns = _columns(rows)
    for name in columns:
        drawn.add_column(name, no_wrap=name not in SHRINKING)
    for row in rows:
        cells = _cells(row, layout)
        drawn.add_row(*(cells[name] for name in columns))
    return drawn


def _columns(rows: Sequence[Row]) -> list[str]:
    """Columns for which at least one row has a value."""
    paced = any(row.pace_s is not None for row in rows)
    aged = any(row.age_s is not None for row in rows)
    ends = [*(["every"] if paced else []), *(["read"] if aged else []), "state"]
    return ["job", "intent", "latency", "juice", "utility", "lanes", *ends]


def _state(row: Row) -> Text:
    return Text(row.note, "yellow") if row.note else Text(STATES[row.met], STYLES[row.met])


def _rest(rows: Sequence[Row]) -> list[Text]:
    if not rows:
        return []
    missing = sum(row.met is False for row in rows)
    summary = f"{missing} of them miss their intents" if missing else "none of them misses its intent"
    return [Text(f" and {len(rows)} more job{'s' if len(rows) > 1 else ''}; {summary}", "dim")]


def _cells(row: Row, layout: _Layout) -> dict[str, Text]:
    """Cells of a row, by column."""
    latency = Text("-" if row.latency_s is None else show_seconds(row.latency_s, 2))
    if row.latency_missed:
        latency.append(" ↑").stylize("red")
    juice = Text(_juice(row))
    if row.juice_missed:
        juice.append(" ↓").stylize("red")
    return {
        "job": Text(row.name, no_wrap=True, overflow="ellipsis"),
        "intent": Text(row.intent, no_wrap=True, overflow="ellipsis"),
        "latency": latency,
        "juice": juice,
        "utility": utility_bar(row) if layout.bars else _utility(row),
        "lanes": Text(str(row.lanes)),
        "every": Text(_pace(row.pace_s)),
        "read": Text("-" if row.age_s is None else f"{show_seconds(round(row.age_s), 2)} ago"),
        "state": _state(row),
    }


def _juice(row: Row) -> str:
    if row.juice is None:
        return "unknown" if row.lag_unknown else "-"
    return f"{row.juice:.2f}"


def utility_bar(row: Row) -> Text:
    """Utility as a bar and as a figure: `████░░░░ 54/100`."""
    if row.utility is None:
        return Text(f"{'·' * BAR_CELLS} ", "dim").append_text(_utility(row))
    share = row.utility / row.worth if row.worth else 0.0
    full = min(BAR_CELLS, math.floor(share * BAR_CELLS + 1e-6))
    bar = Text("█" * full + "░" * (BAR_CELLS - full), STYLES[row.met])
    return bar.append(" ").append_text(_utility(row))


def _utility(row: Row) -> Text:
    return Text(f"{_figure(row.utility)}/{_figure(row.worth)}", "default" if row.utility is not None else "dim")


def _pace(pace_s: float | None) -> str:
    if pace_s is None:
        return ""
    return "now" if pace_s == 0 else show_seconds(pace_s, 2)


def _action_line(action: Happened) -> Text:
    line = Text(f" {action.at}  ", "dim", no_wrap=True, overflow="ellipsis")
    return line.append(f"{action.who}  ", "bold not dim").append(action.text, "not dim")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def since_start(at_s: float) -> str:
    """Virtual time for people: hours, minutes and seconds since the start.

    >>> since_start(900)
    '0:15:00'
    """
    minutes, seconds = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


# -- on a terminal ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Screen:
    """Shows each round: the live table on a terminal, else a line per action and regular lines about the cluster.

    `with Screen(console) as screen: screen.show(view, phase, action)`
    """

    console: Console
    clock: Callable[[float], str] = since_start
    line_every_s: float = 300.0
    """Time between two lines about the cluster, in seconds, if there is no terminal."""
    _live: Live | None = None
    _history: list[float] = field(default_factory=list)
    _actions: deque[Happened] = field(default_factory=lambda: deque(maxlen=SHOWN_ACTIONS))
    _next_line_s: float = -math.inf

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: View, phase: str, action: Action | None, draw: bool = True) -> None:
        """Add one round, and redraw the table if `draw`."""
        cluster = cluster_of_view(view)
        self._history.append(satisfaction(view))
        if action is not None:
            self._actions.append(happened(action, self.clock(view.at_s)))
        if self._live is None:
            self._write_lines(view, cluster, phase, action)
        elif draw:
            self._live.update(self._picture(view, phase), refresh=True)

    def _picture(self, view: View, phase: str) -> RenderableType:
        recent = thin_out(self._history, SPARK_CELLS)
        return table(view, phase, recent, list(self._actions), self.console.height - 1, self.clock(view.at_s))

    def _write_lines(self, view: View, cluster: Headline, phase: str, action: Action | None) -> None:
        if action is not None:
            done = self._actions[-1]
            self.console.print(f"{done.at}  {done.who}: {done.text}", markup=False, highlight=False, soft_wrap=True)
        if view.at_s >= self._next_line_s:
            self._next_line_s = view.at_s + self.line_every_s
            self.console.print(self._status_line(view, cluster, phase), markup=False, highlight=False, soft_wrap=True)

    def _jobs_line(self, view: View) -> str:
        return intents_met([job.met for job in view.jobs.values()], len(view.jobs))

    def _status_line(self, view: View, cluster: Headline, phase: str) -> str:
        summary = self._jobs_line(view)
        total = f"utility {_figure(cluster.utility)}/{_figure(cluster.max_utility)}"
        return f"{self.clock(view.at_s)}  {total}, {summary}, {PHASES.get(phase, phase)}"


def intents_met(verdicts: Sequence[bool | None], jobs: int, others: Mapping[str, int] | None = None) -> str:
    """How many jobs have started, meet their intents, are being measured, and are in other states, as one phrase.

    >>> intents_met([True, None], 3, {"failed": 1, "stale": 0})
    '1 of 3 jobs meet their intents, 1 measuring, 1 failed'
    >>> intents_met([True, None], 50, {"starting": 48})
    '2 of 50 jobs started, 1 of 50 jobs meet their intents, 1 measuring'
    """
    states = {STATES[None]: sum(met is None for met in verdicts), **(others or {})}
    starting = states.pop(STARTING, 0)
    started = [f"{jobs - starting} of {jobs} jobs started"] if starting else []
    rest = [f"{count} {state}" for state, count in states.items() if count]
    return ", ".join([*started, f"{sum(met is True for met in verdicts)} of {jobs} jobs meet their intents", *rest])


def thin_out(values: Sequence[float], count: int) -> list[float]:
    """At most `count` of the values, evenly spread, the last value included.

    >>> thin_out(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= count:
        return list(values)
    step = (len(values) - 1) / (count - 1)
    return [values[round(index * step)] for index in range(count)]


def advice_lines(advice: Iterable[str]) -> list[Text]:
    """Advice as lines of text."""
    return [Text(f"advice: {text}", "yellow") for text in advice]
