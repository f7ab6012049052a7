"""Rows by slice and key: every key once, whatever its hash."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.state import groups
from headgate.state.groups import decode_keys, group_rows
from tests.state.builders import counting

rows = st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 6)), max_size=40)


def counts(found, keys):
    """Rows by slice and key, as grouped."""
    users = decode_keys(counting().schema, found.keys.keys).column("user").to_pylist()
    slices = [slice_ for slice_, low, high in found.keys.parts() for _ in range(high - low)]
    sizes = np.diff(np.append(found.starts, len(found.order))).tolist()
    assert sorted(found.order.tolist()) == list(range(len(keys)))
    return dict(zip(zip(slices, users, strict=True), sizes, strict=True)), len(users)


def check(pairs):
    keys, slices = [key for key, _ in pairs], np.array([slice_ for _, slice_ in pairs], np.int32)
    found, groups_found = counts(group_rows(counting().schema, [pa.array(keys, pa.int64())], slices, range(7)), keys)
    assert found == Counter((slice_, key) for key, slice_ in pairs)
    assert groups_found == len(found), "a key has one group"


@given(rows)
def test_rows_are_grouped_by_slice_and_key(pairs):
    check(pairs)


def test_keys_whose_hashes_differ_only_where_there_is_no_room_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "mixed", lambda words: words[:, -1])
    numbers = np.random.default_rng(7)
    check(list(zip(numbers.integers(-9, 9, 200).tolist(), numbers.integers(0, 7, 200).tolist(), strict=True)))
