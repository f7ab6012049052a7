"""Detects jobs that start, stop, fail or continue. A job that fails or is retried raises an alert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.ports import JobPhase, JobState
from headgate.server.board import BROKEN, StatusBoard
from headgate.server.status import Tally


class StateChanges:
    """Compares the states of all jobs with the states of the last comparison. Only the control loop compares.

    Other threads may call `epoch_of`, because `_last` is replaced as a whole.
    """

    def __init__(self, board: StatusBoard, tally: Tally) -> None:
        self._board, self._tally = board, tally
        self._last: Mapping[str, JobState] = {}

    def epoch_of(self, job: str) -> int | None:
        """Return the epoch of a job at the last comparison; None if not known."""
        state = self._last.get(job)
        return None if state is None else state.epoch

    def since_last(self) -> Iterator[tuple[str, str, bool]]:
        """Yield job, sentence, and whether the job is failed or retrying, for each change since the last call."""
        before, self._last = self._last, self._board.states()
        for name, state in self._last.items():
            broken = state.phase in BROKEN
            self._tally.failures[name] += broken and _standing(state) != _standing(before.get(name))
            text = _change(before.get(name), state)
            if text and broken:
                self._board.note_failure(name, state)
            if text:
                yield name, text, broken


def _standing(state: JobState | None) -> tuple[object, ...] | None:
    """Return the fields by which two failures differ; share and read limit are left out."""
    return None if state is None else (state.phase, state.reason, state.since_s)


def _change(before: JobState | None, now: JobState) -> str:
    """Return a change of state in words; empty if there is no change to report."""
    if before is not None and (before.phase, before.reason) == (now.phase, now.reason):
        return ""
    if now.phase is JobPhase.STARTING and not now.reason:
        return ""  # starts of jobs are reported as one number for all jobs
    if now.phase is not JobPhase.RUNNING:
        return state_sentence(now)
    if before is not None and before.phase is JobPhase.RUNNING:
        return state_sentence(now) if now.reason else ""
    return "runs" if before is None or before.phase is JobPhase.STARTING else "runs again"


def state_sentence(state: JobState) -> str:
    """Return a state in words."""
    return f"{state.phase.value}: {state.reason}" if state.reason else state.phase.value
