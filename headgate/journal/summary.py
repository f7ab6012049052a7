"""Summaries of a journal: the allocation of each job, and the state for a restarted controller."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headgate.core.model import Allocation, JobAllocation, Snapshot
from headgate.errors import JournalError
from headgate.ports import RecordedAction, Restored, RoundRecord

WINDOW_SNAPSHOTS = 32
"""Snapshots kept for a prediction: more than a window of measurements and the wait after an action together."""

NO_ROUND = 0
"""Round number of an action of the landlord, which belongs to no round: rounds are numbered from 1."""


def unknown_action(action_id: int) -> JournalError:
    """The error for an action that the journal does not hold."""
    return JournalError(f"the journal holds no action {action_id}")


@dataclass(frozen=True, slots=True)
class FirstAllocation:
    """The first allocation of a job; later actions build on it, earlier actions were for a removed job of the same name."""

    round: int
    allocation: JobAllocation


Origins = dict[str, FirstAllocation]


@dataclass(frozen=True, slots=True)
class RoundAction:
    """A recorded action and the number of its round."""

    round: int
    recorded: RecordedAction


def origins_with(origins: Origins, number: int, snapshot: Snapshot) -> Origins:
    """First allocations after a round: removed jobs are dropped, and new jobs are added with their current allocations."""
    gone = [job for job in origins if job not in snapshot.allocation and job not in snapshot.jobs]
    new = {job: FirstAllocation(number, has) for job, has in snapshot.allocation.items() if job not in origins}
    if not gone and not new:
        return origins
    return {job: origin for job, origin in origins.items() if job not in gone} | new


def allocation_of(origins: Origins, applied: Iterable[RoundAction]) -> Allocation:
    """The allocation of each job after these actions."""
    allocation = {job: origin.allocation for job, origin in origins.items()}
    for one in applied:
        for job, change in one.recorded.action.changes.items():
            if job in origins and one.round >= origins[job].round:
                allocation[job] = change
    return allocation


def fold(origins: Origins, gone: Iterable[RoundAction]) -> Origins:
    """First allocations that include the changes of these actions, so that the actions can be deleted."""
    applied = [one for one in gone if one.recorded.applied]
    return {
        job: dataclasses.replace(origins[job], allocation=has) for job, has in allocation_of(origins, applied).items()
    }


def is_over(action: RoundAction, before_s: float) -> bool:
    """Whether the action was decided before `before_s` and has an outcome."""
    return action.recorded.at_s < before_s and action.recorded.outcome is not None


def restored_from(
    at_s: float, state: bytes, snapshots: tuple[Snapshot, ...], origins: Origins, actions: list[RoundAction]
) -> Restored:
    """The state of the last controller, from its records; the landlord restores actions about hosts."""
    actions = [one for one in actions if not one.recorded.action.concerns_host]
    applied = [one for one in actions if one.recorded.applied]
    return Restored(
        at_s=at_s,
        state=state,
        snapshots=snapshots,
        unfinished=tuple(one.recorded for one in actions if one.recorded.outcome is None),
        actions=tuple(one.recorded for one in applied),
        allocation=allocation_of(origins, applied),
    )


def spread(first: int, last: int, most: int) -> list[int]:
    """At most `most` evenly spread numbers from `first` to `last`, `last` included; mostly the same numbers are chosen as `last` grows.

    >>> spread(1, 10, 4)
    [4, 8, 10]
    >>> spread(1, 10, 1)
    [10]
    """
    step = max(1, -(-(last - first + 1) // max(1, most - 1)))
    inner = range(-(-first // step) * step, last, step) if most > 1 else ()
    return [*inner, last]


def with_jobs(summary: RoundRecord, jobs: Collection[str] | None) -> RoundRecord:
    """A round with these jobs only; None: with all jobs."""
    if jobs is None:
        return summary
    return dataclasses.replace(summary, jobs={name: one for name, one in summary.jobs.items() if name in jobs})


def is_wanted(recorded: RecordedAction, job: str | None, since_s: float | None) -> bool:
    """Whether the action touches the job and was decided at `since_s` or later; None: any job, any time."""
    return (job is None or recorded.touches(job)) and (since_s is None or recorded.at_s >= since_s)
