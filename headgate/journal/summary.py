"""What a series of records amounts to: what each job has, and what a restarted controller needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headgate.core.model import Allocation, JobAllocation, Snapshot
from headgate.ports import RecordedAction, Restored, RoundRecord


@dataclass(frozen=True, slots=True)
class FirstAllocation:
    """What a job had in the round that saw it first; later actions build on it, earlier ones were for a namesake."""

    round: int
    allocation: JobAllocation


Origins = dict[str, FirstAllocation]


@dataclass(frozen=True, slots=True)
class Placed:
    """A recorded action and the number of its round."""

    round: int
    recorded: RecordedAction


def origins_with(origins: Origins, number: int, snapshot: Snapshot) -> Origins:
    """Origins after a round: jobs that left are forgotten, new ones start with what they have."""
    gone = [job for job in origins if job not in snapshot.allocation and job not in snapshot.jobs]
    new = {job: FirstAllocation(number, has) for job, has in snapshot.allocation.items() if job not in origins}
    if not gone and not new:
        return origins
    return {job: origin for job, origin in origins.items() if job not in gone} | new


def allocation_of(origins: Origins, applied: Iterable[Placed]) -> Allocation:
    """What each job has after these actions."""
    allocation = {job: origin.allocation for job, origin in origins.items()}
    for placed in applied:
        for job, change in placed.recorded.action.changes.items():
            if job in origins and placed.round >= origins[job].round:
                allocation[job] = change
    return allocation


def folded(origins: Origins, gone: Iterable[Placed]) -> Origins:
    """Origins that stand for these actions as well, so that they can be deleted."""
    applied = [one for one in gone if one.recorded.applied]
    return {
        job: dataclasses.replace(origins[job], allocation=has) for job, has in allocation_of(origins, applied).items()
    }


def is_over(placed: Placed, before_s: float) -> bool:
    """Whether it is older than this, and its outcome known."""
    return placed.recorded.at_s < before_s and placed.recorded.outcome is not None


def restored_from(
    at_s: float, state: bytes, snapshots: tuple[Snapshot, ...], origins: Origins, placed: list[Placed]
) -> Restored:
    """Where a controller stopped, from what it wrote; actions about hosts are the landlord's."""
    placed = [one for one in placed if not one.recorded.action.concerns_host]
    applied = [one for one in placed if one.recorded.applied]
    return Restored(
        at_s=at_s,
        state=state,
        snapshots=snapshots,
        unfinished=tuple(one.recorded for one in placed if one.recorded.outcome is None),
        actions=tuple(one.recorded for one in applied),
        allocation=allocation_of(origins, applied),
    )


def spread(first: int, last: int, most: int) -> list[int]:
    """At most so many numbers from first to last, evenly spread, with the last one; as time goes on, the same ones are chosen again.

    >>> spread(1, 10, 4)
    [4, 8, 10]
    """
    step = max(1, -(-(last - first + 1) // max(1, most - 1)))
    inner = range(-(-first // step) * step, last, step)
    return [*inner, last]


def with_jobs(summary: RoundRecord, jobs: Collection[str] | None) -> RoundRecord:
    """A round with these jobs alone; None: with all."""
    if jobs is None:
        return summary
    return dataclasses.replace(summary, jobs={name: one for name, one in summary.jobs.items() if name in jobs})


def is_wanted(recorded: RecordedAction, job: str | None, since_s: float | None) -> bool:
    """Whether it touches the job, if one is asked for, and is not older than asked for."""
    return (job is None or recorded.touches(job)) and (since_s is None or recorded.at_s >= since_s)
