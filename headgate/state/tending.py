"""What a host does for the copies of slices that it should have: backups follow, those that move here are rebuilt, others go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.errors import StateError
from headgate.state.copies import Copies
from headgate.state.faults import passing
from headgate.state.placement.targets import Duty


@dataclass(frozen=True, slots=True)
class Tended:
    """What a host answers."""

    reached: dict[int, int]
    """By slice, the epoch that its copy has come to; without those that were rebuilt just now, since epochs went on meanwhile."""
    rebuilt: int = 0
    """Copies that were not there before."""
    trouble: str = ""
    """Why something was left undone."""


def tend(copies: Copies, duty: Duty, epoch: int) -> Tended:
    """Do a host's duty as of a committed epoch; what takes too long is left for the next time."""
    until_s = time.monotonic() + copies.settings.tend_s
    passing("tend: begun")
    versions = copies.versions(duty.follow)
    present = [slice_ for slice_, version in versions.items() if version is not None]
    try:
        copies.follow(present, epoch)
        passing("tend: caught up")
        reached = {slice_: version for slice_, version in copies.versions(present).items() if version is not None}
        rebuilt = _rebuilt(copies, [slice_ for slice_ in duty.follow if slice_ not in present], epoch, until_s)
        _drop_others(copies, duty.keep, epoch)
    except StateError as error:
        return Tended({}, trouble=str(error))
    passing("tend: answered")
    return Tended(reached, rebuilt)


def _rebuilt(copies: Copies, absent: Sequence[int], epoch: int, until_s: float) -> int:
    """A few at a time, until it has taken long enough; of the rest, the next time."""
    at_once = copies.settings.rebuilt_at_once
    for first in range(0, len(absent), at_once):
        copies.follow(absent[first : first + at_once], epoch)
        passing("tend: rebuilt")
        if time.monotonic() >= until_s:
            return min(len(absent), first + at_once)
    return len(absent)


def _drop_others(copies: Copies, keep: Sequence[int], epoch: int) -> None:
    """A copy that is as new as the epoch is in use after all: the duty was written before its slice came here."""
    others = [slice_ for slice_ in range(copies.life.slices) if slice_ not in set(keep)]
    old = [slice_ for slice_, version in copies.versions(others).items() if version is not None and version < epoch]
    if old:
        copies.drop(old)
        passing("tend: dropped")
