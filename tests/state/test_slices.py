"""Slices: exactly one active copy whatever happens, backups as the chain wants them, lanes even by load (ChronoStream, III)."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import StateSettings
from headgate.state.placement.routing import at_home, in_turn, lane_hosts, route_slices
from headgate.state.placement.slices import (
    Act,
    Done,
    HostJoined,
    HostLeaves,
    HostLost,
    MigrationPhase,
    MoveAsked,
    Placement,
    end_of_phase,
    free,
    spread,
    step,
)
from headgate.state.placement.targets import host_targets
from tests.examples import examples
from tests.state.placements import due, slices_of_lane

SETTINGS = StateSettings()
HOSTS = ["a", "b", "c", "d"]


def settled(placement: Placement) -> Placement:
    """Everything done, until there is nothing left to do."""
    for _ in range(1000):
        events = due(placement)
        if not events:
            return placement
        placement = step(placement, events[0])
    raise AssertionError("it never settles")


# -- hosts ---------------------------------------------------------------------------------------------------------------


def test_backups_are_chained_over_the_peers():
    placement = Placement.first(8, ["n1", "n2", "n3"], 1)
    of_second = {slice_: place.backups for slice_, place in enumerate(placement.places) if place.active == "n2"}
    assert of_second == {1: ("n3",), 4: ("n1",), 7: ("n3",)}


@pytest.mark.parametrize("with_lanes", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_backups_of_a_host_spread_over_all_its_peers_also_over_hosts_without_lanes(with_lanes):
    placement = settled(Placement.first(24, HOSTS, 1, with_lanes))
    for host in with_lanes:
        held = Counter(backup for place in placement.places if place.active == host for backup in place.backups)
        assert set(held) == set(HOSTS) - {host}
        assert max(held.values()) - min(held.values()) <= 1
    lost = {slice_ for slice_, place in enumerate(placement.places) if place.active == "a"}
    after = step(placement, HostLost("a"))
    assert {after.places[slice_].active for slice_ in lost} == set(HOSTS) - {"a"}, "recovery is parallel"


def test_a_backup_moves_only_as_far_as_the_peers_need_to_be_even():
    before = settled(Placement.first(24, ["a", "b", "c"], 1, ["a"]))
    after = step(before, HostJoined("d"))
    moved = [new.backups for old, new in zip(before.places, after.places, strict=True) if old.backups != new.backups]
    assert moved == [("d",)] * 8
    lost = step(settled(after), HostLost("d"))
    assert [place.backups for place in lost.places].count(("b",)) == 12
    assert sum(not place.ready for place in lost.places) == 8, "backups on the other hosts stay where they are"


def test_slices_of_a_lost_host_come_up_in_parallel_where_their_backups_are():
    placement = settled(Placement.first(12, HOSTS, 1))
    lost = {slice_: place for slice_, place in enumerate(placement.places) if place.active == "b"}
    after = step(placement, HostLost("b"))
    homes = {slice_: after.places[slice_].active for slice_ in lost}
    assert all(place.backups == (homes[slice_],) for slice_, place in lost.items())
    assert len(set(homes.values())) == 3
    assert "b" not in {host for place in after.places for host in (place.active, *place.backups)}


def test_a_migration_goes_through_four_phases_and_changes_hands_once():
    placement = settled(Placement.first(4, ["a", "b"], 1))
    placement = step(placement, MoveAsked(0, "b"))
    seen = []
    while (migration := placement.places[0].migration) is not None:
        end = end_of_phase(0, migration)
        seen.append((migration.phase, placement.places[0].active, end.host))
        placement = step(placement, end)
    assert seen == [
        (MigrationPhase.PREPARE, "a", "b"),
        (MigrationPhase.REBUILD, "a", "b"),
        (MigrationPhase.REROUTE, "a", "b"),
        (MigrationPhase.RELEASE, "b", "a"),
    ]
    assert placement.places[0].active == "b"
    assert placement.places[0].backups == ("a",)
    assert "a" in placement.places[0].ready, "the old active copy is as good as a backup"


def migrating(phases: int) -> Placement:
    """Slice 0 on its way from a to c, after so many phases."""
    placement = step(settled(Placement.first(4, HOSTS, 1)), MoveAsked(0, "c"))
    for _ in range(phases):
        migration = placement.places[0].migration
        assert migration is not None
        placement = step(placement, end_of_phase(0, migration))
    return placement


@pytest.mark.parametrize("phases", range(4))
def test_the_source_dying_in_any_phase_leaves_the_slice_with_one_owner(phases):
    before = migrating(phases)
    placement = step(before, HostLost("a"))
    assert placement.places[0].active != "a"
    assert placement.places[0].migration is None
    assert (placement.places[0].active != before.places[0].active) == (phases < 3)


@pytest.mark.parametrize("phases", range(4))
def test_the_destination_dying_in_any_phase_leaves_the_slice_with_one_owner(phases):
    placement = step(migrating(phases), HostLost("c"))
    assert placement.places[0].active in ("a", "b", "d")
    assert placement.places[0].migration is None


def test_a_leaving_host_is_free_once_its_slices_have_moved():
    placement = step(settled(Placement.first(9, HOSTS, 1)), HostLeaves("d"))
    assert not free(placement, "d")
    placement = settled(placement)
    assert free(placement, "d")
    assert "d" not in {host for place in placement.places for host in place.backups}


def test_the_last_host_keeps_its_slices():
    placement = Placement.first(3, ["a"], 1)
    for event in (HostLeaves("a"), HostLost("a")):
        assert step(placement, event) == placement


@pytest.mark.parametrize("slices", [12, 48, 256])
def test_a_new_host_gets_its_share_with_no_more_moves_than_needed(slices):
    placement = settled(Placement.first(slices, ["a", "b", "c"], 1))
    placement = step(placement, HostJoined("d"))
    moves = spread(placement, [1.0] * slices, SETTINGS)
    assert len(moves) == slices // 4
    assert {move.destination for move in moves} == {"d"}


def test_no_slice_moves_to_another_host_if_all_moves_together_are_not_worth_it():
    placement = settled(Placement.first(25, ["a", "b"], 1, ["a"] * 13 + ["b"] * 12))
    assert spread(placement, [1.0] * 25, SETTINGS) == ()


def test_a_host_without_a_share_is_emptied_however_little_that_evens_out():
    placement = settled(Placement.first(25, ["a", "b", "c"], 1, ["a"] * 12 + ["b"] * 12 + ["c"]))
    (move,) = spread(placement, [1.0] * 25, SETTINGS, {"a": 1.0, "b": 1.0})
    assert move.slice == 24 and move.destination in "ab"


def test_slices_move_to_the_host_with_their_backup_if_there_is_a_choice():
    placement = settled(Placement.first(8, ["a", "b", "c"], 1))
    weights = [4.0 if place.active == "a" else 1.0 for place in placement.places]
    moves = spread(placement, weights, SETTINGS)
    assert moves
    assert all(move.destination in placement.places[move.slice].ready for move in moves[:1])


hosts = st.sampled_from([*HOSTS, "e"])
events = st.one_of(
    hosts.map(HostJoined),
    hosts.map(HostLeaves),
    hosts.map(HostLost),
    st.builds(MoveAsked, st.integers(0, 6), hosts),
    st.integers(0, 50),
)


@given(st.lists(events, max_size=60), st.integers(0, 3), st.integers(1, 4))
@examples(200)
def test_any_sequence_of_changes_keeps_every_slice_once_and_backed_up(sequence, factor, first_hosts):
    placement = Placement.first(7, HOSTS[:first_hosts], factor)
    for event in sequence:
        if isinstance(event, int):  # do something that is due
            events = due(placement)
            event = events[event % len(events)] if events else HostJoined("a")
        after = step(placement, event)
        _check(after, factor)
        assert step(after, event) == after or isinstance(event, Done), "an event that comes again changes nothing"
        placement = after
    _check(settled(placement), factor, everything_done=True)


def _check(placement, factor, everything_done=False):
    target_of = host_targets(placement)
    for slice_, place in enumerate(placement.places):
        assert place.active in placement.hosts
        assert slice_ in target_of[place.active].keep
        if place.migration is not None:
            assert {place.migration.source, place.migration.destination} <= set(placement.hosts)
        able = [host for host in placement.hosts if host not in placement.leaving and host != place.active]
        assert len(place.backups) == len(set(place.backups)) == min(factor, len(able))
        assert place.active not in place.backups
        assert set(place.backups) <= set(placement.hosts)
        assert place.ready <= set(place.backups)
        if everything_done:
            assert place.ready == set(place.backups)
            assert place.migration is None
    for home in placement.hosts:
        peers = [host for host in placement.hosts if host not in placement.leaving and host != home]
        held = Counter(host for place in placement.places if place.active == home for host in place.backups)
        assert not peers or max(held[host] for host in peers) - min(held[host] for host in peers) <= 1


def test_what_is_reported_late_changes_nothing():
    placement = settled(Placement.first(4, ["a", "b"], 1))
    for act in Act:
        assert step(placement, Done(act, 0, "b")) == placement


# -- lanes ---------------------------------------------------------------------------------------------------------------


def test_hot_slices_are_spread_over_lanes():
    weights = [10.0, 10.0, 10.0, 10.0, *[1.0] * 12]
    routing = route_slices(weights, ["a"] * 16, ["a"] * 4, SETTINGS)
    assert sorted(routing.loads(weights)) == [13.0] * 4


def test_no_slice_moves_when_the_load_is_even():
    before = route_slices([1.0] * 16, ["a"] * 16, ["a"] * 4, SETTINGS)
    assert route_slices([1.05] * 8 + [1.0] * 8, ["a"] * 16, ["a"] * 4, SETTINGS, before) == before


def test_a_lane_more_takes_its_share_and_no_other_slice_moves():
    before = route_slices([1.0] * 12, ["a"] * 12, ["a"] * 3, SETTINGS)
    after = route_slices([1.0] * 12, ["a"] * 12, ["a"] * 4, SETTINGS, before)
    moved = [slice_ for slice_ in range(12) if before.lane_of[slice_] != after.lane_of[slice_]]
    assert len(moved) == 3
    assert {after.lane_of[slice_] for slice_ in moved} == {3}


def test_many_small_slices_of_one_lane_are_shared_with_those_that_come():
    before = route_slices([1.0] * 64, ["a"] * 64, ["a"], SETTINGS)
    after = route_slices([1.0] * 64, ["a"] * 64, ["a"] * 4, SETTINGS, before)
    assert after.loads([1.0] * 64) == [16.0] * 4


layouts_of_lanes = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=8)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.sampled_from(HOSTS)), min_size=1, max_size=24),
    st.lists(layouts_of_lanes, min_size=1, max_size=4),
)
@examples(150)
def test_any_lanes_have_every_slice_once_and_on_its_host(slices, layouts):
    weights, homes = [weight for weight, _ in slices], [home for _, home in slices]
    routing = None
    for layout in layouts:
        routing = route_slices(weights, homes, layout, SETTINGS, routing)
        owned = Counter(itertools.chain(*(slices_of_lane(routing, lane) for lane in range(len(layout)))))
        assert owned == Counter(range(len(slices)))
        for slice_, lane in enumerate(routing.lane_of):
            assert layout[lane] == homes[slice_] or homes[slice_] not in layout


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.integers(1, 8))
@examples(100)
def test_the_busiest_lane_has_at_most_one_slice_more_than_its_share(weights, lanes):
    routing = route_slices(weights, ["a"] * len(weights), ["a"] * lanes, SETTINGS)
    assert max(routing.loads(weights)) <= sum(weights) / lanes + max(weights) + 1e-9


def test_settings_may_make_every_gain_worth_a_move():
    eager = dataclasses.replace(SETTINGS, hot_share=0.0)
    weights = [1.0, 1.0, 1.0, 1.2]
    before = route_slices([1.0] * 4, ["a"] * 4, ["a"] * 2, SETTINGS)
    loads = route_slices(weights, ["a"] * 4, ["a"] * 2, eager, before).loads(weights)
    assert max(loads) == pytest.approx(2.2)


# -- hosts of lanes


CORES = {"a": 2.0, "b": 2.0, "c": 4.0}
EVEN = dict.fromkeys(HOSTS, 2.0)


def test_lanes_go_round_the_hosts_by_their_cores():
    assert Counter(lane_hosts(8, CORES, in_turn(CORES))) == {"a": 2, "b": 2, "c": 4}
    assert lane_hosts(3, {}, in_turn({})) == ()


def test_lanes_keep_off_a_host_as_long_as_there_are_others():
    assert set(lane_hosts(8, CORES, in_turn(CORES, avoided=["b"]))) == {"a", "c"}
    assert set(lane_hosts(8, CORES, in_turn(CORES, avoided=["a", "b", "c"]))) == {"a", "b", "c"}


def test_only_lanes_of_several_jobs_begin_on_different_hosts():
    even = {"a": 2.0, "b": 2.0, "c": 2.0}
    found = [lane_hosts(1, even, in_turn(even, first=number)) for number in range(4)]
    assert found == [("a",), ("b",), ("c",), ("a",)]


def test_a_host_with_slices_keeps_a_lane_until_they_are_gone_even_if_that_makes_one_more():
    turn = in_turn(CORES, avoided=["c"])
    assert lane_hosts(3, CORES, turn, needed=["a", "b", "c"]) == ("a", "b", "c")
    assert lane_hosts(1, CORES, turn, needed=["b", "c"]) == ("b", "c")
    assert lane_hosts(3, CORES, turn, needed=["gone"]) == ("a", "b", "a")


def test_slices_that_were_assigned_stay_so_however_uneven_that_is():
    assigned = route_slices([1.0] * 8, ["a"] * 8, ["a"] * 2, SETTINGS)
    assigned = dataclasses.replace(assigned, lane_of=(0,) * 7 + (1,))
    assert at_home([1.0] * 8, ["a"] * 8, ["a"] * 2, assigned) == assigned
    assert route_slices([1.0] * 8, ["a"] * 8, ["a"] * 2, SETTINGS, assigned).loads([1.0] * 8) == [4.0, 4.0]


@given(
    st.integers(0, 40),
    st.lists(st.sampled_from(HOSTS), max_size=3),
    st.integers(0, 9),
    st.lists(st.sampled_from(HOSTS), unique=True),
)
@examples(100)
def test_every_lane_has_a_host_and_none_has_two_more_than_its_share(lanes, avoided, first, needed):
    turn = in_turn(EVEN, avoided, first)
    found = lane_hosts(lanes, EVEN, turn)
    assert len(found) == lanes and set(found) <= (set(HOSTS) - set(avoided) or set(HOSTS))
    assert max(Counter(found).values(), default=0) <= -(-lanes // len(turn))
    assert lane_hosts(lanes + 1, EVEN, turn)[:lanes] == found
    kept = lane_hosts(lanes, EVEN, turn, needed)
    assert len(kept) == max(lanes, len(needed)) and set(needed) <= set(kept) <= {*turn, *needed}
