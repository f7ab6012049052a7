"""Plots of a simulation in the style of the Henge papers: utility over time, with actions and their causes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from headgate.sim.reports.report import Runs, Variants, all_met, satisfaction, to_scale
from headgate.sim.run import Logged, Run
from headgate.sim.spec import Event, Scenario

COLORS: Mapping[str, str] = {"headgate": "#0b6e99", "manual": "#d98324", "threshold": "#7a5195", "static": "#8a8f94"}
ACTION_COLORS: Mapping[str, str] = {
    "reconfigure": "#0b6e99",
    "reduce": "#2a9d5c",
    "throttle": "#7a5195",
    "revert": "#c8553d",
    "relax": "#b08900",
    "lease": "#2f7d32",
    "release": "#8d6e63",
}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa0a6",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#e3e6e8",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "savefig.dpi": 150,
}
SIGN_WIDTH = 0.0058
"""Width of a character of an action's label, as a share of the time axis."""
MIN_SPAN = 0.02
"""The least share of the time axis that a span needs to show its name."""
LABEL_ROWS = 3
MEMORY_SHOWN = 0.05
"""Share of memory in use from which on memory is drawn."""
WIDE = 50.0
"""A sweep whose largest value is more than this multiple of its least value has a logarithmic axis."""
MAX_LINES = 8
"""Jobs that can be told apart in one panel; more are drawn as a band."""

GRADES = LinearSegmentedColormap.from_list("grades", ["#c8553d", "#f2c57c", "#cfe3d4", "#2a9d5c"])

Panel = Callable[[Axes], None]
Values = npt.NDArray[np.float64]


def draw(scenario: Scenario, runs: Runs, variants: Variants, path: Path) -> None:
    """Write the picture that fits the scenario; the format follows from the name of the file."""
    with mpl.rc_context(STYLE):
        figure = _sweep_figure(scenario, variants) if variants else _time_figure(scenario, runs)
        figure.savefig(path)


# -- over time -------------------------------------------------------------------------------------------------------------------


def _time_figure(scenario: Scenario, runs: Runs) -> Figure:
    first = next(iter(runs.values()))
    panels = _panels(scenario, runs, first)
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, len(panels), height_ratios=(3, 2))
    _utility_panel(figure.add_subplot(grid[0, :]), scenario, runs)
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(grid[1, index]))
    figure.suptitle(_title(scenario), x=0.01, ha="left", fontsize=12)
    return figure


def _title(scenario: Scenario) -> str:
    return scenario.title + (f"  ({scenario.figure})" if scenario.figure else "")


def _panels(scenario: Scenario, runs: Runs, first: Run) -> list[Panel]:
    """Return the panels below the utility: input, load, memory if it matters, and the spread of satisfaction."""
    panels: list[Panel] = [
        lambda axes: _input_panel(axes, scenario, first),
        lambda axes: _load_panel(axes, scenario, runs),
    ]
    if _highest(first.memory) > (0.0 if scenario.name == "memory" else MEMORY_SHOWN):
        panels.append(lambda axes: _memory_panel(axes, scenario, runs))
    if len(runs) > 1:
        panels.append(lambda axes: _spread_panel(axes, runs))
    elif first.series:
        panels.append(lambda axes: _jobs_panel(axes, scenario, first))
    return panels


def _highest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=0.0)


def _utility_panel(axes: Axes, scenario: Scenario, runs: Runs) -> None:
    unit_s, unit = _time_unit(scenario)
    for name, run in reversed(list(runs.items())):
        utilities = [run.worths[job] * series for job, series in _series(run, run.column("satisfaction")).items()]
        axes.plot(_in(run.times_s, unit_s), _sum(utilities, run), color=_color(name), label=name)
    first = next(iter(runs.values()))
    most = _sum(
        [
            first.worths[job] * np.where(np.isnan(series), np.nan, 1.0)
            for job, series in _series(first, first.column("satisfaction")).items()
        ],
        first,
    )
    axes.plot(_in(first.times_s, unit_s), most, color="#333333", lw=0.9, ls=(0, (4, 3)), label="maximum")
    top = _highest(list(most)) or 1.0
    axes.set(title="Total utility", ylabel="utility", xlabel=unit, xlim=(0, scenario.duration_s / unit_s))
    axes.set_ylim(-0.02 * top, top * 1.28)
    _mark_control(axes, scenario, unit_s)
    _mark_unread(axes, first, unit_s)
    _mark_events(axes, scenario.events, unit_s, top)
    _mark_actions(axes, first.log, unit_s, top)
    handles, labels = axes.get_legend_handles_labels()
    order = [*reversed(range(len(runs))), *range(len(runs), len(handles))]
    axes.legend(
        [handles[i] for i in order], [labels[i] for i in order],
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=9, borderaxespad=0.2,
    )  # fmt: skip


def _mark_control(axes: Axes, scenario: Scenario, unit_s: float) -> None:
    if scenario.control_after_s <= 0:
        return
    axes.axvspan(0, scenario.control_after_s / unit_s, color="#f1f3f4", zorder=0)
    _name_span(axes, 0.0, scenario.control_after_s / unit_s, "not controlled", "#6b7075")


def _name_span(axes: Axes, begin: float, end: float, name: str, color: str) -> None:
    """Write the name of a span in its middle if the span is wide enough."""
    if end - begin > MIN_SPAN * (axes.get_xlim()[1] - axes.get_xlim()[0]):
        up, behind = axes.get_xaxis_transform(), {"facecolor": "#ffffffb0", "edgecolor": "none", "pad": 1.5}
        axes.text(
            (begin + end) / 2, 0.45, name, transform=up, rotation=90, ha="center", va="center", color=color, bbox=behind
        )  # fmt: skip


def _mark_unread(axes: Axes, run: Run, unit_s: float) -> None:
    """Shade the time in which no job could be read, after the first reading."""
    for begin_s, end_s in _unread(run):
        axes.axvspan(begin_s / unit_s, end_s / unit_s, color="#f6dcd5", lw=0, zorder=0)
        _name_span(axes, begin_s / unit_s, end_s / unit_s, "not read", "#a05a48")


def _unread(run: Run) -> Iterator[tuple[float, float]]:
    """Yield the start and end of each time without readings."""
    read_s: float | None = None
    blind = False
    for at_s, value in zip(run.times_s, run.satisfaction, strict=True):
        if math.isnan(value):
            blind = read_s is not None
            continue
        if blind and read_s is not None:
            yield read_s, at_s
        read_s, blind = at_s, False
    if blind and read_s is not None:
        yield read_s, run.times_s[-1]


def _mark_events(axes: Axes, events: Sequence[Event], unit_s: float, top: float) -> None:
    """Draw a dashed line with a label at each time that has events."""
    for at_s in sorted({event.at_s for event in events}):
        kinds = Counter(event.kind for event in events if event.at_s == at_s)
        kinds_text = ", ".join(kind if number == 1 else f"{number} x {kind}" for kind, number in kinds.items())
        at = at_s / unit_s
        axes.plot([at, at], [0, top * 1.02], color="#333333", lw=0.9, ls=(0, (2, 2)), zorder=1)
        axes.text(at, 0.02 * top, f" {kinds_text}", rotation=90, va="bottom", fontsize=7, color="#333333")


def _mark_actions(axes: Axes, log: Sequence[Logged], unit_s: float, top: float) -> None:
    """Draw a line per action; label as many actions as fit, and count the others."""
    sign = (axes.get_xlim()[1] - axes.get_xlim()[0]) * SIGN_WIDTH
    free_from = [-math.inf] * LABEL_ROWS
    faint = 0.6 if len(log) <= 40 else 0.25
    unnamed = 0
    for one in log:
        at, color = one.at_s / unit_s, ACTION_COLORS[one.kind]
        axes.plot([at, at], [0, top * 1.02], color=color, lw=0.8, alpha=faint, zorder=1)
        who = _who(one)
        start = at - sign * len(who) / 2
        row = next((index for index, free in enumerate(free_from) if start >= free), None)
        if row is None:
            unnamed += 1
            continue
        free_from[row] = start + sign * (len(who) + 1)
        axes.text(at, top * (1.035 + 0.05 * row), who, color=color, fontsize=7, ha="center", va="bottom")
    if unnamed:
        axes.text(
            1.0, 0.985, f"+{unnamed} more actions", transform=axes.transAxes, fontsize=7, ha="right", va="top",
            color="#6b7075",
        )  # fmt: skip
    kinds = {one.kind for one in log}
    for kind in (kind for kind in ACTION_COLORS if kind in kinds):
        axes.plot([], [], color=ACTION_COLORS[kind], lw=0.8, alpha=0.8, label=kind)


def _who(one: Logged) -> str:
    if one.job is not None:
        return one.job
    return one.touched[0] if len(one.touched) == 1 else f"{len(one.touched)} jobs"


def _series(run: Run, points: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Values]:
    """A value per job and round; NaN while the job is not there, or none can be read.

    Any other gap, such as that of a job which just got a new allocation, is bridged by the value before it.
    """
    times = np.array(run.times_s)
    series = {}
    for job, of_job in points.items():
        known = [point for point in of_job if not math.isnan(point[1])]
        if known:
            at, values = (np.array(column) for column in zip(*known, strict=True))
            newest = np.searchsorted(at, times, side="right") - 1
            there = (newest >= 0) & (times <= of_job[-1][0]) & ~np.isnan(run.satisfaction)
            series[job] = np.where(there, values[np.maximum(newest, 0)], np.nan)
    return series


def _sum(series: Sequence[Values], run: Run) -> Values:
    """Return the sum over the running jobs; NaN where no job runs."""
    rows = np.array([np.full(len(run.times_s), np.nan), *series])
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.nansum(rows, axis=0))


# -- the panels below ------------------------------------------------------------------------------------------------------------


def _input_panel(axes: Axes, scenario: Scenario, run: Run) -> None:
    """Input per job; of many jobs, the sum."""
    unit_s, unit = _time_unit(scenario)
    rates = {name: series / 1000 for name, series in _series(run, run.column("arrival_rows_s")).items()}
    few = 0 < len(rates) <= MAX_LINES
    if few:
        shades = mpl.colormaps["viridis"](np.linspace(0.1, 0.85, len(rates)))
        for color, (name, series) in zip(shades, rates.items(), strict=True):
            axes.plot(_in(run.times_s, unit_s), series, color=color, lw=1.1, label=name)
        axes.legend(ncols=2, handlelength=1.2, columnspacing=0.8, loc="upper left")
    else:
        axes.plot(_in(run.times_s, unit_s), _sum(list(rates.values()), run), color="#3d7a5a")
    title = "Input per job" if few else f"Input of all {len(rates)} jobs"
    axes.set(title=title, ylabel="1,000 rows/s", xlabel=unit, xlim=(0, scenario.duration_s / unit_s))
    legend_lines = math.ceil(len(rates) / 2) if few else 0
    axes.set_ylim(0, axes.get_ylim()[1] * (1.05 + 0.18 * legend_lines))


def _load_panel(axes: Axes, scenario: Scenario, runs: Runs) -> None:
    unit_s, unit = _time_unit(scenario)
    for name, run in reversed(list(runs.items())):
        axes.plot(_in(run.times_s, unit_s), run.load, color=_color(name), lw=1.1, label=name)
    axes.axhline(1.0, color="#333333", lw=0.8, ls=(0, (4, 3)))
    axes.set(title="Load per core", ylabel="runnable lanes per core", xlabel=unit)
    axes.set(xlim=(0, scenario.duration_s / unit_s))
    axes.set_ylim(0, max(1.1, axes.get_ylim()[1]))


def _memory_panel(axes: Axes, scenario: Scenario, runs: Runs) -> None:
    unit_s, unit = _time_unit(scenario)
    for name, run in reversed(list(runs.items())):
        axes.plot(_in(run.times_s, unit_s), 100 * np.array(run.memory), color=_color(name), lw=1.1)
    axes.set(title="Memory in use", ylabel="%", xlabel=unit, xlim=(0, scenario.duration_s / unit_s))
    axes.set_ylim(0, max(100.0, axes.get_ylim()[1]))


def _spread_panel(axes: Axes, runs: Runs) -> None:
    """Draw the distribution of satisfaction: the share of time with at most each satisfaction."""
    for name, run in reversed(list(runs.items())):
        values = np.sort([100 * value for _, value in run.controlled() if not math.isnan(value)])
        if len(values):
            shares = np.arange(len(values) + 1) / len(values)
            axes.plot(np.concatenate(([0.0], values)), shares, color=_color(name), drawstyle="steps-post")
    axes.set(title="Satisfaction (CDF)", xlabel="% of the maximum utility", ylabel="share of the time")
    axes.set(xlim=(-2, 102), ylim=(-0.02, 1.02))


def _jobs_panel(axes: Axes, scenario: Scenario, run: Run) -> None:
    """Draw the satisfaction of each job over time as a row of a heat map."""
    unit_s, unit = _time_unit(scenario)
    rows = _series(run, run.column("satisfaction"))
    names = list(rows)
    extent = (0.0, scenario.duration_s / unit_s, len(names) - 0.5, -0.5)
    axes.imshow(
        np.array(list(rows.values())),
        aspect="auto",
        extent=extent,
        vmin=0,
        vmax=1,
        cmap=GRADES,
        interpolation="nearest",
    )
    step = max(1, math.ceil(len(names) / 12))
    axes.set_yticks(range(0, len(names), step), names[::step])
    axes.set(title="Satisfaction per job", xlabel=f"{unit} (red 0, green 1)")
    axes.grid(False)


# -- over a sweep ----------------------------------------------------------------------------------------------------------------


def _sweep_figure(scenario: Scenario, variants: Variants) -> Figure:
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _satisfaction_over(left, variants)
    _counts_over(middle, variants)
    _all_met_over(right, variants)
    for axes in (left, middle, right):
        axes.set_xlabel(variants[0][0].label)
        if min(_places(variants)) > 0 and max(_places(variants)) > WIDE * min(_places(variants)):
            axes.set_xscale("log")
        axes.set_xticks(_places(variants), _values(variants))
        axes.minorticks_off()
    figure.suptitle(_title(scenario), x=0.01, ha="left", fontsize=12)
    return figure


def _places(variants: Variants) -> list[float]:
    """Return the positions of the sweep's points on the axis: to scale if the points are numbers."""
    if to_scale(variants):
        return [float(variant.value) for variant, _ in variants]
    return [float(index) for index in range(len(variants))]


def _values(variants: Variants) -> list[str]:
    return [value if isinstance(value := variant.value, str) else f"{value:g}" for variant, _ in variants]


def _satisfaction_over(axes: Axes, variants: Variants) -> None:
    places = _places(variants)
    for name in variants[0][1]:
        stats = [satisfaction(runs[name]) for _, runs in variants]
        mean, low, high = ([_percent(one[key]) for one in stats] for key in ("mean", "p5", "p90"))
        axes.fill_between(places, low, high, color=_color(name), alpha=0.12, lw=0)
        for edge in (low, high):
            axes.plot(places, edge, color=_color(name), lw=0.7, alpha=0.6)
        axes.plot(places, mean, "o-", color=_color(name), label=name)
    axes.set(title="Satisfaction: mean, p5 to p90", ylabel="% of the maximum utility", ylim=(-2, 104))
    axes.legend(loc="lower right")


def _counts_over(axes: Axes, variants: Variants) -> None:
    """Reconfigurations per job, mean and highest."""
    for name in variants[0][1]:
        counts = [[runs[name].reconfigurations(job) for job in runs[name].worths] or [0] for _, runs in variants]
        axes.plot(_places(variants), [np.mean(c) for c in counts], "o-", color=_color(name))
        axes.plot(_places(variants), [max(c) for c in counts], "^:", color=_color(name), alpha=0.7)
    axes.set(title="Reconfigurations per job", ylabel="mean (solid) and highest (dotted)")
    axes.set_ylim(bottom=0)


def _all_met_over(axes: Axes, variants: Variants) -> None:
    """Share of the time under control in which no intent was missed."""
    for name in variants[0][1]:
        shares = [_percent(all_met(runs[name])) for _, runs in variants]
        axes.plot(_places(variants), shares, "o-", color=_color(name))
    axes.set(title="Time in which all intents are met", ylabel="%", ylim=(-2, 104))


# -- units -----------------------------------------------------------------------------------------------------------------------


def _time_unit(scenario: Scenario) -> tuple[float, str]:
    return (3600.0, "hours") if scenario.duration_s > 3 * 3600 else (60.0, "minutes")


def _in(times_s: Sequence[float], unit_s: float) -> list[float]:
    return [at_s / unit_s for at_s in times_s]


def _percent(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def _color(policy: str) -> str:
    return COLORS.get(policy, "#444444")
