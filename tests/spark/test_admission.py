"""Jobs start as many at a time as the machine can take, the most valuable first. No Spark runs here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from headgate.config import SparkSettings
from headgate.errors import NoRoomError
from headgate.spark.jobs.admission import Admission, starts_at_once
from headgate.spark.reasons import FailureKind, cause_of

SETTINGS = SparkSettings(starts_at_once=2, slow_start_s=4.0, start_free_mb=100.0)
WAIT_S = 20.0


class Starter:
    """Starts jobs in threads; each start lasts until it is let go."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._threads: list[threading.Thread] = []
        self._gates: dict[str, threading.Event] = {}
        self.started: list[str] = []

    def begin(self, name: str, worth: float) -> None:
        self._gates[name] = threading.Event()
        self._threads.append(threading.Thread(target=self._start, args=(name, worth)))
        self._threads[-1].start()

    def _start(self, name: str, worth: float) -> None:
        with self._admission.turn(worth):
            self.started.append(name)
            assert self._gates[name].wait(WAIT_S)

    def finish(self, *names: str) -> None:
        for name in names:
            self._gates[name].set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_so_many_start_at_once_and_of_those_that_wait_the_most_valuable_is_next() -> None:
    admission = Admission(SETTINGS)
    starter = Starter(admission)
    starter.begin("first", 1.0)
    until(lambda: len(starter.started) == 1)
    starter.begin("second", 1.0)
    until(lambda: len(starter.started) == 2)
    for name, worth in (("cheap", 1.0), ("dear", 100.0), ("middling", 10.0)):
        starter.begin(name, worth)
    until(lambda: len(admission._waiting) == 3)
    starter.finish("first")
    until(lambda: len(starter.started) == 3)
    starter.finish("dear")
    until(lambda: len(starter.started) == 4)
    assert starter.started == ["first", "second", "dear", "middling"]
    starter.finish("second", "middling", "cheap")
    starter.join()


def test_jobs_start_one_at_a_time_after_a_slow_start() -> None:
    assert starts_at_once(SETTINGS, SETTINGS.slow_start_s + 1) == 1
    assert starts_at_once(SETTINGS, SETTINGS.slow_start_s - 1) == SETTINGS.starts_at_once


def test_job_that_finds_no_free_memory_does_not_start_and_has_not_failed() -> None:
    admission = Admission(SETTINGS, free_mb=lambda: 60.0)
    with (
        pytest.raises(NoRoomError, match=r"60 MB of memory are free, and a job starts only with 100 MB") as found,
        admission.turn(1.0),
    ):
        pytest.fail("it started")
    assert cause_of(found.value) is FailureKind.START
    with pytest.raises(NoRoomError), admission.turn(1.0):  # its place is free again
        pytest.fail("it started")
