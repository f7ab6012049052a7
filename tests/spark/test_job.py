"""What a job has, its row limits and its pace, without a query: no Spark runs here."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.config import SparkSettings
from headgate.core.model import JobAllocation
from headgate.errors import EngineError
from headgate.ports import JobPhase
from headgate.spark.engine import SparkEngine
from headgate.spark.epochs.grants import Grant
from headgate.spark.epochs.pace import Moment, Pace
from headgate.spark.epochs.phases import Phases
from headgate.spark.jobs.admission import Admission
from headgate.spark.jobs.context import JobContext, Shared
from headgate.spark.jobs.job import RunningJob
from headgate.spark.jobs.standing import About
from headgate.spark.reasons import Failure, FailureKind
from headgate.spark.sources import levers

from .builders import copied

SETTINGS = SparkSettings()
PATIENCE_S = 10.0


@pytest.fixture
def job(tmp_path: Path) -> RunningJob:
    shared = Shared(cast(Any, None), cast(Any, None), SETTINGS, ThreadPoolExecutor(1), Admission(SETTINGS), Phases(0.0))
    return job_of(shared, "job", tmp_path, 0)


def job_of(shared: Shared, name: str, directory: Path, number: int) -> RunningJob:
    topology = copied(name, directory / "out", 10)
    context = JobContext(shared, topology, topology.graph(), directory / name, number)
    return RunningJob(context, JobAllocation({"in": 1}, 0.5))


def test_pace_is_kept_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    started, real = Moment.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    Pace().wait(started, lambda: 0.5)
    assert 0.45 < time.monotonic() - started.at_s < 5


def test_version_and_allocation_always_belong_together_and_no_change_is_lost(job: RunningJob) -> None:
    first = job.grants.current.version
    seen: dict[int, set[int]] = {}
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            given = job.grants.current
            seen.setdefault(given.version, set()).add(given.allocation.lanes["in"])

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=set_lanes, args=(job, range(start, 200, 2))) for start in (2, 3)]
    limiter = threading.Thread(target=set_limits, args=(job, range(1, 51)))
    for thread in (*writers, limiter):
        thread.start()
    for thread in (*writers, limiter):
        thread.join()
    done.set()
    reader.join()
    assert all(len(lanes) == 1 for lanes in seen.values()), seen
    assert job.grants.current.version == first + 198
    assert job.grants.current.read_limit == 50
    written = levers.read(job.context.place_of("in"))
    assert (written.lanes, written.read_limit) == (job.allocation.lanes["in"], 50)


def set_limits(job: RunningJob, limits: range) -> None:
    for rows in limits:
        job.grants.set_read_limit(rows)


def set_lanes(job: RunningJob, counts: range) -> None:
    for lanes in counts:
        job.set_allocation(JobAllocation({"in": lanes}, 0.5))


def test_allocation_limits_rows_until_a_person_does() -> None:
    given = Grant(1, JobAllocation({"in": 2}, 0.0, read_limit=7), 100)
    assert given.most_rows == 7
    assert replace(given, allocation=replace(given.allocation, read_limit=None)).most_rows == 100


def test_reason_of_a_running_job_lasts_as_long_as_what_is_wrong(job: RunningJob) -> None:
    job.enter(JobPhase.RETRYING, "Redis refused")
    assert job.state.reason == "Redis refused"
    job.enter(JobPhase.RUNNING)
    assert job.state.reason == ""
    job.notices.set(About.READING, "it could not be read")
    assert job.state.reason == "it could not be read"
    job.notices.set(About.READING, "")
    assert job.state.reason == ""


def test_rows_of_an_epoch_follow_the_time_that_the_last_one_took(job: RunningJob) -> None:
    job.grants.adjust_rows({"in": 1000}, {"in": 1000.0}, took_s=10.0)
    assert levers.read(job.context.place_of("in")).read_limit == 1000
    job.grants.adjust_rows({"in": 1000}, {"in": 1000.0}, took_s=10.0)
    assert levers.read(job.context.place_of("in")).read_limit == 500


@pytest.mark.parametrize(("read", "looked_at"), [(SparkEngine.states, "state"), (SparkEngine.jobs, "phase")])
def test_jobs_come_and_go_while_all_of_them_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: RunningJob, read: Callable[[SparkEngine], Any], looked_at: str
) -> None:
    """As when `GET /status` is answered: the reader neither holds a change back nor fails because of it."""
    engine = object.__new__(SparkEngine)
    engine._home, engine._settings, engine._shared = tmp_path, SETTINGS, job.context.shared
    engine._jobs, engine._lock, engine._numbers = {}, threading.RLock(), itertools.count()
    engine._pulse = cast(Any, SimpleNamespace(lost=lambda: ""))
    engine._hosts, engine._cluster_checks = cast(Any, None), None
    engine._closing, engine._supervisor = threading.Event(), threading.current_thread()
    names = iter(f"job-{number}" for number in range(100))

    def submit() -> str:
        name = next(names)
        engine.submit(copied(name, tmp_path / "out", 10), paused=True)
        return name

    def change() -> None:
        submit()
        engine.remove(submit())

    first = [submit() for _ in range(3)]
    look = getattr(RunningJob, looked_at).fget
    changed: list[bool] = []

    def while_others_change(one: RunningJob) -> Any:
        """Another thread changes the jobs whenever the reader looks at one of them."""
        if one.name in first and threading.current_thread() is threading.main_thread():
            changer = threading.Thread(target=change, daemon=True)
            changer.start()
            changer.join(PATIENCE_S)
            changed.append(not changer.is_alive())
        return look(one)

    monkeypatch.setattr(RunningJob, looked_at, property(while_others_change))
    read(engine)
    assert changed == [True, True, True]
    assert len(engine._jobs) == 6


def test_engine_whose_supervisor_ended_says_that_it_is_lost() -> None:
    engine = object.__new__(SparkEngine)
    engine._pulse = cast(Any, SimpleNamespace(lost=lambda: ""))
    engine._hosts, engine._cluster_checks = cast(Any, None), None
    engine._closing, engine._supervisor = threading.Event(), threading.Thread(target=lambda: None)
    engine._supervisor.start()
    engine._supervisor.join()
    assert engine.lost() == "the thread that supervises jobs ended unexpectedly"
    with pytest.raises(EngineError, match="supervises"):
        engine.observe()


def test_supervision_goes_on_when_one_job_cannot_be_looked_at(
    job: RunningJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Failure | None:
        raise RuntimeError("no answer")

    other = job_of(job.context.shared, "other", tmp_path, 1)
    for one in (job, other):
        one.enter(JobPhase.RUNNING)
    monkeypatch.setattr(job, "failure", broken)
    monkeypatch.setattr(other, "failure", lambda: Failure("no such tier", FailureKind.DETERMINISTIC))
    engine = object.__new__(SparkEngine)
    engine._pulse = cast(Any, SimpleNamespace(lost=lambda: ""))
    engine._hosts, engine._cluster_checks = cast(Any, None), None
    for one in (job, other):
        engine._supervise_job(one)
    assert job.state.reason == "it could not be looked at: RuntimeError: no answer"
    assert (other.phase, other.state.reason) == (JobPhase.RETRYING, "no such tier")


def test_supervision_skips_a_job_that_is_being_started(job: RunningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, looked = object.__new__(SparkEngine), list[RunningJob]()
    monkeypatch.setattr(engine, "_restart_or_check", looked.append, raising=False)
    with job.guard:
        looker = threading.Thread(target=engine._supervise_job, args=(job,))
        looker.start()
        looker.join(5)
        assert not looker.is_alive() and looked == []
    engine._supervise_job(job)
    assert looked == [job]
