"""Reasons of failures: one sentence from the hundred lines of Spark and Python, and whether the failure can pass without a change.

Errors cross processes and the JVM as text, so their kind is recognised by the words of that text.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from headgate.errors import HeadgateError, NoRoomError

MOST = 400
"""Characters of a reason that are kept."""
MOST_TRACE = 8_000
"""Characters of a stack trace that are kept."""
_LANE = re.compile(r"LaneError: (.+)")
_RAISED = re.compile(r"^(?:: |Caused by: )?(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)
_NOISE = frozenset(
    ("SparkException", "Py4JJavaError", "StreamingQueryException", "PythonException", "SparkRuntimeException")
)
_ROW = ", for the row "
_ENGINE_FRAMES = re.compile(r"(?:^\s+at (?:org\.apache|java|jdk|scala|py4j)\S*.*\n?)+", re.MULTILINE)
_PIPE_BROKE = re.compile(r"\(no cause message\)|Connection reset|Broken pipe")
"""Messages of the JVM about its connection to a process that ended; errors inside such a process are reported as errors of the process."""
_SOURCE = re.compile(
    r"PYTHON_STREAMING_DATA_SOURCE|PYTHON_DATA_SOURCE_ERROR|python_streaming_source_runner|plan_data_source_read"
    r"|PythonStreamingSourceRunner|PythonMicroBatchStream"
)
SOURCE_ENDED = (
    "the process that reads its source ended unexpectedly; it may have been killed, or have run out of memory"
)


class FailureKind(Enum):
    """Whether a failure can pass without a change, which decides how often a job is restarted."""

    TRANSIENT = "transient"
    """A connection, a host or disk space that the job needs is not available. The job is retried without limit."""
    START = "start"
    """A process of the job did not start in time on a busy machine. The start is retried without limit; the job itself has not failed."""
    DETERMINISTIC = "deterministic"
    """The failure is likely to happen again. The job is retried as often as the settings say."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a job."""

    reason: str
    cause: FailureKind
    trace: str = ""
    """Stack trace of the failure, for the author of the job."""


_START = re.compile(
    r"Python worker failed to connect back|Timed out while waiting for the Python worker"
    r"|Cannot run program|Resource temporarily unavailable|Cannot allocate memory"
)
_TRANSIENT = re.compile(
    r"\b(?:ConnectionError|ConnectionRefusedError|ConnectionResetError|ConnectionAbortedError|BrokenPipeError|TimeoutError"
    r"|ConnectException|ConnectTimeoutException|SocketTimeoutException|NoRouteToHostException|UnknownHostException"
    r"|ClosedChannelException|BusyLoadingError|FetchFailedException|ExecutorLostFailure|StateBusyError|StateFullError|StateAwayError|OutageError)\b"
    r"|Connection (?:refused|reset|closed|aborted)|Broken pipe|No route to host|Network is unreachable"
    r"|Temporary failure in name resolution|[Tt]imed out|Timeout (?:reading|connecting)"
    r"|No space left on device|Disk quota exceeded|[Ll]ost executor|[Ee]xecutor lost|Executor heartbeat"
)
_TRANSIENT_LANE = re.compile(r"^[\w.]*TransientLaneError: ", re.MULTILINE)
"""Finds an error that can pass in the text of a lane's error: Spark passes on only the class and the text of that error, not its causes."""


def failure_of(error: BaseException) -> Failure:
    """An error as a failure of the job that it ended."""
    return Failure(reason_of(error), cause_of(error), trace_of(error))


def cause_of(error: BaseException) -> FailureKind:
    """Whether the failure can pass without a change.

    >>> cause_of(ConnectionRefusedError(111, "Connection refused")).value
    'transient'
    >>> cause_of(ValueError("no such tier")).value
    'deterministic'
    """
    if isinstance(error, NoRoomError):
        return FailureKind.START
    text = "\n".join(_texts(error))
    transient = _TRANSIENT_LANE.search(text) is not None
    lane = _LANE.search(text)
    if lane is not None:
        text = lane[1].partition(_ROW)[0]  # the row that a lane could not process may contain any word
    if _START.search(text):
        return FailureKind.START
    return FailureKind.TRANSIENT if transient or _TRANSIENT.search(text) else FailureKind.DETERMINISTIC


def _texts(error: BaseException) -> Iterator[str]:
    """The texts of an error and of the errors that caused it."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield f"{type(at).__name__}: {at}"
        yield getattr(at, "_stackTrace", "")  # PySpark hides the stack trace and the causes of the JVM
        at = at.__cause__ or getattr(at, "_cause", None)


def trace_of(error: BaseException) -> str:
    """Return the stack trace without frames inside Spark and Java; a long one is cut in the middle."""
    text = "".join(traceback.format_exception(error))
    return _clipped(_ENGINE_FRAMES.sub("\t… frames of Spark and Java …\n", text).strip())


def _clipped(text: str) -> str:
    if len(text) <= MOST_TRACE:
        return text
    half = MOST_TRACE // 2
    return f"{text[:half]}\n… {len(text) - MOST_TRACE:,} characters left out …\n{text[-half:]}"


def comes_from_source(error: BaseException) -> bool:
    """Whether a read of one of Headgate's sources failed: Spark reports this only when a sink is written, or not at all."""
    return any(_SOURCE.search(text) for text in _texts(error))


def reason_of(error: BaseException) -> str:
    """Return the reason of an error in one sentence for people.

    >>> reason_of(ValueError("no such tier"))
    'ValueError: no such tier'
    """
    text = str(error)
    if isinstance(error, HeadgateError):
        return text
    lane = _LANE.search(text)
    if lane is not None:
        return _short(lane[1])
    raised = [_sentence(kind, what) for kind, what in _RAISED.findall(text) if kind not in _NOISE]
    if raised:
        return _short(raised[-1])
    if _PIPE_BROKE.search(text) and comes_from_source(error):
        return SOURCE_ENDED
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _short(f"{type(error).__name__}: {first}" if first else type(error).__name__)


_OWN = frozenset(kind.__name__ for kind in HeadgateError.__subclasses__())
"""Names of Headgate's errors, which are whole sentences already."""


def _sentence(kind: str, what: str) -> str:
    return what if kind in _OWN else f"{kind}: {what}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST else f"{text[:MOST]}…"
