"""Slices with keys and state of fixed width: one memory-mapped hash table per slice, changed in place.

An update in place needs neither a copy nor a transaction: the epoch's delta is durable before the first word is changed and sets absolute
values, so applying the delta again finishes or undoes an update that stopped half-way.

The checksum of a table adds up all words, each times an odd number that stands for the place of the word. A wrong bit anywhere changes the
checksum, and so do rows that change places; an epoch adds the effect of its changes.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headgate import files
from headgate.errors import StateError
from headgate.state.arena import Arena
from headgate.state.delta import Delta, Keys, array_words, presence, words_array
from headgate.state.faults import reach
from headgate.state.hashing import Words, mixed
from headgate.state.schema import WORD, StateSchema
from headgate.state.store import Header, boot_id

Rows = npt.NDArray[np.int64]

HEAD_BYTES = 16384
_NOTE_AT, _NOTE_BYTES = (256, 8256), 8000
"""Headers are written alternately to two places; a control word says which header is valid."""
_MAGIC = 0x32454C4241544748
_CONTROL, _BITS, _USED, _WIDTH, _SUM = 1, 2, 3, 4, 5
_FULLEST, _ROOMY = 0.7, 0.35
"""A table that would be fuller than the first share is rebuilt at about the second share."""
_SMALLEST_BITS, _MOST_BITS = 6, 40
_SCAN_ROWS = 1 << 18
_ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class _Mapped:
    at: int
    length: int
    bits: int
    inode: int
    first: int
    """Index of the table's first row, counted in rows from the beginning of the arena."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the tables of some slices are: one entry per slice."""

    first: Rows
    shift: Words
    mask: Rows
    heads: Rows
    """Index of the first word of each header in the arena."""


class TableStore:
    """All tables of one operator in one folder."""

    def __init__(self, folder: Path, schema: StateSchema, identity: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._identity = str(folder), identity
        self._key_words = schema.key_words
        self._width = schema.key_words + len(schema.fields)
        self._arena = Arena(math.lcm(4096, WORD * self._width))
        count = len(self._arena.words) // self._width
        self._table: Words = self._arena.words[: count * self._width].reshape(count, self._width)
        self._mapped: dict[int, _Mapped] = {}
        self._noted: dict[int, tuple[int, Header]] = {}
        self._found: tuple[Keys, Rows] | None = None
        self._verified: dict[int, int] = {}
        """By slice, the inode of the file that this process has checked or written."""
        self._margin = -(-HEAD_BYTES // (WORD * self._width))

    # -- the port ------------------------------------------------------------------------------------------------------

    def header(self, slice_: int) -> Header | None:
        return self.headers((slice_,))[slice_]

    def headers(self, slices: Iterable[int]) -> dict[int, Header | None]:
        self._found = None
        with os.scandir(self._folder) as entries:
            inodes = {entry.name: entry.inode() for entry in entries}
        wanted = tuple(slices)
        tables = [self._current(slice_, inodes.get(_name(slice_))) for slice_ in wanted]
        heads = [table.at // WORD + _CONTROL for table in tables if table is not None]
        controls = iter(self._arena.words[heads].tolist())
        return {
            slice_: None if table is None else self._header(slice_, table, next(controls))
            for slice_, table in zip(wanted, tables, strict=True)
        }

    def _header(self, slice_: int, mapped: _Mapped, control: int) -> Header | None:
        known = self._noted.get(slice_)
        if known is not None and known[0] == control:
            return known[1]
        header = self._note(mapped, control)
        if header is not None:
            self._noted[slice_] = control, header
        return header

    def verify(self, slice_: int) -> bool:
        mapped = self._looked_at(slice_)
        if mapped is None:
            return False
        if self._verified.get(slice_) != mapped.inode:
            if not self._is_sound(mapped):
                return False
            self._verified[slice_] = mapped.inode
        return True

    def _is_sound(self, mapped: _Mapped) -> bool:
        word = mapped.at // WORD
        places = np.count_nonzero(self._table[mapped.first : mapped.first + (1 << mapped.bits), 0])
        used, total = (int(self._arena.words[word + at]) for at in (_USED, _SUM))
        return used >= int(places) and total == int(self._sum_of(mapped))

    def read(self, keys: Keys) -> pa.Array:
        rows = self._rows_of(keys)
        self._found = keys, rows
        found = self._table[rows]
        return words_array(found[:, self._key_words :], (found[:, 0] & _ONE) == _ONE)

    def apply(self, delta: Delta, headers: Mapping[int, Header], undo: bool = False) -> None:
        values = delta.old if undo else delta.new
        if self._found is None or self._found[0] is not delta.keys:
            self._found = delta.keys, self._rows_of(delta.keys)
        rows, places = self._found[1], self._places(delta.keys.slices)
        slices, controls = delta.keys.slices.tolist(), places.heads + _CONTROL
        # While a delta is half applied, or half undone, the header of the slice must name the delta.
        after = self._noted_beside(slices, headers, places) if not undo else self._arena.words[controls]
        torn = np.flatnonzero(self._arena.words[controls] & _ONE)
        self._arena.words[controls] = after | _ONE
        reach("apply: begun")
        self._set(rows, delta.keys.keys, values)
        before = delta.new if undo else delta.old
        self._add_up(rows, delta.keys, before, values, places)
        for index in range(len(slices)) if before.null_count == len(before) > 0 else torn.tolist():
            self._sum_up(slices[index])
        self._arena.words[controls] = self._noted_beside(slices, headers, places) if undo else after
        reach("apply: done")

    def load(self, slice_: int, rows: Iterable[tuple[pa.Array, pa.Array]], header: Header) -> None:
        self.drop(slice_)
        batches = list(rows)
        fresh = self._created(slice_, _bits_for(sum(len(keys) for keys, _ in batches)))
        self._mapped[slice_] = fresh
        for keys, values in batches:
            self._insert(slice_, array_words(keys), array_words(values))
        self._sum_up(slice_)
        self._write_note(fresh, header)
        reach("rebuild: base loaded")
        files.move_into(self._path(slice_), durable=False)

    def scan(self, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
        mapped = self._looked_at(slice_)
        if mapped is None:
            return
        for low in range(0, 1 << mapped.bits, _SCAN_ROWS):
            high = min(low + _SCAN_ROWS, 1 << mapped.bits)
            rows = self._table[mapped.first + low : mapped.first + high]
            live = rows[(rows[:, 0] & _ONE) == _ONE]
            if len(live):
                yield words_array(live[:, : self._key_words]), words_array(live[:, self._key_words :])

    def adopt(self, slice_: int, folder: Path) -> bool:
        source = folder / Path(self._path(slice_)).name
        if not source.exists():
            return False
        self.drop(slice_)
        with source.open("rb") as reading, files.beside(self._path(slice_)).open("wb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 20)
        reach("copy: half")
        files.move_into(self._path(slice_), durable=False)  # a slice of another boot is rebuilt
        reach("copy: done")
        return True

    def drop(self, slice_: int) -> None:
        self._forget(slice_)
        path = Path(self._path(slice_))
        path.unlink(missing_ok=True)
        files.beside(path).unlink(missing_ok=True)

    def close(self) -> None:
        self._found = None
        self._mapped.clear()
        self._table = np.zeros((0, self._width), np.uint64)
        self._arena.close()

    # -- keys to rows --------------------------------------------------------------------------------------------------

    def _rows_of(self, keys: Keys) -> Rows:
        """The row of each key; a key without a row gets one, still without state."""
        words = array_words(keys.keys)
        hashes, positions = mixed(words), keys.positions()
        rows = self._looked_up(words, hashes, positions, self._places(keys.slices))
        missing = np.flatnonzero(rows < 0)
        if not len(missing):
            return rows
        counts = np.bincount(positions[missing], minlength=len(keys.slices))
        if self._make_room(keys.slices, counts):
            rows = self._looked_up(words, hashes, positions, self._places(keys.slices))
            missing = np.flatnonzero(rows < 0)
        rows[missing] = self._claimed(words[missing], hashes[missing], positions[missing], self._places(keys.slices))
        return rows

    def _looked_up(self, words: Words, hashes: Words, positions: Rows, places: _Places) -> Rows:
        """The row of each key, or -1 for a key without a row."""
        first, mask = places.first[positions], places.mask[positions]
        local = (hashes >> places.shift[positions]).astype(np.int64)
        rows = first + local
        match, empty = self._compared(rows, words)
        rows[empty] = -1
        todo = np.flatnonzero(~(match | empty))
        while len(todo):
            local[todo] = (local[todo] + 1) & mask[todo]
            here = first[todo] + local[todo]
            match, empty = self._compared(here, words[todo])
            rows[todo] = np.where(match, here, -1)
            todo = todo[~(match | empty)]
        return rows

    def _claimed(self, words: Words, hashes: Words, positions: Rows, places: _Places) -> Rows:
        """Claim a row for each key that has none; of several keys that want the same row, one gets the row and the others go on."""
        used = np.bincount(positions, minlength=len(places.first)).astype(np.uint64)
        self._arena.words[places.heads + _USED] += used  # first: a crash may leave the count too high, never too low
        first, mask = places.first[positions], places.mask[positions]
        local = (hashes >> places.shift[positions]).astype(np.int64)
        todo = np.arange(len(words))
        while len(todo):
            here = first[todo] + local[todo]
            empty = np.flatnonzero(self._table[here, 0] == 0)
            winners, chosen = np.unique(here[empty], return_index=True)
            keys = words[todo[empty[chosen]]]
            self._table[winners, 1 : self._key_words] = keys[:, 1:]
            self._table[winners, 0] = keys[:, 0] & ~_ONE
            match, _ = self._compared(here, words[todo])
            todo = todo[~match]
            local[todo] = (local[todo] + 1) & mask[todo]
        weight = self._weighed((words[:, 0] & ~_ONE, *words.T[1:]), local)
        np.add.at(self._arena.words, places.heads[positions] + _SUM, weight)
        return first + local

    def _compared(self, rows: Rows, words: Words) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        tags = self._table[rows, 0]
        match = (tags | _ONE) == words[:, 0]
        for column in range(1, self._key_words):
            match &= self._table[rows, column] == words[:, column]
        return match, tags == 0

    def _set(self, rows: Rows, keys: pa.Array, values: pa.Array) -> None:
        fresh = np.empty((len(rows), self._width), np.uint64)
        fresh[:, : self._key_words] = array_words(keys)
        fresh[:, self._key_words :] = array_words(values)
        gone = ~presence(values)
        fresh[gone, 0] &= ~_ONE
        fresh[gone, self._key_words :] = 0
        half = len(rows) // 2
        self._table[rows[:half]] = fresh[:half]
        reach("apply: half")
        self._table[rows[half:]] = fresh[half:]

    # -- checksums -----------------------------------------------------------------------------------------------------

    def _weighed(self, columns: Iterable[Words], local: Rows, first: int = 0) -> Words:
        """The contribution of these rows to the checksum, by columns from number `first` on: word `n` of a table counts `2 n + 1` times."""
        places = local.astype(np.uint64) * np.uint64(2 * self._width) + _ONE
        total = np.zeros(len(local), np.uint64)
        for number, column in enumerate(columns, first):
            total += (places + np.uint64(2 * number)) * column
        return total

    def _add_up(self, rows: Rows, keys: Keys, old: pa.Array, new: pa.Array, places: _Places) -> None:
        """Add the effect of these changes to the checksums."""
        were, are = _content(old), _content(new)
        changed = (now - before for now, before in zip(are.T, were.T, strict=True))
        local = rows - np.repeat(places.first, np.diff(keys.offsets))
        change = self._weighed(changed, local, self._key_words)
        if old.null_count or new.null_count:
            change += self._weighed([presence(new).astype(np.uint64) - presence(old).astype(np.uint64)], local)
        upto = np.concatenate([np.zeros(1, np.uint64), np.cumsum(change)])[keys.offsets]
        self._arena.words[places.heads + _SUM] += upto[1:] - upto[:-1]

    def _sum_of(self, mapped: _Mapped) -> np.uint64:
        total = np.zeros(1, np.uint64)  # an array overflows without a warning
        for low in range(0, 1 << mapped.bits, _SCAN_ROWS):
            high = min(low + _SCAN_ROWS, 1 << mapped.bits)
            words = self._table[mapped.first + low : mapped.first + high].reshape(-1)
            odd = np.arange(2 * low * self._width + 1, 2 * high * self._width, 2, dtype=np.uint64)
            total += np.dot(words, odd)
        return np.uint64(total[0])

    def _sum_up(self, slice_: int) -> None:
        """Compute the checksum of a table from its content."""
        mapped = self._mapped[slice_]
        self._arena.words[mapped.at // WORD + _SUM] = self._sum_of(mapped)
        self._verified[slice_] = mapped.inode

    # -- headers -------------------------------------------------------------------------------------------------------

    def _note(self, mapped: _Mapped, control: int) -> Header | None:
        data = self._arena.read(mapped.at + _NOTE_AT[control >> 1 & 1], _NOTE_BYTES)
        length = int.from_bytes(data[:2], "little")
        content = data[WORD : WORD + length]
        header = Header.decoded(content) if data[2:WORD] == _digest(content) else None
        if header is None or header.version != (control >> 2) - 1:
            return None
        if header.identity != self._identity or header.boot != boot_id():
            return None
        return Header(
            header.version,
            header.identity,
            header.delta,
            header.base,
            header.boot,
            whole=not control & 1,
        )

    def _noted_beside(self, slices: list[int], headers: Mapping[int, Header], places: _Places) -> Words:
        """Write headers to the places that are not valid now; return the control words that make the new headers valid."""
        sides = ~(self._arena.words[places.heads + _CONTROL] >> _ONE) & _ONE
        found = [headers[slice_] for slice_ in slices]
        versions = np.array([header.version + 1 for header in found], np.uint64)
        after = versions << np.uint64(2) | sides << _ONE
        starts = places.heads + np.where(sides == 1, *(at // WORD for at in reversed(_NOTE_AT)))
        for header in {id(header): header for header in found}.values():  # mostly one header for all slices
            mine = starts[[other is header for other in found]]
            note = np.frombuffer(_packed(header), np.uint64)
            self._arena.words[mine[:, None] + np.arange(len(note))] = note
        self._noted.update(zip(slices, zip(after.tolist(), found, strict=True), strict=True))
        return after

    def _write_note(self, mapped: _Mapped, header: Header) -> None:
        self._arena.write(mapped.at + _NOTE_AT[0], _packed(header))
        self._arena.words[mapped.at // WORD + _CONTROL] = (header.version + 1) << 2

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, slice_: int) -> str:
        return f"{self._folder}/{_name(slice_)}"

    def _current(self, slice_: int, inode: int | None) -> _Mapped | None:
        """The table of the file that is there now, mapped again if another process has replaced the file."""
        known = self._mapped.get(slice_)
        if known is not None and known.inode == inode:
            return known
        self._forget(slice_)
        return None if inode is None else self._opened(slice_)

    def _looked_at(self, slice_: int) -> _Mapped | None:
        path = Path(self._path(slice_))
        return self._current(slice_, path.stat().st_ino if path.exists() else None)

    def _opened(self, slice_: int) -> _Mapped | None:
        descriptor = os.open(self._path(slice_), os.O_RDWR)
        try:
            length = os.fstat(descriptor).st_size
            head = np.frombuffer(os.pread(descriptor, 64, 0).ljust(64, b"\0"), np.uint64)
            bits = int(head[_BITS])
            if head[0] != _MAGIC or head[_WIDTH] != self._width or bits > _MOST_BITS or length != self._bytes(bits):
                return None
            self._mapped[slice_] = self._map(descriptor, bits)
        finally:
            os.close(descriptor)
        return self._mapped[slice_]

    def _created(self, slice_: int, bits: int) -> _Mapped:
        path, length = files.beside(self._path(slice_)), self._bytes(bits)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            # Allocate all blocks now: a full disk then raises an error, whereas a write through the mapping would kill the process.
            os.posix_fallocate(descriptor, 0, length)
            mapped = self._map(descriptor, bits)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StateError(f'cannot make room for slice {slice_} in "{self._folder}": {error.strerror}') from error
        finally:
            os.close(descriptor)
        word = mapped.at // WORD
        self._arena.words[[word, word + _BITS, word + _WIDTH]] = _MAGIC, bits, self._width
        return mapped

    def _bytes(self, bits: int) -> int:
        return (self._margin + (1 << bits)) * WORD * self._width

    def _map(self, descriptor: int, bits: int) -> _Mapped:
        length = self._bytes(bits)
        at = self._arena.map(descriptor, length)
        first = at // (WORD * self._width) + self._margin
        return _Mapped(at, length, bits, os.fstat(descriptor).st_ino, first)

    def _forget(self, slice_: int) -> None:
        mapped = self._mapped.pop(slice_, None)
        self._noted.pop(slice_, None)
        self._found = None
        if mapped is not None:
            self._arena.unmap(mapped.at, mapped.length)

    def _places(self, slices: npt.NDArray[np.int32]) -> _Places:
        tables = [self._mapped[slice_] for slice_ in slices.tolist()]
        bits = np.array([table.bits for table in tables], np.uint64)
        return _Places(
            np.array([table.first for table in tables], np.int64),
            np.uint64(64) - bits,
            (np.int64(1) << bits.astype(np.int64)) - 1,
            np.array([table.at // WORD for table in tables], np.int64),
        )

    # -- growth --------------------------------------------------------------------------------------------------------

    def _make_room(self, slices: npt.NDArray[np.int32], coming: npt.NDArray[np.int64]) -> bool:
        """Rebuild the tables that `coming` more keys would make too full; return whether a table was rebuilt."""
        grown = False
        for slice_, count in zip(slices.tolist(), coming.tolist(), strict=True):
            mapped = self._mapped[slice_]
            used = int(self._arena.words[mapped.at // WORD + _USED]) + count
            if used > _FULLEST * (1 << mapped.bits):
                self._grow(slice_, mapped, count)
                grown = True
        return grown

    def _grow(self, slice_: int, old: _Mapped, coming: int) -> None:
        """Build a larger table beside the old one; the old table is valid until the new one takes its name."""
        live = [(array_words(keys), array_words(values)) for keys, values in self.scan(slice_)]
        fresh = self._created(slice_, _bits_for(sum(len(keys) for keys, _ in live) + coming))
        self._mapped[slice_] = fresh
        try:
            for keys, values in live:
                self._insert(slice_, keys, values)
            self._arena.write(fresh.at + _NOTE_AT[0], self._arena.read(old.at + _NOTE_AT[0], _NOTE_BYTES))
            self._arena.write(fresh.at + _NOTE_AT[1], self._arena.read(old.at + _NOTE_AT[1], _NOTE_BYTES))
            self._arena.words[fresh.at // WORD + _CONTROL] = self._arena.words[old.at // WORD + _CONTROL]
            self._sum_up(slice_)
            reach("grow: built")
            files.move_into(self._path(slice_), durable=False)
        except BaseException:
            self._mapped[slice_] = old
            self._arena.unmap(fresh.at, fresh.length)
            raise
        self._arena.unmap(old.at, old.length)

    def _insert(self, slice_: int, keys: Words, values: Words) -> None:
        places = self._places(np.array([slice_], np.int32))
        rows = self._claimed(keys, mixed(keys), np.zeros(len(keys), np.int64), places)
        self._table[rows, : self._key_words] = keys
        self._table[rows, self._key_words :] = values


def _name(slice_: int) -> str:
    return f"slice-{slice_:05d}.table"


def _bits_for(count: int) -> int:
    return max(_SMALLEST_BITS, math.ceil(math.log2(max(1, count) / _ROOMY)))


def _content(values: pa.Array) -> Words:
    """The words of values as a table holds the values; zeros for nulls."""
    words = array_words(values)
    return words if not values.null_count else np.where(presence(values)[:, None], words, np.uint64(0))


def _digest(data: bytes) -> bytes:
    """The checksum of a header's content, which is stored before the content."""
    return xxhash.xxh3_64_digest(data)[: WORD - 2]


def _packed(header: Header) -> bytes:
    data = header.encoded()
    assert len(data) <= _NOTE_BYTES - WORD
    note = len(data).to_bytes(2, "little") + _digest(data) + data
    return note.ljust(-(-len(note) // WORD) * WORD, b"\0")
