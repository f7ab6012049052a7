"""A load generator: rows that arrive by a pattern, whether or not a job reads them.

The rows that have arrived by a moment depend only on the pattern and the first start of the job. An epoch that is read again after a
crash therefore has the same rows, and waiting rows are a real backlog.
"""

from __future__ import annotations

import base64
import math
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from headgate import files
from headgate.core.quantities import shown
from headgate.errors import EngineError, GraphError
from headgate.loads import Load, Steady
from headgate.spark.sources import levers

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    Numbers = NDArray[np.float64]

STEP_S = 0.1
"""Length in seconds of a step with a constant rate."""
BATCH_ROWS = 65536
"""Rows per Arrow batch."""
BEGAN = "began"
FORMAT = "headgate-load"


class Arrivals:
    """The number of rows that a load has sent by a moment, and the time of each row.

    >>> arrivals = Arrivals(Steady(100))
    >>> arrivals.by(2.0)
    200
    >>> arrivals.times_s(50, 52).round(3).tolist()
    [0.51, 0.52]
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._sums: Numbers = np.zeros(1)

    def by(self, at_s: float) -> int:
        """Rows that have arrived `at_s` seconds after the start."""
        self._extend(at_s)
        return math.floor(np.interp(max(0.0, at_s), np.arange(len(self._sums)) * STEP_S, self._sums) + 1e-6)

    def wait_s(self, rows: int, at_s: float, most_s: float) -> float:
        """Return the time in seconds until more than `rows` rows have arrived, at most `most_s`.

        >>> round(Arrivals(Steady(10)).wait_s(20, 2.03, 5), 3)
        0.07
        """
        if self.by(at_s) > rows:
            return 0.0
        if self.by(at_s + most_s) <= rows:
            return most_s
        return min(most_s, max(0.0, float(self.times_s(rows, rows + 1)[0]) - at_s))

    def times_s(self, first: int, last: int) -> Numbers:
        """When the rows from `first` up to but not including `last` arrived."""
        low = max(0, int(np.searchsorted(self._sums, first, "right")) - 1)
        high = int(np.searchsorted(self._sums, last, "left")) + 1
        grid = np.arange(low, min(high, len(self._sums))) * STEP_S
        wanted = np.arange(first + 1, last + 1, dtype=np.float64)
        return np.asarray(np.interp(wanted, self._sums[low:high], grid))

    def _extend(self, at_s: float) -> None:
        have, need = len(self._sums), math.ceil(at_s / STEP_S) + 1
        if need <= have:
            return
        steps = np.arange(have - 1, need + 600)
        rates = np.fromiter((self._load.rate_rows_s((step + 0.5) * STEP_S) for step in steps), np.float64, len(steps))
        self._sums = np.concatenate((self._sums, self._sums[-1] + np.cumsum(rates * STEP_S)))


@dataclass(frozen=True)
class Generator:
    """A load as a source: columns `row` (0, 1, 2, …) and `arrived`."""

    load: Load
    arrival: str | None = "arrived"
    elastic: bool = True

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        began_s(place)
        spark.dataSource.register(LoadSource)
        load = base64.b64encode(pickle.dumps(self.load)).decode()
        return spark.readStream.format(FORMAT).option("load", load).option("place", str(place)).load()

    def arrived(self, place: Path) -> float | None:
        return float(self._arrivals.by(time.time() - began_s(place)))

    @cached_property
    def _arrivals(self) -> Arrivals:
        return Arrivals(self.load)


def load(pattern: Load | float) -> Generator:
    """Rows by a pattern of `headgate.sources`, or so many per second.

    `sources.load(1000)`, `sources.load(sources.Steps([(0, 1000), ("1m", 3000)]))`
    """
    if isinstance(pattern, int | float):
        return Generator(Steady(pattern))
    if isinstance(pattern, type) or not callable(getattr(pattern, "rate_rows_s", None)):
        raise GraphError(
            f"sources.load is given {shown(pattern)}; give it rows per second, such as 1000, or a pattern,"
            " such as sources.Steps([(0, 1000)])"
        )
    return Generator(pattern)


def began_s(place: Path) -> float:
    """Return when the first row could have arrived: decided once per job, and kept for its life."""
    path = place / BEGAN
    if not path.exists():
        files.replace(path, repr(time.time()).encode())
    try:
        return float(path.read_text())
    except ValueError as error:
        raise EngineError(
            f'"{path}" is damaged ({error}), and it is not known when the load began; remove the job and submit it again'
        ) from None


class LoadSource(DataSource):
    """The load generator for Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "row long, arrived timestamp"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LoadReader(self.options)


class LoadReader(DataSourceStreamReader):
    """Reads rows by their number; an offset is the number of rows read so far."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._place = Path(options["place"])
        self._began_s = began_s(self._place)
        self._arrivals = Arrivals(pickle.loads(base64.b64decode(options["load"])))
        self._asked = False
        """Whether Spark has asked for an offset: a start waits for the first answer."""

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        now = levers.read(self._place)
        if self._asked:
            time.sleep(self._arrivals.wait_s(start["rows"], time.time() - self._began_s, now.wait_s))
        self._asked = True
        arrived, most = self._arrivals.by(time.time() - self._began_s), now.read_limit
        return {"rows": max(start["rows"], arrived if most is None else min(arrived, start["rows"] + most))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Divide the rows into equal parts for the lanes; each part has the arrival times of its rows."""
        first, last = start["rows"], end["rows"]
        self._arrivals.by(time.time() - self._began_s)
        lanes = min(levers.read(self._place).lanes, max(1, last - first))
        bounds = [first + (last - first) * lane // lanes for lane in range(lanes + 1)]
        return [InputPartition((low, high, self._stamps(low, high))) for low, high in pairwise(bounds)]

    def _stamps(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Return some rows and their arrival times in microseconds; rows between two of these arrive evenly."""
        if last <= first:
            return [], []
        times_s = self._arrivals.times_s(first, last)
        chosen = np.unique(np.linspace(0, last - first - 1, min(last - first, STAMPS)).astype(np.int64))
        micros = (times_s[chosen] + self._began_s) * 1e6
        return (chosen + first).tolist(), micros.astype(np.int64).tolist()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last, (rows, micros) = partition.value
        for low in range(first, last, BATCH_ROWS):
            numbers = np.arange(low, min(low + BATCH_ROWS, last), dtype=np.int64)
            arrived = np.interp(numbers, rows, micros).astype(np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(arrived, ARROW_TIME)], ["row", "arrived"])

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the rows are generated and not stored."""


STAMPS = 200
"""Rows per partition with an exact arrival time."""
ARROW_TIME = pa.timestamp("us", tz="UTC")
