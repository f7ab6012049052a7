"""The bill of leased hosts as tables for people, with the rows of VISP's table 3."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from headgate.sim.run import Run


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def _one_digit(value: float) -> str:
    return f"{value:,.1f}"


ROWS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "paid_btus": ("paid BTUs", _whole),
    "leases": ("hosts leased", _whole),
    "renewals": ("hosts paid again", _whole),
    "releases": ("hosts released at the end of a BTU", _whole),
    "early_releases": ("hosts released early", _whole),
    "real-time": ("rows in real time", _share),
    "near-real-time": ("rows in near real time", _share),
    "relaxed": ("rows in relaxed time", _share),
    "real-time without the busiest": ("… real time, without the two busiest operators", _share),
    "near-real-time without the busiest": ("… near real time, without them", _share),
    "relaxed without the busiest": ("… relaxed time, without them", _share),
    "time_to_adapt_s": ("mean time to adapt (s)", _one_digit),
    "time_to_adapt_deviation_s": ("… its standard deviation (s)", _one_digit),
    "lanes_started": ("lanes started", _whole),
    "lanes_stopped": ("lanes stopped", _whole),
    "lanes_moved": ("lanes moved", _whole),
    "cost": ("cost", _one_digit),
    "wasted_min": ("paid and given away (min)", _one_digit),
    "most_hosts": ("most hosts at once", _whole),
    "mean_hosts": ("hosts, mean", _one_digit),
    "most_per_hour": ("highest spending per hour", _one_digit),
}


def hosts_table(runs: Mapping[str, Run]) -> Table:
    """Return a table with a column per policy, a row per figure, and below these a row for the cost of each job."""
    found = {name: run.leased for name, run in runs.items() if run.leased is not None}
    table = _table(*found)
    for key, (label, shown) in ROWS.items():
        table.add_row(label, *(shown(figures[key]) for figures in found.values()))
    for job in dict.fromkeys(job for figures in found.values() for job in figures["cost_by_job"]):
        table.add_row(
            f"cost of {job}", *(_one_digit(figures["cost_by_job"].get(job, 0.0)) for figures in found.values())
        )
    return table


def spread_of_hosts(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the figures over many seeds: mean, lowest and highest."""
    policies = [name for name, one in results[0]["policies"].items() if "hosts" in one]
    table = _table(*policies)
    for key, (label, shown) in ROWS.items():
        columns = ([one["policies"][name]["hosts"][key] for one in results] for name in policies)
        table.add_row(label, *(f"{shown(statistics.fmean(c))} ({shown(min(c))} … {shown(max(c))})" for c in columns))
    return table


def _table(*policies: str) -> Table:
    table = Table("hosts", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for policy in policies:
        table.add_column(policy, justify="right")
    return table
