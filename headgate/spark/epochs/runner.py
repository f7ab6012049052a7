"""The epochs of one start of a job, in the thread of its query: plan, write, commit, count, wait for the pace."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.core.model import EpochPart, EpochTiming, JobAllocation
from headgate.log_context import work_for
from headgate.spark import jvm, session
from headgate.spark.epochs import carrying
from headgate.spark.epochs.attempts import Attempts
from headgate.spark.epochs.carrying import Epoch, Plans
from headgate.spark.epochs.grants import Grants
from headgate.spark.epochs.pace import Moment, Pace
from headgate.spark.epochs.places import AvailableHosts
from headgate.spark.epochs.plan import Blueprint, EpochSpec
from headgate.spark.epochs.timeline import Timeline
from headgate.spark.jobs.context import JobContext
from headgate.spark.jobs.standing import About, Notices
from headgate.spark.keyed.hosts import await_hosts, run_or_plan_again
from headgate.spark.keyed.operator import KeyedStates
from headgate.spark.measuring.counting import EpochCounting
from headgate.spark.measuring.inflow import Inflows
from headgate.spark.measuring.timing import EpochTimings, Stopwatch
from headgate.spark.measuring.tracing import EpochTraces
from headgate.spark.sinks.writing import Writing
from headgate.spark.sources import ticks
from headgate.topology import Lossy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts that all starts of a job share; each part has its own lock."""

    context: JobContext
    grants: Grants
    inflows: Inflows
    notices: Notices
    timings: EpochTimings


class EpochRunner:
    """Runs the epochs of one start. Owner: the thread of the query."""

    def __init__(
        self,
        parts: JobParts,
        blueprint: Blueprint,
        pace: Pace,
        counting: EpochCounting,
        writing: Writing,
        timeline: Timeline,
    ) -> None:
        self._parts = parts
        self._context = parts.context
        self._blueprint = blueprint
        self._plans = Plans(blueprint, parts.context.settings.plan_s)
        self._pace = pace
        self._counting = counting
        self._writing = writing
        self._timeline = timeline
        self.epoch = timeline.next_epoch()
        """The epoch in flight, or the next one if none is."""
        context = parts.context
        self.traces = EpochTraces(context.shared.traces, context.name, context.topology.tenant, timeline.committed_s)
        self.attempts = Attempts(parts.context.graph.sinks, self._cancel_jobs)
        self.error: BaseException | None = None
        """The error of the last failed epoch; None without one."""
        self._connection: Any = None
        """The connection over which Spark calls `run`."""

    def run(self, batch: DataFrame, number: int) -> None:
        """Run one epoch: Spark's callback."""
        work_for(self._context.name, number)  # later log lines of the thread, such as its error, name this epoch
        self.epoch = number
        self.traces.send()
        self._connection = jvm.connection_of_thread()
        started = self._pace.begin()
        watch = Stopwatch(started, self._pace.overhead_s)
        try:
            self._counting.counters.begin_epoch(started.at_s, self._pace.overhead_s)
            self._timeline.begin(number)
            watch.lap(EpochPart.LOG)
            attempt = lambda attempts: self._attempt(batch, number, started, attempts, watch)  # noqa: E731
            rows = run_or_plan_again(
                lambda: self.attempts.run(attempt, lambda: not self._pace.is_stopping), self._survives
            )
            self._pace.wait(started, lambda: self._parts.grants.current.allocation.pace_s)
            watch.lap(EpochPart.WAIT)
            self._record(self._timing(number, started, rows, watch))
            self.epoch = number + 1
        except BaseException as error:
            self._counting.counters.abandon_epoch()
            self.error = error
            self._trace_failure(number, started, watch, error)
            raise
        finally:
            self._pace.end()

    def disconnect(self) -> None:
        """End the thread and the connection over which Spark called: Py4J keeps both after the query has ended."""
        self.traces.send(at_end=True)
        connection, self._connection = self._connection, None
        if connection is not None and connection.socket is not None:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def _cancel_jobs(self, tag: str) -> None:
        self._context.spark.sparkContext.cancelJobsWithTag(tag)

    def _survives(self, error: Exception) -> bool:
        """Whether to plan an epoch that failed with this error again at once."""
        keyed = self._blueprint.keyed
        return keyed is not None and not self._pace.is_stopping and keyed.may_go_on(error)

    def _attempt(self, batch: DataFrame, number: int, started: Moment, attempts: int, watch: Stopwatch) -> int:
        watch.begin_attempt()
        grant, context = self._parts.grants.current, self._context
        pool = session.pool_of(context.name, grant.share, context.number)
        context.spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        tag = self.attempts.begin(f"headgate-{context.name}-{grant.version}-{number}", attempts)
        spec = EpochSpec(number, grant.allocation, tag, self._counting.observing(), self._cluster())
        with self._exchanging(batch, grant.allocation):
            epoch = self._plans.epoch(spec, batch)
            watch.lap(EpochPart.PLAN)
            try:
                self._write(epoch, watch)
                measured = self._counting.measure(epoch)
                carrying.check_written(epoch, self._writing)
            finally:
                carrying.release(epoch)
        took_s = self._counting.count(epoch, measured, started, grant)
        self._after(measured.sent, took_s)
        watch.lap(EpochPart.COUNT)
        return sum(measured.sent[source] for source in context.graph.sources)

    def _cluster(self) -> AvailableHosts:
        """The hosts available now, after a wait for a first host: without hosts, Spark would run the epoch on any host that registers."""
        found = self._context.cluster()
        if found.places is not None:
            await_hosts(self._context.cluster, (), 0.0)
            found = self._context.cluster()
            self._parts.notices.set(About.HOSTS, "; ".join(found.problems))
        return found

    def _record(self, timing: EpochTiming) -> None:
        self._parts.timings.add(timing)
        self.traces.ended(timing)

    def _timing(self, number: int, started: Moment, rows: int, watch: Stopwatch) -> EpochTiming:
        return EpochTiming(number, started.wall_s - self._pace.overhead_s, rows, tuple(watch.spans))

    def _trace_failure(self, number: int, started: Moment, watch: Stopwatch, error: BaseException) -> None:
        """Trace a failed epoch, unless the start is ending; an error of the trace must not hide the error of the epoch."""
        if not self._pace.is_stopping:
            watch.lap(EpochPart.FAILED)
            with suppress(Exception):
                self.traces.failed(self._timing(number, started, 0, watch), error)

    def _write(self, epoch: Epoch, watch: Stopwatch) -> None:
        for sink in self._context.graph.sinks:
            carrying.write(epoch, sink, self._writing)
            watch.lap(EpochPart.SINK, sink)
        self._pace.check_not_cut_off()
        if self._blueprint.keyed is not None:
            carrying.commit_state(epoch, self._blueprint.keyed)
            self._ask_for_epoch(epoch.spec.number, self._blueprint.keyed)
            watch.lap(EpochPart.STATE)

    def _ask_for_epoch(self, number: int, keyed: KeyedStates) -> None:
        """Ask for the next epoch when a timer is due: before Spark's commit, so that a crash in between loses no timer."""
        wait_s = keyed.wait_s() if self._context.topology.has_timers else None
        if wait_s is not None:
            ticks.ask(self._context.ticks, number + 1, wait_s)

    def _exchanging(self, batch: DataFrame, allocation: JobAllocation) -> AbstractContextManager[None]:
        if self._blueprint.shape.narrow.issuperset(self._context.graph.operators):
            return nullcontext()
        return session.shuffling(batch.sparkSession, max(allocation.lanes.values(), default=1))

    def _after(self, sent: Mapping[str, int], took_s: float) -> None:
        """Update the row limits and the notices after a finished epoch."""
        sources, notices = self._context.graph.sources, self._parts.notices
        elastic = [name for name in sources if self._context.source(name).elastic]
        self._parts.grants.adjust_rows(sent, self._parts.inflows.ask(elastic), took_s)
        notices.expire(self._counting.counters.epochs)
        notices.set(About.LOSSES, "; ".join(text for name in sources if (text := self._losses(name))))

    def _losses(self, name: str) -> str:
        """A sentence about the rows that a source left out, shown for as long as the job runs; empty without a loss."""
        source = self._context.source(name)
        text = source.losses(self._context.place_of(name)) if isinstance(source, Lossy) else ""
        return f'operator "{name}": {text}' if text else ""
