"""The job under chaos: two Redis streams, an events operator, a keyed aggregation and a keyed check of sequences, two sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate import Intent, Topology, sinks, sources
from headgate.state.library import Map, Value
from headgate.state.operators import Events

LANES, MOST_LANES = 2, 3
ROW = "key string, seq long, value long, arrived timestamp"
CHECKED = "key string, seq long, value long, n long, repeated long, arrived timestamp"


def topology(url: str, out: str) -> Topology:
    """Return the job; every row carries its key and its number within the key, so that a lost or doubled row shows."""
    job = Topology("chaos", Intent(latency="2s", worth=20))
    stream = sources.redis("in1", "in2", schema="key string, seq long, value long", url=url)
    rows = job.source("rows", stream, max_lanes=MOST_LANES)
    marked = job.events("mark", mark, rows, schema=ROW, max_lanes=MOST_LANES)
    totals = job.keyed(
        "totals", {"n": "count", "total": "sum(value)"}, marked, key="key", lanes=LANES, max_lanes=MOST_LANES
    )
    fields: Mapping[str, Value | Map] = {"low": Value(0), "n": Value(0), "ahead": Map()}
    checked = job.keyed(
        "check", Events(fields, check), marked, key="key", schema=CHECKED, lanes=LANES, max_lanes=MOST_LANES
    )
    job.sink("stream", sinks.redis("out", url=url), checked)
    job.sink("files", sinks.files(f"{out}/totals"), totals)
    return job


def mark(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row unchanged; the operator exists so that lanes can be killed."""
    return {name: row[name] for name in ("key", "seq", "value", "arrived")}


def check(key: str, event: Mapping[str, Any], state: Any, emit: Callable[[Mapping[str, Any]], None]) -> None:
    """Emit the number of events of the key so far, and whether the event's number was seen before."""
    seq, n = event["seq"], state.n.get() + 1
    state.n.set(n)
    repeated = int(seq < state.low.get() or str(seq) in state.ahead)
    if not repeated:
        state.ahead.set(str(seq), 1)
        while str(state.low.get()) in state.ahead:
            state.ahead.remove(str(state.low.get()))
            state.low.set(state.low.get() + 1)
    row = {"key": key, "seq": seq, "value": event["value"], "n": n, "repeated": repeated, "arrived": event["arrived"]}
    emit(row)
