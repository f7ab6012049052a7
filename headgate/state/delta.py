"""The changes of an epoch: per key the state before and after. Forwards a delta is redo, backwards a delta is undo (ChronoStream, III-B).

A delta covers the slices of one lane. On disk, a delta is one file with a checksum; rows of a slice lie together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headgate.errors import StateDamagedError
from headgate.state.hashing import Words
from headgate.state.schema import WORD

MAGIC = b"HGSTATE1"
_HEAD = struct.Struct("<8s16sQ")
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Keys:
    """Distinct keys of some slices; those of `slices[i]` are `keys[offsets[i]:offsets[i + 1]]`."""

    slices: npt.NDArray[np.int32]
    offsets: Offsets
    keys: pa.Array

    def positions(self) -> npt.NDArray[np.int64]:
        """For each key, the index of its slice."""
        return np.repeat(np.arange(len(self.slices)), np.diff(self.offsets))

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """For each slice, even without keys: the slice, the index of its first key, and the index after its last key."""
        return zip(self.slices.tolist(), self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Delta:
    """One epoch's changes to the slices of a lane; a null stands for "no such key"."""

    epoch: int
    keys: Keys
    old: pa.Array
    new: pa.Array
    full: bool = False
    """Whether `new` is the whole content of these slices, not only the changes."""

    def __len__(self) -> int:
        return len(self.new)

    def only(self, slices: Iterable[int]) -> Delta:
        """The part of the delta in these slices."""
        wanted = set(slices)
        if wanted.issuperset(self.keys.slices.tolist()):
            return self
        parts = [part for part in self.keys.parts() if part[0] in wanted]
        rows = np.concatenate([np.arange(low, high) for _, low, high in parts] or [np.zeros(0, np.int64)])
        lengths = [high - low for _, low, high in parts]
        keys = Keys(
            np.array([part[0] for part in parts], np.int32),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            self.keys.keys.take(rows),
        )
        return Delta(self.epoch, keys, self.old.take(rows), self.new.take(rows), self.full)

    # -- on disk ---------------------------------------------------------------------------------------------------

    def encoded(self) -> tuple[bytes, pa.Buffer]:
        """Encode the delta as a head with a checksum, and a body."""
        about = {"epoch": self.epoch, "full": self.full}
        places = {"slices": self.keys.slices.tolist(), "offsets": self.keys.offsets.tolist()}
        schema = pa.schema(
            [("key", self.keys.keys.type), ("old", self.old.type), ("new", self.new.type)],
            {b"headgate": msgspec.json.encode(about | places)},
        )
        body = _ipc(pa.RecordBatch.from_arrays([self.keys.keys, self.old, self.new], schema=schema))
        return _head(body), body

    @staticmethod
    def decoded(data: pa.Buffer, name: str) -> Delta:
        """Decode a delta; `StateDamagedError` if the checksum does not match."""
        batch = _batch(data, name)
        about = msgspec.json.decode(batch.schema.metadata[b"headgate"])
        keys = Keys(np.array(about["slices"], np.int32), np.array(about["offsets"], np.int64), batch.column("key"))
        return Delta(about["epoch"], keys, batch.column("old"), batch.column("new"), bool(about["full"]))


def _ipc(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _head(body: pa.Buffer) -> bytes:
    return _HEAD.pack(MAGIC, xxhash.xxh3_128_digest(body), body.size)


def _batch(data: pa.Buffer, name: str) -> pa.RecordBatch:
    if data.size < _HEAD.size:
        raise StateDamagedError(f'"{name}" is cut off: it has {data.size} bytes')
    magic, digest, length = _HEAD.unpack(memoryview(data)[: _HEAD.size])
    body = data.slice(_HEAD.size)
    if magic != MAGIC or body.size != length:
        raise StateDamagedError(f'"{name}" is not a whole file of state: it has {body.size} of {length} bytes')
    if xxhash.xxh3_128_digest(body) != digest:
        raise StateDamagedError(f'"{name}" is damaged: its checksum does not match')
    with pa.ipc.open_stream(body) as reader:
        return reader.read_next_batch()


# -- words and Arrow -------------------------------------------------------------------------------------------------


def words_array(words: Words, present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Rows of words as fixed-size binary, without a copy; rows that are not present are null."""
    bitmap = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    rows = np.ascontiguousarray(words)
    return pa.Array.from_buffers(pa.binary(WORD * rows.shape[1]), len(rows), [bitmap, pa.py_buffer(rows)])


def array_words(array: pa.Array) -> Words:
    """Rows of words of a fixed-size binary array, without a copy."""
    width = array.type.byte_width // WORD
    flat = np.frombuffer(array.buffers()[1] or b"", np.uint64)
    return flat[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def presence(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows are not null."""
    if array.null_count == 0:
        return np.ones(len(array), bool)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
