"""Rows of an epoch, grouped by key within slices: sorted once per lane, whatever the number of slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import StateError
from headgate.state.delta import Keys, array_words, words_array
from headgate.state.hashing import Words, mixed
from headgate.state.schema import StateSchema

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows in the order of their groups: group i is rows `order[starts[i]:starts[i + 1]]`, of one key in one slice."""

    order: Order
    starts: Order
    keys: Keys


def group_rows(
    schema: StateSchema, columns: Sequence[pa.Array], row_slices: npt.NDArray[Any], slices: Sequence[int]
) -> RowGroups:
    """Group rows by slice and key; `slices` are all slices of the lane, with or without rows."""
    wanted = np.array(sorted(slices), np.int32)
    positions = positions_in(wanted, row_slices)
    if schema.tabular:
        words = schema.key_as_words(columns)
        order, starts = _by_words(words, positions, len(wanted))
        keys = words_array(words[order[starts]])
    else:
        coded = schema.key_as_bytes(columns)
        order, starts = _by_bytes(coded, positions)
        keys = coded.take(pa.array(order[starts]))
    offsets = np.searchsorted(positions[order[starts]], np.arange(len(wanted) + 1)).astype(np.int64)
    return RowGroups(order, starts, Keys(wanted, offsets, keys))


def positions_in(wanted: npt.NDArray[np.int32], row_slices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Index of each row's slice among the slices of the lane; refuses a row of another lane, which would be lost."""
    index = np.full(max(int(wanted.max(initial=-1)), int(row_slices.max(initial=-1))) + 1, -1, np.int32)
    index[wanted] = np.arange(len(wanted))
    positions: npt.NDArray[Any] = index[row_slices]
    if (positions < 0).any():
        stray = int(row_slices[positions < 0][0])
        raise StateError(f"a row of slice {stray} came to a lane that does not have it; its routing is out of date")
    return positions.astype(np.uint16 if len(wanted) < 1 << 16 else np.int64)


def decode_keys(schema: StateSchema, keys: pa.Array) -> pa.RecordBatch:
    """Decode keys to the key columns."""
    return schema.keys_from_words(array_words(keys)) if schema.tabular else schema.keys_from_bytes(keys.to_pylist())


def one_batch(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch | None:
    """All rows in one batch; None without rows."""
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else None
    return pa.Table.from_batches(filled).combine_chunks().to_batches()[0]


def _by_words(words: Words, positions: npt.NDArray[Any], slices: int) -> tuple[Order, Order]:
    codes = mixed(words)  # the order in which keys lie in a table
    placed = _slice_first(codes, positions, slices)
    order = np.argsort(placed)
    placed, codes = placed[order], codes[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = placed[1:] != placed[:-1]
    # Different keys may share a sort number and then be interleaved: only a sort by every word separates these keys.
    shared = ~fresh[1:] & (codes[1:] != codes[:-1])
    if words.shape[1] > 2 or (words[:, 0] != words[:1, 0]).any():
        ordered = words[order]
        shared |= ~fresh[1:] & (ordered[1:] != ordered[:-1]).any(axis=1)
    return _by_every_word(words, positions) if shared.any() else (order, np.flatnonzero(fresh))


def _slice_first(codes: npt.NDArray[np.uint64], positions: npt.NDArray[Any], slices: int) -> npt.NDArray[np.uint64]:
    """One number to sort by: the slice, then the highest bits of the code. One sort takes half as long as two."""
    bits = np.uint64((slices - 1).bit_length())
    if not bits:
        return codes
    first: npt.NDArray[np.uint64] = positions.astype(np.uint64) << (np.uint64(64) - bits)
    return first | codes >> bits


def _by_every_word(words: Words, positions: npt.NDArray[Any]) -> tuple[Order, Order]:
    order = np.lexsort((*words.T, positions))
    ordered, placed = words[order], positions[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1) | (placed[1:] != placed[:-1])
    return order, np.flatnonzero(fresh)


def _by_bytes(keys: pa.Array, positions: npt.NDArray[Any]) -> tuple[Order, Order]:
    coded = keys.dictionary_encode()
    rank = np.empty(len(coded.dictionary), np.int64)
    rank[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(rank))  # LMDB is faster with sorted keys
    codes = rank[coded.indices.to_numpy()] + positions.astype(np.int64) * max(1, len(rank))
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = codes[1:] != codes[:-1]
    return order, np.flatnonzero(fresh)
