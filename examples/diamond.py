"""Forks one source to three operators and merges their output (Henge, SoCC '18, fig. 8).

Run it: headgate run examples/diamond.py --param load=300 --param wait_us=4000
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from work import ROWS, arriving, work, written

from headgate import Intent, Topology


def topology(
    load: float | Mapping[str, Any] = 500, cost_us: float = 50, wait_us: float = 0, out: str | None = None
) -> Topology:
    """Every row passes through all three operators, so the sink gets it three times."""
    job = Topology("diamond", Intent(latency="2s", juice=1.0, worth=5))
    rows = job.source("rows", arriving(load))
    ways = [job.batches(name, work(cost_us, wait_us), rows, schema=ROWS) for name in ("upper", "middle", "lower")]
    job.sink("out", written(out), job.merge("merged", *ways))
    return job
