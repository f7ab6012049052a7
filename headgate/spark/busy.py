"""How long lanes were busy, from Spark's record of their tasks."""

from __future__ import annotations

from collections import defaultdict

from headgate.spark import plan
from headgate.spark.counters import Counters
from headgate.spark.metering import TaskRecords


def add_busy(counters: Counters, records: TaskRecords, epochs: int) -> None:
    """Busy time of the newest epochs, taken for that of all since the last reading in proportion to their rows."""
    done = counters.take_done()
    sampled = done[-epochs:]
    rows = sum(epoch.rows for epoch in sampled)
    scale = sum(epoch.rows for epoch in done) / rows if rows else len(done) / max(1, len(sampled))
    busy_s: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    given: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    hosts: dict[str, dict[int, str]] = defaultdict(dict)
    for epoch in reversed(sampled):
        for sink, stages in epoch.stages.items():
            for task in records.tasks(plan.sink_tag(epoch.tag, sink), stages):
                busy_s[task.operator][task.lane] += task.busy_s * scale
                given[task.operator][task.lane] += task.rows * scale
                # An exchange behind its own stage runs anywhere: where the lane is, its own stage of the newest epoch says.
                hosts[task.operator].setdefault(task.lane, task.host)
    if done:
        counters.add_busy(done[-1].version, busy_s)
        counters.add_rows(done[-1].version, given)
        counters.ran_on(done[-1].version, hosts)
