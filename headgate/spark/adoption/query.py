"""An adopted query as the source and the sink of a job: its script runs at each start of the job, in the process of the service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import EngineError
from headgate.spark.adoption.checkpoint import MARK, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headgate.spark.adoption.recording import RecordedQuery
    from headgate.spark.adoption.writers import RecordedSink


@dataclass(slots=True)
class AdoptedQuery:
    """A query of a script, identified by its checkpoint. Owner of `_found`: the thread that starts the job."""

    script: str
    checkpoint: str
    """Absolute path; identifies the query among the queries of the script."""
    directory: str
    """The working directory of the script; relative paths in the script begin here."""
    arguments: tuple[str, ...] = ()
    arrival: str | None = None
    elastic: bool = field(default=False, init=False)
    _sink: RecordedSink | None = field(default=None, init=False, repr=False)
    _found: RecordedQuery | None = field(default=None, init=False, repr=False)

    def stream(self, spark: SparkSession, place: Path) -> DataFrame:
        """Run the script again and return the streaming DataFrame that its query writes."""
        from headgate.spark.adoption.writers import sink_of

        if not (place / MARK).exists():
            raise EngineError(
                f'the job has no copy of the checkpoint "{self.checkpoint}" and would begin with the first row;'
                f" adopt {self.script} in this home with headgate adopt"
            )
        if Path.cwd() != Path(self.directory):
            raise EngineError(
                f'the query was adopted in "{self.directory}", and the service runs in "{Path.cwd()}", where relative paths of'
                f' {self.script} lead elsewhere; start the service in "{self.directory}"'
            )
        found = self._recorded(spark, place)
        starts = json.loads((place / MARK).read_text()).get("starts", ())
        for number, read in found.kafka.items():
            read.begin(starts[number] if number < len(starts) else None, place)
        self._sink, self._found = sink_of(found), found
        return found.frame

    def _recorded(self, spark: SparkSession, place: Path) -> RecordedQuery:
        from headgate.spark.adoption.recording import record

        for query in record(spark, Path(self.script), self.arguments, place):
            if query.checkpoint is not None and str(local_path(query.checkpoint)) == self.checkpoint:
                return query
        raise EngineError(f'{self.script}: it no longer starts a query with the checkpoint "{self.checkpoint}"')

    def arrived(self, place: Path) -> float | None:
        """Return the rows that have arrived in Kafka; None if the query also reads Spark's own sources, which do not count waiting rows."""
        found = self._found
        if found is None or len(found.kafka) < len(found.sources):
            return None
        counts = [read.source.arrived(read.place) for read in found.kafka.values()]
        return sum(count for count in counts if count is not None)

    def losses(self, place: Path) -> str:
        """Say how many rows Kafka removed before they were read; empty if no rows were lost."""
        reads = self._found.kafka.values() if self._found is not None else ()
        return "; ".join(text for read in reads if (text := read.source.losses(read.place)))

    @property
    def reads_once(self) -> bool:
        return self._sink is not None and self._sink.reads_once

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        """Write an epoch to the sink of the query."""
        if self._sink is None:
            raise EngineError("an adopted query is the sink of a job whose source it is not; use it for both")
        self._sink.write(rows, epoch)


def adopted(
    script: str, *, checkpoint: str, directory: str, arguments: Sequence[str] = (), arrival: str | None = None
) -> AdoptedQuery:
    """A query that `headgate adopt` found in a script: source and sink of a job that continues the query.

    `arrival` names a timestamp column that says when a row arrived.
    """
    return AdoptedQuery(script, checkpoint, directory, tuple(arguments), arrival)
