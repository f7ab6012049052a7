"""One job at work: its streaming query, its epochs, and the levers that the next epoch goes by.

A job is one query with `foreachBatch`. The callback builds the epoch's plan from what the job has at that moment, runs its
sinks, counts, and then waits until the pace lets the next epoch start.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import clock
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Graph, Job, JobAllocation, JobReading
from headgate.core.quantities import show_seconds
from headgate.errors import EngineError, StateError
from headgate.ports import JobPhase, JobState
from headgate.spark import inflow, jvm, metering, plan, progress, session
from headgate.spark.attempts import Attempts
from headgate.spark.busy import add_busy
from headgate.spark.connections import patience_of
from headgate.spark.counters import FinishedEpoch, Slices, start_of
from headgate.spark.given import Given, Moment
from headgate.spark.inflow import Inflow
from headgate.spark.keyed import KeyedStates
from headgate.spark.keyed_hosts import Hosted, planned_anew
from headgate.spark.lag import Lags, Report, Units, streams_of
from headgate.spark.limits import RowLimits
from headgate.spark.metering import LATE_S, ArrivalTimes, Counter, Gateway, TaskRecords
from headgate.spark.places import ONE_HOST, AvailableHosts
from headgate.spark.progress import Progress
from headgate.spark.reasons import Failure, FailureKind, comes_from_source, failure_of
from headgate.spark.retrying import Retries
from headgate.spark.sampling import EpochRows, Sampling
from headgate.spark.sources import ticks
from headgate.spark.standing import About, Notices, Standing
from headgate.spark.timeline import CHECKPOINT, Timeline
from headgate.spark.tracing import NO_TRACES, EpochTimes, Traces
from headgate.spark.writing import Writing, begin_start
from headgate.topology import Lossy, Source, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.02
"""How often a stop looks whether the query has come to rest."""
SLOWER = 1.1
"""From one epoch to the next, Spark's own part is believed to have become longer by this factor at most."""
READY_S = 12.0
"""How long a start waits for the processes that read the sources; Spark itself gives them 10 s."""
STARTING = ("Initializing", "Getting offsets", "Starting")
"""What Spark says of a query whose sources have not been asked for rows yet."""


class Stopped(Exception):
    """Ends a query from inside its callback: `query.stop()` in the middle of one leaves a stack trace behind."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all jobs of an engine use."""

    spark: SparkSession
    gateway: Gateway
    settings: SparkSettings
    askers: ThreadPoolExecutor
    """Ask sources how many rows have arrived."""
    starts: threading.BoundedSemaphore
    """Held while the processes of a job start."""
    traces: Traces = NO_TRACES


class RunningJob:
    """A job with its query, in whatever phase it is."""

    def __init__(self, shared: Shared, topology: Topology, place: Path, allocation: JobAllocation, number: int) -> None:
        self.topology = topology
        self.graph: Graph = topology.graph()
        self.intent: Intent = topology.intent
        self.place = place
        self.number = number
        """Differs from that of every other job of the engine."""
        self.share = topology.share
        self.standing = Standing(JobPhase.STARTING)
        self.retries = Retries(shared.settings)
        self.notices = Notices()
        self.guard = threading.RLock()
        """Held by whoever changes its phase."""
        self._timeline = Timeline(place)
        self.cluster: Callable[[], AvailableHosts] = lambda: ONE_HOST
        """The hosts that there are when an epoch begins."""
        self._shared = shared
        self._spark = shared.spark
        self._gateway = shared.gateway
        self._settings = shared.settings
        self._keyed: KeyedStates | None = None
        self._writing = Writing()
        self._given = Given(round(clock.now_s() * 1000), allocation, shared.settings.read_limit)
        self._giving = threading.Lock()
        """Held by whoever replaces what it has been given."""
        self._limits = RowLimits(self.graph.sources, self._place_of, shared.settings, lambda: self._given.of_sources)
        self.inflows = {name: Inflow(self._question(name)) for name in self.graph.sources}
        self._counters = start_of(self.graph, allocation, self._given.version, {})
        self._streams: dict[str, tuple[Units, ...]] = {}
        self._lags = Lags({}, {})
        self._inferred: set[str] = set()
        """Sources that do not count arrivals themselves."""
        self._shape = plan.PlanShape()
        self._counter = Counter(shared.gateway)
        self._sampling = Sampling()
        self.started_s = time.monotonic()
        """When its query was last started."""
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._read_to_s = time.time()
        self._gap_s = 0.0
        self._returned_s: float | None = None
        self._trouble_epoch: int | None = None
        self._line: Any = None
        self.attempts = Attempts(self.graph.sinks, self._cancel_jobs)
        self._forgotten = False
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._resting = threading.Event()
        self._resting.set()

    # -- what the engine sees

    @property
    def job(self) -> Job:
        """The job as the controller knows it."""
        return Job(self.topology.name, self.graph, self.intent, self.topology.tenant)

    @property
    def phase(self) -> JobPhase:
        return self.standing.phase

    @property
    def allocation(self) -> JobAllocation:
        """What the next epoch will have."""
        return self._given.allocation

    @property
    def pool(self) -> str:
        """The pool that its next epoch runs in."""
        return session.pool_of(self.topology.name, self.share, self.number)

    @property
    def state(self) -> JobState:
        """Where it stands, for people."""
        now = self.standing
        reason = now.reason or (self.notices.text() if now.phase is JobPhase.RUNNING else "")
        return JobState(now.phase, reason, self.share, self._given.most_rows, now.since_s)

    def enter(self, phase: JobPhase, reason: str = "") -> None:
        """From now on it is in this phase."""
        self.standing = Standing(phase, reason)

    # -- life

    def start(self) -> None:
        """Start the query where its checkpoint ends; raises if the topology does not fit its rows."""
        self._stopping.clear()
        self._counter.detach()
        self._hang_up()
        self._error = None
        self.notices.clear()
        self._timeline.restore()
        self._writing = Writing(begin_start(self.place), patience_of(self._settings))
        given = self._give(lambda given: replace(given, version=given.version + 1))  # what is counted starts from zero
        self._limits.write()
        stream = self._stream()
        before = self._processed_before()
        self._counters = start_of(self.graph, given.allocation, given.version, before)
        self._lags = Lags(self._streams, before, int(self.topology.has_timers))
        self._sampling = Sampling()
        self._returned_s = None
        self._close_state()
        self._keyed = self._keyed_states()
        self._dry_run(stream)
        writer = (
            stream.writeStream.foreachBatch(self._epoch).queryName(self.topology.name).outputMode(self.topology.mode)
        )
        writer = writer.option("checkpointLocation", str(self.place / CHECKPOINT))
        with self._shared.starts:
            self._read_to_s = time.time()
            self.started_s = time.monotonic()
            self._query = writer.start()
            self._await_sources(self._query)

    def _await_sources(self, query: StreamingQuery) -> None:
        """Until the sources have answered for the first time, or the query has ended."""
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s and query.isActive and not self._stopping.is_set():
            if not self._resting.is_set() or not query.status["message"].startswith(STARTING):
                return
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """Let the epoch in flight finish, then stop; nothing is left running."""
        query = self._query
        self._stopping.set()
        self._wake.set()
        if query is None:
            return
        deadline_s = time.monotonic() + self._settings.stop_s
        while query.isActive and time.monotonic() < deadline_s:
            if self._resting.is_set() and not query.status["isTriggerActive"]:
                break
            time.sleep(LOOK_S)
        query.stop()
        self._query = None
        self._counter.detach()
        self._hang_up()
        self._close_state()

    def abandon(self) -> None:
        """Its JVM is gone: give back what this process holds."""
        self._stopping.set()
        self._wake.set()
        self._query = None
        self._hang_up()
        with suppress(Exception):  # what it holds in the JVM went with it
            self._close_state()

    def _keyed_states(self) -> KeyedStates | None:
        nodes = [node for node in self.topology.nodes.values() if node.keyed is not None]
        if not nodes:
            return None
        slots, state = self._settings.slots, self._settings.state
        return KeyedStates(self._spark, nodes, self.place, slots, state, self._state_trouble, self.cluster)

    def _state_trouble(self, error: StateError) -> None:
        """Snapshots and clean-up go on beside the epochs: what fails there is shown, and tried again."""
        self.notices.set(About.UPKEEP, f"upkeep of its state: {error}")
        self._trouble_epoch = self._counters.epochs

    def _close_state(self) -> None:
        if self._keyed is not None:
            self._keyed.close()
        self._keyed = None

    @property
    def hosted(self) -> Mapping[str, Hosted]:
        """Its keyed operators on the hosts of a cluster."""
        return {} if self._keyed is None else self._keyed.hosted()

    def _hang_up(self) -> None:
        """End the thread and the connection that a query's callbacks came by: Py4J keeps both when the query is long gone."""
        line, self._line = self._line, None
        if line is not None and line.socket is not None:
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Delete what it kept on disk."""
        self._forgotten = True
        shutil.rmtree(self.place, ignore_errors=True)

    def failure(self) -> Failure | None:
        """Why the query ended by itself; None if it did not."""
        query = self._query
        if query is None or query.isActive:
            return None
        ended = self._error or query.exception()
        if ended is None:
            return Failure("its query ended", FailureKind.DETERMINISTIC)
        found = failure_of(ended)
        if found.reason.startswith('operator "') or not comes_from_source(ended):
            return found
        return replace(found, reason=f"{plan.named_source(self.graph)}: {found.reason}")

    @property
    def epochs(self) -> int:
        """Epochs finished since the query was last started."""
        return self._counters.epochs

    def _stream(self) -> DataFrame:
        frames: dict[str, DataFrame] = {}
        self._streams = {}
        for name in self.graph.sources:
            with plan.named(name):
                frame = self._source(name).stream(self._spark, self._place_of(name))
                if not frame.isStreaming:
                    raise EngineError("its function returned a DataFrame that is not a stream; use spark.readStream")
            frames[name] = frame
            number = sum(map(len, self._streams.values()))
            self._streams[name] = streams_of(frame, self.place / CHECKPOINT, number)
        stream = plan.tagged_union(frames)
        return ticks.with_ticks(self._spark, stream, self._ticks) if self.topology.has_timers else stream

    def _dry_run(self, stream: DataFrame) -> None:
        """Build an epoch without rows: mistakes in the user's functions show before the query starts."""
        empty = self._spark.createDataFrame([], stream.schema)
        epoch = plan.build(
            self.topology, self.graph, empty, plan.DRY, self.allocation, self._gateway, keyed=self._keyed
        )
        self._shape = plan.shape(self.topology, self.graph, epoch)
        plan.release(epoch)

    def _source(self, name: str) -> Source:
        source = self.topology.nodes[name].function
        assert isinstance(source, Source)
        return source

    def _cancel_jobs(self, tag: str) -> None:
        self._spark.sparkContext.cancelJobsWithTag(tag)

    def _place_of(self, source: str) -> Path:
        place = self.place / "sources" / source
        place.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def _ticks(self) -> Path:
        return self.place / "ticks"

    # -- levers

    def set_allocation(self, allocation: JobAllocation) -> None:
        """From the next epoch on; a shorter pace also ends the wait that is under way."""
        if allocation == self.allocation:
            return
        self._give(lambda given: replace(given, version=given.version + 1, allocation=allocation))
        self._limits.write()
        self._wake.set()

    def set_read_limit(self, rows: int | None) -> None:
        """From the next epoch on; what a person sets goes before what the job was given."""
        self._give(lambda given: replace(given, read_limit=rows, allocation=replace(given.allocation, read_limit=None)))
        self._limits.write()

    def _give(self, change: Callable[[Given], Given]) -> Given:
        with self._giving:
            self._given = change(self._given)
            return self._given

    def _limit_rows(self, sent: Mapping[str, int], took_s: float) -> None:
        elastic = {name: one for name, one in self.inflows.items() if self._source(name).elastic}
        inflow.ask_all(elastic.values(), self._shared.askers, self._settings.ask_s)
        arrived = {name: told.rows for name, one in elastic.items() if (told := one.told()) is not None}
        self._limits.adjust(sent, arrived, took_s)

    # -- epochs, in the query's own thread

    def _epoch(self, batch: DataFrame, number: int) -> None:
        self._line = jvm.connection_of_thread()
        if self._stopping.is_set():
            raise Stopped
        self._resting.clear()
        try:
            self._counter.attach(batch.sparkSession)
            self._counter.begin(batch)
            started = self._begin()
            self._timeline.begin(number)
            attempt = lambda attempts: self._run(batch, number, started, attempts)  # noqa: E731
            planned_anew(
                lambda: self.attempts.run(attempt, lambda: self._again(batch)),
                lambda error: self._may_go_on(error, batch),
            )
            self._wait(started)
        except BaseException as error:
            self._counters.given_up()
            self._error = error
            raise
        finally:
            self._returned_s = time.monotonic()
            self._resting.set()

    def _begin(self) -> Moment:
        """The time between two callbacks is Spark's own, for offsets, log and commit, unless there were no rows to read."""
        now = Moment.now()
        if self._returned_s is not None:
            gap_s = now.at_s - self._returned_s
            self._gap_s = gap_s if self._gap_s == 0 else min(gap_s, SLOWER * self._gap_s)
        self._counters.started(now.at_s, self._gap_s)
        return now

    def _may_go_on(self, error: Exception, batch: DataFrame) -> bool:
        if self._stopping.is_set() or self._keyed is None or not self._keyed.may_go_on(error):
            return False
        self._counter.begin(batch)
        return True

    def _again(self, batch: DataFrame) -> bool:
        """Whether an epoch that was cancelled is planned again; what it has counted so far does not count."""
        self._counter.begin(batch)
        return not self._stopping.is_set()

    def _run(self, batch: DataFrame, number: int, started: Moment, attempts: int) -> None:
        given = self._given
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
        tag = self.attempts.tagged(f"headgate-{self.topology.name}-{given.version}-{number}", attempts)
        with self._exchanging(batch, given.allocation):
            epoch = plan.build(
                self.topology,
                self.graph,
                batch,
                number,
                given.allocation,
                self._gateway,
                tag,
                self._shape,
                self._sampling.observing(),
                self._keyed,
                self.cluster(),
            )
            planned_s = time.time()
            try:
                plan.run(self.topology, self.graph, epoch, self._writing)
                plan.commit_state(epoch)
                self._ask_for_epoch(number)
                committed_s = time.time()
                until_s = time.monotonic() + LATE_S
                observed = metering.read_all(epoch.observed, until_s)
                sent = self._sent(epoch, observed, until_s)
            finally:
                plan.release(epoch)
        self._notice_unknown(observed)
        self._count(epoch, sent, self._sampling.arrivals(observed, started.wall_s), started, given)
        times = EpochTimes(started.wall_s - self._gap_s, started.wall_s, planned_s, epoch.finished_s, committed_s)
        rows = sum(sent[source] for source in self.graph.sources)
        self._shared.traces.epoch(self.topology.name, self.topology.tenant, number, rows, times)

    def _ask_for_epoch(self, number: int) -> None:
        """After this one, when a timer is due: before Spark's commit, so that a crash in between loses no timer."""
        wait_s = None if self._keyed is None or not self.topology.has_timers else self._keyed.wait_s()
        if wait_s is not None:
            ticks.ask(self._ticks, number + 1, wait_s)

    def _notice_unknown(self, observed: Mapping[str, ArrivalTimes]) -> None:
        """Rows whose arrival is null have no latency, which a person should know."""
        timed = [found for name, found in observed.items() if self._shape.observed[name] is not None]
        rows, unknown = sum(found.rows for found in timed), sum(found.rows - found.known for found in timed)
        text = f"{unknown:,} of {rows:,} rows of an epoch do not say when they arrived: their latency is not known"
        if rows:
            self.notices.set(About.ARRIVALS, text if unknown else "")

    def _sent(self, epoch: plan.Epoch, arrivals: Mapping[str, ArrivalTimes], until_s: float) -> dict[str, int]:
        """Rows that every operator put out."""
        rows = self._counter.take(set(epoch.meters.values()), until_s)
        sent: dict[str, int] = {}
        for name, operator in self.graph.operators.items():
            if name in self._shape.keeping:
                sent[name] = sent[operator.inputs[0]]
            elif name in epoch.observed:
                sent[name] = arrivals[name].rows if name in arrivals else 0
            else:
                sent[name] = rows.get(epoch.meters.get(name, -1), 0)
        return sent

    def _exchanging(self, batch: DataFrame, allocation: JobAllocation) -> AbstractContextManager[None]:
        if self._shape.narrow.issuperset(self.graph.operators):
            return nullcontext()
        return session.shuffling(batch.sparkSession, max(allocation.lanes.values(), default=1))

    def _count(
        self,
        epoch: plan.Epoch,
        sent: Mapping[str, int],
        arrivals: Mapping[str, ArrivalTimes],
        started: Moment,
        given: Given,
    ) -> None:
        rows = sum(sent[source] for source in self.graph.sources)
        before = {source: self._counters.processed(source) for source in self.graph.sources}
        done = FinishedEpoch(given.version, epoch.tag, epoch.stages, rows)
        put = EpochRows(self.graph, self._shape, sent, arrivals, started.wall_s, self._read_to_s)
        latency = [put.latency(sink, epoch.finished_s[sink]) for sink in self.graph.sinks]
        self._counters.finished(time.monotonic(), sent, latency, done, given.allocation.lanes)
        took_s = time.monotonic() - started.at_s
        self._sampling.done(rows, took_s)
        self._limit_rows(sent, took_s)
        self._read_to_s = started.wall_s
        self._forgive_upkeep()
        after = {source: before[source] + sent[source] for source in before}
        self._lags.counted(epoch.number, after)
        progress.save(self.place, Progress(epoch.number, before, after))
        self._tell_losses()

    def _tell_losses(self) -> None:
        """Rows that a source had to leave out are shown for as long as the job runs."""
        told = (self._losses(name) for name in self.graph.sources)
        self.notices.set(About.LOSSES, "; ".join(text for text in told if text))

    def _losses(self, name: str) -> str:
        source = self.topology.nodes[name].function
        told = source.losses(self._place_of(name)) if isinstance(source, Lossy) else ""
        return f'operator "{name}": {told}' if told else ""

    def _forgive_upkeep(self) -> None:
        """Upkeep that failed is tried again every so many epochs; when that went well, nothing is wrong any more."""
        since = self._trouble_epoch
        if since is not None and self._counters.epochs - since > 2 * self._settings.state.upkeep_epochs:
            self._trouble_epoch = None
            self.notices.set(About.UPKEEP, "")

    def _wait(self, started: Moment) -> None:
        """Until the pace lets the next epoch start, or something changes."""
        while not self._stopping.is_set():
            self._wake.clear()
            left_s = started.at_s + (self.allocation.pace_s or 0.0) - self._gap_s - time.monotonic()
            if left_s <= 0 or self._stopping.is_set():
                return
            self._wake.wait(left_s)

    # -- readings

    def reading(self, records: TaskRecords) -> JobReading:
        """Every counter at this moment."""
        add_busy(self._counters, records, self._settings.sampled_epochs)
        arrived = {name: self._arrived(name) for name in self.graph.sources}
        found = self._counters.reading(time.monotonic(), arrived, self.slices())
        as_given = self._counters.epochs_of(self._given.version)
        return replace(found, read_limit=self._given.most_rows, epochs_as_given=as_given)

    def slices(self) -> Mapping[str, Slices]:
        """Of keyed operators that have run."""
        keyed = self._keyed
        return {} if keyed is None else keyed.slices()

    def _question(self, source: str) -> Callable[[], float | None]:
        """A job that is forgotten is not asked: the answer would make its directory again."""
        return lambda: None if self._forgotten else self._ask(source)

    def _ask(self, source: str) -> float | None:
        """What a source says; of a source that does not count arrivals, what Spark's report of the last epoch says."""
        told = self._source(source).arrived(self._place_of(source))
        if told is not None:
            return told
        self._inferred.add(source)
        query = self._query
        progress_ = query.lastProgress if query is not None else None
        report = Report.of(progress_.json) if progress_ is not None else None
        return self._lags.arrived(source, report, self._settings.source_stale_s)

    def _arrived(self, source: str) -> float | None:
        """The last answer of a source; None if it cannot tell. One that used to count and does not any more is an error."""
        told = self.inflows[source].told()
        if told is None:
            return None
        age_s = time.monotonic() - told.at_s
        if age_s > self._settings.source_stale_s:
            if source in self._inferred:
                return None
            raise EngineError(f'source "{source}" has not said for {show_seconds(age_s, 2)} how many rows arrived')
        return told.rows

    def _processed_before(self) -> Mapping[str, float]:
        """What earlier runs had processed; rebuilt from Spark's log, or from what has arrived, if the record is damaged."""
        saved = progress.load(self.place)
        if saved is not None:
            return saved
        inflow.ask_all(self.inflows.values(), self._shared.askers, self._settings.ask_s)
        offsets = progress.committed_offsets(self.place, self.graph.sources)
        rebuilt = {name: self._rebuilt(name, offsets.get(name)) for name in self.graph.sources}
        self.notices.set(About.PROGRESS, f"{progress.FILE} was damaged: rows processed so far were counted again")
        return rebuilt

    def _rebuilt(self, source: str, offset: Any) -> float:
        """A source whose offset is a number of rows says it exactly; of another, what has arrived counts as processed."""
        match offset:
            case {"rows": int(rows)}:
                return float(rows)
        told = self.inflows[source].told()
        return told.rows if told is not None else 0.0
