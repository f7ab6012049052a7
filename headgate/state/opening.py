"""Slices brought to the state after a given epoch, from the nearest copy that can be trusted.

An opener tries, in this order: the copy on this host as it is; the copy with an epoch undone (the epoch is replayed) or with the deltas
that it lacks (a backup, or a copy left behind); a copy from another folder, if one is named; the newest snapshot with the deltas since;
older snapshots; the empty beginning, if all deltas since the first epoch are there. The opener skips damaged copies. If no copy is left,
`StateLostError` names what is missing. State is never silently lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from headgate.errors import StateBusyError, StateDamagedError, StateLostError
from headgate.state.checkpoint import SNAPSHOTS, Checkpoint, DeltaFile, Life, snapshot_name, whole_rows
from headgate.state.delta import Delta
from headgate.state.faults import reach
from headgate.state.store import Header, SliceStore, boot_id


class Origin(Enum):
    """Where an opened slice came from."""

    LOCAL = "local"
    """The copy on this host was current."""
    UNDONE = "undone"
    """The copy on this host had an epoch that is replayed; the lane undid the epoch."""
    CAUGHT_UP = "caught up"
    """The copy on this host was some epochs behind."""
    COPIED = "copied"
    """The copy came from another folder."""
    REBUILT = "rebuilt"
    """The slice was rebuilt from a snapshot and deltas."""
    NEW = "new"
    """The operator runs its first epoch."""


@dataclass(frozen=True, slots=True)
class _Base:
    """The state from which a rebuild starts."""

    version: int
    name: str = ""
    content: Delta | None = None
    """Content of a snapshot; None: a slice without keys."""


@dataclass(slots=True)
class Opened:
    """Slices that are ready for an epoch, and the origin of each."""

    headers: dict[int, Header] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Slices by origin."""
        return dict(Counter(origin.value for origin in self.origins.values()))


@dataclass(frozen=True)
class Opener:
    """Brings slices of one operator up to date in one store."""

    store: SliceStore
    checkpoint: Checkpoint
    life: Life
    copies: Sequence[Path] = ()
    """Folders with other copies of the slices: a merge reads those that lanes work on."""
    committed: dict[int, tuple[DeltaFile, ...]] = field(default_factory=dict)
    """Files of epochs whose records were read already."""
    _is_counted: dict[tuple[int, str], bool] = field(default_factory=dict)

    def at(self, slices: Iterable[int], epoch: int) -> Opened:
        """Bring slices to the end of the epoch before `epoch`, which is about to run for the first time or again."""
        opened, slices = Opened(), tuple(slices)
        behind: dict[int, list[int]] = defaultdict(list)
        for slice_, found in self.store.headers(slices).items():
            header, origin = self._local(slice_, found, epoch)
            if header is None:
                continue
            opened.headers[slice_], opened.origins[slice_] = header, origin
            if header.version < epoch - 1:
                behind[header.version].append(slice_)
        for version in sorted(behind):
            self._catch_up(opened, behind[version], version, epoch)
        missing = [slice_ for slice_ in slices if slice_ not in opened.headers]
        self._rebuild(
            opened, [slice_ for slice_ in missing if not self._copy_from_folders(opened, slice_, epoch)], epoch
        )
        return opened

    # -- the copy on this host -----------------------------------------------------------------------------------------

    def _local(self, slice_: int, header: Header | None, epoch: int) -> tuple[Header | None, Origin]:
        if header is None or (header.whole and not self.store.verify(slice_)):
            return None, Origin.LOCAL  # no copy, or a damaged copy
        if header.version > epoch:
            if self._is_committed(header):
                raise StateBusyError(
                    f"slice {slice_} is already at epoch {header.version}, which is committed, and epoch {epoch} was to run on it:"
                    " the lane belongs to an attempt that was given up"
                )
            return None, Origin.LOCAL  # the roll-back of the job voided the epochs of this copy
        if header.version == epoch:
            return self._undo(slice_, header), Origin.UNDONE
        if header.whole and self._is_committed(header):
            return header, Origin.LOCAL
        return self._repair(slice_, header), Origin.CAUGHT_UP

    def _is_committed(self, header: Header) -> bool:
        """Whether the delta that made this version counts: a lost lane may have left another delta."""
        if not header.delta or header.version < self.life.first_epoch:
            return True
        made = header.version, header.delta
        if made not in self._is_counted:  # usually the same delta for all slices of a lane
            files = self._files(header.version)
            named = () if files is None else (file.name for file in files)
            self._is_counted[made] = header.delta in named or self._is_snapshot(header)
        return self._is_counted[made]

    def _is_snapshot(self, header: Header) -> bool:
        """Whether the copy was loaded from a snapshot that still exists: a roll-back deletes the snapshots of void epochs."""
        return header.delta.startswith(SNAPSHOTS) and self.checkpoint.location.exists(header.delta)

    def _repair(self, slice_: int, header: Header) -> Header | None:
        """Repair a half-written copy: finish its delta if the delta counts, else undo it."""
        if not self._is_committed(header):
            return self._undo(slice_, header)
        try:
            delta = self.checkpoint.read_delta(header.delta)
        except StateDamagedError:
            return None
        return self._set(slice_, delta, replace(header, whole=True), False)

    def _undo(self, slice_: int, header: Header) -> Header | None:
        """Go back one version; None if the delta cannot be read or undone, or if the version before does not count either."""
        reach("undo: begun")
        before = header.back()
        try:
            delta = self.checkpoint.read_delta(header.delta)
        except StateDamagedError:
            return None
        if delta.full or not self._is_committed(before):
            return None
        return self._set(slice_, delta, before, True)

    def _set(self, slice_: int, delta: Delta, header: Header, undo: bool) -> Header:
        self.store.apply(delta.only([slice_]), {slice_: header}, undo)
        return header

    def _catch_up(self, opened: Opened, slices: list[int], version: int, epoch: int) -> str:
        """Apply the deltas that these slices lack, and read each file once; a slice whose delta is damaged is left to another copy.

        Returns a sentence about the damage; empty without damage.
        """
        try:
            for delta, file in self._deltas(slices, version + 1, epoch - 1):
                self._redo(opened, delta.only(slices), file)
                reach("rebuild: delta applied")
            self._settle(opened, slices, epoch - 1)
            opened.origins.update(dict.fromkeys(slices, Origin.CAUGHT_UP))
            return ""
        except StateDamagedError as error:
            for slice_ in slices:
                opened.headers.pop(slice_)
                opened.origins.pop(slice_)
            if len(slices) > 1:  # the damage may concern only some of the slices
                self._one_by_one(opened, slices, epoch)
            return str(error)

    def _one_by_one(self, opened: Opened, slices: list[int], epoch: int) -> None:
        for slice_ in slices:
            header = self.store.header(slice_)
            if header is not None:
                opened.headers[slice_], opened.origins[slice_] = header, Origin.CAUGHT_UP
                self._catch_up(opened, [slice_], header.version, epoch)

    def _redo(self, opened: Opened, delta: Delta, file: DeltaFile) -> None:
        slices = delta.keys.slices.tolist()
        headers = {slice_: opened.headers[slice_].next(file.epoch, file.name) for slice_ in slices}
        self.store.apply(delta, headers)
        opened.headers.update(headers)

    def _settle(self, opened: Opened, slices: list[int], version: int) -> None:
        """Set the version of slices that the last epochs did not change."""
        for slice_ in slices:
            header = opened.headers[slice_]
            if header.version < version:
                nothing = self.checkpoint.whole(version, {slice_: ()})
                opened.headers[slice_] = header.next(version, "")
                self.store.apply(nothing, {slice_: opened.headers[slice_]})

    # -- other copies --------------------------------------------------------------------------------------------------

    def _copy_from_folders(self, opened: Opened, slice_: int, epoch: int) -> bool:
        for folder in self.copies:
            if self.store.adopt(slice_, folder):
                header = self._bring_up(slice_, epoch)
                if header is not None:
                    opened.headers[slice_], opened.origins[slice_] = header, Origin.COPIED
                    return True
        return False

    def _bring_up(self, slice_: int, epoch: int) -> Header | None:
        header = self.store.header(slice_)
        if header is None or header.version > epoch:
            return None
        header, _ = self._local(slice_, header, epoch)
        if header is None:
            return None
        opened = Opened({slice_: header}, {slice_: Origin.COPIED})
        if header.version < epoch - 1:
            self._catch_up(opened, [slice_], header.version, epoch)
        return opened.headers.get(slice_)

    def _rebuild(self, opened: Opened, slices: list[int], epoch: int) -> None:
        """Rebuild slices from snapshots and deltas, all together, so that each delta is read once."""
        troubles: dict[int, list[str]] = {slice_: [] for slice_ in slices}
        bases = {slice_: self._bases(slice_, epoch, troubles[slice_]) for slice_ in slices}
        while bases:
            behind: dict[int, list[int]] = defaultdict(list)
            for slice_, candidates in bases.items():
                base = next(candidates, None)
                if base is None:
                    raise self._lost(slice_, epoch, troubles[slice_])
                opened.headers[slice_] = self._load(slice_, base)
                opened.origins[slice_] = Origin.REBUILT
                behind[base.version].append(slice_)
            for version, group in behind.items():
                damage = self._catch_up(opened, group, version, epoch)
                for slice_ in group:
                    troubles[slice_].append(f"after epoch {version}: {damage}")
            bases = {slice_: left for slice_, left in bases.items() if slice_ not in opened.headers}
        origin = Origin.NEW if epoch == self.life.first_epoch else Origin.REBUILT
        opened.origins.update(dict.fromkeys(slices, origin))

    def _load(self, slice_: int, base: _Base) -> Header:
        header = Header(base.version, self.life.identity(self.checkpoint.schema), base.name, boot=boot_id())
        self.store.load(slice_, whole_rows(base.content, slice_) if base.content is not None else (), header)
        return header

    def _lost(self, slice_: int, epoch: int, troubles: list[str]) -> StateLostError:
        self.store.drop(slice_)
        return StateLostError(
            f'slice {slice_} of operator "{self.checkpoint.schema.operator}" cannot be rebuilt as of epoch {epoch - 1}: '
            + "; ".join(troubles)
        )

    def _bases(self, slice_: int, epoch: int, troubles: list[str]) -> Iterator[_Base]:
        """Where a rebuild may start, newest first: snapshots, then the empty beginning."""
        for version in reversed(self.checkpoint.snapshots(slice_)):
            name = snapshot_name(slice_, version)
            if version >= epoch:
                continue
            try:
                yield _Base(version, name, self.checkpoint.read_delta(name))
            except StateDamagedError as error:
                troubles.append(str(error))
        yield _Base(self.life.first_epoch - 1)

    # -- deltas --------------------------------------------------------------------------------------------------------

    def _deltas(self, slices: list[int], first: int, last: int) -> Iterator[tuple[Delta, DeltaFile]]:
        """The deltas of these slices in order of epochs; a missing record of an epoch is damage."""
        wanted = set(slices)
        for epoch in range(max(first, self.life.first_epoch), last + 1):
            files = self._files(epoch)
            if files is None:
                raise StateDamagedError(f"the record of epoch {epoch} is missing")
            for file in files:
                if wanted.intersection(file.slices):
                    yield self.checkpoint.read_delta(file.name), file

    def _files(self, epoch: int) -> tuple[DeltaFile, ...] | None:
        if epoch not in self.committed:
            files = self.checkpoint.files(epoch)
            if files is None:
                return None
            self.committed[epoch] = files
        return self.committed[epoch]
