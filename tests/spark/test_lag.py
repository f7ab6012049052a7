"""How many rows wait at Spark's own sources: from progress reports and from files; unknown where neither tells. Real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate import Intent, Topology, sinks, sources
from headgate.core.model import JobReading
from headgate.spark.engine import SparkEngine
from headgate.spark.measuring.lag import Lags, OffsetStream, Report, distance
from headgate.spark.measuring.unread import FileStream

from .conftest import Until

if TYPE_CHECKING:
    from typing import Any

# -- reports ---------------------------------------------------------------------------------------------------------------------


def report(epoch: int, *streams: tuple[Any, Any, Any], began_s: float = 2e9) -> Report:
    return Report(epoch, began_s, 1.0, streams)


def kafka(rows: int) -> dict[str, dict[str, int]]:
    return {"orders": {"0": rows, "1": 10}}


def test_offsets_of_kafka_tell_the_rows_that_wait_once_two_epochs_ended() -> None:
    lags = Lags({"in": (OffsetStream(),)}, {"in": 0.0})
    lags.add_epoch(0, {"in": 100.0})
    assert lags.arrived("in", report(0, (None, kafka(90), kafka(500))), 30) is None  # rows per offset are not known yet
    lags.add_epoch(1, {"in": 150.0})
    assert lags.arrived("in", report(1, (kafka(90), kafka(140), kafka(540))), 30) == 150 + 400


def test_rows_that_wait_follow_the_rows_that_an_offset_had() -> None:
    """An offset of the rate source is a second; a transaction marker of Kafka is an offset without a row."""
    lags = Lags({"in": (OffsetStream(),)}, {"in": 0.0})
    for epoch, rows in enumerate((1000.0, 3000.0)):
        lags.add_epoch(epoch, {"in": rows})
        told = lags.arrived("in", report(epoch, (epoch, epoch + 1, epoch + 3)), 30)
    assert told == 3000 + 2 * 2000


def test_nothing_waits_where_the_end_was_reached() -> None:
    lags = Lags({"in": (OffsetStream(), OffsetStream())}, {"in": 7.0})
    assert lags.arrived("in", report(3, (5, 5, 5), (9, 9, 9)), 30) == 7.0


@pytest.mark.parametrize("stream", [(1, 2, None), ({"a": "x"}, {"a": "y"}, {"a": "z"})])
def test_lag_of_a_stream_that_reports_no_end_is_unknown(stream: tuple[Any, Any, Any]) -> None:
    lags = Lags({"in": (OffsetStream(),)}, {"in": 0.0})
    for epoch in range(3):
        lags.add_epoch(epoch, {"in": 10.0 * epoch})
        assert lags.arrived("in", report(epoch, stream), 30) is None


def test_report_of_long_ago_tells_nothing() -> None:
    lags = Lags({"in": (OffsetStream(),)}, {"in": 0.0})
    lags.add_epoch(0, {"in": 5.0})
    assert lags.arrived("in", report(0, (0, 5, 5), began_s=0.0), 30) is None
    assert lags.arrived("in", None, 30) is None


def test_partition_that_is_new_counts_from_its_beginning() -> None:
    assert distance({"t": {"0": 4}}, {"t": {"0": 4, "1": 6}}) == 6


# -- files -----------------------------------------------------------------------------------------------------------------------


def log(place: Path, name: str, batch: int, *files: Path) -> None:
    place.mkdir(exist_ok=True)
    lines = [json.dumps({"path": path.as_uri(), "timestamp": 1, "batchId": batch}) for path in files]
    (place / name).write_text("\n".join(["v1", *lines]))


def test_files_that_sparks_log_does_not_have_wait(tmp_path: Path) -> None:
    place = tmp_path / "in put"
    place.mkdir()
    files = [place / f"{number}.json" for number in range(4)]
    for path in files:
        path.write_text("x" * 100)
    (place / "_hidden.json").write_text("x" * 100)
    log(tmp_path / "log", "0", 0, files[0])
    log(tmp_path / "log", "1", 1, files[1])
    stream = FileStream({"path": str(place)}, tmp_path / "log")
    assert stream.waiting(None, None) == 400
    assert stream.waiting({"logOffset": 0}, None) == 300
    assert stream.waiting({"logOffset": 1}, None) == 200
    assert stream.between({"logOffset": 0}, {"logOffset": 1}) == 100
    files[1].unlink()
    assert stream.between({"logOffset": 0}, {"logOffset": 1}) == 100


@pytest.mark.parametrize("options", [{"path": "s3a://bucket/in"}, {"path": "/", "latestFirst": "true"}])
def test_files_that_cannot_be_listed_are_unknown(tmp_path: Path, options: dict[str, str]) -> None:
    assert FileStream(options, tmp_path).waiting({"logOffset": 0}, None) is None


# -- on Spark --------------------------------------------------------------------------------------------------------------------

FILES, ROWS_EACH = 6, 50


def reading(engine: SparkEngine, name: str) -> JobReading:
    found = engine.observe().jobs[name]
    assert found is not None
    return found


@pytest.mark.slow
def test_backlog_of_a_directory_is_that_of_its_unread_files(engine: SparkEngine, tmp_path: Path, until: Until) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for number in range(FILES):
        rows = (json.dumps({"id": 1000 + number}) for _ in range(ROWS_EACH))
        (place / f"{number}.json").write_text("\n".join(rows))
    job = Topology("files", Intent(juice=0.9), pace_s=0.2)
    read = job.source("in", sources.files(place, schema="id long", maxFilesPerTrigger=1))
    job.sink("out", sinks.discard(), read)
    engine.submit(job)
    seen: list[JobReading] = []

    def works_off() -> bool:
        seen.append(reading(engine, "files"))
        return seen[-1].backlog == 0

    until(works_off, "all files are read")
    known = [one for one in seen if one.backlog is not None]
    assert seen[0].backlog is None  # no epoch has ended
    assert any(one.backlog for one in known)
    assert {one.arrived["in"] for one in known} == {FILES * ROWS_EACH}


@pytest.mark.slow
def test_lag_of_a_query_that_cannot_tell_is_unknown_and_one_that_can_is_known(
    engine: SparkEngine, until: Until
) -> None:
    job = Topology("queries", Intent(latency="10s"), pace_s=0)
    for name in ("rate", "rate-micro-batch"):
        options = {"rowsPerBatch": 10} if "micro" in name else {"rowsPerSecond": 10}
        reader = lambda spark, name=name, options=options: spark.readStream.format(name).options(**options).load()  # noqa: E731
        job.sink(f"out-{name}", sinks.discard(), job.source(name, reader, arrival="timestamp"))
    engine.submit(job)
    running = engine.job("queries")
    until(lambda: reading(engine, "queries").epochs >= 4, "some epochs")  # type: ignore[operator]
    until(lambda: running._infer_arrivals("rate") is not None, "the lag of the rate source")
    assert running._infer_arrivals("rate-micro-batch") is None
    assert reading(engine, "queries").backlog is None
