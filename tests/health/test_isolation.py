"""Policies of the user's run in processes of their own: whatever they do, the loop goes on."""

from __future__ import annotations

import dataclasses
import pickle
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.metrics import View
from headgate.errors import ScenarioError
from headgate.health.examiners import SwitchedOffError
from headgate.health.examining import Examination, History
from headgate.health.isolation.processes import IsolatedPolicy
from headgate.health.policies import user_policies_from
from headgate.health.records import ObservedJob
from headgate.scheduler.policies import Headgate
from headgate.scheduler.regulation import PolicyAlerts, Regulation, SwitchedOff
from headgate.scheduler.trials import Trials
from headgate.sim.run import Run, run
from headgate.sim.scenario import read_scenario
from tests.health.observed_jobs import Lanes, observed, one_slow, too_few

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1.0
HEAD = """
import os, sys, time
from headgate.health.policies import HealthPolicy, Provision
from headgate.health.records import *
"""
BODIES = {
    "raises": """
        class Mine(Provision):
            def select(self, diagnoses):
                raise RuntimeError("no idea")
    """,
    "nonsense": """
        class Text:
            name = "text"
            def resolve(self, diagnosis, measured, observed):
                return Remedy("text", diagnosis, "many lanes", "")
        class Mine(Provision):
            resolvers = {DiagnosisKind.TOO_FEW_LANES: (Text(),)}
    """,
    "negative": """
        import dataclasses
        class Less:
            name = "less"
            def resolve(self, diagnosis, measured, observed):
                lanes = dict.fromkeys(observed.view.allocation.lanes, -3)
                return Remedy("less", diagnosis, observed.view.allocation.with_lanes(lanes), "")
        class Mine(Provision):
            resolvers = {DiagnosisKind.TOO_FEW_LANES: (Less(),)}
    """,
    "nothing": """
        class Mine(Provision):
            def select(self, diagnoses):
                return None
    """,
    "sleeps": """
        class Mine(Provision):
            def select(self, diagnoses):
                time.sleep(3600)
    """,
    "spins": """
        class Mine(Provision):
            def select(self, diagnoses):
                while True:
                    pass
    """,
    "exits": """
        class Mine(Provision):
            def select(self, diagnoses):
                os._exit(3)
    """,
    "stops itself": """
        import signal
        class Mine(Provision):
            def select(self, diagnoses):
                os.kill(os.getpid(), signal.SIGSTOP)
    """,
    "calls-exit": """
        class Mine(Provision):
            def select(self, diagnoses):
                sys.exit("enough")
    """,
}
SENTENCES = {
    "raises": "it raised RuntimeError: no idea (mine.py, line",
    "nonsense": "invalid answer",
    "negative": "it returned an invalid answer: -3 lanes for in; allowed are 1 to 1024",
    "nothing": "invalid answer",
    "sleeps": "it has not answered within 1 s",
    "spins": "it has not answered within 1 s",
    "exits": "its process has ended",
    "stops itself": "it has not answered within 1 s",
    "calls-exit": "it raised SystemExit: enough",
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[object]:
    started: list[IsolatedPolicy] = []

    def make(
        body: str, path: str = "mine:Mine", start_wait_s: float = 60.0, patience_s: float = 10 * PATIENCE_S
    ) -> IsolatedPolicy:
        (tmp_path / "mine.py").write_text(HEAD + textwrap.dedent(body))
        started.append(IsolatedPolicy("mine", path, tmp_path, patience_s, start_wait_s))
        return started[-1]

    yield make
    for one in started:
        one.close()


@pytest.mark.parametrize("fault", BODIES)
def test_policy_that_fails_is_told_in_a_sentence(made, fault: str) -> None:
    with pytest.raises(SwitchedOffError) as told:
        made(BODIES[fault], patience_s=PATIENCE_S).examine(History(), observed(too_few()))
    assert SENTENCES[fault] in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("body", "path", "sentence"),
    [
        ("class Mine: pass", "mine:Mine", "TypeError: mine:Mine is Mine, not a HealthPolicy"),
        ("import nowhere", "mine:Mine", "ModuleNotFoundError: No module named 'nowhere' (mine.py, line"),
        ("", "mine:Mine", "AttributeError"),
        ("", "nobody", 'there is no entry point "nobody" of headgate.policies'),
        ("sys.exit(1)", "mine:Mine", "it cannot be loaded: SystemExit"),
    ],
)
def test_policy_that_cannot_be_loaded_is_told_in_a_sentence(made, body: str, path: str, sentence: str) -> None:
    with pytest.raises(SwitchedOffError) as told:
        made(body, path).examine(History(), observed(too_few()))
    assert sentence in str(told.value)


def test_good_policy_answers_as_it_would_in_the_loop_itself(made) -> None:
    policy = made("class Mine(Provision):\n    name = 'mine'\n")
    assert policy.invasive
    found = policy.examine(History(), observed(one_slow()))
    assert found.remedy is not None and found.remedy.resolver == "move lanes"
    assert found.tried is not None and found.tried.policy == "mine"
    again = policy.examine(
        History(awaited=found.tried), observed(Lanes((100.0,) * 8, (0.93,) * 8, (0.0,) * 8, (0.0,) * 8))
    )
    assert again.judged is not None and again.judged.useful


def test_patience_is_for_all_answers_of_a_round_together(made) -> None:
    body = "class Mine(Provision):\n    def select(self, d):\n        time.sleep(0.4)\n        return d\n"
    policy = made(body, patience_s=3 * PATIENCE_S)
    job = observed(too_few())
    policy.examine(History(), job)
    policy.examine(History(), job)
    policy.examine(History(), dataclasses.replace(job, at_s=job.at_s + 10))
    with pytest.raises(SwitchedOffError, match="not answered within 3 s"):
        for _ in range(8):
            policy.examine(History(), dataclasses.replace(job, at_s=job.at_s + 10))


def test_what_a_policy_prints_does_not_disturb_its_answers(made) -> None:
    policy = made(
        "print('hello')\nclass Mine(Provision):\n    def select(self, d):\n        print(d)\n        return d\n"
    )
    found = policy.examine(History(), observed(too_few()))
    assert found.remedy is not None


STOPS = """
import signal, threading
class Mine(Provision):
    def __init__(self):
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
"""


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_question_that_a_stopped_policy_does_not_read_holds_up_nobody(made) -> None:
    policy = made(STOPS, patience_s=PATIENCE_S)
    assert policy.invasive
    eventually(lambda: stopped(policy._process.pid))
    lanes = 2000
    many = observed(Lanes((100.0,) * lanes, (0.9,) * lanes, (1.0,) * lanes, (0.0,) * lanes))
    assert len(pickle.dumps(many)) > 1 << 17
    begun_s = time.monotonic()
    with pytest.raises(SwitchedOffError, match="not answered within 1 s"):
        policy.examine(History(), many)
    assert time.monotonic() - begun_s < 5


def test_long_questions_are_answered(made) -> None:
    lanes = 300
    many = observed(Lanes((100.0,) * lanes, (0.9,) * lanes, (1.0,) * lanes, (0.0,) * lanes))
    assert len(pickle.dumps(many)) > 1 << 16
    policy = made("class Mine(Provision):\n    name = 'mine'\n")
    found = policy.examine(History(), many)
    assert found.remedy is not None


def test_policy_that_failed_is_started_again_by_the_next_question(made) -> None:
    policy = made(BODIES["exits"])
    with pytest.raises(SwitchedOffError):
        policy.examine(History(), observed(too_few()))
    made("class Mine(Provision):\n    name = 'mine'\n")
    found = policy.examine(History(), observed(too_few()))
    assert found.remedy is not None


def test_round_does_not_wait_for_a_policy_that_starts(made) -> None:
    policy = made("time.sleep(1)\nclass Mine(Provision):\n    name = 'mine'\n", start_wait_s=0.0)
    begun_s = time.monotonic()
    found = policy.examine(History(), observed(too_few()))
    assert time.monotonic() - begun_s < 0.9
    assert (found.remedy, found.cause) == (None, 'policy "mine" is starting')
    eventually(lambda: policy.examine(History(), observed(too_few())).remedy is not None)


def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


# -- in the loop

SCENARIO = """
title = "Two jobs, one of them under a policy of the user's"
engine = "lanes"
duration = "10m"
settings = {{ policy_patience_s = {patience}, policy_back_off_s = 600 }}
cluster = {{ hosts = 4, cores = 8 }}
user_policies = {{ mine = "mine:Mine" }}

[topology.work]
operators = [
  {{ name = "in", cost = "0.2ms", lanes = 2 }},
  {{ name = "work", cost = "1ms", lanes = 2 }},
]

[[job]]
name = "theirs"
topology = "work"
intent = {{ policy = "{policy}" }}
load = {{ pattern = "steady", rate = 3000 }}

[[job]]
name = "ours"
topology = "work"
intent = {{ latency = "1s", worth = 10 }}
load = {{ pattern = "steady", rate = 3000 }}
"""


def simulated(tmp_path: Path, body: str, policy: str = "mine", patience: float = 10.0) -> Run:
    (tmp_path / "mine.py").write_text(HEAD + textwrap.dedent(body))
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.format(policy=policy, patience=patience))
    return run(read_scenario(file), "headgate", 0)


@pytest.mark.parametrize("fault", ["raises", "nonsense", "spins"])
def test_loop_goes_on_when_a_policy_is_switched_off(tmp_path: Path, fault: str) -> None:
    found = simulated(tmp_path, BODIES[fault], patience=1.0 if fault == "spins" else 10.0)
    assert [text for _, text in found.alerts if text.startswith('policy "mine" was switched off: it ')]
    assert found.advice[0].startswith('policy "mine" was switched off')
    assert {entry.job for entry in found.log} == {"ours"}
    assert found.final is not None and found.final.jobs["ours"].met


def test_policy_of_the_users_may_change_its_job(tmp_path: Path) -> None:
    found = simulated(tmp_path, "class Mine(Provision):\n    name = 'mine'\n")
    assert {entry.job for entry in found.log} == {"ours", "theirs"}
    assert found.alerts == []


WATCH = """
class Mine(HealthPolicy):
    name = "mine"
    def alerts(self, symptoms, diagnoses, observed):
        return [Alert(f"has {sum(observed.view.allocation.lanes.values())} lanes")]
"""


def test_policy_that_only_looks_on_sees_every_job_and_changes_none(tmp_path: Path) -> None:
    found = simulated(tmp_path, WATCH, "provision")
    told = {text.split(": has ")[0] for _, text in found.alerts}
    assert told == {"ours", "theirs"}
    assert len(found.alerts) == 2, "the same alert is not raised again at once"


def test_scenario_whose_job_names_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match='job "theirs": intent: policy is "somebody-elses"; allowed are provision'):
        simulated(tmp_path, "", "somebody-elses")


def test_policies_that_were_switched_off_stay_so_after_a_restart() -> None:
    before, after = Headgate(dataclasses.replace(observed(too_few()).settings)), Headgate(observed(too_few()).settings)
    before.regulation.switched_off = {"mine": SwitchedOff("it raised", 30.0, 2)}
    after.load(before.dump())
    assert after.regulation.switched_off == before.regulation.switched_off


class Raises:
    """A policy that fails whenever it is asked."""

    invasive = True

    def examine(self, history: History, observed: ObservedJob) -> Examination:
        raise RuntimeError("no idea")


class Watches(Raises):
    """A policy that only raises alerts, and raises none."""

    invasive = False

    def examine(self, history: History, observed: ObservedJob) -> Examination:
        return Examination("nothing to say")


def test_alerting_policies_are_asked_together_by_the_function_that_the_loop_was_given() -> None:
    asked: list[list[str]] = []

    def ask_all(ask: Callable[[str], PolicyAlerts], policies: Sequence[str]) -> list[PolicyAlerts]:
        asked.append(list(policies))
        return [ask(name) for name in policies]

    regulation = Regulation(Settings(), {"mine": Watches(), "acts": Raises(), "yours": Watches()}, ask_all)
    regulation.advise(Trials(), View(0.0, {}, (), frozenset()), set(), {})
    assert asked == [["mine", "yours"]]


def test_policy_that_fails_again_and_again_is_asked_less_and_less_often() -> None:
    regulation, pauses = Regulation(Settings(), {"mine": Raises()}), []
    seen = observed(too_few()).view
    job = dataclasses.replace(seen, job=dataclasses.replace(seen.job, intent=Intent(policy="mine")))

    def asked_at(at_s: float) -> float:
        regulation.advise(Trials(), View(at_s, {"job": job}, (), frozenset()), {"job"}, {})
        return regulation.switched_off["mine"].until_s if regulation.switched_off else 0.0

    at_s = 0.0
    for _ in range(10):
        until_s = asked_at(at_s)
        assert asked_at(until_s - 1) == until_s, "it is not asked before"
        pauses.append(until_s - at_s)
        at_s = until_s
    assert pauses[:4] == [10, 20, 40, 80] and pauses[-1] == 600
    assert asked_at(at_s + 600) - (at_s + 600) == 10, "it was fine for as long as the longest pause"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"provision": "a:B"}, "is a built-in policy"),
        ({"throughput:5/s": "a:B"}, "is a built-in policy"),
        ({"mine": 3}, 'mine is 3; it must be "module:Class"'),
        ("mine", "it must be a table"),
    ],
)
def test_mistakes_in_the_list_of_policies_are_told(table: object, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        user_policies_from(table, ScenarioError)


def test_policies_of_the_example_run() -> None:
    found = run(
        dataclasses.replace(read_scenario(ROOT / "examples/policies/shop.toml"), duration_s=2100.0), "headgate", 0
    )
    assert {entry.kind for entry in found.log} == {"reduce", "reconfigure"}
    assert all(job.allocation.lanes["orders"] >= 2 for job in (found.final.jobs.values() if found.final else ()))
    assert any("rows wait for" in text for _, text in found.alerts)
