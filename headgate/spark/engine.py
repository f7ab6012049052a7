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
from headgate.core.model import (
    MOST_SHARE,
    Action,
    EpochTiming,
    HostReading,
    Job,
    JobAllocation,
    JobReading,
    Outcome,
    Snapshot,
)
from headgate.core.quantities import did_you_mean
from headgate.errors import EngineError, HeadgateError, InputError
from headgate.log_context import working_for
from headgate.ports import JobPhase, JobState
from headgate.spark import pulse, session
from headgate.spark.epochs.phases import Phases
from headgate.spark.epochs.places import AvailableHosts, Places
from headgate.spark.hosts.cluster_checks import ClusterChecks, stores_of
from headgate.spark.hosts.readings import Hosts
from headgate.spark.hosts.tasks import TaskWatch
from headgate.spark.jobs.admission import Admission
from headgate.spark.jobs.context import JobContext, Shared
from headgate.spark.jobs.job import RunningJob
from headgate.spark.jobs.standing import About
from headgate.spark.measuring import inflow, tracing
from headgate.spark.measuring.busy import BusyTurns
from headgate.spark.measuring.counters import Slices
from headgate.spark.measuring.inflow import ASKED_AT_ONCE
from headgate.spark.measuring.metering import Gateway, TaskRecords
from headgate.spark.measuring.tracing import NO_TRACES, Traces
from headgate.spark.pulse import Pulse
from headgate.spark.reasons import Failure, FailureKind, failure_of, reason_of
from headgate.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPERVISE_S = 0.5
"""Interval at which the engine checks whether a query has ended."""
CALM_S = 10.0
"""Time without a failure, in seconds, after which a restarted job counts as running; a finished epoch has the same effect."""
AWAITING_START = (JobPhase.STARTING, JobPhase.RETRYING)
"""Phases of a job that waits for its first start or for a restart."""
STOPPED_AT_ONCE = 8
"""Jobs that the engine stops in parallel when it closes."""


def open_engine(
    home: Path, settings: SparkSettings, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkEngine:
    """Start an engine on a new Spark session: embedded, or on the cluster `master`."""
    traces = tracing.open_traces(settings)  # before Spark starts, so that a missing package is told at once
    spark = session.start(home, settings, master, extra)
    return SparkEngine(spark, home, settings, embedded=master is None, traces=traces)


class SparkEngine:
    """The engine port on Spark: runs jobs, reads their counters and applies actions. A failure of one job never affects another job."""

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
        """Owner of `_jobs` and `_vacated`; never held during a call into Spark or a wait for a job's guard."""
        self._numbers = itertools.count()
        self._askers = ThreadPoolExecutor(ASKED_AT_ONCE, "headgate-ask")
        self._pulse = Pulse(settings.answer_s)
        admission, phases = Admission(settings), Phases(settings.phase_slack)
        one_machine = embedded or session.is_on_this_machine(spark)
        service = settings.state.checkpoint or str(self._home)
        stores = stores_of(settings.state.state_dir, service, one_machine)
        self._shared = Shared(spark, Gateway(spark), settings, self._askers, admission, phases, traces, stores)
        self._records = TaskRecords(spark)
        self._hosts = Hosts(self._records, TaskWatch(spark), embedded, settings.suspect_heartbeats)
        self._places = None if embedded else Places(spark)
        self._cluster_checks = None if self._places is None else ClusterChecks(spark, self._places, stores, self._names)
        self._busy_turns = BusyTurns(settings.busy_read_s)
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="headgate-supervisor", daemon=True)
        self._supervisor.start()

    # -- the port

    def jobs(self) -> Mapping[str, Job]:
        return {name: job.job for name, job in self._running().items()}

    def observe(self) -> Snapshot:
        """Return a snapshot of the running jobs and of the hosts; a job that is not running never blocks decisions about other jobs."""
        self._check_answers()
        running = self._running()
        asked = [one for job in running.values() for one in job.inflows.all()]
        inflow.ask_all(asked, self._askers, self._settings.ask_s)
        read = {name: self._reading(running[name]) for name in self._busy_turns.begin(running)}
        readings = {name: read[name] for name in running}
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
        with self._errors_as_sentences():
            hosts = set(self._hosts.cores())
        for job, allocation in wanted:
            refusal = _refusal(job.allocation, allocation, job.slices(), hosts)
            if refusal:
                return Outcome(False, f'job "{job.name}": {refusal}')
        with self._errors_as_sentences():
            for job, allocation in wanted:
                job.set_allocation(allocation)
        return Outcome(True)

    def epochs(self, job: str) -> tuple[EpochTiming, ...]:
        self._check_answers()
        found = self.job(job)
        with self._errors_as_sentences():
            return found.timings()

    def _running(self) -> dict[str, RunningJob]:
        return {name: job for name, job in self._all().items() if job.phase is JobPhase.RUNNING}

    def _all(self) -> dict[str, RunningJob]:
        with self._lock:
            return dict(self._jobs)

    def _reading(self, job: RunningJob) -> JobReading | None:
        try:
            found = job.reading(self._records, self._busy_turns.take(job.name))
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
    def _errors_as_sentences(self) -> Iterator[None]:
        """Turn an error of Spark or a disk into one sentence, and report a lost engine."""
        try:
            yield
        except HeadgateError:
            self._check_answers()
            raise
        except Exception as error:  # the gateway and the disk raise errors of many kinds
            self._check_answers()
            raise EngineError(reason_of(error)) from error

    # -- jobs start and end

    def submit(self, topology: Topology, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        """Start a job where its checkpoint ends, if it has one, with `allocation` or else the allocation of its topology.

        A job that cannot start because of an outage is accepted, and retried until the outage is over.
        """
        self._check_answers()
        job = self._reserve(topology, allocation)
        if paused:
            job.enter(JobPhase.PAUSED)
            return
        known = job.context.place.exists()
        try:
            self._start(job)
        except EngineError:
            with self._lock:
                self._jobs.pop(topology.name, None)
            if not known:
                job.forget()
            raise

    def _reserve(self, topology: Topology, allocation: JobAllocation | None) -> RunningJob:
        name = topology.name
        if topology.share > MOST_SHARE:
            raise InputError(f'job "{name}": share is {topology.share}; it is at most {MOST_SHARE}')
        first = topology.allocation(self._settings.first_pace_s)
        number = next(self._numbers)
        place = self.place_of(name)
        cluster = self._cluster(number, topology, place)
        context = JobContext(self._shared, topology, topology.graph(), place, number, cluster)
        job = RunningJob(context, allocation or first)
        with self._lock:
            if name in self._jobs:
                raise InputError(f'there is a job "{name}" already; remove it first, or give this one another name')
            self._jobs[name] = job
            return job

    def _cluster(self, first: int, topology: Topology, place: Path) -> Callable[[], AvailableHosts]:
        """Return a function that lists the hosts that have passed the preflight for this job."""
        checks, hosts = self._cluster_checks, self._hosts
        if checks is None:
            return lambda: AvailableHosts(hosts.cores(), None, first, self._vacated, hosts.started_s)
        needs = checks.needs_of(topology, str(place), self._settings.state)

        def available() -> AvailableHosts:
            passed = checks.preflight.passed(hosts.cores(), needs)
            return AvailableHosts(
                passed.cores, self._places, first, self._vacated, hosts.started_s, problems=passed.problems
            )

        return available

    def _names(self) -> frozenset[str]:
        """Names of the jobs that have not ended: jobs of the engine, and jobs on disk that the engine has not been given yet."""
        return frozenset((*self._all(), *(path.name for path in (self._home / "jobs").glob("*"))))

    def _start(self, job: RunningJob) -> None:
        """Start a job; schedule a retry if the failure can pass without a change, and raise otherwise."""
        try:
            self._start_unless_changed(job)
        except Exception as error:  # the functions of the user, Spark and the source may raise anything
            self._check_answers()
            failure = failure_of(error)
            if failure.cause is FailureKind.DETERMINISTIC:
                raise EngineError(f'job "{job.name}": {failure.reason}') from error
            with job.guard:
                self._note_failure(job, failure)

    def _start_unless_changed(self, job: RunningJob) -> None:
        """Start a job, unless it was paused or removed, or the engine closed, in the meantime."""
        with job.guard, working_for(job.name):
            if job.phase not in AWAITING_START or self._closing.is_set():
                return
            job.start()
            if job.phase is JobPhase.STARTING:
                job.enter(JobPhase.RUNNING)

    def remove(self, name: str, keep: bool = False) -> None:
        """Finish the epoch in flight, stop, and forget the job, with all that it kept on disk unless `keep`."""
        self._check_answers()
        job = self.job(name)
        with job.guard, self._errors_as_sentences():
            job.enter(JobPhase.PAUSED)
            job.stop()
            with self._lock:
                self._jobs.pop(name, None)
            job.forget(keep)
            if not keep and self._cluster_checks is not None:
                self._cluster_checks.remove_leftovers(tuple(self._hosts.cores()))

    def pause(self, name: str) -> None:
        """Finish the epoch in flight and stop; rows that arrive from now on wait."""
        self._check_answers()
        job = self.job(name)
        with job.guard, self._errors_as_sentences():
            job.enter(JobPhase.PAUSED)
            job.stop()

    def resume(self, name: str) -> None:
        """Restart a paused job where it was paused, or try a failed job again."""
        self._check_answers()
        job = self.job(name)
        with job.guard:
            if job.phase in (JobPhase.RUNNING, JobPhase.STARTING):
                return
            before = job.standing
            job.retries.clear()
            job.enter(JobPhase.STARTING)
        try:
            self._start(job)
        except EngineError:
            with job.guard:
                job.standing = before
            raise

    def set_intent(self, name: str, intent: Intent) -> None:
        self.job(name).intent = intent

    def set_share(self, name: str, share: int) -> None:
        """Set the job's share from the next epoch on."""
        if not 1 <= share <= MOST_SHARE:
            raise InputError(f'job "{name}": share is {share}; it must be from 1 to {MOST_SHARE}')
        self.job(name).grants.set_share(share)

    def set_read_limit(self, name: str, rows: int | None) -> None:
        """Set the most rows that an epoch reads, from the next epoch on; None: all rows that have arrived."""
        if rows is not None and rows < 1:
            raise InputError(f'job "{name}": its read limit is {rows}; it must be at least 1 row')
        job = self.job(name)
        with self._errors_as_sentences():
            job.grants.set_read_limit(rows)

    def vacate(self, host: str) -> None:
        """Move lanes and keyed state away from a host while jobs go on; `host` is Spark's name for the host."""
        with self._lock:
            self._vacated |= {host}

    def occupy(self, host: str) -> None:
        """Allow lanes and keyed state on the host again."""
        with self._lock:
            self._vacated -= {host}

    def is_vacant(self, host: str) -> bool:
        """Whether no job needs the state on this host any more, so that the host may be released."""
        hosted = [one for job in self._running().values() for one in job.hosted.values()]
        return all(one.hosting.is_free(host) for one in hosted)

    def states(self) -> Mapping[str, JobState]:
        return {name: job.state for name, job in self._all().items()}

    def hot_keys(self, name: str) -> Mapping[str, Mapping[str, float]]:
        return self.job(name).hot_keys()

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
        if self._cluster_checks is not None:
            self._cluster_checks.close()
        self._askers.shutdown(wait=False, cancel_futures=True)
        lost = self._pulse.lost()
        self._pulse.close()
        if lost:
            pulse.abandon(self.spark)
        else:
            session.stop(self.spark, self._settings.exit_s)

    def _end(self, job: RunningJob) -> None:
        """Stop a job for the end of the engine; a job that does not stop never blocks the others, and ends with Spark."""
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
        """The directory of a job's checkpoint, state and progress."""
        return self._home / "jobs" / name

    def job(self, name: str) -> RunningJob:
        """A job that was submitted and not removed."""
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
                    self._supervise_job(job)

    def _free_epochs(self) -> None:
        """Cancel epochs with tasks on a silent host: each job plans its epoch again on the other hosts."""
        try:
            stuck = frozenset(self._hosts.stuck()) if not self._pulse.lost() else frozenset()
            for job in self._all().values() if stuck else ():
                job.cancel_epoch(stuck)
        except Exception as error:  # whatever the gateway raises: it is tried again in a moment
            logging.getLogger(__name__).warning("epochs on silent hosts could not be cancelled: %s", reason_of(error))

    def _supervise_job(self, job: RunningJob) -> None:
        """Restart or check a job; skip a job that is being started or stopped, because its guard is held during the start or stop."""
        if not job.guard.acquire(blocking=False):
            return
        try:
            self._restart_or_check(job)
        except Exception as error:  # at the edge of a job: its trouble must not end the supervision of others
            job.notices.set(About.READING, f"it could not be looked at: {reason_of(error)}")
        finally:
            job.guard.release()

    def _restart_or_check(self, job: RunningJob) -> None:
        if job.retries.is_restarting:
            return
        if job.phase in AWAITING_START and job.retries.awaits:
            if job.retries.take_due(time.monotonic()):
                threading.Thread(target=self._restart, args=(job,), name="headgate-restart", daemon=True).start()
        elif job.phase in (JobPhase.RUNNING, JobPhase.RETRYING):
            self._check(job)

    def _check(self, job: RunningJob) -> None:
        job.send_trace()
        failure = job.failure()
        if failure is not None:
            if job.epochs:
                job.retries.clear()  # something went well since it was last started
            self._note_failure(job, failure)
            return
        if job.epochs:
            job.retries.clear()
        if job.phase is JobPhase.RETRYING and (job.epochs or time.monotonic() - job.started_s > CALM_S):
            job.enter(JobPhase.RUNNING)

    def _note_failure(self, job: RunningJob, failure: Failure) -> None:
        """Schedule a restart after a growing wait; after too many deterministic failures, the job is failed."""
        phase = job.retries.failed(failure, time.monotonic())
        job.enter(phase, job.retries.reason, job.retries.trace)

    def _restart(self, job: RunningJob) -> None:
        """Start a job on a separate thread: a start may take as long as a source takes to answer."""
        try:
            self._start_unless_changed(job)
        except Exception as error:  # at the edge of a job, as above
            with job.guard:
                if not self._pulse.lost() and job.phase in AWAITING_START:
                    self._note_failure(job, failure_of(error))
        finally:
            job.retries.is_restarting = False


def _refusal(has: JobAllocation, wanted: JobAllocation, slices: Mapping[str, Slices], hosts: set[str]) -> str:
    """Say in a sentence why Spark cannot apply the allocation; empty if it can. The health pipeline then tries something else."""
    if wanted.share is not None and not 1 <= wanted.share <= MOST_SHARE:
        return f"its share would be {wanted.share}; it must be from 1 to {MOST_SHARE}"
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
