"""Which operator a stage of Spark's belongs to, without Spark."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.spark.measuring.metering import assign_stages, match_stages

IN, WAY, COUNT = (("in", 2),), (("in", 8),), (("count", 3),)
sizes = st.lists(st.integers(1, 4), max_size=6)


def stage(tasks: int) -> list[dict[str, Any]]:
    return [{"index": index} for index in range(tasks)]


def owners(expected: list[Any], *tasks: int) -> list[str]:
    return [owner[-1][0] for owner, _ in assign_stages(expected, [stage(count) for count in tasks])]


def test_table_that_is_filled_before_the_source_is_read_is_not_taken_for_a_planned_stage():
    assert owners([IN, WAY, COUNT], 8, 2, 8, 3) == ["in", "in", "in", "count"]


def test_table_that_is_filled_between_planned_stages_belongs_to_the_one_before():
    assert owners([IN, WAY, COUNT], 2, 8, 8, 3) == ["in", "in", "in", "count"]


def test_exchange_of_the_users_own_belongs_to_the_operator_it_is_in():
    assert owners([IN, COUNT, (("out", 4),)], 2, 3, 7, 4) == ["in", "count", "count", "out"]


@given(sizes, sizes)
def test_stages_are_matched_in_order_with_stages_of_their_size(expected, done):
    places = match_stages(expected, done)
    found = [place for place in places if place is not None]
    assert found == sorted(set(found))
    assert all(place is None or expected[place] == size for place, size in zip(places, done, strict=True))


@given(sizes, st.data())
def test_all_planned_stages_are_found_whatever_runs_in_between(expected, data):
    done = list(expected)
    for extra in data.draw(sizes):
        done.insert(data.draw(st.integers(0, len(done))), extra)
    assert [place for place in match_stages(expected, done) if place is not None] == list(range(len(expected)))
