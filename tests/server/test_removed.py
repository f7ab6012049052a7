"""Removed jobs are kept for a while and can be restored; a service that is killed at any moment loses none of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.errors import DuplicateJobError, EngineError, InputError, UnknownJobError
from headgate.server import dead_letters
from headgate.server.dead_letters import DeadLetters
from headgate.server.registry import Registered
from headgate.server.removed import RemovedJobs
from headgate.server.retention import Retention
from headgate.server.service import Loop
from headgate.topology import Topology
from tests.server.conftest import Bench
from tests.server.fake import FakeEngine

HOUR_S = 3600.0


def place(bench: Bench, name: str = "orders") -> Path:
    return bench.directory / "jobs" / name


def submit(bench: Bench, content: str = "offsets", **table: object) -> None:
    """A job, with something that it keeps: the engine of these tests keeps nothing itself."""
    name = bench.submit(**table)
    place(bench, name).mkdir(parents=True)
    (place(bench, name) / "checkpoint").write_text(content)


def test_a_removed_job_is_restored_with_what_it_kept_and_what_was_changed(bench: Bench) -> None:
    submit(bench)
    bench.service.jobs.change("orders", {"share": 3})
    bench.service.jobs.remove("orders")
    assert not place(bench).exists()
    assert "orders" not in bench.engine.states()
    (listed,) = bench.service.jobs.removed()
    assert (listed.name, listed.at, listed.bytes) == ("orders", "20231114T221320Z", len("offsets"))
    assert listed.deleted_s - listed.removed_s == 24 * HOUR_S

    bench.service.jobs.restore("orders")
    assert (place(bench) / "checkpoint").read_text() == "offsets"
    assert bench.engine.topologies["orders"].share == 3
    assert bench.service.jobs.removed() == []
    assert bench.start().states().keys() == {"orders"}, "the restored job outlives a restart"


def test_a_job_submitted_instead_begins_without_what_the_old_one_kept(bench: Bench) -> None:
    submit(bench, "old")
    bench.service.jobs.remove("orders")
    bench.submit()
    assert not place(bench).exists()
    with pytest.raises(DuplicateJobError, match='there is a job "orders" already; remove it before'):
        bench.service.jobs.restore("orders")


def test_each_removal_of_a_name_can_be_restored_by_its_time(bench: Bench) -> None:
    for content in ("first", "second"):
        submit(bench, content)
        bench.service.jobs.remove("orders")
    first, second = (one.at for one in bench.service.jobs.removed())
    assert first < second
    with pytest.raises(InputError, match=f'"orders" was not removed at "noon"; give --at one of {first}, {second}'):
        bench.service.jobs.restore("orders", "noon")
    bench.service.jobs.restore("orders", first)
    assert (place(bench) / "checkpoint").read_text() == "first"
    assert [one.at for one in bench.service.jobs.removed()] == [second]


def test_a_name_that_was_not_removed_is_told(bench: Bench) -> None:
    submit(bench)
    bench.service.jobs.remove("orders")
    with pytest.raises(UnknownJobError, match=r'there is no removed job "order". Did you mean "orders"'):
        bench.service.jobs.restore("order")


def test_a_job_that_cannot_be_started_stays_removed(bench: Bench) -> None:
    submit(bench)
    bench.service.jobs.remove("orders")
    bench.engine.refuses = "no slots"
    with pytest.raises(EngineError, match="no slots"):
        bench.service.jobs.restore("orders")
    assert bench.registry_names() == set()
    assert [one.name for one in bench.service.jobs.removed()] == ["orders"]
    assert not place(bench).exists()


def test_a_job_that_could_not_be_started_is_kept_too(bench: Bench) -> None:
    submit(bench)
    refusing = FakeEngine(clock=bench.clock)
    refusing.refuses = "no such table"
    bench.start(engine=refusing)
    bench.service.jobs.remove("orders")
    assert [one.name for one in bench.service.jobs.removed()] == ["orders"]
    assert not place(bench).exists()


def test_removed_jobs_are_deleted_when_their_time_is_over(bench: Bench) -> None:
    submit(bench)
    bench.service.jobs.remove("orders")
    bench.now_s += 23.5 * HOUR_S
    bench.rounds(1)
    assert len(bench.service.jobs.removed()) == 1
    bench.now_s += HOUR_S
    bench.rounds(1)
    assert bench.service.jobs.removed() == []
    assert list((bench.directory / "removed").iterdir()) == []


def test_removed_jobs_can_be_deleted_at_once(bench: Bench) -> None:
    bench.loop = Loop(Settings(keep_removed_h=0))
    bench.start()
    submit(bench)
    bench.service.jobs.remove("orders")
    assert not place(bench).exists()
    assert list((bench.directory / "removed").iterdir()) == []


# -- killed in between


def test_a_removal_that_was_interrupted_is_finished_by_the_next_start(bench: Bench) -> None:
    submit(bench)
    registered = bench.service.registry.all()["orders"]
    bench.service.jobs.retention.removed.begin(registered, bench.now_s)
    bench.service.registry.drop("orders")
    bench.start()
    assert not place(bench).exists(), "a job of this name would go on with the old checkpoint"
    assert [one.name for one in bench.service.jobs.removed()] == ["orders"]


def test_a_removal_that_had_only_begun_leaves_the_job_as_it_was(bench: Bench) -> None:
    submit(bench)
    registered = bench.service.registry.all()["orders"]
    bench.service.jobs.retention.removed.begin(registered, bench.now_s)
    bench.start()
    assert (place(bench) / "checkpoint").exists()
    assert bench.service.states().keys() == {"orders"}
    assert list((bench.directory / "removed").iterdir()) == []


def test_a_restore_that_was_interrupted_leaves_the_job_removed(bench: Bench) -> None:
    submit(bench)
    bench.service.jobs.remove("orders")
    path, _ = bench.service.jobs.retention.removed.find("orders")
    bench.service.jobs.retention.removed.bring_back(path, "orders")
    bench.start()
    assert not place(bench).exists()
    assert [one.name for one in bench.service.jobs.removed()] == ["orders"]


def test_a_damaged_record_keeps_no_service_down_and_nothing_of_it_is_deleted(bench: Bench) -> None:
    submit(bench)
    bench.service.jobs.remove("orders")
    (path,) = (bench.directory / "removed").iterdir()
    (path / "job.json").write_bytes(b"\xff{")
    bench.now_s += 100 * HOUR_S
    bench.start()
    assert bench.service.jobs.removed() == []
    assert (path / "place" / "checkpoint").exists()


def test_sizes_and_names_come_from_the_files(tmp_path: Path) -> None:
    assert RemovedJobs(tmp_path, 1.0).all() == []
    assert RemovedJobs(tmp_path, 1.0).expire(0.0) == []


# -- requests beside the clean-up


def test_a_job_that_is_deleted_while_its_file_is_loaded_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(bench)
    bench.service.jobs.remove("orders")
    built = bench.service.jobs._build

    def slowly(record: Registered) -> Topology:
        bench.service.jobs.retention.removed.expire(bench.now_s + 25 * HOUR_S)
        return built(record)

    monkeypatch.setattr(bench.service.jobs, "_build", slowly)
    with pytest.raises(UnknownJobError, match=r'"orders" cannot be restored any more: what it kept was deleted while'):
        bench.service.jobs.restore("orders")
    assert not place(bench).exists()
    assert list((bench.directory / "removed").iterdir()) == []


def test_clean_up_leaves_jobs_alone_that_are_being_removed_or_restored(bench: Bench) -> None:
    submit(bench)
    removed, registered = bench.service.jobs.retention.removed, bench.service.registry.all()["orders"]
    kept = removed.begin(registered, bench.now_s)
    assert removed.expire(bench.now_s + 25 * HOUR_S) == []
    removed.move("orders", kept)
    removed.bring_back(kept.parent, "orders")
    assert removed.expire(bench.now_s + 25 * HOUR_S) == []
    removed.move("orders", kept)
    assert removed.expire(bench.now_s + 25 * HOUR_S) == ["orders"]
    assert list((bench.directory / "removed").iterdir()) == []


def test_dead_letters_that_cannot_be_deleted_keep_no_removed_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention, expired = Retention(tmp_path, Settings()), list[float]()

    def fail(now_s: float) -> None:
        raise OSError("the device is full")

    monkeypatch.setattr(retention.dead_letters, "clean", fail)
    monkeypatch.setattr(retention.removed, "expire", expired.append)
    with pytest.raises(OSError, match="full"):
        retention.clean(100.0)
    assert expired == [100.0]


def test_dead_letters_of_all_threads_are_on_the_list(tmp_path: Path) -> None:
    kept = DeadLetters(tmp_path, keep_h=2)
    names = [[f"{thread}-{number}" for number in range(100)] for thread in range(2)]

    def add(mine: list[str]) -> None:
        for name in mine:
            kept.add(parsing(tmp_path / name))

    threads = [threading.Thread(target=add, args=(mine,)) for mine in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        kept.clean(0.0)
        thread.join()
    listed = msgspec.json.decode((tmp_path / "dead_letters.json").read_bytes(), type=list[str])
    assert listed == sorted(str(tmp_path / name) for mine in names for name in mine)


def test_directory_that_is_added_during_a_clean_up_stays_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeadLetters(tmp_path, keep_h=2).add(parsing(tmp_path / "unused"))
    kept = DeadLetters(tmp_path, keep_h=2)
    monkeypatch.setattr(dead_letters, "_cleaned", lambda *_: kept.add(parsing(tmp_path / "new")))
    kept.clean(0.0)
    listed = msgspec.json.decode((tmp_path / "dead_letters.json").read_bytes(), type=list[str])
    assert listed == [str(tmp_path / "new")]


# -- dead letters


def letters(folder: Path, epoch: int, at_s: float) -> Path:
    path = folder / f"epoch={epoch}" / "parse-0.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{}\n")
    os.utime(path, (at_s, at_s))
    return path


def parsing(folder: Path) -> Topology:
    job = Topology("parse", Intent(latency="5s"))
    rows = job.events(
        "parse", dict, job.source("in", lambda spark: cast(Any, None)), schema="id long", dead_letter=str(folder)
    )
    job.sink("out", lambda df, epoch: None, rows)
    return job


def test_old_dead_letters_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    folder, now_s = tmp_path / "bad", 1_700_000_000.0
    old, new = letters(folder, 1, now_s - 3 * HOUR_S), letters(folder, 2, now_s - HOUR_S)
    other = folder / "epoch=1" / "part-0.parquet"
    other.write_text("a sink of the user's")
    kept = DeadLetters(tmp_path, keep_h=2)
    kept.add(parsing(folder))
    kept.clean(now_s)
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_dead_letters_of_a_removed_job_are_deleted_by_a_later_service(tmp_path: Path) -> None:
    folder, now_s = tmp_path / "bad", 1_700_000_000.0
    path = letters(folder, 1, now_s)
    DeadLetters(tmp_path, keep_h=2).add(parsing(folder))
    later = DeadLetters(tmp_path, keep_h=2)
    later.clean(now_s + HOUR_S)
    assert path.exists()
    later.clean(now_s + 3 * HOUR_S)
    assert not path.parent.exists()
    assert str(folder) not in (tmp_path / "dead_letters.json").read_text()


def test_a_job_that_still_runs_keeps_its_directory_on_the_list(tmp_path: Path) -> None:
    folder, now_s = tmp_path / "bad", 1_700_000_000.0
    kept = DeadLetters(tmp_path, keep_h=2)
    kept.add(parsing(folder))
    kept.clean(now_s)
    path = letters(folder, 1, now_s)
    kept.clean(now_s + 3 * HOUR_S)
    assert not path.exists()
