"""The log of `headgate run --log-format json`: each line is one JSON object; lines about a job name the job and its epoch."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from headgate.alerts import ALERT
from headgate.cli.live import ROUNDS_PER_LINE
from headgate.clock import now_s
from headgate.core.metrics import View
from headgate.core.model import Action
from headgate.log_context import log_context
from headgate.ports import JobState

INFO, WARNING = "info", "warning"


def print_line(line: str) -> None:
    """Write a line to standard output and flush it, so that log collectors see it at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class JsonLog:
    """A watcher that logs alerts, actions, changes of jobs, and a summary every few rounds. Lines of several threads never mix."""

    def __init__(self, write: Callable[[str], None] = print_line) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._rounds = 0

    def round(self, view: View, phase: str, action: Action | None, states: Mapping[str, JobState]) -> None:
        """Handle the end of a round of the control loop."""
        if action is not None:
            job = action.job or ""
            epoch = states[job].epoch if job in states else None
            self.line(view.at_s, INFO, action.sentence, job, epoch, action=action.kind.value)
        if self._rounds % ROUNDS_PER_LINE == 0:
            self.line(view.at_s, INFO, "round", **_figures(view, phase))
        self._rounds += 1

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        """Handle a message about a job and its epoch, or about the service if `job` is empty."""
        self.line(at_s, WARNING if text.startswith(ALERT) else INFO, text.removeprefix(ALERT), job, epoch)

    def complain(self, text: str) -> None:
        """Log a warning about the process itself; a log that cannot be written is ignored."""
        with suppress(OSError):
            self.line(now_s(), WARNING, text)

    def line(self, at_s: float, level: str, message: str, job: str = "", epoch: int | None = None, **more: Any) -> None:
        """Write one line; fields without a value, such as `job` or `epoch`, are left out."""
        about = {"job": job or None, "epoch": epoch}
        known = {name: value for name, value in {**about, **more}.items() if value is not None}
        time = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": time, "level": level, "message": message, **known})  # in ASCII, whatever the locale
        with self._lock:
            self._write(text)

    @contextmanager
    def taking_over(self) -> Iterator[None]:
        """Redirect Python's logging and warnings to this log while the block runs."""
        root, handler = logging.getLogger(), _Handler(self)
        before, root.handlers = root.handlers, [handler]
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.handlers = before


class _Handler(logging.Handler):
    """A logging handler that writes each record as a line, with the job and the epoch that the thread works for."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a line; an output that is full does not make the logging thread fail."""
        with suppress(OSError):
            text = record.getMessage() if record.exc_info is None else self.format(record)
            level, works_for = record.levelname.lower(), log_context()
            self._log.line(record.created, level, text, works_for.job, works_for.epoch, logger=record.name)


def _figures(view: View, phase: str) -> dict[str, Any]:
    jobs = view.jobs.values()
    return {
        "phase": phase,
        "jobs": len(view.jobs),
        "met": sum(job.met is True for job in jobs),
        "utility": sum(job.utility or 0.0 for job in jobs),
        "worth": sum(job.worth for job in jobs),
    }
