"""Files that are not what was written: a copy is rebuilt, a file is got round, or a sentence says what is wrong."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from headgate.config import StateSettings
from headgate.errors import HeadgateError, StateError, StateLostError
from headgate.state.copies import Copies
from headgate.state.inspect import read_state
from headgate.state.stores import close_stores
from headgate.state.upkeep import Background, Upkeep
from tests.state.builders import SETTINGS, Driver, counting, rows
from tests.state.test_crashes import KEYS, expected, pairs_of, state

SLICES = 4


def started(place, kind="numbers", epochs=5):
    driver = Driver(place, counting(KEYS[kind]), slices=SLICES)
    for _ in range(epochs):
        run_epoch(driver, kind)
    close_stores()
    return driver


def run_epoch(driver, kind="numbers"):
    """An epoch that touches every key that there is, so that what is put out is the whole state."""
    epoch = driver.epoch
    driver.epoch_of(rows(pairs_of(epoch, kind), KEYS[kind]))


def all_keys(driver, kind="numbers"):
    """The state of every key, as the lanes know it: a row of amount 0 each counts one visit."""
    known = expected(driver.epoch, kind)
    driver.run(rows([(user, 0) for user in known], KEYS[kind]))
    return {row["user"]: (row["visits"] - 1, row["total"]) for row in driver.outputs}


def flip(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


TABLE_REGIONS = {
    "magic": (0, 8),
    "control": (8, 16),
    "size": (16, 24),
    "used": (24, 32),
    "width": (32, 40),
    "checksum": (40, 48),
    "first header": (256, 600),
    "second header": (8256, 8600),
}


@pytest.mark.parametrize("region", TABLE_REGIONS)
def test_a_flipped_bit_in_the_head_of_a_table_changes_no_count(place, region):
    driver, chance = started(place), random.Random(region)
    pristine = place / "pristine"
    shutil.copytree(place / "hosts", pristine)
    for _ in range(6):
        table = place / "hosts/host-0" / f"slice-{chance.randrange(SLICES):05d}.table"
        flip(table, chance.randrange(*TABLE_REGIONS[region]), chance.randrange(8))
        assert all_keys(driver) == expected(5)
        close_stores()
        shutil.rmtree(place / "hosts")
        shutil.copytree(pristine, place / "hosts")


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_in_the_rows_of_a_table_is_found_and_the_slice_rebuilt(place, seed):
    driver, chance = started(place), random.Random(seed)
    table = place / "hosts/host-0" / f"slice-{chance.randrange(SLICES):05d}.table"
    used = [at for at, byte in enumerate(table.read_bytes()) if byte and at >= 16384]
    flip(
        table,
        chance.choice(used) if chance.random() < 0.8 else chance.randrange(16400, table.stat().st_size),
        chance.randrange(8),
    )
    assert all_keys(driver) == expected(5)
    assert driver.origins() == {"local": SLICES - 1, "rebuilt": 1}


@pytest.mark.parametrize("harm", ["zeros", "swapped rows", "older page", "cut off", "longer"])
def test_other_harm_to_a_table_is_found_too(place, harm):
    driver = started(place)
    table = place / "hosts/host-0/slice-00001.table"
    older = table.read_bytes()
    run_epoch(driver)
    close_stores()
    data = bytearray(table.read_bytes())
    if harm == "zeros":
        data[-8192:-4096] = bytes(4096)
    elif harm == "swapped rows":
        width = 40
        at = [
            place
            for place in range(len(data) - 400 * width, len(data) - width, width)
            if data[place + width - 8 : place + width].strip(b"\0")
        ]
        one, two = at[0], at[-1]
        data[one : one + width], data[two : two + width] = data[two : two + width], data[one : one + width]
    elif harm == "older page" and len(older) == len(data):
        data[-8192:-4096] = older[-8192:-4096]
    elif harm == "cut off":
        del data[-5000:]
    else:
        data += bytes(4096)
    table.write_bytes(data)
    assert all_keys(driver) == expected(6)
    assert driver.origins().get("rebuilt") == 1


def test_checksums_hold_through_growth_deletion_undo_and_redo(place):
    driver = started(place, epochs=1)
    backup = Copies(driver.operator, driver.life, driver.folder("host-1"), str(place / "checkpoint"), SETTINGS)
    backup.follow(range(SLICES), 0)
    for _ in range(8):
        driver.run(rows([(user, 5) for user in range(3000)]))  # is undone
        run_epoch(driver)
        backup.follow(range(SLICES), driver.epoch - 1)
    close_stores()
    for host in ("host-0", "host-1"):
        store = driver.store(host)
        assert all(store.verify(slice_) for slice_ in range(SLICES))


# -- durable files -------------------------------------------------------------------------------------------------------


def upkeep(driver, live=True, **changes):
    settings = StateSettings(**{"merge_epochs": 3, **changes})
    folders = (Path(driver.folder("host-0")),) if live else ()
    return Upkeep(driver.checkpoint, driver.life, settings, driver.place / "scratch", folders)


def damage(driver, name):
    path = driver.place / "checkpoint" / name
    flip(path, path.stat().st_size // 2, 3)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("what", ["delta", "record"])
def test_a_damaged_file_is_healed_by_a_snapshot_of_the_live_copy(place, kind, what):
    driver = started(place, kind)
    damage(driver, driver.checkpoint.files(2)[0].name if what == "delta" else "epochs/000000000002.json")
    with pytest.raises(StateError):
        read_state(place / "checkpoint")
    upkeep(driver).run()
    assert state(place) == expected(5, kind)
    run_epoch(driver, kind)
    close_stores()
    shutil.rmtree(place / "hosts")
    run_epoch(driver, kind)
    assert driver.origins() == {"rebuilt": SLICES}
    assert state(place) == expected(7, kind)


def test_a_healing_snapshot_is_void_when_its_epoch_runs_again(place):
    driver = started(place)
    damage(driver, driver.checkpoint.files(2)[0].name)
    upkeep(driver).run()
    assert driver.checkpoint.snapshots(0) == [4]
    driver.start_at(4)
    run_epoch(driver)
    assert driver.checkpoint.snapshots(0) == []
    assert driver.origins() == {"undone": SLICES}
    assert all_keys(driver) == expected(5)


def test_a_live_copy_that_is_ahead_of_the_newest_epoch_heals_as_of_that_epoch(place):
    driver = started(place)
    driver.run(rows([(user, 7) for user in range(50)]))
    damage(driver, driver.checkpoint.files(2)[0].name)
    upkeep(driver).run()
    assert state(place) == expected(5)


def test_clean_up_runs_although_a_merge_failed(place):
    driver = started(place)
    driver.run(rows([(1, 1)]))
    driver.run(rows([(1, 1)]))
    run_epoch(driver)
    run_epoch(driver)
    damage(driver, driver.checkpoint.files(2)[0].name)
    strays = len(driver.checkpoint.location.names("deltas"))
    with pytest.raises(StateLostError, match="slice 0 of operator"):
        upkeep(driver, live=False).run()
    assert len(driver.checkpoint.location.names("deltas")) == strays - 2


def test_what_a_killed_process_left_half_written_is_removed(place):
    driver = started(place)
    left = [
        place / "checkpoint/epochs/000000000009.json.1f2e.part",
        place / "checkpoint/deltas/000000000009-00000-abc.state.77.part",
        place / "checkpoint/operator.json.2b.part",
        place / "scratch/merge-abc/slice-00000.mdb",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    upkeep(driver).remove_leftovers()
    assert not any(path.exists() for path in left)
    assert not (place / "scratch").exists()
    run_epoch(driver)
    assert state(place) == expected(6)


@pytest.mark.parametrize("name", ["operator.json", "epochs/000000000004.json"])
def test_a_record_that_is_not_utf_8_is_said_in_a_sentence(place, name):
    driver = started(place)
    path = place / "checkpoint" / name
    path.write_bytes(path.read_bytes().replace(b"content", b"conte\xffx"))
    shutil.rmtree(place / "hosts")
    with pytest.raises(StateError, match=f'{name}" is damaged') as told:
        run_epoch(Driver(place, slices=SLICES) if name == "operator.json" else driver)
    assert "\n" not in str(told.value)


class Full:
    """A chore that meets a full disk."""

    def __init__(self):
        self.runs, self.ran = 0, threading.Semaphore(0)

    def run(self):
        self.runs += 1
        self.ran.release()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch/merge-x")


def test_upkeep_survives_any_exception_and_reports_it():
    told: list[StateError] = []
    chore = Full()
    background = Background(chore, told.append)
    for _ in range(3):
        background.ask()
        assert chore.ran.acquire(timeout=60)
    background.close()
    assert chore.runs == 3
    assert {str(error) for error in told} == {"OSError: [Errno 28] No space left on device: 'scratch/merge-x'"}


def test_upkeep_goes_on_after_a_report_that_fails():
    told: list[StateError] = []

    def report(error: StateError) -> None:
        told.append(error)
        raise ValueError("the job is gone")

    chore = Full()
    background = Background(chore, report)
    for _ in range(2):
        background.ask()
        assert chore.ran.acquire(timeout=60)
    background.close()
    assert chore.runs == 2
    assert str(told[1]) == "thread headgate-upkeep ended (ValueError: the job is gone); it is started again"


# -- every file ----------------------------------------------------------------------------------------------------------

HARMS = ("flip", "cut off", "empty", "zeros", "gone")


def harmed(path, harm, chance):
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    elif harm == "flip":
        flip(path, chance.randrange(len(data)), chance.randrange(8))
    elif harm == "zeros":
        path.write_bytes(bytes(len(data)))
    else:
        path.write_bytes(data[: 0 if harm == "empty" else chance.randrange(1, len(data))])


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", KEYS)
def test_harm_to_any_single_file_leads_to_recovery_or_to_a_sentence(place, kind, harm):
    """What is put out afterwards is exact, whether or not the copies on this host were lost as well."""
    chance, pristine = random.Random(harm), place / "pristine"
    driver = started(place, kind, epochs=7)
    upkeep(driver).run()
    run_epoch(driver, kind)
    close_stores()
    (place / "job").mkdir()
    for folder in ("checkpoint", "hosts"):
        shutil.move(place / folder, place / "job" / folder)
    shutil.copytree(place / "job", pristine)
    names = [
        path.relative_to(pristine) for path in sorted(pristine.rglob("*")) if path.is_file() and path.stat().st_size
    ]
    outcomes: Counter[str] = Counter()
    for name in names:
        for lost in (False, True):
            shutil.rmtree(place / "job")
            shutil.copytree(pristine, place / "job")
            harmed(place / "job" / name, harm, chance)
            if lost:
                shutil.rmtree(place / "job" / "hosts", ignore_errors=True)
            outcomes[outcome(place / "job", kind, f"{name} {harm}")] += 1
            close_stores()
    assert outcomes["exact"] > len(names)


def outcome(place, kind, what):
    try:
        driver = Driver(place, counting(KEYS[kind]), slices=SLICES)
        driver.start_at(8)
        found = all_keys(driver, kind)
    except HeadgateError as error:
        assert "\n" not in str(error), what
        return "said"
    assert found == expected(8, kind), what
    return "exact"
