"""Runs two operators one after another, with configurable work per row (Henge, SoCC '18, fig. 8).

Run it: headgate run examples/linear.py --param load=300 --param wait_us=4000
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from work import ROWS, arriving, work, written

from headgate import Intent, Topology


def topology(
    load: float | Mapping[str, Any] = 500, cost_us: float = 50, wait_us: float = 0, out: str | None = None
) -> Topology:
    """Both operators work on every row."""
    job = Topology("linear", Intent(latency="2s", worth=10))
    rows = job.source("rows", arriving(load))
    first = job.batches("first", work(cost_us, wait_us), rows, schema=ROWS)
    second = job.batches("second", work(cost_us, wait_us), first, schema=ROWS)
    job.sink("out", written(out), second)
    return job
