"""What a job remembers of its progress, whatever became of the file. No Spark runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.spark.measuring import progress
from headgate.spark.measuring.progress import Progress


def committed(place: Path, epoch: int, *offsets: str) -> None:
    for folder in ("commits", "offsets"):
        (place / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
    (place / "checkpoint" / "commits" / str(epoch)).write_text("v1\n{}")
    (place / "checkpoint" / "offsets" / str(epoch)).write_text("\n".join(("v1", "{}", *offsets)))


def test_epoch_that_was_not_committed_does_not_count(tmp_path: Path) -> None:
    progress.save(tmp_path, Progress(3, {"in": 10.0}, {"in": 15.0}))
    assert progress.load(tmp_path) == {"in": 10.0}
    committed(tmp_path, 3)
    assert progress.load(tmp_path) == {"in": 15.0}


def test_job_that_never_ran_has_processed_nothing(tmp_path: Path) -> None:
    assert progress.load(tmp_path) == {}


@pytest.mark.parametrize("damage", [b"", b'{"epoch": 3, "bef', b"\xff\xfe\x00", b"[]", b'{"epoch": "three"}'])
def test_damaged_record_is_told_from_a_missing_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / progress.FILE).write_bytes(damage)
    assert progress.load(tmp_path) is None


def test_offsets_are_those_of_the_last_committed_epoch(tmp_path: Path) -> None:
    committed(tmp_path, 8, '{"rows": 70}', '{"rows": 1}')
    committed(tmp_path, 10, '{"rows": 90}', '{"rows": 2}')
    (tmp_path / "checkpoint" / "offsets" / "11").write_text('v1\n{}\n{"rows": 99}\n{"rows": 3}')
    assert progress.committed_offsets(tmp_path, ("in", "other")) == {"in": {"rows": 90}, "other": {"rows": 2}}


def test_damaged_log_gives_no_offsets(tmp_path: Path) -> None:
    committed(tmp_path, 8, "torn {")
    assert progress.committed_offsets(tmp_path, ("in",)) == {}
