"""Checkpoints as Spark 4 with its Kafka connector writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

Offsets = Mapping[str, Mapping[str, int]]
CONF = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
}


def compact(table: Any) -> str:
    return json.dumps(table, separators=(",", ":"))


def old_checkpoint(place: Path, begun: Offsets, ends: Sequence[Offsets], is_committed: bool = True) -> Path:
    """As Spark 4 with its Kafka connector writes it."""
    for folder in ("offsets", "commits", "sources/0"):
        (place / folder).mkdir(parents=True)
    (place / "metadata").write_text(compact({"id": str(uuid4())}))
    (place / "sources/0/0").write_bytes(b"\0v1\n" + compact(begun).encode())
    settings = compact({"batchWatermarkMs": 0, "batchTimestampMs": 1764000000000, "conf": CONF})
    for batch, end in enumerate(ends):
        (place / "offsets" / str(batch)).write_text(f"v1\n{settings}\n{compact(end)}")
        if is_committed or batch < len(ends) - 1:
            (place / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    for path in place.glob("offsets/*"):
        os.utime(path, (1_000_000_000,) * 2)
    return place
