"""A process that writes epochs to a table as a job does, and can be killed at any point of a write.

The process runs the code of sinks, of their lanes and of their commit, without a JVM. A file with the number of committed epochs
stands for Spark.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from headgate import files
from headgate.spark.connections.delta import TableLocation
from headgate.spark.sinks import staged
from headgate.spark.sinks.delta import DeltaSink
from headgate.spark.sinks.iceberg import Iceberg
from headgate.spark.sinks.postgres import Postgres
from headgate.spark.sinks.staged import Claim, Receipt, Stage, Table
from headgate.spark.sinks.writing import Writing, begin_start
from headgate.state import faults

LANES, BATCHES, ROWS = 2, 2, 5
KEYS = 13
COLUMNS = pa.schema([("key", pa.int64()), ("row", pa.int64()), ("text", pa.string())])
DONE = "committed"
"""The name of the file that stands for Spark's commit log."""


@dataclass(frozen=True, slots=True)
class TableUnderTest:
    """A table under test."""

    store: str
    place: Path
    """The folder for the files of the job, and for a table on the local disk."""
    key: tuple[str, ...] = ()
    url: str = field(default="", repr=False)
    storage: Mapping[str, str] = field(default_factory=dict)

    def sink(self) -> Table:
        """Return the sink that writes to the table."""
        if self.store == "postgres":
            return Postgres(self.url, self._name, self.key)
        if self.store == "iceberg":
            return Iceberg("bench", "bench.rows", self._catalog())
        return DeltaSink(self._uri, self.key, storage=self.storage)

    def rows(self) -> list[tuple[int, int]]:
        """Return key and number of every row that a reader sees."""
        if self.store == "postgres":
            import psycopg

            with psycopg.connect(self.url) as connection:
                found = connection.execute(f'SELECT key, "row" FROM {self._name}').fetchall()
            return [(int(key), int(row)) for key, row in found]
        table = self._iceberg() if self.store == "iceberg" else self._delta()
        return list(zip(table["key"].to_pylist(), table["row"].to_pylist(), strict=True))

    def _delta(self) -> pa.Table:
        return TableLocation.of(self._uri, self.storage).table().to_pyarrow_table()

    def _iceberg(self) -> pa.Table:
        from pyiceberg.catalog import load_catalog

        return load_catalog("bench", **self._catalog()).load_table("bench.rows").scan().to_arrow()

    @property
    def _uri(self) -> str:
        return self.url or str(self.place / "table")

    @property
    def _name(self) -> str:
        return f"rows_{'_'.join(self.key) or 'all'}"

    def _catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.place}/catalog.db", "warehouse": f"file://{self.place}"}


def rows_of(epoch: int) -> list[list[pa.RecordBatch]]:
    """Return the rows of each lane in batches, the same at every call; all rows of a key are in one lane."""
    numbers = range(epoch * LANES * BATCHES * ROWS, (epoch + 1) * LANES * BATCHES * ROWS)
    lanes = [[number for number in numbers if number % KEYS % LANES == lane] for lane in range(LANES)]
    return [[_batch(lane[:ROWS]), _batch(lane[ROWS:])] for lane in lanes]


def _batch(numbers: list[int]) -> pa.RecordBatch:
    columns = ([number % KEYS for number in numbers], numbers, [f'row "{number}"' for number in numbers])
    return pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=COLUMNS)


def expected(epochs: int, key: Sequence[str]) -> list[tuple[int, int]]:
    """Return the rows that the table must hold after `epochs` epochs."""
    rows = [(number % KEYS, number) for number in range(epochs * LANES * BATCHES * ROWS)]
    return sorted(dict(rows).items()) if key else rows


@dataclass(frozen=True, slots=True)
class Wrong:
    """The numbers of missing rows and of extra rows of a table."""

    lost: int
    doubled: int


def compared(target: TableUnderTest) -> Wrong:
    """Count missing rows, and rows that are doubled or unexpected."""
    wanted, found = Counter(expected(committed(target), target.key)), Counter(target.rows())
    return Wrong((wanted - found).total(), (found - wanted).total())


def committed(target: TableUnderTest) -> int:
    """Return the number of epochs that Spark would have committed."""
    try:
        return int((target.place / DONE).read_text())
    except FileNotFoundError:
        return 0


# -- the process


def write(target: TableUnderTest, epochs: int, fatal: str | None = None) -> None:
    """Write the next epochs; the process kills itself when the last epoch passes the point `fatal`."""
    writing = Writing(begin_start(target.place / "job"), sink="out")
    first = committed(target)
    for epoch in range(first, first + epochs):
        with faults.watch_points(partial(_kill_at, fatal if epoch == first + epochs - 1 else None)):
            staged.write_epoch(target.sink(), Claim(writing, epoch), COLUMNS, partial(_put, epoch))
        files.replace(target.place / DONE, str(epoch + 1).encode())


def _put(epoch: int, stage: Stage | None) -> list[Receipt]:
    if stage is None:
        return []
    return [receipt for lane in rows_of(epoch) for receipt in staged.put(stage, "out", lane)]


def _kill_at(fatal: str | None, point: str) -> None:
    if point == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
