"""Benchmark of Kafka: costs as a source and a sink beside Redis and a plain consumer, the gain of lanes beyond partitions, and lag.

With `--kills`, a job that copies a topic is killed at random instead: its lanes, its driver, and the broker. With `--full` too, that job
runs on Spark.
"""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.bench import Figure, Result, ratio, repeated
from headgate.bench.brokers import mock_broker
from headgate.bench.chaos.store import RedisServer
from headgate.bench.kafka_kills import KillOutcome, run_kills
from headgate.bench.workload import Work, engine, home, wait_for
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, EpochTiming, JobAllocation
from headgate.sim.reports.bars import Bar
from headgate.spark import sinks, sources
from headgate.spark.sinks.kafka import EPOCHS, Delivery
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.spark.sources import levers
from headgate.spark.sources.kafka import columns_of as kafka_columns
from headgate.spark.sources.kafka_reader import KafkaReader
from headgate.spark.sources.levers import Levers
from headgate.spark.sources.redis import RedisReader
from headgate.spark.sources.redis import columns_of as redis_columns
from headgate.topology import Topology

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from headgate.spark.engine import SparkEngine

ROWS = 60_000
"""Rows that each side reads in a turn; the broker keeps 100,000 per partition."""
SINK_ROWS = 50_000
PARTITIONS = 2
TURNS, FULL_TURNS = 3, 7
LANES = (1, 8)
WAIT_S = 0.002
"""Seconds that the operator waits for each row."""
LANE_S = 15.0
"""Seconds for which throughput is measured; the broker keeps as many rows as 8 lanes read meanwhile."""
WAITING_ROWS = 150_000
FEED_ROWS_S = 2000
LAG_S = 10.0
SAMPLE_S = 0.2
SAMPLES = 20
"""The least number of samples of the lag in a measurement; a sample takes longer on a busy machine."""
ANSWER_S = 10.0
SCHEMA = "id long, user string, amount double"
TOPIC, JOB = "orders", "waiting"


def measure(full: bool = False, kills: int | None = None, seed: int | None = None) -> Result:
    """Measure core seconds per row, throughput by lanes, and the error of the reported lag; or the rows lost and doubled by kills."""
    if kills is not None:
        return _killed(kills, secrets.randbelow(10**6) if seed is None else seed, full)
    with _brokers() as (servers, redis, place):
        _fill(servers, redis)
        with engine(SparkSettings(slots=16, longest_epoch_s=2.0, first_rows=1000)) as spark:
            reads = _reads(servers, redis.url, place, FULL_TURNS if full else TURNS)
            writes = _writes(spark, servers, redis.url, FULL_TURNS if full else TURNS)
            lanes = _by_lanes(spark, servers)
            lag = _lag(spark, servers)
    figures = [repeated(f"core time per row: {name}", times, "µs") for name, times in reads.items()]
    figures += [repeated(f"rows per second, sink: {name}", rates, "rows/s") for name, rates in writes.items()]
    figures += [
        Figure(f"rows per second, {count} lanes on 2 partitions", rate, "rows/s") for count, rate in lanes.items()
    ]
    figures += [
        Figure("lag: greatest difference", lag.difference, "rows"),
        Figure("lag: longest epoch", lag.epoch, "rows"),
    ]
    against_redis = ratio(statistics.median(reads[KAFKA]), statistics.median(reads[REDIS]))
    return Result(
        tuple(figures),
        (
            Bar("core time per row, times that of the Redis source", against_redis, "<=", 1.3),
            Bar(
                "throughput of 8 lanes on 2 partitions, times that of 1",
                ratio(lanes[LANES[1]], lanes[LANES[0]]),
                ">=",
                3.0,
            ),
            Bar("reported lag against watermarks, difference in epochs", ratio(lag.difference, lag.epoch), "<=", 1.0),
            Bar("reported lag against watermarks, samples", lag.samples, ">=", SAMPLES),
        ),
    )


@contextmanager
def _brokers() -> Iterator[tuple[str, RedisServer, Path]]:
    with home() as place, mock_broker() as servers, closing(RedisServer(place / "redis")) as redis:
        redis.start()
        yield servers, redis, place


def _value(number: int) -> dict[Any, Any]:
    return {"id": number, "user": f"user-{number % 1000}", "amount": number / 4}


def _fill(servers: str, redis: RedisServer) -> None:
    """Write the same rows to Kafka and Redis."""
    _produce(servers, TOPIC, range(ROWS))
    pipeline = redis.client.pipeline(transaction=False)
    for number in range(ROWS):
        pipeline.xadd(TOPIC, _value(number))
        if number % 5000 == 4999:
            pipeline.execute()


def _produce(servers: str, topic: str, numbers: Any) -> None:
    from confluent_kafka import Producer

    client = Producer({"bootstrap.servers": servers, "log_level": 2, "queue.buffering.max.messages": 200_000})
    for number in numbers:
        client.produce(topic, msgspec.json.encode(_value(number)), partition=number % PARTITIONS)
    client.flush(60)


# -- sources: core time per row, in this process -----------------------------------------------------------------------------------

KAFKA, REDIS, PLAIN = "Kafka source", "Redis source", "plain Python consumer"


def _reads(servers: str, url: str, place: Path, turns: int) -> dict[str, list[float]]:
    """Plan an epoch of all rows and read the rows into Arrow batches, turn by turn; the first turn does not count."""
    sides: dict[str, Callable[[], int]] = {
        KAFKA: _kafka_side(servers, place / "kafka"),
        REDIS: _redis_side(url, place / "redis-source"),
        PLAIN: lambda: _plain_side(servers),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, read in sides.items():
            before_s = time.process_time()
            rows = read()
            if turn:
                times[name].append((time.process_time() - before_s) / rows * 1e6)
    return times


def _kafka_side(servers: str, place: Path) -> Callable[[], int]:
    place.mkdir()
    levers.write(place, Levers(1, None))
    source = sources.kafka(TOPIC, servers=servers, schema=SCHEMA)
    source.begin(place)
    schema = kafka_columns(SCHEMA)
    return lambda: _rows(KafkaReader(source.reader_options(place), schema))


def _redis_side(url: str, place: Path) -> Callable[[], int]:
    place.mkdir()
    levers.write(place, Levers(1, None))
    schema = redis_columns(SCHEMA)
    options = {"streams": json.dumps([TOPIC]), "url": url, "place": str(place), "operator": "in", "on_loss": "fail"}
    return lambda: _rows(RedisReader(options, schema))


def _rows(reader: Any) -> int:
    start = reader.initialOffset()
    shares = reader.partitions(start, reader.latestOffset(start, None))
    return sum(batch.num_rows for share in shares for batch in reader.read(share))


def _plain_side(servers: str) -> int:
    """Read all rows with a plain consumer that decodes and keeps each message."""
    from confluent_kafka import Consumer, TopicPartition

    client = Consumer({"bootstrap.servers": servers, "group.id": "plain", "log_level": 2})
    client.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    rows: list[Any] = []
    while len(rows) < ROWS:
        rows += [json.loads(message.value() or b"") for message in client.consume(1000, 1.0) if message.error() is None]
    client.close()
    return len(rows)


# -- sinks -------------------------------------------------------------------------------------------------------------------------


def _writes(spark: SparkEngine, servers: str, url: str, turns: int) -> dict[str, list[float]]:
    """Write epochs of the same rows into each sink, turn by turn; the first turn does not count."""
    _produce(servers, EPOCHS, [0])
    kinds: dict[str, Any] = {
        f"Kafka, {delivery}": sinks.kafka(f"out-{delivery}", servers=servers, delivery=delivery)
        for delivery in Delivery
    }
    kinds["Redis"] = sinks.redis("out", url=url)
    columns = ("id", "concat('user-', id % 1000) AS user", "id / 4 AS amount")
    frame = spark.spark.range(0, SINK_ROWS, numPartitions=2).selectExpr(*columns)
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(turns + 1):
        for name, write in kinds.items():
            before_s = time.perf_counter()
            with Writing(JobStart("bench", 1)).by(name):
                write(frame, turn)
            if turn:
                rates[name].append(SINK_ROWS / (time.perf_counter() - before_s))
    return rates


# -- lanes and lag -----------------------------------------------------------------------------------------------------------------


def _topology(servers: str) -> Topology:
    """Return a job with an operator that runs in the lanes of the source, without an exchange between both."""
    topology = Topology(JOB, Intent(latency="60s"), pace_s=0)
    rows = topology.source("in", sources.kafka("waiting", servers=servers), lanes=LANES[0])
    values = topology.transform("values", lambda frame: frame.select("value"), rows)
    waited = topology.batches("wait", Work(wait_s=WAIT_S), values, schema="value binary", lanes=None)
    topology.sink("out", sinks.discard(), waited)
    return topology


def _by_lanes(spark: SparkEngine, servers: str) -> dict[int, float]:
    """Measure rows per second with few lanes and then with many, of the same running job."""
    _produce(servers, "waiting", range(WAITING_ROWS))
    spark.submit(_topology(servers))
    rates = {}
    for lanes in LANES:
        allocation = JobAllocation({"in": lanes}, 0.0)
        spark.apply(Action(ActionKind.RECONFIGURE, JOB, {JOB: allocation}, Cause("measured")))
        _epochs(spark, 3)
        rates[lanes] = _rate(spark)
    return rates


def _epochs(spark: SparkEngine, more: int) -> None:
    until = spark.job(JOB).epochs + more
    wait_for(lambda: spark.job(JOB).epochs >= until)


def _rate(spark: SparkEngine) -> float:
    """Measure rows per second from the end of one epoch to the end of another."""
    _epochs(spark, 1)
    before_s, rows = time.perf_counter(), spark.job(JOB).processed("in")
    while time.perf_counter() - before_s < LANE_S:
        _epochs(spark, 1)
    return (spark.job(JOB).processed("in") - rows) / (time.perf_counter() - before_s)


@dataclass(slots=True)
class Lag:
    """Samples of the reported lag."""

    samples: int = 0
    difference: float = 0.0
    """The largest difference between the reported lag and the lag according to the watermarks, in rows."""
    epochs: dict[int, float] = field(default_factory=dict)
    """Rows of each epoch, by its number."""

    def note(self, reported: float, watermarks: float, processed: float) -> None:
        self.samples += 1
        self.difference = max(self.difference, abs(reported - (watermarks - processed)))

    def note_epochs(self, finished: Iterable[EpochTiming], after: int) -> None:
        """Record the epochs that finished after epoch number `after`."""
        self.epochs |= {one.number: one.rows for one in finished if one.number > after}

    @property
    def epoch(self) -> float:
        """The number of rows of the largest epoch."""
        return max(self.epochs.values(), default=0.0)


def _lag(spark: SparkEngine, servers: str) -> Lag:
    """Compare the reported lag of the running job with the watermarks that a plain consumer asks for, while rows arrive."""
    from confluent_kafka import Consumer

    ended, lag = threading.Event(), Lag()
    before = max((one.number for one in spark.job(JOB).timings()), default=-1)
    feeder = threading.Thread(target=_feed, args=(servers, ended))
    feeder.start()
    with closing(Consumer({"bootstrap.servers": servers, "group.id": "watermarks", "log_level": 2})) as client:
        try:
            until_s = time.monotonic() + LAG_S
            while time.monotonic() < until_s:
                reading = spark.observe().jobs[JOB]
                if reading is not None and reading.backlog is not None:
                    lag.note(reading.backlog, _watermarks(client), reading.operators["in"].processed["*"])
                time.sleep(SAMPLE_S)
            lag.note_epochs(spark.job(JOB).timings(), before)
        finally:
            ended.set()
            feeder.join()
    return lag


def _watermarks(client: Consumer) -> float:
    """Return the sum of the watermarks of all partitions, which is the number of rows ever written."""
    from confluent_kafka import TopicPartition

    found = client.list_topics("waiting", timeout=ANSWER_S).topics["waiting"].partitions
    return sum(client.get_watermark_offsets(TopicPartition("waiting", one), timeout=ANSWER_S)[1] for one in found)


def _feed(servers: str, ended: threading.Event) -> None:
    while not ended.wait(0.1):
        _produce(servers, "waiting", range(FEED_ROWS_S // 10))


# -- kills -------------------------------------------------------------------------------------------------------------------------


def _killed(kills: int, seed: int, on_spark: bool) -> Result:
    place = Path(tempfile.mkdtemp(prefix="headgate-kafka-"))
    print(f"seed {seed}; logs in {place}", flush=True)
    return result_of(run_kills(place, kills, seed, on_spark), kills, seed)


def result_of(found: KillOutcome, kills: int, seed: int) -> Result:
    """Return the figures and bars of kills: no row may be lost or doubled, and all kills must have happened."""
    figures = [Figure("seed", seed, ""), Figure("rows", found.rows, "rows")]
    figures += [Figure(f"kills: {victim}", count, "") for victim, count in sorted(found.kills.items())]
    figures.append(Figure("restarts of a broker that served no reader", found.restarts, ""))
    figures.append(Figure("duration", found.minutes, "min"))
    bars = (
        Bar("rows lost", found.lost, "<=", 0),
        Bar("rows doubled", found.doubled, "<=", 0),
        Bar("kills", sum(found.kills.values()), ">=", kills),
    )
    return Result(tuple(figures), bars)
