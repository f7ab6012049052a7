"""Benchmark of epochs with few rows: their time by part, by thread and by call, and the costs of a starting and of an idle job.

Jobs run twice in one run: with plans that are reused, and with a plan for each epoch.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from py4j.clientserver import ClientServerConnection
from redis import Redis

from headgate.bench import Figure, Result
from headgate.bench.overhead import redis_server
from headgate.bench.workload import engine, home, wait_for
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import EpochPart, EpochTiming
from headgate.sim.reports.bars import Bar
from headgate.spark import jvm, sinks, sources
from headgate.topology import Topology

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.spark.engine import SparkEngine


@dataclass(frozen=True, slots=True)
class EpochsForm:
    """The number of epochs, and the time for which idle jobs are watched."""

    warm_up: int
    """Epochs before anything is measured: those of a JVM that has just started are slow."""
    epochs: int
    idle_s: float


SHORT, FULL = EpochsForm(warm_up=40, epochs=30, idle_s=8.0), EpochsForm(warm_up=400, epochs=200, idle_s=60.0)
JOB = "job"
RATE_ROWS_S = 100.0
"""Few rows per second, so that nearly all costs of an epoch are its fixed costs."""
FLOOR_RATE_ROWS_S = 1000.0
IDLE_JOBS = 4
FILES, REDIS = SOURCES = "from files", "from Redis"
"""Kinds of jobs that differ only in their source; jobs of these kinds run only with plans that are reused."""
LASTING, FRESH = "plans that last", "a plan for each epoch"
MOST_RATIO, MOST_FLOOR_S, MOST_START_S, MOST_IDLE_CORES, MOST_IDLE_MB = 0.5, 0.25, 1.0, 0.005, 40.0


def measure(full: bool = False) -> Result:
    """Measure the waterfall of an epoch of each kind of job, the latency floor, the start of a job, and jobs without input."""
    form = FULL if full else SHORT
    figures: list[Figure] = []
    bars: list[Bar] = []
    found: dict[str, dict[str, Waterfall]] = {LASTING: {}, FRESH: {}}
    for way, settings in ((LASTING, SparkSettings(slots=2)), (FRESH, SparkSettings(slots=2, plan_s=0))):
        with ExitStack() as stack:
            spark = stack.enter_context(engine(settings))
            for kind, topology in _jobs(stack).items():
                if way == FRESH and kind in SOURCES:
                    continue
                found[way][kind] = _watched(spark, topology, form)
                figures += found[way][kind].figures(f"{kind}, {way}")
            if way == LASTING:
                more = (*_floor(spark, form), *_idle(spark, form))
                figures += (figure for figure, _ in more)
                bars += (bar for _, bar in more)
    for kind, one in found[FRESH].items():
        ratio = found[LASTING][kind].cores_s / one.cores_s
        bars.append(Bar(f"{kind}: core time of an epoch against {FRESH}", ratio, "<=", MOST_RATIO))
    return Result(tuple(figures), tuple(bars))


# -- the jobs --------------------------------------------------------------------------------------------------------------------


def _jobs(stack: ExitStack) -> dict[str, Topology]:
    """Return the jobs by kind; the threads that feed their sources end with the stack."""
    load = sources.load(RATE_ROWS_S)
    place, url = stack.enter_context(home()), stack.enter_context(redis_server())
    client, numbers = stack.enter_context(Redis.from_url(url)), count()
    stack.enter_context(_fed(lambda: client.xadd("rows", {"row": next(numbers)})))
    stack.enter_context(_fed(lambda: _new_file(place, next(numbers))))
    return {
        "JVM only": _job(load),
        "Python operator": _job(load, _in_python),
        "keyed": _job(load, _keyed),
        FILES: _job(sources.files(place, schema="row long")),
        REDIS: _job(sources.redis("rows", schema="row long", url=url)),
    }


def _job(source: Any, then: Callable[[Topology, Any], Any] = lambda topology, rows: rows) -> Topology:
    topology = Topology(JOB, Intent(latency="1s"), pace_s=0)
    some = topology.transform("filter", lambda rows: rows.where("row % 10 > 0"), topology.source("in", source))
    topology.sink("out", sinks.discard(), then(topology, some))
    return topology


def _in_python(topology: Topology, rows: Any) -> Any:
    return topology.batches("work", _as_they_are, rows, schema="row long, arrived timestamp", lanes=1)


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _keyed(topology: Topology, rows: Any) -> Any:
    keys = topology.transform("keys", lambda frame: frame.selectExpr("row % 7 AS key", "row"), rows)
    return topology.keyed("count", {"rows": "count", "total": "sum(row)"}, keys, key="key", lanes=1)


@contextmanager
def _fed(feed: Callable[[], object], every_s: float = 0.02) -> Iterator[None]:
    """Call `feed` at an interval, in a thread."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            feed()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _new_file(place: Path, number: int) -> None:
    part = place / f".{number}"
    part.write_text(f'{{"row": {number}}}\n')
    part.rename(place / f"{number}.json")


# -- the waterfall ---------------------------------------------------------------------------------------------------------------

THREADS: Mapping[str, tuple[str, ...]] = {
    "query": ("stream execution",),
    "calls from Python": ("Thread-",),
    "tasks": ("Executor task",),
    "scheduler": ("dag-scheduler", "dispatcher", "task-result", "block-manager", "shuffle-", "netty", "rpc"),
    "listeners": ("spark-listener", "element-track"),
    "compiler": ("C1 ", "C2 ", "Sweeper"),
    "garbage collection": ("GC ", "G1 ", "VM Thread", "Spark Context"),
}
"""Prefixes of the names of the JVM's threads, by purpose; the system keeps 15 characters of a name."""


@dataclass(slots=True)
class Waterfall:
    """The mean costs of one epoch of a job."""

    took_s: float
    cores_s: float
    wall_s: Mapping[str, float]
    """Seconds of wall time by part of the epoch."""
    cores_by_s: Mapping[str, float]
    """Core seconds by thread or process."""
    calls: Mapping[str, float]

    def figures(self, name: str) -> list[Figure]:
        """Return figures of the whole epoch, and then of its parts."""
        return [
            Figure(f"{name}: an epoch", self.took_s * 1000, "ms"),
            Figure(f"{name}: core time of an epoch", self.cores_s * 1000, "ms"),
            *(Figure(f"{name}: wall time, {part}", took_s * 1000, "ms") for part, took_s in self.wall_s.items()),
            *(Figure(f"{name}: core time, {who}", took_s * 1000, "ms") for who, took_s in self.cores_by_s.items()),
            *(Figure(f"{name}: {what} per epoch", each, "") for what, each in self.calls.items()),
        ]


@dataclass(slots=True)
class Spent:
    """The core seconds and counts so far, to be compared with a later reading."""

    at_s: float
    cores_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)


def _watched(spark: SparkEngine, topology: Topology, form: EpochsForm) -> Waterfall:
    spark.submit(topology)
    wait_for(lambda: spark.job(JOB).epochs >= form.warm_up, within_s=600)
    with _py4j_calls() as calls:
        before, first = _spent(spark, calls), spark.job(JOB).epochs
        wait_for(lambda: spark.job(JOB).epochs >= first + form.epochs, within_s=600)
        after, epochs = _spent(spark, calls), spark.job(JOB).epochs - first
    timings = spark.job(JOB).timings()[-epochs:]
    spark.remove(JOB)
    each = {name: (spent - before.cores_s.get(name, 0.0)) / epochs for name, spent in after.cores_s.items()}
    counts = {name: (number - before.counts[name]) / epochs for name, number in after.counts.items()}
    took_s = (after.at_s - before.at_s) / epochs
    return Waterfall(took_s, sum(each.values()), _by_part(timings), each, counts)


def _by_part(timings: tuple[EpochTiming, ...]) -> dict[str, float]:
    known = {span.part for one in timings for span in one.spans}
    return {
        part.value: statistics.fmean(one.seconds_of(part) for one in timings) for part in EpochPart if part in known
    }


def _spent(spark: SparkEngine, calls: Counter[str]) -> Spent:
    now = Spent(time.monotonic())
    java = _java()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error, OSError):
            parts = _threads(java) if process.pid == java else {_who(process): _cores_s(process)}
            for who, spent_s in parts.items():
                now.cores_s[who] += spent_s
    metrics = jvm.packages(spark.spark).org.apache.spark.metrics.source.CodegenMetrics
    context = jvm.context(spark.spark)
    executors = context.statusStore().executorList(True)
    now.counts["compilations"] = metrics.METRIC_COMPILATION_TIME().getCount()
    now.counts["Spark jobs"] = context.dagScheduler().numTotalJobs()
    now.counts["tasks"] = sum(executors.apply(number).totalTasks() for number in range(executors.size()))
    now.counts["calls into the JVM"] = calls["query"]
    return now


def _java() -> int:
    return next(process.pid for process in psutil.Process().children(recursive=True) if process.name() == "java")


def _who(process: psutil.Process) -> str:
    if process == psutil.Process():
        return "driver, Python"
    arguments = " ".join(process.cmdline())
    return "lanes, Python" if "pyspark.worker" in arguments else "sources and others, Python"


def _cores_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def _threads(process: int) -> dict[str, float]:
    """Return the core seconds of the JVM's threads so far, by purpose."""
    spent: dict[str, float] = defaultdict(float)
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            name, ran_ns = (task / "comm").read_text(), int((task / "schedstat").read_text().split()[0])
            group = next((one for one, starts in THREADS.items() if name.startswith(starts)), "other threads")
            spent[f"JVM, {group}"] += ran_ns / 1e9
    return spent


@contextmanager
def _py4j_calls() -> Iterator[Counter[str]]:
    """Count the calls into the JVM from threads of queries, which Py4J names `Thread-`."""
    counted: Counter[str] = Counter()
    send = ClientServerConnection.send_command

    def counting(self: Any, command: str) -> Any:
        if threading.current_thread().name.startswith("Thread-"):
            counted["query"] += 1
        return send(self, command)

    ClientServerConnection.send_command = counting
    try:
        yield counted
    finally:
        ClientServerConnection.send_command = send


# -- floor, start, idle ----------------------------------------------------------------------------------------------------------


def _floor(spark: SparkEngine, form: EpochsForm) -> list[tuple[Figure, Bar]]:
    """Measure the mean latency of a single job back to back, and the time of its start."""
    begun_s = time.monotonic()
    spark.submit(_job(sources.load(FLOOR_RATE_ROWS_S)))
    started_s = time.monotonic() - begun_s
    wait_for(lambda: spark.job(JOB).epochs >= form.warm_up, within_s=600)
    spark.observe()
    first = spark.job(JOB).epochs
    wait_for(lambda: spark.job(JOB).epochs >= first + form.epochs, within_s=600)
    reading = spark.observe().jobs[JOB]
    spark.remove(JOB)
    mean_s = float("nan") if reading is None or reading.latency is None else reading.latency.mean_s
    floor, start = "mean latency of a single job at 1,000 rows/s", "start of a job"
    return [
        (Figure(floor, mean_s, "s"), Bar(f"{floor}, s", mean_s, "<=", MOST_FLOOR_S)),
        (Figure(start, started_s, "s"), Bar(f"{start}, s", started_s, "<=", MOST_START_S)),
    ]


def _idle(spark: SparkEngine, form: EpochsForm) -> list[tuple[Figure, Bar]]:
    """Measure the cores and the memory that a job without input adds to Spark without jobs."""
    without = _per_second(form.idle_s), _memory_mb()
    names = [f"idle-{number}" for number in range(IDLE_JOBS)]
    for name in names:
        topology = Topology(name, Intent(latency="5s"))
        topology.sink("out", sinks.discard(), topology.source("in", sources.load(0)))
        spark.submit(topology)
    time.sleep(form.idle_s / 3)  # work that a start leaves for later
    having = _per_second(form.idle_s), _memory_mb()
    for name in names:
        spark.remove(name)
    cores, memory_mb = ((late - early) / IDLE_JOBS for early, late in zip(without, having, strict=True))
    return [
        (
            Figure("a job without input", cores, "cores"),
            Bar("a job without input, cores", cores, "<=", MOST_IDLE_CORES),
        ),
        (
            Figure("memory of a job without input", memory_mb, "MB"),
            Bar("memory of a job without input, MB", memory_mb, "<=", MOST_IDLE_MB),
        ),
    ]


def _per_second(for_s: float) -> float:
    """Measure the cores that this process and its descendants use."""

    def spent_s() -> float:
        return sum(_cores_s(one) for one in (psutil.Process(), *psutil.Process().children(recursive=True)))

    before_s, begun_s = spent_s(), time.monotonic()
    time.sleep(for_s)
    return (spent_s() - before_s) / (time.monotonic() - begun_s)


def _memory_mb() -> float:
    """Return the memory of this process and its descendants; memory shared by processes counts once."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            total += process.memory_full_info().pss / 2**20
    return total
