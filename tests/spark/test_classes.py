"""The archive of Spark's classes: every JVM of Headgate maps it into memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from headgate.spark import session


def maps_archive(process: psutil.Process) -> bool:
    """Java removes the mapping at once if the archive does not fit."""
    return str(session.ARCHIVE) in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.skipif(not session.ARCHIVE.exists(), reason="set-up wrote no archive of Spark's classes")
def test_spark_takes_its_classes_from_the_archive(spark: SparkSession) -> None:
    (java,) = (child for child in psutil.Process().children() if child.name() == "java")
    assert maps_archive(java)


def test_spark_starts_without_an_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "ARCHIVE", tmp_path / "none.jsa")
    assert session.shared_classes() == ()
