"""Files are replaced as a whole, by any number of writers at once."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

from headgate import clock, files
from headgate.spark.sources import levers
from headgate.spark.sources.levers import Levers


def test_threads_that_replace_one_file_at_once_never_fail_and_leave_nothing_beside_it(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def write(lanes: int) -> None:
        for _ in range(200):
            try:
                levers.write(tmp_path, Levers(lanes))
                assert levers.read(tmp_path).lanes in range(1, 5)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=write, args=(lanes,)) for lanes in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [path.name for path in tmp_path.iterdir()] == [levers.FILE]


def test_a_file_is_private_unless_said_otherwise(tmp_path: Path) -> None:
    files.replace(tmp_path / "a" / "b", b"one, ", memoryview(b"two"))
    assert (tmp_path / "a" / "b").read_bytes() == b"one, two"
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o600


def test_new_version_that_was_built_beside_a_file_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"old")
    files.beside(path).write_bytes(b"new")
    assert files.beside(path).parent == tmp_path and path.read_bytes() == b"old"
    files.move_into(path)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"new"]


def test_new_version_that_was_never_moved_is_a_leftover(tmp_path: Path) -> None:
    files.beside(tmp_path / "table").write_bytes(b"half")
    assert files.remove_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_time_never_goes_back_when_the_wall_clock_is_set_back(monkeypatch) -> None:
    before_s = clock.now_s()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert 0 <= clock.now_s() - before_s < 60
