"""Epochs of keyed operators: exact, replayable, and independent of how slices are spread over lanes."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import StateBusyError, StateError, StateSchemaError
from headgate.state.aggregate import Aggregate
from headgate.state.checkpoint import Checkpoint
from headgate.state.hashing import key_hash
from headgate.state.inspect import read_state
from headgate.state.lane import run_lane
from headgate.state.location import Location
from headgate.state.operators import Batches, Changed, KeyedOperator
from tests.examples import examples
from tests.state.builders import Driver, counting, rows

KEYS = {"numbers": pa.int64(), "texts": pa.string()}


def typed(kind, pairs):
    return [(f"user {user}" if kind == "texts" else user, amount) for user, amount in pairs]


def state(driver):
    return {
        entry.key["user"]: (entry.state[":count"], entry.state["amount:sum"])
        for entry in read_state(driver.place / "checkpoint")
    }


def expected(pairs):
    counts: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    for user, amount in pairs:
        counts[user] += 1
        sums[user] += amount
    return {user: (counts[user], sums[user]) for user in counts}


def random_pairs(seed, count=500, users=60):
    numbers = np.random.default_rng(seed)
    return list(zip(numbers.integers(0, users, count).tolist(), numbers.integers(-9, 9, count).tolist(), strict=True))


@pytest.mark.parametrize("kind", KEYS)
def test_counts_and_sums_are_exact_over_epochs(tmp_path, kind):
    driver, all_pairs = Driver(tmp_path, counting(KEYS[kind])), []
    for epoch in range(5):
        pairs = typed(kind, random_pairs(epoch))
        all_pairs += pairs
        driver.epoch_of(rows(pairs, KEYS[kind]))
        assert {row["user"]: (row["visits"], row["total"]) for row in driver.outputs} == {
            user: value for user, value in expected(all_pairs).items() if user in dict(pairs)
        }
    assert state(driver) == expected(all_pairs)


@pytest.mark.parametrize("kind", KEYS)
def test_slices_stay_local_when_lanes_change_on_a_host(tmp_path, kind):
    driver, all_pairs = Driver(tmp_path, counting(KEYS[kind])), []
    layouts: list[dict[int, Any]] = [
        {0: range(8)},
        {0: range(4), 1: range(4, 8)},
        {0: [7], 1: [0, 3], 2: [1, 2, 4, 5, 6]},
    ]
    for epoch, lanes in enumerate(layouts):
        driver.route(lanes)
        pairs = typed(kind, random_pairs(epoch))
        all_pairs += pairs
        driver.epoch_of(rows(pairs, KEYS[kind]))
        assert driver.origins() == ({"new": 8} if epoch == 0 else {"local": 8})
    assert state(driver) == expected(all_pairs)


@pytest.mark.parametrize("kind", KEYS)
def test_an_epoch_run_again_changes_nothing(tmp_path, kind):
    driver = Driver(tmp_path, counting(KEYS[kind]))
    first, second = typed(kind, random_pairs(1)), typed(kind, random_pairs(2))
    driver.epoch_of(rows(first, KEYS[kind]))
    driver.run(rows(second, KEYS[kind]))
    once = driver.outputs
    driver.route({0: range(3), 1: range(3, 8)})
    driver.run(rows(second, KEYS[kind]))
    assert driver.origins() == {"undone": 8}
    driver.epoch_of(rows(second, KEYS[kind]))
    assert sorted(driver.outputs, key=str) == sorted(once, key=str)
    assert state(driver) == expected(first + second)


def test_an_epoch_that_is_replayed_with_other_rows_leaves_no_trace_of_the_first_try(tmp_path):
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(1, 1)]))
    driver.run(rows([(2, 2), (1, 5)]))
    driver.epoch_of(rows([(3, 3)]))
    assert state(driver) == {1: (1, 1), 3: (1, 3)}
    driver.epoch_of(rows([(2, 7)]))
    assert driver.outputs == [{"user": 2, "visits": 1, "total": 7}]


def test_a_lane_of_an_older_epoch_is_refused(tmp_path):
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(1, 1)]))
    driver.epoch_of(rows([(1, 1)]))
    driver.epoch = 0
    with pytest.raises(StateBusyError, match="already at epoch 1"):
        driver.run(rows([(1, 1)]))


def test_a_row_that_came_to_the_wrong_lane_is_refused_not_lost(tmp_path):
    driver = Driver(tmp_path)
    driver.route({0: [0]})
    with pytest.raises(StateError, match="does not have it"):
        list(run_lane(driver.operator, driver.task(0), [rows([(user, 1) for user in range(50)])]))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (KeyedOperator("visits", {"user": pa.string()}, Aggregate.of({"visits": "count"})), "key columns user int64"),
        (KeyedOperator("visits", {"user": pa.int64()}, Aggregate.of({"m": "max(amount)"})), "state fields"),
        (KeyedOperator("visits", {"user": pa.int64()}, counting().processor, version=2), "version 1"),
    ],
)
def test_an_incompatible_change_of_the_state_is_refused_in_a_sentence(tmp_path, changed, words):
    driver = Driver(tmp_path)
    with pytest.raises(StateSchemaError, match=words) as refused:
        Checkpoint(driver.checkpoint.location, changed.schema).begin(0, 8)
    assert "\n" not in str(refused.value)


def test_another_number_of_slices_is_refused(tmp_path):
    driver = Driver(tmp_path, slices=8)
    with pytest.raises(StateError, match="cut into 8 slices; it now asks for 16"):
        driver.checkpoint.begin(0, 16)


def test_state_of_a_removed_operator_of_the_same_name_is_not_mistaken_for_ours(tmp_path):
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(1, 1)]))
    shutil.rmtree(tmp_path / "checkpoint")
    again = Driver(tmp_path)
    again.epoch_of(rows([(1, 1)]))
    assert again.origins() == {"new": 8}
    assert state(again) == {1: (1, 1)}


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(), st.booleans()), min_size=1))
@examples(30)
def test_slices_agree_with_sparks_xxhash64(values):
    def chained(number, text, flag):
        seed = xxhash.xxh64_intdigest(number.to_bytes(8, "little", signed=True), 42)
        seed = xxhash.xxh64_intdigest(text.encode(), seed)
        return np.uint64(xxhash.xxh64_intdigest(int(flag).to_bytes(4, "little"), seed)).view(np.int64)

    columns = [pa.array(column) for column in zip(*values, strict=True)]
    assert key_hash(columns).tolist() == [chained(*value) for value in values]


def test_keys_may_be_null_and_of_several_columns(tmp_path):
    operator = KeyedOperator(
        "pairs", {"a": pa.int32(), "b": pa.date32(), "c": pa.bool_()}, Aggregate.of({"n": "count"})
    )
    driver = Driver(tmp_path, operator)
    some = [(1, 5, True), (None, 5, True), (1, None, None), (0, 5, True), (1, 0, False), (1, 5, True)]
    columns = [
        pa.array(column, kind)
        for column, kind in zip(zip(*some, strict=True), (pa.int32(), pa.int32(), pa.bool_()), strict=True)
    ]
    batch = pa.RecordBatch.from_arrays([columns[0], columns[1].cast(pa.date32()), columns[2]], names=["a", "b", "c"])
    driver.epoch_of(batch)
    driver.epoch_of(batch)
    found = {tuple(row.values())[:3]: row["n"] for row in driver.outputs}
    assert len(found) == 5
    assert sorted(found.values()) == [2, 2, 2, 2, 4]


def test_measures_follow_sql_on_nulls(tmp_path):
    measures = {
        "n": "count",
        "known": "count(v)",
        "sum": "sum(v)",
        "low": "min(v)",
        "high": "max(v)",
        "mean": "mean(v)",
    }
    driver = Driver(tmp_path, KeyedOperator("m", {"k": pa.int64()}, Aggregate.of(measures)))
    values = [(1, 2.0), (1, None), (2, None), (1, 4.0)]
    columns = [pa.array([key for key, _ in values]), pa.array([value for _, value in values])]
    driver.epoch_of(pa.RecordBatch.from_arrays(columns, names=["k", "v"]))
    assert sorted(driver.outputs, key=lambda row: row["k"]) == [
        {"k": 1, "n": 3, "known": 2, "sum": 6.0, "low": 2.0, "high": 4.0, "mean": 3.0},
        {"k": 2, "n": 1, "known": 0, "sum": None, "low": None, "high": None, "mean": None},
    ]


def test_a_batch_processor_sees_sorted_rows_and_may_delete_keys(tmp_path):
    def longest_run(seen):
        sizes = np.diff(np.append(seen.starts, seen.rows.num_rows))
        best = np.maximum(seen.state["best"], sizes)
        assert seen.rows.column("user").take(pa.array(seen.starts)).equals(seen.keys.column("user"))
        return Changed({"best": best}, seen.keys.append_column("best", pa.array(best)), gone=best > 3)

    output = pa.schema([("user", pa.int64()), ("best", pa.int64())])
    driver = Driver(
        tmp_path, KeyedOperator("runs", {"user": pa.int64()}, Batches({"best": "int64"}, longest_run, output))
    )
    driver.epoch_of(rows([(1, 0)] * 2 + [(2, 0)] * 4))
    driver.epoch_of(rows([(1, 0), (2, 0)]))
    assert sorted((row["user"], row["best"]) for row in driver.outputs) == [(1, 2), (2, 1)]


def test_one_key_is_found_by_text_from_a_command_line(tmp_path):
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(7, 3), (8, 1)]))
    assert [entry.state[":count"] for entry in read_state(tmp_path / "checkpoint", ["7"])] == [1]
    with pytest.raises(StateError, match="no keyed state"):
        read_state(tmp_path / "nowhere")


def test_operators_and_tasks_travel_to_other_processes(tmp_path):
    driver = Driver(tmp_path)
    operator, task = pickle.loads(pickle.dumps((driver.operator, driver.task(0))))
    assert operator.schema.fingerprint == driver.operator.schema.fingerprint
    [output] = run_lane(operator, task, [rows([(1, 2)])])
    assert output.to_pylist() == [{"user": 1, "visits": 1, "total": 2}]


def test_a_location_may_be_any_arrow_filesystem(tmp_path):
    driver = Driver(tmp_path)
    driver.checkpoint = Checkpoint(Location.of(f"file://{tmp_path}/checkpoint"), driver.operator.schema)
    driver.epoch_of(rows([(7, 3)]))
    assert state(driver) == {7: (1, 3)}


@given(st.lists(st.lists(st.tuples(st.integers(0, 200), st.integers(-5, 5)), max_size=300), min_size=1, max_size=4))
@examples(15)
def test_any_epochs_give_what_a_dictionary_gives(tmp_path_factory, epochs):
    driver = Driver(tmp_path_factory.mktemp("any"), slices=3)
    for pairs in epochs:
        driver.epoch_of(rows(pairs))
    assert state(driver) == expected([pair for pairs in epochs for pair in pairs])
