"""Whatever dies wherever: after it was run again, the counts are exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.state.copies import Copies
from headgate.state.faults import POINTS, watch_points
from headgate.state.inspect import read_state
from headgate.state.opening import Opener
from headgate.state.stores import close_stores
from headgate.state.upkeep import Upkeep
from tests.state.builders import SETTINGS, Driver, counting, rows

KEYS = {"numbers": pa.int64(), "texts": pa.string()}
EPOCHS = 9
ROOT = Path(__file__).parents[2]


class Crash(Exception):
    """The process dies here."""


def pairs_of(epoch, kind="numbers"):
    numbers = random.Random(epoch)
    users = (numbers.randrange(40 * (epoch + 1)) for _ in range(120))
    return [(str(user) if kind == "texts" else user, numbers.randrange(10)) for user in users]


def expected(epochs, kind="numbers"):
    counts: Counter[object] = Counter()
    sums: Counter[object] = Counter()
    for epoch in range(epochs):
        for user, amount in pairs_of(epoch, kind):
            counts[user] += 1
            sums[user] += amount
    return {user: (counts[user], sums[user]) for user in counts}


def state(place):
    found = {}
    for entry in read_state(place / "checkpoint"):
        assert entry.key["user"] not in found, "a key in two slices"
        found[entry.key["user"]] = entry.state[":count"], entry.state["amount:sum"]
    return found


class Story:
    """A job's life: lanes change, backups follow, a slice migrates, a host is lost, deltas are merged, the job is rolled back."""

    def __init__(self, place, kind):
        self.driver = Driver(place, counting(KEYS[kind]), slices=4)
        self.kind = kind
        self.driver.route({0: [0, 1], 1: [2, 3]}, {0: "a", 1: "b"})

    def copies(self, host):
        driver = self.driver
        return Copies(driver.operator, driver.life, driver.folder(host), str(driver.place / "checkpoint"), SETTINGS)

    def steps(self):
        for epoch in range(EPOCHS):
            yield partial(self.run_epoch, twice=epoch == 2)
            if epoch == 1:
                yield lambda: self.copies("b").follow([0, 1], self.driver.epoch - 1)
            if epoch == 3:  # slice 0 migrates to b by reconstruction; c copies slice 1 of a
                yield lambda: self.copies("b").follow([0], self.driver.epoch - 1)
                yield lambda: self.copy_slice(1, "a", "c")
                yield lambda: self.driver.route({0: [0, 2, 3], 1: [1]}, {0: "b", 1: "c"})
            if epoch == 4:  # a backup of slice 1, first an epoch behind
                yield lambda: self.copies("d").follow([1], self.driver.epoch - 2)
                yield lambda: self.copies("d").follow([1], self.driver.epoch - 1)
            if epoch == 5:  # host c is lost
                yield lambda: self.driver.route({0: [0, 2, 3], 1: [1]}, {0: "b", 1: "d"})
            if epoch in (4, 6, 8):
                yield self.upkeep
            if epoch == 6:  # Spark's log has lost two epochs
                yield partial(self.driver.start_at, 5)
                yield partial(self.run_epoch, twice=False)
                yield partial(self.run_epoch, twice=False)

    def copy_slice(self, slice_, source, destination):
        """What a merge does where only the copy of a lane is left."""
        driver = self.driver
        folders = (Path(driver.folder(source)),)
        Opener(driver.store(destination), driver.checkpoint, driver.life, folders).at([slice_], driver.epoch)

    def upkeep(self):
        driver = self.driver
        Upkeep(driver.checkpoint, driver.life, SETTINGS, driver.place / "scratch").run()

    def run_epoch(self, twice):
        batch = rows(pairs_of(self.driver.epoch, self.kind), KEYS[self.kind])
        if twice:
            self.driver.run(batch)
        self.driver.epoch_of(batch)


class Killer:
    """Dies at the nth time a point is passed."""

    def __init__(self, point, nth):
        self.point, self.nth, self.seen = point, nth, 0

    def __call__(self, point):
        self.seen += point == self.point
        if point == self.point and self.seen == self.nth:
            raise Crash(point)


def tell(story, killer):
    crashes = 0
    with watch_points(killer):
        for act in story.steps():
            while True:
                try:
                    act()
                    break
                except Crash:
                    crashes += 1
                    close_stores()
    return crashes


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_leaves_exact_counts(place, point, nth, kind):
    if (kind, point) == ("texts", "grow: built"):
        pytest.skip("only tables grow")
    story = Story(place, kind)
    killer = Killer(point, nth)
    crashes = tell(story, killer)
    assert crashes == (1 if killer.seen >= nth else 0)
    assert killer.seen or nth > 1, "the story never came there"
    assert state(place) == expected(EPOCHS, kind)
    assert local_state(story) == expected(EPOCHS, kind)


def local_state(story):
    """What the active copies say, each on its host."""
    driver = story.driver
    found = {}
    for slice_, lane in driver.lane_of.items():
        store = driver.store(driver.host_of_lane[lane])
        Opener(store, driver.checkpoint, driver.life).at([slice_], driver.epoch)
        for keys, values in store.scan(slice_):
            for key, value in zip(*_decoded(driver, keys, values), strict=True):
                found[key] = value
    return found


def _decoded(driver, keys, values):
    from headgate.state.groups import decode_keys

    flat = [int.from_bytes(v[i : i + 8], "little", signed=True) for v in values.to_pylist() for i in (0, 8, 16)]
    names = list(driver.operator.schema.fields)
    counts, sums = flat[names.index(":count") :: 3], flat[names.index("amount:sum") :: 3]
    return decode_keys(driver.operator.schema, keys).column("user").to_pylist(), list(zip(counts, sums, strict=True))


CHILD = """
import sys
from functools import partial
from pathlib import Path
from tests.state.builders import Driver
from tests.state.test_crashes import Story, EPOCHS, KEYS
kind, place, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
story = Story(place, kind)
done = story.driver.checkpoint.epochs()
story.driver.start_at(done[-1] + 1 if done else 0)
print("ready", flush=True)
while story.driver.epoch < epochs:
    lanes = [{0: [0, 1], 1: [2, 3]}, {0: [0, 1, 2, 3]}, {0: [3], 1: [1], 2: [0, 2]}][story.driver.epoch % 3]
    story.driver.route(lanes)
    story.run_epoch(twice=False)
    if story.driver.epoch % 4 == 0:
        story.upkeep()
"""


@pytest.mark.parametrize("kind", KEYS)
def test_kill_9_again_and_again_leaves_exact_counts(tmp_path, kind):
    epochs, chance, kills = 60, random.Random(7), 0
    while True:
        command = [sys.executable, "-c", CHILD, kind, str(tmp_path), str(epochs)]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        if kills < 3:
            time.sleep(chance.uniform(0.01, 0.25))
            child.send_signal(signal.SIGKILL)
        code = child.wait()
        child.stdout.close()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills == 3
    assert state(tmp_path) == expected(epochs, kind)
