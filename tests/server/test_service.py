"""Jobs that come, change and go, and come back after a restart."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

import pytest

from headgate import files
from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, JobReading, Outcome
from headgate.errors import (
    DuplicateJobError,
    EngineError,
    InputError,
    IntentError,
    JobFileError,
    JournalError,
    UnknownJobError,
)
from headgate.ports import JobPhase
from headgate.server.service import Loop
from headgate.server.status import Health
from tests.server.fake import FakeEngine, job_file

# -- while it runs


def test_job_is_submitted_with_what_the_request_changes(bench):
    name = bench.submit(name="mine", tenant="shop", share=3, pace_s=1, lanes={"large": 4}, intent={"juice": 0.9})
    topology = bench.engine.topologies[name]
    assert (name, topology.tenant, topology.share) == ("mine", "shop", 3)
    assert bench.engine.allocations["mine"] == JobAllocation({"large": 4}, 1.0)
    assert topology.intent == Intent(juice=0.9)


def test_second_job_of_a_name_is_refused(bench):
    bench.submit()
    with pytest.raises(DuplicateJobError, match=r'there is a job "orders" already; give this one another name'):
        bench.submit()
    assert bench.submit(name="other") == "other"


def test_engine_that_refuses_leaves_nothing_behind(bench):
    bench.engine.refuses = "no room"
    with pytest.raises(EngineError):
        bench.submit()
    assert bench.service.registry.all() == {}


def test_status_says_that_the_lag_is_unknown(bench):
    bench.submit()
    bench.rounds(4)
    assert bench.service.status().jobs["orders"].lag_unknown is False
    bench.engine.backlog = None
    bench.rounds(4)
    job = bench.service.status().jobs["orders"]
    assert (job.lag_unknown, job.juice, job.backlog) == (True, None, None)
    assert (job.met, job.utility) == (True, 35.0)


def test_round_is_seen_in_the_status(bench):
    bench.submit(tenant="shop")
    bench.rounds(4)
    status = bench.service.status()
    job = status.jobs["orders"]
    assert (job.state, job.tenant, job.intent, job.worth, job.share) == ("running", "shop", "2 s", 35.0, 1)
    assert (job.met, job.utility, job.juice, job.backlog) == (True, 35.0, 1.0, 0.0)
    assert job.latency is not None
    assert (job.latency.mean_s, job.latency_s) == (0.5, 0.5)
    assert job.latency.p99_s == pytest.approx(0.5, rel=0.01)
    assert job.lanes == {"large": 2}
    assert job.epochs is not None and job.epochs > 0
    assert (status.score, status.max_score, status.satisfaction) == (35.0, 35.0, 1.0)
    assert [(host.name, host.cores) for host in status.hosts] == [("here", 2)]


def test_action_is_seen_with_its_cause(bench):
    bench.engine.latency_s = 30.0
    bench.submit()
    bench.rounds(8)
    action = bench.service.status().actions[-1]
    assert (action.job, action.kind, action.applied) == ("orders", "reconfigure", True)
    assert "latency 30 s" in action.cause


def test_observing_service_changes_nothing(bench):
    bench.loop = Loop(Settings(), observe_only=True)
    bench.start(engine=FakeEngine(latency_s=30.0, clock=bench.clock))
    bench.submit()
    bench.rounds(8)
    assert bench.engine.allocations["orders"] == JobAllocation({"large": 2}, 0.0)
    assert {(one.applied, one.detail) for one in bench.service.status().actions} == {(False, "observed only")}


def test_failed_job_costs_satisfaction_and_says_why(bench):
    bench.submit()
    bench.submit(name="other")
    bench.rounds(3)
    bench.engine.fail("other", "ValueError: no such tier")
    bench.rounds(1)
    status = bench.service.status()
    assert (status.jobs["other"].state, status.jobs["other"].reason) == ("failed", "ValueError: no such tier")
    assert (status.score, status.max_score, status.satisfaction) == (35.0, 70.0, 0.5)
    assert ("other", "alert: failed: ValueError: no such tier") in bench.notes.told


def test_every_change_of_state_is_told_once(bench):
    bench.submit()
    for phase in (JobPhase.RUNNING, JobPhase.RETRYING, JobPhase.RUNNING, JobPhase.FAILED):
        bench.engine.fail("orders", "sink down" if phase is not JobPhase.RUNNING else "", phase)
        bench.service.look()
        bench.service.look()
    bench.service.jobs.remove("orders")
    bench.service.look()
    assert [text for _, text in bench.notes.told] == [
        "runs",
        "alert: retrying: sink down",
        "runs again",
        "alert: failed: sink down",
        "removed",
    ]


def test_engine_that_cannot_be_read_does_not_end_the_loop_and_is_told_once(bench):
    bench.submit()
    bench.engine.unreadable = "Spark does not answer"
    bench.rounds(2)
    bench.engine.unreadable = ""
    bench.rounds(3)
    assert [text for _, text in bench.notes.told].count("no round: Spark does not answer") == 1
    assert bench.service.status().jobs["orders"].met is True


def test_hosts_are_seen_to_while_the_engine_cannot_be_read(bench):
    class Hosts:
        tended: ClassVar[list[float]] = []

        def refresh(self, at_s):
            self.tended.append(at_s)
            return False

    bench.submit()
    bench.service.landlord = Hosts()
    bench.engine.unreadable = "Spark does not answer"
    bench.rounds(2)
    assert len(Hosts.tended) == 2


def test_story_of_a_job_without_rounds_is_empty_and_of_a_paused_one_says_so(bench):
    bench.submit()
    assert bench.service.story("orders") == []
    bench.service.jobs.pause("orders")
    assert [line.text for line in bench.service.story("orders")] == ["paused"]


# -- changes


def test_intent_is_merged_with_the_current_one(bench):
    bench.submit()
    bench.service.jobs.change("orders", {"intent": {"juice": 0.9}})
    bench.service.jobs.change("orders", {"intent": {"latency": "1s", "percentile": 99}})
    assert bench.engine.topologies["orders"].intent == Intent(latency=1, percentile=99, juice=0.9, worth=35)
    bench.service.jobs.change("orders", {"intent": {"latency": None, "percentile": None}})
    assert bench.engine.topologies["orders"].intent == Intent(juice=0.9, worth=35)
    assert bench.notes.told[-1] == ("orders", "its intent is now juice 0.9, worth 35")


def test_share_and_read_limit_change_together(bench):
    bench.submit()
    bench.service.jobs.change("orders", {"share": 4, "read_limit": 1000})
    state = bench.engine.states()["orders"]
    assert (state.share, state.read_limit) == (4, 1000)
    bench.service.jobs.change("orders", {"read_limit": None})
    assert bench.service.status().jobs["orders"].read_limit is None


@pytest.mark.parametrize(
    ("table", "kind", "sentence"),
    [
        ({"intnet": {}}, InputError, 'there is no field "intnet".* Did you mean "intent"?'),
        ({"intent": {"latncy": 1}}, IntentError, 'job "orders": intent: there is no field "latncy".* Did you mean'),
        ({"intent": {"latency": "-1s"}}, IntentError, 'latency is "-1s"; it must be a duration above 0'),
        ({"intent": {"latency": None}}, IntentError, "an intent needs a latency"),
        ({"intent": {"shape": {"kind": "step"}}}, IntentError, "by its name alone"),
        ({"intent": 5}, IntentError, "it is 5; it must be a table"),
        ({"share": 0}, InputError, "share is 0; it must be a number of at least 1"),
        ({"share": 1.5}, InputError, "share is 1.5; it must be a whole number"),
        ({"read_limit": "many"}, InputError, 'read_limit is "many"; it must be a number'),
        ([], InputError, "it must be a table with intent, share, read_limit"),
    ],
)
def test_bad_change_is_one_sentence(bench, table, kind, sentence):
    bench.submit()
    with pytest.raises(kind, match=sentence):
        bench.service.jobs.change("orders", table)


def test_change_that_is_half_wrong_changes_nothing(bench):
    bench.submit()
    with pytest.raises(InputError):
        bench.service.jobs.change("orders", {"intent": {"latency": 9}, "share": 0})
    assert bench.engine.topologies["orders"].intent.latency_s == 2.0


def test_unknown_job_is_named_with_the_closest(bench):
    bench.submit()
    for change in (bench.service.jobs.pause, bench.service.jobs.resume, bench.service.jobs.remove, bench.service.story):
        with pytest.raises(UnknownJobError, match=r'there is no job "order"\. Did you mean "orders"\?'):
            change("order")
    with pytest.raises(UnknownJobError):
        bench.service.jobs.change("order", {"share": 1})


def test_job_that_the_engine_could_not_remove_stays_registered(bench):
    bench.submit()
    del bench.engine._states["orders"]
    with pytest.raises(InputError):
        bench.service.jobs.remove("orders")
    assert "orders" in bench.service.registry.all()


# -- after a restart


def test_live_jobs_come_back_as_they_were_last_changed(bench):
    bench.submit(name="a", intent={"latency": "5s", "worth": 10})
    bench.submit(name="b")
    bench.submit(name="c")
    bench.service.jobs.change("a", {"intent": {"worth": 20}, "share": 2, "read_limit": 500})
    bench.service.jobs.pause("b")
    bench.service.jobs.remove("c")
    bench.start()
    states = bench.engine.states()
    assert {name: state.phase for name, state in states.items()} == {"a": JobPhase.RUNNING, "b": JobPhase.PAUSED}
    assert (states["a"].share, states["a"].read_limit) == (2, 500)
    assert bench.engine.topologies["a"].intent == Intent(latency=5, worth=20)
    bench.service.jobs.change("a", {"intent": {"latency": "1s"}})
    bench.start()
    assert bench.engine.topologies["a"].intent == Intent(latency=1, worth=20)


def test_lanes_come_back_as_the_journal_has_them(bench):
    bench.engine.latency_s = 30.0
    bench.submit()
    bench.rounds(8)
    grown = bench.engine.allocations["orders"]
    assert grown.lanes["large"] > 2
    bench.start()
    assert bench.engine.allocations["orders"] == grown


def test_lanes_of_an_operator_that_is_gone_do_not_come_back(bench):
    bench.submit()
    bench.rounds(1)
    job = bench.directory / "orders.py"
    job.write_text(job.read_text().replace('"large", lambda', '"huge", lambda'))
    bench.start()
    assert bench.engine.allocations["orders"] == JobAllocation({"huge": 2}, 0.0)


def test_action_without_an_outcome_is_carried_out_on_return(bench):
    bench.submit()
    bench.rounds(1)
    restored = bench.journal.restore()
    action = Action(ActionKind.RECONFIGURE, "orders", {"orders": JobAllocation({"large": 7}, 0.0)}, Cause("late"))
    last = list(bench.journal.rounds())[-1]
    bench.journal.record(last, restored.snapshots[-1], restored.state, action)
    bench.start()
    assert bench.engine.allocations["orders"].lanes == {"large": 7}
    assert bench.journal.restore().unfinished == ()


def test_another_policy_starts_without_the_state_of_the_last_one(bench):
    bench.submit()
    bench.rounds(1)
    restored = bench.journal.restore()
    action = Action(ActionKind.RECONFIGURE, "orders", {"orders": JobAllocation({"large": 7}, 0.0)}, Cause("late"))
    bench.journal.record(list(bench.journal.rounds())[-1], restored.snapshots[-1], restored.state, action)
    bench.loop = Loop(Settings(), "threshold")
    bench.start()
    assert bench.engine.allocations["orders"].lanes == {"large": 2}
    assert bench.journal.actions()[-1].outcome == Outcome(False, "another policy took over")
    bench.rounds(2)
    assert bench.service.status().policy == "threshold"


def test_job_whose_file_is_gone_is_failed_and_can_be_resumed_later(bench):
    bench.submit(name="a")
    bench.submit(name="b", file=str(job_file(bench.directory, "b.py")))
    file = bench.directory / "b.py"
    text = file.read_text()
    file.unlink()
    bench.start()
    bench.service.look()
    told = bench.service.status().jobs["b"]
    assert (told.state, bench.service.status().jobs["a"].state) == ("failed", "running")
    assert "b.py: cannot be read: No such file or directory" in told.reason
    with pytest.raises(InputError, match="`headgate resume b` tries again"):
        bench.service.jobs.pause("b")
    with pytest.raises(JobFileError):
        bench.service.jobs.resume("b")
    file.write_text(text)
    bench.service.jobs.resume("b")
    assert bench.service.status().jobs["b"].state == "running"


def test_job_that_cannot_be_loaded_can_be_removed(bench):
    bench.submit()
    (bench.directory / "orders.py").unlink()
    bench.start()
    assert bench.service.jobs.remove("orders") == ""
    assert bench.service.states() == {}


# -- jobs of files


def test_job_of_a_file_keeps_what_was_changed_live(bench):
    file = job_file(bench.directory)
    bench.start(file).jobs.change("orders", {"intent": {"latency": "9s"}})
    bench.start(file)
    assert bench.engine.topologies["orders"].intent.latency_s == 9.0
    assert ("orders", "its intent is 9 s, as it was changed while it ran") in bench.notes.told


def test_entry_that_was_edited_begins_anew_but_stays_paused(bench):
    job_file(bench.directory)
    cluster = bench.directory / "shop.toml"
    cluster.write_text('[[job]]\nfile = "orders.py"\nintent = { latency = "3s" }\n')
    bench.start(cluster).jobs.change("orders", {"intent": {"latency": "9s"}})
    bench.service.jobs.pause("orders")
    cluster.write_text('[[job]]\nfile = "orders.py"\nintent = { latency = "4s" }\n')
    bench.start(cluster)
    assert bench.engine.topologies["orders"].intent.latency_s == 4.0
    assert bench.engine.states()["orders"].phase is JobPhase.PAUSED


def test_job_that_left_its_file_is_not_started_unless_no_file_is_given(bench):
    first, second = job_file(bench.directory), job_file(bench.directory, "b.py")
    second.write_text(second.read_text().replace('name="orders"', 'name="b"'))
    bench.start(first, second)
    bench.start(only_these=False)
    assert set(bench.engine.states()) == {"orders", "b"}
    bench.start(first)
    assert set(bench.engine.states()) == {"orders"}
    assert ("b", "is no longer in the files; not started") in bench.notes.told


def test_removing_a_job_of_a_file_says_that_it_comes_back(bench):
    file = job_file(bench.directory)
    assert "comes back with the next `headgate run`" in bench.start(file).jobs.remove("orders")
    bench.start(file)
    assert "orders" in bench.engine.states()


def test_two_files_with_a_job_of_the_same_name_are_refused(bench):
    first, second = job_file(bench.directory), job_file(bench.directory, "b.py")
    with pytest.raises(DuplicateJobError, match=r'two jobs are named "orders" \(.*orders.py and .*b.py\)'):
        bench.start(first, second)


def test_engine_that_cannot_start_a_job_of_a_file_keeps_the_service_up(bench):
    engine = FakeEngine(clock=bench.clock)
    engine.refuses = "no room"
    bench.start(job_file(bench.directory), engine=engine)
    assert bench.service.status().jobs["orders"].reason == "no room"
    engine.refuses = ""
    bench.service.jobs.resume("orders")
    assert bench.service.status().jobs["orders"].state == "running"


def test_journal_of_a_simulation_is_refused(bench):
    bench.journal.set_about("clock", "virtual")
    with pytest.raises(InputError, match="the journal is of a simulation"):
        bench.start()


# -- the registry


def test_registry_is_a_file_that_a_person_can_read(bench):
    bench.submit(intent={"latency": "2s"})
    written = json.loads((bench.directory / "jobs.json").read_text())
    assert written["jobs"]["orders"]["request"]["intent"] == {"latency": "2s"}
    assert (bench.directory / "jobs.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"jobs": {"a": {"paused": true}}}', b'{"jobs": {"\xff', b"\x00" * 100]
)
def test_damaged_registry_is_set_aside_and_told(bench, content):
    (bench.directory / "jobs.json").write_bytes(content)
    bench.start(job_file(bench.directory))
    (aside,) = bench.directory.glob("jobs.json.damaged-*")
    assert aside.read_bytes() == content
    assert bench.service.status().jobs["orders"].state == "running"
    (told,) = [text for _, text in bench.notes.told if "jobs.json" in text]
    assert told.startswith("alert: ") and "is not a list of jobs" in told and str(aside) in told
    bench.start(only_these=False)
    assert "orders" in bench.engine.states()


def test_sound_jobs_of_a_damaged_registry_come_back(bench):
    bench.submit()
    written = json.loads((bench.directory / "jobs.json").read_text())
    written["jobs"]["broken"] = {"paused": "perhaps"}
    (bench.directory / "jobs.json").write_text(json.dumps(written))
    bench.start()
    assert set(bench.engine.states()) == {"orders"}
    assert any("orders could still be read" in text for _, text in bench.notes.told)


def test_alert_is_a_line_for_the_watcher_and_advice_in_the_status(bench):
    bench.submit(name="orders")
    bench.service.engine.set_intent("orders", Intent(policy="nobodys"))
    bench.rounds(3)
    told = [text for _, text in bench.notes.told if text.startswith("alert: ")]
    assert told == ['alert: there is no policy "nobodys"; the job keeps its lanes']
    assert bench.service.status().advice == (told[0].replace("alert", "orders"),)


def test_policy_that_there_is_not_is_refused(bench):
    told = 'intent: policy is "provison"; allowed are provision, throughput:RATE, .* Did you mean "provision"?'
    with pytest.raises(InputError, match=told):
        bench.submit(name="orders", intent={"policy": "provison"})
    bench.submit(name="orders")
    with pytest.raises(InputError, match=told):
        bench.service.jobs.change("orders", {"intent": {"policy": "provison"}})
    assert bench.service.status().jobs["orders"].intent == "2 s"


# -- the truth


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_error_in_a_round_is_told_and_the_next_round_is_as_usual(bench, monkeypatch):
    bench.submit()
    bench.rounds(3)
    observe = bench.engine.observe
    monkeypatch.setattr(bench.engine, "observe", lambda: 1 / 0)
    bench.rounds(2)
    assert [text for _, text in bench.notes.told].count("no round: ZeroDivisionError: division by zero") == 1
    assert bench.service.health().sentence == "no round: ZeroDivisionError: division by zero"
    assert bench.service.status().problem == "no round: ZeroDivisionError: division by zero"
    monkeypatch.setattr(bench.engine, "observe", observe)
    bench.rounds(1)
    assert bench.service.status().jobs["orders"].met is True
    assert bench.service.health().healthy


def test_action_that_raises_is_a_refusal(bench, monkeypatch):
    bench.engine.latency_s = 30.0
    bench.submit()
    monkeypatch.setattr(bench.engine, "apply", no_space)
    bench.rounds(8)
    action = bench.service.status().actions[-1]
    assert (action.applied, action.detail) == (False, "OSError: [Errno 28] No space left on device")
    assert bench.service.status().jobs["orders"].met is False


def test_full_disk_under_the_journal_stops_actions_but_no_rounds(bench, monkeypatch):
    bench.engine.latency_s = 30.0
    bench.submit()

    def full(*_: object) -> None:
        raise JournalError("the journal cannot be written: database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(bench.journal, "record", full)
        bench.rounds(8)
    assert bench.service.status().at_s == bench.now_s
    assert bench.service.status().actions == ()
    assert bench.service.status().problem == "the journal cannot be written: database or disk is full"
    assert bench.engine.allocations["orders"].lanes == {"large": 2}
    assert [text for _, text in bench.notes.told].count("the journal cannot be written: database or disk is full") == 1
    bench.rounds(40)
    assert bench.engine.allocations["orders"].lanes["large"] > 2


def test_full_disk_under_the_list_of_jobs_keeps_no_job_down(bench, monkeypatch):
    monkeypatch.setattr(files, "replace", no_space)
    bench.start(job_file(bench.directory))
    assert bench.service.status().jobs["orders"].state == "running"
    assert any("jobs.json: cannot be written: No space left on device" in text for _, text in bench.notes.told)
    with pytest.raises(EngineError, match="No space left on device"):
        bench.submit(name="other")
    assert "other" not in bench.engine.states()


def test_refused_step_is_told_once(bench, monkeypatch):
    bench.engine.latency_s = 30.0
    bench.submit()
    monkeypatch.setattr(bench.engine, "apply", lambda action: Outcome(False, "no room"))
    bench.rounds(30)
    shown = [action for _, _, action in bench.notes.rounds if action is not None]
    recorded = bench.journal.actions()
    assert 1 <= len(shown) == len(recorded) <= 3


def test_no_job_is_met_on_readings_older_than_three_rounds(bench):
    bench.submit()
    bench.rounds(15)
    assert bench.service.status().jobs["orders"].age_s == 0.0
    bench.engine.unreadable = "Spark does not answer"
    bench.rounds(3)
    assert (bench.service.status().jobs["orders"].met, bench.service.status().phase) == (True, "converged")
    bench.rounds(1)
    status = bench.service.status()
    job = status.jobs["orders"]
    assert (job.met, job.utility, job.stale, job.age_s) == (None, None, True, 40.0)
    assert (status.phase, status.score, status.satisfaction, status.decision) == ("stale", 0.0, None, "")
    assert status.headline == "0 of 1 jobs meet their intents, 1 stale"
    assert "no round has been completed for 40 s (no round: Spark does not answer)" in status.problem
    view, phase, _ = bench.notes.rounds[-1]
    assert (view.jobs["orders"].met, phase) == (None, "stale")


def test_job_that_alone_cannot_be_read_turns_stale(bench, monkeypatch):
    bench.submit()
    bench.submit(name="other")
    bench.rounds(6)
    read = bench.engine._reading
    monkeypatch.setattr(bench.engine, "_reading", lambda name, at_s: None if name == "other" else read(name, at_s))
    bench.rounds(4)
    status = bench.service.status()
    assert (status.jobs["orders"].met, status.jobs["other"].met) == (True, None)
    assert status.jobs["other"].stale and not status.jobs["orders"].stale
    assert (status.phase, status.problem) == (bench.service.controller.policy.phase(), "other is stale")


@contextmanager
def without_output(bench, monkeypatch) -> Iterator[None]:
    """All rows are processed, and none has reached the sink: a window that is still open."""
    read = bench.engine._reading

    def silent(name: str, at_s: float) -> JobReading:
        reading: JobReading = read(name, at_s)
        operators = {**reading.operators, "out": dataclasses.replace(reading.operators["out"], processed={"large": 0})}
        return dataclasses.replace(reading, operators=operators, latency=None)

    with monkeypatch.context() as patched:
        patched.setattr(bench.engine, "_reading", silent)
        yield


def test_job_without_output_is_measured_not_met(bench, monkeypatch):
    bench.submit()
    with without_output(bench, monkeypatch):
        bench.rounds(5)
        job = bench.service.status().jobs["orders"]
        assert (job.met, job.latency_s, job.utility) == (None, None, None)
        assert bench.service.status().headline == "0 of 1 jobs meet their intents, 1 measuring"
        assert bench.notes.rounds[-1][0].jobs["orders"].met is None
    bench.rounds(1)
    assert bench.service.status().jobs["orders"].met is True


def test_journal_and_story_say_the_same_as_the_status_of_a_job_without_output(bench, monkeypatch):
    bench.loop = Loop(Settings(), "static")
    bench.start()
    bench.submit()
    with without_output(bench, monkeypatch):
        bench.rounds(5)
        recorded = [(one.score, one.jobs["orders"]) for one in bench.journal.rounds()]
        assert len(recorded) == 5
        assert {(score, job.met, job.latency_s, job.utility) for score, job in recorded} == {(0, None, None, None)}
    bench.engine.latency_s = 8.0
    bench.rounds(1)
    assert bench.service.story("orders")[0].text.startswith("missed its intent from the start (latency 8 s")


def test_headline_counts_jobs_that_failed(bench):
    bench.loop = Loop(Settings(), "static")
    bench.start()
    bench.submit()
    bench.submit(name="other")
    bench.submit(name="paused")
    bench.service.jobs.pause("paused")
    bench.rounds(4)
    assert bench.service.status().problem == ""
    bench.engine.fail("other", "ValueError: no such tier")
    bench.rounds(1)
    status = bench.service.status()
    assert status.headline == "1 of 2 jobs meet their intents, 1 failed, 1 paused"
    assert status.problem == "other is failed"


def test_new_reason_of_a_running_job_is_told_as_what_it_is(bench):
    bench.submit()
    for reason in ("", "could not be read: a", "could not be read: b", ""):
        bench.engine.fail("orders", reason, JobPhase.RUNNING)
        bench.service.look()
    assert [text for _, text in bench.notes.told] == [
        "runs",
        "running: could not be read: a",
        "running: could not be read: b",
    ]


def test_engine_that_is_lost_is_not_healthy(bench):
    assert bench.service.health().sentence == "no round yet"
    bench.submit()
    bench.rounds(1)
    assert bench.service.health().healthy
    bench.engine.gone = "Java was killed"
    assert bench.service.health() == Health(False, "Java was killed", 0.0)
    assert bench.service.status().problem == "Java was killed"


def test_loop_that_stands_still_is_not_healthy(bench):
    bench.submit()
    bench.rounds(1)
    bench.now_s += 31
    assert bench.service.health().sentence == "no round has been completed for 31 s; readings are stale"


def test_clock_that_was_set_back_does_not_stop_decisions(bench):
    bench.engine.latency_s = 30.0
    bench.submit()
    bench.rounds(8)
    lanes = bench.engine.allocations["orders"].lanes["large"]
    bench.now_s -= 3600
    bench.start(engine=FakeEngine(latency_s=30.0, clock=bench.clock))
    assert any("lies 1 h in the future: the clock was set back" in text for _, text in bench.notes.told)
    bench.rounds(8)
    assert bench.engine.allocations["orders"].lanes["large"] > lanes


def test_status_is_read_while_jobs_come_and_go(bench):
    """Every request sees one state: a structure that changes while it is iterated would raise."""
    bench.engine.latency_s = 30.0
    trouble: list[BaseException] = []
    over = threading.Event()

    def ask() -> None:
        try:
            while not over.is_set():
                bench.service.status()
        except BaseException as error:
            trouble.append(error)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(6):
        bench.submit(name=f"job-{number}")
        bench.rounds(1)
        if number % 3 == 0:
            bench.service.jobs.remove(f"job-{number}")
    over.set()
    for reader in readers:
        reader.join()
    assert not trouble


def test_locks_of_jobs_are_forgotten_when_nobody_changes_them(bench):
    bench.submit()
    for name in ("orders", "nothing"):
        with suppress(UnknownJobError):
            bench.service.jobs.pause(name)
    assert dict(bench.service.jobs._locks) == {}
