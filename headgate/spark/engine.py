"""The Spark engine: many jobs in one Spark application, behind the same port as the simulator."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headgate import clock
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.core.model import Action, HostReading, Job, JobAllocation, JobReading, Outcome, Snapshot
from headgate.core.quantities import did_you_mean
from headgate.errors import EngineError, HeadgateError, InputError
from headgate.ports import JobPhase, JobState
from headgate.spark import inflow, pulse, session, tracing
from headgate.spark.counters import Slices
from headgate.spark.hosts import Hosts
from headgate.spark.inflow import ASKED_AT_ONCE
from headgate.spark.job import RunningJob, Shared
from headgate.spark.metering import Gateway, TaskRecords
from headgate.spark.places import AvailableHosts, Places
from headgate.spark.pulse import Pulse
from headgate.spark.reasons import Failure, FailureKind, failure_of, reason_of
from headgate.spark.standing import About
from headgate.spark.tasks import TaskWatch
from headgate.spark.tracing import NO_TRACES, Traces
from headgate.topology import MOST_SHARE, Topology

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
    traces = tracing.opened(settings)  # before Spark starts, so that a missing package is told at once
    spark = session.start(home, settings, master, extra)
    return SparkEngine(spark, home, settings, embedded=master is None, traces=traces)


class SparkEngine:
    """Runs jobs, reads their counters, pulls their levers; one job's failure stays its own."""

    def __init__(
        self,
        spark: SparkSession,
        home: Path,
        settings: SparkSettings,
        embedded: bool = True,
        traces: Traces = NO_TRACES,
    ) -> None:
        self.spark = spark
        self._home = home.resolve()
        self._settings = settings
        self._jobs: dict[str, RunningJob] = {}
        self._vacated: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        """Owner of the two above; never held during a call into Spark or a wait for a job's guard."""
        self._numbers = itertools.count()
        self._askers = ThreadPoolExecutor(ASKED_AT_ONCE, "headgate-ask")
        self._pulse = Pulse(settings.answer_s)
        starts = threading.BoundedSemaphore(settings.starts_at_once)
        self._shared = Shared(spark, Gateway(spark), settings, self._askers, starts, traces)
        self._records = TaskRecords(spark)
        self._hosts = Hosts(self._records, TaskWatch(spark), embedded, settings.suspect_heartbeats)
        self._places = None if embedded else Places(spark)
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="headgate-supervisor", daemon=True)
        self._supervisor.start()

    # -- the port

    def jobs(self) -> Mapping[str, Job]:
        return {name: job.job for name, job in self._running().items()}

    def observe(self) -> Snapshot:
        """Jobs that do not run are not there: they hold up no decision about others."""
        self._check_answers()
        running = self._running()
        asked = [one for job in running.values() for one in job.inflows.values()]
        inflow.ask_all(asked, self._askers, self._settings.ask_s)
        readings = {name: self._reading(job) for name, job in running.items()}
        allocation = {name: job.allocation for name, job in running.items()}
        hosts = self._host_readings()
        self._check_answers()  # lost in the meantime: what could not be read is no fault of a job
        return Snapshot(clock.now_s(), readings, allocation, hosts)

    def apply(self, action: Action) -> Outcome:
        self._check_answers()
        with self._lock:
            jobs = {name: self._jobs.get(name) for name in action.changes}
        gone = [name for name, job in jobs.items() if job is None]
        if gone:
            return Outcome(False, f"{', '.join(gone)} does not run any more")
        wanted = [(job, action.changes[name]) for name, job in jobs.items() if job is not None]
        with self._told():
            hosts = set(self._hosts.cores())
        for job, allocation in wanted:
            beyond = _beyond(job.allocation, allocation, job.slices(), hosts)
            if beyond:
                return Outcome(False, f'job "{job.topology.name}": {beyond}')
        with self._told():
            for job, allocation in wanted:
                job.set_allocation(allocation)
        return Outcome(True)

    def _running(self) -> dict[str, RunningJob]:
        return {name: job for name, job in self._all().items() if job.phase is JobPhase.RUNNING}

    def _all(self) -> dict[str, RunningJob]:
        with self._lock:
            return dict(self._jobs)

    def _reading(self, job: RunningJob) -> JobReading | None:
        try:
            found = job.reading(self._records)
        except Exception as error:  # whatever the gateway raises: the job runs, but could not be read
            job.notices.set(About.READING, f"it could not be read: {reason_of(error)}")
            return None
        job.notices.set(About.READING, "")
        return found

    def _host_readings(self) -> tuple[HostReading, ...]:
        try:
            return self._hosts.readings()
        except Exception:  # whatever the gateway raises: of hosts that cannot be read, nothing is known
            return ()

    def _check_answers(self) -> None:
        lost = self.lost()
        if lost:
            raise EngineError(lost)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong with Spark or a disk is told in a sentence; an engine that is lost, as such."""
        try:
            yield
        except HeadgateError:
            self._check_answers()
            raise
        except Exception as error:  # the gateway and the disk raise errors of many kinds
            self._check_answers()
            raise EngineError(reason_of(error)) from error

    # -- jobs come and go

    def submit(self, topology: Topology, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        """Start a job where its checkpoint ends, if it has one; what it has is its topology's, or `allocation`.

        A job that cannot start because of an outage is accepted, and retried until the outage is over.
        """
        self._check_answers()
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
        name = topology.name
        if topology.share > MOST_SHARE:
            raise InputError(f'job "{name}": share is {topology.share}; it is at most {MOST_SHARE}')
        first = topology.allocation(self._settings.first_pace_s)
        job = RunningJob(self._shared, topology, self.place_of(name), allocation or first, next(self._numbers))
        job.cluster = self._cluster(job.number)
        with self._lock:
            if name in self._jobs:
                raise InputError(f'there is a job "{name}" already; remove it first, or give this one another name')
            self._jobs[name] = job
            return job

    def _cluster(self, first: int) -> Callable[[], AvailableHosts]:
        return lambda: AvailableHosts(self._hosts.cores(), self._places, first, self._vacated, self._hosts.started_s)

    def _start(self, job: RunningJob) -> None:
        """Raises unless it has started, or will be tried again because what kept it from starting can pass."""
        try:
            job.start()
        except Exception as error:  # the functions of the user, Spark and the source may raise anything
            self._check_answers()
            failure = failure_of(error)
            if failure.cause is FailureKind.DETERMINISTIC:
                raise EngineError(f'job "{job.topology.name}": {failure.reason}') from error
            self._failed(job, failure)
        else:
            job.enter(JobPhase.RUNNING)

    def remove(self, name: str, keep: bool = False) -> None:
        """Finish the epoch in flight, stop, and forget the job, with all that it kept on disk unless `keep`."""
        self._check_answers()
        job = self._job(name)
        with job.guard, self._told():
            job.enter(JobPhase.PAUSED)
            job.stop()
            with self._lock:
                self._jobs.pop(name, None)
            if not keep:
                job.forget()

    def pause(self, name: str) -> None:
        """Finish the epoch in flight and stop; rows that arrive from now on wait."""
        self._check_answers()
        job = self._job(name)
        with job.guard, self._told():
            job.enter(JobPhase.PAUSED)
            job.stop()

    def resume(self, name: str) -> None:
        """Go on where it was paused, or try again where it failed."""
        self._check_answers()
        job = self._job(name)
        with job.guard:
            if job.phase in (JobPhase.RUNNING, JobPhase.STARTING):
                return
            job.retries.succeeded()
            self._start(job)

    def set_intent(self, name: str, intent: Intent) -> None:
        self._job(name).intent = intent

    def set_share(self, name: str, share: int) -> None:
        """From the next epoch on."""
        if not 1 <= share <= MOST_SHARE:
            raise InputError(f'job "{name}": share is {share}; it must be from 1 to {MOST_SHARE}')
        self._job(name).share = share

    def set_read_limit(self, name: str, rows: int | None) -> None:
        """From the next epoch on; None: as many as have arrived."""
        if rows is not None and rows < 1:
            raise InputError(f'job "{name}": its read limit is {rows}; it must be at least 1 row')
        job = self._job(name)
        with self._told():
            job.set_read_limit(rows)

    def vacate(self, host: str) -> None:
        """Lanes and keyed state move away from this host, by Spark's name for it, while jobs go on."""
        with self._lock:
            self._vacated |= {host}

    def occupy(self, host: str) -> None:
        """It may have lanes and state again."""
        with self._lock:
            self._vacated -= {host}

    def is_vacant(self, host: str) -> bool:
        """Whether no job needs the state on this host any more: it may be released."""
        hosted = [one for job in self._running().values() for one in job.hosted.values()]
        return all(one.hosting.is_free(host) for one in hosted)

    def states(self) -> Mapping[str, JobState]:
        return {name: job.state for name, job in self._all().items()}

    def lost(self) -> str:
        found = self._pulse.lost()
        if found or self._closing.is_set() or self._supervisor.is_alive():
            return found
        return "the thread that supervises jobs ended unexpectedly"

    def close(self) -> None:
        """Finish all epochs in flight, then stop everything, Spark included."""
        self._closing.set()
        self._supervisor.join()
        self._hosts.close()
        with ThreadPoolExecutor(STOPPED_AT_ONCE) as pool:
            list(pool.map(self._end, self._all().values()))
        self._shared.traces.close()
        self._askers.shutdown(wait=False, cancel_futures=True)
        lost = self._pulse.lost()
        self._pulse.close()
        if lost:
            pulse.abandon(self.spark)
        else:
            session.stop(self.spark, self._settings.exit_s)

    def _end(self, job: RunningJob) -> None:
        """A job that does not stop must not keep the others from it; Spark's own end ends it."""
        started = job.guard.acquire(timeout=self._settings.stop_s)
        try:
            if not self._pulse.lost():
                job.stop()
        except Exception as error:  # whatever the gateway raises; if it is gone, that is not the job's failure
            if not self._pulse.lost():
                job.enter(JobPhase.FAILED, reason_of(error))
        finally:
            if started:
                job.guard.release()
        if self._pulse.lost():
            job.abandon()

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
            session.rotate_output(self._home, self._settings)
            self._free_epochs()
            for job in self._all().values():
                if not self._pulse.lost():
                    self._look_at(job)

    def _free_epochs(self) -> None:
        """Epochs with tasks on a silent host are cancelled: each job plans its epoch again on the other hosts."""
        try:
            stuck = frozenset(self._hosts.stuck()) if not self._pulse.lost() else frozenset()
            for job in self._all().values() if stuck else ():
                job.attempts.cancel(stuck)
        except Exception as error:  # whatever the gateway raises: it is tried again in a moment
            logging.getLogger(__name__).warning("epochs on silent hosts could not be cancelled: %s", reason_of(error))

    def _look_at(self, job: RunningJob) -> None:
        """A job that is being started or stopped is left alone: its guard is held for as long as that takes."""
        if not job.guard.acquire(blocking=False):
            return
        try:
            self._look_after(job)
        except Exception as error:  # at the edge of a job: its trouble must not end the supervision of others
            job.notices.set(About.READING, f"it could not be looked at: {reason_of(error)}")
        finally:
            job.guard.release()

    def _look_after(self, job: RunningJob) -> None:
        if job.retries.is_restarting:
            return
        if job.phase is JobPhase.RETRYING and job.retries.awaits:
            if job.retries.take_due(time.monotonic()):
                threading.Thread(target=self._restart, args=(job,), name="headgate-restart", daemon=True).start()
        elif job.phase in (JobPhase.RUNNING, JobPhase.RETRYING):
            self._check(job)

    def _check(self, job: RunningJob) -> None:
        failure = job.failure()
        if failure is not None:
            if job.epochs:
                job.retries.succeeded()  # something went well since it was last started
            self._failed(job, failure)
            return
        if job.epochs:
            job.retries.succeeded()
        if job.phase is JobPhase.RETRYING and (job.epochs or time.monotonic() - job.started_s > CALM_S):
            job.enter(JobPhase.RUNNING)

    def _failed(self, job: RunningJob, failure: Failure) -> None:
        """Try again after a while, for longer each time; after too many failures of its own, leave it to a person."""
        again = job.retries.failed(failure, time.monotonic())
        job.enter(JobPhase.RETRYING if again else JobPhase.FAILED, job.retries.reason)

    def _restart(self, job: RunningJob) -> None:
        """On a thread of its own: a start may take as long as a source takes to answer."""
        with job.guard:
            try:
                # It may have been paused or removed in the meantime, and the engine closed.
                if job.phase is JobPhase.RETRYING and not self._closing.is_set():
                    job.start()
            except Exception as error:  # at the edge of a job, as above
                if not self._pulse.lost():
                    self._failed(job, failure_of(error))
            finally:
                job.retries.is_restarting = False


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
