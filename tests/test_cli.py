"""The command line as a person or a script uses it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.bench import NAMES
from headgate.cli import run_command
from headgate.config.settings import describe, reference
from headgate.core.hosts import HostType
from headgate.core.model import Action, ActionKind, Cause, Outcome
from headgate.journal import MemoryJournal, SqliteJournal
from headgate.sim.reports.report import run_summary
from headgate.sim.run import run
from headgate.sim.scenario import load_scenario
from headgate.sim.simulate import run_on

SCENARIO = """
title = "Three jobs, two of them too small"
engine = "continuous"
duration = "1200s"
control_after = "200s"
policies = ["headgate", "static"]
[cluster]
hosts = 4
cores = 4
[topology.line]
operators = [
  { name = "spout", cost = "0.05ms", lanes = 2 },
  { name = "look-up", cost = "0.3ms", wait = "4ms", lanes = 4 },
  { name = "sink", cost = "0.1ms" },
]
[[job]]
name = "T#"
count = 3
topology = "line"
intent = { latency = "60ms", worth = { each = [10, 20, 30] } }
load = { pattern = "steady", rate = { each = [500, 1200, 1200] } }
"""
SWEEP = '[sweep]\nlabel = "hosts"\nfield = "cluster.hosts"\nvalues = [2, 4]\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "three.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    """Run a command that should succeed; returns what it printed."""

    def run_it(*arguments: object) -> str:
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run_it


@pytest.fixture
def resumed(capsys: pytest.CaptureFixture[str]):
    """Run a command that goes on from a journal; returns what it printed and from where it went on."""

    def run_it(*arguments: object) -> tuple[str, str]:
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        told = re.fullmatch(r"went on from (\S+) of the journal\n", err)
        assert code == 0
        assert told is not None
        return out, told[1]

    return run_it


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    """Run a command that should be refused; returns the one sentence."""

    def run_it(*arguments: object) -> str:
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.startswith("headgate: ")
        assert err.count("\n") == 1
        return err.removeprefix("headgate: ").rstrip("\n")

    return run_it


def last_line(out: str) -> Any:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(out.rstrip("\n").rsplit("\n", 1)[-1], parse_constant=no_constant)


# -- simulate


def test_simulate_ends_with_one_object(said, scenario):
    result = last_line(said("simulate", scenario, "--json"))
    assert list(result) == ["scenario", "seed", "policies", "bars"]
    assert (result["scenario"], result["seed"]) == ("three", 0)
    assert list(result["policies"]) == ["headgate", "static"]
    ours = result["policies"]["headgate"]
    figures = ["satisfaction", "all_met", "converged_s", "actions", "jobs"]
    assert list(ours) == [*figures, "log", "diagnoses", "advice", "alerts"]
    assert list(ours["satisfaction"]) == ["mean", "p5", "p15", "p50", "p90"]
    lanes = ours["jobs"]["T3"].pop("lanes")
    assert ours["jobs"]["T3"] == {"utility": 30.0, "max_utility": 30.0, "met": True, "reconfigurations": 1}
    assert all(isinstance(count, int) and count >= 1 for count in lanes.values())
    assert [one["job"] for one in ours["log"]] == ["T3", "T2"]
    assert list(ours["log"][0]) == ["t", "job", "action", "cause"]
    assert result["policies"]["static"]["converged_s"] is None
    assert result["policies"]["static"]["satisfaction"]["mean"] < ours["satisfaction"]["mean"]


def test_simulate_prints_policies_and_jobs(said, scenario):
    out = said("simulate", scenario)
    assert "Three jobs, two of them too small" in out
    assert any(line.startswith("headgate ") and line.rstrip().endswith("2 reconfigure") for line in out.splitlines())
    assert any(line.startswith("T3 ") and "30/30" in line for line in out.splitlines())


def test_tables_fit_eighty_columns(said, scenario, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    scenario.write_text(SCENARIO + SWEEP)
    lines = said("simulate", scenario).splitlines()
    assert lines[1] == "20 min simulated, seed 0, 4 hosts, 3 jobs"
    assert lines[3].split() == ["policy", "mean", "%", "p5", "p15", "p50", "p90", "converged", "actions"]
    assert lines[5].endswith("2 reconfigure")
    assert [len(line.split()) for line in lines if line.startswith(("T1 ", "T2 ", "T3 "))] == [11] * 3


def test_one_of_a_thing_is_singular(said, scenario):
    scenario.write_text(SCENARIO.replace("count = 3", "count = 1").replace("hosts = 4", "hosts = 1"))
    assert "1 host, 1 job\n" in said("simulate", scenario, "--policy", "static")


def test_same_seed_gives_the_same_result(said, scenario):
    first, again, other = (said("simulate", scenario, "--seed", seed, "--json") for seed in (3, 3, 4))
    assert first == again
    assert last_line(first) != last_line(other)


def test_policies_may_be_chosen(said, scenario):
    out = said("simulate", scenario, "--policy", "threshold", "--policy", "manual", "--policy", "manual", "--json")
    assert list(last_line(out)["policies"]) == ["threshold", "manual"]


def test_sweep_has_an_entry_per_value(said, scenario):
    scenario.write_text(SCENARIO + SWEEP)
    sweep = last_line(said("simulate", scenario, "--policy", "headgate", "--hours", "0.1", "--json"))["sweep"]
    assert [(one["label"], one["value"], list(one["policies"])) for one in sweep] == [
        ("hosts", 2, ["headgate"]),
        ("hosts", 4, ["headgate"]),
    ]


def test_sweep_ends_with_where_all_intents_are_kept(said, scenario):
    scenario.write_text(SCENARIO + SWEEP)
    out = said("simulate", scenario, "--policy", "static")
    assert "hosts: at none of them does static keep all intents for at least 99 % of the time\n" in out


def test_settings_reach_the_variants(said, scenario):
    scenario.write_text(SCENARIO + SWEEP)
    never = ("--set", "warm_up_s=5000", "--set", "window_s=5000")
    result = last_line(said("simulate", scenario, "--policy", "headgate", *never, "--json"))
    assert result["policies"]["headgate"]["log"] == []
    assert all(one["policies"]["headgate"]["log"] == [] for one in result["sweep"])


def test_trace_takes_the_place_of_the_load(said, scenario, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("0,1\n300,100\n600,1\n")
    arguments = ("simulate", scenario, "--policy", "static", "--json")
    assert last_line(said(*arguments)) != last_line(said(*arguments, "--trace", trace))


def test_observe_only_changes_nothing(said, scenario):
    out = said("simulate", scenario, "--observe-only", "--json")
    assert "no action was carried out" in out
    policies = last_line(out)["policies"]
    assert policies["headgate"]["satisfaction"] == policies["static"]["satisfaction"]


def test_seeds_show_the_spread_and_the_worst(said, scenario):
    out = said("simulate", scenario, "--seeds", 2, "--json")
    result = last_line(out)
    assert list(result) == ["scenario", "seeds", "bars"]
    assert [one["seed"] for one in result["seeds"]] == [0, 1]
    assert all("log" not in policy for one in result["seeds"] for policy in one["policies"].values())
    assert "median" in out


def test_seeds_may_begin_anywhere(said, scenario):
    out = said("simulate", scenario, "--seed", 7, "--seeds", 2, "--json")
    assert [one["seed"] for one in last_line(out)["seeds"]] == [7, 8]


def test_seeds_show_the_spread_of_the_sweep(said, scenario):
    scenario.write_text(SCENARIO + SWEEP)
    out = said("simulate", scenario, "--policy", "static", "--seeds", 2, "--json")
    for of_seed in last_line(out)["seeds"]:
        assert [(one["value"], one["policies"]["static"]["all_met"]) for one in of_seed["sweep"]] == [(2, 0), (4, 0)]
    rows = [line.split() for line in out.splitlines()]
    assert ["4", "static", "0.0", "%", "0.0", "%", "0.0", "%"] in rows


def test_bar_that_does_not_hold_is_told_by_the_exit_code_only_when_strict(monkeypatch, scenario, capsys):
    from headgate.sim import simulate
    from headgate.sim.reports.bars import Bar

    monkeypatch.setattr(simulate, "bars", lambda *_: [Bar(name="impossible", value=1.0, op=">=", bar=2.0)])
    arguments = ["simulate", str(scenario), "--policy", "static", "--hours", "0.1"]
    assert run_command(arguments) == 0
    assert run_command([*arguments, "--strict"]) == 1
    assert "NO" in capsys.readouterr().out


def test_picture_is_drawn(said, scenario, tmp_path):
    assert said("simulate", scenario, "--plot", tmp_path / "a.png").endswith(f"drawn: {tmp_path / 'a.png'}\n")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_watched_without_a_terminal_tells_each_action(said, scenario):
    out = said("simulate", scenario, "--policy", "headgate", "--watch")
    assert "T3: look-up 4 → 12 lanes: latency" in out
    assert "3 of 3 jobs meet their intents, converged" in out


# -- mistakes


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            '"look-up", cost',
            '"look-up", from = "spuot", cost',
            'reads from "spuot", which does not exist. Did you mean',
        ),
        ('"spout", cost', '"spout", from = "sink", cost', "operators form a cycle"),
        ("1200, 1200]", "-5, 1200]", "rate is -5; it must be"),
        ("1200, 1200]", "nan, 1200]", "rate is nan; it must be"),
        ("cores = 4", "cores = nan", "cores is nan; it must be"),
        ('"60ms"', '"-1s"', 'latency is "-1s"; it must be'),
        ("[cluster]", "[cluster", "is not valid TOML"),
        ("count = 3", "coutn = 3", "Did you mean"),
    ],
)
def test_mistake_in_a_scenario_is_one_sentence(refused, scenario, old, new, sentence):
    scenario.write_text(SCENARIO.replace(old, new))
    told = refused("simulate", scenario)
    assert str(scenario) in told
    assert sentence in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["greedy"], 'there is no scenario or file "greedy"'),
        (["nothing.toml"], "nothing.toml: cannot be read"),
        (["{}", "--trace", "nothing.csv"], "nothing.csv"),
        (["{}", "--hours", "nan"], "hours is nan; it must be"),
        (["{}", "--hours", "-1"], "hours is -1.0; it must be"),
        (["{}", "--hours", "0.001"], "runs for 3.6 s, but its first round under control ends after 3.5 min"),
        (["{}", "--seed", "-1"], "--seed"),
        (["{}", "--seeds", "0"], "--seeds"),
        (["{}", "--seeds", "2", "--journal", "j"], "--journal is for one run"),
        (["{}", "--policy", "hedgate"], 'Did you mean "headgate"?'),
        (["{}", "--set", "round_s"], "it must be name=value"),
        (["{}", "--set", "rounds_s=5"], 'Did you mean "round_s"?'),
        (["{}", "--set", "round_s=nan"], 'setting "round_s" is'),
        (["{}", "--plot", "a.txt"], "it must end in"),
        (["{}", "--plot", "no/where/a.png"], "cannot be written: No such file or directory"),
        (["{}", "--plot", "/proc/a.png"], "cannot be written"),
        (["{}", "--wacth"], "--wacth"),
        ([], "NAME|FILE"),
    ],
)
def test_mistake_on_the_command_line_is_one_sentence(refused, scenario, arguments, sentence):
    assert sentence in refused("simulate", *(argument.format(scenario) for argument in arguments))


def test_unknown_command_is_one_sentence(refused):
    assert "simulat" in refused("simulat")


def test_missing_journal_is_one_sentence(refused):
    assert refused("explain", "T1", "--journal", "nothing.sqlite").startswith('there is no journal "nothing.sqlite"')
    assert refused("status", "--journal", "nothing.sqlite").startswith('there is no journal "nothing.sqlite"')


def test_file_that_is_no_journal_is_one_sentence(refused, scenario, tmp_path):
    assert "file is not a database" in refused("status", "--journal", scenario)
    assert "Is a directory" in refused("simulate", scenario, "--journal", tmp_path)


def test_picture_that_could_be_drawn_is_not_touched_before_the_run(refused, scenario, tmp_path):
    refused("simulate", scenario, "--plot", tmp_path / "a.png", "--policy", "hedgate")
    assert not (tmp_path / "a.png").exists()


def test_full_disk_is_one_sentence():
    command = [sys.executable, "-m", "headgate.cli", "scenarios"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (1, "headgate: the output: No space left on device\n")


def test_lack_of_memory_is_one_sentence(monkeypatch, capsys):
    def hungry(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("headgate.cli.reference.describe", hungry)
    assert run_command(["settings"]) == 1
    assert capsys.readouterr().err.startswith("headgate: there is not enough memory")


def test_interrupt_is_quiet(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headgate.cli.reference.describe", interrupted)
    assert run_command(["settings"]) == 130
    assert "".join(capsys.readouterr()).strip() == ""


def test_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m headgate.cli settings --markdown | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90, check=True)
    assert (done.stdout, done.stderr) == ("#", "")


# -- the journal


def test_journal_explains_why_a_host_was_leased(said, tmp_path):
    kind = HostType("local", cores=2, memory_mb=1024, price=1.5, btu_s=600)
    lease = Action(
        ActionKind.LEASE, "T1", {}, Cause("T1 needs 3.2 slots, 2 are there"), host="leased-2", host_type=kind
    )
    with SqliteJournal(tmp_path / "run.sqlite") as journal:
        journal.outcome(journal.intend(10, lease), Outcome(True))
    told = said("explain", "leased-2", "--journal", tmp_path / "run.sqlite")
    assert told == "0:00:10  for T1: T1 needs 3.2 slots, 2 are there: leased leased-2 for 1.5 per 10 min\n"


def test_journal_explains_each_job(said, refused, scenario, tmp_path):
    journal = tmp_path / "new" / "j.sqlite"
    said("simulate", scenario, "--journal", journal)
    told = said("explain", "T3", "--journal", journal)
    assert told.startswith("0:03:20  missed its intent from the start")
    assert "look-up was the bottleneck" in told
    assert {"at_s", "text", "facts"} == set(last_line(said("explain", "T3", "--journal", journal, "--json"))[0])
    assert 'there is no job or leased host "T33" in the journal. Did you mean' in refused(
        "explain", "T33", "--journal", journal
    )


def test_status_is_the_last_round(said, scenario, tmp_path):
    journal = tmp_path / "j.sqlite"
    said("simulate", scenario, "--journal", journal)
    out = said("status", "--journal", journal)
    assert "utility 60/60  converged  0:20:00" in out
    assert out.count("converged") == 1
    record = last_line(said("status", "--journal", journal, "--json"))
    assert (record["at_s"], record["score"], list(record["jobs"])) == (1200.0, 60.0, ["T1", "T2", "T3"])


def test_journal_of_another_run_is_refused(said, refused, scenario, tmp_path):
    journal = tmp_path / "j.sqlite"
    said("simulate", scenario, "--policy", "headgate", "--hours", "0.1", "--journal", journal)
    assert "is of seed 0, not 1" in refused("simulate", scenario, "--seed", 1, "--journal", journal)
    assert "is of policy headgate, not static" in refused(
        "simulate", scenario, "--policy", "static", "--journal", journal
    )
    other = scenario.rename(tmp_path / "other.toml")
    assert "is of scenario three, not other" in refused("simulate", other, "--journal", journal)


@pytest.mark.parametrize(("first", "then"), [([], ["--observe-only"]), (["--observe-only"], [])])
def test_journal_is_either_of_a_run_that_acts_or_of_one_that_observes(said, refused, scenario, tmp_path, first, then):
    arguments = ("simulate", scenario, "--policy", "headgate", "--hours", "0.1", "--journal", tmp_path / "j.sqlite")
    said(*arguments, *first)
    begun = "with" if first else "without"
    assert f"the journal was begun {begun} --observe-only" in refused(*arguments, *then)
    assert said(*arguments, *first)


def test_journal_of_an_edited_scenario_is_refused(said, refused, scenario, tmp_path):
    journal = tmp_path / "j.sqlite"
    said("simulate", scenario, "--policy", "headgate", "--journal", journal)
    scenario.write_text(SCENARIO.replace("1200, 1200]", "1200, 500]"))
    arguments = ("simulate", scenario, "--policy", "headgate", "--journal", journal)
    assert "was begun before the scenario was changed" in refused(*arguments)


def test_run_that_is_complete_is_told_again(said, scenario, tmp_path):
    arguments = ("simulate", scenario, "--policy", "headgate", "--journal", tmp_path / "j.sqlite", "--json")
    assert said(*arguments) == said(*arguments)


@pytest.mark.parametrize("policy", ["headgate", "manual", "threshold"])
def test_longer_run_goes_on_from_the_journal(said, resumed, scenario, tmp_path, policy):
    arguments = ("simulate", scenario, "--policy", policy, "--json")
    said(*arguments, "--hours", "0.08", "--journal", tmp_path / "j.sqlite")
    out, from_where = resumed(*arguments, "--journal", tmp_path / "j.sqlite")
    assert out == said(*arguments)
    assert from_where == "0:04:40"


@pytest.mark.parametrize("actions", [1, 2])
def test_run_killed_in_the_middle_ends_like_one_that_was_not(said, resumed, scenario, tmp_path, actions):
    journal = tmp_path / "j.sqlite"
    arguments = ("simulate", scenario, "--policy", "headgate", "--hours", "1.5", "--json")
    kill_after(actions, journal, [*arguments, "--journal", journal])
    (went_on, _), uninterrupted = resumed(*arguments, "--journal", journal), said(*arguments)
    assert last_line(went_on) == last_line(uninterrupted)
    with SqliteJournal(journal, read_only=True) as written:
        times = [(one.at_s, one.action.job, one.applied) for one in written.actions()]
        rounds = [one.at_s for one in written.rounds()]
    assert times == [(one["t"], one["job"], True) for one in last_line(uninterrupted)["policies"]["headgate"]["log"]]
    assert rounds == [200.0 + 10 * number for number in range(521)]


def kill_after(actions: int, journal: Path, arguments: list[object]) -> None:
    """Start a command, kill -9 it once its journal holds so many actions, and see that it had not finished."""
    command = [sys.executable, "-m", "headgate.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + 20
        while recorded_actions(journal) < actions:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def recorded_actions(journal: Path) -> int:
    from headgate.errors import JournalError

    try:
        with SqliteJournal(journal, read_only=True) as opened:
            return len(opened.actions())
    except JournalError:
        return 0


class Killed(Exception):
    pass


class DyingJournal(MemoryJournal):
    """Ends the process, so to speak, between an action and the note that it was done."""

    dies_at = math.inf

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        if action_id == self.dies_at:
            self.dies_at = math.inf
            raise Killed
        super().outcome(action_id, outcome)


@pytest.mark.parametrize("dies_at", [1, 2])
def test_run_killed_between_an_action_and_its_outcome_ends_like_one_that_was_not(scenario, dies_at):
    loaded = load_scenario(str(scenario))
    journal = DyingJournal()
    journal.dies_at = dies_at
    with pytest.raises(Killed):
        run_on(loaded, "headgate", 0, journal, False, None)
    resumed = run_on(loaded, "headgate", 0, journal, False, None)
    assert run_summary(resumed) == run_summary(run(loaded, "headgate", 0))
    assert all(recorded.applied for recorded in journal.actions())


# -- the rest


def test_version(said):
    assert said("--version") == f"headgate {headgate.__version__}\n"


def test_help_fits_a_screen(said):
    out = said("--help")
    assert "simulate" in out
    assert len(out.splitlines()) < 24
    assert said() == out


def test_scenarios_are_listed(said):
    names = [one["name"] for one in last_line(said("scenarios", "--json"))]
    out = said("scenarios")
    assert "demo" in names
    assert all(name in out for name in names)


def test_every_setting_is_listed(said):
    out = said("settings")
    assert all(row["name"] in out for row in describe())
    assert said("settings", "--markdown") == reference()


def test_rules_are_a_table(said):
    assert said("rules").startswith("| rule | in | happens | then |")


def test_help_names_the_benchmarks(said):
    assert ", ".join(NAMES) in " ".join(said("bench", "--help").split())


def test_unknown_benchmark_is_one_sentence(refused):
    assert 'Did you mean "simulator"?' in refused("bench", "simulater")


def test_policies_may_be_given_in_one_word_or_several(said, scenario):
    together = json.loads(said("simulate", scenario, "--policy", "headgate,static", "--json").splitlines()[-1])
    apart = json.loads(
        said("simulate", scenario, "--policy", "headgate", "--policy", "static", "--json").splitlines()[-1]
    )
    assert together == apart
