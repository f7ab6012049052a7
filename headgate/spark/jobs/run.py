"""One start of a job: its query, its keyed state, its counters, from the start of the query to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.errors import EngineError, StateError
from headgate.spark import jvm
from headgate.spark.connections.patience import patience_of
from headgate.spark.epochs import plan
from headgate.spark.epochs.pace import Pace
from headgate.spark.epochs.plan import Blueprint, EpochSpec
from headgate.spark.epochs.runner import EpochRunner, JobParts
from headgate.spark.epochs.timeline import CHECKPOINT, Timeline
from headgate.spark.jobs.context import JobContext
from headgate.spark.jobs.standing import About
from headgate.spark.keyed.operator import KeyedStates
from headgate.spark.measuring import progress
from headgate.spark.measuring.counters import Counters
from headgate.spark.measuring.counting import EpochCounting
from headgate.spark.measuring.lag import Report, Units, streams_of
from headgate.spark.reasons import Failure, FailureKind, comes_from_source, failure_of
from headgate.spark.sinks.writing import Writing, begin_start
from headgate.spark.sources import ticks
from headgate.state.durable import open_durable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.02
"""Interval at which a stop checks whether the query is idle."""
READY_S = 12.0
"""Longest wait of a start, in seconds, for the processes that read the sources; Spark itself gives them 10 s."""
ASKING = "Getting offsets"
"""Spark's status of a query that asks its sources for rows."""
IN_PYTHON = "PythonMicroBatchStream"
"""Spark's name for sources in Python, in the status of a query."""
STARTING = ("Initializing", ASKING, "Starting")
"""Spark's status of a query that has not yet asked its sources for rows."""


class JobRun:
    """One start of a job. Owner: the holder of the job's guard."""

    def __init__(self, parts: JobParts) -> None:
        """Prepare everything but the query; raises if the topology does not fit its rows."""
        context = self._context = parts.context
        self.started_s = time.monotonic()
        """When the query was started."""
        self.query: StreamingQuery | None = None
        self.pace = Pace(context.name, context.shared.phases)
        durable = open_durable(context.place, context.settings.state.checkpoint)
        timeline = Timeline(context.place, durable)
        timeline.restore()
        writing = Writing(begin_start(durable), patience_of(context.settings))
        grant = parts.grants.renew()
        self._stream, streams = _open_stream(context)
        self._counting = EpochCounting(context, parts.notices, grant, streams, _processed_before(parts))
        self.keyed = self._keyed_states(parts)
        blueprint = Blueprint(context.topology, context.graph, context.shared.gateway, self.keyed)
        blueprint = replace(blueprint, shape=self._shape(blueprint, EpochSpec(plan.DRY, grant.allocation)))
        self.runner = EpochRunner(parts, blueprint, self.pace, self._counting, writing, timeline)

    @property
    def counters(self) -> Counters:
        return self._counting.counters

    def start(self, worth: float) -> None:
        """Start the query where its checkpoint ends, and wait until its sources answer; jobs of greater worth start first."""
        context = self._context
        writer = jvm.for_each_batch(self._stream, self.runner.run).queryName(context.name)
        writer = writer.outputMode(context.topology.mode)
        writer = writer.option("checkpointLocation", str(context.place / CHECKPOINT))
        with context.shared.admission.turn(worth):
            self._counting.query_starts()
            self.started_s = time.monotonic()
            self.query = writer.start()
            self._await_sources(self.query)

    def _await_sources(self, query: StreamingQuery) -> None:
        """Wait until the sources have answered for the first time, or the query has ended."""
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s and query.isActive and not self.pace.is_stopping:
            if not self.pace.is_idle or not query.status["message"].startswith(STARTING):
                return
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """Let the epoch in flight finish, then stop; nothing is left running."""
        query = self.query
        self.pace.stop()
        if query is None:
            return
        deadline_s = time.monotonic() + self._context.settings.stop_s
        while query.isActive and time.monotonic() < deadline_s:
            if self.pace.is_idle and _is_between_epochs(query):
                break
            time.sleep(LOOK_S)
        query.stop()
        self.query = None
        self.release()

    def release(self) -> None:
        """Release what the start holds; an epoch that is still in flight has no further effect."""
        self.pace.cut_off()
        self.runner.disconnect()
        self._close_state()

    def abandon(self) -> None:
        """Release what this process holds of a start after its JVM was lost."""
        self.pace.cut_off()
        self.query = None
        self.runner.disconnect()
        with suppress(Exception):  # what the state held in the JVM went with it
            self._close_state()

    def failure(self) -> Failure | None:
        """The error that ended the query; None if the query did not fail."""
        query = self.query
        if query is None or query.isActive:
            return None
        ended = self.runner.error or query.exception()
        if ended is None:
            return Failure("its query ended", FailureKind.DETERMINISTIC)
        found = failure_of(ended)
        if found.reason.startswith('operator "') or not comes_from_source(ended):
            return found
        return replace(found, reason=f"{plan.named_source(self._context.graph)}: {found.reason}")

    def inferred_arrivals(self, source: str) -> float | None:
        """Rows that have arrived at a source according to Spark's report of the last epoch; None if not known."""
        query = self.query
        last = query.lastProgress if query is not None else None
        report = Report.of(last.json) if last is not None else None
        return self._counting.lags.arrived(source, report, self._context.settings.source_stale_s)

    def _close_state(self) -> None:
        keyed, self.keyed = self.keyed, None
        if keyed is not None:
            keyed.close()

    def _keyed_states(self, parts: JobParts) -> KeyedStates | None:
        context = self._context
        nodes = [node for node in context.topology.nodes.values() if node.keyed is not None]
        if not nodes:
            return None

        def trouble(error: StateError) -> None:
            """Show a failed upkeep of the state until a later upkeep can have succeeded."""
            until = self.counters.epochs + 2 * context.settings.state.upkeep_epochs
            parts.notices.set(About.UPKEEP, f"upkeep of its state: {error}", until)

        return KeyedStates(context, nodes, trouble)

    def _shape(self, blueprint: Blueprint, spec: EpochSpec) -> plan.PlanShape:
        """Plan an epoch without rows, so that errors in the user's functions appear before the query starts."""
        epoch = plan.build(blueprint, spec, self._context.spark.createDataFrame([], self._stream.schema))
        found = plan.shape(epoch)
        for rows in epoch.kept:
            rows.unpersist()
        return found


def _is_between_epochs(query: StreamingQuery) -> bool:
    """Whether the query rests, or waits for rows of a source in Python: such a wait may be interrupted."""
    now = query.status
    return not now["isTriggerActive"] or (now["message"].startswith(ASKING) and IN_PYTHON in now["message"])


def _open_stream(context: JobContext) -> tuple[DataFrame, Mapping[str, tuple[Units, ...]]]:
    """All sources as one stream, and the streams that each source reads."""
    frames: dict[str, DataFrame] = {}
    streams: dict[str, tuple[Units, ...]] = {}
    for name in context.graph.sources:
        with plan.named(name):
            frame = context.source(name).stream(context.spark, context.place_of(name))
            if not frame.isStreaming:
                raise EngineError("its function returned a DataFrame that is not a stream; use spark.readStream")
        frames[name] = frame
        streams[name] = streams_of(frame, context.place / CHECKPOINT, sum(map(len, streams.values())))
    stream = plan.tagged_union(frames)
    if context.topology.has_timers:
        stream = ticks.with_ticks(context.spark, stream, context.ticks)
    return stream, streams


def _processed_before(parts: JobParts) -> Mapping[str, float]:
    """Rows of each source that earlier starts processed."""
    place, sources = parts.context.place, parts.context.graph.sources
    saved = progress.load(place)
    if saved is not None:
        return saved
    parts.notices.set(About.PROGRESS, f"{progress.FILE} was damaged: rows processed so far were counted again")
    return progress.rebuild(place, sources, parts.inflows.ask(sources))
