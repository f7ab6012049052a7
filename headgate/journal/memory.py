"""The journal in memory: for simulations and tests."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any, Self

from headgate.core.model import Action, Outcome, Snapshot
from headgate.journal.encoding import writable
from headgate.journal.summary import (
    NO_ROUND,
    WINDOW_SNAPSHOTS,
    Origins,
    RoundAction,
    fold,
    is_over,
    is_wanted,
    origins_with,
    restored_from,
    spread,
    unknown_action,
    with_jobs,
)
from headgate.ports import Effect, RecordedAction, Restored, RoundRecord


class MemoryJournal:
    """A journal in memory, for simulations and tests. The journal keeps the given records, not copies.

    >>> MemoryJournal().restore() is None
    True
    """

    def __init__(self, window: int = WINDOW_SNAPSHOTS) -> None:
        self._rounds: list[RoundRecord] = []
        self._snapshots: deque[Snapshot] = deque(maxlen=window)
        self._actions: dict[int, RoundAction] = {}
        self._origins: Origins = {}
        self._about: dict[str, str] = {}
        self._last: tuple[float, bytes] | None = None
        self._numbers, self._ids = count(1), count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(
        self, summary: RoundRecord, snapshot: Snapshot, state: bytes, action: Action | None = None
    ) -> int | None:
        """Write a round, all or nothing, before its action is carried out; return the id of the action."""
        number = next(self._numbers)
        self._rounds.append(summary)
        self._snapshots.append(snapshot)
        self._origins = origins_with(self._origins, number, snapshot)
        self._last = (summary.at_s, state)
        return None if action is None else self._add_action(number, summary.at_s, action)

    def intend(self, at_s: float, action: Action) -> int:
        """Write an action of the landlord, which belongs to no round, before the action is carried out; return its id."""
        return self._add_action(NO_ROUND, at_s, action)

    def _add_action(self, number: int, at_s: float, action: Action) -> int:
        action_id = next(self._ids)
        self._actions[action_id] = RoundAction(number, RecordedAction(action_id, at_s, writable(action)))
        return action_id

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        """Write the outcome of an action; the last outcome counts."""
        self._replace(action_id, outcome=outcome)

    def effect(self, action_id: int, effect: Effect) -> None:
        """Write the effect of an action; the last effect counts."""
        self._replace(action_id, effect=effect)

    def _replace(self, action_id: int, **change: Any) -> None:
        if action_id not in self._actions:
            raise unknown_action(action_id)
        one = self._actions[action_id]
        self._actions[action_id] = RoundAction(one.round, dataclasses.replace(one.recorded, **change))

    def restore(self) -> Restored | None:
        """The state of the last controller; None in an empty journal."""
        if self._last is None:
            return None
        return restored_from(*self._last, tuple(self._snapshots), self._origins, list(self._actions.values()))

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Actions in order, from `since_s` on: all actions, or the actions that touch a job or host."""
        return [one.recorded for one in self._actions.values() if is_wanted(one.recorded, job, since_s)]

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Rounds in order, from `since_s` on: all rounds, or the rounds of one job, without the other jobs."""
        for summary in self._rounds:
            if since_s is not None and summary.at_s < since_s:
                continue
            if job is None:
                yield summary
            elif job in summary.jobs:
                yield dataclasses.replace(summary, jobs={job: summary.jobs[job]})

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """At most `most` rounds, evenly spread over all rounds since `since_s`, the newest included; with only `jobs`, if given."""
        rounds = [summary for summary in self._rounds if summary.at_s >= since_s]
        chosen = spread(0, len(rounds) - 1, most) if rounds else ()
        return [with_jobs(rounds[number], jobs) for number in chosen]

    def purge(self, before_s: float, actions_before_s: float = -math.inf) -> int:
        """Delete rounds before `before_s`, and actions with an outcome before `actions_before_s`; return the number of deleted rounds."""
        gone = {number: one for number, one in self._actions.items() if is_over(one, actions_before_s)}
        self._origins = fold(self._origins, gone.values())
        self._actions = {number: one for number, one in self._actions.items() if number not in gone}
        # Rounds are in order of time: if the first round stays, all rounds stay.
        if not self._rounds or self._rounds[0].at_s >= before_s:
            return 0
        before = len(self._rounds)
        self._rounds = [summary for summary in self._rounds if summary.at_s >= before_s]
        return before - len(self._rounds)

    def set_about(self, key: str, value: str) -> None:
        """Note something about the whole run, such as its scenario or its seed."""
        self._about[key] = value

    def about(self) -> dict[str, str]:
        """All notes about the whole run."""
        return dict(self._about)

    def close(self) -> None:
        """Do nothing: a journal in memory holds no file."""
