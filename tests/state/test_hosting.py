"""Slices on the hosts of a cluster: they move while epochs go on, and whoever dies wherever, the counts are exact."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import StateSettings
from headgate.errors import StateError
from headgate.state.copies import Copies, TargetReport, reach_target
from headgate.state.faults import MOVING, POINTS, watch_points
from headgate.state.hosting import PLACEMENT, Hosting, Wanted, read_placement
from headgate.state.placement.routing import route_slices
from headgate.state.placement.slices import HostJoined, MigrationPhase, Placement, step
from headgate.state.placement.targets import HostTarget, finished_steps, has_work, host_targets
from headgate.state.stores import close_stores
from tests.examples import examples
from tests.state.builders import Driver, counting, rows
from tests.state.placements import slices_of_lane
from tests.state.test_crashes import KEYS, Crash, Killer, expected, pairs_of, state

SLICES = 6
SETTINGS = StateSettings(lock_wait_s=0.2, merge_epochs=3, backup_epochs=1, rebuilt_at_once=2, hand_over_epochs=4)


class Cluster:
    """Hosts as folders, each of which only its own host looks into; a driver that may be started again at any time."""

    def __init__(self, place, hosts="ab", kind="numbers", changes=None):
        self.kind = kind
        self.settings = StateSettings(**{**_values(SETTINGS), **(changes or {})})
        self.driver = Driver(place, counting(KEYS[kind]), slices=SLICES)
        self.slots = dict.fromkeys(hosts, 1.0)
        self.lanes, self.routing, self.silent = 2, None, set()
        self.avoided, self.assigned = set(), None
        self.origins: list[dict[str, int]] = []
        self.started()

    def started(self):
        """What a driver that was killed has after it comes back: the checkpoint location, and the hosts."""
        close_stores()
        self.hosting = Hosting(self.driver.checkpoint.location, SLICES, self.settings, self.ask_hosts)

    def copies(self, host):
        driver = self.driver
        folder, checkpoint = driver.folder(host), str(driver.place / "checkpoint")
        return Copies(driver.operator, driver.life, folder, checkpoint, self.settings)

    def ask_hosts(self, wanted, epoch):
        return {
            host: reach_target(self.copies(host), target, epoch)
            for host, target in wanted.items()
            if host in self.slots and host not in self.silent
        }

    def run_epoch(self):
        layout = self.hosting.plan_epoch(self.slots, Wanted(self.lanes, self.avoided, self.assigned))
        self.routing = route_slices([1.0] * SLICES, layout.homes, layout.lane_hosts, self.settings, self.routing)
        used = sorted(set(self.routing.lane_of))
        hosts = {lane: layout.lane_hosts[lane] for lane in used}
        assert set(hosts.values()) <= set(self.slots)
        self.driver.route({lane: slices_of_lane(self.routing, lane) for lane in used}, hosts)
        self.driver.epoch_of(rows(pairs_of(self.driver.epoch, self.kind), KEYS[self.kind]))
        self.origins.append(self.driver.origins())
        return self.hosting.committed(self.driver.epoch - 1)

    def go_on(self, epochs=1):
        for _ in range(epochs):
            if self.run_epoch():
                self.hosting.run()

    def lose(self, host):
        close_stores()
        shutil.rmtree(self.driver.folder(host), ignore_errors=True)
        del self.slots[host]

    def placed(self):
        assert self.hosting.placement is not None
        return self.hosting.placement

    def homes(self):
        return Counter(self.placed().homes())


def _values(kind):
    return {name: getattr(kind, name) for name in kind.__slots__}


# -- steady ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEYS)
def test_in_steady_state_every_slice_is_opened_where_it_is(place, kind):
    cluster = Cluster(place, "abc", kind)
    cluster.lanes = 3
    cluster.go_on(6)
    assert cluster.origins[1:] == [{"local": SLICES}] * 5
    assert cluster.homes() == {"a": 2, "b": 2, "c": 2}


def test_backups_follow_on_the_next_hosts_and_nothing_else_is_kept(place):
    cluster = Cluster(place, "abc")
    cluster.lanes = 3
    cluster.go_on(4)
    for host, target in host_targets(cluster.placed()).items():
        found = cluster.copies(host).versions(range(SLICES))
        assert {slice_ for slice_, version in found.items() if version is not None} == set(target.keep)
        assert all(found[slice_] == 3 for slice_ in target.follow)
    assert all(len(place.ready) == 1 for place in cluster.placed().places)


def test_backups_follow_only_so_often(place):
    cluster = Cluster(place, "ab", changes={"backup_epochs": 3})
    cluster.go_on(3)
    assert [cluster.run_epoch() for _ in range(6)] == [True, False, False] * 2


# -- hosts come and go -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEYS)
def test_slices_move_to_a_new_host_while_epochs_go_on_and_are_there_when_their_lane_is(place, kind):
    cluster = Cluster(place, "ab", kind)
    cluster.go_on(4)
    cluster.slots["c"], cluster.lanes = 1.0, 3
    cluster.go_on(4)
    assert cluster.homes() == {"a": 2, "b": 2, "c": 2}
    assert not any("rebuilt" in origins for origins in cluster.origins)
    assert cluster.origins[-1] == {"local": SLICES}
    assert state(place) == expected(8, kind)


def test_slices_move_away_from_a_leaving_host_before_it_is_free(place):
    cluster = Cluster(place, "abc")
    cluster.lanes = 3
    cluster.go_on(3)
    cluster.avoided.add("c")
    cluster.run_epoch()
    assert not cluster.hosting.is_free("c")
    assert cluster.homes()["c"] == 2, "it goes on until its slices are elsewhere"
    cluster.hosting.run()
    cluster.go_on(2)
    assert cluster.hosting.is_free("c") and cluster.homes()["c"] == 0
    assert not any("rebuilt" in origins for origins in cluster.origins)
    cluster.lose("c")
    cluster.go_on()
    assert state(place) == expected(cluster.driver.epoch)


def test_a_host_that_leaves_costs_its_own_slices_a_move_and_no_others(place):
    cluster = Cluster(place, "abc")
    cluster.lanes = 3
    cluster.go_on(3)
    before = cluster.placed().homes()
    cluster.avoided.add("c")
    cluster.go_on(4)
    after = cluster.placed().homes()
    assert Counter(after) == {"a": 4, "b": 2}
    assert [slice_ for slice_ in range(SLICES) if before[slice_] != after[slice_]] == [2, 5]


def test_slices_move_to_the_hosts_of_the_lanes_that_they_are_assigned_to(place):
    cluster = Cluster(place, "ab")
    cluster.go_on(2)
    cluster.assigned = (0, 0, 0, 0, 0, 1)
    cluster.go_on(3)
    assert cluster.placed().homes() == ("a", "a", "a", "a", "a", "b")
    cluster.assigned = None
    cluster.go_on(3)
    assert cluster.homes() == {"a": 3, "b": 3}
    assert not any("rebuilt" in origins for origins in cluster.origins)


def test_the_only_lane_stays_with_its_slices_when_the_driver_is_started_again(place):
    cluster = Cluster(place, "abc")
    cluster.lanes, cluster.avoided = 1, {"a"}
    cluster.go_on(3)
    cluster.avoided = set()
    cluster.started()
    cluster.go_on(3)
    assert cluster.homes() == {"b": SLICES}


def test_a_host_that_stays_after_all_gets_its_share_back(place):
    cluster = Cluster(place, "abc")
    cluster.lanes = 3
    cluster.go_on(2)
    cluster.avoided.add("c")
    cluster.go_on(3)
    cluster.avoided.discard("c")
    cluster.go_on(4)
    assert cluster.homes() == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("kind", KEYS)
def test_slices_of_a_lost_host_come_up_on_all_hosts_with_their_backups(place, kind):
    cluster = Cluster(place, "abcd", kind)
    cluster.lanes = 4
    cluster.go_on(4)
    lost = [slice_ for slice_, home in enumerate(cluster.placed().homes()) if home == "a"]
    cluster.lose("a")
    cluster.run_epoch()
    homes = cluster.placed().homes()
    assert len({homes[slice_] for slice_ in lost}) == len(lost) == 2
    assert set(cluster.origins[-1]) <= {"local", "caught up"}, "their backups were there"
    assert state(place) == expected(5, kind)


def test_a_lost_host_without_backups_costs_a_rebuild_and_nothing_else(place):
    cluster = Cluster(place, "ab", changes={"backups": 0})
    cluster.go_on(3)
    cluster.lose("a")
    cluster.go_on()
    assert cluster.origins[-1] == {"local": 3, "rebuilt": 3}
    assert state(place) == expected(4)


def test_fewer_lanes_than_hosts_leave_no_slice_without_a_lane_on_its_host(place):
    cluster = Cluster(place, "abc")
    cluster.lanes = 3
    cluster.go_on(3)
    cluster.lanes = 1
    cluster.go_on(6)
    assert cluster.homes() == {"a": SLICES}
    assert not any("rebuilt" in origins for origins in cluster.origins)


def test_migrations_are_handed_over_together_and_do_not_wait_for_a_host_that_is_silent(place):
    cluster = Cluster(place, "ab", changes={"backups": 0})
    cluster.go_on(2)
    cluster.slots |= {"c": 1.0, "d": 1.0}
    cluster.lanes, cluster.silent = 4, {"d"}
    cluster.go_on(3)
    phases = Counter(place.migration.phase for place in cluster.placed().places if place.migration)
    assert phases[MigrationPhase.REROUTE] and phases[MigrationPhase.PREPARE]
    cluster.go_on(SETTINGS.hand_over_epochs)
    assert cluster.homes()["c"] and not cluster.homes()["d"]
    cluster.silent = set()
    cluster.go_on(3)
    assert cluster.homes()["d"]
    assert not any("rebuilt" in origins for origins in cluster.origins)


def test_what_a_host_could_not_do_is_said_and_done_the_next_time(place):
    cluster = Cluster(place, "ab")
    cluster.run_epoch()
    cluster.hosting._ask_hosts = lambda wanted, epoch: {"b": TargetReport({}, problem="the disk is full")}
    with pytest.raises(StateError, match="b: the disk is full"):
        cluster.hosting.run()
    cluster.hosting._ask_hosts = cluster.ask_hosts
    cluster.go_on()
    assert not has_work(cluster.placed())


def test_copies_that_are_too_many_for_one_time_are_rebuilt_in_several(place):
    cluster = Cluster(place, "ab", changes={"backup_epochs": 100, "copy_work_s": 0.0})
    cluster.run_epoch()
    target = HostTarget(tuple(range(SLICES)), tuple(range(SLICES)))
    answers = [reach_target(cluster.copies("z"), target, 0) for _ in range(4)]
    assert [answer.rebuilt for answer in answers] == [2, 2, 2, 0]
    assert [len(answer.reached) for answer in answers] == [0, 2, 4, 6]


def test_a_placement_that_cannot_be_read_is_made_anew(place):
    cluster = Cluster(place, "ab")
    cluster.go_on(2)
    cluster.driver.checkpoint.location.write(PLACEMENT, b"{")
    assert read_placement(cluster.driver.checkpoint.location) is None
    cluster.started()
    cluster.go_on(2)
    assert state(place) == expected(4)


def test_nothing_is_achieved_by_a_copy_that_is_behind():
    placement = Placement.first(2, ["a", "b"], 1)
    assert finished_steps(placement, {"a": {1: 6}, "b": {0: 5}}, 6) == finished_steps(placement, {"a": {1: 6}}, 6)
    assert len(finished_steps(placement, {"a": {1: 6}, "b": {0: 6}}, 6)) == 2
    joined = step(placement, HostJoined("c"))
    assert host_targets(joined)["c"] == HostTarget((0, 1), (0, 1)) or set(host_targets(joined)) == {"a", "b", "c"}


# -- crashes ---------------------------------------------------------------------------------------------------------------


def story(cluster):
    """Backups, a new host, lanes, a leaving host, a lost one: whatever moves slices."""

    def joined():
        cluster.slots["c"], cluster.lanes = 1.0, 3

    def lost():
        if "a" in cluster.slots:
            cluster.lose("a")

    for change in (lambda: None, joined, lambda: cluster.avoided.add("b"), lost, lambda: None):
        yield change
        for _ in range(3):
            yield cluster.run_epoch
            yield cluster.hosting.run


CRASHES = [(point, nth, kind) for point in MOVING for nth in (1, 4) for kind in KEYS]
CRASHES += [(point, 2, "numbers") for point in POINTS]


@pytest.mark.parametrize(("point", "nth", "kind"), CRASHES)
def test_a_crash_of_the_driver_at_any_step_of_migration_and_recovery_leaves_exact_counts(place, point, nth, kind):
    cluster, killer = Cluster(place, "ab", kind), Killer(point, nth)
    crashes = 0
    with watch_points(killer):
        for act in story(cluster):
            try:
                act()
            except Crash:
                crashes += 1
                done = cluster.driver.checkpoint.epochs()
                cluster.driver.epoch = done[-1] + 1 if done else 0
                cluster.started()
    assert crashes == (1 if killer.seen >= nth else 0)
    assert killer.seen or point not in MOVING
    cluster.go_on(2)
    assert state(place) == expected(cluster.driver.epoch, kind)
    assert cluster.origins[-1] == {"local": SLICES} or kind == "texts"


# -- anything ----------------------------------------------------------------------------------------------------------------

changes = st.one_of(
    st.sampled_from("abcd").map(lambda host: ("join", host)),
    st.sampled_from("abcd").map(lambda host: ("leave", host)),
    st.sampled_from("abcd").map(lambda host: ("stay", host)),
    st.sampled_from("abcd").map(lambda host: ("lose", host)),
    st.integers(1, 5).map(lambda lanes: ("lanes", lanes)),
    st.just(("restart", "")),
    st.just(("work", "")),
)


@given(st.lists(changes, max_size=16), st.integers(0, 2))
@examples(40)
def test_any_sequence_of_hosts_lanes_and_restarts_keeps_every_key_exactly_once(sequence, backups):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        cluster = Cluster(Path(folder), "ab", changes={"backups": backups})
        for change, what in sequence:
            met(cluster, change, what)
            cluster.run_epoch()
        assert state(cluster.driver.place) == expected(cluster.driver.epoch)
        cluster.go_on(3 * SETTINGS.hand_over_epochs)
        assert cluster.origins[-1] == {"local": SLICES}, "it comes to rest"
        close_stores()


def met(cluster, change, what):
    if change == "join":
        cluster.slots.setdefault(what, 1.0)
    elif change == "lose" and what in cluster.slots and len(cluster.slots) > 1:
        cluster.lose(what)
    elif change == "leave":
        cluster.avoided.add(what)
    elif change == "stay":
        cluster.avoided.discard(what)
    elif change == "lanes":
        cluster.lanes = what
    elif change == "restart":
        cluster.started()
    elif change == "work":
        cluster.hosting.run()
