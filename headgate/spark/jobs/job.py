"""One job of the engine from its submission to its removal, in any phase, with its newest start."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.core.intents import Intent
from headgate.core.model import EpochTiming, Job, JobAllocation, JobReading
from headgate.errors import EngineError
from headgate.ports import JobPhase, JobState
from headgate.spark.epochs.grants import Grants
from headgate.spark.epochs.runner import JobParts
from headgate.spark.jobs.context import JobContext
from headgate.spark.jobs.retrying import Retries
from headgate.spark.jobs.run import JobRun
from headgate.spark.jobs.standing import Notices, Standing
from headgate.spark.keyed.hosts import Hosted
from headgate.spark.keyed.operator import KeyedStates
from headgate.spark.measuring.busy import add_busy
from headgate.spark.measuring.counters import Slices
from headgate.spark.measuring.inflow import Inflows
from headgate.spark.measuring.metering import TaskRecords
from headgate.spark.measuring.timing import EpochTimings, with_reports
from headgate.spark.reasons import Failure
from headgate.state.durable import close_durable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class RunningJob:
    """A job from its submission to its removal. Owner of the phase and of the start: the holder of its guard."""

    def __init__(self, context: JobContext, allocation: JobAllocation) -> None:
        self.context = context
        self.intent: Intent = context.topology.intent
        self.standing = Standing(JobPhase.STARTING)
        self.retries = Retries(context.settings)
        self.notices = Notices()
        self.guard = threading.RLock()
        self.grants = Grants(context, allocation)
        self.inflows = Inflows(context, self._infer_arrivals)
        self._timings = EpochTimings(context.settings.kept_epochs)
        self._run: JobRun | None = None
        """The newest start; kept after its stop, so that its counters can be read."""

    # -- views for the engine

    @property
    def name(self) -> str:
        return self.context.name

    @property
    def job(self) -> Job:
        """The job as the controller knows it."""
        return Job(self.name, self.context.graph, self.intent, self.context.topology.tenant)

    @property
    def phase(self) -> JobPhase:
        return self.standing.phase

    @property
    def allocation(self) -> JobAllocation:
        """The allocation of the next epoch."""
        return self.grants.current.allocation

    @property
    def state(self) -> JobState:
        """The phase of the job with its reason, for people."""
        now, grant = self.standing, self.grants.current
        reason = now.reason or (self.notices.text() if now.phase is JobPhase.RUNNING else "")
        epoch = self._epoch if now.epoch is None else now.epoch
        share = grant.allocation.share
        return JobState(now.phase, reason, grant.declared_share, grant.most_rows, now.since_s, now.trace, share, epoch)

    @property
    def _epoch(self) -> int | None:
        """The epoch in flight, or the next one if none is; None before the first start."""
        return None if self._run is None else self._run.runner.epoch

    def enter(self, phase: JobPhase, reason: str = "", trace: str = "") -> None:
        """Put the job into this phase."""
        self.standing = Standing(phase, reason, trace=trace, epoch=self._epoch if reason else None)

    # -- starts

    def start(self) -> None:
        """Start the query where its checkpoint ends; raises if the topology does not fit its rows."""
        if self._run is not None:
            self._run.release()
        self.notices.clear()
        self._run = JobRun(JobParts(self.context, self.grants, self.inflows, self.notices, self._timings))
        self._run.start(self.intent.worth)

    def stop(self) -> None:
        """Let the epoch in flight finish, then stop; nothing is left running."""
        if self._run is not None:
            self._run.stop()

    def abandon(self) -> None:
        """Release the resources of this process after the JVM was lost."""
        if self._run is not None:
            self._run.abandon()

    def forget(self, keep: bool = False) -> None:
        """Delete the job's files, unless `keep`; either way, a new job of the same name does not find the durable checkpoint."""
        checkpoint = self.context.settings.state.checkpoint
        self.inflows.close()
        close_durable(self.context.place, checkpoint, keep)
        if keep:
            return
        shutil.rmtree(self.context.place, ignore_errors=True)
        if os.path.isabs(self.context.shared.stores):  # elsewhere, the hosts are asked to remove it
            shutil.rmtree(f"{self.context.shared.stores}/{self.name}", ignore_errors=True)

    def failure(self) -> Failure | None:
        """The error that ended the query; None if the query did not fail."""
        return None if self._run is None else self._run.failure()

    @property
    def query(self) -> StreamingQuery | None:
        """The query of the newest start; None while the job is stopped."""
        return None if self._run is None else self._run.query

    @property
    def started_s(self) -> float:
        """When the query was last started, in monotonic time."""
        return 0.0 if self._run is None else self._run.started_s

    @property
    def epochs(self) -> int:
        """Epochs finished since the query was last started."""
        return 0 if self._run is None else self._run.counters.epochs

    def send_trace(self) -> None:
        """Send the trace of the last epoch, unless it was sent already."""
        if self._run is not None:
            self._run.runner.traces.send()

    def cancel_epoch(self, stuck: Set[str]) -> None:
        """Cancel the epoch in flight if it has Spark jobs with one of these tags; it is then planned again."""
        if self._run is not None:
            self._run.runner.attempts.cancel(stuck)

    # -- levers

    def set_allocation(self, allocation: JobAllocation) -> None:
        """Apply the allocation from the next epoch on; a shorter pace also ends the current wait."""
        if allocation == self.allocation:
            return
        self.grants.set_allocation(allocation)
        if self._run is not None:
            self._run.pace.wake()

    # -- readings

    def reading(self, records: TaskRecords, with_busy: bool = True) -> JobReading:
        """Every counter at this moment."""
        run, grant = self._run, self.grants.current
        if run is None:
            raise EngineError("it has not been started yet")
        if with_busy:
            add_busy(run.counters, records, self.context.settings.sampled_epochs)
        found = run.counters.reading(time.monotonic(), self.inflows.arrived(), self.slices())
        as_given = run.counters.epochs_of(grant.version)
        return replace(found, read_limit=grant.most_rows, epochs_as_given=as_given, share=grant.share)

    def processed(self, source: str) -> float:
        """Rows of a source that all starts have processed."""
        return 0.0 if self._run is None else self._run.counters.processed(source)

    def timings(self) -> tuple[EpochTiming, ...]:
        """The last finished epochs, oldest first."""
        query = self.query
        return with_reports(self._timings.all(), () if query is None else query.recentProgress)

    @property
    def keyed(self) -> KeyedStates | None:
        """The keyed operators; None if the job has none, or is stopped."""
        return None if self._run is None else self._run.keyed

    @property
    def hosted(self) -> Mapping[str, Hosted]:
        """The keyed operators on the hosts of a cluster."""
        keyed = self.keyed
        return {} if keyed is None else keyed.hosted()

    def hot_keys(self) -> Mapping[str, Mapping[str, float]]:
        """The fullest keys of each keyed operator; empty while the job does not run."""
        keyed = self.keyed
        return {} if keyed is None else keyed.hot_keys()

    def slices(self) -> Mapping[str, Slices]:
        """The slices of keyed operators that have run."""
        keyed = self.keyed
        return {} if keyed is None else keyed.slices()

    def _infer_arrivals(self, source: str) -> float | None:
        return None if self._run is None else self._run.inferred_arrivals(source)
