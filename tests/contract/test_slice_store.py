"""What every slice store promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import files
from headgate.config import StateSettings
from headgate.state.delta import Delta, Keys, words_array
from headgate.state.schema import LIVE, StateSchema
from headgate.state.store import Header, SliceStore, boot_id
from headgate.state.stores import new_store
from tests.examples import examples

KINDS = {
    "table": StateSchema("operator", {"key": pa.int64()}, {"value": "int64"}),
    "rows": StateSchema("operator", {"key": pa.string()}, {"value": "value"}),
}
NOTHING = Header(-1, "me", boot=boot_id())


class Stored:
    """A store with keys and values as plain numbers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.schema = kind, KINDS[kind]
        self.store: SliceStore = new_store(folder, self.schema, "me", StateSettings())

    def key(self, number: int) -> bytes:
        if self.kind == "table":
            return np.array([LIVE, number], np.int64).tobytes()
        return b"%d" % number * (300 if number % 10 == 3 else 1)  # some are longer than LMDB takes

    def value(self, number: int | None) -> bytes | None:
        return None if number is None else np.array([number], np.int64).tobytes()

    def array(self, values, key: bool) -> pa.Array:
        kind = self.schema.key_type if key else self.schema.value_type
        if self.kind == "table":
            width = kind.byte_width // 8
            words = np.frombuffer(b"".join(v or bytes(kind.byte_width) for v in values), np.uint64).reshape(-1, width)
            return words_array(words, np.array([v is not None for v in values], bool))
        return pa.array(values, kind)

    def keys(self, by_slice: dict[int, list[int]]) -> Keys:
        slices = sorted(by_slice)
        offsets = np.cumsum([0, *(len(by_slice[slice_]) for slice_ in slices)]).astype(np.int64)
        flat = [self.key(number) for slice_ in slices for number in by_slice[slice_]]
        return Keys(np.array(slices, np.int32), offsets, self.array(flat, key=True))

    def read(self, by_slice: dict[int, list[int]]) -> list[int | None]:
        found = self.store.read(self.keys(by_slice)).to_pylist()
        return [None if value is None else int.from_bytes(value, "little", signed=True) for value in found]

    def delta(self, epoch: int, changes: dict[int, dict[int, int | None]]) -> Delta:
        keys = self.keys({slice_: list(of) for slice_, of in changes.items()})
        new = self.array([self.value(v) for s in sorted(changes) for v in changes[s].values()], key=False)
        return Delta(epoch, keys, self.store.read(keys), new)

    def apply(self, epoch: int, changes: dict[int, dict[int, int | None]]) -> Delta:
        delta = self.delta(epoch, changes)
        self.store.apply(delta, {slice_: self.next(slice_, epoch) for slice_ in changes})
        return delta

    def next(self, slice_: int, epoch: int) -> Header:
        return (self.store.header(slice_) or NOTHING).next(epoch, f"delta {epoch}")

    def content(self, slice_: int) -> dict[bytes, int]:
        return {
            key: int.from_bytes(value, "little", signed=True)
            for keys, values in self.store.scan(slice_)
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)
        }


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    found = Stored(request.param, tmp_path / "one")
    yield found
    found.store.close()


def test_there_is_no_copy_before_one_is_loaded(stored):
    assert stored.store.header(3) is None
    stored.store.load(3, (), NOTHING)
    assert stored.store.header(3) == NOTHING
    assert stored.read({3: [1, 2]}) == [None, None]


def test_what_is_applied_is_read_and_noted(stored):
    stored.store.load(0, (), NOTHING)
    stored.store.load(5, (), NOTHING)
    stored.apply(0, {0: {1: 10, 2: 20}, 5: {1: 11}})
    assert stored.read({0: [2, 1, 7], 5: [1]}) == [20, 10, None, 11]
    header = stored.store.header(5)
    assert (header.version, header.delta, header.whole) == (0, "delta 0", True)
    assert stored.content(0) == {stored.key(1): 10, stored.key(2): 20}


def test_applying_twice_changes_nothing_and_undo_brings_back_what_was(stored):
    stored.store.load(0, (), NOTHING)
    stored.apply(0, {0: {1: 10, 2: 20, 13: 5}})
    before, header = stored.content(0), stored.store.header(0)
    delta = stored.delta(1, {0: {1: 11, 2: None, 3: 30, 13: 6}})
    for _ in range(2):
        stored.store.apply(delta, {0: header.next(1, "delta 1")})
        assert stored.content(0) == {stored.key(1): 11, stored.key(3): 30, stored.key(13): 6}
    for _ in range(2):
        stored.store.apply(delta, {0: header.next(1, "delta 1").back()}, undo=True)
        assert stored.content(0) == before
    assert stored.store.header(0).version == 0


def test_a_slice_without_changes_gets_its_version_too(stored):
    stored.store.load(0, (), NOTHING)
    stored.store.load(1, (), NOTHING)
    stored.apply(0, {0: {1: 1}, 1: {}})
    assert stored.store.header(1).version == 0


def test_loading_replaces_everything(stored):
    stored.store.load(0, (), NOTHING)
    stored.apply(0, {0: {1: 10}})
    rows = (stored.array([stored.key(2)], key=True), stored.array([stored.value(7)], key=False))
    stored.store.load(0, [rows], replace(NOTHING, version=9))
    assert stored.content(0) == {stored.key(2): 7}
    assert stored.store.header(0).version == 9


def test_thousands_of_neighbouring_keys_survive_growth_and_loading(stored):
    stored.store.load(0, (), NOTHING)
    for epoch in range(4):
        stored.apply(epoch, {0: {number: number for number in range(epoch * 700, epoch * 700 + 1000)}})
    everything = {stored.key(number): number for number in range(3100)}
    assert stored.content(0) == everything
    stored.store.load(1, list(stored.store.scan(0)), NOTHING)
    assert stored.content(1) == everything


def test_a_copy_is_found_by_another_store_in_the_same_folder(stored, tmp_path):
    stored.store.load(0, (), NOTHING)
    stored.apply(0, {0: {1: 10}})
    stored.store.close()
    again = Stored(stored.kind, tmp_path / "one")
    assert again.read({0: [1]}) == [10] if again.store.header(0) else pytest.fail("the copy is gone")
    again.store.close()
    stranger = new_store(tmp_path / "one", stored.schema, "somebody else", StateSettings())
    assert stranger.header(0) is None
    stranger.close()
    stored.store = new_store(tmp_path / "one", stored.schema, "me", StateSettings())


def test_a_copy_is_adopted_with_its_header(stored, tmp_path):
    stored.store.load(0, (), NOTHING)
    stored.apply(0, {0: {1: 10}})
    other = Stored(stored.kind, tmp_path / "two")
    assert other.store.adopt(0, tmp_path / "one")
    assert not other.store.adopt(1, tmp_path / "one")
    assert other.store.header(0) == stored.store.header(0)
    other.apply(1, {0: {1: 12}})
    assert (stored.read({0: [1]}), other.read({0: [1]})) == ([10], [12])
    other.store.close()


def test_what_an_interrupted_copy_left_goes_with_its_slice(stored, tmp_path):
    stored.store.load(0, (), NOTHING)
    (built,) = {path for path in (tmp_path / "one").iterdir() if path.suffix in (".mdb", ".table")}
    files.beside(built).write_bytes(b"half")
    assert files.beside(built).name.endswith(files.PART)
    stored.store.drop(0)
    assert not files.beside(built).exists()


def test_a_dropped_copy_is_gone(stored):
    stored.store.load(0, (), NOTHING)
    stored.store.drop(0)
    stored.store.drop(0)
    assert stored.store.header(0) is None
    assert list(stored.store.scan(0)) == []


changes = st.dictionaries(st.integers(-20, 60), st.one_of(st.none(), st.integers(-(2**60), 2**60)), max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@given(epochs=st.lists(st.dictionaries(st.integers(0, 2), changes, min_size=1), max_size=6), data=st.data())
@examples(25)
def test_any_changes_give_what_a_dictionary_gives(kind, epochs, data, tmp_path_factory):
    stored = Stored(kind, tmp_path_factory.mktemp("any"))
    model: dict[int, dict[bytes, int]] = {slice_: {} for slice_ in range(3)}
    for slice_ in model:
        stored.store.load(slice_, (), NOTHING)
    for epoch, by_slice in enumerate(epochs):
        delta = stored.apply(epoch, by_slice)
        if data.draw(st.booleans()):
            back = {slice_: header.back() for slice_ in by_slice if (header := stored.store.header(slice_))}
            stored.store.apply(delta, back, undo=True)
            continue
        for slice_, of in by_slice.items():
            fresh = {stored.key(number): value for number, value in of.items()}
            model[slice_] = {k: v for k, v in (model[slice_] | fresh).items() if v is not None}
    assert {slice_: stored.content(slice_) for slice_ in model} == model
    stored.store.close()
