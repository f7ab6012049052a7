"""A range of addresses into which many files are mapped, so that numpy sees the tables of all slices of a lane as one array.

A lookup of keys slice by slice would take about twenty numpy calls per slice and epoch; one array needs these calls once per lane.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import defaultdict

import numpy as np

from headgate.errors import StateError
from headgate.state.hashing import Words

ADDRESSES = 1 << 38
"""Bytes of address space, not memory, that a store reserves."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_longlong)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
_FIXED, _NO_RESERVE, _NONE = 0x10, 0x4000, 0
_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
_BOTH = mmap.PROT_READ | mmap.PROT_WRITE


class Arena:
    """A reserved range of addresses into which whole files are mapped, at multiples of `step` bytes."""

    def __init__(self, step: int, size: int = ADDRESSES) -> None:
        self.step = step
        self._size = size
        self._start = _map(None, size, _NONE, _NOTHING, -1)
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        whole = (ctypes.c_uint64 * (size // 8)).from_address(self._start)
        self.words: Words = np.ctypeslib.as_array(whole)

    def map(self, descriptor: int, length: int) -> int:
        """Map a file; return its offset from the beginning of the arena, in bytes."""
        room = -(-length // self.step) * self.step
        at = self._free[room].pop() if self._free[room] else self._grown(room)
        _map(self._start + at, length, _BOTH, mmap.MAP_SHARED | _FIXED, descriptor)
        return at

    def _grown(self, room: int) -> int:
        at, self._end = self._end, self._end + room
        if self._end > self._size:
            raise StateError(
                f"the slices of one lane need more than {self._size >> 30} GB of addresses; use more lanes"
            )
        return at

    def unmap(self, at: int, length: int) -> None:
        """Unmap a file and free its range; access to a free range is an error."""
        room = -(-length // self.step) * self.step
        _map(self._start + at, room, _NONE, _NOTHING | _FIXED, -1)
        self._free[room].append(at)

    def write(self, at: int, data: bytes) -> None:
        """Copy bytes to an offset in the arena."""
        ctypes.memmove(self._start + at, data, len(data))

    def read(self, at: int, length: int) -> bytes:
        return ctypes.string_at(self._start + at, length)

    def close(self) -> None:
        """Release all addresses; `words` must not be used afterwards."""
        self.words = np.zeros(0, np.uint64)
        _libc.munmap(self._start, self._size)


def _map(at: int | None, length: int, protection: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(at, length, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        hint = "; raise the limit on address space (ulimit -v)" if code == errno.ENOMEM else ""
        raise StateError(f"cannot map {length} bytes of state: {os.strerror(code)}{hint}")
    return int(found)
