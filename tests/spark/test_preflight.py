"""The preflight of a cluster: hosts that do not see what the driver sees get no lanes, and the job says why."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate
from headgate import Intent, Topology, sinks, sources
from headgate.errors import OutageError, StateDamagedError
from headgate.spark.hosts import host_checks
from headgate.spark.hosts.host_checks import HostAnswer, HostCheck, Leftovers, StoreCheck, python_version, store_problem
from headgate.spark.hosts.preflight import AGAIN_S, Folder, Needs, Preflight, needs_of
from headgate.spark.sinks.files import Files
from headgate.spark.sinks.writing import Writing
from headgate.state.checkpoint import DeltaFile
from tests.state.builders import Driver, rows


@dataclass
class Machines:
    """Hosts whose folders are those of the driver, unless a host has a disk of its own."""

    driver: Path
    private: dict[str, Path] = field(default_factory=dict)
    """The disk of a host that does not share the folder of the driver."""
    away: set[str] = field(default_factory=set)
    answers: dict[str, HostAnswer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def ask(self, hosts: Sequence[str], check: HostCheck) -> Mapping[str, bytes]:
        self.asked += hosts
        if self.broken & set(hosts):
            raise RuntimeError("ModuleNotFoundError: No module named 'headgate'")
        return {host: self._answer(host, check) for host in hosts if host not in self.away}

    def _answer(self, host: str, check: HostCheck) -> bytes:
        if host in self.answers:
            return msgspec.json.encode(self.answers[host])
        disk = self.private.get(host)
        if disk is None:
            return check(host)
        # The same path is another folder there, as after a mount of the machine's own.
        shutil.move(self.driver, aside := self.driver.with_name("aside"))
        if disk.exists():
            shutil.copytree(disk, self.driver)
        try:
            return check(host)
        finally:
            shutil.rmtree(self.driver, ignore_errors=True)
            shutil.move(aside, self.driver)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    (tmp_path / "shared").mkdir()
    return Machines(tmp_path / "shared")


def needs(machines: Machines) -> Needs:
    return Needs((Folder(str(machines.driver), "the checkpoint location"),))


CORES = {"a": 2.0, "b": 2.0}


def test_hosts_that_see_the_folder_of_the_driver_pass_once(machines: Machines) -> None:
    preflight = Preflight(machines.ask)
    for _ in range(3):
        assert preflight.passed(CORES, needs(machines)).cores == CORES
    assert machines.asked == ["a", "b"]
    assert list(machines.driver.iterdir()) == [], "the preflight leaves no file behind"


def test_a_host_without_the_folder_gets_no_lanes_and_a_sentence_names_host_path_and_remedy(machines: Machines) -> None:
    machines.private["b"] = machines.driver.with_name("nothing")
    found = Preflight(machines.ask).passed(CORES, needs(machines))
    assert found.cores == {"a": 2.0}
    (problem,) = found.problems
    assert problem == (
        f'host b does not have the files that the driver wrote to the checkpoint location "{machines.driver}"; mount the same storage'
        " on every host under this path, or set another one"
    )


def test_a_host_whose_answer_does_not_reach_the_driver_fails(machines: Machines, tmp_path: Path) -> None:
    def ask(hosts: Sequence[str], check: HostCheck) -> Mapping[str, bytes]:
        # A copy of the folder, such as a snapshot: the nonce is there, but what is written stays on the host.
        shutil.copytree(machines.driver, tmp_path / "copy")
        found = {host: check(host) for host in hosts}
        shutil.rmtree(machines.driver)
        shutil.move(tmp_path / "copy", machines.driver)
        return found

    (problem,) = Preflight(ask).passed({"a": 2.0}, needs(machines)).problems
    assert problem.startswith("host a writes where the driver does not read, instead of to the checkpoint location")


def test_a_host_that_was_mended_is_asked_again_after_a_while(machines: Machines) -> None:
    now = [0.0]
    preflight = Preflight(machines.ask, lambda: now[0])
    machines.private["b"] = machines.driver.with_name("nothing")
    assert preflight.passed(CORES, needs(machines)).cores == {"a": 2.0}
    del machines.private["b"]
    assert preflight.passed(CORES, needs(machines)).cores == {"a": 2.0}
    now[0] += AGAIN_S
    assert preflight.passed(CORES, needs(machines)).cores == CORES


def test_a_host_that_joins_or_comes_back_is_asked(machines: Machines) -> None:
    preflight = Preflight(machines.ask)
    preflight.passed({"a": 2.0}, needs(machines))
    preflight.passed({"a": 2.0, "b": 2.0}, needs(machines))
    preflight.passed({"a": 2.0, "c": 2.0}, needs(machines))
    preflight.passed({"a": 2.0, "b": 2.0, "c": 2.0}, needs(machines))
    assert machines.asked == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (HostAnswer("2.7", headgate.__version__), "on Python 2.7"),
        (HostAnswer(python_version(), "0.0.0"), "has Headgate 0.0.0"),
    ],
)
def test_a_host_with_another_version_fails(machines: Machines, answer: HostAnswer, says: str) -> None:
    machines.answers["b"] = answer
    found = Preflight(machines.ask).passed(CORES, needs(machines))
    assert found.cores == {"a": 2.0}
    assert says in found.problems[0] and "install the same there" in found.problems[0]


def test_a_host_that_cannot_run_headgate_is_named_and_the_others_pass(machines: Machines) -> None:
    machines.broken = {"b"}
    found = Preflight(machines.ask).passed(CORES, needs(machines))
    assert found.cores == {"a": 2.0}
    assert "host b cannot run the tasks of Headgate" in found.problems[0] and "PYSPARK_PYTHON" in found.problems[0]


def test_a_host_that_does_not_answer_gets_no_lanes(machines: Machines) -> None:
    machines.away = {"b"}
    found = Preflight(machines.ask).passed(CORES, needs(machines))
    assert found.cores == {"a": 2.0} and "host b has not answered" in found.problems[0]


def test_a_folder_that_the_driver_cannot_write_fails_every_host(machines: Machines) -> None:
    (machines.driver / "file").touch()
    found = Preflight(machines.ask).passed(CORES, Needs((Folder(f"{machines.driver}/file/below", "the output"),)))
    assert found.cores == {} and "the driver cannot write to the output" in found.problems[0]


def test_jobs_share_the_answers_about_a_folder(machines: Machines) -> None:
    preflight, other = Preflight(machines.ask), machines.driver / "out"
    other.mkdir()
    preflight.passed(CORES, needs(machines))
    both = Needs((*needs(machines).folders, Folder(str(other), "the output")))
    assert preflight.passed(CORES, both).cores == CORES
    assert preflight.passed(CORES, needs(machines)).cores == CORES
    assert machines.asked == ["a", "b", "a", "b"]


# -- what a job needs


def test_a_job_needs_the_folders_that_its_lanes_write_to(tmp_path: Path) -> None:
    job = Topology("job", Intent(latency="2s"))
    read = job.source("in", sources.load(10))
    kept = job.events("each", lambda event: event, read, schema="row long", dead_letter=str(tmp_path / "letters"))
    counted = job.keyed("count", {"n": "count"}, kept, key="row")
    job.sink("out", sinks.files(tmp_path / "out"), counted)
    job.sink("far", sinks.files("s3://bucket/out"), counted)
    store = StoreCheck("headgate-1", 64)
    found = needs_of(job, "/checkpoint", store, local_files=True)
    assert {one.path for one in found.folders} == {f"{tmp_path}/letters", f"{tmp_path}/out", "/checkpoint"}
    assert found.store == store
    in_hadoop = needs_of(job, "/checkpoint", store, local_files=False)
    assert {one.path for one in in_hadoop.folders} == {f"{tmp_path}/letters", "/checkpoint"}


# -- stores


def test_slices_are_never_on_the_disk_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = StoreCheck(str(tmp_path / "store"), 1)
    assert store_problem(check, "a") == ""
    monkeypatch.setattr(host_checks, "file_system", lambda path: "nfs4")
    assert "would be on nfs4" in store_problem(check, "a") and "set state_dir" in store_problem(check, "a")


def test_a_disk_with_too_little_room_is_refused(tmp_path: Path) -> None:
    check = replace(StoreCheck(str(tmp_path), 1), least_free_mb=1 << 40)
    assert "less than least_free_mb" in store_problem(check, "a")


def test_the_file_system_of_a_path_is_that_of_its_mount() -> None:
    assert host_checks.file_system(Path("/proc/self")) == "proc"


def test_stores_of_ended_jobs_are_removed(tmp_path: Path) -> None:
    for job in ("kept", "ended"):
        (tmp_path / job / "count").mkdir(parents=True)
    Leftovers(str(tmp_path), frozenset(("kept",))).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


# -- what the preflight did not see


def test_an_epoch_whose_rows_went_elsewhere_is_refused(tmp_path: Path) -> None:
    out, folder = Files(str(tmp_path)), tmp_path / "epoch=3"
    folder.mkdir()
    pq.write_table(pa.table({"row": list(range(30))}), folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    out.check_rows(Writing(), 3, 30)
    with pytest.raises(OutageError, match=r'epoch=3" has 30 of the 50 rows of epoch 3.*mount the same storage'):
        out.check_rows(Writing(), 3, 50)
    with pytest.raises(OutageError, match="has 0 of the 50 rows of epoch 4"):
        out.check_rows(Writing(), 4, 50)


def test_an_epoch_whose_delta_the_driver_does_not_see_is_not_committed(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(1, 1)]))
    checkpoint, (written, *_) = driver.checkpoint, driver.checkpoint.files(0) or ()
    for file in (DeltaFile("deltas/gone.state", 1, (0,), 1, 100), DeltaFile(written.name, 1, (0,), 1, 7)):
        with pytest.raises(StateDamagedError, match=r"epoch 1 .* is not committed: its delta of .* mount the same"):
            checkpoint.commit(1, [file])
    assert checkpoint.epochs() == [0]
