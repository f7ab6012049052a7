"""Benchmark of overhead: epochs of Headgate against the same plans written by hand, turn by turn in one run, and the gain of a pace."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from redis import Redis
from redis.exceptions import RedisError

from headgate.bench import Figure, Result, repeated
from headgate.bench.workload import Work, engine, home, job, wait_for
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.sizing import first_pace_s
from headgate.errors import EngineError
from headgate.sim.reports.bars import Bar
from headgate.spark import sources
from headgate.spark.hosts.readings import process_tree_cpu_s
from headgate.spark.measuring.metering import OBSERVED_EVERY
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers
from headgate.spark.sources.load import Generator
from headgate.topology import Topology, once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headgate.spark.engine import SparkEngine


@dataclass(frozen=True, slots=True)
class OverheadForm:
    """The number of turns of both ways, and the lengths of parts."""

    turns: int
    warm_up: int
    """Epochs before anything is measured: those of a JVM that has just started are slow."""
    idle_s: float
    """Seconds for which idle jobs are watched."""


SHORT, FULL = OverheadForm(turns=3, warm_up=20, idle_s=10.0), OverheadForm(turns=5, warm_up=40, idle_s=30.0)
EPOCHS = OBSERVED_EVERY
"""The number of epochs per turn; one of these epochs looks at arrival times."""
EPOCH_ROWS = {"page-load": 100_000, "JVM only": 500_000}
SMALL_ROWS = 2_000
"""Rows of a small epoch, which costs hardly more than the fixed costs of an epoch, so that the overhead of Headgate shows."""
FLOOD = 1e7
"""Rows per second that arrive, always more than an epoch reads."""
MOST_RATIO, MOST_SMALL_RATIO = 1.05, 1.1
"""Largest allowed ratios, for epochs of half a second and for epochs with few rows."""
LANES = 2
IDLE_JOBS, IDLE_RATE = 8, 20.0
IDLE_INTENT = Intent(latency="5s")
IDLE_PACE_S = first_pace_s(IDLE_INTENT, 30.0)


def measure(full: bool = False) -> Result:
    """Compare rows per second and core seconds per epoch of both ways; measure the cores of idle jobs with and without a pace."""
    figures: list[Figure] = []
    bars: list[Bar] = []
    form = FULL if full else SHORT
    with redis_server() as url, home() as place, engine(SparkSettings(slots=4)) as spark:
        small = _compared(spark, place / "small", PageLoad(url), SMALL_ROWS, form)
        figures += _figures("page-load, small epochs", *small)
        bars += _bars("page-load, small epochs", *small, MOST_SMALL_RATIO)
        for name, plan in (("page-load", PageLoad(url)), ("JVM only", JvmOnly())):
            ours, by_hand = _compared(spark, place / name, plan, EPOCH_ROWS[name], form)
            figures += _figures(name, ours, by_hand)
            bars += _bars(name, ours, by_hand, MOST_RATIO)
    back_to_back, paced = _idle(form)
    figures += [
        Figure(f"{IDLE_JOBS} idle jobs, epochs back to back", back_to_back, "cores"),
        Figure(f"{IDLE_JOBS} idle jobs, paced by their intent of 5 s", paced, "cores"),
    ]
    bars.append(Bar("cores that the pace saves, times fewer", back_to_back / paced, ">=", 2.0))
    return Result(tuple(figures), tuple(bars))


def _figures(name: str, ours: EpochTurns, by_hand: EpochTurns) -> list[Figure]:
    return [
        repeated(f"{name}: rows per second, Headgate", ours.rows_s, "rows/s"),
        repeated(f"{name}: rows per second, by hand", by_hand.rows_s, "rows/s"),
        repeated(f"{name}: core seconds per epoch, Headgate", ours.cores_s, "s"),
        repeated(f"{name}: core seconds per epoch, by hand", by_hand.cores_s, "s"),
    ]


def _bars(name: str, ours: EpochTurns, by_hand: EpochTurns, most: float) -> list[Bar]:
    time_ratio = statistics.median(by_hand.rows_s) / statistics.median(ours.rows_s)
    cores_ratio = statistics.median(ours.cores_s) / statistics.median(by_hand.cores_s)
    return [
        Bar(f"{name}: time per row against by hand", time_ratio, "<=", most),
        Bar(f"{name}: core seconds per epoch against by hand", cores_ratio, "<=", most),
    ]


def _noop(rows: DataFrame, epoch: int) -> None:
    """Compute every row and keep none, with Spark's noop format."""
    rows.write.format("noop").mode("overwrite").save()


NOOP = once(_noop)

# -- the plans -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookUp:
    """Asks Redis for the campaign of every ad of a record batch, in one round trip."""

    url: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Redis.from_url(self.url) as client:
            for batch in batches:
                found = client.mget([f"ad:{ad}" for ad in batch.column("ad").to_pylist()]) if batch.num_rows else []
                yield batch.append_column("campaign", pc.cast(pa.array(found, pa.binary()), pa.string()))


@dataclass(frozen=True, slots=True)
class PageLoad:
    """A job that filters, transforms, joins with a database, filters and aggregates."""

    url: str

    def topology(self, source: Any) -> Topology:
        topology = Topology("page-load", Intent(latency="5s"), pace_s=0)
        rows = topology.source("in", source)
        views = topology.transform("views", self.views, rows)
        joined = topology.batches("look-up", LookUp(self.url), views, schema=self.SCHEMA, lanes=LANES)
        known = topology.transform("known", self.known, joined)
        counted = topology.transform("count", self.count, known, lanes=LANES, by="campaign")
        topology.sink("out", NOOP, counted)
        return topology

    SCHEMA = "ad long, spent double, campaign string"

    @staticmethod
    def views(rows: DataFrame) -> DataFrame:
        return rows.where("row % 3 > 0").selectExpr("row % 1000 AS ad", "sqrt(row) AS spent")

    @staticmethod
    def known(rows: DataFrame) -> DataFrame:
        return rows.where("campaign IS NOT NULL")

    @staticmethod
    def count(rows: DataFrame) -> DataFrame:
        return rows.groupBy("campaign").agg({"spent": "sum", "ad": "count"})

    def by_hand(self, rows: DataFrame) -> DataFrame:
        views = rows.where("row % 3 > 0").selectExpr("row % 1000 AS ad", "sqrt(row) AS spent")
        joined = views.repartition(LANES).mapInArrow(LookUp(self.url), self.SCHEMA)
        known = joined.where("campaign IS NOT NULL").repartition(LANES, "campaign")
        return known.groupBy("campaign").agg({"spent": "sum", "ad": "count"})


@dataclass(frozen=True, slots=True)
class JvmOnly:
    """A job that filters, hashes, projects and aggregates by key, without any Python operator.

    Every expression is used once, because Spark computes an expression that is used twice twice by hand, but once across a meter.
    """

    DIGEST = "sha2(cast(row AS string), 256) AS digest"
    AD = "substring(digest, 1, 3) AS ad"

    def topology(self, source: Any) -> Topology:
        topology = Topology("jvm-only", Intent(latency="5s"), pace_s=0)
        rows = topology.source("in", source)
        views = topology.transform("views", lambda frame: frame.where("row % 3 > 0"), rows)
        hashed = topology.transform("hash", lambda frame: frame.selectExpr(self.DIGEST), views)
        ads = topology.transform("ads", lambda frame: frame.selectExpr(self.AD), hashed)
        counted = topology.transform("count", lambda frame: frame.groupBy("ad").count(), ads, lanes=LANES, by="ad")
        topology.sink("out", NOOP, counted)
        return topology

    def by_hand(self, rows: DataFrame) -> DataFrame:
        ads = rows.where("row % 3 > 0").selectExpr(self.DIGEST).selectExpr(self.AD)
        return ads.repartition(LANES, "ad").groupBy("ad").count()


# -- turns -----------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class EpochTurns:
    """The times of the epochs of one way, by turn."""

    rows: int
    rows_s: list[float] = field(default_factory=list)
    cores_s: list[float] = field(default_factory=list)
    """Core seconds per epoch."""

    def take(self, epochs: Callable[[], int]) -> None:
        """Measure `EPOCHS` whole epochs of a running query."""
        first = epochs() + 1
        wait_for(lambda: epochs() >= first)
        before_s, cores_s = time.perf_counter(), process_tree_cpu_s()
        wait_for(lambda: epochs() >= first + EPOCHS)
        self.rows_s.append(self.rows * EPOCHS / (time.perf_counter() - before_s))
        self.cores_s.append((process_tree_cpu_s() - cores_s) / EPOCHS)


def _compared(
    spark: SparkEngine, place: Path, plan: PageLoad | JvmOnly, rows: int, form: OverheadForm
) -> tuple[EpochTurns, EpochTurns]:
    source = sources.load(FLOOD)
    topology = plan.topology(source)
    by_hand = ByHand(spark.spark, place / "by-hand", source, plan.by_hand, rows)
    spark.submit(topology, paused=True)
    spark.set_read_limit(topology.name, rows)
    turns = EpochTurns(rows), EpochTurns(rows)
    for number in range(form.turns + 1):
        epochs = EPOCHS if number else form.warm_up
        spark.resume(topology.name)
        _turn(turns[0], lambda: spark.job(topology.name).epochs, number == 0, epochs)
        spark.pause(topology.name)
        by_hand.start()
        _turn(turns[1], lambda: by_hand.epochs, number == 0, epochs)
        by_hand.query.stop()
    spark.remove(topology.name)
    return turns


def _turn(turns: EpochTurns, epochs: Callable[[], int], warm_up: bool, count: int) -> None:
    if warm_up:
        wait_for(lambda: epochs() >= count)
        return
    wait_for(lambda: epochs() >= 2)  # a query that has just started is slower
    turns.take(epochs)


@dataclass(slots=True)
class ByHand:
    """A streaming query as users write it without Headgate."""

    spark: Any
    place: Path
    source: Generator
    plan: Callable[[DataFrame], DataFrame]
    rows: int
    epochs: int = 0
    query: Any = None

    def start(self) -> None:
        """Start the query from its checkpoint."""
        self.place.mkdir(parents=True, exist_ok=True)
        levers.write(self.place, Levers(1, self.rows))
        self.epochs = 0
        stream = self.source.stream(self.spark, self.place)
        writer = stream.writeStream.foreachBatch(self._epoch)
        self.query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()

    def _epoch(self, batch: DataFrame, number: int) -> None:
        _noop(self.plan(batch), number)
        self.epochs += 1


# -- the pace --------------------------------------------------------------------------------------------------------------------


def _idle(form: OverheadForm) -> tuple[float, float]:
    """Measure the cores that mostly idle jobs take, back to back and with a pace."""
    names = [f"idle-{number}" for number in range(IDLE_JOBS)]
    with engine(SparkSettings(slots=8)) as spark:
        for name in names:
            spark.submit(job(name, IDLE_INTENT, IDLE_RATE, Work(), 1, pace_s=0))
        back_to_back = _cores(spark, names, 0.0, form)
        paced = _cores(spark, names, IDLE_PACE_S, form)
    return back_to_back, paced


def _cores(spark: SparkEngine, names: list[str], pace_s: float, form: OverheadForm) -> float:
    changes = {name: JobAllocation({"in": 1, "work": 1}, pace_s) for name in names}
    spark.apply(Action(ActionKind.RELAX, None, changes, Cause("measured")))
    wait_for(lambda: all(spark.job(name).epochs >= form.warm_up for name in names))
    before_s, cores_s = time.time(), process_tree_cpu_s()
    time.sleep(form.idle_s)
    return (process_tree_cpu_s() - cores_s) / (time.time() - before_s)


# -- Redis -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def redis_server() -> Iterator[str]:
    """Yield the address of a new Redis with a campaign for most ads."""
    server = shutil.which("redis-server")
    if server is None:
        raise EngineError("this benchmark needs redis-server; `make set-up` installs it")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Redis(port=port) as client:
            wait_for(lambda: _answers(client))
            client.mset({f"ad:{ad}": f"campaign-{ad % 100}" for ad in range(900)})
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False
