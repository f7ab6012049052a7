"""Stores and locks that a process keeps open do not outlive the job that they belong to."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.state import stores
from headgate.state.stores import close_stores, locks_of

HOLD = """
import sys
from pathlib import Path
from headgate.state.store import SliceLocks
locks = SliceLocks(Path(sys.argv[1]))
try:
    locks.take([3], 0.0)
    print("held")
except Exception as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_stores()


def another_process_says(folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", HOLD, str(folder)], check=True, capture_output=True, text=True).stdout


def test_locks_keep_others_out_of_a_folder_that_was_removed_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    locks_of(folder).take([3], 0.0)
    locks_of(folder).release()
    shutil.rmtree(folder)
    locks_of(folder).take([3], 0.0)
    assert "still held by another process" in another_process_says(folder)
    locks_of(folder).release()
    assert another_process_says(folder) == "held\n"


def test_locks_of_a_removed_folder_are_closed(tmp_path: Path) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    locks_of(kept)
    locks_of(gone)
    shutil.rmtree(gone)
    locks_of(kept)
    assert [folder for _, folder in stores._locks] == [str(kept)]
