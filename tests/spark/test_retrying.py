"""Which failures pass by themselves, when a job is started again, and what is told of it. No Spark runs here."""

from __future__ import annotations

import random
import traceback

import pytest

from headgate.config import SparkSettings
from headgate.errors import EngineError, StateBusyError, StateError
from headgate.ports import JobPhase
from headgate.spark.jobs.retrying import Retries
from headgate.spark.keyed.lanes import lane_error
from headgate.spark.reasons import SOURCE_ENDED, Failure, FailureKind, cause_of, comes_from_source, reason_of
from headgate.state.store import on_disk

SETTINGS = SparkSettings(retries=2, back_off_s=1.0, back_off_limit_s=60.0, outage_retry_s=10.0)
OWN = Failure("ZeroDivisionError: division by zero", FailureKind.DETERMINISTIC)
OUTAGE = Failure("Redis refused", FailureKind.TRANSIENT)
NOT_STARTED = Failure("Python worker failed to connect back", FailureKind.START)


class FromSpark(Exception):
    """Errors of the JVM arrive as text, with the error that led to them and a stack trace beside it."""

    _cause: Exception | None = None
    _stackTrace = ""


def caused(by: BaseException) -> EngineError:
    error = EngineError('operator "in": Redis could not be used')
    error.__cause__ = by
    return error


def full() -> StateError:
    """As keyed state raises it."""
    try:
        with on_disk("/", least_free_mb=10**12):
            raise AssertionError("no disk has an exabyte of free space")
    except StateError as error:
        return error


def of_a_lane(by: StateError) -> FromSpark:
    """Spark passes on the error of a lane, and not the error that led to it."""
    told = "".join(traceback.format_exception(lane_error("count", by)))
    return FromSpark(f"PythonException: An exception was thrown from the Python worker:\n{told}")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionRefusedError(111, "Connection refused"), FailureKind.TRANSIENT),
        (TimeoutError(), FailureKind.TRANSIENT),
        (OSError(28, "No space left on device"), FailureKind.TRANSIENT),
        (caused(ConnectionResetError(104, "Connection reset by peer")), FailureKind.TRANSIENT),
        (EngineError("Redis at redis://x could not be used: Timeout reading from socket"), FailureKind.TRANSIENT),
        (FromSpark("Job aborted: ExecutorLostFailure (executor 2 exited)"), FailureKind.TRANSIENT),
        (FromSpark("Caused by: java.net.ConnectException: refused"), FailureKind.TRANSIENT),
        (
            FromSpark(
                "org.apache.spark.SparkException: Python worker failed to connect back.\n"
                "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"
            ),
            FailureKind.START,
        ),
        (FromSpark("LaneError: operator \"work\": ZeroDivisionError: division by zero"), FailureKind.DETERMINISTIC),
        (
            FromSpark("LaneError: operator \"work\": ValueError: bad, for the row {'text': 'Connection refused'}"),
            FailureKind.DETERMINISTIC,
        ),
        (EngineError('operator "large": its function returned int; it must return a DataFrame'), FailureKind.DETERMINISTIC),
        (LookupError("no such tier"), FailureKind.DETERMINISTIC),
        (full(), FailureKind.TRANSIENT),
        (of_a_lane(full()), FailureKind.TRANSIENT),
        (of_a_lane(StateBusyError("slice 3 is still held by another process after 10 s")), FailureKind.TRANSIENT),
        (of_a_lane(StateError("slice 3 has no copy")), FailureKind.DETERMINISTIC),
        (
            FromSpark("LaneError: operator \"work\": ValueError: bad, for the row {'text': 'StateFullError: full'}"),
            FailureKind.DETERMINISTIC,
        ),
    ],
)  # fmt: skip
def test_causes_that_can_pass_are_told_from_those_that_cannot(error: Exception, cause: FailureKind) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize("text", ["[STREAM_FAILED] Query terminated: (no cause message)", "Connection reset"])
def test_killed_source_is_told_in_a_sentence(text: str) -> None:
    error, ended = FromSpark(text), FromSpark("")
    error._cause, ended._stackTrace = (
        ended,
        "java.io.EOFException\n\tat ...PythonStreamingSourceRunner.latestOffset(...)",
    )
    assert comes_from_source(error)
    assert reason_of(error) == SOURCE_ENDED


def test_own_errors_are_told_without_their_class() -> None:
    text = "Traceback\nheadgate.errors.EngineError: Redis at redis://x could not be used: refused\n"
    assert reason_of(FromSpark(text)) == "Redis at redis://x could not be used: refused"


@pytest.fixture
def retries() -> Retries:
    return Retries(SETTINGS, random.Random(1))


def test_outages_are_retried_for_ever_and_never_wait_longer_than_their_limit(retries: Retries) -> None:
    for now_s in range(0, 10_000, 10):
        assert retries.failed(OUTAGE, now_s) is JobPhase.RETRYING
        assert retries.take_due(now_s + SETTINGS.outage_retry_s)
        assert not retries.take_due(now_s + SETTINGS.outage_retry_s)


def test_waits_become_longer_and_differ_between_jobs() -> None:
    def due(seed: int, failures: int) -> float:
        retries = Retries(SETTINGS, random.Random(seed))
        for _ in range(failures):
            retries.failed(OUTAGE, 0.0)
        return next(tenths / 10 for tenths in range(200) if retries.take_due(tenths / 10))

    assert 0.5 <= due(1, 1) <= 1.1 < 1.9 <= due(1, 3) <= 4.1
    assert len({due(seed, 4) for seed in range(10)}) > 3


def test_deterministic_failures_end_after_the_retries_whatever_comes_between(retries: Retries) -> None:
    answers = [retries.failed(failure, 0.0) for failure in (OWN, NOT_STARTED, OUTAGE, OWN, NOT_STARTED, OWN)]
    assert answers == [*[JobPhase.RETRYING] * 5, JobPhase.FAILED]
    assert not retries.awaits


def test_job_whose_start_a_busy_machine_did_not_finish_is_still_starting(retries: Retries) -> None:
    phases = [retries.failed(NOT_STARTED, 0.0) for _ in range(SETTINGS.start_failures + 1)]
    assert phases == [*[JobPhase.STARTING] * SETTINGS.start_failures, JobPhase.RETRYING]
    assert retries.awaits


def test_failed_start_after_another_failure_is_a_retry(retries: Retries) -> None:
    assert [retries.failed(failure, 0.0) for failure in (OUTAGE, NOT_STARTED)] == [JobPhase.RETRYING] * 2
    retries.clear()
    assert retries.failed(NOT_STARTED, 0.0) is JobPhase.STARTING


def test_first_deterministic_reason_stays_on_show(retries: Retries) -> None:
    for failure, shown in [
        (NOT_STARTED, NOT_STARTED),
        (OUTAGE, OUTAGE),
        (NOT_STARTED, OUTAGE),
        (OWN, OWN),
        (OUTAGE, OWN),
        (NOT_STARTED, OWN),
    ]:
        retries.failed(failure, 0.0)
        assert retries.reason == shown.reason


def test_success_forgets_all_failures(retries: Retries) -> None:
    for _ in range(2):
        retries.failed(OWN, 0.0)
    retries.clear()
    assert (retries.reason, retries.awaits) == ("", False)
    assert [retries.failed(OWN, 0.0) for _ in range(3)] == [JobPhase.RETRYING, JobPhase.RETRYING, JobPhase.FAILED]
