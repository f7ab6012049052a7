"""One lane of a keyed operator without Spark, to measure state by itself."""

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
from headgate.state.store import Header, boot_id
from headgate.state.stores import close_stores, open_store


@contextmanager
def room() -> Iterator[Path]:
    """A folder for state, on disk, gone afterwards with everything that was open in it."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        try:
            yield Path(folder)
        finally:
            close_stores()


@dataclass
class OneLane:
    """All slices of an operator on one lane, epoch after epoch."""

    place: Path
    operator: KeyedOperator
    slices: int
    settings: StateSettings = field(default_factory=StateSettings)
    epoch: int = 0
    _files: tuple[DeltaFile, ...] = ()

    def __post_init__(self) -> None:
        self.checkpoint = Checkpoint(Location.of(self.place / "checkpoint"), self.operator.schema)
        self.life: Life = self.checkpoint.begin(0, self.slices)

    def run(self, batch: pa.RecordBatch, style: str = "delta") -> float:
        """One epoch from rows in to committed; returns its seconds."""
        task = LaneTask(
            self.epoch,
            0,
            tuple(range(self.slices)),
            self.life,
            str(self.place / "store"),
            str(self.place / "checkpoint"),
            committed=self._files,
            style=style,
            settings=self.settings,
        )
        done: list[LaneReport] = []
        begun_s = time.perf_counter()
        for _ in run_lane(self.operator, task, [batch], done.append):
            pass
        self._files = tuple(report.file for report in done if report.file is not None)
        self.checkpoint.commit(self.epoch, self._files)
        took_s = time.perf_counter() - begun_s
        self.epoch += 1
        return took_s

    def fill(self, keys: int) -> int:
        """State for so many keys of one column, put in place beforehand; returns its bytes, keys and values alone."""
        schema = self.operator.schema
        store = open_store(self.place / "store", schema, self.life.identity(schema), self.settings)
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
    """Rows as Spark hands them to a lane: with their slice."""
    return pa.RecordBatch.from_pydict({**columns, "_slice": pa.array(slices_of([key], slices))})


def some_keys(seed: int, rows: int, keys: int, skewed: bool = False) -> npt.NDArray[np.int64]:
    """Keys of an epoch: all alike, or a few of them most of the time (Zipf, exponent 1.1)."""
    numbers = np.random.default_rng(seed)
    return (numbers.zipf(1.1, rows) % keys) if skewed else numbers.integers(0, keys, rows)
