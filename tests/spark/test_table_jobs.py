"""Jobs that read and write tables, on Spark: types, lanes, backlog; and `kill -9` of the whole process, again and again."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytest.importorskip("deltalake", reason='run: pip install "headgate[delta]"')
pytest.importorskip("pyiceberg", reason='run: pip install "headgate[iceberg]"')
pytest.importorskip("psycopg", reason='run: pip install "headgate[postgres]"')

import psycopg
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from headgate.bench.tables import servers
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.topology import Topology, Writer

from .builders import ROWS, change, put_in, reading, same, topology
from .conftest import Start as Starter
from .conftest import Until
from .processes import Run

KILLS = 2


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    if servers.postgres_folder() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with servers.postgres_server() as url:
        yield url


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


def write(sink: Writer, rows: Any, epoch: int, start: int = 1) -> None:
    with Writing(JobStart("one", start)).by("out"):
        sink(rows, epoch)


def selected(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


# -- types

TYPES = (
    "id long, small short, `with.dot` string, empty string, price decimal(10,2), ratio double, ok boolean, day date,"
    " at timestamp, raw binary, tags array<string>, place struct<x: int, y: int>"
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
VALUES = (7, 3, 'a "b", c\nd', "", Decimal("1.50"), 0.25, True, date(2026, 1, 2), AT, b"\x00\xff", ["a", "b"])


@pytest.mark.slow
def test_values_of_every_type_come_back_from_every_table(
    spark: SparkSession, tmp_path: Path, postgres_url: str, catalog: dict[str, str]
) -> None:
    rows = spark.createDataFrame([(*VALUES, (1, 2)), (8, *[None] * 11)], TYPES)
    for sink in (
        sinks.delta(tmp_path / "delta"),
        sinks.iceberg("test", "shop.every_type", catalog),
        sinks.postgres(postgres_url, "every_type", key="id"),
    ):
        for epoch in (0, 0):
            write(sink, rows, epoch)
    wanted = [(*VALUES, {"x": 1, "y": 2}), (8, *[None] * 11)]
    read = (
        DeltaTable(tmp_path / "delta").to_pyarrow_table(),
        load_catalog("test", **catalog).load_table("shop.every_type"),
    )
    for table in (read[0], read[1].scan().to_arrow()):
        found = sorted(table.to_pylist(), key=lambda row: row["id"])
        assert [tuple(row.values()) for row in found] == wanted
    assert selected(postgres_url, "SELECT * FROM every_type ORDER BY id") == wanted


# -- a job


def table_job(source: Path, out: Path, url: str, catalog: dict[str, str]) -> Topology:
    job = topology(pace_s=0.0)
    rows = job.batches("copy", same, job.source("in", sources.delta(source)), schema=ROWS)
    job.sink("delta", sinks.delta(out), rows)
    job.sink("iceberg", sinks.iceberg("test", "shop.rows", catalog), rows)
    job.sink("postgres", sinks.postgres(url, "job_rows"), rows)
    return job


@pytest.mark.slow
def test_a_job_follows_a_delta_table_and_writes_each_row_once_to_every_kind_of_table(
    engine: SparkEngine, tmp_path: Path, postgres_url: str, catalog: dict[str, str], until: Until
) -> None:
    source, out = tmp_path / "source", tmp_path / "delta"

    def append(first: int, last: int) -> None:
        write_deltalake(source, pa.table({"row": pa.array(range(first, last), pa.int64())}), mode="append")

    append(0, 100)
    engine.submit(table_job(source, out, postgres_url, catalog))
    until(lambda: put_in(engine) == 100, "the first rows were read")
    change(engine, lanes={"in": 3, "copy": 2})
    for number in range(1, 4):
        append(100 * number, 100 * (number + 1))
    until(lambda: put_in(engine) == 400, "all rows were read")
    assert reading(engine).arrived["in"] == 400
    assert sorted(DeltaTable(out).to_pyarrow_table()["row"].to_pylist()) == list(range(400))
    table = load_catalog("test", **catalog).load_table("shop.rows")
    assert sorted(table.scan().to_arrow()["row"].to_pylist()) == list(range(400))
    assert selected(postgres_url, 'SELECT "row" FROM job_rows ORDER BY 1') == [(row,) for row in range(400)]


# -- kills

SCRIPT = """
import json, sys, time
from pathlib import Path
from headgate import Intent, Topology
from headgate.config import SparkSettings
from headgate.spark import sinks, sources
from headgate.spark.engine import open_engine

place, url, catalog, rows = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])


def same(batches):
    yield from batches


def keyed(frame):
    return frame.selectExpr("row % 50 AS key", "row")


job = Topology("tables", Intent(latency="30s"), pace_s=0.0)
read = job.source("in", sources.load(sources.Steps([(0, 10 * rows), (0.1, 0)])), lanes=2)
copied = job.batches("copy", same, read, schema="row long, arrived timestamp", lanes=2)
job.sink("append", sinks.delta(place / "append"), copied)
job.sink("iceberg", sinks.iceberg("test", "shop.rows", catalog), copied)
job.sink("insert", sinks.postgres(url, "killed_rows"), copied)
pairs = job.transform("pairs", keyed, copied)
job.sink("merge", sinks.delta(place / "merge", key="key"), pairs, lanes=1)
job.sink("upsert", sinks.postgres(url, "killed_keys", key="key"), pairs, lanes=1)
engine = open_engine(place / "home", SparkSettings(slots=4, read_limit=150, stop_s=60))
try:
    engine.submit(job)
    while True:
        now = engine.observe().jobs["tables"]
        done = int(now.operators["in"].processed["*"]) if now else 0
        print(done, flush=True)
        state = engine.states()["tables"]
        if done == rows or state.phase.value == "failed":
            break
        time.sleep(0.05)
    sys.exit(state.reason if state.phase.value == "failed" else 0)
finally:
    engine.close()
"""


@pytest.mark.slow
def test_kill_in_the_middle_of_epochs_loses_and_doubles_no_row_of_a_table(
    tmp_path: Path, postgres_url: str, catalog: dict[str, str], start: Starter
) -> None:
    rows, chance = 2000, random.Random(11)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), postgres_url, json.dumps(catalog), str(rows)]
    reached = 0
    for _ in range(KILLS):
        run = start(command)
        reached = _await(run, reached + 150)
        assert reached < rows, "it was done before it was killed"
        time.sleep(chance.uniform(0, 0.7))  # any moment of an epoch
        run.kill()
    last = start(command)
    assert _await(last, rows) == rows
    assert last.wait() == 0, last.errors()
    every, newest = list(range(rows)), [(key, rows - 50 + key) for key in range(50)]
    assert sorted(DeltaTable(tmp_path / "append").to_pyarrow_table()["row"].to_pylist()) == every
    assert sorted(load_catalog("test", **catalog).load_table("shop.rows").scan().to_arrow()["row"].to_pylist()) == every
    assert selected(postgres_url, 'SELECT "row" FROM killed_rows ORDER BY 1') == [(row,) for row in every]
    merged = DeltaTable(tmp_path / "merge").to_pyarrow_table().to_pylist()
    assert sorted((row["key"], row["row"]) for row in merged) == newest
    assert selected(postgres_url, 'SELECT key, "row" FROM killed_keys ORDER BY 1') == newest


def _await(run: Run, goal: int) -> int:
    for line in run.lines():
        if int(line) >= goal:
            return int(line)
    raise AssertionError(run.errors())
