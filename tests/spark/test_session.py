"""What Spark is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import SparkSettings
from headgate.spark import session


@pytest.mark.parametrize(("megabytes", "told"), [(0, 2**31 - 1), (64, 64 * 2**20), (2047, 2047 * 2**20)])
def test_batches_are_cut_by_their_size_only_if_asked(tmp_path: Path, megabytes: int, told: int) -> None:
    found = session._configuration(tmp_path, SparkSettings(largest_batch_mb=megabytes), embedded=True)
    assert found["spark.sql.execution.arrow.maxBytesPerBatch"] == str(told)
