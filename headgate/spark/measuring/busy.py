"""How long lanes were busy, from Spark's record of their tasks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from headgate.spark.epochs import carrying
from headgate.spark.measuring.counters import Counters
from headgate.spark.measuring.metering import TaskRecords


def add_busy(counters: Counters, records: TaskRecords, epochs: int) -> None:
    """Add the busy time and rows of lanes since the last reading, estimated from the newest epochs in proportion to their rows."""
    done = counters.take_done()
    sampled = done[-epochs:]
    rows = sum(epoch.rows for epoch in sampled)
    scale = sum(epoch.rows for epoch in done) / rows if rows else len(done) / max(1, len(sampled))
    busy_s: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    given: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    hosts: dict[str, dict[int, str]] = defaultdict(dict)
    for epoch in reversed(sampled):
        for sink, stages in epoch.stages.items():
            for task in records.tasks(carrying.sink_tag(epoch.tag, sink), stages):
                busy_s[task.operator][task.lane] += task.busy_s * scale
                given[task.operator][task.lane] += task.rows * scale
                # An exchange after the operator's own stage may run on any host: the newest epoch's own stage says where the lane is.
                hosts[task.operator].setdefault(task.lane, task.host)
    if done:
        counters.add_busy(done[-1].version, busy_s)
        counters.add_rows(done[-1].version, given)
        counters.set_hosts(done[-1].version, hosts)


class BusyTurns:
    """Whose busy time a round reads that has no time for all jobs: the jobs that have waited longest. Owner: the control loop.

    Epochs of a job that is passed over are read in a later round, so that a turn lost costs time, not busy time.
    """

    def __init__(self, round_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """A round begins no reading later than `round_s` seconds after its start."""
        self._round_s, self._now_s = round_s, now_s
        self._read_s: dict[str, float] = {}
        self._until_s = 0.0

    def begin(self, jobs: Iterable[str]) -> list[str]:
        """Begin a round and return these jobs in the order of their turns: the longest unread job first."""
        self._until_s = self._now_s() + self._round_s
        self._read_s = {job: self._read_s.get(job, 0.0) for job in jobs}
        return sorted(self._read_s, key=lambda job: self._read_s[job])

    def take(self, job: str) -> bool:
        """Whether this round still has time for the job."""
        now_s = self._now_s()
        if now_s >= self._until_s:
            return False
        self._read_s[job] = now_s
        return True
