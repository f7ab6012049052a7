"""Jobs that wait for their start: in which order they start, what is shown of them, and what a person can do with them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headgate.config import Settings
from headgate.core.model import JobAllocation
from headgate.errors import InputError
from headgate.jobfile import JobRequest
from headgate.journal import MemoryJournal
from headgate.ports import JobPhase, JobState
from headgate.server import starting
from headgate.server.registry import Registry
from headgate.server.service import Loop, Service
from headgate.server.starting import TOLD_S, StartProgress, StartQueue
from headgate.spark.jobs.loading import load
from tests.server.conftest import Notes
from tests.server.fake import FakeEngine, job_file

WORTHS = {"a": 10, "b": 30, "c": 20}


class Started(FakeEngine):
    """Remembers in which order jobs start."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def submit(self, topology: Any, allocation: JobAllocation | None = None, paused: bool = False) -> None:
        self.order.append(topology.name)
        super().submit(topology, allocation, paused)


@pytest.fixture
def engine() -> Started:
    return Started()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def service(tmp_path: Path, engine: Started, notes: Notes) -> Service:
    """A service whose three jobs wait."""
    service = Service(engine, Registry(tmp_path / "jobs.json"), MemoryJournal(), Loop(Settings()), notes)
    file = str(job_file(tmp_path))
    requests = [JobRequest(file, name=name, intent={"latency": "2s", "worth": worth}) for name, worth in WORTHS.items()]
    service.prepare([(request, load(request)) for request in requests])
    return service


def phases(service: Service) -> dict[str, JobPhase]:
    return {name: state.phase for name, state in service.states().items()}


def test_most_valuable_jobs_start_first(service: Service, engine: Started) -> None:
    service.jobs.starts.run()
    assert engine.order == ["b", "c", "a"]
    assert set(phases(service).values()) == {JobPhase.RUNNING}
    assert service.board.unstarted.now() == {}


def test_jobs_start_beside_the_loop(service: Service, engine: Started) -> None:
    with service.jobs.starts.running(2):
        while len(engine.jobs()) < len(WORTHS):
            service.round()
    assert set(phases(service).values()) == {JobPhase.RUNNING}


def test_jobs_that_wait_are_shown_as_starting_and_counted(service: Service, notes: Notes) -> None:
    assert set(phases(service).values()) == {JobPhase.STARTING}
    status = service.status()
    assert status.headline.startswith("0 of 3 jobs started, 0 of 3 jobs meet their intents")
    assert status.problem == ""
    service.look()
    assert ("", "0 of 3 jobs started") in notes.told
    assert not any(job for job, _ in notes.told), "one sentence for all of them"
    service.jobs.starts.run()
    service.look()
    assert ("", "all 3 jobs started") in notes.told
    assert "started" not in service.status().headline


def test_service_that_is_killed_before_all_have_started_starts_the_rest_the_next_time(service: Service) -> None:
    assert service.registry.all().keys() == WORTHS.keys()


def test_job_can_be_paused_and_resumed_before_its_start(service: Service, engine: Started) -> None:
    service.jobs.pause("b")
    service.jobs.starts.run()
    assert phases(service)["b"] is JobPhase.PAUSED
    assert service.registry.all()["b"].paused
    service.jobs.resume("b")
    assert phases(service)["b"] is JobPhase.RUNNING
    assert engine.order == ["c", "a", "b"]


def test_job_can_be_removed_before_its_start(service: Service, engine: Started) -> None:
    service.jobs.remove("b")
    service.jobs.starts.run()
    assert engine.order == ["c", "a"]
    assert "b" not in service.states()


def test_job_that_waits_cannot_be_changed_yet(service: Service) -> None:
    with pytest.raises(InputError, match='job "a" has not started yet; try again when it runs'):
        service.jobs.change("a", {"share": 2})


def test_job_that_cannot_be_started_keeps_no_other_from_starting(service: Service, engine: Started) -> None:
    engine.refuses = "no room"
    service.jobs.starts.run()
    assert set(phases(service).values()) == {JobPhase.FAILED}
    engine.refuses = ""
    service.jobs.resume("c")
    assert phases(service)["c"] is JobPhase.RUNNING


def test_no_further_job_starts_once_the_service_ends(service: Service) -> None:
    with service.jobs.starts.running(0):
        pass
    service.jobs.starts.run()
    assert set(phases(service).values()) == {JobPhase.STARTING}


def test_progress_is_told_now_and_then_and_at_the_end() -> None:
    def states(started: int) -> dict[str, JobState]:
        phases = [JobPhase.RUNNING] * started + [JobPhase.STARTING] * (50 - started)
        return {f"job-{number}": JobState(phase) for number, phase in enumerate(phases)}

    progress = StartProgress()
    told = [
        progress.sentence(states(started), at_s) for started, at_s in ((0, 0.0), (5, 1.0), (23, TOLD_S), (50, 11.0))
    ]
    assert told == ["0 of 50 jobs started", "", "23 of 50 jobs started", "all 50 jobs started"]
    assert progress.sentence(states(50), 100.0) == ""


def test_start_of_one_job_is_told_by_itself() -> None:
    assert StartProgress().sentence({"a": JobState(JobPhase.STARTING)}, 0.0) == ""


def test_all_starts_together_have_a_limited_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "ENDS_S", 0.3)
    queue, end = StartQueue(), threading.Event()
    for _ in range(4):
        queue.add(1.0, lambda: (end.wait(), None)[1])
    with queue.running(at_once=4):
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 1.0
    end.set()
