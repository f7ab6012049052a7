"""Spark's `xxhash64` of key columns in Python, so that a row gets the same slice as in the JVM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Words = npt.NDArray[np.uint64]

SPARK_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def key_hash(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The result of Spark's `xxhash64(columns...)` for each row; a null leaves the hash unchanged.

    >>> import pyarrow as pa
    >>> key_hash([pa.array([7, None])]).tolist()
    [-2864211556195259663, 42]
    """
    length = len(columns[0])
    hashes = np.full(length, SPARK_SEED, np.uint64)
    for column in columns:
        known = _validity(column)
        hashes = np.where(known, _hash_column(column, hashes), hashes)
    return hashes.view(np.int64)


def slices_of(columns: Sequence[pa.Array], slice_count: int) -> npt.NDArray[np.int32]:
    """Slice of each row: `pmod(xxhash64(key), slice_count)`."""
    return (key_hash(columns) % slice_count).astype(np.int32)


def _validity(column: pa.Array) -> npt.NDArray[np.bool_]:
    if column.null_count == 0:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _hash_column(column: pa.Array, seeds: Words) -> Words:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        return _hash_bytes(column, seeds)
    if pa.types.is_floating(kind):
        return _hash_floats(column, seeds)
    words, narrow = integer_words(column)
    return _hash_int(words.astype(np.uint32), seeds) if narrow else _hash_long(words.view(np.uint64), seeds)


def integer_words(column: pa.Array) -> tuple[npt.NDArray[np.int64], bool]:
    """The column as 64-bit integers (nulls as 0), and whether Spark hashes its type as 32 bits."""
    kind = column.type
    narrow = kind in (pa.int8(), pa.int16(), pa.int32(), pa.bool_(), pa.date32())
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    whole = column.fill_null(False if pa.types.is_boolean(kind) else pa.scalar(0, column.type))
    return np.ascontiguousarray(whole.cast(pa.int64()).to_numpy(zero_copy_only=False)), narrow


def _hash_floats(column: pa.Array, seeds: Words) -> Words:
    wide = column.type == pa.float64()
    values = column.fill_null(0).to_numpy(zero_copy_only=False) + column.type.to_pandas_dtype()(0)  # -0.0 counts as 0.0
    values[np.isnan(values)] = np.nan
    if wide:
        return _hash_long(np.ascontiguousarray(values).view(np.uint64), seeds)
    return _hash_int(np.ascontiguousarray(values, np.float32).view(np.uint32), seeds)


def _hash_bytes(column: pa.Array, seeds: Words) -> Words:
    values = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    digest = xxhash.xxh64_intdigest
    if len(seeds) and (seeds == seeds[0]).all():
        seed = int(seeds[0])
        return np.fromiter((digest(value, seed) for value in values), np.uint64, len(values))
    pairs = zip(values, seeds.tolist(), strict=True)
    return np.fromiter((digest(value, seed) for value, seed in pairs), np.uint64, len(values))


def _hash_long(words: Words, seeds: Words) -> Words:
    hashes = seeds + _P5 + np.uint64(8)
    hashes ^= _rotated(words * _P2, 31) * _P1
    return _finished(_rotated(hashes, 27) * _P1 + _P4)


def _hash_int(words: npt.NDArray[np.uint32], seeds: Words) -> Words:
    hashes = seeds + _P5 + np.uint64(4)
    hashes ^= words.astype(np.uint64) * _P1
    return _finished(_rotated(hashes, 23) * _P2 + _P3)


def _finished(hashes: Words) -> Words:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


# -- within a slice --------------------------------------------------------------------------------------------------


def mixed(words: Words) -> Words:
    """A hash of keys of fixed width (tag, then columns) that gives keys their places within a slice: cheap, with well mixed high bits.

    Keys of one column without nulls never share a hash.
    """
    hashes = words[:, 0] >> np.uint64(2)
    for column in range(1, words.shape[1]):
        hashes = _mixed_once(hashes ^ words[:, column]) + np.uint64(column)
    return hashes


_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mixed_once(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))
