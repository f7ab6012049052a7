"""The fullest keys of an operator: named by lanes, added up by the driver."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from headgate.state.groups import group_rows
from headgate.state.hashing import slices_of
from headgate.state.hot_keys import KEPT, NAMED, HotKeys, fullest_codes, fullest_keys
from tests.state.builders import counting

SLICES = 8


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_lane_names_its_fullest_keys(kind: pa.DataType) -> None:
    schema = counting(kind).schema
    rows = {7: 50, 3: 30, 9: 20, 1: 2, 2: 1}
    keys = pa.array([key for key, count in rows.items() for _ in range(count)]).cast(kind)
    groups = group_rows(schema, [keys], slices_of([keys], SLICES), range(SLICES))
    assert fullest_keys(schema, groups) == {"7": 50, "3": 30, "9": 20}


def test_lane_without_rows_names_no_key() -> None:
    schema = counting(pa.int64()).schema
    groups = group_rows(schema, [pa.array([], pa.int64())], np.array([], np.int32), range(SLICES))
    assert fullest_keys(schema, groups) == {}
    assert fullest_codes(schema, Counter()) == {}


def test_share_of_a_key_is_that_of_recent_epochs() -> None:
    hot = HotKeys()
    for _ in range(500):
        hot.add([{"old": 90}, {"other": 5}], 100)
    assert hot.shares["old"] == pytest.approx(0.9)
    for _ in range(200):
        hot.add([{"new": 60}], 100)
    assert next(iter(hot.shares)) == "new"
    assert hot.shares["old"] < 0.05


def test_share_is_never_more_than_the_rows_that_a_key_had() -> None:
    hot = HotKeys()
    for epoch in range(50):
        hot.add([{"sometimes": 40}] if epoch % 2 else [{"other": 50}], 100)
    assert hot.shares["sometimes"] <= 0.4


def test_driver_remembers_a_bounded_number_of_keys() -> None:
    hot = HotKeys()
    for epoch in range(100):
        hot.add([{f"key {epoch} {number}": 1 for number in range(NAMED)}], NAMED)
    assert len(hot.shares) == KEPT
    hot.add([], 0)
    assert len(hot.shares) == KEPT
