"""A third of a job's state moves to a new host while the job runs: rebuilt there beside the epochs, or stopped, copied and started.

On a standalone cluster of three workers. The pause is the longest time without an output from the moment at which the host may be used
until its slices are there; it should not grow with the state when slices are rebuilt, as it does when they are copied (ChronoStream,
fig. 14). A neighbour on the same cluster should hardly notice (fig. 15). The copy is one of files as they are, with their free space, from
folder to folder on one disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from headgate.bench import Figure, Result
from headgate.bench.cluster import Feed, Outputs, WorkerCluster, cluster, keys_of, put_in_place, topology
from headgate.bench.workload import Work
from headgate.bench.workload import job as neighbour_job
from headgate.config import StateSettings
from headgate.core.intents import Intent
from headgate.errors import StateError
from headgate.sim.bars import Bar
from headgate.spark.keyed_hosts import NUMBER, Hosted, folder_of
from headgate.spark.keyed_lanes import here
from headgate.spark.labels import labels
from headgate.state.hosting import Moves
from headgate.state.inspect import read_opens
from headgate.topology import Topology

SHORT_MB, FULL_MB = (128, 2048), (128, 512, 2048)
"""Sizes of state; the bars compare the first and the last."""
HOSTS, LANES = 3, 3
SETTLE, STEADY = 6, 12
"""Epochs before anything is measured, and of the steady state."""
NEIGHBOUR = "neighbour"
NEIGHBOUR_ROWS_S = 2000.0
FLAT, LOCAL, UNDISTURBED = 2.0, 0.95, 0.8
SETTINGS = StateSettings(backups=0, upkeep_epochs=1000)
"""Nothing but the migration moves state."""


@dataclass(frozen=True, slots=True)
class MeasuredMigration:
    """One migration."""

    pause_s: float
    took_s: float
    neighbour_rows_s: float


@dataclass(frozen=True, slots=True)
class Size:
    """One size of state."""

    usual_s: float
    """Between two outputs, in steady state."""
    worst_s: float
    local: float
    rebuilt: MeasuredMigration
    copied: MeasuredMigration
    neighbour_rows_s: float


def measure(full: bool = False) -> Result:
    """The longest pause of both ways for each size of state, and what the neighbour got meanwhile."""
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
    rebuilt = _move(three, name, feed, outputs, new, whole=False)
    _move_back(three, name, feed, outputs, new)
    copied = _move(three, name, feed, outputs, new, whole=True)
    three.engine.remove(name)
    usual_s, worst_s = outputs.usual_s(from_s, to_s), outputs.longest_s(from_s, to_s)
    return Size(usual_s, worst_s, local, rebuilt, copied, rows_s)


def _move(three: WorkerCluster, job: str, feed: Feed, outputs: Outputs, new: str, whole: bool) -> MeasuredMigration:
    hosted = three.hosted(job)
    hosted.hosting.copy = partial(_copy, hosted) if whole else None
    neighbour, from_s = _neighbour_at(three, feed, outputs), time.time()
    three.avoid(job)
    feed.until(outputs, lambda: _has_its_share(three, job, new))
    arrived = len(outputs.at_s)
    feed.until(outputs, lambda: len(outputs.at_s) >= arrived + 2)  # its first epochs there
    to_s = time.time()
    hosted.hosting.copy = None
    return MeasuredMigration(
        outputs.longest_s(from_s, to_s), to_s - from_s, _rows_s(neighbour, _neighbour_at(three, feed, outputs))
    )


def _copy(hosted: Hosted, moves: Moves) -> None:
    """Stop-copy-start: every destination brings copies of other hosts to its own folder, whole, in a task of its own."""
    copies, hosts = hosted.copies, tuple(moves)

    # A function within a function, so that hosts get it by value: they would spend the pause importing this module.
    def brought(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        host = here(hosts)
        if host in [hosts[number] for batch in batches for number in batch.column(NUMBER).to_pylist()]:
            own = replace(copies, folder=folder_of(copies.folder, host))
            for source, slices in moves[host].items():
                own.take_from(folder_of(copies.folder, source), slices)
            yield pa.RecordBatch.from_pydict({"host": [host]})

    numbers = list(zip(labels(len(hosts)), range(len(hosts)), strict=True))
    asked = hosted.places.marks(hosted.spark, f"label int, {NUMBER} int", numbers, hosts)
    found = {row["host"] for row in asked.mapInArrow(brought, "host string").collect()}
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
    """When the neighbour finishes its next epoch, and the rows that it is done with then: in between they do not change."""

    def rows() -> float:
        return three.engine._jobs[NEIGHBOUR]._counters.processed("in")

    before = rows()
    feed.until(outputs, lambda: rows() > before)
    return time.time(), rows()


def _rows_s(since: tuple[float, float], until: tuple[float, float]) -> float:
    return (until[1] - since[1]) / (until[0] - since[0])
