"""Copies of slices on other hosts: backups that follow the active copy, and migration by reconstruction.

A backup is a copy like any other; only the routing table makes a copy active. A migration by reconstruction therefore has two steps:
the destination's copy follows until it is current, while the source continues; then the driver routes rows to the destination. The
pause does not depend on the size of the state (ChronoStream, fig. 14).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.config import StateSettings
from headgate.errors import StateError
from headgate.state.checkpoint import Checkpoint, Life
from headgate.state.faults import reach
from headgate.state.location import Location
from headgate.state.opening import Opener, Origin
from headgate.state.operators import KeyedOperator
from headgate.state.placement.targets import HostTarget
from headgate.state.store import SliceStore
from headgate.state.stores import locks_of, open_store


@dataclass(frozen=True)
class Copies:
    """The copies of an operator's slices in one host's folder."""

    operator: KeyedOperator
    life: Life
    folder: str
    checkpoint: str
    settings: StateSettings

    def follow(self, slices: Iterable[int], epoch: int) -> dict[int, Origin]:
        """Bring the copies of these slices to a committed epoch: from the local copy, else from snapshots.

        Backups follow in this way every few epochs, destinations in the second phase of a migration, and hosts during recovery.
        """
        wanted = tuple(slices)
        with self._held(wanted):
            ahead = [
                slice_ for slice_, version in self.versions(wanted).items() if version is not None and version > epoch
            ]
            opener = Opener(self._store(), self._durable(), self.life)
            opened = opener.at([slice_ for slice_ in wanted if slice_ not in ahead], epoch + 1)
            return opened.origins | dict.fromkeys(ahead, Origin.LOCAL)

    def versions(self, slices: Iterable[int]) -> dict[int, int | None]:
        """The epoch of each copy; None where there is none."""
        headers = {slice_: self._store().header(slice_) for slice_ in slices}
        return {slice_: None if header is None else header.version for slice_, header in headers.items()}

    def drop(self, slices: Iterable[int]) -> None:
        """Delete copies that this host does not need any more."""
        with self._held(wanted := tuple(slices)):
            for slice_ in wanted:
                self._store().drop(slice_)

    def _store(self) -> SliceStore:
        identity = self.life.identity(self.operator.schema)
        return open_store(self.folder, self.operator.schema, identity, self.settings)

    def _durable(self) -> Checkpoint:
        return Checkpoint(Location.of(self.checkpoint), self.operator.schema)

    def _held(self, slices: Iterable[int]) -> _Held:
        return _Held(self.folder, tuple(slices), self.settings.lock_wait_s)


@dataclass(frozen=True, slots=True)
class _Held:
    folder: str
    slices: tuple[int, ...]
    wait_s: float

    def __enter__(self) -> None:
        locks_of(self.folder).take(self.slices, self.wait_s)

    def __exit__(self, *_: object) -> None:
        locks_of(self.folder).release()


# -- the target of a host -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetReport:
    """The progress of a host towards its target."""

    reached: dict[int, int]
    """The epoch of each copy, without copies that were just rebuilt, because epochs may have been committed meanwhile."""
    rebuilt: int = 0
    """Copies that did not exist before."""
    problem: str = ""
    """Why the host did not reach its target; empty if it did."""


def reach_target(copies: Copies, target: HostTarget, epoch: int) -> TargetReport:
    """Bring the copies of a host to its target as of a committed epoch; work beyond `copy_work_s` waits for the next call."""
    until_s = time.monotonic() + copies.settings.copy_work_s
    reach("target: begun")
    versions = copies.versions(target.follow)
    present = [slice_ for slice_, version in versions.items() if version is not None]
    try:
        copies.follow(present, epoch)
        reach("target: caught up")
        reached = {slice_: version for slice_, version in copies.versions(present).items() if version is not None}
        rebuilt = _rebuild(copies, [slice_ for slice_ in target.follow if slice_ not in present], epoch, until_s)
        _drop_others(copies, target.keep, epoch)
    except StateError as error:
        return TargetReport({}, problem=str(error))
    reach("target: answered")
    return TargetReport(reached, rebuilt)


def _rebuild(copies: Copies, absent: Sequence[int], epoch: int, until_s: float) -> int:
    """Rebuild a few copies at a time until `until_s`; returns how many were rebuilt."""
    at_once = copies.settings.rebuilt_at_once
    for first in range(0, len(absent), at_once):
        copies.follow(absent[first : first + at_once], epoch)
        reach("target: rebuilt")
        if time.monotonic() >= until_s:
            return min(len(absent), first + at_once)
    return len(absent)


def _drop_others(copies: Copies, keep: Sequence[int], epoch: int) -> None:
    """Delete copies that the target does not list; a copy as new as the epoch is in use, because its slice has just come here."""
    others = [slice_ for slice_ in range(copies.life.slices) if slice_ not in set(keep)]
    old = [slice_ for slice_, version in copies.versions(others).items() if version is not None and version < epoch]
    if old:
        copies.drop(old)
        reach("target: dropped")
