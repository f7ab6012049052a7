"""What a processor may keep per key, over epochs, replays and moves."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import StateSchemaError
from headgate.state.inspect import read_state
from headgate.state.library import CountWindow, Items, KeyState, Map, Part, Timers, TimeWindow, TopK, Value
from headgate.state.operators import Batches, Changed, Events, KeyedOperator
from tests.state.builders import Driver, rows

OUTPUT = pa.schema([("user", pa.int64()), ("seen", pa.int64())])


class Memory:
    """Rows in a dictionary."""

    def __init__(self):
        self.rows: dict[bytes, bytes] = {}
        self.written = 0

    def get(self, row):
        return self.rows.get(row)

    def set(self, row, value):
        self.written += 1
        if value is None:
            self.rows.pop(row, None)
        else:
            self.rows[row] = value


class Kept:
    """A state field that is flushed and opened anew, as between epochs."""

    def __init__(self, kind):
        self.kind, self.memory = kind, Memory()
        self.field: Any = self.opened()

    def opened(self):
        return self.kind.opened(Part(self.memory, b"p"), 4)

    def reopen(self):
        self.field.flush()
        self.field = self.opened()


operations = st.lists(st.one_of(st.integers(0, 30), st.sampled_from(["pop", "epoch"])), max_size=80)


@given(operations)
@settings(max_examples=60, deadline=None)
def test_a_list_is_a_queue(sequence):
    model: deque[int] = deque()
    kept = Kept(Items())
    for operation in sequence:
        if operation == "epoch":
            kept.reopen()
        elif operation != "pop":
            kept.field.append(operation)
            model.append(operation)
        elif model:
            assert kept.field.popleft() == model.popleft()
    assert list(kept.field) == list(model)
    assert len(kept.field) == len(model)
    if model:
        assert (kept.field[0], kept.field[-1]) == (model[0], model[-1])
    kept.reopen()
    assert len(kept.memory.rows) <= 3 + len(model) // 4, "chunks that are used up are deleted"


@given(operations, st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_a_count_window_has_the_newest(sequence, size):
    model: deque[int] = deque(maxlen=size)
    kept = Kept(CountWindow(size))
    for operation in sequence:
        if isinstance(operation, int):
            out = [model[0]] if len(model) == size else []
            assert kept.field.append(operation) == out
            model.append(operation)
        else:
            kept.reopen()
    assert list(kept.field) == list(model)


@given(st.lists(st.integers(0, 100), max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_time_window_has_the_last_seconds_even_if_events_come_late(times):
    gone: Counter[int] = Counter()
    kept, newest = Kept(TimeWindow(20)), -1
    for at_ms in times:
        gone.update(kept.field.append(at_ms, at_ms))
        newest = max(newest, at_ms)
    kept.reopen()
    inside = sorted(at_ms for at_ms in times if at_ms > newest - 20)
    assert sorted(kept.field) == inside
    assert len(kept.field) == len(inside)
    gone.update(kept.field.expire(1000))
    assert gone == Counter(times), "everything falls out once"


@given(st.lists(st.tuples(st.sampled_from(["set", "remove", "epoch"]), st.integers(0, 60)), max_size=120))
@settings(max_examples=60, deadline=None)
def test_a_map_is_a_dictionary(sequence):
    kept, model = Kept(Map()), {}
    for operation, name in sequence:
        if operation == "epoch":
            kept.reopen()
        elif operation == "set":
            kept.field.set(name, [name])
            model[name] = [name]
        else:
            kept.field.remove(name)
            model.pop(name, None)
    assert dict(kept.field.items()) == model
    assert len(kept.field) == len(model)
    assert all((name in kept.field) == (name in model) for name in range(61))


@given(st.lists(st.text("abcd", max_size=2), max_size=80))
def test_a_ranking_has_the_highest_scores(names):
    kept, counts = Kept(TopK(3)), Counter(names)
    for name in names:
        kept.field.add(name)
    assert kept.field.best() == sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    for name in names:
        kept.field.add(name, -1)
    assert kept.field.best() == []
    assert len(kept.field) == 0


def test_a_large_window_writes_only_what_changed():
    kept = Kept(CountWindow(10_000))
    for number in range(10_000):
        kept.field.append(number)
    kept.reopen()
    kept.memory.written = 0
    kept.field.append(1)
    kept.reopen()
    assert kept.memory.written <= 3


def test_a_field_that_was_not_declared_is_named():
    state = KeyState(Memory(), b"k", {"seen": Value(0)}, 4, Timers(Memory()))
    with pytest.raises(AttributeError, match='no field "sene"; it declares seen'):
        _ = state.sene


# -- through lanes -----------------------------------------------------------------------------------------------------------


def counting_events(**more):
    def on_event(user, event, state, emit):
        state.seen.set(state.seen.get() + 1)
        state.last.append(event["amount"])
        emit({"user": user, "seen": state.seen.get()})

    events = Events({"seen": Value(0), "last": CountWindow(3)}, on_event, OUTPUT, **more)
    return KeyedOperator("events", {"user": pa.int64()}, events)


def test_events_meet_the_state_of_their_key(tmp_path):
    driver = Driver(tmp_path, counting_events())
    driver.epoch_of(rows([(1, 5), (2, 6), (1, 7)]))
    driver.route({0: range(4), 1: range(4, 8)})
    driver.epoch_of(rows([(1, 8), (1, 9)]))
    assert driver.outputs == [{"user": 1, "seen": 3}, {"user": 1, "seen": 4}]
    [entry] = read_state(tmp_path / "checkpoint", [1])
    assert entry.state["seen"] == {"": [4]}


def test_an_epoch_of_events_run_again_changes_nothing(tmp_path):
    driver = Driver(tmp_path, counting_events())
    driver.epoch_of(rows([(1, 5), (2, 6)]))
    driver.run(rows([(1, 8), (3, 9)]))
    driver.run(rows([(1, 8), (3, 9)]))
    driver.epoch_of(rows([(1, 8), (3, 9)]))
    assert sorted((row["user"], row["seen"]) for row in driver.outputs) == [(1, 2), (3, 1)]


def test_events_that_change_nothing_write_nothing(tmp_path):
    operator = KeyedOperator(
        "same", {"user": pa.int64()}, Events({"v": Value(0)}, lambda u, e, s, emit: s.v.set(7), OUTPUT)
    )
    driver = Driver(tmp_path, operator)
    driver.epoch_of(rows([(1, 0)]))
    assert driver.reports[0].changed == 1
    driver.epoch_of(rows([(1, 0)]))
    assert driver.reports[0].changed == 0


def test_timers_wake_keys_when_the_watermark_passes_and_only_once(tmp_path):
    def on_event(user, event, state, emit):
        state.seen.set(state.seen.get() + 1)
        state.wake_at(event["amount"])

    def on_timer(user, at_ms, state, emit):
        emit({"user": user, "seen": at_ms * 100 + state.seen.get()})

    events = Events({"seen": Value(0)}, on_event, OUTPUT, on_timer)
    driver = Driver(tmp_path, KeyedOperator("timers", {"user": pa.int64()}, events))
    driver.epoch_of(rows([(1, 50), (2, 70), (1, 90_000), (1, 50)]), watermark_ms=0)
    assert driver.outputs == []
    driver.run(rows([]), watermark_ms=60)
    driver.epoch_of(rows([]), watermark_ms=60)
    assert driver.outputs == [{"user": 1, "seen": 5003}]
    driver.epoch_of(rows([]), watermark_ms=100_000)
    assert sorted(row["user"] for row in driver.outputs) == [1, 2]
    driver.epoch_of(rows([]), watermark_ms=200_000)
    assert driver.outputs == []
    assert all("timers" not in entry.state for entry in read_state(tmp_path / "checkpoint"))


def test_state_of_fixed_width_and_of_the_library_do_not_mix():
    operator = KeyedOperator(
        "mixed", {"k": pa.int64()}, Batches({"a": "int64", "b": "map"}, lambda seen: Changed({}), OUTPUT)
    )
    with pytest.raises(StateSchemaError, match="state field \"a\" is 'int64'; beside the others it may be value, map"):
        _ = operator.schema
