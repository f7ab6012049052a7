"""Copies, snapshots, damage: state is rebuilt from the next copy, or its loss is said; never silently wrong."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import StateSettings
from headgate.errors import StateDamagedError, StateError, StateFullError, StateLostError
from headgate.state.copies import Copies
from headgate.state.faults import watch_points
from headgate.state.lane import run_lane
from headgate.state.location import Location
from headgate.state.opening import Opener, Origin
from headgate.state.placement.routing import route_slices
from headgate.state.placement.slices import (
    Act,
    HostJoined,
    HostLeaves,
    HostLost,
    MigrationPhase,
    MoveAsked,
    Placement,
    end_of_phase,
    step,
)
from headgate.state.placement.targets import host_targets
from headgate.state.store import SliceLocks
from headgate.state.stores import close_stores
from headgate.state.upkeep import Background, Upkeep
from tests.examples import examples
from tests.state.builders import SETTINGS, Driver, counting, rows
from tests.state.placements import due, slices_of_lane
from tests.state.test_crashes import KEYS, Crash, Killer, expected, pairs_of, state

KINDS = pytest.mark.parametrize("kind", KEYS)


def started(place, kind="numbers", epochs=4):
    driver = Driver(place, counting(KEYS[kind]), slices=4)
    for _ in range(epochs):
        run_epoch(driver, kind)
    return driver


def run_epoch(driver, kind="numbers"):
    driver.epoch_of(rows(pairs_of(driver.epoch, kind), KEYS[kind]))


def copies(driver, host="host-0"):
    return Copies(driver.operator, driver.life, driver.folder(host), str(driver.place / "checkpoint"), SETTINGS)


def upkeep(driver, **changes):
    return Upkeep(
        driver.checkpoint, driver.life, StateSettings(**{"merge_epochs": 2, **changes}), driver.place / "scratch"
    )


def lose(driver, host="host-0"):
    close_stores()
    shutil.rmtree(driver.folder(host))


def damage(driver, name):
    path = driver.place / "checkpoint" / name
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


@KINDS
def test_a_lost_host_is_rebuilt_from_deltas(place, kind):
    driver = started(place, kind)
    lose(driver)
    run_epoch(driver, kind)
    assert driver.origins() == {"rebuilt": 4}
    assert state(place) == expected(5, kind)


@KINDS
def test_a_lost_host_is_rebuilt_from_snapshots_and_the_deltas_since(place, kind):
    driver = started(place, kind, epochs=6)
    upkeep(driver).run()
    assert set(driver.checkpoint.all_snapshots()) == {0, 1, 2, 3}
    run_epoch(driver, kind)
    lose(driver)
    run_epoch(driver, kind)
    assert driver.origins() == {"rebuilt": 4}
    assert state(place) == expected(8, kind)


@KINDS
def test_a_backup_that_follows_takes_over_at_once(place, kind):
    driver = started(place, kind)
    copies(driver, "host-1").follow(range(4), driver.epoch - 1)
    lose(driver)
    driver.route({0: range(4)}, {0: "host-1"})
    run_epoch(driver, kind)
    assert driver.origins() == {"local": 4}
    assert state(place) == expected(5, kind)


@KINDS
def test_a_backup_that_lags_catches_up_by_what_it_lacks(place, kind):
    driver = started(place, kind, epochs=2)
    copies(driver, "host-1").follow(range(4), 1)
    run_epoch(driver, kind)
    run_epoch(driver, kind)
    driver.route({0: range(4)}, {0: "host-1"})
    run_epoch(driver, kind)
    assert driver.origins() == {"caught up": 4}
    assert state(place) == expected(5, kind)


# -- damage --------------------------------------------------------------------------------------------------------------


@KINDS
def test_a_corrupt_delta_without_another_copy_is_said(place, kind):
    driver = started(place, kind)
    damage(driver, driver.checkpoint.files(2)[0].name)
    lose(driver)
    with pytest.raises(StateLostError, match='slice 0 of operator "visits" cannot be rebuilt as of epoch 3'):
        run_epoch(driver, kind)


@KINDS
def test_a_corrupt_delta_is_got_round_by_a_copy_on_another_host(place, kind):
    driver = started(place, kind)
    copies(driver, "host-1").follow(range(4), 3)
    damage(driver, driver.checkpoint.files(3)[0].name)
    lose(driver)
    opener = Opener(driver.store(), driver.checkpoint, driver.life, [Path(driver.folder("host-1"))])
    assert opener.at(range(4), driver.epoch).counts() == {"copied": 4}
    run_epoch(driver, kind)
    assert driver.origins() == {"local": 4}
    found = {row["user"]: (row["visits"], row["total"]) for row in driver.outputs}
    assert found.items() <= expected(5, kind).items()


def test_a_corrupt_delta_concerns_only_its_slices(place):
    driver = started(place, epochs=1)
    driver.route({0: [0, 1], 1: [2, 3]})
    run_epoch(driver)
    damage(driver, driver.checkpoint.files(1)[0].name)
    with pytest.raises(StateDamagedError, match="checksum"):
        driver.checkpoint.read_delta(driver.checkpoint.files(1)[0].name)
    assert set(copies(driver, "host-1").follow([2, 3], 1)) == {2, 3}
    with pytest.raises(StateLostError):
        copies(driver, "host-2").follow([1, 2], 1)


@KINDS
@pytest.mark.parametrize("harm", ["missing", "corrupt", "cut off"])
def test_without_its_newest_snapshot_a_slice_is_rebuilt_from_the_one_before(place, kind, harm):
    driver = started(place, kind, epochs=5)
    upkeep(driver).run()
    for _ in range(4):
        run_epoch(driver, kind)
    upkeep(driver).run()
    newest, older = (f"snapshots/00002/{epoch:012d}.state" for epoch in reversed(driver.checkpoint.snapshots(2)))
    assert driver.checkpoint.location.exists(older)
    path = driver.place / "checkpoint" / newest
    if harm == "missing":
        path.unlink()
    elif harm == "cut off":
        path.write_bytes(path.read_bytes()[:10])
    else:
        damage(driver, newest)
    lose(driver)
    run_epoch(driver, kind)
    assert state(place) == expected(10, kind)


def test_a_missing_record_of_an_epoch_is_said(place):
    driver = started(place)
    (place / "checkpoint/epochs/000000000001.json").unlink()
    lose(driver)
    with pytest.raises(StateLostError):
        run_epoch(driver)


def test_a_copy_of_an_attempt_that_did_not_count_is_taken_back(place):
    driver = started(place, epochs=1)
    driver.run(rows([(999, 1)]))  # host-0 was given up after this, and the epoch run elsewhere
    driver.route({0: range(4)}, {0: "host-1"})
    run_epoch(driver)
    driver.route({0: range(4)})
    run_epoch(driver)
    assert driver.origins() == {"caught up": 4}
    assert state(place) == expected(3)
    run_epoch(driver)
    assert driver.origins() == {"local": 4}


def test_a_copy_from_before_a_restart_of_the_machine_is_not_trusted(place, monkeypatch):
    driver = started(place)
    close_stores()
    monkeypatch.setattr("headgate.state.table.boot_id", lambda: "another")
    run_epoch(driver)
    assert driver.origins() == {"rebuilt": 4}


@KINDS
@pytest.mark.parametrize("call", ["write", "posix_fallocate"])
def test_a_full_disk_fails_the_epoch_in_a_sentence_and_costs_nothing(place, kind, call, monkeypatch):
    driver = started(place, kind)
    if kind == "texts":
        lose(driver)  # LMDB takes its room when a slice is made or opened

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    many = rows([(str(user) if kind == "texts" else user, 1) for user in range(5000)], KEYS[kind])
    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(StateError, match="No space left") as told:
            driver.run(many)
    assert "\n" not in str(told.value)
    assert not list(place.glob("checkpoint/**/*.part"))
    run_epoch(driver, kind)
    assert state(place) == expected(5, kind)


def test_an_epoch_fails_in_a_sentence_while_the_disk_has_too_little_room(place):
    driver = started(place)
    task = replace(driver.task(0), settings=StateSettings(least_free_mb=10**9))
    with pytest.raises(StateFullError, match=r"MB of free space, less than least_free_mb = 1000000000; free some"):
        list(run_lane(driver.operator, task, []))
    run_epoch(driver)
    assert state(place) == expected(5)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB; only root may make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False).returncode
    ):
        pytest.skip("only root may mount a small file system")
    yield folder
    close_stores()
    subprocess.run(["umount", str(folder)], check=True)


@KINDS
def test_a_disk_that_fills_up_kills_no_process_and_costs_no_row(small_disk, kind):
    """A write to a mapping without room would end the process: of the lanes, or of the driver that merges."""
    driver, ballast = Driver(small_disk, counting(KEYS[kind]), slices=4), small_disk / "ballast"
    keep, failed = upkeep(driver, least_free_mb=0), 0
    for _ in range(8):
        batch = rows(pairs_of(driver.epoch, kind), KEYS[kind])
        _fill(ballast)
        close_stores()
        try:
            driver.route({0: range(4)}, {0: f"host-{driver.epoch % 3}"})
            driver.run(batch)
        except StateError as error:
            failed += 1
            assert "No space left" in str(error)
        with suppress(StateError):
            keep.run()
        ballast.unlink()
        driver.epoch_of(batch)
    assert failed
    assert state(small_disk) == expected(8, kind)


def _fill(path):
    with path.open("wb", buffering=0) as stream:
        for size in (65536, 4096, 64):
            with suppress(OSError):
                while True:
                    stream.write(bytes(size))


def test_a_slice_that_another_process_holds_is_waited_for_then_refused(place):
    driver = started(place)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        SliceLocks(place / "hosts/host-0").take([2], 1)
        os.write(writer, b"!")
        os.read(os.pipe()[0], 1)
    os.read(reader, 1)
    try:
        with pytest.raises(StateError, match="one of the slices 0 to 3 is still held"):
            run_epoch(driver)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    run_epoch(driver)
    assert state(place) == expected(5)


@KINDS
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("point", ["undo: begun", "apply: begun", "apply: half", "apply: done"])
def test_a_crash_while_an_epoch_is_undone_leaves_exact_counts(place, kind, point, nth):
    driver = started(place, kind)
    driver.run(rows([(str(user) if kind == "texts" else user, 9) for user in range(30)], KEYS[kind]))
    batch, killer = rows(pairs_of(driver.epoch, kind), KEYS[kind]), Killer(point, nth)
    with watch_points(killer), pytest.raises(Crash):
        driver.run(batch)
    close_stores()
    run_epoch(driver, kind)
    assert state(place) == expected(5, kind)
    run_epoch(driver, kind)
    assert state(place) == expected(6, kind)


def test_following_an_epoch_that_is_past_changes_nothing(place):
    driver = started(place)
    backup = copies(driver, "host-1")
    backup.follow(range(4), 3)
    assert set(backup.follow(range(4), 1).values()) == {Origin.LOCAL}
    assert backup.versions(range(4)) == dict.fromkeys(range(4), 3)


# -- upkeep --------------------------------------------------------------------------------------------------------------


@KINDS
def test_disk_use_is_bounded(place, kind):
    driver, sizes = started(place, kind, epochs=0), []
    keep = upkeep(driver, merge_epochs=4)
    batch = rows(pairs_of(1, kind), KEYS[kind])
    for _ in range(40):
        driver.epoch_of(batch)
        keep.run()
        sizes.append(sum(path.stat().st_size for path in (place / "checkpoint").rglob("*.state")))
    assert max(sizes[20:]) <= 1.2 * max(sizes[:20])
    assert len(driver.checkpoint.location.names("deltas")) < 16
    assert {len(found) for found in driver.checkpoint.all_snapshots().values()} == {2}


def test_upkeep_leaves_nothing_of_attempts_that_did_not_count(place):
    driver = started(place, epochs=2)
    driver.run(rows([(1, 1)]))
    run_epoch(driver)
    run_epoch(driver)
    upkeep(driver, merge_epochs=100).run()
    named = {file.name for epoch in driver.checkpoint.epochs() for file in driver.checkpoint.files(epoch)}
    assert {f"deltas/{name}" for name in driver.checkpoint.location.names("deltas")} == named


def test_upkeep_runs_beside_the_epochs(place):
    driver = started(place, epochs=1)
    errors: list[StateError] = []
    background = Background(upkeep(driver), errors.append)
    for _ in range(12):
        run_epoch(driver)
        background.ask()
    background.close()
    upkeep(driver).run()
    assert errors == []
    lose(driver)
    run_epoch(driver)
    assert state(place) == expected(14)


def test_a_location_that_cannot_be_used_is_said():
    with pytest.raises(StateError, match="cannot be used"):
        Location.of("gopher://somewhere/else")


# -- everything together -----------------------------------------------------------------------------------------------------

hosts = st.sampled_from(["a", "b", "c"])
changes = st.one_of(
    hosts.map(HostJoined),
    hosts.map(HostLeaves),
    hosts.map(HostLost),
    st.builds(MoveAsked, st.integers(0, 3), hosts),
    st.integers(1, 3),  # another number of lanes per host
    st.just("act"),
)


@given(st.lists(changes, max_size=14))
@examples(25)
def test_any_sequence_of_lane_changes_migrations_and_host_losses_keeps_every_key_exactly_once(sequence):
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        world = World(Path(folder))
        for change in sequence:
            world.meet(change)
            world.run()
        assert state(world.driver.place) == expected(world.driver.epoch)
        close_stores()


class World:
    """What a placement asks for, carried out on real copies."""

    def __init__(self, place):
        self.driver = Driver(place, slices=4)
        self.placement = Placement.first(4, ["a", "b"], 1)
        self.lanes_per_host, self.routing = 1, None

    def meet(self, change):
        if isinstance(change, int):
            self.lanes_per_host = change
            return
        if change == "act":
            events = due(self.placement)
            if not events:
                return
            change = events[0]
            self.act(change)
        if isinstance(change, HostLost) and change.host in self.placement.hosts and len(self.placement.hosts) > 1:
            close_stores()
            shutil.rmtree(self.driver.folder(change.host), ignore_errors=True)
        self.placement = step(self.placement, change)
        for host, target in host_targets(self.placement).items():
            copies(self.driver, host).drop(slice_ for slice_ in range(4) if slice_ not in target.keep)

    def act(self, event):
        if event.act in (Act.REBUILD, Act.BACK_UP) and self.driver.epoch:
            copies(self.driver, event.host).follow([event.slice], self.driver.epoch - 1)

    def run(self):
        lanes = [host for host in self.placement.hosts for _ in range(self.lanes_per_host)]
        self.routing = route_slices([1.0] * 4, self.placement.homes(), lanes, SETTINGS, self.routing)
        used = sorted(set(self.routing.lane_of))
        self.driver.route(
            {lane: slices_of_lane(self.routing, lane) for lane in used}, {lane: lanes[lane] for lane in used}
        )
        run_epoch(self.driver)


def test_a_migration_in_four_phases_leaves_the_destination_local(place):
    world = World(place)
    world.run()
    world.meet(MoveAsked(0, "b"))
    while (migration := world.placement.places[0].migration) is not None:
        if migration.phase is MigrationPhase.REROUTE:
            world.run()  # the source goes on until the epoch boundary
            assert "rebuilt" not in world.driver.origins()
        end = end_of_phase(0, migration)
        world.act(end)
        world.placement = step(world.placement, end)
    world.run()
    assert world.placement.places[0].active == "b"
    assert world.driver.origins() in ({"local": 3, "caught up": 1}, {"local": 4})
    assert state(place) == expected(world.driver.epoch)


def test_rows_without_a_slice_column_are_put_into_the_slice_spark_would(place):
    driver = started(place, epochs=1)
    slices = {entry.key["user"]: entry.slice for entry in _entries(place)}
    from headgate.state.hashing import slices_of

    users = list(slices)
    assert slices_of([pa.array(users)], driver.life.slices).tolist() == [slices[user] for user in users]


def _entries(place):
    from headgate.state.inspect import read_state

    return read_state(place / "checkpoint")
