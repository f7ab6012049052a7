"""Slices with keys or values of variable length: one LMDB environment per slice, one write transaction per epoch.

LMDB has no checksums. Each slice stores the sum of the hashes of its rows; an epoch subtracts the hashes of old values and adds the hashes
of new values.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, starmap
from operator import concat
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headgate import files
from headgate.config import StateSettings
from headgate.errors import StateDamagedError, StateError
from headgate.state.delta import Delta, Keys
from headgate.state.faults import reach
from headgate.state.hashing import Words
from headgate.state.schema import StateSchema
from headgate.state.store import Header, boot_id

_HEADER = b"\xfe\xfe\xfe\xfe"
_SUM = b"\xfe\xfe\xfe\xfc"
_OWN = (_HEADER, _SUM)
_CUT = b"\xfe\xfe\xfe\xfd"
"""Prefix of stored keys that are cut short, because LMDB allows 511 bytes at most; the value then begins with the whole key. No key of the
codec, and no row of the library, begins with this prefix."""
_LONGEST = 500
_LENGTH_BYTES = 4
_LOCK_BYTES = 16384
"""Size of the lock file: more than LMDB needs for 126 readers."""
_LARGEST_PAGE = 65536
_SCAN_ROWS = 1 << 14
_WRAP = (1 << 64) - 1
_digest: Callable[[bytes], int] = xxhash.xxh3_64_intdigest
_joined: Callable[[Any, Any], Any] = concat
_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.PanicError,
    lmdb.IncompatibleError,
)
"""Errors that LMDB raises for a damaged file."""
_META = struct.Struct("<16xII16xI92xQ")
"""A meta page of LMDB: magic number, version, size of a page, number of the last page."""
_META_MAGIC = 0xBEEFC0DE


class RowStore:
    """All environments of one operator in one folder."""

    def __init__(self, folder: Path, schema: StateSchema, identity: str, settings: StateSettings) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._identity = folder, identity
        self._key_type, self._value_type = schema.key_type, schema.value_type
        self._map_bytes = settings.largest_slice_mb << 20
        self._open: dict[int, tuple[int, Any]] = {}
        self._verified: dict[int, int] = {}
        """By slice, the inode of the file that this process has checked or written."""

    # -- the port ------------------------------------------------------------------------------------------------------

    def header(self, slice_: int) -> Header | None:
        try:
            environment = self._environment(slice_)
            if environment is None:
                return None
            with _lmdb_errors(slice_), environment.begin() as transaction:
                data = transaction.get(_HEADER)
        except StateDamagedError:
            return None
        header = None if data is None else Header.decoded(data)
        if header is None or header.identity != self._identity or header.boot != boot_id():
            return None
        return header

    def headers(self, slices: Iterable[int]) -> dict[int, Header | None]:
        return {slice_: self.header(slice_) for slice_ in slices}

    def verify(self, slice_: int) -> bool:
        try:
            environment = self._environment(slice_)
            if environment is None:
                return False
            inode = self._open[slice_][0]
            if self._verified.get(slice_) != inode:
                with _lmdb_errors(slice_), environment.begin() as transaction:
                    if _noted_sum(transaction) != _sum_of_all(transaction):
                        return False
                self._verified[slice_] = inode
        except StateDamagedError:
            return False
        return True

    def read(self, keys: Keys) -> pa.Array:
        values: list[bytes | None] = []
        plain = keys.keys.to_pylist()
        stored = plain if _all_short(keys.keys) else [_stored(key) for key in plain]
        for slice_, low, high in keys.parts():
            if low < high:
                values += self._values(slice_, stored[low:high])
        if stored is not plain:
            values = [_without(value, key) for value, key in zip(values, plain, strict=True)]
        return pa.array(values, self._value_type)

    def _values(self, slice_: int, stored: list[bytes]) -> list[bytes | None]:
        with _lmdb_errors(slice_), self._required(slice_).begin() as transaction:
            found = dict(transaction.cursor().getmulti(stored))
        return list(map(found.get, stored))

    def get(self, slice_: int, key: bytes) -> bytes | None:
        """The value of one key; None if the slice has no such key."""
        with self._required(slice_).begin() as transaction:
            return _without(transaction.get(_stored(key)), key)

    def apply(self, delta: Delta, headers: Mapping[int, Header], undo: bool = False) -> None:
        reach("apply: begun")
        wanted, before = (delta.old, delta.new) if undo else (delta.new, delta.old)
        keys, values = delta.keys.keys.to_pylist(), wanted.to_pylist()
        # A delta without old values does not say what was before.
        old = before if before.null_count < len(before) else self.read(delta.keys)
        short = _all_short(delta.keys.keys)
        plain = wanted.null_count == 0 and short
        change = _digests(keys, values, short) - _digests(keys, old.to_pylist(), short)
        upto = np.concatenate([np.zeros(1, np.uint64), np.cumsum(change)])
        for index, (slice_, low, high) in enumerate(delta.keys.parts()):
            if index == len(delta.keys.slices) // 2:
                reach("apply: half")
            rows = list(zip(keys[low:high], values[low:high], strict=True))
            self._write(slice_, rows, headers[slice_], int(upto[high]) - int(upto[low]), plain)
        reach("apply: done")

    def _write(
        self, slice_: int, rows: list[tuple[bytes, bytes | None]], header: Header, change: int, plain: bool = False
    ) -> None:
        """Write rows and the header of a slice, and add `change` to the checksum. `plain`: no key is too long, and no row is deleted."""
        put = rows if plain else [(_stored(key), _with(key, value)) for key, value in rows if value is not None]
        with _lmdb_errors(slice_), self._required(slice_).begin(write=True) as transaction:
            transaction.cursor().putmulti(put)
            for key, value in () if plain else rows:
                if value is None:
                    transaction.delete(_stored(key))
            _note_sum(transaction, _noted_sum(transaction) + change)
            transaction.put(_HEADER, header.encoded())

    def load(self, slice_: int, rows: Iterable[tuple[pa.Array, pa.Array]], header: Header) -> None:
        self.drop(slice_)
        for keys, values in rows:
            pairs = zip(keys.to_pylist(), values.to_pylist(), strict=True)
            put = [(_stored(key), _with(key, value)) for key, value in pairs]
            with _lmdb_errors(slice_), self._required(slice_).begin(write=True) as transaction:
                transaction.cursor().putmulti(put)
                _note_sum(transaction, _noted_sum(transaction) + sum(map(_digest, starmap(_joined, put))))
        reach("rebuild: base loaded")
        self._write(slice_, [], header, 0)
        self._verified[slice_] = self._open[slice_][0]

    def scan(self, slice_: int) -> Iterator[tuple[pa.Array, pa.Array]]:
        environment = self._environment(slice_)
        if environment is None:
            return
        with _lmdb_errors(slice_), environment.begin() as transaction, transaction.cursor() as cursor:
            pairs = (pair for pair in cursor.iternext() if pair[0] not in _OWN)
            while found := [_restored(*pair) for pair in islice(pairs, _SCAN_ROWS)]:
                yield (
                    pa.array([key for key, _ in found], self._key_type),
                    pa.array([value for _, value in found], self._value_type),
                )

    def adopt(self, slice_: int, folder: Path) -> bool:
        source = folder / self._path(slice_).name
        if not source.exists():
            return False
        self.drop(slice_)
        beside = files.beside(self._path(slice_))
        with _lmdb_errors(slice_), _borrowed(source, self._map_bytes) as other, beside.open("wb") as writing:
            other.copyfd(writing.fileno(), compact=True)
        reach("copy: half")
        files.move_into(self._path(slice_), durable=False)  # a slice of another boot is rebuilt
        reach("copy: done")
        return True

    def drop(self, slice_: int) -> None:
        self._forget(slice_)
        for suffix in (".mdb", ".mdb-lock"):
            self._path(slice_).with_suffix(suffix).unlink(missing_ok=True)
        files.beside(self._path(slice_)).unlink(missing_ok=True)

    def close(self) -> None:
        for slice_ in list(self._open):
            self._forget(slice_)

    # -- environments --------------------------------------------------------------------------------------------------

    def _path(self, slice_: int) -> Path:
        return self._folder / f"slice-{slice_:05d}.mdb"

    def _environment(self, slice_: int) -> Any:
        """The environment of the file that is on disk now, which another process may have replaced; None without a file."""
        known = self._open.get(slice_)
        try:
            inode = self._path(slice_).stat().st_ino
        except FileNotFoundError:
            self._forget(slice_)
            return None
        if known is None or known[0] != inode:
            self._forget(slice_)
            with _lmdb_errors(slice_):
                self._open[slice_] = inode, _environment(self._path(slice_), self._map_bytes)
        return self._open[slice_][1]

    def _required(self, slice_: int) -> Any:
        known = self._open.get(slice_)
        if known is None:
            with _lmdb_errors(slice_):
                environment = _environment(self._path(slice_), self._map_bytes)
            known = self._open[slice_] = self._path(slice_).stat().st_ino, environment
        return known[1]

    def _forget(self, slice_: int) -> None:
        known = self._open.pop(slice_, None)
        if known is not None:
            _close(self._path(slice_))


_open: dict[str, Any] = {}
"""Every environment of this process: LMDB forbids opening one twice."""


def _environment(path: Path, map_bytes: int) -> Any:
    """Open an environment without forcing data to disk: deltas are durable, and a copy from before a reboot is not trusted."""
    _prepare(path, map_bytes)
    found = _open[str(path)] = lmdb.open(
        str(path), subdir=False, map_size=map_bytes, sync=False, metasync=False, readahead=False, max_spare_txns=1
    )
    found.reader_check()  # a process that was killed while reading would keep old pages for ever
    return found


def _prepare(path: Path, map_bytes: int) -> None:
    """Extend the lock file and a truncated data file to the bytes that LMDB maps, because a read of missing bytes kills the process."""
    with open(f"{path}-lock", "ab") as lock:
        os.posix_fallocate(lock.fileno(), 0, _LOCK_BYTES)
    if not path.exists():
        return
    with path.open("r+b") as data:
        needed = _needed_bytes(data.read(2 * _LARGEST_PAGE))
        if needed > map_bytes:
            raise lmdb.InvalidError(f'"{path}" says that it has {needed} bytes')
        if os.fstat(data.fileno()).st_size < needed:
            data.truncate(needed)  # missing bytes are zeros from now on, which LMDB or the checksum finds


def _needed_bytes(head: bytes) -> int:
    """The file size that both meta pages ask for; 0 if the meta pages make no sense, which LMDB reports itself."""
    if len(head) < _META.size:
        return 0
    size = _META.unpack_from(head)[2]
    metas = [_META.unpack_from(head, at) for at in (0, size) if size > 0 and at + _META.size <= len(head)]
    return max(((last + 1) * size for magic, _, _, last in metas if magic == _META_MAGIC), default=0)


def _close(path: Path) -> None:
    environment = _open.pop(str(path), None)
    if environment is not None:
        environment.close()


@contextmanager
def _borrowed(path: Path, map_bytes: int) -> Iterator[Any]:
    """The environment of another store, whether open in this process or not."""
    if str(path) in _open:
        yield _open[str(path)]
        return
    try:
        yield _environment(path, map_bytes)
    finally:
        _close(path)


@contextmanager
def _lmdb_errors(slice_: int) -> Iterator[None]:
    """Turn an error of LMDB into one sentence that names the slice."""
    try:
        yield
    except lmdb.MapFullError:
        raise StateError(
            f'slice {slice_} is larger than the setting "largest_slice_mb" allows; raise it, or use more slices'
        ) from None
    except _DAMAGED as error:
        raise StateDamagedError(f"the copy of slice {slice_} is damaged: {error}") from error
    except (lmdb.Error, OSError) as error:
        raise StateError(f"slice {slice_} cannot be read or written: {error}") from error


# -- checksums -------------------------------------------------------------------------------------------------------


def _digests(keys: list[bytes], values: list[bytes | None], short: bool) -> Words:
    """The contribution of each row to the checksum; 0 for a row without a value."""
    if not short:
        stored = (
            _stored(key) + (_with(key, value) if value is not None else b"")
            for key, value in zip(keys, values, strict=True)
        )
        found = np.fromiter(map(_digest, stored), np.uint64, len(keys))
    else:
        found = np.fromiter(map(_digest, map(_joined, keys, [value or b"" for value in values])), np.uint64, len(keys))
    if None in values:
        found[[value is None for value in values]] = 0
    return found


def _sum_of_all(transaction: Any) -> int:
    own = sum(_digest(key + (transaction.get(key) or b"")) for key in _OWN if transaction.get(key))
    return (sum(map(_digest, starmap(_joined, transaction.cursor()))) - own) & _WRAP


def _noted_sum(transaction: Any) -> int:
    return int.from_bytes(transaction.get(_SUM) or b"", "little")


def _note_sum(transaction: Any, total: int) -> None:
    transaction.put(_SUM, (total & _WRAP).to_bytes(8, "little"))


# -- keys that are too long for LMDB ---------------------------------------------------------------------------------


def _all_short(keys: pa.Array) -> bool:
    longest = pc.max(pc.binary_length(keys)).as_py()
    return longest is None or longest <= _LONGEST


def _stored(key: bytes) -> bytes:
    return key if len(key) <= _LONGEST else _CUT + key[: _LONGEST - 20] + xxhash.xxh3_128_digest(key)


def _with(key: bytes, value: bytes) -> bytes:
    return value if len(key) <= _LONGEST else len(key).to_bytes(_LENGTH_BYTES, "little") + key + value


def _without(value: bytes | None, key: bytes) -> bytes | None:
    return value if value is None or len(key) <= _LONGEST else value[_LENGTH_BYTES + len(key) :]


def _restored(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    if not key.startswith(_CUT):
        return key, value
    length = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "little")
    return value[_LENGTH_BYTES:length], value[length:]
