"""What a processor may keep per key, over epochs, replays and moves."""

from __future__ import annotations

import math
from collections import Counter, deque
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import StateError, StateSchemaError
from headgate.state.fields import Part
from headgate.state.inspect import read_state
from headgate.state.library import CountWindow, Items, KeyState, Map, TimeWindow, TopK, Value
from headgate.state.operators import Batches, Changed, Events, KeyedOperator
from headgate.state.timers import Timers
from tests.examples import examples
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
        return self.kind.open(Part(self.memory, b"p"), 4)

    def reopen(self):
        self.field.flush()
        self.field = self.opened()


operations = st.lists(st.one_of(st.integers(0, 30), st.sampled_from(["pop", "epoch"])), max_size=80)


@given(operations)
@examples(60)
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
@examples(60)
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
@examples(60)
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
@examples(60)
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


# -- types -----------------------------------------------------------------------------------------------------------------

zones = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30)), timezone(timedelta(hours=1), "MEZ")])
moments = st.datetimes(timezones=st.none() | zones | st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")]))
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.timedeltas(),
    moments,
)
scalars = st.deferred(lambda: _SCALARS)
names = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
)
things = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(names, inner, max_size=3),
        st.sets(names, max_size=3),
        st.frozensets(names, max_size=3),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types at every depth."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return all(any(same(left, right) for right in other) for left in one)
    if isinstance(one, datetime):
        return repr(one) == repr(other) and one.fold == other.fold
    return repr(one) == repr(other)


@given(things)
@examples(300)
def test_what_is_set_is_what_is_read_in_the_next_epoch(thing):
    kept = Kept(Value())
    kept.field.set(thing)
    kept.reopen()
    assert same(kept.field.get(), thing)


@given(st.lists(things, max_size=6))
@examples(60)
def test_things_of_a_window_keep_their_types(sequence):
    items, window = Kept(Items()), Kept(TimeWindow(1000))
    for at_ms, thing in enumerate(sequence):
        items.field.append(thing)
        window.field.append(at_ms, thing)
        items.reopen()
        window.reopen()
    assert same(list(items.field), sequence)
    assert same(list(window.field), sequence)


@given(st.lists(st.tuples(names, things), max_size=12))
@examples(100)
def test_a_map_finds_a_name_as_a_dictionary_does(pairs):
    kept, model = Kept(Map()), {}
    for name, thing in pairs:
        kept.field.set(name, thing)
        model[name] = thing
        kept.reopen()
    assert len(kept.field) == len(model)
    assert all(same(kept.field.get(name), thing) for name, thing in model.items())


def test_a_ranking_counts_tuples_over_epochs():
    kept = Kept(TopK(2))
    for _ in range(3):
        kept.field.add(("a", 1))
        kept.reopen()
    assert kept.field.best() == [(("a", 1), 3)]


@pytest.mark.parametrize(
    ("name", "equal"), [(1, True), (1, 1.0), (0.5, Decimal("0.50")), ((1,), (1.0,)), (1, Decimal(1))]
)
def test_names_that_are_equal_are_one_name_however_many_buckets_there_are(name, equal):
    kept = Kept(Map())
    for other in range(100, 150):
        kept.field.set(other, None)
    kept.field.set(name, "first")
    kept.field.set(equal, "second")
    assert kept.field.get(name) == "second"
    assert len(kept.field) == 51


class Named(tuple):
    """A subclass, which would come back as its base."""


REFUSED = [object(), Named((1,)), bytearray(b"a"), range(3), {"deep": [object()]}, "\ud800", ["\ud800"], math.sqrt]


@pytest.mark.parametrize("thing", REFUSED, ids=lambda thing: type(thing).__name__)
@pytest.mark.parametrize("kind", [Value(), Map(), Items(), CountWindow(3), TimeWindow(3)], ids=lambda kind: kind.kind)
def test_what_cannot_be_kept_is_refused_at_once(kind, thing):
    state = KeyState(Memory(), b"k", {"seen": kind}, 4, Timers(Memory()))
    put = {
        "value": lambda: state.seen.set(thing),
        "map": lambda: state.seen.set("name", thing),
        "time window": lambda: state.seen.append(5, thing),
    }.get(kind.kind, lambda: state.seen.append(thing))
    with pytest.raises(StateError, match='state field "seen": state cannot keep'):
        put()


@pytest.mark.parametrize(
    "name", [["a"], {}, {1}, float("nan"), (float("nan"),), object()], ids=lambda name: type(name).__name__
)
def test_a_name_that_a_dictionary_would_not_find_is_refused(name):
    with pytest.raises(StateError, match="cannot be a name"):
        Kept(Map()).field.set(name, 1)


def test_a_time_zone_that_cannot_be_kept_is_refused():
    class Odd(timezone.__base__):  # type: ignore[misc, name-defined]
        def utcoffset(self, at):
            return timedelta(0)

    with pytest.raises(StateError, match=r"its time zone is of type Odd; use datetime\.timezone or zoneinfo"):
        Kept(Value()).field.set(datetime(2026, 1, 1, tzinfo=Odd()))
    kept = Kept(Value())
    kept.field.set(date(2026, 1, 1))
    kept.reopen()
    assert type(kept.field.get()) is date


# -- defaults, and what is emptied -------------------------------------------------------------------------------------------


def test_each_key_has_its_own_default():
    memory, kinds = Memory(), {"seen": Value([])}
    first, second = (KeyState(memory, key, kinds, 4, Timers(memory)) for key in (b"a", b"b"))
    first.seen.get().append(1)
    assert second.seen.get() == []
    assert first.seen.get() == [], "what is not set is not kept"


@pytest.mark.parametrize("default", [list, dict, int])
def test_a_type_is_no_default(default):
    with pytest.raises(StateSchemaError, match="the default of a Value is the type"):
        Value(default)


@pytest.mark.parametrize("kind", [CountWindow, TimeWindow, TopK])
@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3"])
def test_a_window_has_a_size(kind, size):
    with pytest.raises(StateSchemaError, match="it must be a whole number of at least 1"):
        kind(size)


def filled(kind: Any) -> Kept:
    """A field with content over several chunks and buckets."""
    kept = Kept(kind)
    for number in range(40):
        if kind.kind in ("map", "top-k"):
            kept.field.set(("n", number), 1)
        elif kind.kind == "time window":
            kept.field.append(number, number)
        else:
            kept.field.append(number)
    kept.reopen()
    assert kept.memory.rows
    return kept


EMPTIED = {
    "map one by one": (Map(), lambda field: [field.remove(("n", number)) for number in range(40)]),
    "map": (Map(), lambda field: field.clear()),
    "top-k": (TopK(3), lambda field: [field.add(("n", number), -1) for number in range(40)]),
    "list": (Items(), lambda field: [field.popleft() for _ in range(40)]),
    "count window": (CountWindow(50), lambda field: field.clear()),
    "time window": (TimeWindow(100), lambda field: field.expire(1000)),
    "time window at once": (TimeWindow(100), lambda field: field.clear()),
}


@pytest.mark.parametrize(("kind", "empty"), EMPTIED.values(), ids=EMPTIED)
def test_what_is_emptied_leaves_nothing_behind_and_can_be_filled_again(kind, empty):
    kept = filled(kind)
    empty(kept.field)
    kept.reopen()
    assert kept.memory.rows == {}
    assert list(kept.field.items() if hasattr(kept.field, "items") else kept.field) == []


def test_keys_whose_fields_are_emptied_are_gone_from_the_store(tmp_path):
    def on_event(user, event, state, emit):
        if event["amount"]:
            state.queue.append(event["amount"])
            state.ranking.add(("a", event["amount"]))
            return
        while len(state.queue):
            state.ranking.add(("a", state.queue.popleft()), -1)

    events = Events({"queue": Items(), "ranking": TopK(2)}, on_event, OUTPUT)
    driver = Driver(tmp_path, KeyedOperator("emptied", {"user": pa.int64()}, events))
    driver.epoch_of(rows([(1, 5), (2, 6), (1, 7)]))
    assert [entry.key["user"] for entry in read_state(tmp_path / "checkpoint")] == [1, 2]
    driver.epoch_of(rows([(1, 0)]))
    assert [entry.key["user"] for entry in read_state(tmp_path / "checkpoint")] == [2]


# -- timers ------------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-200_000, 90_000_000), st.binary(max_size=2)), max_size=60),
    st.lists(st.integers(-300_000, 100_000_000), max_size=4),
)
@examples(60)
def test_timers_fire_once_in_order_of_time(wanted, watermarks):
    memory, left = Memory(), set(wanted)
    for at_ms, key in wanted:
        timers = Timers(memory)
        timers.set(key, at_ms)
        timers.flush()
    for watermark_ms in sorted(watermarks):
        timers = Timers(memory)
        assert timers.next_ms() == min((at_ms for at_ms, _ in left), default=None)
        assert timers.due(watermark_ms) == sorted(timer for timer in left if timer[0] <= watermark_ms)
        timers.flush()
        left = {timer for timer in left if timer[0] > watermark_ms}
    assert bool(memory.rows) == bool(left), "timers that fired leave nothing behind"


@pytest.mark.parametrize("spread_ms", [60_000, 30 * 24 * 3_600_000], ids=["one minute", "thirty days"])
def test_a_timer_costs_the_same_however_many_there_are(spread_ms):
    def written(count):
        """Rows, and bytes in them, that one more timer rewrites."""
        memory = Memory()
        timers = Timers(memory)
        for number in range(count):
            timers.set(b"=user%d" % number, number * 7919 % spread_ms)
        timers.flush()
        before, memory.written = dict(memory.rows), 0
        timers.set(b"=another", 30_000)
        timers.flush()
        return memory.written, sum(len(row) for name, row in memory.rows.items() if before.get(name) != row)

    assert written(8000)[0] <= 4
    assert written(8000)[1] <= 3 * written(200)[1] + 4096


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


MISFITS = [
    ({"user": 1}, 'it put out a row without the column "seen", which its schema declares'),
    ({"user": 1, "sene": 2}, 'the column "sene", which its schema does not declare.* Did you mean "seen"?'),
    ({"user": 1, "seen": 2, "more": 3}, 'the column "more", which its schema does not declare; leave it out'),
    ({"user": 1, "seen": "a"}, "it put out a row that does not fit its schema"),
    (5, "it put out 5; a row must be a dict"),
]


@pytest.mark.parametrize(("row", "told"), MISFITS)
def test_a_row_that_is_not_what_the_schema_says_fails_the_epoch(tmp_path, row, told):
    def on_event(user, event, state, emit):
        emit({"user": user, "seen": None})
        emit(row)

    driver = Driver(tmp_path, KeyedOperator("odd", {"user": pa.int64()}, Events({"v": Value(0)}, on_event, OUTPUT)))
    with pytest.raises(StateError, match=told):
        driver.epoch_of(rows([(1, 5)]))


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
