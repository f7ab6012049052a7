"""Jobs on Kafka from end to end: the same job on any source, lanes for a job that cannot keep up, and kills."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import functions as F
from redis import Redis

from headgate import Intent, Topology, sinks, sources
from headgate.bench.workload import Work
from headgate.config import FAST, Settings
from headgate.controller import Controller
from headgate.jobfile import JobRequest
from headgate.ports import JobPhase
from headgate.scheduler.policies import policy_named
from headgate.spark.engine import SparkEngine
from headgate.spark.jobs.loading import load
from tests.kafka import committed, new_topic, order, read_all, write

from .builders import column, start
from .conftest import Until

pytestmark = pytest.mark.slow
ROWS = 500

JOB = """
from headgate import Intent, Topology, sinks, sources

SCHEMA = "id long, user string, amount double"


def topology(store: str, where: str, name: str, out: str) -> Topology:
    stores = {
        "redis": lambda: sources.redis(name, url=where, schema=SCHEMA),
        "kafka": lambda: sources.kafka(name, servers=where, schema=SCHEMA),
        "files": lambda: sources.files(where, schema=SCHEMA, format="json"),
    }
    job = Topology(f"totals-{store}", Intent(latency="30s"), pace_s=0)
    orders = job.source("orders", stores[store]())
    large = job.transform("large", lambda rows: rows.where("amount >= 10").select("user", "amount"), orders)
    totals = job.keyed("totals", {"orders": "count", "spent": "sum(amount)"}, large, key="user", lanes=2, slices=8)
    job.sink("out", sinks.files(out), totals)
    return job
"""


def test_the_same_job_file_has_the_same_result_on_redis_kafka_and_files(
    engine: SparkEngine, tmp_path: Path, kafka_servers: str, redis_url: str, redis_client: Redis, until: Until
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    topic, folder = new_topic(), tmp_path / "orders"
    folder.mkdir()
    write(kafka_servers, topic, map(order, range(ROWS)), partitions=3)
    (folder / "orders.json").write_bytes(b"\n".join(map(order, range(ROWS))))
    for number in range(ROWS):
        redis_client.xadd(topic, {"id": number, "user": f"user-{number % 7}", "amount": number / 2})
    found = {}
    for store, where in {"redis": redis_url, "kafka": kafka_servers, "files": str(folder)}.items():
        out = tmp_path / store
        arguments = {"store": store, "where": where, "name": topic, "out": str(out)}
        engine.submit(load(JobRequest(str(tmp_path / "job.py"), parameters=arguments)))
        until(lambda name=f"totals-{store}": processed(engine, name, "orders") == ROWS, f"{ROWS} rows of {store}")
        engine.pause(f"totals-{store}")
        newest = engine.spark.read.parquet(str(out)).groupBy("user")
        totals = newest.agg(F.max("orders").alias("orders"), F.max("spent").alias("spent")).collect()
        found[store] = {row.user: (row.orders, row.spent) for row in totals}
    amounts = {f"user-{user}": [number / 2 for number in range(20, ROWS) if number % 7 == user] for user in range(7)}
    expected = {user: (len(each), sum(each)) for user, each in amounts.items()}
    assert found == dict.fromkeys(("redis", "kafka", "files"), expected)


def processed(engine: SparkEngine, job: str, source: str) -> float:
    state = engine.states()[job]
    assert not state.reason, state.reason
    reading = engine.observe().jobs.get(job)
    return reading.operators[source].processed["*"] if reading is not None else 0.0


def test_a_job_reads_and_writes_kafka(engine: SparkEngine, kafka_servers: str, until: Until) -> None:
    topic, out = new_topic(), new_topic("copies")
    write(kafka_servers, "headgate-epochs", [b"{}"], key=b"nobody")
    write(kafka_servers, topic, map(order, range(ROWS)), partitions=2)
    job = Topology("copies", Intent(latency="30s"), pace_s=0)
    rows = job.source("in", sources.kafka(topic, servers=kafka_servers, group="lag-tool"), lanes=3)
    job.sink(
        "out",
        sinks.kafka(out, servers=kafka_servers),
        job.transform("pick", lambda rows: rows.select("key", "value"), rows),
    )
    start(engine, job, read_limit=90)
    until(lambda: processed(engine, "copies", "in") == ROWS, "all rows")
    assert sorted(row.value() for row in read_all(kafka_servers, out)) == sorted(map(order, range(ROWS)))
    reading = engine.observe().jobs["copies"]
    assert reading is not None and (reading.arrived["in"], reading.backlog) == (ROWS, 0)
    until(lambda: committed(kafka_servers, topic, "lag-tool", 2) == [ROWS // 2, ROWS // 2], "offsets of the group", 30)


def test_the_example_passes_large_orders_on(engine: SparkEngine, kafka_servers: str, until: Until) -> None:
    topic, out = new_topic(), new_topic("large")
    write(kafka_servers, "headgate-epochs", [b"{}"], key=b"nobody")
    write(kafka_servers, topic, map(order, range(900, 1100)), partitions=2)
    example = Path(__file__).parents[2] / "examples" / "kafka.py"
    arguments = {"servers": kafka_servers, "read": topic, "write": out}
    engine.submit(load(JobRequest(str(example), parameters=arguments)))
    until(lambda: processed(engine, "large-orders", "orders") == 200, "all orders")
    found = [json.loads(row.value())["id"] for row in read_all(kafka_servers, out)]
    assert sorted(found) == list(range(1001, 1100))


def test_the_example_keeps_the_newest_order_of_each_user_in_a_delta_table(
    engine: SparkEngine, kafka_servers: str, tmp_path: Path, until: Until
) -> None:
    deltalake = pytest.importorskip("deltalake", reason='tables need pip install "headgate[delta]"')
    topic, out = new_topic(), tmp_path / "lake"
    write(kafka_servers, topic, map(order, range(200)))
    example = Path(__file__).parents[2] / "examples" / "kafka_to_delta.py"
    job = load(JobRequest(str(example), parameters={"servers": kafka_servers, "read": topic, "out": str(out)}))
    job.pace_s = 0.0
    start(engine, job, read_limit=60)
    until(lambda: processed(engine, "newest-orders", "orders") == 200, "all orders")
    table = deltalake.DeltaTable(out).to_pyarrow_table()
    found = dict(zip(table["user"].to_pylist(), table["id"].to_pylist(), strict=True))
    assert found == {f"user-{number % 7}": number for number in range(200)}


def kept(out: Path, topic: str, servers: str, on_loss: str) -> Topology:
    job = Topology("kept", Intent(latency="30s"), pace_s=0)
    rows = job.source("in", sources.kafka(topic, servers=servers, on_loss=on_loss))
    job.sink("out", sinks.files(out), job.transform("pick", lambda rows: rows.select("offset"), rows))
    return job


def test_a_job_that_failed_because_of_removed_rows_goes_on_with_what_is_left(
    engine: SparkEngine, kafka_servers: str, out: Path, until: Until
) -> None:
    topic = new_topic()
    write(kafka_servers, topic, map(order, range(20)))
    engine.submit(kept(out, topic, kafka_servers, "fail"))
    until(lambda: processed(engine, "kept", "in") == 20, "the first rows")
    engine.pause("kept")
    write(kafka_servers, topic, [b"x" * 100] * 120_000)  # more than the broker keeps
    engine.resume("kept")
    until(lambda: engine.states()["kept"].phase is JobPhase.FAILED, "the failure")
    assert 'rows were removed unread; set on_loss="skip"' in engine.states()["kept"].reason
    first, end = watermarks(kafka_servers, topic)
    assert 20 < first < end == 120_020
    engine.remove("kept", keep=True)
    engine.submit(kept(out, topic, kafka_servers, "skip"))
    left = [*range(20), *range(first, end)]
    until(lambda: column(out, "offset") == left, "what is left was read")
    told = f"partition {topic}/0: {first - 20:,} rows were removed unread"
    until(lambda: told in engine.states()["kept"].reason, "the loss was told")


def watermarks(servers: str, topic: str) -> tuple[int, int]:
    client = Consumer({"bootstrap.servers": servers, "group.id": "watermarks", "log_level": 2})
    found = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    client.close()
    return found


@contextmanager
def feeding(servers: str, topic: str, rows: int) -> Iterator[None]:
    """So many rows every tenth of a second."""
    ended = threading.Event()

    def feed() -> None:
        while not ended.wait(0.1):
            write(servers, topic, [b"x"] * rows, partitions=2)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()


def test_a_job_that_cannot_keep_up_has_little_juice_and_gets_lanes(engine: SparkEngine, kafka_servers: str) -> None:
    topic = new_topic()
    write(kafka_servers, topic, [b"x"])
    job = Topology("slow", Intent(juice=0.95, worth=10), pace_s=0)
    rows = job.source("in", sources.kafka(topic, servers=kafka_servers), max_lanes=1)
    values = job.transform("values", lambda rows: rows.select("value"), rows)
    waited = job.batches("wait", Work(wait_s=0.01), values, schema="value binary", lanes=1, max_lanes=8)
    job.sink("out", sinks.discard(), waited)
    settings = Settings(**{**FAST, "round_s": 1.0})  # type: ignore[arg-type]
    controller = Controller(engine, policy_named("headgate", settings), None, settings)
    juices: list[float] = []
    with feeding(kafka_servers, topic, 40):
        engine.submit(job)
        rounds(controller, juices, lambda: engine.job("slow").allocation.lanes["wait"] > 1)
    assert min(juices) < 0.95


def rounds(controller: Controller, juices: list[float], done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 80
    while not done():
        assert time.monotonic() < until_s, f"it got no lanes; its juice was {juices}"
        time.sleep(controller.settings.round_s)
        view: Any = controller.round()[0]
        if "slow" in view.jobs and view.jobs["slow"].juice is not None:
            juices.append(view.jobs["slow"].juice)
