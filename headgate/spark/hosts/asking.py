"""Tasks that ask each host of a cluster a question, apart from lanes: one task per host, which answers only on the host that it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.spark.epochs.labels import labels
from headgate.spark.epochs.places import Places
from headgate.spark.hosts.this_host import here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBER = "number"
ANSWERS = pa.schema([("host", pa.string()), ("answer", pa.binary())])


@dataclass(frozen=True)
class HostTask:
    """A task that returns the answer of the host that it runs on; a task that Spark put on another host than it is for does nothing."""

    hosts: tuple[str, ...]
    answer: Callable[[str], bytes]
    """Returns the answer of the named host."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        host = here(self.hosts)
        asked = [self.hosts[number] for batch in batches for number in batch.column(NUMBER).to_pylist()]
        if host in asked:
            yield pa.RecordBatch.from_pydict({"host": [host], "answer": [self.answer(host)]}, schema=ANSWERS)


def ask_hosts(
    spark: SparkSession, places: Places, hosts: Sequence[str], answer: Callable[[str], bytes]
) -> dict[str, bytes]:
    """Return the answer of each host that its task has reached; raise any error of Spark."""
    numbers = list(zip(labels(len(hosts)), range(len(hosts)), strict=True))
    asked = places.marks(spark, f"label int, {NUMBER} int", numbers, hosts)
    rows = asked.mapInArrow(HostTask(tuple(hosts), answer), "host string, answer binary").collect()
    return {row["host"]: bytes(row["answer"]) for row in rows}
