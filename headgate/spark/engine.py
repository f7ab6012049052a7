"""The Spark engine: many jobs in one Spark application, behind the same port as the simulator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Action, Job, JobAllocation, JobReading, Outcome, Snapshot
from headgate.core.quantities import did_you_mean
from headgate.errors import EngineError, InputError
from headgate.ports import JobPhase, JobState
from headgate.spark import session
from headgate.spark.counters import Slices
from headgate.spark.hosts import Hosts
from headgate.spark.job import RunningJob
from headgate.spark.metering import Gateway, TaskRecords
from headgate.spark.places import Cluster, Places
from headgate.spark.reasons import reason_of
from headgate.spark.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPERVISE_S = 0.5
"""How often the engine looks whether a query has ended."""
CALM_S = 10.0
"""A job that was started again counts as running after an epoch, or after this long without a failure."""
STOPPED_AT_ONCE = 8
"""Jobs that are stopped side by side."""


def open_engine(
    home: Path, settings: SparkSettings, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkEngine:
    """An engine on a Spark session of its own: embedded, or on the cluster that `master` names."""
    return SparkEngine(session.start(home, settings, master, extra), home, settings, embedded=master is None)


class SparkEngine:
    """Runs jobs, reads their counters, pulls their levers; one job's failure stays its own."""

    def __init__(self, spark: SparkSession, home: Path, settings: SparkSettings, embedded: bool = True) -> None:
        self.spark = spark
        self._home = home.resolve()
        self._settings = settings
        self._jobs: dict[str, RunningJob] = {}
        self._vacated: set[str] = set()
        self._lock = threading.RLock()
        self._records = TaskRecords(spark)
        self._gateway = Gateway(spark)
        self._hosts = Hosts(self._records, embedded)
        self._places = None if embedded else Places(spark)
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="headgate-supervisor", daemon=True)
        self._supervisor.start()

    # -- the port

    def jobs(self) -> Mapping[str, Job]:
        return {name: job.job for name, job in self._running().items()}

    def observe(self) -> Snapshot:
        """Jobs that do not run are not there: they hold up nobody's decisions."""
        running = self._running()
        readings = {name: self._reading(job) for name, job in running.items()}
        allocation = {name: job.allocation for name, job in running.items()}
        return Snapshot(time.time(), readings, allocation, self._hosts.readings())

    def apply(self, action: Action) -> Outcome:
        with self._lock:
            gone = [name for name in action.changes if name not in self._jobs]
            if gone:
                return Outcome(False, f"{', '.join(gone)} does not run any more")
            for name, allocation in action.changes.items():
                job = self._jobs[name]
                beyond = _beyond(job.allocation, allocation, job.slices(), set(self._hosts.cores()))
                if beyond:
                    return Outcome(False, f'job "{name}": {beyond}')
            for name, allocation in action.changes.items():
                self._jobs[name].set_allocation(allocation)
        return Outcome(True)

    def _running(self) -> dict[str, RunningJob]:
        with self._lock:
            return {name: job for name, job in self._jobs.items() if job.phase is JobPhase.RUNNING}

    def _reading(self, job: RunningJob) -> JobReading | None:
        try:
            return job.reading(self._records)
        except Exception as error:  # whatever the gateway raises: the job runs, but could not be read
            job.reason = reason_of(error)
            return None

    # -- jobs come and go

    def submit(self, topology: Topology, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        """Start a job where its checkpoint ends, if it has one; what it has is its topology's, or `allocation`."""
        job = self._reserved(topology, allocation)
        with job.guard:
            if paused:
                job.enter(JobPhase.PAUSED)
                return
            known = job.place.exists()
            try:
                self._start(job)
            except EngineError:
                with self._lock:
                    del self._jobs[topology.name]
                if not known:
                    job.forget()
                raise

    def _reserved(self, topology: Topology, allocation: JobAllocation | None) -> RunningJob:
        with self._lock:
            if topology.name in self._jobs:
                raise InputError(
                    f'there is a job "{topology.name}" already; remove it first, or give this one another name'
                )
            if topology.share > session.MOST_SHARE:
                raise InputError(
                    f'job "{topology.name}": share is {topology.share}; it is at most {session.MOST_SHARE}'
                )
            place = self.place_of(topology.name)
            first = topology.allocation(self._settings.first_pace_s)
            job = RunningJob(self.spark, self._gateway, topology, place, allocation or first, self._settings)
            job.pool = session.pool_of(topology.name, topology.share, len(self._jobs))
            job.cluster = self._cluster(len(self._jobs))
            self._jobs[topology.name] = job
            return job

    def _cluster(self, first: int) -> Callable[[], Cluster]:
        return lambda: Cluster(self._hosts.cores(), self._places, first, frozenset(self._vacated))

    def _start(self, job: RunningJob) -> None:
        try:
            job.start()
        except Exception as error:
            raise EngineError(f'job "{job.topology.name}": {reason_of(error)}') from error
        job.enter(JobPhase.RUNNING)

    def remove(self, name: str) -> None:
        """Finish the epoch in flight, stop, and forget the job with all that it kept."""
        job = self._job(name)
        with job.guard:
            job.enter(JobPhase.PAUSED)
            job.stop()
            with self._lock:
                self._jobs.pop(name, None)
            job.forget()

    def pause(self, name: str) -> None:
        """Finish the epoch in flight and stop; rows that arrive from now on wait."""
        job = self._job(name)
        with job.guard:
            job.enter(JobPhase.PAUSED)
            job.stop()

    def resume(self, name: str) -> None:
        """Go on where it was paused, or try again where it failed."""
        job = self._job(name)
        with job.guard:
            if job.phase in (JobPhase.RUNNING, JobPhase.STARTING):
                return
            job.failures = 0
            self._start(job)

    def set_intent(self, name: str, intent: Intent) -> None:
        self._job(name).intent = intent

    def set_share(self, name: str, share: int) -> None:
        """From the next epoch on."""
        if not 1 <= share <= session.MOST_SHARE:
            raise InputError(f'job "{name}": share is {share}; it must be from 1 to {session.MOST_SHARE}')
        job = self._job(name)
        job.topology.share = share
        job.pool = session.pool_of(name, share, list(self._jobs).index(name))

    def set_read_limit(self, name: str, rows: int | None) -> None:
        """From the next epoch on; None: as many as have arrived."""
        if rows is not None and rows < 1:
            raise InputError(f'job "{name}": its read limit is {rows}; it must be at least 1 row')
        self._job(name).set_read_limit(rows)

    def vacate(self, host: str) -> None:
        """Lanes and keyed state move away from this host, by Spark's name for it, while jobs go on."""
        self._vacated.add(host)

    def occupy(self, host: str) -> None:
        """It may have lanes and state again."""
        self._vacated.discard(host)

    def is_vacant(self, host: str) -> bool:
        """Whether no job needs the state on this host any more: it may be released."""
        hosted = [one for job in self._running().values() for one in job.hosted.values()]
        return all(one.hosting.is_free(host) for one in hosted)

    def states(self) -> Mapping[str, JobState]:
        with self._lock:
            return {
                name: JobState(job.phase, job.reason, job.topology.share, job.most_rows, job.since_s)
                for name, job in self._jobs.items()
            }

    def close(self) -> None:
        """Finish all epochs in flight, then stop everything, Spark included."""
        self._closing.set()
        self._supervisor.join()
        self._hosts.close()
        with ThreadPoolExecutor(STOPPED_AT_ONCE) as pool:
            list(pool.map(_quietly(RunningJob.stop), self._jobs.values()))
        session.stop(self.spark)

    def place_of(self, name: str) -> Path:
        """Where a job keeps what it must not forget."""
        return self._home / "jobs" / name

    def _job(self, name: str) -> RunningJob:
        with self._lock:
            if name not in self._jobs:
                raise InputError(f'there is no job "{name}".{did_you_mean(name, self._jobs)}')
            return self._jobs[name]

    # -- failures

    def _supervise(self) -> None:
        while not self._closing.wait(SUPERVISE_S):
            for job in list(self._jobs.values()):
                with job.guard:
                    self._look_after(job)

    def _look_after(self, job: RunningJob) -> None:
        if job.phase is JobPhase.RUNNING:
            reason = job.failure()
            if reason is not None:
                self._failed(job, reason)
            elif job.epochs:
                job.failures = 0
        elif job.phase is JobPhase.RETRYING:
            self._retry(job)

    def _failed(self, job: RunningJob, reason: str) -> None:
        """Try again after a while, for longer each time; after too many failures in a row, leave it to a person."""
        if job.epochs:
            job.failures = 0  # something went well since it was last started
        job.failures += 1
        if job.failures > self._settings.retries:
            job.enter(JobPhase.FAILED, reason)
            return
        wait_s = min(self._settings.back_off_limit_s, self._settings.back_off_s * 2 ** (job.failures - 1))
        job.retry_at_s = time.time() + wait_s
        job.enter(JobPhase.RETRYING, reason)

    def _retry(self, job: RunningJob) -> None:
        now_s = time.time()
        if job.retry_at_s:
            if now_s < job.retry_at_s:
                return
            job.retry_at_s = 0.0
            try:
                job.start()
            except Exception as error:
                self._failed(job, reason_of(error))
            return
        reason = job.failure()
        if reason is not None:
            self._failed(job, reason)
        elif job.epochs or now_s - job.since_s > CALM_S:
            job.enter(JobPhase.RUNNING)


def _beyond(has: JobAllocation, wanted: JobAllocation, slices: Mapping[str, Slices], hosts: set[str]) -> str:
    """What cannot be done on Spark, in a sentence; empty if all can. The health pipeline then tries something else."""
    if wanted.avoided != has.avoided and not hosts - set(wanted.avoided):
        return f"there is no host besides {', '.join(wanted.avoided)} that its lanes could run on"
    for name, lanes in wanted.slices.items():
        known = slices.get(name)
        if known is None:
            return f'operator "{name}" has no slices that could be re-assigned, or has not run yet'
        if len(lanes) != len(known[0]):
            return f'operator "{name}" has {len(known[0])} slices, not {len(lanes)}'
        if not all(0 <= lane < wanted.lanes.get(name, 1) for lane in lanes):
            return f'operator "{name}": slices on lanes that it does not have'
    return ""


def _quietly(stop: Callable[[RunningJob], None]) -> Callable[[RunningJob], None]:
    """One job that does not stop must not keep the others from it; Spark's own end ends it."""

    def attempt(job: RunningJob) -> None:
        try:
            stop(job)
        except Exception as error:
            job.enter(JobPhase.FAILED, reason_of(error))

    return attempt
