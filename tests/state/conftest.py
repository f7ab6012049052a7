from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.state.stores import close_stores

MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    close_stores()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of crashes need not wait for a disk."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-test-", dir=MEMORY if MEMORY.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
