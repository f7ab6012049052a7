"""Logs that other processes append to: set aside when too large, and not kept for ever."""

from __future__ import annotations

import os
from pathlib import Path

from headgate.spark.logs import Logs, prune

SMALL = Logs(largest_mb=10 / 2**20, kept=2)
"""10 bytes."""


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_large_log_is_set_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "spark.out"
    with log.open("ab", buffering=0) as writer:
        for number in range(4):
            writer.write(f"line {number} of it\n".encode())
            SMALL.rotate(log)
        writer.write(b"short\n")
        SMALL.rotate(log)
    assert contents(tmp_path) == {
        "spark.out": "short\n",
        "spark.out.1": "line 3 of it\n",
        "spark.out.2": "line 2 of it\n",
    }


def test_log_that_is_set_aside_is_for_its_user_only(tmp_path: Path) -> None:
    log = tmp_path / "spark.out"
    log.write_text("more than ten bytes")
    SMALL.rotate(log)
    assert (tmp_path / "spark.out.1").stat().st_mode & 0o777 == 0o600


def test_log_that_is_not_there_yet_is_no_matter(tmp_path: Path) -> None:
    SMALL.rotate(tmp_path / "spark.out")
    assert contents(tmp_path) == {}


def test_only_the_newest_folders_of_those_that_are_gone_are_kept(tmp_path: Path) -> None:
    for number, name in enumerate(["leased", "first", "second", "third"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "worker.log").write_text(name)
        os.utime(tmp_path / name, (number, number))
    prune(tmp_path, keep={"leased"}, most=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leased", "third"]


def test_java_and_executors_are_told_the_same_limits(tmp_path: Path) -> None:
    told = Logs(largest_mb=2, kept=5)
    assert f"size.size = {2 * 2**20}\n" in told.log4j(tmp_path / "spark.log")
    assert told.executors()["spark.executor.logs.rolling.maxSize"] == str(2 * 2**20)
