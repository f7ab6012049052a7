"""Threads of the engine that look at the machine and at the JVM go on after an error; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from headgate.spark import pulse
from headgate.spark.hosts import readings as hosts

PATIENCE_S = 30.0


def failing_once(then: threading.Semaphore, result: Any) -> Any:
    """Raises when it is first called; then returns the result, and says so."""
    calls = []

    def call(*_: object) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("odd")
        then.release()
        return result

    return call


def test_load_is_read_again_after_a_reading_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = threading.Semaphore(0)
    monkeypatch.setattr(hosts, "_runnable_now", failing_once(read, 3.0))
    runnable = hosts._Runnable()
    assert read.acquire(timeout=PATIENCE_S)
    runnable.close()
    assert runnable.mean() == 3.0
    assert caplog.messages == ["thread headgate-load ended (ValueError: odd); it is started again"]


class Process:
    """What is known of a JVM, without one."""

    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


def pulse_of(process: Process, monkeypatch: pytest.MonkeyPatch, answers: Callable[[pulse.Pulse], bool]) -> pulse.Pulse:
    parameters = SimpleNamespace(address="127.0.0.1", port=1, auth_token=None, ssl_context=None)
    monkeypatch.setattr(pulse, "ASK_S", 0.01)
    monkeypatch.setattr(pulse.Pulse, "_answers", answers)
    with monkeypatch.context() as patched:
        patched.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process, gateway_parameters=parameters))
        return pulse.Pulse(60.0)


def test_jvm_is_asked_again_after_a_question_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Semaphore(0)
    watched = pulse_of(Process(), monkeypatch, failing_once(asked, True))
    assert asked.acquire(timeout=PATIENCE_S)
    watched.close()
    assert watched.lost() == ""
    assert caplog.messages == ["thread headgate-pulse ended (ValueError: odd); it is started again"]


def test_jvm_that_ended_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    asked, process = threading.Semaphore(0), Process()

    def last_answer(_: pulse.Pulse) -> bool:
        process.returncode = 137
        asked.release()
        return True

    watched = pulse_of(process, monkeypatch, last_answer)
    assert asked.acquire(timeout=PATIENCE_S)
    watched._thread._thread.join(0.2)
    assert watched.lost() == "the Java process of Spark ended (exit code 137)"
    watched.close()
    assert not watched._thread.is_alive() and caplog.messages == []
