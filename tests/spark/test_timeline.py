"""A job's record of its epochs, without Spark: its log is brought to the record, whatever a power cut left of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from headgate.errors import EngineError
from headgate.spark.epochs.timeline import Timeline

METADATA = '{"id":"7c9e6679"}'


class SparkLog:
    """Writes the log as Spark does, without forcing anything to disk."""

    def __init__(self, place: Path) -> None:
        self.log = place / "checkpoint"
        for folder in ("offsets", "commits"):
            (self.log / folder).mkdir(parents=True)
        (self.log / "metadata").write_text(METADATA)

    def plan(self, epoch: int, end: int) -> None:
        clock = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_000 * epoch})
        self._write("offsets", epoch, f'v1\n{clock}\n{{"rows": {end}}}')

    def commit(self, epoch: int) -> None:
        self._write("commits", epoch, 'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, folder: str, epoch: int, content: str) -> None:
        (self.log / folder / str(epoch)).write_text(content)
        (self.log / folder / f".{epoch}.crc").write_bytes(b"crc\0\0\0\2\0")

    def numbers(self, folder: str) -> list[int]:
        return sorted(int(path.name) for path in (self.log / folder).glob("[0-9]*"))

    def content(self) -> dict[str, bytes]:
        """Files that Spark reads."""
        found = (path for path in self.log.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path.relative_to(self.log)): path.read_bytes() for path in found}


def run(log: SparkLog, timeline: Timeline, epochs: range, rows: int = 10) -> None:
    for epoch in epochs:
        log.plan(epoch, rows * (epoch + 1))
        timeline.begin(epoch)
        log.commit(epoch)


@pytest.fixture
def log(tmp_path: Path) -> SparkLog:
    return SparkLog(tmp_path)


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    return Timeline(tmp_path)


@pytest.mark.parametrize("back", range(1, 6))
def test_log_that_lost_its_last_epochs_is_put_back(log: SparkLog, timeline: Timeline, back: int) -> None:
    run(log, timeline, range(9))
    log.plan(9, 200)
    timeline.begin(9)
    whole = log.content()
    for epoch in range(10 - back, 10):
        (log.log / "offsets" / str(epoch)).unlink()
        (log.log / "commits" / str(epoch - 1)).unlink()
    timeline.restore()
    assert log.numbers("offsets")[-2:] == [8, 9]
    assert log.numbers("commits")[-1] == 8
    assert log.content().items() <= whole.items()
    timeline.begin(9)


@pytest.mark.parametrize("seed", range(100))
def test_power_cut_never_leaves_an_epoch_that_had_an_effect_with_other_rows(tmp_path: Path, seed: int) -> None:
    """Each file that was not forced to disk is gone, empty, cut off or whole; the next plan continues what had an effect."""
    chance = random.Random(seed)
    log, timeline = SparkLog(tmp_path), Timeline(tmp_path)
    last = chance.randrange(1, 5)
    run(log, timeline, range(last))
    log.plan(last, 10 * last + 7)
    if begun := chance.random() < 0.7:
        timeline.begin(last)
        if chance.random() < 0.5:
            log.commit(last)
    whole = log.content()
    for path in sorted((*(log.log / "offsets").iterdir(), *(log.log / "commits").iterdir(), log.log / "metadata")):
        harm = chance.choice(["none", "none", "gone", "empty", "cut off"])
        if harm == "gone":
            path.unlink()
        elif harm != "none":
            path.write_bytes(path.read_bytes()[: 0 if harm == "empty" else chance.randrange(path.stat().st_size)])
    Timeline(tmp_path).restore()
    newest = last if begun else last - 1
    found = log.content()
    for name in (f"offsets/{newest}", f"offsets/{newest - 1}", f"commits/{newest - 1}", "metadata"):
        assert found.get(name) == whole.get(name), name
    assert log.numbers("offsets")[-1] in (newest, newest + 1)
    assert all(found[name] == whole[name] for name in found if int(Path(name).name if "/" in name else 0) >= newest)
    assert not list(log.log.rglob("*.crc"))


def test_epoch_that_spark_plans_with_other_rows_is_refused(log: SparkLog, timeline: Timeline) -> None:
    run(log, timeline, range(4))
    log.plan(3, 35)
    with pytest.raises(EngineError, match="epoch 3 was begun with other rows than Spark now plans for it"):
        timeline.begin(3)


def test_epoch_that_is_run_again_with_the_same_rows_writes_nothing(
    log: SparkLog, timeline: Timeline, tmp_path: Path
) -> None:
    run(log, timeline, range(4))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "epochs").iterdir()}
    timeline.begin(3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "epochs").iterdir()} == before


def test_damaged_record_is_replaced_by_what_spark_has(log: SparkLog, timeline: Timeline, tmp_path: Path) -> None:
    run(log, timeline, range(4))
    record = tmp_path / "epochs" / f"{3:012d}.json"
    record.write_bytes(record.read_bytes().replace(b"3", b"4"))
    whole = log.content()
    timeline.restore()
    assert log.content() == whole
    (log.log / "offsets" / "3").unlink()
    with pytest.raises(EngineError, match=r"is damaged.*Spark's log has no epoch 3 either"):
        timeline.restore()


def test_records_are_bounded_and_leave_nothing_half_written(log: SparkLog, timeline: Timeline, tmp_path: Path) -> None:
    run(log, timeline, range(30))
    assert len(list((tmp_path / "epochs").iterdir())) <= 11
    (tmp_path / "epochs" / "000000000029.json.abc.part").write_bytes(b"half")
    timeline.restore()
    assert not list((tmp_path / "epochs").glob("*.part"))


def test_log_of_a_job_without_a_record_is_left_alone(log: SparkLog, timeline: Timeline) -> None:
    log.plan(0, 10)
    log.commit(0)
    whole = log.content()
    timeline.restore()
    assert log.content() == whole
