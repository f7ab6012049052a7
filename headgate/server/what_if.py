"""`POST /api/v1/what-if`: predictions about the running jobs, made in a child process so that they never hold up the service.

The child does what `headgate what-if` does: it reads the journal, calibrates the simulator and runs it. It has a low priority and a
time limit, and there is one child at a time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from headgate.errors import BusyError, EngineError, HeadgateError, InputError

PRIORITY = 10
"""Added to the niceness of the child."""
REFUSED = 3
"""Exit code of a child whose question cannot be answered; its output is the sentence that says why."""
MOST_TIMES_LOAD = 1000.0


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """The changes to simulate, and how to simulate them."""

    loads: Mapping[str, float] = field(default_factory=dict)
    """Multiple of the input by job, or for `all` jobs."""
    intents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By job, the fields of its intent that change: `{"fraud": {"latency": "1s", "worth": 50}}`."""
    slots: int | None = None
    """Slots of all hosts together."""
    hosts: int | None = None
    until_met: str | None = None
    """`hosts` or `slots`: search for the least number that meets all intents."""
    hold: bool = False
    """Whether lanes and pace stay as they are; otherwise the scheduler changes them as it would."""
    after_s: float = 300.0
    """Simulated time before the verdict."""


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """One job, measured or predicted."""

    intent: str
    worth: float
    utility: float | None
    latency_s: float | None
    juice: float | None
    met: bool | None
    lanes: int
    pace_s: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """All jobs, measured or predicted."""

    jobs: dict[str, JobPrediction]
    hosts: int
    slots: int
    satisfaction: float
    """Utility of all jobs as a share of what they are worth."""
    all_met: bool
    course: list[float | None]
    """Satisfaction after each simulated round; empty for what was measured."""


@dataclass(frozen=True, slots=True)
class TriedSize:
    """A size of the cluster that the search has tried."""

    size: int
    satisfaction: float
    met: bool


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The jobs as measured now, and as predicted with the changes."""

    now: Prediction
    then: Prediction
    modelled_now: float
    """Satisfaction that the model predicts without any change, to compare the model with the measured satisfaction."""
    tried: list[TriedSize]
    """Sizes of the cluster in order; empty without a search."""
    enough: int | None
    """The least size that meets all intents; null without a search, or if none does."""
    notes: list[str]

    def only(self, jobs: Collection[str]) -> WhatIfAnswer:
        """Return the answer without the figures of other jobs."""
        return replace(self, now=_only(self.now, jobs), then=_only(self.then, jobs))


def _only(found: Prediction, jobs: Collection[str]) -> Prediction:
    return replace(found, jobs={name: one for name, one in found.jobs.items() if name in jobs})


class WhatIf:
    """Asks one child process at a time. Owner of the child: its lock."""

    def __init__(self, journal: Path | None, limit_s: float) -> None:
        self._journal, self._limit_s = journal, limit_s
        self._lock = threading.Lock()

    def answer(self, table: Any) -> WhatIfAnswer:
        """Answer the question of a request; refuses a second question while one is being answered."""
        question = _question(table)
        if self._journal is None:
            raise InputError("predictions need a journal on disk; run the service with a home directory")
        if not self._lock.acquire(blocking=False):
            raise BusyError("the service is working on another prediction; ask again when it is done")
        try:
            return self._ask_child(question, self._journal)
        finally:
            self._lock.release()

    def _ask_child(self, question: WhatIfQuestion, journal: Path) -> WhatIfAnswer:
        command = [sys.executable, "-m", "headgate.server.what_if", str(journal)]
        text = msgspec.json.encode(question)
        try:
            done = subprocess.run(command, input=text, capture_output=True, timeout=self._limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"the prediction took longer than {self._limit_s:g} s; ask for less simulated time, or raise what_if_s"
            ) from None
        if done.returncode == REFUSED:
            raise InputError(done.stdout.decode().strip())
        if done.returncode:
            raise EngineError(f"the prediction failed: {_last_line(done.stderr)}")
        return msgspec.json.decode(done.stdout, type=WhatIfAnswer)


def _question(table: Any) -> WhatIfQuestion:
    try:
        question = msgspec.convert(table, WhatIfQuestion)
    except msgspec.ValidationError as error:
        raise InputError(f"the question cannot be read: {error}") from None
    if not (question.loads or question.intents or question.slots or question.hosts or question.until_met):
        raise InputError("the question changes nothing; give loads, intents, slots, hosts or until_met")
    for name, times in question.loads.items():
        if not 0 <= times <= MOST_TIMES_LOAD:
            raise InputError(f'the load of "{name}" is {times:g}; it must be between 0 and {MOST_TIMES_LOAD:g} times')
    return question


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a word"


# -- in the child ------------------------------------------------------------------------------------------------------


def main(journal: str) -> int:
    """Read a question from standard input and write its answer to standard output."""
    from headgate.journal import SqliteJournal
    from headgate.sim.whatif import Question, Unit, WhatIfChanges, answer_question, summary

    with contextlib.suppress(OSError):
        os.nice(PRIORITY)
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=WhatIfQuestion)
    changes = WhatIfChanges(asked.loads, asked.intents, asked.slots, asked.hosts)
    try:
        unit = Unit(asked.until_met) if asked.until_met is not None else None
        with SqliteJournal(journal, read_only=True) as opened:
            found = answer_question(opened, Question(changes, asked.hold, asked.after_s, unit))
    except (HeadgateError, ValueError) as error:
        print(error)
        return REFUSED
    sys.stdout.buffer.write(msgspec.json.encode(summary(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
