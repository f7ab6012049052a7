"""One job at work: its streaming query, its epochs, and the levers that the next epoch goes by.

A job is one query with `foreachBatch`. The callback builds the epoch's plan from what the job has at that moment, runs its
sinks, counts, and then waits until the pace lets the next epoch start.
"""

from __future__ import annotations

import math
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.latency import Latency, merge
from headgate.core.model import Graph, Job, JobAllocation, JobReading
from headgate.errors import EngineError, StateError
from headgate.ports import JobPhase
from headgate.spark import levers, metering, plan, session
from headgate.spark.counters import Done, Slices, start_of
from headgate.spark.keyed import KeyedStates
from headgate.spark.keyed_hosts import Hosted, planned_anew
from headgate.spark.levers import Levers
from headgate.spark.metering import LATE_S, MANY_ROWS, OBSERVED_EVERY, WEIGHTS, Arrivals, Counter, Gateway, TaskRecords
from headgate.spark.places import ONE_HOST, Cluster
from headgate.spark.plan import Observing
from headgate.spark.reasons import reason_of
from headgate.spark.topology import Source, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PROGRESS = "progress.json"
LOOK_S = 0.02
"""How often a stop looks whether the query has come to rest."""
SLOWER = 1.1
"""From one epoch to the next, Spark's own part is believed to have become longer by this factor at most."""
ALIKE = 1.5
"""Epochs that differ by no more than this factor count as alike."""
LEAST_ROWS = 10
"""An epoch may always read so many."""
CATCH_UP = 1.2
"""And so many times what arrived since the epoch before: an epoch that is slow for other reasons must not fall behind."""
LONGER = 2.0
"""But never so many that, at the speed of the epoch before, it would take more than this many times the longest time: with too few
lanes, each epoch would be longer than the one before, and the lanes that help would come only after it."""


class Stopped(Exception):
    """Ends a query from inside its callback: `query.stop()` in the middle of one leaves a stack trace behind."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Rows of each source that were processed before and after an epoch, so that a restart counts on."""

    epoch: int
    before: Mapping[str, float]
    after: Mapping[str, float]


class RunningJob:
    """A job with its query, in whatever phase it is."""

    def __init__(
        self,
        spark: SparkSession,
        gateway: Gateway,
        topology: Topology,
        place: Path,
        allocation: JobAllocation,
        settings: SparkSettings,
    ) -> None:
        self.topology = topology
        self.graph: Graph = topology.graph()
        self.intent: Intent = topology.intent
        self.place = place
        self.pool = ""
        self.read_limit: int | None = settings.read_limit
        self.phase = JobPhase.STARTING
        self.reason = ""
        self.since_s = time.time()
        self.failures = 0
        self.retry_at_s = 0.0
        self.guard = threading.RLock()
        """Held by whoever changes its phase."""
        self._spark = spark
        self._gateway = gateway
        self._settings = settings
        self._keyed: KeyedStates | None = None
        self.cluster: Callable[[], Cluster] = lambda: ONE_HOST
        """The hosts that there are when an epoch begins."""
        self._allocation = allocation
        self._version = round(time.time() * 1000)
        self._counters = start_of(self.graph, allocation, self._version, {})
        self._shape = plan.Shape()
        self._counter = Counter(gateway)
        self._waited: dict[str, Arrivals] = {}
        """When rows had arrived, counted from the start of the epoch that was observed last."""
        self._unobserved: int | None = None
        """Epochs with many rows since then, all alike; None if the last one had few."""
        self._before: tuple[int, float] = (0, 0.0)
        """Rows and seconds of the last epoch."""
        self._rows: dict[str, int] = {}
        self._arrived_before: dict[str, float] = {}
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._read_to_s = time.time()
        self._gap_s = 0.0
        self._returned_s: float | None = None
        self._line: Any = None
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
    def allocation(self) -> JobAllocation:
        """What the next epoch will have."""
        return self._allocation

    def enter(self, phase: JobPhase, reason: str = "") -> None:
        """From now on it is in this phase."""
        self.phase, self.reason, self.since_s = phase, reason, time.time()

    # -- life

    def start(self) -> None:
        """Start the query where its checkpoint ends; raises if the topology does not fit its rows."""
        self._stopping.clear()
        self._counter.detach()
        self._hang_up()
        self._error = None
        self._version += 1  # what is counted begins anew
        self._counters = start_of(self.graph, self._allocation, self._version, self._processed_before())
        self._pull_levers()
        stream = self._stream()
        self._close_state()
        self._keyed = self._keyed_states()
        self._dry_run(stream)
        writer = (
            stream.writeStream.foreachBatch(self._epoch).queryName(self.topology.name).outputMode(self.topology.mode)
        )
        self._read_to_s = time.time()
        self._query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()

    def stop(self) -> None:
        """Let the epoch in flight finish, then stop; nothing is left running."""
        query = self._query
        self._stopping.set()
        self._wake.set()
        if query is None:
            return
        deadline_s = time.time() + self._settings.stop_s
        while query.isActive and time.time() < deadline_s:
            if self._resting.is_set() and not query.status["isTriggerActive"]:
                break
            time.sleep(LOOK_S)
        query.stop()
        self._query = None
        self._counter.detach()
        self._hang_up()
        self._close_state()

    def _keyed_states(self) -> KeyedStates | None:
        nodes = [node for node in self.topology.nodes.values() if node.keyed is not None]
        if not nodes:
            return None
        slots, state = self._settings.slots, self._settings.state
        return KeyedStates(self._spark, nodes, self.place, slots, state, self._state_trouble, self.cluster)

    def _state_trouble(self, error: StateError) -> None:
        """Snapshots and clean-up go on beside the epochs: what fails there is shown, and tried again."""
        self.reason = f"upkeep of its state: {error}"

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
        shutil.rmtree(self.place, ignore_errors=True)

    def failure(self) -> str | None:
        """Why the query ended by itself; None if it did not."""
        query = self._query
        if query is None or query.isActive:
            return None
        ended = self._error or query.exception()
        return reason_of(ended) if ended is not None else "its query ended"

    @property
    def epochs(self) -> int:
        """Epochs finished since the query was last started."""
        return self._counters.epochs

    def _stream(self) -> DataFrame:
        frames = {}
        for name in self.graph.sources:
            with plan.named(name):
                frame = self._source(name).stream(self._spark, self._place_of(name))
                if not frame.isStreaming:
                    raise EngineError("its function returned a DataFrame that is not a stream; use spark.readStream")
            frames[name] = frame
        return plan.tagged_union(frames)

    def _dry_run(self, stream: DataFrame) -> None:
        """Build an epoch without rows: mistakes in the user's functions show before the query starts."""
        empty = self._spark.createDataFrame([], stream.schema)
        epoch = plan.build(
            self.topology, self.graph, empty, plan.DRY, self._allocation, self._gateway, keyed=self._keyed
        )
        self._shape = plan.shape(self.topology, self.graph, epoch)
        plan.release(epoch)

    def _source(self, name: str) -> Source:
        source = self.topology.nodes[name].function
        assert isinstance(source, Source)
        return source

    def _place_of(self, source: str) -> Path:
        place = self.place / "sources" / source
        place.mkdir(parents=True, exist_ok=True)
        return place

    # -- levers

    def set_allocation(self, allocation: JobAllocation) -> None:
        """From the next epoch on; a shorter pace also ends the wait that is under way."""
        if allocation == self._allocation:
            return
        self._version += 1
        self._allocation = allocation
        self._pull_levers()
        self._wake.set()

    def set_read_limit(self, rows: int | None) -> None:
        """From the next epoch on; what a person sets goes before what the job was given."""
        self.read_limit = rows
        self._allocation = replace(self._allocation, read_limit=None)
        self._pull_levers()

    @property
    def most_rows(self) -> int | None:
        """Its read limit now."""
        return self.read_limit if self._allocation.read_limit is None else self._allocation.read_limit

    def _pull_levers(self) -> None:
        for name in self.graph.sources:
            lanes, rows = self._allocation.lanes.get(name, 1), self._rows.get(name, self._settings.first_rows)
            most = rows if self.most_rows is None else min(rows, self.most_rows)
            levers.write(self._place_of(name), Levers(lanes, most))

    def _limit_rows(self, sent: Mapping[str, int], took_s: float) -> None:
        """As many rows as would have been worked off in the longest time that an epoch may take; or as arrive, within limits."""
        factor = self._settings.longest_epoch_s / max(0.01, took_s)
        for name in self.graph.sources:
            arrived = self._arrived(name)
            if sent[name] and arrived is not None:
                since = arrived - self._arrived_before.get(name, 0.0)
                wanted = min(max(sent[name] * factor, CATCH_UP * since), sent[name] * factor * LONGER)
                self._rows[name] = math.ceil(max(LEAST_ROWS, wanted))
                self._arrived_before[name] = arrived
        self._pull_levers()

    # -- epochs, in the query's own thread

    def _epoch(self, batch: DataFrame, number: int) -> None:
        self._line = self._spark.sparkContext._gateway._gateway_client.get_thread_connection()  # type: ignore[union-attr]
        if self._stopping.is_set():
            raise Stopped
        self._resting.clear()
        try:
            self._counter.attach(batch.sparkSession)
            self._counter.begin(batch)
            started_s = self._begin()
            planned_anew(lambda: self._run(batch, number, started_s), lambda error: self._may_go_on(error, batch))
            self._wait(started_s)
        except BaseException as error:
            self._counters.given_up()
            self._error = error
            raise
        finally:
            self._returned_s = time.time()
            self._resting.set()

    def _begin(self) -> float:
        """The time between two callbacks is Spark's own, for offsets, log and commit, unless there were no rows to read."""
        now_s = time.time()
        if self._returned_s is not None:
            gap_s = now_s - self._returned_s
            self._gap_s = gap_s if self._gap_s == 0 else min(gap_s, SLOWER * self._gap_s)
        self._counters.started(now_s, self._gap_s)
        return now_s

    def _may_go_on(self, error: Exception, batch: DataFrame) -> bool:
        if self._stopping.is_set() or self._keyed is None or not self._keyed.may_go_on(error):
            return False
        self._counter.begin(batch)
        return True

    def _run(self, batch: DataFrame, number: int, started_s: float) -> None:
        allocation, version = self._allocation, self._version
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
        tag = f"headgate-{self.topology.name}-{version}-{number}"
        with self._exchanging(batch, allocation):
            epoch = plan.build(
                self.topology,
                self.graph,
                batch,
                number,
                allocation,
                self._gateway,
                tag,
                self._shape,
                self._observing(),
                self._keyed,
                self.cluster(),
            )
            try:
                plan.run(self.topology, self.graph, epoch)
                plan.commit_state(epoch)
                until_s = time.time() + LATE_S
                observed = metering.read_all(epoch.observed, until_s)
                sent = self._sent(epoch, observed, until_s)
            finally:
                plan.release(epoch)
        self._count(epoch, sent, self._arrivals(observed, started_s), started_s, version, allocation)

    def _observing(self) -> Observing:
        """Few rows are all looked at; of many, a sample in every so many-th epoch."""
        if self._unobserved is None:
            return Observing.ALL
        return Observing.NONE if 0 < self._unobserved < OBSERVED_EVERY else Observing.SAMPLE

    def _unobserved_after(self, rows: int, took_s: float) -> int | None:
        """Epochs are alike while neither their rows nor their time differ much from one to the next."""
        before, self._before = self._before, (rows, took_s)
        if rows <= MANY_ROWS:
            return None
        alike = all(1 / ALIKE <= now / then <= ALIKE for now, then in zip((rows, took_s), before, strict=True) if then)
        return (self._unobserved or 0) % OBSERVED_EVERY + 1 if alike else 0

    def _arrivals(self, observed: Mapping[str, Arrivals], started_s: float) -> dict[str, Arrivals]:
        self._waited |= {name: found.moved(-started_s) for name, found in observed.items() if found.quantiles_s}
        return {name: waited.moved(started_s) for name, waited in self._waited.items()}

    def _sent(self, epoch: plan.Epoch, arrivals: Mapping[str, Arrivals], until_s: float) -> dict[str, int]:
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
        arrivals: Mapping[str, Arrivals],
        started_s: float,
        version: int,
        allocation: JobAllocation,
    ) -> None:
        rows = sum(sent[source] for source in self.graph.sources)
        before = {source: self._counters.processed(source) for source in self.graph.sources}
        done = Done(version, epoch.tag, epoch.stages, rows)
        latency = [self._latency(sink, epoch.finished_s[sink], sent, arrivals, started_s) for sink in self.graph.sinks]
        self._counters.finished(time.time(), sent, latency, done, allocation.lanes)
        took_s = time.time() - started_s
        self._unobserved = self._unobserved_after(rows, took_s)
        self._limit_rows(sent, took_s)
        self._read_to_s = started_s
        after = {source: before[source] + sent[source] for source in before}
        levers.replace(self.place / PROGRESS, msgspec.json.encode(Progress(epoch.number, before, after)))

    def _latency(
        self, sink: str, finished_s: float, sent: Mapping[str, int], arrivals: Mapping[str, Arrivals], started_s: float
    ) -> Latency | None:
        """By the rows at the sink if they still say when they arrived; else by those that went into the epoch."""
        put_out = sent[self.graph.operators[sink].inputs[0]]
        if sink in self._shape.observed:
            return arrivals[sink].latency(finished_s, put_out) if sink in arrivals else None
        read = {name: sent[name] for name in plan.sources_of(self.graph, sink) if sent[name]}
        parts = [
            arrivals.get(name, self._evenly(rows, started_s)).latency(finished_s, put_out * rows / sum(read.values()))
            for name, rows in read.items()
        ]
        return merge(parts)

    def _evenly(self, rows: int, started_s: float) -> Arrivals:
        """Rows that do not say when they arrived did so evenly since the epoch before was read."""
        waited_s = started_s - self._read_to_s
        arrived_s = tuple(self._read_to_s + waited_s * quantile for quantile, _ in WEIGHTS)
        return Arrivals(rows, rows * (self._read_to_s + waited_s / 2), arrived_s)

    def _wait(self, started_s: float) -> None:
        """Until the pace lets the next epoch start, or something changes."""
        while not self._stopping.is_set():
            self._wake.clear()
            left_s = started_s + (self._allocation.pace_s or 0.0) - self._gap_s - time.time()
            if left_s <= 0 or self._stopping.is_set():
                return
            self._wake.wait(left_s)

    # -- readings

    def reading(self, records: TaskRecords) -> JobReading:
        """Every counter at this moment."""
        self._add_busy(records)
        arrived = {name: self._arrived(name) for name in self.graph.sources}
        return replace(self._counters.reading(time.time(), arrived, self.slices()), read_limit=self.most_rows)

    def slices(self) -> Mapping[str, Slices]:
        """Of keyed operators that have run."""
        keyed = self._keyed
        return {} if keyed is None else keyed.slices()

    def _arrived(self, source: str) -> float | None:
        try:
            return self._source(source).arrived(self._place_of(source))
        except Exception:  # a source of the user's: what it does not tell is not known
            return None

    def _add_busy(self, records: TaskRecords) -> None:
        """Busy time of the newest epochs, taken for that of all since the last reading in proportion to their rows."""
        done = self._counters.take_done()
        sampled = done[-self._settings.sampled_epochs :]
        rows = sum(epoch.rows for epoch in sampled)
        scale = sum(epoch.rows for epoch in done) / rows if rows else len(done) / max(1, len(sampled))
        busy_s: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        given: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        hosts: dict[str, dict[int, str]] = defaultdict(dict)
        for epoch in sampled:
            for sink, stages in epoch.stages.items():
                for task in records.tasks(plan.sink_tag(epoch.tag, sink), stages):
                    busy_s[task.operator][task.lane] += task.busy_s * scale
                    given[task.operator][task.lane] += task.rows * scale
                    hosts[task.operator][task.lane] = task.host
        if done:
            self._counters.add_busy(done[-1].version, busy_s)
            self._counters.add_rows(done[-1].version, given)
            self._counters.ran_on(done[-1].version, hosts)

    def _processed_before(self) -> Mapping[str, float]:
        """What earlier runs had processed: an epoch that will be run again does not count."""
        try:
            saved = msgspec.json.decode((self.place / PROGRESS).read_bytes(), type=Progress)
        except FileNotFoundError:
            return {}
        committed = (self.place / "checkpoint" / "commits" / str(saved.epoch)).exists()
        return saved.after if committed else saved.before
