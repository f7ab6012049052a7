"""The contract of a journal, and what a file adds to it: it outlives its writer."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy
import pytest

from headgate.core.alerts import Alert, AlertKind
from headgate.core.hosts import HostType
from headgate.core.latency import Latency
from headgate.core.model import (
    Action,
    ActionKind,
    Allocation,
    Cause,
    HostReading,
    JobAllocation,
    JobReading,
    OperatorReading,
    Outcome,
    Snapshot,
)
from headgate.errors import JournalError
from headgate.journal import APPLICATION_ID, SCHEMA_VERSION, MemoryJournal, SqliteJournal
from headgate.ports import Effect, JobRecord, Journal, RoundRecord
from headgate.server.run import opened

ROOT = Path(__file__).parents[2]
KILLS = 5
WINDOW = 4


def snapshot(at_s: float, allocation: Allocation) -> Snapshot:
    reading = JobReading(
        version=1,
        operators={"join": OperatorReading({"*": 10.0}, {"sink": 5.0}, (0.5, 0.25))},
        arrived={"join": 12.0},
        backlog=2.0,
        latency=Latency.of([0.1, 0.4]),
    )
    readings: dict[str, JobReading | None] = dict.fromkeys(allocation, reading)
    return Snapshot(at_s, readings, allocation, (HostReading("host-1", 4.0, math.inf, None),))


def summary(at_s: float, *jobs: str) -> RoundRecord:
    record = JobRecord(utility=13.1, worth=90.0, latency_s=0.412, lanes={"join": 2}, intent="60 ms", met=False)
    return RoundRecord(
        at_s, "not converged", 311.0, 410.0, dict.fromkeys(jobs, record), "waits", (Alert("lease a host"),)
    )


def action(job: str, lanes: int, kind: ActionKind = ActionKind.RECONFIGURE) -> Action:
    return Action(kind, job, {job: JobAllocation({"join": lanes}, 0.5)}, Cause("join was busy", {"busy": 0.93}))


KIND = HostType("small", cores=2, memory_mb=1024, price=1.5, btu_s=600)
LEASED = Action(
    ActionKind.LEASE, "page-load", {}, Cause("too few slots", {"slots": 2}), host="leased-2", host_type=KIND
)
RELEASED = Action(ActionKind.RELEASE, None, {}, Cause("not needed"), host="leased-2")


def two_jobs() -> Allocation:
    return {"page-load": JobAllocation({"join": 2}), "topk": JobAllocation({"rank": 1}, 8.0)}


def write(journal: Journal, at_s: float, act: Action | None = None, has: Allocation | None = None) -> int | None:
    allocation = two_jobs() if has is None else has
    return journal.record(summary(at_s, *allocation), snapshot(at_s, allocation), b'{"at": %d}' % at_s, act)


def intend(journal: Journal, at_s: float, act: Action) -> int:
    action_id = write(journal, at_s, act)
    assert action_id is not None
    return action_id


def effect(at_s: float) -> Effect:
    return Effect(at_s, 311.0, 388.0, 13.1, 90.0, "kept")


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    opened: MemoryJournal | SqliteJournal
    opened = MemoryJournal(WINDOW) if request.param == "memory" else SqliteJournal(tmp_path / "run.db", window=WINDOW)
    with opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


# -- every journal


def test_restores_nothing_before_the_first_round(journal: Journal) -> None:
    journal.set_about("seed", "7")
    assert journal.restore() is None


def test_returns_an_id_for_each_action_and_none_without_one(journal: Journal) -> None:
    assert write(journal, 0) is None
    first, second = intend(journal, 10, action("topk", 2)), intend(journal, 20, action("topk", 3))
    assert first != second
    assert [one.id for one in journal.actions()] == [first, second]


def test_restores_state_and_snapshots_of_the_last_window(journal: Journal) -> None:
    for at_s in range(0, 100, 10):
        write(journal, at_s)
    restored = journal.restore()
    assert restored is not None
    assert (restored.at_s, restored.state) == (90, b'{"at": 90}')
    assert restored.snapshots == tuple(snapshot(at_s, two_jobs()) for at_s in (60, 70, 80, 90))


def test_reports_actions_without_outcome_as_unfinished(journal: Journal) -> None:
    done, failed, open_ = (intend(journal, at_s, action("topk", 2)) for at_s in (10, 20, 30))
    journal.outcome(done, Outcome(True))
    journal.outcome(failed, Outcome(False, "no slots"))
    restored = journal.restore()
    assert restored is not None
    assert [one.id for one in restored.unfinished] == [open_]
    assert [(one.id, one.at_s) for one in restored.actions] == [(done, 10)]


def test_adds_up_applied_actions_on_top_of_the_first_allocation(journal: Journal) -> None:
    write(journal, 0)
    for at_s, lanes, applied in ((10, 3, True), (20, 5, True), (30, 9, False)):
        journal.outcome(intend(journal, at_s, action("page-load", lanes)), Outcome(applied))
    restored = journal.restore()
    assert restored is not None
    assert restored.allocation == {
        "page-load": JobAllocation({"join": 5}, 0.5),
        "topk": JobAllocation({"rank": 1}, 8.0),
    }


def test_forgets_what_a_job_had_when_another_comes_under_its_name(journal: Journal) -> None:
    journal.outcome(intend(journal, 0, action("page-load", 5)), Outcome(True))
    write(journal, 10, has={"topk": JobAllocation({"rank": 1})})
    gone = journal.restore()
    write(journal, 20, has={"topk": JobAllocation({"rank": 1}), "page-load": JobAllocation({"look-up": 2})})
    back = journal.restore()
    assert gone is not None and back is not None
    assert "page-load" not in gone.allocation
    assert back.allocation["page-load"] == JobAllocation({"look-up": 2})


def test_keeps_what_a_job_had_while_it_cannot_be_read(journal: Journal) -> None:
    journal.outcome(intend(journal, 0, action("page-load", 5)), Outcome(True))
    unread = Snapshot(10, {"page-load": None, "topk": None}, {}, ())
    journal.record(summary(10), unread, b"{}")
    restored = journal.restore()
    assert restored is not None
    assert restored.allocation["page-load"] == JobAllocation({"join": 5}, 0.5)


def test_keeps_outcome_and_effect_with_the_action(journal: Journal) -> None:
    action_id = intend(journal, 10, action("page-load", 5))
    journal.outcome(action_id, Outcome(True, "took 2 s"))
    journal.effect(action_id, effect(60))
    (recorded,) = journal.actions()
    assert recorded.action == action("page-load", 5)
    assert recorded.outcome == Outcome(True, "took 2 s")
    assert recorded.effect == effect(60)


def test_last_outcome_counts(journal: Journal) -> None:
    action_id = intend(journal, 10, action("page-load", 5))
    journal.outcome(action_id, Outcome(False))
    journal.outcome(action_id, Outcome(True))
    assert journal.actions()[0].applied


def test_refuses_outcome_and_effect_of_an_unknown_action(journal: Journal) -> None:
    with pytest.raises(JournalError, match="holds no action 99"):
        journal.outcome(99, Outcome(True))
    with pytest.raises(JournalError, match="holds no action 99"):
        journal.effect(99, effect(10))


def test_selects_actions_by_the_jobs_they_touch_and_by_time(journal: Journal) -> None:
    intend(journal, 10, action("page-load", 5))
    side_effect = Action(ActionKind.REDUCE, "page-load", {"topk": JobAllocation({"rank": 1})}, Cause("congested"))
    intend(journal, 20, side_effect)
    assert [one.at_s for one in journal.actions("page-load")] == [10, 20]
    assert [one.at_s for one in journal.actions("topk")] == [20]
    assert [one.at_s for one in journal.actions(since_s=20)] == [20]
    assert journal.actions("topk", since_s=21) == []


def test_actions_about_hosts_need_no_round_and_are_found_by_their_host(journal: Journal) -> None:
    leased, released = journal.intend(5, LEASED), journal.intend(15, RELEASED)
    journal.outcome(leased, Outcome(True))
    journal.effect(leased, Effect(9, None, None, None, None, "ready after 4 s"))
    first, second = journal.actions("leased-2")
    assert (first.id, first.at_s, first.action, first.applied) == (leased, 5, LEASED, True)
    assert first.effect is not None and first.effect.verdict == "ready after 4 s"
    assert (second.id, second.action, second.outcome) == (released, RELEASED, None)
    assert [one.id for one in journal.actions("page-load")] == [leased]
    assert journal.restore() is None


def test_controller_is_not_handed_actions_about_hosts(journal: Journal) -> None:
    journal.outcome(journal.intend(5, LEASED), Outcome(True))
    write(journal, 10)
    before = journal.restore()
    journal.intend(15, RELEASED)
    after = journal.restore()
    assert before is not None and after is not None
    assert (after.unfinished, after.actions, after.allocation) == ((), (), before.allocation)
    journal.purge(0, actions_before_s=100)
    assert [one.action for one in journal.actions()] == [RELEASED], "only what is confirmed is deleted"


def test_reads_rounds_back_as_written(journal: Journal) -> None:
    write(journal, 10)
    write(journal, 20)
    assert list(journal.rounds()) == [summary(10, "page-load", "topk"), summary(20, "page-load", "topk")]
    assert list(journal.rounds(since_s=20)) == [summary(20, "page-load", "topk")]
    assert list(journal.rounds(since_s=21)) == []


def test_reads_the_rounds_of_one_job_alone(journal: Journal) -> None:
    write(journal, 10)
    write(journal, 20, has={"topk": JobAllocation({"rank": 1})})
    assert list(journal.rounds("page-load")) == [summary(10, "page-load")]
    assert list(journal.rounds("no-such-job")) == []


def test_rounds_may_be_read_while_more_are_written(journal: Journal) -> None:
    write(journal, 10)
    reader = journal.rounds()
    next(reader)
    write(journal, 20)
    assert [round_.at_s for round_ in journal.rounds()] == [10, 20]


def test_samples_rounds_evenly_with_the_newest_and_with_the_jobs_that_are_asked_for(journal: Journal) -> None:
    for number in range(1, 31):
        write(journal, 10 * number)
    assert [one.at_s for one in journal.sampled(60, 100)] == [10 * number for number in range(6, 31)]
    few = [one.at_s for one in journal.sampled(60, 6)]
    assert few[-1] == 300 and 4 <= len(few) <= 6
    assert len({later - earlier for earlier, later in pairwise(few[:-1])}) == 1
    assert journal.sampled(300, 6, ("topk",)) == [summary(300, "topk")]
    assert journal.sampled(300, 6, ()) == [summary(300)]
    assert journal.sampled(301, 6) == []


def test_purge_deletes_old_rounds_and_keeps_actions_and_state(journal: Journal) -> None:
    journal.outcome(intend(journal, 10, action("page-load", 5)), Outcome(True))
    write(journal, 20)
    before = journal.restore()
    assert journal.purge(20) == 1
    assert [round_.at_s for round_ in journal.rounds()] == [20]
    assert journal.purge(1000) == 1
    assert journal.restore() == before
    assert len(journal.actions()) == 1


def test_purged_actions_leave_the_allocation_as_it_is(journal: Journal) -> None:
    journal.outcome(intend(journal, 10, action("page-load", 5)), Outcome(True))
    journal.outcome(intend(journal, 20, action("page-load", 6)), Outcome(False, "refused"))
    unknown = intend(journal, 30, action("topk", 7))
    journal.outcome(intend(journal, 40, action("topk", 8)), Outcome(True))
    before = journal.restore()
    assert before is not None
    journal.purge(0, actions_before_s=40)
    assert [one.id for one in journal.actions()] == [unknown, unknown + 1]
    after = journal.restore()
    assert after is not None
    assert (after.allocation, after.unfinished) == (before.allocation, before.unfinished)
    assert intend(journal, 50, action("page-load", 9)) == unknown + 2


def test_window_moves_on_after_everything_was_purged(journal: Journal) -> None:
    for at_s in range(0, 50, 10):
        write(journal, at_s)
    journal.purge(1000)
    write(journal, 50)
    restored = journal.restore()
    assert restored is not None
    assert [one.at_s for one in restored.snapshots] == [20, 30, 40, 50]


def test_notes_about_the_run_are_kept_and_replaced(journal: Journal) -> None:
    journal.set_about("scenario", "spike")
    journal.set_about("seed", "7")
    journal.set_about("seed", "8")
    assert journal.about() == {"scenario": "spike", "seed": "8"}


def test_facts_that_are_not_finite_are_kept_as_text(journal: Journal) -> None:
    endless = Action(ActionKind.REVERT, None, {}, Cause("no end", {"expected_s": math.inf, "busy": 0.5}))
    intend(journal, 10, endless)
    assert journal.actions()[0].action.cause.facts == {"expected_s": "inf", "busy": 0.5}


def test_numpy_numbers_and_read_only_mappings_are_taken(journal: Journal) -> None:
    lanes = MappingProxyType({"join": numpy.int64(2)})
    record = JobRecord(utility=numpy.float64(13.5), worth=90.0, lanes=lanes)  # type: ignore[arg-type]
    given = RoundRecord(10.0, "converged", 1.0, 2.0, MappingProxyType({"page-load": record}))
    journal.record(given, Snapshot(10.0, {}, {}, ()), b"{}")
    (read,) = journal.rounds()
    assert read.jobs["page-load"].utility == 13.5
    assert dict(read.jobs["page-load"].lanes) == {"join": 2}


# -- a journal in a file


def test_goes_on_in_the_same_file(path: Path) -> None:
    with SqliteJournal(path, window=WINDOW) as first:
        write(first, 10)
        unfinished = intend(first, 20, action("page-load", 5))
        first.set_about("seed", "7")
        before = first.restore()
    with SqliteJournal(path, window=WINDOW) as second:
        assert second.restore() == before
        second.outcome(unfinished, Outcome(True))
        assert intend(second, 30, action("page-load", 6)) > unfinished
        restored = second.restore()
        assert second.about() == {"seed": "7"}
    assert restored is not None
    assert restored.allocation["page-load"].lanes == {"join": 5}


def test_journal_from_before_leases_were_actions_goes_on(path: Path) -> None:
    with SqliteJournal(path) as journal:
        write(journal, 10)
    with closing(sqlite3.connect(path)) as older:
        older.execute("PRAGMA user_version = 1")
        older.commit()
    with SqliteJournal(path, read_only=True) as journal:
        assert journal.restore() is not None
    with SqliteJournal(path) as journal:
        journal.intend(20, LEASED)
    with closing(sqlite3.connect(path)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_advice_in_a_journal_of_an_earlier_version_is_a_sentence(path: Path) -> None:
    with SqliteJournal(path) as journal:
        write(journal, 10)
    with closing(sqlite3.connect(path)) as older:
        older.execute("""UPDATE rounds SET summary = json_set(summary, '$.advice', json('["lease a host"]'))""")
        older.execute("PRAGMA user_version = 2")
        older.commit()
    with SqliteJournal(path) as journal:
        (record,) = journal.rounds()
        assert [(alert.kind, alert.sentence) for alert in record.advice] == [(AlertKind.EARLIER, "lease a host")]
        assert next(journal.rounds("page-load")).advice == record.advice


def test_reads_more_rounds_than_a_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.journal.sqlite.PAGE_ROUNDS", 3)
    with SqliteJournal(path) as journal:
        for at_s in range(10):
            write(journal, at_s)
        assert [round_.at_s for round_ in journal.rounds()] == list(range(10))
        assert [round_.at_s for round_ in journal.rounds(since_s=4)] == list(range(4, 10))


def test_writes_nothing_of_a_round_that_cannot_be_written_whole(path: Path) -> None:
    with SqliteJournal(path) as journal:
        write(journal, 10)
        before = journal.restore()
        with pytest.raises(JournalError, match="cannot be written"):
            journal.record(summary(20), snapshot(20, {}), object())  # type: ignore[arg-type]
        assert journal.restore() == before
        assert len(list(journal.rounds())) == 1


def test_file_is_for_its_owner_alone(path: Path) -> None:
    with SqliteJournal(path) as journal:
        write(journal, 10)
        files = list(path.parent.glob("run.db*"))
        assert len(files) == 3
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_reader_sees_rounds_while_another_connection_writes(path: Path) -> None:
    stop = threading.Event()

    def keep_writing() -> None:
        with SqliteJournal(path) as writer:
            at_s = 0
            while not stop.is_set():
                at_s += 1
                journal_id = intend(writer, at_s, action("page-load", 2))
                writer.outcome(journal_id, Outcome(True))

    with SqliteJournal(path) as first:
        write(first, 0)
    thread = threading.Thread(target=keep_writing)
    thread.start()
    lengths: list[int] = []
    try:
        with SqliteJournal(path, read_only=True) as reader:
            for _ in _until(lambda: len(set(lengths)) > 5):
                lengths.append(_consistent_length(reader))
    finally:
        stop.set()
        thread.join()
    assert lengths == sorted(lengths)


def _consistent_length(reader: SqliteJournal) -> int:
    restored = reader.restore()
    assert restored is not None
    assert json.loads(restored.state) == {"at": restored.at_s}
    assert restored.snapshots[-1].at_s == restored.at_s
    return len(list(reader.rounds()))


def _until(condition: Callable[[], bool], limit_s: float = 5.0) -> Iterator[None]:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        yield


def test_reader_cannot_write(path: Path) -> None:
    SqliteJournal(path).close()
    with SqliteJournal(path, read_only=True) as reader, pytest.raises(JournalError, match=r"run\.db.*readonly"):
        reader.set_about("seed", "7")


def test_reader_of_a_missing_file_is_told_so_and_creates_none(path: Path) -> None:
    with pytest.raises(JournalError, match=r"run\.db: there is no journal"):
        SqliteJournal(path, read_only=True)
    assert not path.exists()


def test_refuses_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"this is a text file, and a fairly long one at that\n" * 100)
    with pytest.raises(JournalError, match=r"run\.db: the journal cannot be opened: file is not a database"):
        SqliteJournal(path)


def test_refuses_the_database_of_somebody_else_and_leaves_it_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"run\.db is a database, but not a journal"):
        SqliteJournal(path)
    assert path.read_bytes() == before


def test_refuses_a_file_of_a_newer_version(path: Path) -> None:
    SqliteJournal(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(JournalError, match=r"run\.db was written by a newer Headgate \(journal version 99"):
        SqliteJournal(path)


def test_takes_over_an_empty_file(path: Path) -> None:
    path.touch()
    with SqliteJournal(path) as journal:
        write(journal, 10)
        assert journal.restore() is not None


@pytest.mark.parametrize("kept_share", [0.2, 0.5, 0.8])
def test_tells_that_a_file_was_cut_off(path: Path, kept_share: float) -> None:
    with SqliteJournal(path) as journal:
        for at_s in range(50):
            write(journal, at_s, action("page-load", 2))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept_share)])
    with pytest.raises(JournalError, match=r"run\.db"), SqliteJournal(path) as journal:
        journal.restore()
        list(journal.rounds())


def test_tells_which_file_holds_a_record_that_cannot_be_read(path: Path) -> None:
    with SqliteJournal(path) as journal:
        intend(journal, 10, action("page-load", 2))
    with sqlite3.connect(path) as vandal:
        vandal.execute("UPDATE actions SET action = '{}'")
        vandal.execute("UPDATE rounds SET summary = 'nonsense'")
    vandal.close()
    with SqliteJournal(path) as journal:
        with pytest.raises(JournalError, match=r"run\.db: the journal cannot be read"):
            journal.restore()
        with pytest.raises(JournalError, match=r"run\.db: the journal cannot be read"):
            list(journal.rounds())


@pytest.mark.parametrize("place", ["missing/run.db", "file/run.db", "."])
def test_tells_that_a_place_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="the journal cannot be opened"):
        SqliteJournal(tmp_path / place)


# -- kill -9

WRITER = """
import os, sys
sys.path.insert(0, sys.argv[2])
import test_journal as contract
from headgate.core.model import Outcome
from headgate.journal import SqliteJournal

def say(text):
    os.write(1, (text + "\\n").encode())

with SqliteJournal(sys.argv[1], window=contract.WINDOW) as journal:
    restored = journal.restore()
    at_s = 0 if restored is None else int(restored.at_s)
    for one in restored.unfinished if restored else ():
        journal.outcome(one.id, Outcome(True))
        say(f"settled {one.id}")
    while True:
        at_s += 1
        action_id = contract.write(journal, at_s, contract.action("page-load", 1 + at_s % 7) if at_s % 2 else None)
        say(f"recorded {at_s} {action_id or 0}")
        if action_id:
            journal.outcome(action_id, Outcome(True))
            say(f"settled {action_id}")
"""


def test_nothing_that_was_recorded_is_lost_when_the_writer_is_killed(path: Path) -> None:
    chance = random.Random(11)
    rounds, settled, intended = 0, set[int](), set[int]()
    for _ in range(KILLS):
        said = _killed_writer(path, lines=chance.randrange(1, 60), pause_s=chance.random() * 0.003)
        rounds = max([rounds, *(int(words[1]) for words in said if words[0] == "recorded")])
        intended |= {int(words[2]) for words in said if words[0] == "recorded"} - {0}
        settled |= {int(words[1]) for words in said if words[0] == "settled"}
        _check_after_kill(path, rounds, intended, settled)


def _killed_writer(path: Path, lines: int, pause_s: float) -> list[list[str]]:
    """What the writer said before it was killed in the middle of its work, some time after the given number of lines."""
    command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(lines)]
        time.sleep(pause_s)
        writer.kill()
        said += writer.stdout.readlines()
    return [line.split() for line in said]


def _check_after_kill(path: Path, rounds: int, intended: set[int], settled: set[int]) -> None:
    with SqliteJournal(path, read_only=True, window=WINDOW) as journal:
        restored = journal.restore()
        actions = journal.actions()
    assert restored is not None
    # The writer may have been killed between the end of a transaction and saying so: one round more is right.
    assert restored.at_s in (rounds, rounds + 1)
    assert json.loads(restored.state) == {"at": restored.at_s}
    assert [one.at_s for one in restored.snapshots][-1] == restored.at_s
    assert intended <= {one.id for one in actions}
    assert settled <= {one.id for one in restored.actions}
    assert {one.id for one in restored.unfinished} == {one.id for one in actions} - {one.id for one in restored.actions}
    assert len(restored.unfinished) <= 1
    applied = [one.action.changes["page-load"].lanes for one in restored.actions]
    assert restored.allocation["page-load"].lanes == [{"join": 2}, *applied][-1]


# -- damage


def damaged(path: Path) -> Iterator[bytes]:
    """A journal with some rounds, damaged in many ways."""
    with SqliteJournal(path) as journal:
        for at_s in range(0, 400, 10):
            journal.outcome(intend(journal, at_s, action("page-load", 5 + at_s)), Outcome(True))
    whole = path.read_bytes()
    yield from (whole[:size] for size in (1, 99, 4096, len(whole) // 3, len(whole) // 2, len(whole) - 100))
    yield b"no database at all" * 500
    yield from (whole[:at] + bytes([255]) * 64 + whole[at + 64 :] for at in range(0, len(whole) - 64, len(whole) // 12))
    yield whole.replace(b'"page-load"', b'"page\xff\xfe\xfd\xfcd"')
    yield whole.replace(b'{"kind"', b'["kind"')


def test_damaged_journal_is_used_as_it_is_or_set_aside(tmp_path: Path) -> None:
    told: list[str] = []
    for number, content in enumerate(damaged(tmp_path / "whole.sqlite")):
        place = tmp_path / str(number)
        place.mkdir()
        path = place / "journal.sqlite"
        path.write_bytes(content)
        told.clear()
        with opened(path, 4, told.append) as journal:
            journal.restore()
            journal.actions()
            write(journal, 1000)
        aside = list(place.glob("journal.sqlite.damaged-*"))
        assert len(told) == len(aside) <= 1
        assert all(one.read_bytes() == content for one in aside)
        assert all(str(aside[0]) in text for text in told)


@pytest.mark.parametrize("content", ["newer", "foreign"])
def test_sound_file_that_is_no_journal_of_ours_is_never_set_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
        if content == "newer":
            other.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        other.commit()
    with pytest.raises(JournalError, match="newer Headgate" if content == "newer" else "not a journal of Headgate"):
        opened(path, 4, lambda text: None)
    assert [one.name for one in tmp_path.iterdir()] == ["journal.sqlite"]
