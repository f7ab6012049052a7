"""Connects two sources and two sinks by one operator (Henge, SoCC '18, fig. 8).

Run it: headgate run examples/star.py --param load=300 --param wait_us=4000
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from work import ROWS, arriving, work, written

from headgate import Intent, Topology


def topology(
    load: float | Mapping[str, Any] = 250, cost_us: float = 50, wait_us: float = 0, out: str | None = None
) -> Topology:
    """Each source sends `load` rows per second; every row goes to both sinks."""
    job = Topology("star", Intent(latency="2s", juice=1.0, worth=5))
    west, east = job.source("west", arriving(load)), job.source("east", arriving(load))
    hub = job.batches("hub", work(cost_us, wait_us), job.merge("both", west, east), schema=ROWS)
    for name in ("left", "right"):
        job.sink(name, written(out and f"{out}/{name}"), hub)
    return job
