"""Benchmark of recovery from `kill -9` of a worker: time until the output of a keyed job is current, by the number of hosts with backups.

The benchmark runs on a standalone cluster on this machine. The lost host always holds the same amount of state; its slices come up at the
same time on the hosts that have their backups (ChronoStream, fig. 19). The benchmark compares Spark's state store on RocksDB with changelog
checkpointing, which restores the lost partitions from its checkpoint directory, also on the three remaining hosts.

Output is current again with the first epoch that has rows from after the kill.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from headgate.bench import Figure, Result, native
from headgate.bench.workers import (
    MEASURES,
    Feed,
    Outputs,
    WorkerCluster,
    cluster,
    keys_of,
    kill_host,
    put_in_place,
    stream,
    topology,
)
from headgate.config import SparkSettings, StateSettings
from headgate.errors import EngineError
from headgate.sim.reports.bars import Bar

SHORT, FULL = (1, 3), (1, 2, 3)
"""Numbers of hosts with backups; each number is measured twice, forwards and then backwards, and the mean counts."""
LOST_MB = 128
"""Megabytes of state on the host that is lost."""
HOSTS = 4
SETTLE = 8
FILLS = 8
FASTER, NOT_SLOWER = 1.0, 1.25
"""Spark's recovery takes at least FASTER times as long as with backups; more hosts with backups take at most NOT_SLOWER times as long."""
STATE = StateSettings(backups=1, backup_epochs=2, upkeep_epochs=1000)
SETTINGS = SparkSettings(driver_memory_mb=1024, retries=0, state=STATE)
SPARK_WAIT_S = 3.0
"""Seconds for which Spark's tasks wait for the host that had their state, by default."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The cost of one lost host."""

    took_s: float
    """Seconds from the kill until the output was current again."""
    usual_s: float
    """Median seconds between two outputs before the kill."""


def measure(full: bool = False) -> Result:
    """Measure the seconds from the kill until the output is current again."""
    counts = FULL if full else SHORT
    found: dict[int, list[Recovery]] = {backups: [] for backups in counts}
    with cluster(HOSTS, SETTINGS) as hosts:
        for kill, backups in enumerate((*counts, *reversed(counts))):
            doomed = "0" if kill == 0 else f"again-{kill}"
            hosts.lease(doomed)
            found[backups].append(_recovered(hosts, f"kill-{kill}", backups, doomed))
    with cluster(HOSTS, replace(SETTINGS, place_wait_s=SPARK_WAIT_S)) as hosts:
        restored = _restored(hosts, "0")
    took_s = {backups: fmean(one.took_s for one in each) for backups, each in found.items()}
    figures = [Figure("state on the lost host", LOST_MB, "MB")]
    for count, each in found.items():
        figures += _figures(f"backups on {count} {'host' if count == 1 else 'hosts'}", each)
    figures += _figures("Spark's own state, restored on 3 hosts", [restored])
    most = max(took_s[count] for count in counts[1:]) / took_s[1]
    factor = restored.took_s / took_s[3]
    return Result(
        tuple(figures),
        (
            Bar("backups on more hosts than one, against one, times, the slower", most, "<=", NOT_SLOWER),
            Bar("Spark's own recovery, times that with backups on 3 hosts", factor, ">=", FASTER),
        ),
    )


def _figures(what: str, each: list[Recovery]) -> list[Figure]:
    return [
        *(
            Figure(f"{what}: until the output is current again, kill {n}", one.took_s, "s")
            for n, one in enumerate(each, 1)
        ),
        Figure(f"{what}: median time between outputs before", fmean(one.usual_s for one in each), "s"),
    ]


def _recovered(hosts: WorkerCluster, name: str, backups: int, doomed: str) -> Recovery:
    keys = keys_of(LOST_MB * (backups + 1))
    outputs, feed = Outputs(), Feed(hosts.place / name, keys)
    (lost,) = hosts.addresses(doomed)
    others = sorted(set(hosts.slots()) - {lost})
    put_in_place(hosts.engine, name, keys)
    hosts.engine.submit(topology(name, feed.folder, outputs, backups + 1))
    hosts.avoid(name, *others[backups:])
    feed.until(outputs, lambda: _is_ready(hosts, name, lost, others[backups:]))
    settled = len(outputs.at_s) + SETTLE
    feed.until(outputs, lambda: len(outputs.at_s) >= settled)
    recovery = _until_current(hosts, feed, outputs, doomed)
    hosts.engine.remove(name)
    hosts.pool.release(doomed)
    return recovery


def _is_ready(hosts: WorkerCluster, job: str, lost: str, unused: list[str]) -> bool:
    """Whether all slices are on their intended hosts, each with its backup."""
    placement = hosts.hosted(job).hosting.placement
    if placement is None:
        return False
    settled = all(place.migration is None and len(place.ready) == 1 for place in placement.places)
    return settled and lost in placement.homes() and not set(unused) & set(placement.homes())


def _until_current(hosts: WorkerCluster, feed: Feed, outputs: Outputs, doomed: str) -> Recovery:
    """Kill a host and wait until a file that is written after the kill is put out; each epoch reads one file."""
    begun_s, later = time.time(), feed.written
    usual_s = outputs.usual_s(outputs.at_s[-SETTLE], begun_s)
    kill_host(hosts, doomed)
    feed.until(outputs, lambda: later in outputs.epochs)
    return Recovery(outputs.epochs[later] - begun_s, usual_s)


# -- Spark's own state -------------------------------------------------------------------------------------------------------


def _restored(hosts: WorkerCluster, doomed: str) -> Recovery:
    """Measure the recovery of Spark's aggregation with the same statistics and keys, with one partition per remaining slot."""
    outputs, feed = Outputs(), Feed(hosts.place / "native", keys_of(LOST_MB * HOSTS), FILLS)
    (lost,) = hosts.addresses(doomed)
    spark = hosts.engine.spark
    partitions = round(sum(count for host, count in hosts.slots().items() if host != lost))
    query = native.measured(
        spark, stream(spark, feed.folder), MEASURES, hosts.place / "checkpoint", partitions, outputs.write
    )
    try:
        feed.until(outputs, lambda: _alive(query) and len(outputs.at_s) >= FILLS + SETTLE)
        return _until_current(hosts, feed, outputs, doomed)
    finally:
        query.stop()


def _alive(query: Any) -> bool:
    if not query.isActive:
        raise EngineError(f"Spark's own query ended: {query.exception()}")
    return True
