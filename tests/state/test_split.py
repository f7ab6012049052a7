"""Doubling the slices of an operator: the same state in twice as many slices, whatever the job does next."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.cli import run_command
from headgate.errors import StateError, StateLostError
from headgate.state.checkpoint import Checkpoint, EpochWatermark
from headgate.state.faults import watch_points
from headgate.state.inspect import checkpoint_of, place_of, read_state
from headgate.state.lane import run_lane
from headgate.state.library import Value
from headgate.state.location import Location
from headgate.state.operators import Events, KeyedOperator
from headgate.state.split import refuse_while_splitting, split_slices, splitting
from headgate.state.stores import close_stores
from tests.state.builders import Driver, counting, rows

OUTPUT = pa.schema([("user", pa.int64()), ("at", pa.int64())])


def timed(user: Any, event: Any, state: Any, emit: Any) -> None:
    state.seen.set(state.seen.get() + event["amount"])
    state.wake_at(1000 * event["amount"])


def woken(user: Any, at_ms: int, state: Any, emit: Any) -> None:
    emit({"user": user, "at": at_ms})


OPERATORS = {
    "tables": counting(),
    "rows": counting(pa.string()),
    "library": KeyedOperator("timed", {"user": pa.int64()}, Events({"seen": Value(0)}, timed, OUTPUT, woken)),
}
JOB, OPERATOR = "job", "visits"


class SplitJob:
    """A job of some epochs, before and after its slices are doubled."""

    def __init__(self, home: Path, kind: str, slices: int = 4) -> None:
        self.kind, self.job = kind, home / "jobs" / JOB
        self.driver = Driver(place_of(self.job, OPERATOR), OPERATORS[kind], slices)

    def epoch(self, first: int, count: int = 40) -> None:
        self.driver.epoch_of(self.batch(first, count))

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        kind = OPERATORS[self.kind].schema.key["user"]
        users = [(str(user) if kind == pa.string() else user, user + 1) for user in range(first, first + count)]
        return rows(users, kind)

    def states(self) -> list[tuple[str, str]]:
        return sorted((str(one.key), str(one.state)) for one in read_state(checkpoint_of(self.job, OPERATOR)))

    def split(self) -> None:
        """And go on from there, as a driver does that starts again."""
        split_slices(self.job, OPERATOR)
        self.resume(self.driver.epoch)

    def resume(self, epoch: int) -> None:
        close_stores()
        self.driver.durable = checkpoint_of(self.job, OPERATOR)
        self.driver.checkpoint = Checkpoint(Location.of(self.driver.durable), self.driver.operator.schema)
        self.driver.start_at(epoch)
        self.driver.lane_of = dict.fromkeys(range(self.driver.life.slices), 0)


@pytest.mark.parametrize("kind", list(OPERATORS))
def test_the_same_state_is_in_twice_as_many_slices(tmp_path: Path, kind: str) -> None:
    job = SplitJob(tmp_path, kind)
    for epoch in range(4):
        job.epoch(20 * epoch)
    before = job.states()
    job.split()
    assert job.driver.life.slices == 8
    assert job.states() == before
    found = {one.slice for one in read_state(checkpoint_of(job.job, OPERATOR))}
    assert found == set(range(8))
    job.split()
    assert job.driver.life.slices == 16 and job.states() == before


@pytest.mark.parametrize("kind", list(OPERATORS))
@pytest.mark.parametrize("epochs", [1, 2, 4])
@pytest.mark.parametrize("again", [False, True])
def test_a_job_goes_on_exactly_with_the_next_epoch_and_with_the_newest_one_again(
    tmp_path: Path, kind: str, epochs: int, again: bool
) -> None:
    split, whole = SplitJob(tmp_path / "split", kind), SplitJob(tmp_path / "whole", kind)
    for job in (split, whole):
        for epoch in range(epochs):
            job.epoch(20 * epoch)
    split.split()
    for job in (split, whole):
        job.resume(epochs - 1 if again else epochs)
        for epoch in range(epochs - 1 if again else epochs, epochs + 3):
            job.epoch(20 * epoch)
    assert split.states() == whole.states()


def test_timers_fire_once_after_a_split(tmp_path: Path) -> None:
    job = SplitJob(tmp_path, "library")
    job.epoch(0)
    job.epoch(100)
    job.split()
    driver, fired = job.driver, []
    for lane in range(2):
        driver.lane_of = {slice_: slice_ % 2 for slice_ in range(driver.life.slices)}
        driver.host_of_lane = {0: "host-0", 1: "host-0"}
        task = driver.task(lane, watermark_ms=120_000)
        for batch in run_lane(driver.operator, task, []):
            fired += batch.to_pylist()
    wanted = [*range(40), *range(100, 120)]
    assert sorted(one["user"] for one in fired) == wanted
    assert all(one["at"] == 1000 * (one["user"] + 1) for one in fired)


def test_the_clock_of_both_epochs_stays(tmp_path: Path) -> None:
    job = SplitJob(tmp_path, "tables")
    for epoch in range(2):
        files = job.driver.run(job.batch(0, 10))
        job.driver.checkpoint.commit(epoch, files, EpochWatermark(epoch, epoch + 100))
        job.driver.epoch += 1
    job.split()
    clocks = [job.driver.checkpoint.record(epoch) for epoch in range(2)]
    assert [one.clock for one in clocks if one is not None] == [EpochWatermark(0, 100), EpochWatermark(1, 101)]


def test_a_damaged_snapshot_of_a_split_is_never_taken_for_an_empty_beginning(tmp_path: Path) -> None:
    job = SplitJob(tmp_path, "tables")
    for epoch in range(3):
        job.epoch(20 * epoch)
    job.split()
    for path in checkpoint_of(job.job, OPERATOR).glob("snapshots/00001/*"):
        path.write_bytes(b"damaged")
    with pytest.raises(StateLostError):
        read_state(checkpoint_of(job.job, OPERATOR))


def test_a_split_that_is_killed_at_any_point_leaves_the_state_whole(tmp_path: Path) -> None:
    job = SplitJob(tmp_path, "tables", slices=2)
    for epoch in range(3):
        job.epoch(20 * epoch)
    before = job.states()
    reached: list[str] = []
    with watch_points(reached.append):
        split_slices(Path(shutil.copytree(job.job, tmp_path / "dry")), OPERATOR)
    assert {"split: written", "split: counts"} <= set(reached)
    for number in range(0, len(reached), len(reached) // 8):
        copy = Path(shutil.copytree(job.job, tmp_path / "copies" / str(number)))
        with pytest.raises(Killed), watch_points(Killer(number)):
            split_slices(copy, OPERATOR)
        for _ in range(2):
            found = sorted((str(one.key), str(one.state)) for one in read_state(checkpoint_of(copy, OPERATOR)))
            assert found == before, reached[number]
            split_slices(copy, OPERATOR)  # and it can be done again


class Killed(BaseException):
    """The process ended here."""


class Killer:
    """Ends a process at one of the points that it reaches."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, point: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed


def test_a_job_does_not_start_meanwhile(tmp_path: Path) -> None:
    refuse_while_splitting(tmp_path)
    with splitting(tmp_path), pytest.raises(StateError, match="are being doubled by another process"):
        refuse_while_splitting(tmp_path)
    refuse_while_splitting(tmp_path)


def test_an_operator_without_an_epoch_has_nothing_to_split(tmp_path: Path) -> None:
    job = SplitJob(tmp_path, "tables")
    with pytest.raises(StateError, match="no finished epoch yet"):
        split_slices(job.job, OPERATOR)


def test_a_job_that_asks_for_the_slices_it_had_before_goes_on(tmp_path: Path) -> None:
    job = SplitJob(tmp_path, "tables")
    job.epoch(0)
    job.split()
    assert job.driver.checkpoint.life(4).slices == 8
    with pytest.raises(StateError, match="cut into 8 slices; it now asks for 3"):
        job.driver.checkpoint.life(3)


def test_the_command_says_how_many_slices_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = SplitJob(tmp_path, "tables")
    job.epoch(0)
    assert run_command(["state", "split", JOB, "--home", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    assert 'Operator "visits" of job "job" has 8 slices now.' in out
    assert json.loads(out.splitlines()[-1]) == {"visits": 8}
    assert run_command(["state", "split", "jbo", "--home", str(tmp_path)]) == 2
    assert 'no job "jbo" has keyed state' in capsys.readouterr().err
