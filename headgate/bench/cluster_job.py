"""The jobs of `headgate bench cluster`: counts and sums by key, whose output shows every row that is lost or doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headgate import Intent, Topology, sinks, sources
from headgate.state.library import Value
from headgate.state.operators import Events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS, SLICES, LANES, MOST_LANES = 60, 24, 3, 6
OPERATOR = "count"
ROW = "key long, row long, arrived timestamp"
COUNTED = "key long, n long, total long"
LATENCY = "8s"


def topology(
    name: str, out: str, rate: float = 100.0, worth: float = 10.0, events: bool = False, cost_s: float = 0.0005
) -> Topology:
    """Return a job that counts by an aggregation, or by a user's function that computes for `cost_s` seconds per event."""
    job = Topology(name, Intent(latency=LATENCY, worth=worth))
    rows = job.transform("key", keyed, job.source("in", sources.load(rate), lanes=2))
    options: dict[str, Any] = {"key": "key", "lanes": LANES, "max_lanes": MOST_LANES, "slices": SLICES}
    if events:
        counting = Events({"n": Value(0), "total": Value(0)}, Counting(cost_s))
        counted = job.keyed(OPERATOR, counting, rows, schema=COUNTED, **options)
    else:
        counted = job.keyed(OPERATOR, {"n": "count", "total": "sum(row)"}, rows, **options)
    job.sink("out", sinks.files(out), counted)
    return job


def keyed(rows: DataFrame) -> DataFrame:
    """Give rows keys in turn."""
    return rows.selectExpr(f"row % {KEYS} as key", "row", "arrived")


class Counting:
    """Counts an event."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s

    def __call__(
        self, key: int, event: Mapping[str, Any], state: Any, emit: Callable[[Mapping[str, Any]], None]
    ) -> None:
        done_s = time.thread_time() + self.cost_s
        while time.thread_time() < done_s:
            sum(range(100))
        state.n.set(state.n.get() + 1)
        state.total.set(state.total.get() + event["row"])
        emit({"key": key, "n": state.n.get(), "total": state.total.get()})
