"""Merging of deltas into snapshots, and clean-up: off the path of epochs, so that recovery stays short and disk use bounded.

A merge rebuilds a slice in a scratch folder, by the very code that recovery uses, and writes it down as a snapshot; so every snapshot
proves that its predecessor and the deltas since can be read. Nothing is deleted before what replaces it is durable, and
anything may be interrupted at any point and done again.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headgate.config import StateSettings
from headgate.errors import StateError
from headgate.state.checkpoint import Checkpoint, DeltaFile, Life, snapshot_name
from headgate.state.faults import passing
from headgate.state.opening import Opener
from headgate.state.stores import new_store


@dataclass(frozen=True, slots=True)
class Upkept:
    """What was done."""

    merged: tuple[int, ...]
    """Slices with a new snapshot."""
    deleted: int
    """Files."""
    bytes: int
    """Bytes of deltas and snapshots that remain."""


@dataclass(frozen=True)
class Upkeep:
    """Keeps the checkpoint of one operator small. One process does it at a time; epochs go on meanwhile."""

    checkpoint: Checkpoint
    life: Life
    settings: StateSettings
    scratch: Path
    """A local folder with room for the largest slices."""

    def run(self, slices: Iterable[int] | None = None) -> Upkept:
        """Merge what is due, among these slices or all, then clean up."""
        merged = self.merge(range(self.life.slices) if slices is None else slices)
        deleted = self.clean_up()
        return Upkept(merged, deleted, self.bytes())

    def merge(self, slices: Iterable[int]) -> tuple[int, ...]:
        """New snapshots of the slices whose deltas have grown enough; of them, those that were made."""
        epochs = self.checkpoint.epochs()
        # The newest epoch may still be run again and committed anew; the one before cannot.
        upto = epochs[-1] - 1 if epochs else -1
        if upto < self.life.first_epoch:
            return ()
        records = {epoch: self.checkpoint.files(epoch) or () for epoch in epochs if epoch <= upto}
        snapshots = self.checkpoint.all_snapshots()
        due = [slice_ for slice_ in slices if self._is_due(slice_, snapshots.get(slice_, []), records, upto)]
        if due:
            self._snapshot(due, upto, records)
        return tuple(due)

    def _is_due(self, slice_: int, snapshots: list[int], records: dict[int, tuple[DeltaFile, ...]], upto: int) -> bool:
        last = snapshots[-1] if snapshots else self.life.first_epoch - 1
        if upto - last >= self.settings.merge_epochs:
            return True
        grown = sum(
            file.bytes / len(file.slices)
            for epoch, files in records.items()
            if epoch > last
            for file in files
            if slice_ in file.slices and not file.full
        )
        size = self.checkpoint.location.size(snapshot_name(slice_, last)) if snapshots else 0
        return bool(snapshots) and grown > self.settings.merge_ratio * size

    def _snapshot(self, slices: list[int], upto: int, records: dict[int, tuple[DeltaFile, ...]]) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="merge-", dir=self.scratch)
        schema = self.checkpoint.schema
        store = new_store(folder, schema, self.life.identity(schema), self.settings)
        try:
            Opener(store, self.checkpoint, self.life, committed=dict(records)).at(slices, upto + 1)
            for slice_ in slices:
                self.checkpoint.write_snapshot(slice_, upto, store.scan(slice_))
        finally:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)

    # -- clean-up --------------------------------------------------------------------------------------------------------

    def clean_up(self) -> int:
        """Delete what no recovery will read: snapshots beyond those kept, deltas before the oldest kept, files nobody named."""
        kept = self._kept_snapshots()
        doomed = self._old_snapshots(kept) + self._old_deltas(kept)
        passing("clean-up: before delete")
        for index, name in enumerate(doomed):
            if index == len(doomed) // 2:
                passing("clean-up: half")
            self.checkpoint.location.delete(name)
        return len(doomed)

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
        """Deltas go before the records that name them; a record without its files is only deleted late, never missed."""
        epochs = self.checkpoint.epochs()
        if not epochs:
            return []
        # Until every slice has as many snapshots as are kept, recovery may want to start at the very beginning.
        whole = len(kept) == self.life.slices and all(
            len(found) >= self.settings.kept_snapshots for found in kept.values()
        )
        first_needed = min((min(found) for found in kept.values()), default=-1) + 1 if whole else self.life.first_epoch
        named = {file.name for epoch in epochs for file in self.checkpoint.files(epoch) or ()}
        doomed = []
        for name in self.checkpoint.location.names("deltas"):
            epoch = int(name[:12])
            stray = f"deltas/{name}" not in named and epoch < epochs[-1]
            if stray or epoch < first_needed:
                doomed.append(f"deltas/{name}")
        return doomed + [f"epochs/{epoch:012d}.json" for epoch in epochs[:-1] if epoch < first_needed]

    def bytes(self) -> int:
        """Bytes of deltas and snapshots."""
        location = self.checkpoint.location
        return sum(
            location.size(f"{folder}/{name}") for folder in ("deltas", "snapshots") for name in location.names(folder)
        )


class Chore(Protocol):
    """Something that is done beside the epochs."""

    def run(self) -> object:
        """Do what is due."""


class Background:
    """Does a chore in a thread of its own whenever it is asked to; what goes wrong is reported, and tried again next time."""

    def __init__(self, chore: Chore, on_error: Callable[[StateError], None]) -> None:
        self._chore, self._on_error = chore, on_error
        self._wanted, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="headgate-upkeep", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """There are new epochs; returns at once."""
        self._wanted.set()

    def close(self) -> None:
        """Finish what is being done, and stop."""
        self._closed = True
        self._wanted.set()
        self._thread.join()

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
