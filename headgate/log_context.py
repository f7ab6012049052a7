"""Keeps the job and the epoch that a thread works for, so that log lines of the thread can name the job and the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogContext:
    """The job and the epoch that a thread works for."""

    job: str = ""
    """Name of the job; empty if the thread works for no single job."""
    epoch: int | None = None
    """Number of the epoch; None if the thread works for no single epoch."""


NOTHING = LogContext()
_CONTEXT: ContextVar[LogContext] = ContextVar("log_context", default=NOTHING)


def log_context() -> LogContext:
    """The job and the epoch that the current thread works for."""
    return _CONTEXT.get()


def work_for(job: str, epoch: int) -> None:
    """Set the job and the epoch that the current thread works for from now on."""
    _CONTEXT.set(LogContext(job, epoch))


@contextmanager
def working_for(job: str) -> Iterator[None]:
    """Set the job that the current thread works for inside the block."""
    before = _CONTEXT.set(LogContext(job))
    try:
        yield
    finally:
        _CONTEXT.reset(before)
