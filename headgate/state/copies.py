"""Copies of slices on other hosts: backups that follow, migration by reconstruction, and the classic stop-copy-start.

A backup is a copy like any other; what makes a copy active is the routing table alone. So a migration by reconstruction is:
let the destination's copy follow until it is current, while the source goes on; then route to it. Nothing is converted, and nothing
waits for the size of the state (ChronoStream, fig. 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headgate.config import StateSettings
from headgate.errors import StateDamagedError
from headgate.state.checkpoint import Checkpoint, Life
from headgate.state.delta import REDO_SCHEMA, Delta
from headgate.state.faults import passing
from headgate.state.location import Location
from headgate.state.opening import Opener, Origin
from headgate.state.operators import KeyedOperator
from headgate.state.store import Header, SliceStore, boot_id
from headgate.state.stores import locks_of, open_store


@dataclass(frozen=True)
class Copies:
    """The copies of an operator's slices in one host's folder."""

    operator: KeyedOperator
    life: Life
    folder: str
    checkpoint: str
    settings: StateSettings

    def follow(self, slices: Iterable[int], epoch: int, copies: Sequence[str] = ()) -> dict[int, Origin]:
        """Bring the copies of these slices to a committed epoch: from what is here, else from other copies, else from snapshots.

        This is what a backup does after each epoch (or each few), what a destination does in the second phase of a migration, and
        what recovery does.
        """
        wanted = tuple(slices)
        with self._held(wanted):
            ahead = [
                slice_ for slice_, version in self.versions(wanted).items() if version is not None and version > epoch
            ]
            opener = Opener(self._store(), self._durable(), self.life, [Path(folder) for folder in copies])
            opened = opener.at([slice_ for slice_ in wanted if slice_ not in ahead], epoch + 1)
            return opened.origins | dict.fromkeys(ahead, Origin.LOCAL)

    def redo(self, slices: Iterable[int], epoch: int, name: str, batches: Iterable[pa.RecordBatch]) -> list[int]:
        """Apply an epoch's redo batches as they came through Spark; returns the slices that could not, because they lack epochs.

        `name` is the file of the lane's delta, as its report says; the batches may hold other slices too.
        """
        with self._held(wanted := tuple(slices)):
            store = self._store()
            headers = {slice_: store.header(slice_) for slice_ in wanted}
            able = {
                slice_: header.next(epoch, name, header.progress)
                for slice_, header in headers.items()
                if header is not None and header.whole and header.version == epoch - 1
            }
            done = [slice_ for slice_, header in headers.items() if header is not None and header.version == epoch]
            if able:
                schema = self.operator.schema
                delta = Delta.from_redo(epoch, batches, list(able), schema.key_type, schema.value_type)
                passing("redo: begun")
                store.apply(delta, able)
            return sorted(set(wanted) - set(able) - set(done))

    def send(self, slices: Iterable[int]) -> tuple[dict[int, Header], Iterator[pa.RecordBatch]]:
        """Stop-copy-start, at the source: the whole content of slices as batches, with their headers."""
        store = self._store()
        headers = {slice_: header for slice_ in slices if (header := store.header(slice_)) is not None}
        return headers, (batch for slice_ in headers for batch in _dumped(store, slice_))

    def receive(self, headers: Mapping[int, Header], batches: Iterable[pa.RecordBatch]) -> None:
        """Stop-copy-start, at the destination."""
        schema = self.operator.schema
        parts: dict[int, list[tuple[pa.Array, pa.Array]]] = {slice_: [] for slice_ in headers}
        for batch in batches:
            keys, values = batch.column("key").cast(schema.key_type), batch.column("new").cast(schema.value_type)
            parts[batch.column("slice")[0].as_py()].append((keys, values))
        with self._held(tuple(headers)):
            for slice_, header in headers.items():
                passing("copy: half")
                self._store().load(slice_, parts.pop(slice_), replace(header, boot=boot_id()))
                passing("copy: done")

    def take_from(self, folder: str, slices: Iterable[int]) -> None:
        """Stop-copy-start on one machine: copy the files of slices that nobody writes."""
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

    def size_bytes(self, slices: Iterable[int]) -> int:
        """What copies take on disk."""
        return sum(self._store().size_bytes(slice_) for slice_ in slices)

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


def _dumped(store: SliceStore, slice_: int) -> Iterator[pa.RecordBatch]:
    for keys, values in store.scan(slice_):
        of_row = pa.array([slice_] * len(keys), pa.int32())
        columns = [of_row, keys.cast(pa.binary()), values.cast(pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=REDO_SCHEMA)
