"""The job and the epoch that a thread works for, so that lines of its log can name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogContext:
    """What a thread works for."""

    job: str = ""
    """Empty if the thread works for no single job."""
    epoch: int | None = None
    """None if the thread works for no single epoch."""


NOTHING = LogContext()
_CONTEXT: ContextVar[LogContext] = ContextVar("log_context", default=NOTHING)


def log_context() -> LogContext:
    """What this thread works for."""
    return _CONTEXT.get()


def work_for(job: str, epoch: int) -> None:
    """From now on, this thread works for one epoch of a job."""
    _CONTEXT.set(LogContext(job, epoch))


@contextmanager
def working_for(job: str) -> Iterator[None]:
    """Inside the block, this thread works for a job."""
    before = _CONTEXT.set(LogContext(job))
    try:
        yield
    finally:
        _CONTEXT.reset(before)
