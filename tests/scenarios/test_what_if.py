"""`headgate what-if` on the journal of a simulated run, as a person types it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import run_command
from headgate.core.model import Snapshot
from headgate.journal import SqliteJournal
from headgate.ports import JobRecord, RoundRecord
from headgate.sim.run import run
from headgate.sim.scenario import load_scenario
from headgate.sim.whatif import Tried, least_size


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six jobs under control, before the input of one of them triples."""
    path = tmp_path_factory.mktemp("what-if") / "journal.sqlite"
    with SqliteJournal(path) as journal:
        run(dataclasses.replace(load_scenario("demo"), duration_s=270.0), "headgate", 8, journal)
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], recorded: Path):
    def ask(*arguments: str, code: int = 0, journal: Path | None = None) -> str:
        found = run_command(["what-if", "--journal", str(journal or recorded), *arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        return out if code == 0 else err

    return ask


def answer(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_nothing_but_the_load_of_a_job_changes_and_only_it_misses(said: Any) -> None:
    found = answer(said("--load", "page-load=3x", "--hold", "--json"))
    assert found["now"]["satisfaction"] == found["modelled_now"] == 1.0
    assert found["then"]["satisfaction"] < 0.7
    missed = [name for name, one in found["then"]["jobs"].items() if not one["met"]]
    assert missed == ["page-load"]


def test_scheduler_gives_lanes_to_a_job_whose_load_grows(said: Any) -> None:
    found = answer(said("--load", "page-load=3x", "--json"))
    now, then = found["now"]["jobs"]["page-load"], found["then"]["jobs"]["page-load"]
    assert then["lanes"] > now["lanes"]
    assert (then["met"], found["then"]["satisfaction"]) == (True, 1.0)


def test_tighter_intent_is_judged_by_its_new_goal_and_worth(said: Any) -> None:
    found = answer(said("--intent", "fraud:latency=1s,worth=90", "--hold", "--after", "2m", "--json"))
    fraud = found["then"]["jobs"]["fraud"]
    assert (fraud["intent"], fraud["worth"], fraud["met"]) == ("p99 1 s", 90.0, False)
    assert found["now"]["jobs"]["fraud"]["worth"] == 60.0


def test_fewer_hosts_and_slots_leave_less_utility(said: Any) -> None:
    found = answer(said("--hosts", "1", "--slots", "4", "--load", "all=2x", "--after", "5m", "--json"))
    assert (found["then"]["hosts"], found["then"]["slots"]) == (1, 4)
    assert found["then"]["satisfaction"] < 0.9 < found["now"]["satisfaction"]


def test_search_names_the_least_number_of_hosts(said: Any) -> None:
    found = answer(said("--load", "all=5x", "--until-met", "hosts", "--json"))
    tried = {one["size"]: one["met"] for one in found["tried"]}
    assert tried[found["enough"]] and not tried[found["enough"] - 1]
    assert found["then"]["hosts"] == found["enough"] > found["now"]["hosts"]


def test_report_has_a_table_bars_and_the_course(said: Any) -> None:
    text = said("--load", "all=2x", "--hold")
    lines = text.splitlines()
    assert lines[0].split() == ["job", "intent", "latency", "juice", "utility", "lanes"]
    assert any(line.startswith(" page-load ") and "→" in line and "█" in line for line in lines)
    assert any(line.startswith(" now ") and "2 hosts, 32 slots, as measured" in line for line in lines)
    assert any(line.startswith(" course ") and "15 min after the change" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--load", "page-lod=2x"), 'there is no job "page-lod". Did you mean "page-load"?'),
        (("--load", "zzz=2x"), 'there is no job "zzz". The journal has page-load, '),
        (("--load", "page-load"), '--load is "page-load"; it must be a job, or "all", and a multiple'),
        (("--load", "page-load=-1x"), "such as page-load=2x"),
        (("--intent", "fraud"), '--intent is "fraud"; it must be a job and fields, such as fraud:latency=1s,worth=50'),
        (("--intent", "fraud:latency=-1s"), 'job "fraud": intent: latency is "-1s"; it must be a duration above 0'),
        (("--intent", "fraud:color=2"), 'there is no field "color"; allowed are latency, percentile, juice, worth'),
        (("--slots", "1"), "slots is 1; it must be a number of at least 2"),
        (("--hosts", "3", "--after", "1s"), "1 s are too short to predict anything; a round takes 10 s"),
        (("--hosts", "3", "--until-met", "hosts"), "--until-met searches the number of hosts; leave out --hosts"),
        ((), "what should change? give --load, --intent, --slots, --hosts or --until-met"),
    ],
)
def test_bad_input_is_one_sentence(said: Any, arguments: tuple[str, ...], sentence: str) -> None:
    told = said(*arguments, code=2)
    assert sentence in told and told.count("\n") == 1


def test_missing_journal_is_one_sentence(said: Any, tmp_path: Path) -> None:
    told = said("--hosts", "3", code=2, journal=tmp_path / "none.sqlite")
    assert "there is no journal" in told and told.count("\n") == 1


def test_journal_of_the_home_is_read_unless_another_is_named(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(recorded, tmp_path / "journal.sqlite")
    assert run_command(["what-if", "--home", str(tmp_path), "--hosts", "2", "--hold", "--after", "1m", "--json"]) == 0
    assert answer(capsys.readouterr().out)["then"]["satisfaction"] > 0.9


def test_journal_without_rounds_or_readings_is_one_sentence(said: Any, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with SqliteJournal(path) as journal:
        assert "the journal has no rounds yet" in said("--hosts", "3", code=2, journal=path)
        _record(journal, 10.0)
        assert "only one reading of the jobs" in said("--hosts", "3", code=2, journal=path)
        _record(journal, 20.0)
        assert "too little data to simulate its jobs: no job runs" in said("--hosts", "3", code=2, journal=path)


def _record(journal: SqliteJournal, at_s: float) -> None:
    journal.record(RoundRecord(at_s, "", 0.0, 0.0, {}), Snapshot(at_s, {}, {}, ()), b"{}")


def test_job_with_too_few_epochs_is_left_out_and_named_if_asked_for(said: Any, recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    shutil.copy(recorded, path)
    with SqliteJournal(path) as journal:
        restored = journal.restore()
        assert restored is not None
        last, record = restored.snapshots[-1], list(journal.rounds())[-1]
        fraud, reading = last.allocation["fraud"], last.jobs["fraud"]
        later = dataclasses.replace(
            last, at_s=280.0, jobs={**last.jobs, "new": reading}, allocation={**last.allocation, "new": fraud}
        )
        jobs = {**record.jobs, "new": JobRecord(None, 1.0, latency_intent_s=1.0)}
        journal.record(dataclasses.replace(record, at_s=280.0, jobs=jobs), later, b"{}")
    sentence = "new was not read twice with the same lanes and pace"
    assert f"new is left out: {sentence}" in said("--load", "all=2x", "--hold", "--after", "1m", journal=path)
    assert f'job "new" cannot be simulated: {sentence}' in said("--load", "new=2x", code=2, journal=path)


def test_journal_of_an_earlier_version_is_answered_with_a_note(said: Any, recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    shutil.copy(recorded, path)
    with SqliteJournal(path) as journal:
        journal.set_about("jobs", "{}")
    assert "fraud: the journal of an earlier version has no shape or percentile" in said(
        "--hosts", "3", "--after", "1m", journal=path
    )


@pytest.mark.parametrize(("needed", "now"), [(1, 4), (3, 4), (4, 4), (5, 4), (37, 4), (256, 4), (257, 4)])
def test_search_finds_the_least_size_with_few_attempts(needed: int, now: int) -> None:
    tried, enough = least_size(lambda size: Tried(size, 0.5, size >= needed), 1, now, 256)
    assert enough == (needed if needed <= 256 else None)
    assert len(tried) <= 14
