"""Merges deltas into snapshots and deletes old files beside the epochs, so that recovery stays short and disk use bounded.

A merge rebuilds a slice in a scratch folder with the code of recovery and writes it as a snapshot: every snapshot proves that its
predecessor and the deltas since can be read. Upkeep deletes a file only when its replacement is durable, and may be interrupted
at any point.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headgate.config import StateSettings
from headgate.errors import StateDamagedError, StateError, StateLostError
from headgate.state.checkpoint import Checkpoint, DeltaFile, Life, epoch_name, snapshot_name
from headgate.state.faults import reach
from headgate.state.opening import Opener
from headgate.state.store import SliceStore, on_disk
from headgate.state.stores import locks_of, new_store
from headgate.threads import WatchedThread

Records = Mapping[int, tuple[DeltaFile, ...]]
"""Files of committed epochs."""


@dataclass(frozen=True)
class Upkeep:
    """Keeps the checkpoint of one operator small. One process runs it at a time; epochs continue meanwhile."""

    checkpoint: Checkpoint
    life: Life
    settings: StateSettings
    scratch: Path
    """A local folder with enough space for the largest slices."""
    live: Sequence[Path] = ()
    """Folders of this host with the copies that lanes work on: the only good copies where durable files are damaged."""

    def run(self) -> None:
        """Merge the slices that are due, then clean up, even if a merge failed."""
        try:
            self.merge()
        finally:
            self.clean_up()

    def remove_leftovers(self) -> None:
        """Remove half-written files of a killed process; a driver calls this before its first epoch."""
        self.checkpoint.location.remove_leftovers()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def merge(self) -> None:
        """Write snapshots of the slices whose deltas have grown enough."""
        epochs = self.checkpoint.epochs()
        # The newest epoch may still be run and committed again; the one before cannot.
        upto = epochs[-1] - 1 if epochs else -1
        if upto < self.life.first_epoch:
            return
        records = {epoch: files for epoch in epochs if epoch <= upto and (files := self._readable(epoch)) is not None}
        snapshots = self.checkpoint.all_snapshots()
        slices = range(self.life.slices)
        due = [slice_ for slice_ in slices if self._is_due(slice_, snapshots.get(slice_, []), records, upto)]
        if due:
            self._merge(due, upto, records)

    def _merge(self, due: list[int], upto: int, records: Records) -> None:
        """Merge all slices together, so that each delta is read once; if that fails, one by one, and at last from live copies."""
        try:
            self._snapshot(due, upto, records)
            return
        except (StateLostError, StateDamagedError):
            pass
        lost = []
        for slice_ in due:
            try:
                self._snapshot([slice_], upto, records)
            except (StateLostError, StateDamagedError) as error:
                if not self._heal(slice_):
                    lost.append(str(error))
        if lost:
            raise StateLostError("; ".join(lost))

    def _heal(self, slice_: int) -> bool:
        """Write a snapshot of the copy that lanes work on, as of the newest epoch; returns whether there was such a copy.

        A driver that starts at that epoch again voids the snapshot.
        """
        newest = self.checkpoint.epochs()[-1]
        for folder in self.live:
            locks = locks_of(folder)
            locks.take([slice_], self.settings.lock_wait_s)
            try:
                self._snapshot([slice_], newest, {}, (folder,))
                return True
            except (StateLostError, StateDamagedError):
                continue
            finally:
                locks.release()
        return False

    def _readable(self, epoch: int) -> tuple[DeltaFile, ...] | None:
        """The files of an epoch; None if its record is damaged."""
        try:
            return self.checkpoint.files(epoch)
        except StateDamagedError:
            return None

    def _is_due(self, slice_: int, snapshots: list[int], records: Records, upto: int) -> bool:
        last = snapshots[-1] if snapshots else self.life.first_epoch - 1
        if upto - last >= self.settings.merge_epochs:
            return True
        grown = sum(
            file.bytes / len(file.slices)
            for epoch, files in records.items()
            if epoch > last
            for file in files
            if slice_ in file.slices
        )
        size = self.checkpoint.location.size(snapshot_name(slice_, last)) if snapshots else 0
        return bool(snapshots) and grown > self.settings.merge_ratio * size

    def _snapshot(self, slices: list[int], upto: int, records: Records, copies: Sequence[Path] = ()) -> None:
        with self._scratch_store() as store:
            Opener(store, self.checkpoint, self.life, copies, dict(records)).at(slices, upto + 1)
            for slice_ in slices:
                self.checkpoint.write_snapshot(slice_, upto, store.scan(slice_))

    @contextmanager
    def _scratch_store(self) -> Iterator[SliceStore]:
        with on_disk(self.scratch, self.settings.least_free_mb):
            self.scratch.mkdir(parents=True, exist_ok=True)
        with (
            on_disk(self.scratch),
            tempfile.TemporaryDirectory(prefix="merge-", dir=self.scratch, ignore_cleanup_errors=True) as folder,
        ):
            identity = self.life.identity(self.checkpoint.schema)
            store = new_store(folder, self.checkpoint.schema, identity, self.settings)
            try:
                yield store
            finally:
                store.close()

    # -- clean-up --------------------------------------------------------------------------------------------------------

    def clean_up(self) -> None:
        """Delete files that no recovery reads: old snapshots, deltas before the oldest kept snapshot, and deltas that no record names."""
        kept = self._kept_snapshots()
        doomed = self._old_snapshots(kept) + self._old_deltas(kept)
        reach("clean-up: before delete")
        for index, name in enumerate(doomed):
            if index == len(doomed) // 2:
                reach("clean-up: half")
            self.checkpoint.location.delete(name)

    def _kept_snapshots(self) -> dict[int, list[int]]:
        return {
            slice_: sorted(epochs)[-self.settings.kept_snapshots :]
            for slice_, epochs in self.checkpoint.all_snapshots().items()
        }

    def _old_snapshots(self, kept: dict[int, list[int]]) -> list[str]:
        found = self.checkpoint.all_snapshots()
        return [
            snapshot_name(slice_, epoch)
            for slice_, epochs in found.items()
            for epoch in epochs
            if epoch not in kept[slice_]
        ]

    def _old_deltas(self, kept: dict[int, list[int]]) -> list[str]:
        """Delete deltas before the records that name them: an interrupted clean-up leaves a record without files, never the reverse."""
        epochs = self.checkpoint.epochs()
        if not epochs:
            return []
        # Until every slice has `kept_snapshots` snapshots, recovery may start at the first epoch.
        whole = len(kept) == self.life.slices and all(
            len(found) >= self.settings.kept_snapshots for found in kept.values()
        )
        first_needed = min((min(found) for found in kept.values()), default=-1) + 1 if whole else self.life.first_epoch
        records = {epoch: self._readable(epoch) for epoch in epochs}
        named = {file.name for files in records.values() for file in files or ()}
        # The files of a damaged record are not known: they stay until no recovery can need them.
        settled = {epoch for epoch in range(epochs[-1]) if records.get(epoch, ()) is not None}
        doomed = []
        for name in self.checkpoint.location.names("deltas"):
            epoch = int(name[:12])
            stray = f"deltas/{name}" not in named and epoch in settled
            if stray or epoch < first_needed:
                doomed.append(f"deltas/{name}")
        # The record before the oldest needed delta names the copies that count, and when the timers of the next epoch are due.
        return doomed + [epoch_name(epoch) for epoch in epochs[:-2] if epoch < first_needed - 1]


class Chore(Protocol):
    """Work beside the epochs."""

    def run(self) -> object:
        """Do the work that is due."""


class Background:
    """Runs a chore in its own thread when asked; reports errors, and tries again the next time."""

    def __init__(self, chore: Chore, on_error: Callable[[StateError], None]) -> None:
        self._chore, self._on_error = chore, on_error
        self._wanted, self._closed = threading.Event(), False
        self._thread = WatchedThread("headgate-upkeep", self._work, lambda text: on_error(StateError(text)))
        self._thread.start()

    def ask(self) -> None:
        """Ask for a run; returns at once."""
        self._wanted.set()

    def close(self) -> None:
        """Finish the current run, then stop."""
        self._thread.close(None, self._end)

    def _end(self) -> None:
        self._closed = True
        self._wanted.set()

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closed:
                return
            try:
                self._chore.run()
            except StateError as error:
                self._on_error(error)
            except (
                Exception
            ) as error:  # the edge of a job's chore: a full disk, or anything else, must not end it for good
                self._on_error(StateError(f"{type(error).__name__}: {error}"))
