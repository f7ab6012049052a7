"""Benchmark of migration: a third of a job's state moves to a new host, rebuilt while epochs run, or stopped, copied and started.

The benchmark runs on a standalone cluster of three workers. The pause is the longest time without an output between the moment at which
the host may be used and the arrival of its slices. The pause grows with the state when slices are copied, but should not grow when
slices are rebuilt (ChronoStream, fig. 14), and another job on the cluster should hardly slow down (fig. 15). A copy copies whole files,
with their free space, from folder to folder on one disk.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from headgate.bench import Figure, Result
from headgate.bench.workers import Feed, Outputs, WorkerCluster, cluster, keys_of, put_in_place, topology
from headgate.bench.workload import Work
from headgate.bench.workload import job as neighbour_job
from headgate.config import SparkSettings, StateSettings
from headgate.core.intents import Intent
from headgate.errors import StateError
from headgate.sim.reports.bars import Bar
from headgate.spark.hosts.asking import ask_hosts
from headgate.spark.hosts.this_host import store_folder
from headgate.spark.keyed.hosts import Hosted
from headgate.state.hosting import Layout, Wanted
from headgate.state.inspect import read_opens
from headgate.state.placement.slices import Placement
from headgate.state.stores import locks_of, open_store
from headgate.topology import Topology

SHORT_MB, FULL_MB = (128, 2048), (128, 512, 2048)
"""Megabytes of state; the bars compare the first and the last size."""
HOSTS, LANES = 3, 3
SETTLE, STEADY = 6, 8
"""The number of epochs before a measurement, and the number of epochs of the steady state."""
NEIGHBOUR = "neighbour"
NEIGHBOUR_ROWS_S = 2000.0
FLAT, LOCAL, UNDISTURBED = 2.0, 0.95, 0.8
SETTINGS = SparkSettings(driver_memory_mb=1024, retries=0, state=StateSettings(backups=0, upkeep_epochs=1000))
"""Settings with which only the migration moves state."""


@dataclass(frozen=True, slots=True)
class MeasuredMigration:
    """The pause, the time and the neighbour's throughput of one migration."""

    pause_s: float
    took_s: float
    neighbour_rows_s: float


@dataclass(frozen=True, slots=True)
class Size:
    """The measurements of one size of state."""

    usual_s: float
    """Median seconds between two outputs in the steady state."""
    worst_s: float
    local: float
    rebuilt: MeasuredMigration
    copied: MeasuredMigration
    neighbour_rows_s: float


def measure(full: bool = False) -> Result:
    """Measure the longest pause of both ways for each size of state, and the throughput of the neighbour meanwhile."""
    sizes_mb = FULL_MB if full else SHORT_MB
    with cluster(HOSTS, SETTINGS) as three:
        three.engine.submit(_neighbour())
        found = {size_mb: _measured(three, size_mb) for size_mb in sizes_mb}
    figures = [figure for size_mb, size in found.items() for figure in _figures(size_mb, size)]
    first, last = found[sizes_mb[0]], found[sizes_mb[-1]]
    least = min(size.rebuilt.neighbour_rows_s / min(size.neighbour_rows_s, NEIGHBOUR_ROWS_S) for size in found.values())
    return Result(
        tuple(figures),
        (
            Bar(
                f"pause when slices are rebuilt, {sizes_mb[-1]} MB against {sizes_mb[0]} MB, times",
                last.rebuilt.pause_s / first.rebuilt.pause_s, "<=", FLAT,
            ),
            Bar(
                f"pause of stop-copy-start, {sizes_mb[-1]} MB against {sizes_mb[0]} MB, times",
                last.copied.pause_s / first.copied.pause_s, ">=", FLAT,
            ),
            Bar(
                f"pause at {sizes_mb[-1]} MB: stop-copy-start against rebuilding, times",
                last.copied.pause_s / last.rebuilt.pause_s, ">=", 1.0,
            ),
            Bar("slices opened on their lane's host in steady state", min(s.local for s in found.values()), ">=", LOCAL),
            Bar("neighbour's rows while slices are rebuilt, against before, the least", least, ">=", UNDISTURBED),
        ),
    )  # fmt: skip


def _figures(size_mb: int, size: Size) -> list[Figure]:
    rows = [
        ("steady state: median time between outputs", size.usual_s, "s"),
        ("steady state: longest time between outputs", size.worst_s, "s"),
        ("steady state: slices opened locally", size.local, "share"),
        ("steady state: neighbour", size.neighbour_rows_s, "rows/s"),
    ]
    for way, move in (("rebuilt", size.rebuilt), ("stop-copy-start", size.copied)):
        rows += [
            (f"{way}: longest pause", move.pause_s, "s"),
            (f"{way}: whole migration", move.took_s, "s"),
            (f"{way}: neighbour", move.neighbour_rows_s, "rows/s"),
        ]
    return [Figure(f"{size_mb} MB, {name}", value, unit) for name, value, unit in rows]


def _neighbour() -> Topology:
    return neighbour_job(NEIGHBOUR, Intent(latency="5s"), NEIGHBOUR_ROWS_S, Work(cpu_s=5e-5), lanes=1, pace_s=0.5)


def _measured(three: WorkerCluster, size_mb: int) -> Size:
    name, keys = f"size-{size_mb}", keys_of(size_mb)
    outputs, feed = Outputs(), Feed(three.place / name, keys)
    new = sorted(three.slots())[-1]
    put_in_place(three.engine, name, keys)
    three.engine.submit(topology(name, feed.folder, outputs, LANES))
    three.avoid(name, new)
    feed.until(outputs, lambda: len(outputs.at_s) >= SETTLE and three.hosted(name).hosting.is_free(new))
    begun = len(outputs.at_s)
    neighbour, from_s = _neighbour_at(three, feed, outputs), time.time()
    feed.until(outputs, lambda: len(outputs.at_s) >= begun + STEADY)
    to_s = time.time()
    rows_s = _rows_s(neighbour, _neighbour_at(three, feed, outputs))
    opens = read_opens(three.engine.place_of(name), "count")
    assert opens is not None
    local = opens.last.get("local", 0) / sum(opens.last.values())
    rebuilt = _move(three, name, feed, outputs, new)
    _move_back(three, name, feed, outputs, new)
    hosted = three.hosted(name)
    copying = partial(_stop_copy_start, hosted, hosted.hosting.plan_epoch)
    with patch.object(hosted.hosting, "plan_epoch", copying):
        copied = _move(three, name, feed, outputs, new)
    three.engine.remove(name)
    usual_s, worst_s = outputs.usual_s(from_s, to_s), outputs.longest_s(from_s, to_s)
    return Size(usual_s, worst_s, local, rebuilt, copied, rows_s)


def _move(three: WorkerCluster, job: str, feed: Feed, outputs: Outputs, new: str) -> MeasuredMigration:
    neighbour, from_s = _neighbour_at(three, feed, outputs), time.time()
    three.avoid(job)
    feed.until(outputs, lambda: _has_its_share(three, job, new))
    arrived = len(outputs.at_s)
    feed.until(outputs, lambda: len(outputs.at_s) >= arrived + 2)  # the first epochs of the job on the new host
    to_s = time.time()
    return MeasuredMigration(
        outputs.longest_s(from_s, to_s), to_s - from_s, _rows_s(neighbour, _neighbour_at(three, feed, outputs))
    )


Moves = Mapping[str, Mapping[str, list[int]]]
"""The slices that move, by destination and source."""


def _stop_copy_start(
    hosted: Hosted, boundary: Callable[..., Layout], cores: Mapping[str, float], wanted: Wanted
) -> Layout:
    """The classic way: whole slices are copied between two epochs, and the job waits for the copies."""
    layout, moves = boundary(cores, wanted), _moves(hosted.hosting.placement)
    if not moves:
        return layout
    _copy(hosted, moves)
    with ThreadPoolExecutor(1) as beside:  # Spark ties the pool of a task to the thread that asked for it
        beside.submit(hosted.hosting.run).result()  # the hosts report the copies as current
    return boundary(cores, wanted)


def _moves(placement: Placement | None) -> Moves:
    moves: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for slice_, place in enumerate(placement.places if placement is not None else ()):
        if place.migration is not None and place.migration.destination != place.active:
            moves[place.migration.destination][place.active].append(slice_)
    return {destination: dict(sources) for destination, sources in moves.items()}


def _copy(hosted: Hosted, moves: Moves) -> None:
    """Let each destination copy the files of other hosts to its own folder, in one task per destination."""
    copies, hosts = hosted.copies, tuple(moves)

    # Hosts get a nested function by value; with a function of the module, hosts would import this module during the pause.
    def bring(host: str) -> bytes:
        folder, schema = store_folder(copies.folder, host), copies.operator.schema
        store = open_store(folder, schema, copies.life.identity(schema), copies.settings)
        for source, slices in moves[host].items():
            locks_of(folder).take(slices, copies.settings.lock_wait_s)
            for slice_ in slices:
                assert store.adopt(slice_, Path(store_folder(copies.folder, source)))
            locks_of(folder).release()
        return b""

    found = set(ask_hosts(hosted.spark, hosted.places, hosts, bring))
    if found != set(hosts):
        raise StateError(f"slices could not be copied to {', '.join(sorted(set(hosts) - found))}")


def _move_back(three: WorkerCluster, job: str, feed: Feed, outputs: Outputs, new: str) -> None:
    hosting = three.hosted(job).hosting
    three.avoid(job, new)
    wanted = len(outputs.at_s) + SETTLE
    feed.until(outputs, lambda: hosting.is_free(new) and len(outputs.at_s) >= wanted)


def _has_its_share(three: WorkerCluster, job: str, new: str) -> bool:
    placement = three.hosted(job).hosting.placement
    assert placement is not None
    settled = all(place.migration is None for place in placement.places)
    return settled and 3 * placement.homes().count(new) >= len(placement.places)


def _neighbour_at(three: WorkerCluster, feed: Feed, outputs: Outputs) -> tuple[float, float]:
    """Return the end of the neighbour's next epoch, and the rows processed then; that number is constant between ends of epochs."""

    def rows() -> float:
        return three.engine.job(NEIGHBOUR).processed("in")

    before = rows()
    feed.until(outputs, lambda: rows() > before)
    return time.time(), rows()


def _rows_s(since: tuple[float, float], until: tuple[float, float]) -> float:
    return (until[1] - since[1]) / (until[0] - since[0])
