"""One lane of a keyed operator without Spark, to measure state separately."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.config import StateSettings
from headgate.state.checkpoint import Checkpoint, DeltaFile, Life
from headgate.state.delta import words_array
from headgate.state.hashing import slices_of
from headgate.state.lane import LaneReport, LaneTask, run_lane
from headgate.state.location import Location
from headgate.state.operators import KeyedOperator
from headgate.state.store import Header, SliceStore, boot_id
from headgate.state.stores import close_stores, open_store

IN_MEMORY = "mock:///state"
"""Arrow's file system in memory, which is new and empty each time that a lane opens it."""


@contextmanager
def room() -> Iterator[Path]:
    """Yield a folder on disk for state; close all stores and delete the folder afterwards."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        try:
            yield Path(folder)
        finally:
            close_stores()


@dataclass
class OneLane:
    """All slices of an operator on one lane, which runs epoch after epoch."""

    place: Path
    operator: KeyedOperator
    slices: int
    settings: StateSettings = field(default_factory=StateSettings)
    epoch: int = 0
    _files: tuple[DeltaFile, ...] = ()

    def __post_init__(self) -> None:
        self.checkpoint = Checkpoint(Location.of(self.place / "checkpoint"), self.operator.schema)
        self.life: Life = self.checkpoint.begin(0, self.slices)

    def run(self, batch: pa.RecordBatch) -> float:
        """Run one epoch from rows to commit; return its seconds."""
        begun_s = time.perf_counter()
        self._run_lane(batch, str(self.place / "checkpoint"))
        self.checkpoint.commit(self.epoch, self._files)
        self.epoch += 1
        return time.perf_counter() - begun_s

    def run_without_disk(self, batch: pa.RecordBatch, whole: bool) -> float:
        """Run one epoch with its delta in memory, and with `whole` write all state to disk; return the seconds of the epoch."""
        begun_s = time.perf_counter()
        self._run_lane(batch, IN_MEMORY)
        if whole:
            store = self._store()
            rows = {slice_: store.scan(slice_) for slice_ in range(self.slices)}
            self.checkpoint.write_delta(self.checkpoint.whole(self.epoch, rows), lane=0)
        self.epoch += 1
        return time.perf_counter() - begun_s

    def _run_lane(self, batch: pa.RecordBatch, checkpoint: str) -> None:
        slices, store = tuple(range(self.slices)), str(self.place / "store")
        task = LaneTask(
            self.epoch, 0, slices, self.life, store, checkpoint, committed=self._files, settings=self.settings
        )
        done: list[LaneReport] = []
        for _ in run_lane(self.operator, task, [batch], done.append):
            pass
        self._files = tuple(report.file for report in done)

    def _store(self) -> SliceStore:
        schema = self.operator.schema
        return open_store(self.place / "store", schema, self.life.identity(schema), self.settings)

    def fill(self, keys: int) -> int:
        """Fill the state with `keys` keys of one column; return the bytes of keys and values."""
        schema, store = self.operator.schema, self._store()
        column = pa.array(np.arange(keys))
        of_key = slices_of([column], self.slices)
        words = schema.key_as_words([column])
        header = Header(self.epoch - 1, self.life.identity(schema), boot=boot_id())
        for slice_ in range(self.slices):
            mine = words[of_key == slice_]
            values = np.ones((len(mine), len(schema.fields)), np.uint64)
            store.load(slice_, [(words_array(mine), words_array(values))], header)
        return int(keys * (schema.key_type.byte_width + schema.value_type.byte_width))


def with_slices(columns: dict[str, Any], key: pa.Array, slices: int) -> pa.RecordBatch:
    """Return rows with the slice of each row, as Spark passes rows to a lane."""
    return pa.RecordBatch.from_pydict({**columns, "_slice": pa.array(slices_of([key], slices))})


def some_keys(seed: int, rows: int, keys: int, skewed: bool = False) -> npt.NDArray[np.int64]:
    """Return the keys of an epoch: uniform, or skewed by a Zipf distribution with exponent 1.1."""
    numbers = np.random.default_rng(seed)
    return (numbers.zipf(1.1, rows) % keys) if skewed else numbers.integers(0, keys, rows)
