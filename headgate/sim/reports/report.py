"""Results of a simulation: one object for machines, a few tables for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from headgate.core.metrics import JobView
from headgate.core.model import SearchPhase
from headgate.core.quantities import show_seconds
from headgate.sim.reports.bars import Bar
from headgate.sim.run import Run, actions_by_kind
from headgate.sim.spec import Scenario, Variant

Summary = dict[str, Any]
Runs = Mapping[str, Run]
Variants = Sequence[tuple[Variant, Runs]]

PERCENTILES = (5, 15, 50, 90)
ALL = 1 - 1e-9
"""A satisfaction from here on means that all intents are met; sums are rounded."""
KEPT = 0.99
"""Intents count as kept if all intents are met for at least this share of the time."""

# -- for machines ----------------------------------------------------------------------------------------------------------------


def result(scenario: Scenario, seed: int, runs: Runs, variants: Variants, bars: Sequence[Bar]) -> Summary:
    """Everything about one seed, as JSON can hold it: no number in it is infinite or not a number."""
    whole: Summary = {"scenario": scenario.name, "seed": seed, "policies": _policies(runs)}
    if variants:
        whole["sweep"] = [
            {"label": variant.label, "value": variant.value, "policies": _policies(of_variant)}
            for variant, of_variant in variants
        ]
    whole["bars"] = [bar_summary(bar) for bar in bars]
    return finite(whole)  # type: ignore[no-any-return]


def result_of_seeds(scenario: Scenario, results: Sequence[Summary], worst: Sequence[Bar]) -> Summary:
    """Return everything about many seeds: each seed without its log, and the worst value of each bar."""
    seeds = [{key: value for key, value in one.items() if key != "scenario"} for one in results]
    bars = [bar_summary(bar) for bar in worst]
    return finite({"scenario": scenario.name, "seeds": seeds, "bars": bars})  # type: ignore[no-any-return]


def without_logs(whole: Summary) -> Summary:
    """Return a summary without logs, which are most of its size."""
    if "policies" not in whole:
        return whole
    bare = {name: {k: v for k, v in one.items() if k != "log"} for name, one in whole["policies"].items()}
    return {**whole, "policies": bare, **({"sweep": [*map(without_logs, whole["sweep"])]} if "sweep" in whole else {})}


def finite(value: Any) -> Any:
    """The value with None wherever a number is infinite or not a number, because JSON has neither."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def _policies(runs: Runs) -> dict[str, Summary]:
    return {name: run_summary(run) for name, run in runs.items()}


def run_summary(run: Run) -> Summary:
    """Return the summary of one policy: the satisfaction of the jobs, the actions, and the final state."""
    return {
        "satisfaction": satisfaction(run),
        "all_met": all_met(run),
        "converged_s": converged_s(run),
        "actions": dict(actions_by_kind(run.log)),
        "jobs": {name: _job_summary(run, job) for name, job in final_jobs(run).items()},
        "log": [{"t": one.at_s, "job": one.job, "action": one.kind, "cause": one.cause} for one in run.log],
        "diagnoses": [
            {"t": one.at_s, "job": one.job, "diagnosis": one.kind, "operator": one.operator, "lanes": list(one.lanes)}
            for one in run.diagnoses
        ],
        "advice": list(run.advice),
        "alerts": [{"t": at_s, "text": text} for at_s, text in run.alerts],
        **({"hosts": dict(run.leased)} if run.leased is not None else {}),
    }


def satisfaction(run: Run) -> dict[str, float | None]:
    """Mean and percentiles of the satisfaction since control began."""
    values = [value for _, value in run.controlled() if math.isfinite(value)]
    if not values:
        return {"mean": None, **{f"p{percentile}": None for percentile in PERCENTILES}}
    at = np.percentile(values, PERCENTILES).tolist()
    return {"mean": statistics.fmean(values)} | {f"p{p}": value for p, value in zip(PERCENTILES, at, strict=True)}


def all_met(run: Run) -> float | None:
    """Share of the time under control in which all intents were met."""
    return _share_met(value for _, value in run.controlled())


def job_met(run: Run, job: str) -> float | None:
    """Share of the time under control in which the job's intent was met."""
    pairs = run.series[job].pairs("satisfaction") if job in run.series else []
    return _share_met(value for at_s, value in pairs if at_s > run.scenario.control_after_s)


def _share_met(values: Iterable[float]) -> float | None:
    met = [value >= ALL for value in values if not math.isnan(value)]
    return sum(met) / len(met) if met else None


def converged_s(run: Run) -> float | None:
    """Seconds of control until the cluster first converged."""
    return run.converged_at_s[0] - run.scenario.control_after_s if run.converged_at_s else None


def final_jobs(run: Run) -> Mapping[str, JobView]:
    """The jobs as they were in the last round."""
    return run.final.jobs if run.final is not None else {}


def _job_summary(run: Run, job: JobView) -> Summary:
    return {
        "utility": job.utility,
        "max_utility": job.worth,
        "met": job.met,
        "reconfigurations": run.reconfigurations(job.job.name),
        "lanes": dict(job.allocation.lanes),
    }


def bar_summary(bar: Bar) -> Summary:
    """A bar as an object."""
    return {
        "name": bar.name,
        "value": None if bar.value is None or math.isnan(bar.value) else bar.value,
        "bar": bar.bar,
        "op": bar.op,
        "holds": bar.holds,
    }


# -- many seeds ------------------------------------------------------------------------------------------------------------------


def by_name(bars: Iterable[Sequence[Bar]]) -> dict[str, list[Bar]]:
    """Group the bars of many seeds by name."""
    together: dict[str, list[Bar]] = {}
    for of_seed in bars:
        for bar in of_seed:
            together.setdefault(bar.name, []).append(bar)
    return together


def worst(bars: Sequence[Bar]) -> Bar:
    """Return the bar that is furthest on the wrong side of its limit; a bar without a value is the worst."""
    return min(bars, key=lambda bar: (bar.holds, _margin(bar)))


def _margin(bar: Bar) -> float:
    if bar.value is None or math.isnan(bar.value):
        return -math.inf
    above = bar.value - bar.bar
    if bar.op.startswith(">"):
        return above
    return -above if bar.op.startswith("<") else -abs(above)


# -- for people ------------------------------------------------------------------------------------------------------------------


def policies_table(runs: Runs) -> Table:
    """A row per policy; satisfaction in per cent."""
    table = _table("policy", "mean %", *(f"p{p}" for p in PERCENTILES), "converged", "actions")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for name, run in runs.items():
        shares = [_bare_percent(value) for value in satisfaction(run).values()]
        done = [f"{number} {kind}" for kind, number in actions_by_kind(run.log).items() if number]
        _add(table, name, *shares, ended(run), ", ".join(done) or "none")
    return table


def ended(run: Run) -> str:
    """Return the time to convergence; "gave up", "no" or "-" for a run that did not end converged with all intents met."""
    phase = run.phases[-1] if run.phases else ""
    if phase == SearchPhase.CONVERGED.value:
        return duration(converged_s(run)) if all(job.met for job in final_jobs(run).values()) else "gave up"
    return "no" if phase == SearchPhase.SEARCHING.value else "-"


def jobs_table(run: Run, limit: int = 40) -> Table:
    """A row per job, as it ended; `met` is over the whole time under control."""
    table = _table("job", "intent", "latency", "juice", "utility", "met", "reconf.", "lanes")
    jobs = final_jobs(run)
    for name, job in list(jobs.items())[:limit]:
        utility = Text(f"{points(job.utility)}/{points(job.worth)}", "red" if job.met is False else "")
        measured = duration(job.latency_s), "-" if job.juice is None else f"{_cut(job.juice, 1000):.3f}"
        counts = str(run.reconfigurations(name)), str(sum(job.allocation.lanes.values()))
        _add(table, name, job.job.intent.describe(), *measured, utility, percent(job_met(run, name)), *counts)
    if len(jobs) > limit:
        _add(table, f"and {count(len(jobs) - limit, 'more job')}")
    return table


def sweep_table(variants: Variants) -> Table:
    """Return a table with a row per point of the sweep and policy; "all met" is the share of the time in which every intent was met."""
    table = _table(variants[0][0].label, "policy", "all met", "mean", "p5", "converged", "actions", left=2)
    for variant, runs in variants:
        for index, (policy, run) in enumerate(runs.items()):
            stats = satisfaction(run)
            shares = [percent(share) for share in (all_met(run), stats["mean"], stats["p5"])]
            _add(table, "" if index else _value(variant.value), policy, *shares, ended(run), str(len(run.log)))
    return table


def sweep_answer(variants: Variants) -> str:
    """Return a sentence about the points at which the sweep's first policy keeps all intents."""
    policy = next(iter(variants[0][1]))
    order = sorted(variants, key=lambda one: one[0].value) if to_scale(variants) else variants
    kept = [(all_met(runs[policy]) or 0.0) >= KEPT for _, runs in order]
    values = [_value(variant.value) for variant, _ in order]
    most = f"all intents for at least {100 * KEPT:g} % of the time"
    keeps = f"keeps {most}"
    label = variants[0][0].label
    if not any(kept):
        return f"{label}: at none of them does {policy} keep {most}"
    if all(kept):
        return f"{label}: {policy} {keeps} at all of them"
    if to_scale(variants) and kept == sorted(kept):
        return f"{label}: {values[kept.index(True)]} is the least at which {policy} {keeps}"
    if to_scale(variants) and kept == sorted(kept, reverse=True):
        return f"{label}: {values[kept.index(False) - 1]} is the most at which {policy} {keeps}"
    return f"{label}: {policy} {keeps} at {', '.join(v for v, holds in zip(values, kept, strict=True) if holds)}"


def to_scale(variants: Variants) -> bool:
    """Whether the points of the sweep are numbers."""
    return not any(isinstance(variant.value, str) for variant, _ in variants)


def bars_table(bars: Sequence[Bar]) -> Table:
    """A row per bar, whether it holds."""
    table = _table("measured", "value", "bar", "holds")
    for bar in bars:
        _add(table, bar.name, figure(bar.value), f"{bar.op} {figure(bar.bar)}", yes(bar.holds))
    return table


def paper_table(paper: Mapping[str, str]) -> Table:
    """Return a table of the figures of the paper."""
    table = _table("in the paper", "", left=2)
    table.columns[1].no_wrap = False
    for name, text in paper.items():
        _add(table, name, text)
    return table


def spread_of_bars(bars: Mapping[str, Sequence[Bar]], seeds: int) -> Table:
    """A row per bar: its spread over the seeds, and for how many of them it holds."""
    table = _table("measured", "min", "median", "max", "bar", "holds")
    for name, of_name in bars.items():
        held = sum(bar.holds for bar in of_name)
        verdict = yes(held == seeds).append(f" {held}/{seeds}", "default not bold")
        spread = spread_cells([bar.value for bar in of_name], figure)
        _add(table, name, *spread, f"{of_name[0].op} {figure(of_name[0].bar)}", verdict)
    return table


def spread_of_satisfaction(results: Sequence[Summary]) -> Table:
    """A row per policy: mean satisfaction over the seeds."""
    table = _table("policy", "min", "median", "max")
    for policy in results[0]["policies"]:
        means = [one["policies"][policy]["satisfaction"]["mean"] for one in results]
        _add(table, policy, *spread_cells(means, percent))
    return table


def spread_of_sweep(results: Sequence[Summary]) -> Table:
    """A row per point of the sweep and policy: the share of the time in which all intents were met, over the seeds."""
    points_ = results[0]["sweep"]
    table = _table(points_[0]["label"], "policy: all met", "min", "median", "max", left=2)
    for index, point in enumerate(points_):
        for policy in point["policies"]:
            shares = [one["sweep"][index]["policies"][policy]["all_met"] for one in results]
            _add(table, _value(point["value"]), policy, *spread_cells(shares, percent))
    return table


def spread_cells(values: Sequence[float | None], show: Any) -> tuple[str, str, str]:
    """Lowest, median and highest of the values that are known."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return "-", "-", "-"
    return show(min(known)), show(statistics.median(known)), show(max(known))


def _table(*columns: str, left: int = 1) -> Table:
    """Return a table whose first `left` columns are text; in a narrow terminal, words wrap and numbers do not."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index >= left else "left", no_wrap=index > 0, overflow="fold")
    return table


def _add(table: Table, *cells: str | Text) -> None:
    """Add a row of cells without reading square brackets in text as markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def figure(value: float | None) -> str:
    """A number in about four digits, `-` if it is not known."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def points(utility: float | None) -> str:
    """Format a utility with one decimal, and without decimals if the decimal is zero."""
    return "-" if utility is None else f"{utility:,.1f}".removesuffix(".0")


def percent(share: float | None) -> str:
    """A share in per cent."""
    bare = _bare_percent(share)
    return bare if bare == "-" else f"{bare} %"


def _bare_percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * _cut(share, 1000):.1f}"


def _cut(share: float, parts: int) -> float:
    """Truncate a share instead of rounding, so that 99.98 % is not shown as 100 %."""
    return math.floor(parts * share + 1e-9) / parts


def count(number: int, thing: str) -> str:
    """A number of things.

    >>> count(1, "host"), count(2, "host")
    ('1 host', '2 hosts')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def duration(value_s: float | None) -> str:
    """Format a duration; `-` if the duration is not known."""
    return "-" if value_s is None else show_seconds(value_s)


def yes(holds: bool) -> Text:
    """Yes in green, or a NO that cannot be missed."""
    return Text("yes", "green") if holds else Text("NO", "bold red")


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else figure(value)
