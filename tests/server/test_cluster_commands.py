"""`headgate run` and the commands that change what it runs, as a person types them; the engine is the one without Spark."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from headgate.cli import run as run_module
from headgate.cli import run_command
from headgate.cli.live import ServiceScreen
from headgate.journal import SqliteJournal
from headgate.ports import JobPhase, JobState
from tests.server.conftest import Bench
from tests.server.fake import JOB, FakeEngine, job_file

ROOT = Path(__file__).parents[2]
QUICK = [
    *("--set", "round_s=0.1", "--set", "warm_up_s=0.1", "--set", "window_s=1"),
    *("--set", "settle_min_s=0.2", "--set", "settle_max_s=0.5"),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a job file, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_module, "open_engine", FakeEngine)
    job_file(tmp_path)
    return tmp_path


def in_this_process(arguments: Sequence[object]) -> list[str]:
    """The command as typed; a service is not supervised, so that its output is that of this process."""
    alone = ["--no-restart"] if arguments[0] == "run" else []
    return [*map(str, arguments), *alone]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    def run_it(*arguments: object, code: int = 0) -> str:
        found = run_command(in_this_process(arguments))
        out, err = capsys.readouterr()
        assert (found, err if code == 0 else "") == (code, "")
        return out

    return run_it


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    def run_it(*arguments: object) -> str:
        code = run_command(in_this_process(arguments))
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.startswith("headgate: ") and err.count("\n") == 1
        return err.removeprefix("headgate: ").rstrip("\n")

    return run_it


@contextmanager
def running(place: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`headgate run` in a process of its own, once it answers."""
    command = [sys.executable, "-m", "tests.server.fake_run", "run", *arguments, *QUICK]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with subprocess.Popen(
        command, cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            await_true(lambda: (place / ".headgate/server.json").exists() or process.poll() is not None)
            yield process
        finally:
            process.kill()


def await_true(condition: Any, limit_s: float = 90) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def killed(process: subprocess.Popen[str], place: Path) -> None:
    process.kill()
    process.wait()
    (place / ".headgate/server.json").rename(place / ".headgate/stale.json")


def status(said, code: int = 0) -> Any:
    return json.loads(said("status", "--json", code=code))


# -- run


def test_run_ends_by_itself_with_a_summary_and_one_object(said):
    out = said("run", "orders.py", "--for", "2s", "--json", *QUICK)
    assert "orders: runs\n" in out
    assert "1 of 1 jobs meet their intents" in out
    done = json.loads(out.splitlines()[-1])
    assert (done["satisfaction"], done["met"]) == (1.0, {"orders": 1.0})
    assert done["actions"] == {"relax": 1}
    assert done["status"]["jobs"]["orders"]["state"] == "running"
    assert any(line.split()[:4] == ["orders", "2", "s", "running"] for line in out.splitlines())


def test_run_takes_settings_parameters_and_slots(said, monkeypatch):
    seen: list[Any] = []

    def open_engine(*given: Any) -> FakeEngine:
        seen.append(given)
        return FakeEngine()

    monkeypatch.setattr(run_module, "open_engine", open_engine)
    arguments = ("--slots", "3", "--master", "spark://here:7077", "--param", "latency=7s", "--param", "lanes=5")
    done = json.loads(said("run", "orders.py", "--for", "0.3s", "--json", *arguments, *QUICK).splitlines()[-1])
    home, spark, master = seen[0]
    assert (home, spark.slots, master) == (Path(".headgate"), 3, "spark://here:7077")
    assert done["status"]["jobs"]["orders"]["intent"] == "7 s"
    assert done["status"]["jobs"]["orders"]["lanes"] in ({}, {"large": 5})


def test_run_of_a_cluster_file_takes_its_settings(said, place):
    (place / "shop.toml").write_text(
        "[settings]\nround_s = 0.1\nwarm_up_s = 0.1\nwindow_s = 1\n"
        '[[job]]\nfile = "orders.py"\n[[job]]\nfile = "orders.py"\nname = "b"\n'
    )
    done = json.loads(said("run", "shop.toml", "--for", "1s", "--json").splitlines()[-1])
    assert done["rounds"] >= 3
    assert set(done["met"]) == {"orders", "b"}


def test_run_without_files_waits_for_jobs(said):
    assert "ran for" in said("run", "--for", "0.3s", *QUICK)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.py"], 'nothing.py: there is no file "nothing.py"'),
        (["shop.yaml"], "a job file ends in .py, a cluster file in .toml"),
        (["orders.py", "--set", "rounds=5"], 'there is no setting "rounds". Did you mean'),
        (["orders.py", "--set", "rounds"], '--set is "rounds"; it must be name=value'),
        (["orders.py", "--slots", "0"], "it must be at least 1"),
        (["orders.py", "--slots", "many"], "setting \"slots\" is 'many'; it must be a whole number"),
        (["orders.py", "--policy", "hedgate"], 'Did you mean "headgate"?'),
        (["orders.py", "--for", "soon"], '--for is "soon"; it must be a duration above 0'),
        (["orders.py", "--port", "70000"], "--port"),
        (["orders.py", "--param", "rate=5"], 'topology() has no parameter "rate"; it has name, latency, lanes'),
        (["orders.py", "--param", "rate"], '--param is "rate"; it must be name=value, such as rate=500'),
        (["--param", "a=1"], "--param is for job files"),
        (["orders.py", "orders.py"], 'two jobs are named "orders"'),
    ],
)
def test_mistake_is_one_sentence(refused, arguments, sentence):
    assert sentence in refused("run", *arguments)


def test_mistake_in_user_code_is_told_before_spark_starts(refused, place, monkeypatch):
    monkeypatch.setattr(run_module, "open_engine", None)
    job_file(place, text=JOB + "\n1 / 0\n")
    assert refused("run", "orders.py").endswith("orders.py: line 11: ZeroDivisionError: division by zero")


def test_engine_is_closed_when_the_start_fails(place, monkeypatch, capsys):
    engine = FakeEngine()
    monkeypatch.setattr(run_module, "open_engine", lambda *_: engine)
    (place / ".headgate").mkdir()
    with SqliteJournal(place / ".headgate/journal.sqlite") as journal:
        journal.set_about("clock", "virtual")
    assert run_command(["run", "orders.py", "--no-restart"]) == 2
    assert "the journal is of a simulation" in capsys.readouterr().err
    assert engine.closed


def test_parameter_is_a_number_if_it_looks_like_one():
    values = {text: run_module._value(text) for text in ("5", "0.5", "true", '"5"', "[1]", "a b", "007", "NaN", "")}
    assert list(values.values()) == [5, 0.5, True, "5", [1], "a b", "007", "NaN", ""]


# -- while it runs


def test_jobs_are_changed_while_they_run(said, refused, place):
    with running(place, "orders.py") as process:
        assert said("submit", "orders.py", "--name", "b", "--param", "latency=9s") == "submitted: b\n"
        assert said("intent", "b", "--juice", "0.9", "--worth", "7") == "b: 9 s · 0.9, worth 7\n"
        assert said("intent", "b", "--latency", "none") == "b: juice 0.9, worth 7\n"
        assert said("share", "b", "3") == "b: share 3\n"
        assert said("limit", "b", "500") == "b: at most 500 rows per epoch\n"
        assert said("pause", "b") == "paused: b\n"
        job = status(said)["jobs"]["b"]
        assert (job["state"], job["share"], job["read_limit"], job["worth"]) == ("paused", 3, 500, 7.0)
        assert " b  paused\n" in said("status")
        assert "paused" in said("explain", "b")
        assert said("resume", "b") == "resumed: b\n"
        assert said("limit", "b", "none") == "b: no read limit of its own\n"
        assert said("remove", "b") == "removed: b\n"
        assert "unless it is taken out of its file" in said("remove", "orders")
        assert refused("pause", "b") == 'there is no job "b". There is none at all.'
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (0, "")
    assert "b: its intent is now juice 0.9, worth 7\n" in out
    assert "b: removed\n" in out


def test_removed_jobs_are_listed_and_restored(said, refused, place):
    with running(place, "orders.py"):
        assert said("removed") == "there is no removed job\n"
        said("submit", "orders.py", "--name", "b")
        said("pause", "b")
        said("remove", "b")
        (listed,) = json.loads(said("removed", "--json"))
        assert (listed["name"], listed["deleted_s"] - listed["removed_s"]) == ("b", 24 * 3600)
        assert f"b     {listed['at']}   0.0 MB   20" in said("removed")
        assert "give --at one of 20" in refused("restore", "b", "--at", "noon")
        assert said("restore", "b", "--at", listed["at"]) == "restored: b\n"
        assert status(said)["jobs"]["b"]["state"] == "paused"
        assert 'there is a job "b" already' in refused("restore", "b")


def test_bad_input_is_one_sentence_of_the_service(refused, place):
    with running(place, "orders.py"):
        assert "already; give this one another name with --name" in refused("submit", "orders.py")
        assert 'latency is "soon"; it must be a duration' in refused("intent", "orders", "--latency", "soon")
        assert 'Did you mean "orders"?' in refused("intent", "order", "--latency", "1s")
        assert "what should change? give --latency, --juice" in refused("intent", "orders")
        assert "share is 0.0; it must be" in refused("share", "orders", "0")
        assert "it must be a number" in refused("limit", "orders", "many")
        assert 'Headgate runs in ".headgate" already (process' in refused("run", "orders.py")


def test_cluster_file_is_submitted_as_a_whole(said, refused, place):
    shop = place / "shop.toml"
    shop.write_text('[[job]]\nfile = "orders.py"\nname = "a"\n[[job]]\nfile = "orders.py"\nname = "b"\n')
    with running(place):
        assert said("submit", shop) == "submitted: a\nsubmitted: b\n"
        assert "--name is for one job" in refused("submit", shop, "--name", "c")
        shop.write_text("[settings]\nround_s = 1\n" + shop.read_text())
        assert "settings are fixed when a service starts" in refused("submit", shop)


def test_status_and_explain_are_live_or_from_the_journal(said, place):
    with running(place, "orders.py", HOPELESS="1") as process:
        await_true(lambda: status(said)["actions"])
        live = said("status")
        assert "large 2 → " in live
        assert "missed its intent from the start" in said("explain", "orders")
        assert "missed its intent from the start" in said("explain", "orders", "--journal", ".headgate/journal.sqlite")
        assert {"at_s", "text", "facts"} == set(json.loads(said("explain", "orders", "--json"))[0])
        killed(process, place)
    recorded = status(said, code=3)
    assert "actions" not in recorded
    assert recorded["jobs"]["orders"]["worth"] == 35.0
    assert "missed its intent from the start" in said("explain", "orders")


@pytest.mark.parametrize("command", [["pause", "a"], ["submit", "orders.py"], ["intent", "a", "--worth", "1"]])
def test_without_a_service_the_sentence_says_how_to_start_one(refused, command):
    assert refused(*command) == 'no Headgate runs in ".headgate"; start one with `headgate run FILE`'


def test_status_without_service_and_journal_is_one_sentence(refused):
    assert refused("status").startswith('there is no journal ".headgate/journal.sqlite"')


def test_client_commands_start_fast(place):
    code = (
        "import sys; from headgate.cli import run_command; run_command(sys.argv[1:]);"
        "print({'pyspark', 'fastapi', 'uvicorn', 'numpy', 'pyarrow', 'matplotlib'} & set(sys.modules))"
    )
    for command in (["--help"], ["status"], ["submit", "orders.py"], ["pause", "a"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True, cwd=place
        )
        assert done.stdout.splitlines()[-1] == "set()"


# -- the end, and after it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_is_clean(place, number):
    with running(place, "orders.py") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (0, "")
    assert "stops when the epochs in flight are finished" in out
    assert out.index("engine closed") < out.index("ran for")
    assert not (place / ".headgate/server.json").exists()


def test_second_interrupt_does_not_wait(place):
    with running(place, "orders.py", CLOSE_S="60") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "stops when" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (130, "")
    assert "engine closed" not in out


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_hosts_end_with_whoever_leased_them_however_hurried(place, times):
    with running(place, "orders.py", "--hosts", "local:1", CLOSE_S="60" if times == 2 else "0") as process:
        assert len(hosts_of(place)) == 2, "a master and a worker"
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        while "stops when" not in process.stdout.readline():
            pass
        if times == 2:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    left = hosts_of(place)
    for one in left:
        one.kill()
    assert (process.returncode, err) == (0 if times == 1 else 143, "")
    assert not left


def hosts_of(place: Path) -> list[psutil.Process]:
    """Masters and workers of a home that run."""
    ours = str(place / ".headgate/hosts/spark.conf")
    return [one for one in psutil.process_iter(["cmdline"]) if ours in (one.info["cmdline"] or ())]


def test_all_jobs_come_back_after_kill_9(said, place):
    with running(place, "orders.py") as process:
        said("submit", "orders.py", "--name", "b")
        said("submit", "orders.py", "--name", "c")
        said("intent", "orders", "--latency", "9s")
        said("intent", "b", "--worth", "70")
        said("pause", "c")
        killed(process, place)
    with running(place, "orders.py"):
        jobs = status(said)["jobs"]
    assert {name: (job["state"], job["intent"], job["worth"]) for name, job in jobs.items()} == {
        "orders": ("running", "9 s", 35.0),
        "b": ("running", "2 s", 70.0),
        "c": ("paused", "2 s", 35.0),
    }


def test_address_of_a_killed_service_confuses_nobody(said, refused, place):
    with running(place, "orders.py") as process:
        await_true(lambda: status(said)["at_s"])
        process.kill()
        process.wait()
        assert "no Headgate runs" in refused("pause", "orders")
        assert status(said, code=3)["jobs"]["orders"]["intent"] == "2 s"


def test_token_is_never_printed(place):
    with running(place, "orders.py") as process:
        token = (place / ".headgate/token").read_text()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=90)
    assert token not in out + err
    assert f"the token is in {Path('.headgate/token')}" in out


# -- on a terminal


def test_screen_shows_jobs_that_do_not_run_below_the_table(bench: Bench):
    bench.submit()
    bench.rounds(3)
    view, phase, action = bench.notes.rounds[-1]
    out = io.StringIO()
    with ServiceScreen(Console(file=out, force_terminal=True, width=100, height=20), 10.0) as screen:
        states = {"orders": JobState(JobPhase.RUNNING), "b": JobState(JobPhase.FAILED, "ValueError: [x]")}
        screen.tell(view.at_s, "b", "failed: ValueError: [x]")
        screen.round(view, phase, action, states)
    shown = out.getvalue()
    assert "b: failed: ValueError: [x]" in shown
    assert " b  failed: ValueError: [x]" in shown
    assert "orders" in shown and "35/35" in shown
