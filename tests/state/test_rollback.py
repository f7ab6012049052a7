"""A driver that starts at an earlier epoch than the state has come to: one timeline counts, the other is void."""

from __future__ import annotations

import random
import shutil
from collections import Counter

import pytest

from headgate.config import StateSettings
from headgate.errors import StateBusyError, StateError, StateLostError
from headgate.state.checkpoint import EpochWatermark
from headgate.state.copies import Copies
from headgate.state.inspect import read_state
from headgate.state.stores import close_stores
from headgate.state.upkeep import Upkeep
from tests.state.builders import SETTINGS, Driver, counting, rows
from tests.state.test_crashes import KEYS

ROWS = 300
HOSTS = ("host-0", "host-1")


class Job:
    """Reads rows in order: each row is its own key, so that one that is lost or counted twice shows."""

    def __init__(self, place, kind="numbers"):
        self.kind = kind
        self.driver = Driver(place, counting(KEYS[kind]), slices=4)
        self.ends: dict[int, int] = {-1: 0}
        """By epoch, how far it has read."""

    def run(self, count):
        epoch, first = self.driver.epoch, self.ends[self.driver.epoch - 1]
        self.driver.epoch_of(self.batch(first, first + count))
        self.ends[epoch] = first + count

    def batch(self, first, last):
        keys = (str(row) if self.kind == "texts" else row for row in range(first, last))
        return rows([(key, 1) for key in keys], KEYS[self.kind])

    def upkeep(self):
        driver = self.driver
        settings = StateSettings(merge_epochs=6, kept_snapshots=2)
        Upkeep(driver.checkpoint, driver.life, settings, driver.place / "scratch").run()

    def follow(self, host):
        driver = self.driver
        copies = Copies(driver.operator, driver.life, driver.folder(host), str(driver.place / "checkpoint"), SETTINGS)
        copies.follow(range(4), driver.epoch - 1)

    def set_back(self, epochs):
        self.driver.start_at(max(0, self.driver.epoch - epochs))

    def counts(self):
        return Counter(
            {int(entry.key["user"]): entry.state[":count"] for entry in read_state(self.driver.place / "checkpoint")}
        )

    def expected(self):
        return Counter(range(self.ends[self.driver.epoch - 1]))


@pytest.mark.parametrize("seed", range(100))
def test_replay_in_other_epochs_counts_every_row_once(place, seed):
    """Spark's log loses 1 to 5 epochs, once or more; copies stay, go, or lag behind on another host."""
    chance = random.Random(seed)
    job = Job(place, chance.choice(list(KEYS)))
    for _ in range(chance.randrange(2, 4)):
        for _ in range(chance.randrange(6, 12)):
            job.run(chance.randrange(1, 12))
            if chance.random() < 0.2:
                job.upkeep()
            if chance.random() < 0.2:
                job.follow("host-1")
            if chance.random() < 0.1:
                job.driver.route({0: range(4)}, {0: chance.choice(HOSTS)})
        if chance.random() < 0.3:  # the lanes ran, but the epoch was not committed
            job.driver.run(job.batch(job.ends[job.driver.epoch - 1], job.ends[job.driver.epoch - 1] + 5))
        if chance.random() < 0.4:
            close_stores()
            shutil.rmtree(job.driver.folder(chance.choice(HOSTS)), ignore_errors=True)
        job.set_back(chance.randrange(1, 6))
    for _ in range(6):
        job.run(chance.randrange(1, 12))
    assert job.counts() == job.expected()
    close_stores()
    for host in HOSTS:  # whatever old copies are left, and what can be rebuilt, tell the same
        job.driver.route({0: range(4)}, {0: host})
        job.run(3)
        assert all(row["visits"] == 1 for row in job.driver.outputs)
    assert job.counts() == job.expected()


def test_a_copy_that_is_ahead_of_a_void_epoch_is_rebuilt_instead_of_refused(place):
    job = Job(place)
    for _ in range(6):
        job.run(10)
    job.set_back(4)
    job.run(3)
    assert job.driver.origins() == {"rebuilt": 4}
    assert job.counts() == job.expected()


def test_a_copy_that_ran_an_epoch_beyond_the_newest_record_is_rebuilt(place):
    """The lanes of epoch 5 had run when the power went, and Spark's log ends before the commit of epoch 4."""
    job = Job(place)
    for _ in range(5):
        job.run(10)
    job.driver.run(job.batch(50, 60))
    job.set_back(1)
    job.run(3)
    assert job.driver.origins() == {"rebuilt": 4}
    assert job.counts() == job.expected()


def test_an_epoch_that_is_run_again_keeps_its_copies(place):
    job = Job(place)
    for _ in range(5):
        job.run(10)
    job.set_back(1)
    job.run(7)
    assert job.driver.origins() == {"undone": 4}
    assert job.driver.life.timeline == 0
    assert job.counts() == job.expected()


def test_a_copy_of_a_void_epoch_that_comes_back_late_is_not_trusted(place):
    """Host-1 went with a copy of epoch 5, whose record names other files by the time it is back."""
    job = Job(place)
    for _ in range(5):
        job.run(10)
    job.follow("host-1")
    job.driver.route({0: range(4)}, {0: "host-1"})
    job.driver.run(job.batch(50, 60))
    job.driver.route({0: range(4)})
    job.set_back(1)
    job.run(3)
    job.run(3)
    job.driver.route({0: range(4)}, {0: "host-1"})
    job.run(3)
    assert job.driver.origins() == {"rebuilt": 4}
    assert job.counts() == job.expected()


def test_a_lane_of_an_attempt_that_was_given_up_leaves_newer_copies_alone(place):
    job = Job(place)
    for _ in range(4):
        job.run(10)
    job.driver.epoch = 2
    with pytest.raises(StateBusyError, match="slice 0 is already at epoch 3, which is committed"):
        job.driver.run(job.batch(20, 30))


def test_an_epoch_before_the_newest_cannot_be_committed_without_a_start(place):
    job = Job(place)
    for _ in range(4):
        job.run(10)
    with pytest.raises(StateError, match=r"epoch 2 .* cannot be committed: epoch 3 is committed already"):
        job.driver.checkpoint.commit(2, [])


def test_a_start_before_everything_that_is_kept_is_refused_and_deletes_nothing(place):
    job = Job(place)
    for _ in range(20):
        job.run(5)
        job.upkeep()
    kept = sorted(path for path in (place / "checkpoint").rglob("*") if path.is_file())
    with pytest.raises(StateLostError, match='operator "visits" was rolled back to epoch 3, but its state'):
        job.driver.start_at(3)
    assert sorted(path for path in (place / "checkpoint").rglob("*") if path.is_file()) == kept
    job.run(5)
    assert job.counts() == job.expected()


def test_a_start_before_the_first_epoch_begins_another_life(place):
    job = Job(place)
    job.driver.checkpoint.location.delete("operator.json")
    job.driver.life = job.driver.checkpoint.begin(3, 4)
    job.driver.epoch, job.ends[2] = 3, 0
    job.run(10)
    job.run(10)
    before = job.driver.life
    job.driver.start_at(1)
    job.ends[0] = 0
    assert job.driver.life.id != before.id
    job.run(4)
    assert job.counts() == job.expected()


def test_the_clock_of_an_epoch_is_part_of_its_record(place):
    job = Job(place)
    checkpoint = job.driver.checkpoint
    for epoch in range(4):
        checkpoint.commit(epoch, job.driver.run(job.batch(0, 0)), EpochWatermark(epoch * 10, epoch * 10 + 10))
        job.driver.epoch += 1
    job.set_back(2)
    again, before = checkpoint.record(2), checkpoint.record(1)
    assert again is not None and again.clock.watermark_ms == 20
    assert before is not None and before.clock.next_ms == 20
    assert checkpoint.epochs() == [0, 1, 2]
