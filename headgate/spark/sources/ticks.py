"""A source without rows: Spark runs no epoch while nothing arrives, unless this source has moved on.

The job writes down when it wants the next epoch, and the source's offset moves when that time has come. It is read together with
every source of a job that has timers.
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
    """An epoch that is wanted; each has a higher number than the one before."""

    number: int
    at_s: float
    """By `time.monotonic()`, which all processes of a machine share until it is started again."""
    wait_s: float
    """How far ahead that was: a time further ahead is of before the machine's start."""

    def is_due(self, now_s: float) -> bool:
        return now_s >= self.at_s or self.at_s - now_s > self.wait_s


def ask(place: Path, number: int, wait_s: float) -> None:
    """Have an epoch run after so long, if none runs before; it must then be asked for again."""
    tick = Tick(number, time.monotonic() + wait_s, wait_s)
    files.replace(place / FILE, msgspec.json.encode(tick), durable=False)


def asked(place: Path) -> Tick | None:
    """What was asked for last; None if the file is missing or damaged, as after a power cut."""
    try:
        return msgspec.json.decode((place / FILE).read_bytes(), type=Tick)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def with_ticks(spark: SparkSession, stream: DataFrame, place: Path) -> DataFrame:
    """The same stream, which also has an epoch when one is asked for."""
    from pyspark.sql import functions as F

    place.mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(TickSource)
    ticks = spark.readStream.format(FORMAT).option("place", str(place)).load()
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in stream.schema.fields]
    return stream.union(ticks.select(*columns))


class TickSource(DataSource):
    """Ticks as Spark sees them."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "tick long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TickReader(self.options)


class TickReader(DataSourceStreamReader):
    """An offset is the number of the last tick that was due."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._place = Path(options["place"])

    def initialOffset(self) -> dict[str, int]:
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        tick = asked(self._place) or self._lost(start["tick"])
        due = tick is not None and tick.is_due(time.monotonic())
        return {"tick": max(start["tick"], tick.number) if tick is not None and due else start["tick"]}

    def _lost(self, before: int) -> Tick | None:
        """A tick that cannot be read any more counts as due, once: its epoch asks for the next one."""
        if before or (self._place / FILE).exists():
            ask(self._place, before + 1, 0.0)
        return asked(self._place)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())

    def commit(self, end: dict[str, int]) -> None:
        """There is nothing to let go of."""
