"""Notices when a job changes its state: it starts, stops, fails or goes on. A job that does not run raises an alert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.ports import JobPhase, JobState
from headgate.server.board import BROKEN, StatusBoard
from headgate.server.status import Tally


class StateChanges:
    """Compares the states of all jobs with those that it saw last, which it replaces as a whole. Only the loop compares."""

    def __init__(self, board: StatusBoard, tally: Tally) -> None:
        self._board, self._tally = board, tally
        self._last: Mapping[str, JobState] = {}

    def epoch_of(self, job: str) -> int | None:
        """The epoch that the job was seen with the last time; None if not known."""
        state = self._last.get(job)
        return None if state is None else state.epoch

    def since_last(self) -> Iterator[tuple[str, str, bool]]:
        """Job, sentence, and whether the job does not run, for each change since the last call."""
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
    """What differs from one failure to the next; share and read limit are not part of it."""
    return None if state is None else (state.phase, state.reason, state.since_s)


def _change(before: JobState | None, now: JobState) -> str:
    """A change of state in words; empty if there is none worth telling."""
    if before is not None and (before.phase, before.reason) == (now.phase, now.reason):
        return ""
    if now.phase is JobPhase.STARTING and not now.reason:
        return ""  # how many jobs have started is told for all of them together
    if now.phase is not JobPhase.RUNNING:
        return state_sentence(now)
    if before is not None and before.phase is JobPhase.RUNNING:
        return state_sentence(now) if now.reason else ""
    return "runs" if before is None or before.phase is JobPhase.STARTING else "runs again"


def state_sentence(state: JobState) -> str:
    """A state in words."""
    return f"{state.phase.value}: {state.reason}" if state.reason else state.phase.value
