"""Slices brought to the state after a given epoch, from the nearest copy that can be trusted.

In this order: the copy on this host as it is; the same with an epoch undone (it is being replayed) or with the deltas it
lacks (it was a backup, or was left behind); a copy from another folder, if one is named; the newest snapshot with the deltas since; older
snapshots; nothing at all, if the state began with an epoch whose deltas are all there. A copy that proves damaged is passed over,
and if none is left, `StateLostError` names what is missing. State is never silently lost.
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
from headgate.state.faults import passing
from headgate.state.store import Header, SliceStore, boot_id


class Origin(Enum):
    """Where an opened slice came from."""

    LOCAL = "local"
    """It was there, as it was left."""
    UNDONE = "undone"
    """It was there; its last epoch is being replayed."""
    CAUGHT_UP = "caught up"
    """It was there, some epochs behind."""
    COPIED = "copied"
    """From another folder."""
    REBUILT = "rebuilt"
    """From a snapshot and deltas."""
    NEW = "new"
    """The operator has only begun."""


@dataclass(frozen=True, slots=True)
class _Base:
    """Where a rebuild starts."""

    version: int
    name: str = ""
    content: Delta | None = None
    """None: empty."""


@dataclass(slots=True)
class Opened:
    """Slices ready to go on, and where each came from."""

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
    """Records of epochs that are known already."""
    _counts: dict[tuple[int, str], bool] = field(default_factory=dict)

    def at(self, slices: Iterable[int], epoch: int) -> Opened:
        """The slices as they were before `epoch`, which is about to run or to be run again."""
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
        self._rebuild(opened, [slice_ for slice_ in missing if not self._copied(opened, slice_, epoch)], epoch)
        return opened

    # -- the copy on this host -----------------------------------------------------------------------------------------

    def _local(self, slice_: int, header: Header | None, epoch: int) -> tuple[Header | None, Origin]:
        if header is None or (header.whole and not self.store.verify(slice_)):
            return None, Origin.LOCAL  # none, or damaged
        if header.version > epoch:
            if self._is_committed(header):
                raise StateBusyError(
                    f"slice {slice_} is already at epoch {header.version}, which is committed, and epoch {epoch} was to run on it:"
                    " the lane belongs to an attempt that was given up"
                )
            return None, Origin.LOCAL  # left by epochs that are void since the job was set back
        if header.version == epoch:
            return self._undone(slice_, header), Origin.UNDONE
        if header.whole and self._is_committed(header):
            return header, Origin.LOCAL
        return self._mended(slice_, header), Origin.CAUGHT_UP

    def _is_committed(self, header: Header) -> bool:
        """Whether the delta that made this version is the one that counts: a lane that was lost may have left another."""
        if not header.delta or header.version < self.life.first_epoch:
            return True
        made = header.version, header.delta
        if made not in self._counts:  # of all slices of a lane it is usually the same one
            files = self._files(header.version)
            named = () if files is None else (file.name for file in files)
            self._counts[made] = header.delta in named or self._is_snapshot(header)
        return self._counts[made]

    def _is_snapshot(self, header: Header) -> bool:
        """Whether the copy was loaded from a snapshot that is still there: those of epochs that are void were deleted."""
        return header.delta.startswith(SNAPSHOTS) and self.checkpoint.location.exists(header.delta)

    def _mended(self, slice_: int, header: Header) -> Header | None:
        """A copy that was left half-way: finish its delta if it counts, else take it back."""
        if not self._is_committed(header):
            return self._undone(slice_, header)
        try:
            delta = self.checkpoint.read_delta(header.delta)
        except StateDamagedError:
            return None
        return self._set(slice_, delta, replace(header, whole=True), False)

    def _undone(self, slice_: int, header: Header) -> Header | None:
        """The version before; None if the delta cannot be read or has no way back, or if that version does not count either."""
        passing("undo: begun")
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
        """Apply the deltas that these slices lack, each file read once; those that cannot be are left for another copy.

        Returns what is damaged, if anything is.
        """
        try:
            for delta, file in self._deltas(slices, version + 1, epoch - 1):
                self._redo(opened, delta.only(slices), file)
                passing("rebuild: delta applied")
            self._settle(opened, slices, epoch - 1)
            opened.origins.update(dict.fromkeys(slices, Origin.CAUGHT_UP))
            return ""
        except StateDamagedError as error:
            for slice_ in slices:
                opened.headers.pop(slice_)
                opened.origins.pop(slice_)
            if len(slices) > 1:  # the damage may concern some of them only
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
        if delta.full:
            for slice_ in slices:
                self.store.load(slice_, whole_rows(delta, slice_), headers[slice_])
        else:
            self.store.apply(delta, headers)
        opened.headers.update(headers)

    def _settle(self, opened: Opened, slices: list[int], version: int) -> None:
        """Epochs in which no lane had a slice change nothing in it but its version."""
        for slice_ in slices:
            header = opened.headers[slice_]
            if header.version < version:
                nothing = self.checkpoint.whole(version, {slice_: ()})
                opened.headers[slice_] = header.next(version, "")
                self.store.apply(nothing, {slice_: opened.headers[slice_]})

    # -- other copies --------------------------------------------------------------------------------------------------

    def _copied(self, opened: Opened, slice_: int, epoch: int) -> bool:
        for folder in self.copies:
            if self.store.adopt(slice_, folder):
                header = self._brought_up(slice_, epoch)
                if header is not None:
                    opened.headers[slice_], opened.origins[slice_] = header, Origin.COPIED
                    return True
        return False

    def _brought_up(self, slice_: int, epoch: int) -> Header | None:
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
        """From snapshots and deltas: all slices together, so that each delta is read once, not once per slice."""
        troubles: dict[int, list[str]] = {slice_: [] for slice_ in slices}
        bases = {slice_: self._bases(slice_, epoch, troubles[slice_]) for slice_ in slices}
        while bases:
            behind: dict[int, list[int]] = defaultdict(list)
            for slice_, candidates in bases.items():
                base = next(candidates, None)
                if base is None:
                    raise self._lost(slice_, epoch, troubles[slice_])
                opened.headers[slice_] = self._loaded(slice_, base)
                opened.origins[slice_] = Origin.REBUILT
                behind[base.version].append(slice_)
            for version, group in behind.items():
                damage = self._catch_up(opened, group, version, epoch)
                for slice_ in group:
                    troubles[slice_].append(f"after epoch {version}: {damage}")
            bases = {slice_: left for slice_, left in bases.items() if slice_ not in opened.headers}
        origin = Origin.NEW if epoch == self.life.first_epoch else Origin.REBUILT
        opened.origins.update(dict.fromkeys(slices, origin))

    def _loaded(self, slice_: int, base: _Base) -> Header:
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
        """Where a rebuild may start, newest first: full checkpoints and snapshots, then the empty beginning."""
        starts = [
            (version, snapshot_name(slice_, version))
            for version in self.checkpoint.snapshots(slice_)
            if version < epoch
        ]
        starts += [
            (version, file.name)
            for version in self.checkpoint.epochs()
            if version < epoch
            for file in self._readable(version)
            if file.full and slice_ in file.slices
        ]
        for version, name in sorted(starts, reverse=True):
            try:
                yield _Base(version, name, self.checkpoint.read_delta(name))
            except StateDamagedError as error:
                troubles.append(str(error))
        yield _Base(self.life.first_epoch - 1)

    def _readable(self, epoch: int) -> tuple[DeltaFile, ...]:
        """The files of an epoch; none if its record is damaged, since another base may do without it."""
        try:
            return self._files(epoch) or ()
        except StateDamagedError:
            return ()

    # -- deltas --------------------------------------------------------------------------------------------------------

    def _deltas(self, slices: list[int], first: int, last: int) -> Iterator[tuple[Delta, DeltaFile]]:
        """Every delta of these slices, in order of epochs; an epoch without its record is damage."""
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
