"""The benchmark under faults: what it takes for wrong is wrong, and two minutes of it find nothing."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.bench import chaos
from headgate.bench.chaos.faults import drawn
from headgate.bench.chaos.feeder import STREAMS, Fed, Feeder
from headgate.bench.chaos.oracle import OutputFaults, verdict
from headgate.bench.chaos.service import ProcessRole, SupervisedService
from headgate.bench.chaos.store import Disk, RedisServer

EXACT = OutputFaults(rows=3, lost=0, doubled=0, sequence_errors=0, wrong_totals=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path / "redis")
    found.start()
    yield found
    found.close()


@pytest.fixture
def fed() -> Fed:
    """Two rows of one key, one of another."""
    found = Fed(rows=3)
    found.counts.update({"a": 2, "b": 1})
    found.sums.update({"a": 30, "b": 5})
    return found


def put_out(server: RedisServer, *rows: tuple[str, int, int, int]) -> None:
    for key, seq, n, repeated in rows:
        server.client.xadd("out", {"key": key, "seq": seq, "n": n, "repeated": repeated})


def write(out: Path, *epochs: dict[str, tuple[int, int]]) -> None:
    for number, totals in enumerate(epochs):
        folder = out / "totals" / f"epoch={number}"
        folder.mkdir(parents=True)
        columns = {
            "key": list(totals),
            "n": [n for n, _ in totals.values()],
            "total": [total for _, total in totals.values()],
        }
        pq.write_table(pa.table(columns), folder / "part-0.parquet")


ROWS = (("a", 0, 1, 0), ("b", 0, 1, 0), ("a", 1, 2, 0))
TOTALS = ({"a": (1, 10)}, {"a": (2, 30), "b": (1, 5)})


@pytest.mark.parametrize(
    ("rows", "totals", "wrong"),
    [
        (ROWS, TOTALS, {}),
        (ROWS[:2], TOTALS, {"rows": 2, "lost": 1, "sequence_errors": 1}),
        ((*ROWS, ROWS[1]), TOTALS, {"rows": 4, "doubled": 1, "sequence_errors": 1}),
        ((*ROWS[:2], ("a", 1, 2, 1)), TOTALS, {"sequence_errors": 1}),
        ((*ROWS[:2], ("a", 1, 3, 0)), TOTALS, {"sequence_errors": 1}),
        ((*ROWS, ("c", 0, 1, 0)), TOTALS, {"rows": 4, "doubled": 1}),
        (ROWS, TOTALS[:1], {"wrong_totals": 2}),
        (ROWS, (*TOTALS, {"a": (2, 30)}), {"wrong_totals": 1}),
    ],
    ids=["exact", "lost", "doubled", "taken for repeated", "count skipped", "never fed", "totals behind", "not more"],
)
def test_whatever_is_wrong_with_the_output_is_found(server, fed, tmp_path, rows, totals, wrong) -> None:
    put_out(server, *rows)
    write(tmp_path, *totals)
    expected = {name: getattr(EXACT, name) for name in EXACT.__slots__} | wrong
    assert verdict(server.client, tmp_path, fed) == OutputFaults(**expected)


def test_feeder_feeds_each_row_once_though_redis_goes_away(server: RedisServer) -> None:
    feeder = Feeder(server.url, seed=1, rate_rows_s=500)
    feeder.start()
    try:
        for _ in range(3):
            before = feeder.fed.rows
            server.stop()
            server.start()
            wait_until(lambda before=before: feeder.fed.rows > before)
    finally:
        feeder.stop()
    assert sum(server.rows(stream) or 0 for stream in STREAMS) == feeder.fed.rows == feeder.fed.counts.total()


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_same_seed_draws_the_same_faults() -> None:
    first, again, other = (list(itertools.islice(drawn(seed), 100)) for seed in (1, 1, 2))
    assert first == again != other


def test_full_disk_is_full_until_it_is_freed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    try:
        if disk.refusal:
            pytest.skip(disk.refusal)
        disk.fill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk.path / "more").write_bytes(bytes(4096))
        disk.free()
        (disk.path / "more").write_bytes(bytes(4096))
    finally:
        disk.close()
    assert not os.path.ismount(disk.path)


def test_parent_of_a_jvm_is_its_driver_only_if_it_belongs_to_the_service(tmp_path: Path) -> None:
    """A JVM that outlives its driver becomes a child of the system's first process, which must not be killed for it."""
    service = SupervisedService(tmp_path / "home", "redis://127.0.0.1:1", tmp_path / "out", tmp_path / "log")
    jvm = [
        sys.executable,
        "-c",
        "import time; time.sleep(60)",
        "org.apache.spark.deploy.SparkSubmit",
        str(service.home),
    ]
    process = subprocess.Popen(jvm)
    try:
        wait_until(lambda: service.processes()[ProcessRole.JVM])
        assert service.processes()[ProcessRole.DRIVER] == []
        assert [one.pid for one in service.left()] == [process.pid]
    finally:
        service.close()
    process.wait()
    assert service.left() == []


OF_THE_MACHINE = {"faults", "time to current output, median", "times that somebody had to step in"}
"""Bars on time: a busy machine misses them although nothing is wrong. `headgate bench chaos` measures them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_minutes_of_faults_lose_nothing_and_double_nothing() -> None:
    result = chaos.measure(minutes=2, seed=1)
    assert not [bar for bar in result.bars if not bar.holds and bar.name not in OF_THE_MACHINE]
    faults = next(bar.value for bar in result.bars if bar.name == "faults")
    assert faults is not None and faults >= 6
