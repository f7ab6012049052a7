"""Lane counts that were tried and undone, per job and operator: none is tried again within the job's skip time.

The paper skips a job that gained too little (Henge, section 5.1), but forgets how many lanes it had tried; a job whose history is
forgotten could swing between two counts for ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.model import ActionKind


@dataclass(frozen=True, slots=True)
class Undone:
    """A lane count that turned out to be wrong at some input."""

    lanes: int
    too_many: bool
    """Whether it was too many; otherwise it was too few."""
    until_s: float
    arrival_rows_s: float


@dataclass(frozen=True, slots=True)
class LaneHistory:
    """The lanes of one operator, and what they were before."""

    lanes: int
    before: int
    """The count before the last change; the same as now before the first one."""
    until_s: float
    """When the skip time ends that the job had at the last change: a change back before then undoes it."""
    undone: tuple[Undone, ...] = ()

    def bars(self, wanted: int) -> bool:
        """Whether so many lanes, or a step further the same way, were undone."""
        return any(
            self.lanes < one.lanes <= wanted if one.too_many else wanted <= one.lanes < self.lanes
            for one in self.undone
        )


@dataclass(frozen=True, slots=True)
class ObservedLanes:
    """One job as its lanes are looked at in a round."""

    lanes: Mapping[str, int]
    arrival_rows_s: float | None
    changed_by: ActionKind | None
    """The action that changed its lanes last; None: a person."""
    skip_s: float
    """How much of the job's skip time is left; all of it if the job is not set aside."""


def follow_lanes(
    histories: Mapping[str, LaneHistory], seen: ObservedLanes, at_s: float, load_change: float
) -> dict[str, LaneHistory]:
    """The history of every operator of a job, one round later."""
    return {
        name: _followed(histories.get(name, LaneHistory(lanes, lanes, at_s)), lanes, seen, at_s, load_change)
        for name, lanes in seen.lanes.items()
    }


def _followed(history: LaneHistory, lanes: int, seen: ObservedLanes, at_s: float, load_change: float) -> LaneHistory:
    undone = tuple(one for one in history.undone if _holds(one, seen.arrival_rows_s, at_s, load_change))
    if lanes == history.lanes:
        return history if undone == history.undone else dataclasses.replace(history, undone=undone)
    if _is_undone(history, lanes, seen, at_s):
        too_many = history.lanes > lanes
        kept = tuple(one for one in undone if (one.lanes, one.too_many) != (history.lanes, too_many))
        new = Undone(history.lanes, too_many, at_s + seen.skip_s, seen.arrival_rows_s or 0.0)
        undone = (*kept, new)
    return LaneHistory(lanes, history.lanes, at_s + seen.skip_s, undone)


def _is_undone(history: LaneHistory, lanes: int, seen: ObservedLanes, at_s: float) -> bool:
    """Whether the last change is taken back: lanes taken are given again, or lanes given are taken by a reversion or a person.

    A reduction takes idle lanes and a throttling takes them for others: neither says that they did harm. Nor were the lanes that
    a job was left with too few because it has its turn again after its skip time.
    """
    if at_s >= history.until_s:
        return False
    if lanes > history.lanes:
        return history.before > history.lanes
    return history.before < history.lanes and seen.changed_by in (None, ActionKind.REVERT)


def _holds(one: Undone, arrival_rows_s: float | None, at_s: float, load_change: float) -> bool:
    """Too many lanes are no longer too many once the input has grown, nor too few too few once it has shrunk."""
    if at_s >= one.until_s:
        return False
    if arrival_rows_s is None or one.arrival_rows_s <= 0:
        return True
    if one.too_many:
        return arrival_rows_s <= one.arrival_rows_s * (1 + load_change)
    return arrival_rows_s >= one.arrival_rows_s * (1 - load_change)
