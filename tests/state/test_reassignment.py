"""Slices and lanes: nothing is lost when they are assigned anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.model import JobAllocation, spread_evenly
from headgate.state.placement.routing import best_places, imbalance, lane_loads, rebalance
from tests.core.builders import LAW

LOADS = st.lists(st.floats(0, 1000), min_size=1, max_size=64)
LANES = st.integers(1, 16)


@LAW
@given(LOADS, LANES, st.data())
def test_every_slice_keeps_a_lane_and_the_load_stays_the_same(
    loads: list[float], lanes: int, data: st.DataObject
) -> None:
    before = tuple(data.draw(st.integers(0, lanes - 1)) for _ in loads)
    after = rebalance(loads, before, lanes)
    assert len(after) == len(loads)
    assert all(0 <= lane < lanes for lane in after)
    assert abs(sum(lane_loads(loads, after, lanes)) - sum(loads)) <= 1e-6 * max(1.0, sum(loads))


@LAW
@given(LOADS, LANES, st.data())
def test_busiest_lane_never_gets_more_to_do(loads: list[float], lanes: int, data: st.DataObject) -> None:
    before = tuple(data.draw(st.integers(0, lanes - 1)) for _ in loads)
    after = rebalance(loads, before, lanes)
    assert max(lane_loads(loads, after, lanes)) <= max(lane_loads(loads, before, lanes)) * (1 + 1e-9)


@LAW
@given(st.integers(2, 16), st.integers(8, 16), st.integers(0, 1000))
def test_many_uneven_slices_end_up_spread_within_ten_per_cent(lanes: int, per_lane: int, seed: int) -> None:
    count = lanes * per_lane
    loads = [1.0 + (seed * 7919 + number * 104729) % 100 / 100 for number in range(count)]
    all_on_one = (0,) * count
    assert imbalance(lane_loads(loads, rebalance(loads, all_on_one, lanes), lanes)) <= 1.1


def test_slices_that_are_spread_well_stay_where_they_are() -> None:
    even = spread_evenly(32, 4)
    assert rebalance([1.0] * 32, even, 4) == even == best_places([1.0] * 32, 4)


def test_a_hot_slice_gets_a_lane_of_its_own() -> None:
    places = rebalance([10.0, 1.0, 1.0, 1.0, 1.0, 1.0], (0, 0, 0, 1, 1, 1), 2)
    assert places.count(places[0]) == 1


def test_imbalance_is_the_largest_over_the_mean() -> None:
    assert imbalance((1.0, 1.0, 2.0, 0.0)) == 2.0
    assert imbalance(()) == imbalance((0.0,)) == 1.0


def test_slices_of_an_operator_whose_lanes_change_are_spread_evenly_again() -> None:
    allocation = JobAllocation({"count": 2, "join": 2}, slices={"count": (0, 1, 1), "join": (1, 0, 0)})
    assert allocation.with_lanes({"count": 3, "join": 2}).slices == {"join": (1, 0, 0)}
