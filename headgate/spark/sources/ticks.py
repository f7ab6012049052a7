"""A source without rows: Spark runs no epoch while nothing arrives, unless this source has moved on.

The job writes the time of the next epoch to a file, and the source's offset moves at that time. A job with timers reads this source
together with each of its other sources.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from headgate import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = "tick.json"
FORMAT = "headgate-ticks"


@dataclass(frozen=True, slots=True)
class Tick:
    """A request for an epoch; each request has a higher number than the previous one."""

    number: int
    at_s: float
    """Due time by `time.monotonic()`, which all processes of a machine share until its restart."""
    wait_s: float
    """Seconds from the request to the due time; a longer remaining wait shows that the machine was restarted since."""

    def is_due(self, now_s: float) -> bool:
        return now_s >= self.at_s or self.at_s - now_s > self.wait_s


def ask(place: Path, number: int, wait_s: float) -> None:
    """Request an epoch after `wait_s`, unless another epoch runs before; each epoch needs a new request."""
    tick = Tick(number, time.monotonic() + wait_s, wait_s)
    files.replace(place / FILE, msgspec.json.encode(tick), durable=False)


def asked(place: Path) -> Tick | None:
    """Return the last request; None if the file is missing or damaged, as after a power cut."""
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=Tick)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def with_ticks(spark: SparkSession, stream: DataFrame, place: Path) -> DataFrame:
    """Return a stream with the same rows, which also has an epoch when one is requested."""
    from pyspark.sql import functions as F

    place.mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(TickSource)
    ticks = spark.readStream.format(FORMAT).option("place", str(place)).load()
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in stream.schema.fields]
    return stream.union(ticks.select(*columns))


class TickSource(DataSource):
    """The source of ticks for Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "tick long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TickReader(self.options)


class TickReader(DataSourceStreamReader):
    """Reads ticks; an offset is the number of the last tick that was due."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._place = Path(options["place"])

    def initialOffset(self) -> dict[str, int]:
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        tick = asked(self._place) or self._lost(start["tick"])
        due = tick is not None and tick.is_due(time.monotonic())
        return {"tick": max(start["tick"], tick.number) if tick is not None and due else start["tick"]}

    def _lost(self, before: int) -> Tick | None:
        """Make a tick due once if its file cannot be read any more: the epoch of the tick requests the next one."""
        if before or (self._place / FILE).exists():
            ask(self._place, before + 1, 0.0)
        return asked(self._place)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: ticks need no clean-up."""
