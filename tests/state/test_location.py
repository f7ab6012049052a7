"""The promises of a checkpoint location, on a disk and on an object store, and where a job keeps what is durable."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.bench.tables import servers
from headgate.errors import StateAwayError, StateDamagedError, StateError
from headgate.spark.epochs.timeline import CHECKPOINT, Timeline
from headgate.spark.sinks.writing import begin_start
from headgate.state.durable import close_durable, delete_durable, durable_of, open_durable
from headgate.state.faults import watch_points
from headgate.state.inspect import durable_checkpoint, place_of, read_state
from headgate.state.location import Location, below, shown
from headgate.state.split import split_slices
from headgate.state.upkeep import Upkeep
from tests.state.builders import SETTINGS, Driver, rows

S3 = pytest.param("s3", marks=pytest.mark.slow)
LOGGED = b'v1\n{"batchWatermarkMs":0}\n{"rows":%d}'


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A URI of a folder of its own in a real object store; secrets are in the environment, as on a host."""
    with servers.s3_server() as found:
        before = {name: os.environ.get(name) for name in found.environment}
        os.environ |= found.environment
        yield found.location(uuid.uuid4().hex)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@pytest.fixture(params=["disk", S3])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A path or a URI, with nothing in it."""
    if request.param == "disk":
        return str(tmp_path / "there")
    return below(request.getfixturevalue("bucket"), uuid.uuid4().hex)


# -- the contract


def test_what_is_written_is_read_and_replaced_as_a_whole(place: str) -> None:
    location = Location.of(place)
    assert location.write("a/b.state", b"one", memoryview(b"two")) == 6
    assert location.read("a/b.state").to_pybytes() == b"onetwo"
    location.write("a/b.state", b"3")
    assert location.read("a/b.state").to_pybytes() == b"3"
    assert Location.of(place).size("a/b.state") == 1


def test_files_that_are_not_there_are_told_from_those_that_are(place: str) -> None:
    location = Location.of(place)
    assert not location.exists("a") and location.size("a") == 0 and location.names("") == []
    with pytest.raises(StateDamagedError):
        location.read("a")
    location.write("a", b"1")
    location.write("empty", b"")
    assert location.sizes(["a", "b", "empty"]) == {"a": 1, "b": None, "empty": 0}
    location.delete("b")


def test_names_are_those_below_a_folder_in_order(place: str) -> None:
    location = Location.of(place)
    for name in ("x/2", "x/1", "x/y/3", "z"):
        location.write(name, b"")
    assert location.names("x") == ["1", "2", "y/3"]
    assert location.names("nothing") == []
    assert location.folders() == ["x"]


def test_what_is_deleted_is_gone(place: str) -> None:
    location = Location.of(place)
    for name in ("x/1", "x/2", "y/1"):
        location.write(name, b"1")
    location.delete_durably(["x/1", "y/1"])
    assert location.names("") == ["x/2"]
    location.delete_all()
    assert Location.of(place).names("") == []


def test_a_write_that_is_interrupted_leaves_the_old_content_and_no_name(place: str) -> None:
    location = Location.of(place)
    location.write("kept", b"old")
    for name in ("kept", "new"):
        with contextlib.suppress(KilledError), watch_points(_interrupt):
            location.write(name, b"never")
    location.remove_leftovers()
    assert location.names("") == ["kept"]
    assert location.read("kept").to_pybytes() == b"old"


def _interrupt(point: str) -> None:
    if point == "delta: written, not renamed":
        raise KilledError


class KilledError(BaseException):
    """The process ends here: no error that code expects."""


# -- state in a location


def test_state_goes_on_from_a_location_after_the_driver_and_all_stores_are_gone(place: str, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "one", durable=place)
    for first in range(0, 40, 10):
        driver.epoch_of(rows([(user, 1) for user in range(first, first + 20)]))
    Upkeep(driver.checkpoint, driver.life, SETTINGS, tmp_path / "scratch").run()
    again = Driver(tmp_path / "two", durable=place)
    assert again.life == driver.life
    again.start_at(driver.epoch - 1)  # the newest epoch runs again
    again.epoch_of(rows([(user, 1) for user in range(30, 50)]))
    assert again.origins() == {"rebuilt": 8}
    counts = {entry.key["user"]: entry.state[":count"] for entry in read_state(place)}
    assert counts == {user: 1 if user < 10 or user >= 40 else 2 for user in range(50)}


def test_slices_are_doubled_in_a_location(place: str, tmp_path: Path) -> None:
    job = tmp_path / "jobs" / "shop"
    open_durable(job, place)
    driver = Driver(place_of(job, "visits"), durable=durable_checkpoint(job, "visits"))
    driver.epoch_of(rows([(user, 1) for user in range(20)]))
    driver.epoch_of(rows([(user, 1) for user in range(10)]))
    before = read_state(durable_checkpoint(job, "visits"))
    assert split_slices(job, "visits").slices == 16
    after = read_state(durable_checkpoint(job, "visits"))
    assert sorted((str(one.key), str(one.state)) for one in after) == sorted(
        (str(one.key), str(one.state)) for one in before
    )
    assert max(one.slice for one in after) >= 8


# -- jobs in a location


def spark_log(job: Path, epochs: int) -> None:
    """What Spark logs for some epochs, the newest without a commit, and the files that a source has read."""
    for folder in ("offsets", "commits", "sources/0"):
        (job / CHECKPOINT / folder).mkdir(parents=True, exist_ok=True)
    (job / CHECKPOINT / "metadata").write_bytes(b'{"id":"q"}')
    for epoch in range(epochs):
        (job / CHECKPOINT / "offsets" / str(epoch)).write_bytes(LOGGED % (10 * epoch))
        (job / CHECKPOINT / "sources" / "0" / str(epoch)).write_bytes(b'v1\n{"path":"%d"}' % epoch)
        if epoch < epochs - 1:
            (job / CHECKPOINT / "commits" / str(epoch)).write_bytes(b'v1\n{"nextBatchWatermarkMs":0}')


def test_another_driver_rebuilds_the_log_of_spark_and_has_a_later_start(place: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first" / "orders", tmp_path / "second" / "orders"
    timeline = Timeline(first, open_durable(first, place))
    start = begin_start(durable_of(first))
    for epoch in range(3):
        spark_log(first, epoch + 1)
        timeline.begin(epoch)
    shutil.rmtree(first)
    second.mkdir(parents=True)
    Timeline(second, open_durable(second, place)).restore()
    log = second / CHECKPOINT
    assert (log / "offsets" / "2").read_bytes() == LOGGED % 20
    assert {path.name for path in (log / "commits").iterdir()} == {"0", "1"}
    assert (log / "metadata").read_bytes() == b'{"id":"q"}'
    assert {path.name for path in (log / "sources" / "0").iterdir()} == {"0", "1", "2"}
    later = begin_start(durable_of(second))
    assert (later.life, later.number) == (start.life, start.number + 1)


def test_a_job_without_a_checkpoint_location_keeps_everything_in_its_directory(tmp_path: Path) -> None:
    assert open_durable(tmp_path, "") == durable_of(tmp_path) == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_removed_job_has_its_folder_again_and_a_new_one_of_its_name_another(place: str, tmp_path: Path) -> None:
    job, removed = tmp_path / "jobs" / "orders", tmp_path / "removed"
    first = open_durable(job, place)
    Location.of(first).write("life.json", b"1")
    close_durable(job, place, keep=True)
    shutil.move(job, removed)
    assert open_durable(job, place) != first
    close_durable(job, place, keep=False)
    shutil.rmtree(job)
    shutil.copytree(removed, job)
    assert open_durable(job, place) == first
    assert Location.of(first).exists("life.json")
    delete_durable(job)
    assert Location.of(first).names("") == []


def test_a_job_that_has_state_in_the_home_is_not_given_an_empty_folder(tmp_path: Path) -> None:
    job = tmp_path / "jobs" / "orders"
    begin_start(open_durable(job, ""))
    with pytest.raises(StateError, match=r"keeps its state in .* unset checkpoint"):
        open_durable(job, str(tmp_path / "there"))
    assert open_durable(job, "") == str(job)


# -- trouble


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda away: away.read("x"), id="read"),
        pytest.param(lambda away: away.names(""), id="names", marks=pytest.mark.slow),
        pytest.param(lambda away: away.write("x", b"1"), id="write", marks=pytest.mark.slow),
    ],
)
def test_storage_that_does_not_answer_is_no_damage(ask: Callable[[Location], object]) -> None:
    port = servers.free_port()
    away = Location.of(f"s3://k:hush@bucket/a?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1")
    with pytest.raises(StateAwayError) as told:
        ask(away)
    assert "hush" not in str(told.value)


def test_secrets_of_a_uri_are_not_shown() -> None:
    assert shown("s3://key:hush@bucket/folder") == "s3://bucket/folder"
    with pytest.raises(StateError) as told:
        Location.of("gopher://me:hush@somewhere/else")
    assert "hush" not in str(told.value)
