"""Copies of slices on other hosts: backups that follow, migration by reconstruction, and the classic stop-copy-start.

A backup is a copy like any other; what makes a copy active is the routing table alone. So a migration by reconstruction is:
let the destination's copy follow until it is current, while the source goes on; then route to it. Nothing is converted, and nothing
waits for the size of the state (ChronoStream, fig. 14).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headgate.config import StateSettings
from headgate.errors import StateDamagedError
from headgate.state.checkpoint import Checkpoint, Life
from headgate.state.location import Location
from headgate.state.opening import Opener, Origin
from headgate.state.operators import KeyedOperator
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
        """Bring the copies of these slices to a committed epoch: from what is here, else from snapshots.

        This is what a backup does after each epoch (or each few), what a destination does in the second phase of a migration, and
        what recovery does.
        """
        wanted = tuple(slices)
        with self._held(wanted):
            ahead = [
                slice_ for slice_, version in self.versions(wanted).items() if version is not None and version > epoch
            ]
            opener = Opener(self._store(), self._durable(), self.life)
            opened = opener.at([slice_ for slice_ in wanted if slice_ not in ahead], epoch + 1)
            return opened.origins | dict.fromkeys(ahead, Origin.LOCAL)

    def take_from(self, folder: str, slices: Iterable[int]) -> None:
        """Stop-copy-start on one machine: copy the files of slices that no lane writes."""
        with self._held(wanted := tuple(slices)):
            for slice_ in wanted:
                if not self._store().adopt(slice_, Path(folder)):
                    raise StateDamagedError(f'there is no copy of slice {slice_} in "{folder}"')

    def versions(self, slices: Iterable[int]) -> dict[int, int | None]:
        """The epoch of each copy; None where there is none."""
        headers = {slice_: self._store().header(slice_) for slice_ in slices}
        return {slice_: None if header is None else header.version for slice_, header in headers.items()}

    def drop(self, slices: Iterable[int]) -> None:
        """Delete copies that are not needed here any more."""
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
