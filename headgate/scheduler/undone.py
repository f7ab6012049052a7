"""Lane counts and raised shares that were tried and undone: no undone count is tried again within the job's skip time.

The paper skips a job that gained too little (Henge, section 5.1) without recording the tried lane counts; after a restart of the search,
a job could oscillate between two lane counts forever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.model import ActionKind, JobAllocation

SHARE = "*"
"""Name under which the raised share of a job is followed, beside the lane counts of its operators."""


def counts_of(allocation: JobAllocation) -> dict[str, int]:
    """Lanes by operator, and the raised share: 0 while the declared share applies.

    >>> counts_of(JobAllocation({"count": 2}, share=4))
    {'count': 2, '*': 4}
    """
    return {**allocation.lanes, SHARE: allocation.share or 0}


@dataclass(frozen=True, slots=True)
class Undone:
    """A lane count that was undone, with the input at that time."""

    lanes: int
    too_many: bool
    """True: too many lanes; False: too few lanes."""
    until_s: float
    arrival_rows_s: float
    """Input of the job when the lane count was undone, in rows per second."""


@dataclass(frozen=True, slots=True)
class LaneHistory:
    """The current and the previous lane count of one operator, and its undone lane counts."""

    lanes: int
    before: int
    """Lane count before the last change; equal to `lanes` before the first change."""
    until_s: float
    """End of the job's skip time as of the last change; a change back before this time counts as undoing."""
    undone: tuple[Undone, ...] = ()

    def bars(self, wanted: int) -> bool:
        """Whether the wanted lane count, or a smaller step in the same direction, was undone."""
        return any(
            self.lanes < one.lanes <= wanted if one.too_many else wanted <= one.lanes < self.lanes
            for one in self.undone
        )


@dataclass(frozen=True, slots=True)
class ObservedLanes:
    """Lanes and input of one job in one round."""

    lanes: Mapping[str, int]
    arrival_rows_s: float | None
    """Input in rows per second; None if unknown."""
    changed_by: ActionKind | None
    """Kind of the scheduler's action that changed the lanes last; None: a person changed the lanes."""
    skip_s: float
    """Seconds left of the job's skip time; the whole skip time if the job is not set aside."""


def follow_lanes(
    histories: Mapping[str, LaneHistory], seen: ObservedLanes, at_s: float, load_change: float
) -> dict[str, LaneHistory]:
    """The lane history of every operator of a job, updated with one round."""
    return {
        name: _followed(histories.get(name) or LaneHistory(lanes, lanes, at_s), lanes, seen, at_s, load_change)
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
    """Whether a change undoes the last change: removed lanes are added again, or a reversion or a person removes added lanes.

    A reduction removes idle lanes and a throttling frees cores for other jobs: neither shows that the lanes caused a loss. A change after
    the end of the skip time undoes nothing.
    """
    if at_s >= history.until_s:
        return False
    if lanes > history.lanes:
        return history.before > history.lanes
    return history.before < history.lanes and seen.changed_by in (None, ActionKind.REVERT)


def _holds(one: Undone, arrival_rows_s: float | None, at_s: float, load_change: float) -> bool:
    """Whether an undone lane count is still ruled out: until its time ends, or the input has changed in favour of the count."""
    if at_s >= one.until_s:
        return False
    if arrival_rows_s is None or one.arrival_rows_s <= 0:
        return True
    if one.too_many:
        return arrival_rows_s <= one.arrival_rows_s * (1 + load_change)
    return arrival_rows_s >= one.arrival_rows_s * (1 - load_change)
