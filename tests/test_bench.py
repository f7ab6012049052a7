"""Results of benchmarks: what is written down, what they are compared with, and what happens when one of them fails."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from importlib import import_module
from typing import Any

import psutil
import pytest

from headgate.bench import ALONE_MIN, NAMES, PLANNED_MIN, Result, health, ratio, record, repeated
from headgate.cli import run_command
from headgate.core.model import OUTSIDE, Action, ActionKind, Cause, JobAllocation, JobReading, OperatorReading
from headgate.health.records import DiagnosisKind
from headgate.health.resolving import ResolverName
from headgate.sim.reports.bars import Bar

BEGUN = datetime(2026, 11, 16, 9, 5)


def result(name: str, value: float | None, holds: bool = True) -> dict[str, Any]:
    bar = {"name": "times faster", "value": value, "bar": 2.0, "op": ">=", "holds": holds}
    return {"bench": name, "figures": [], "bars": [bar], "notes": [], "took_s": 1.5}


def recorded(*results: dict[str, Any], full: bool = False, begun: datetime = BEGUN) -> dict[str, Any]:
    return record.recorded(results, full, begun)


# -- figures


def test_figure_of_several_measurements_is_their_median_with_their_spread():
    found = repeated("delay", [3.0, 1.0, 2.0], "s")
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)


def test_ratio_to_nothing_is_not_known():
    assert (ratio(6.0, 2.0), ratio(6.0, 0.0)) == (3.0, None)


# -- the plan


def test_every_benchmark_is_planned_to_take_at_most_five_minutes_and_all_less_than_an_hour():
    assert all(0 < minutes <= 5 for minutes in (*PLANNED_MIN.values(), *ALONE_MIN.values()))
    assert sum(PLANNED_MIN.values()) <= 59
    modules = [name.replace("-", "_") for name in NAMES]
    assert all(callable(import_module(f"headgate.bench.{module}").measure) for module in modules)


def test_planned_and_real_time_of_a_benchmark_are_recorded(monkeypatch):
    monkeypatch.setattr(record, "_apart", lambda name, full: result(name, 3.0))
    short, full = (next(record.all_measured(form, ("state",))) for form in (False, True))
    assert (short["planned_s"], full["planned_s"]) == (60 * PLANNED_MIN["state"], None)
    assert short["took_s"] < 5


# -- the file


def test_results_are_in_a_file_named_after_when_they_were_begun_with_the_machine(tmp_path):
    path = record.write(recorded(result("state", 3.0)), tmp_path / "bench")
    assert path.name == "2026-11-16-0905.json"
    found = json.loads(path.read_text())
    assert found["benchmarks"] == [result("state", 3.0)]
    assert found["machine"].keys() == {"cores", "memory_mb", "system", "load", "python", "java", "spark", "commit"}
    assert found["machine"]["spark"].startswith("4.")


def test_results_are_compared_with_the_newest_of_the_same_form(tmp_path):
    for hour, value, full in ((1, 2.0, False), (2, 4.0, False), (3, 9.0, True)):
        record.write(recorded(result("state", value), full=full, begun=BEGUN.replace(hour=hour)), tmp_path)
    (tmp_path / "2026-12-01-0000.json").write_text("{")
    before = record.newest(full=False, place=tmp_path)
    assert before is not None
    rows = record.compared(recorded(result("state", 5.0), result("hosts", 3.0)), before)
    assert rows == [
        ("state", "times faster", ">= 2", 4.0, 5.0, 0.25, True),
        ("hosts", "times faster", ">= 2", None, 3.0, None, True),
    ]


def test_first_results_have_nothing_to_be_compared_with(tmp_path):
    assert record.newest(full=False, place=tmp_path) is None
    assert [row[3:6] for row in record.compared(recorded(result("state", 5.0)), None)] == [(None, 5.0, None)]


def test_benchmark_that_fails_says_why_and_the_others_go_on():
    found = list(record.all_measured(full=False, names=("nonsense", "nothing")))
    assert [one["bench"] for one in found] == ["nonsense", "nothing"]
    assert all(one["failed"] and 'benchmark is "no' in one["notes"][0] for one in found)
    assert not record.all_hold(recorded(*found))


HANGING = """
import subprocess, sys, time
from headgate.bench import record

def hang(name, full):
    host = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        print(host.pid, file=open(sys.argv[1], "w"), flush=True)
        time.sleep(600)
    finally:
        print("cleaned up", file=open(sys.argv[2], "w"), flush=True)
        time.sleep(float(sys.argv[3]))

record.measured = hang
record.main("hanging")
"""
"""A benchmark that hangs after it started a host in a session of its own, and takes a while to end it."""


@pytest.mark.parametrize("cleaning_s", [0, pytest.param(600, marks=pytest.mark.slow)])
def test_benchmark_that_hangs_may_clean_up_then_all_its_processes_end_and_the_others_go_on(
    monkeypatch, tmp_path, cleaning_s
):
    host, cleaned = tmp_path / "host", tmp_path / "cleaned"
    script = [sys.executable, "-c", HANGING, str(host), str(cleaned), str(cleaning_s)]
    command = record._command
    monkeypatch.setattr(record, "_command", lambda name, full: script if name == "hanging" else command(name, full))
    monkeypatch.setattr(record, "LIMIT_S", 5.0)
    monkeypatch.setattr(record, "END_S", 2.0)
    found = list(record.all_measured(full=False, names=("hanging", "nonsense")))
    assert [(one["bench"], one["failed"]) for one in found] == [("hanging", True), ("nonsense", True)]
    assert found[0]["notes"] == ["The benchmark failed: it did not end within 5 s"]
    assert cleaned.read_text() == "cleaned up\n"
    assert not runs(int(host.read_text()))


def runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- the command


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_all_benchmarks_end_with_a_table_a_file_and_an_exit_code(tmp_path, monkeypatch, capsys, holds, code):
    monkeypatch.chdir(tmp_path)
    record.write(recorded(result("state", 4.0)))
    monkeypatch.setattr(record, "all_measured", lambda full: iter([result("state", 5.0, holds)]))
    assert run_command(["bench", "all", "--json"]) == code
    out = capsys.readouterr().out
    assert f"state: {int(holds)} of 1 bars hold" in out
    assert "+25 %" in out
    written = json.loads(out.splitlines()[-1])
    assert (
        json.loads((tmp_path / f"out/bench/{datetime.fromisoformat(written['at']):%Y-%m-%d-%H%M}.json").read_text())
        == written
    )


@pytest.mark.parametrize(("value", "code"), [(3.0, 0), (1.0, 1)])
def test_one_benchmark_ends_with_an_exit_code(monkeypatch, capsys, value, code):
    found = Result((), (Bar("times faster", value, ">=", 2.0),))
    monkeypatch.setattr("headgate.bench.bench", lambda *_, **__: found)
    assert run_command(["bench", "state", "--json"]) == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bars"][0]["holds"] == (code == 0)


# -- health


def course(*actions: tuple[float, Action]) -> health.HealthCourse:
    readings = tuple((10.0 * at, reading(1000.0 * at)) for at in range(1, 7))
    return health.HealthCourse(readings, actions, lanes=4, restarts=0, measured_s=20.0)


def reading(rows: float) -> JobReading:
    operators = {name: OperatorReading({OUTSIDE: rows}, {}, (1.0,)) for name in ("in", health.WORK)}
    return JobReading(1, operators, {"in": rows}, 0.0, None)


def test_first_action_other_than_expected_fails_its_bars_with_a_sentence():
    first = Action(ActionKind.RECONFIGURE, "job", {"job": JobAllocation({"work": 8}, 0.0)}, Cause("too few lanes"))
    ours, right = course((10.0, first)), (DiagnosisKind.SKEW, ResolverName.REASSIGN_SLICES)
    bars = {bar.name: bar for bar in health.bars_of("skew", course(), ours, 2.0, right)}
    assert not bars[f'skew: first diagnosis is "{DiagnosisKind.SKEW}"'].holds
    assert bars["skew: throughput after, times before"].value is None
    assert not bars["skew: throughput after, times before"].holds
    said = list(health.notes_on("skew", ours, right))
    assert said[0].startswith("skew: the first action followed no diagnosis with the remedy")
    assert said[1].startswith("skew: the first action came before any throughput was measured")


def test_controller_that_does_nothing_is_told_in_a_sentence():
    assert list(health.notes_on("skew", course(), (DiagnosisKind.SKEW, ResolverName.REASSIGN_SLICES))) == [
        "skew: the controller did nothing in 50 s."
    ]
