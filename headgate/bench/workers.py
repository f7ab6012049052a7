"""Spark workers on this machine for benchmarks: workers as processes, a keyed job with state in place beforehand, and its outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.bench.keyed import some_keys
from headgate.bench.workload import home, wait_for
from headgate.config import SparkSettings
from headgate.core.hosts import HostPhase, HostType
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause
from headgate.spark import session
from headgate.spark.engine import SparkEngine
from headgate.spark.hosts.pool import LocalPool, same_code
from headgate.spark.keyed.hosts import Hosted
from headgate.state.aggregate import Aggregate
from headgate.state.checkpoint import Checkpoint
from headgate.state.delta import words_array
from headgate.state.hashing import slices_of
from headgate.state.inspect import checkpoint_of
from headgate.state.location import Location
from headgate.state.operators import KeyedOperator
from headgate.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = HostType("bench", cores=2, memory_mb=1024, price=1.0, btu_s=3600)
SENSORS = ("heat", "speed", "load", "noise")
MEASURES = {"n": "count"} | {f"{kind}_{name}": f"{kind}({name})" for name in SENSORS for kind in ("sum", "min", "max")}
"""Statistics of four sensors per device."""
SCHEMA = "device long, " + ", ".join(f"{name} double" for name in SENSORS)
SLICES, ROWS = 48, 5_000
AHEAD = 2
"""The number of waiting files: the file that is being read, and the next file."""
OVERHEAD_MB = 384
"""Memory of a host besides the heap of its executor."""
PATIENCE_S = 600.0
WORKER = "org.apache.spark.deploy.worker.Worker"
"""The class that Spark runs as a worker."""


@dataclass
class WorkerCluster:
    """An engine on Spark workers of its own."""

    pool: LocalPool
    engine: SparkEngine
    place: Path

    def lease(self, *names: str) -> None:
        """Lease these hosts and wait until they can run lanes."""
        for name in names:
            self.pool.lease(name, KIND)
        wait_for(lambda: self.addresses(*names) <= set(self.slots()), PATIENCE_S)

    def addresses(self, *names: str) -> set[str]:
        """Return the addresses of these hosts, which are Spark's names; an address without host if one of the hosts is not ready."""
        hosts = self.pool.hosts()
        ready = all(name in hosts and hosts[name].phase is HostPhase.READY for name in names)
        return {hosts[name].address for name in names} if ready else {""}

    def slots(self) -> dict[str, float]:
        """Return the number of tasks that each host runs at once."""
        return {host.name: host.cores for host in self.engine.observe().hosts}

    def hosted(self, job: str) -> Hosted:
        """Return the keyed operator of a job."""
        wait_for(lambda: "count" in self.engine.job(job).hosted, PATIENCE_S)
        return self.engine.job(job).hosted["count"]

    def avoid(self, job: str, *hosts: str) -> None:
        """Let the job's lanes and slices avoid exactly these hosts; hosts that are no longer named may be used again."""
        changed = replace(self.engine.job(job).allocation, avoided=hosts)
        self.engine.apply(Action(ActionKind.RECONFIGURE, job, {job: changed}, Cause("a benchmark")))


@contextmanager
def cluster(hosts: int, settings: SparkSettings, kind: HostType = KIND) -> Iterator[WorkerCluster]:
    """Yield an engine on `hosts` hosts named 0, 1, 2 and so on; the hosts are removed afterwards."""
    with home() as place:
        pool = LocalPool(place / "pool")
        try:
            for number in range(hosts):
                pool.lease(str(number), kind)
            wait_for(lambda: all(host.phase is HostPhase.READY for host in pool.hosts().values()), PATIENCE_S)
            limits = {**session.ON_THIS_MACHINE, "spark.executor.memory": f"{kind.memory_mb - OVERHEAD_MB}m"}
            spark = session.start(place / "home", settings, pool.master_url, {**limits, **same_code(), **pool.access()})
            engine = SparkEngine(spark, place / "home", settings, embedded=False)
            try:
                found = WorkerCluster(pool, engine, place)
                wait_for(lambda: len(found.slots()) == hosts, PATIENCE_S)
                yield found
            finally:
                engine.close()
        finally:
            pool.close()


@dataclass
class Outputs:
    """The times and contents of the outputs of a job."""

    at_s: list[float] = field(default_factory=list)
    epochs: dict[int, float] = field(default_factory=dict)
    """The time of the output of each epoch, by the epoch's number."""
    counts: dict[int, int] = field(default_factory=dict)
    """The sum of the counts that each epoch put out; a lost or doubled row changes this sum."""
    digests: dict[int, int] = field(default_factory=dict)
    """A digest of the output of each epoch, independent of the order of rows."""

    def write(self, rows: DataFrame, epoch: int) -> None:
        """Record the output of an epoch, as the writer of a sink."""
        found = rows.selectExpr("coalesce(sum(n), 0)", "coalesce(bit_xor(xxhash64(*)), 0)").first()
        assert found is not None
        self.counts[epoch], self.digests[epoch] = found
        self.epochs[epoch] = time.time()
        self.at_s.append(self.epochs[epoch])

    def longest_s(self, from_s: float, to_s: float) -> float:
        """The longest time without an output that ends between these times."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return max((after - before for before, after in pairs if from_s < after <= to_s), default=to_s - from_s)

    def usual_s(self, from_s: float, to_s: float) -> float:
        """The median time between two outputs."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        found = [after - before for before, after in pairs if from_s < after <= to_s]
        return float(np.median(found)) if found else float("nan")


def operator() -> KeyedOperator:
    """Return the operator of the job, to put its state in place."""
    return KeyedOperator("count", {"device": pa.int64()}, Aggregate.of(MEASURES))


def keys_of(size_mb: int) -> int:
    """Return the number of keys with a state of `size_mb`."""
    schema = operator().schema
    return int((size_mb << 20) // (schema.key_type.byte_width + schema.value_type.byte_width))


def put_in_place(engine: SparkEngine, job: str, keys: int) -> None:
    """Write snapshots of all slices from before the first epoch, as if the job had run for long."""
    schema = operator().schema
    durable = Checkpoint(Location.of(checkpoint_of(engine.place_of(job), "count")), schema)
    durable.begin(0, SLICES)
    column = pa.array(np.arange(keys))
    of_key, words = slices_of([column], SLICES), schema.key_as_words([column])
    for slice_ in range(SLICES):
        mine = words[of_key == slice_]
        values = np.ones((len(mine), len(schema.fields)), np.uint64)
        durable.write_snapshot(slice_, -1, [(words_array(mine), words_array(values))])


def topology(job: str, files: Path, outputs: Outputs, lanes: int) -> Topology:
    """Return a job with statistics by device that reads one file per epoch, back to back."""
    built = Topology(job, Intent(latency="60s"), pace_s=0)
    rows = built.source("in", lambda spark: stream(spark, files))
    counted = built.keyed("count", MEASURES, rows, key="device", lanes=lanes, max_lanes=SLICES, slices=SLICES)
    built.sink("out", outputs.write, counted)
    return built


def stream(spark: SparkSession, files: Path) -> DataFrame:
    """Read one file per epoch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))


class Feed:
    """Writes the files that the next epochs read, one file per epoch."""

    def __init__(self, folder: Path, keys: int, fills: int = 0, ahead: int = AHEAD) -> None:
        """Write `ahead` files; the first `fills` files together have every key once."""
        folder.mkdir(parents=True)
        self.folder, self._keys, self._ahead, self.written = folder, keys, ahead, 0
        self._fills = np.array_split(np.arange(keys), fills) if fills else []
        self.ahead_of(0)

    def ahead_of(self, epochs: int) -> None:
        """Write files until `ahead` files more than epochs exist."""
        while self.written < epochs + self._ahead:
            filling = self.written < len(self._fills)
            keys = self._fills[self.written] if filling else some_keys(self.written, ROWS, self._keys)
            # Multiples of 1/1024 make sums exact, whatever their order.
            values = np.random.default_rng(self.written).integers(0, 1024, (len(SENSORS), len(keys))) / 1024
            table = pa.table({"device": pa.array(keys, pa.int64()), **dict(zip(SENSORS, values, strict=True))})
            beside = self.folder.parent / f"{self.folder.name}.part"
            pq.write_table(table, beside)
            beside.rename(self.folder / f"{self.written:05d}.parquet")
            self.written += 1

    def until(self, outputs: Outputs, holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Write files so that epochs go on, until a condition holds."""

        def looked() -> bool:
            self.ahead_of(len(outputs.at_s))
            return holds()

        wait_for(looked, within_s)


def kill_host(hosts: WorkerCluster, name: str) -> None:
    """Kill the worker of this host and all processes of the worker with `kill -9`."""
    address = hosts.pool.hosts()[name].address
    workers = [process for process in psutil.process_iter() if _is_worker(process, address)]
    for process in [*workers, *(child for worker in workers for child in worker.children(recursive=True))]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _is_worker(process: psutil.Process, address: str) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return WORKER in command and address in command
