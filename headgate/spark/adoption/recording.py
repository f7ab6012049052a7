"""Runs a PySpark script up to `awaitTermination` and records its streaming queries instead of starting them.

The script runs unchanged, in a separate session on the Spark of this process: settings, views and functions stay in that session.
`DataFrame.writeStream` of that session returns a writer that records; other sessions and threads are not affected. `readStream` reads
Kafka with Headgate's own source, so that the script is planned without Spark's connector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.utils import to_str

from headgate.errors import JobFileError
from headgate.spark import jvm
from headgate.spark.adoption.kafka import KAFKA, KafkaRead, kafka_read
from headgate.spark.jobs.loading import run_script

CHECKPOINT = "checkpointLocation"
DEFAULT_CHECKPOINT = "spark.sql.streaming.checkpointLocation"
DEFAULT_FORMAT = "spark.sql.sources.default"
TIME_ZONE = "spark.sql.session.timeZone"
KEPT = ("spark.sql.adaptive.enabled", "spark.sql.optimizer.excludedRules")
"""Settings that a script's session builder cannot change, because lanes and meters rely on the values; these settings change no result."""


class TriggerKind(Enum):
    """When a query plans its next batch."""

    PROCESSING_TIME = "processingTime"
    ONCE = "once"
    AVAILABLE_NOW = "availableNow"
    CONTINUOUS = "continuous"
    REAL_TIME = "realTime"


ENDING = (TriggerKind.ONCE, TriggerKind.AVAILABLE_NOW)
"""Triggers whose queries end when the available rows are processed."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """The trigger of a query; by default, the next batch follows at once."""

    kind: TriggerKind = TriggerKind.PROCESSING_TIME
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedQuery:
    """What a script has specified for a query up to the call of `start`."""

    frame: DataFrame
    name: str | None = None
    format: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    trigger: Trigger = Trigger()
    batches: Callable[[DataFrame, int], None] | None = None
    """The function of `foreachBatch`."""
    rows: Any = None
    """The function or writer of `foreach`."""
    table: str | None = None
    """The table of `toTable`."""
    checkpoint: str | None = None
    """Location of the query's checkpoint as the script gives it; None if Spark would choose a temporary directory."""
    sources: tuple[str, ...] = ()
    """Names of the streaming sources that the query reads, in Spark's order."""
    kafka: Mapping[int, KafkaRead] = field(default_factory=dict)
    """The Kafka streams among the sources, by their position in `sources`."""

    def option(self, name: str) -> str | None:
        """Return an option by its case-insensitive name; None if the script did not set it."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)


@dataclass(slots=True)
class Recorded:
    """The queries and Kafka streams that a script has defined so far. Owner: the thread that runs the script."""

    place: Path
    """Directory of the job's source."""
    queries: list[RecordedQuery] = field(default_factory=list)
    kafka: list[KafkaRead] = field(default_factory=list)

    def streams(self, frame: DataFrame) -> tuple[tuple[str, ...], dict[int, KafkaRead]]:
        """The streams that a frame reads: their names, and those of Kafka."""
        leaves, places = jvm.streaming_leaves(frame), {str(one.place.absolute()): one for one in self.kafka}
        found = {
            number: one for number, leaf in enumerate(leaves) if (one := places.get(jvm.option_of(leaf, "place") or ""))
        }
        if len({one.place for one in found.values()}) < len(found):
            raise JobFileError("a query reads the same Kafka stream twice; load it twice, once for each use")
        return tuple(str(found.get(number, leaf.sourceName())) for number, leaf in enumerate(leaves)), found


class RecordingReader(DataStreamReader):
    """A reader that reads Kafka with Headgate's source, and everything else as Spark does."""

    def __init__(self, spark: SparkSession, recorded: Recorded) -> None:
        super().__init__(spark)
        self._recorded = recorded
        self._is_kafka = False
        self._options: dict[str, str] = {}

    def format(self, source: str) -> Self:
        super().format(source)
        self._is_kafka = source.lower() == KAFKA
        return self

    def option(self, key: str, value: Any) -> Self:
        super().option(key, value)
        text = to_str(value)
        if text is not None:
            self._options[key] = text
        return self

    def options(self, **options: Any) -> Self:
        for key, value in options.items():
            self.option(key, value)
        return self

    def load(self, path: str | None = None, format: str | None = None, schema: Any = None, **options: Any) -> DataFrame:
        if format is not None:
            self.format(format)
        self.options(**options)
        if not self._is_kafka:
            return super().load(path, None, schema)
        reads = self._recorded.kafka
        reads.append(kafka_read(self._options, self._recorded.place / f"{KAFKA}-{len(reads) + 1}"))
        return reads[-1].frame(self._spark)


class Recorder(DataStreamWriter):
    """A writer that lets PySpark check its options, and records the query at `start`."""

    def __init__(self, frame: DataFrame, said: Recorded) -> None:
        super().__init__(frame)
        self._said = said
        self._query = RecordedQuery(frame)

    def _note(self, **changes: Any) -> Self:
        self._query = replace(self._query, **changes)
        return self

    def format(self, source: str) -> Self:
        super().format(source)
        return self._note(format=source.lower())

    def option(self, key: str, value: Any) -> Self:
        super().option(key, value)
        text = to_str(value)
        return self if text is None else self._note(options={**self._query.options, key: text})

    def options(self, **options: Any) -> Self:
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> Self:
        super().outputMode(outputMode)
        return self._note(mode=outputMode.lower())

    def queryName(self, queryName: str) -> Self:
        super().queryName(queryName)
        return self._note(name=queryName)

    def partitionBy(self, *cols: Any) -> Self:
        names = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        super().partitionBy(*names)
        return self._note(partition_by=tuple(names))

    def trigger(self, **given: Any) -> Self:
        super().trigger(**given)
        ((name, value),) = ((name, value) for name, value in given.items() if value is not None)
        kind = TriggerKind(name)
        return self._note(
            trigger=Trigger(kind, self._interval_s(value) if kind is TriggerKind.PROCESSING_TIME else 0.0)
        )

    def _interval_s(self, text: str) -> float:
        return jvm.trigger_interval_s(self._spark, text)

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Self:
        return self._note(batches=func)

    def foreach(self, f: Any) -> Self:
        return self._note(rows=f)

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Any:
        self._say(format, outputMode, partitionBy, queryName, options)
        return self._recorded({} if path is None else {"path": path})

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Any:
        self._say(format, outputMode, partitionBy, queryName, options)
        self._note(table=tableName)
        return self._recorded({})

    def _say(
        self, format: str | None, mode: str | None, partition_by: Any, name: str | None, options: Mapping[str, Any]
    ) -> None:
        """Apply the arguments of `start` and `toTable` like calls of the writer's methods."""
        said = (
            (self.format, format),
            (self.outputMode, mode),
            (self.partitionBy, partition_by),
            (self.queryName, name),
        )
        for say, value in said:
            if value is not None:
                say(value)
        self.options(**options)

    def _recorded(self, options: Mapping[str, str]) -> NotStarted:
        """Complete and record the query while the session of the script exists."""
        self.options(**options)
        default = str(self._spark.conf.get(DEFAULT_FORMAT))
        sources, kafka = self._said.streams(self._df)
        self._note(format=self._query.format or default, checkpoint=self._checkpoint(), sources=sources, kafka=kafka)
        self._said.queries.append(self._query)
        return NotStarted(self._query)

    def _checkpoint(self) -> str | None:
        base, name = self._spark.conf.get(DEFAULT_CHECKPOINT, None), self._query.name
        return self._query.option(CHECKPOINT) or (None if base is None or name is None else f"{base}/{name}")


class Awaited(BaseException):
    """Ends a script at `awaitTermination`; not an `Exception`, because a script may catch those."""


class NotStarted:
    """The query object that `start` returns to a recorded script; the query does not run."""

    isActive = False
    id = runId = "not started: recorded by headgate adopt"
    lastProgress = None

    def __init__(self, query: RecordedQuery) -> None:
        self.name = query.name
        self.recentProgress: list[Any] = []
        self.status = {"message": self.id, "isDataAvailable": False, "isTriggerActive": False}
        self._ends = query.trigger.kind in ENDING

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """End the script if the query has no end: all queries of the script are recorded when it waits."""
        if timeout is None and not self._ends:
            raise Awaited
        return True

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        """Do nothing: the query does not run."""

    processAllAvailable = stop

    def explain(self, extended: bool = False) -> None:
        """Print nothing: there is no plan of a batch."""


def record(
    spark: SparkSession, script: Path, arguments: Sequence[str], place: Path = Path(KAFKA)
) -> list[RecordedQuery]:
    """Run a script and return its queries in the order of their starts. `place` is the directory of the job's source."""
    session, said = spark.newSession(), Recorded(place)
    session.conf.unset(TIME_ZONE)  # Headgate's is UTC; a plain script has that of the machine
    with _recording(session, said):
        run_script(script, arguments, Awaited)
    if not said.queries:
        raise JobFileError(
            f"{script}: it starts no streaming query; headgate adopt needs a script that calls writeStream…start()"
        )
    return said.queries


@contextmanager
def _recording(session: SparkSession, said: Recorded) -> Iterator[None]:
    """Give `session` to the script of this thread; inside this block, the script can start and stop nothing."""
    here = threading.get_ident()

    def in_script(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*given: Any, **named: Any) -> Any:
            return (replacement if threading.get_ident() == here else original)(*given, **named)

        return chosen

    def session_of(builder: Any) -> SparkSession:
        _apply(session, builder._options)
        return session

    def write_stream(frame: ClassicDataFrame) -> DataStreamWriter:
        return Recorder(frame, said) if frame.sparkSession is session else DataStreamWriter(frame)

    def read_stream(found: SparkSession) -> DataStreamReader:
        return RecordingReader(found, said) if found is session else DataStreamReader(found)

    def awaited(manager: StreamingQueryManager, timeout: float | None = None) -> bool:
        if timeout is None:
            raise Awaited
        return True

    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (SparkSession.Builder, "getOrCreate", session_of),
        (SparkSession.Builder, "create", session_of),
        (SparkSession, "stop", lambda session: None),
        (SparkContext, "stop", lambda context: None),
        (StreamingQueryManager, "awaitAnyTermination", awaited),
    )
    with ExitStack() as stack:
        for owner, name, replacement in replaced:
            stack.enter_context(_replaced(owner, name, in_script(replacement, getattr(owner, name))))
        stack.enter_context(_replaced(ClassicDataFrame, "writeStream", property(write_stream)))
        stack.enter_context(_replaced(SparkSession, "readStream", property(read_stream)))
        yield


@contextmanager
def _replaced(owner: type, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _apply(session: SparkSession, options: Mapping[str, Any]) -> None:
    """Set the session options of a script; ignore settings of the application, such as name, master or jars."""
    for key, value in options.items():
        if key not in KEPT:
            with suppress(PySparkException):
                session.conf.set(key, value)
