"""An outage is not load: silent hosts, congestion that does not last, and epochs that do not end lead to no action."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import FAST, Settings
from headgate.controller import Controller
from headgate.core.alerts import AlertKind
from headgate.core.intents import Intent
from headgate.core.latency import Latency
from headgate.core.metrics import view_of
from headgate.core.model import (
    OUTSIDE,
    Action,
    HostReading,
    Job,
    JobAllocation,
    JobReading,
    OperatorReading,
    Outcome,
    Snapshot,
)
from headgate.core.windows import Windows
from headgate.scheduler.policies import Headgate
from headgate.scheduler.quarantine import quarantined
from tests.core.builders import LAW, PLAIN
from tests.examples import examples

QUICK = Settings(**FAST)  # type: ignore[arg-type]
HOSTS: tuple[HostReading, ...] = (HostReading("a", 2, 1.0), HostReading("b", 2, 1.0), HostReading("c", 2, 1.0))


def silent(host: HostReading, seconds: float = 9.0) -> HostReading:
    return dataclasses.replace(host, load=None, silent_s=seconds, suspect=True)


# -- congestion


@pytest.mark.parametrize(
    ("running", "waiting", "load", "congested"),
    [(4, 0, 1, False), (4, 3, 1, True), (1, 0, 3, True), (2, 1.5, None, False), (None, None, None, None)],
)
def test_host_is_congested_when_cores_or_slots_are_short(running, waiting, load, congested) -> None:
    assert HostReading("a", 2, load, slots=4, running=running, waiting=waiting).congested is congested


def test_nothing_is_known_of_the_load_of_a_silent_host() -> None:
    busy = HostReading("a", 2, 5.0, slots=2, running=2.0, waiting=3.0)
    assert busy.congested and silent(busy).congested is None


@LAW
@given(
    demands=st.lists(st.floats(0, 6), min_size=1, max_size=7), loads=st.lists(st.floats(0, 6), min_size=7, max_size=7)
)
def test_cluster_is_congested_only_if_it_was_throughout_the_window(demands: list[float], loads: list[float]) -> None:
    windows, at_s = Windows({}), 0.0
    for demand, load in zip(demands, loads, strict=False):
        at_s += 10.0
        hosts = (HostReading("a", 2, load, slots=2, running=min(2, demand), waiting=max(0, demand - 2)),)
        windows = windows.push(Snapshot(at_s, {}, {}, hosts), 60.0)
    seen = view_of(windows, Snapshot(at_s, {}, {}, hosts), {}, {}, Settings())
    lasting = min(demands) > 2 or min(loads[: len(demands)]) > 2
    assert seen.congested is lasting


def test_congestion_that_is_older_than_the_window_is_forgotten() -> None:
    windows = Windows({})
    for at_s in range(0, 200, 10):
        hosts = (HostReading("a", 2, 1.0 if at_s < 100 else 5.0),)
        windows = windows.push(Snapshot(float(at_s), {}, {}, hosts), 60.0)
    assert view_of(windows, Snapshot(190.0, {}, {}, hosts), {}, {}, Settings()).congested


# -- epochs that end, or do not


class Stuttering:
    """An engine whose jobs are always late and busy; each round says which of them end an epoch.

    As on Spark, a reading has the version of the last epoch that ended; the simulator's has that of the allocation (`at_once`).
    """

    def __init__(self, *names: str, at_once: bool = True) -> None:
        self.at_once = at_once
        self.shown = {name: (0, {"in": 1, "work": 1}) for name in names}
        self.at_s = 0.0
        self.running = {name: Job(name, PLAIN, Intent(latency="1s", worth=10)) for name in names}
        self.allocation = {name: JobAllocation({"in": 1, "work": 1}, 0.0) for name in names}
        self.version = dict.fromkeys(names, 0)
        self.epochs = dict.fromkeys(names, 0)
        self.as_given = dict.fromkeys(names, 0)
        self.ended_s = dict.fromkeys(names, 0.0)
        self.hosts = HOSTS
        self.lanes_on = dict.fromkeys(names, ("a", "b"))
        self.blind: list[str] = []
        """Jobs that got lanes although no epoch had ended since their last change."""
        self.grown: list[str] = []

    def jobs(self) -> Mapping[str, Job]:
        return self.running

    def turn(self, ending: Sequence[bool]) -> None:
        self.at_s += QUICK.round_s
        for name, ends in zip(self.running, ending, strict=True):
            self.epochs[name] += ends
            self.as_given[name] += ends
            self.ended_s[name] = self.at_s if ends else self.ended_s[name]
            if ends or self.at_once:
                self.shown[name] = (self.version[name], dict(self.allocation[name].lanes))

    def observe(self) -> Snapshot:
        return Snapshot(
            self.at_s, {name: self._reading(name) for name in self.running}, dict(self.allocation), self.hosts
        )

    def _reading(self, name: str) -> JobReading:
        done, (version, lanes) = self.epochs[name] * 1000.0, self.shown[name]
        busy = {operator: (0.9 * self.at_s,) * count for operator, count in lanes.items()}
        rows = {operator: (done / count,) * count for operator, count in lanes.items()}
        on = tuple(self.lanes_on[name][lane % 2] for lane in range(lanes["work"]))
        return JobReading(
            version=version,
            operators={
                "in": OperatorReading({OUTSIDE: done}, {"work": done}, busy["in"], rows["in"]),
                "work": OperatorReading({"in": done}, {}, busy["work"], rows["work"], hosts=on),
            },
            arrived={"in": 1000.0 * self.at_s},
            backlog=1000.0 * self.at_s - done,
            latency=Latency.weighted([(5.0, 1000.0)]) if self.ended_s[name] == self.at_s else None,
            in_epochs_s=self.at_s,
            epochs=self.epochs[name],
            epoch_age_s=self.at_s - self.ended_s[name],
            epochs_as_given=self.as_given[name],
        )

    def apply(self, action: Action) -> Outcome:
        for name, wanted in action.changes.items():
            if sum(wanted.lanes.values()) > sum(self.allocation[name].lanes.values()):
                self.grown.append(name)
                self.blind += [name] if self.as_given[name] == 0 else []
            self.allocation[name] = wanted
            self.version[name] += 1
            self.as_given[name] = 0
        return Outcome(True)


def run(engine: Stuttering, rounds: Sequence[Sequence[bool]], settings: Settings = QUICK) -> Controller:
    controller = Controller(engine, Headgate(settings), None, settings)
    for ending in rounds:
        engine.turn(ending)
        controller.round()
    return controller


def stretches(jobs: int) -> st.SearchStrategy[list[list[bool]]]:
    """Rounds in stretches, so that nothing ends for longer than the scheduler is observed."""
    stretch = st.tuples(st.lists(st.booleans(), min_size=jobs, max_size=jobs), st.integers(1, 25))
    return st.lists(stretch, min_size=1, max_size=5).map(
        lambda all_: [list(ends) for ends, n in all_ for _ in range(n)]
    )


@examples(15)
@given(
    rounds=stretches(2),
    at_once=st.booleans(),
    policy=st.sampled_from([None, "provision", "throughput:500/s"]),
    sizing=st.sampled_from(["model", "paper"]),
)
def test_without_a_finished_epoch_since_the_last_change_no_action_adds_lanes(
    rounds: list[list[bool]], at_once: bool, policy: str | None, sizing: str
) -> None:
    engine = Stuttering("one", "two", at_once=at_once)
    if policy is not None:
        engine.running["two"] = Job("two", PLAIN, Intent(policy=policy))
    run(engine, rounds, dataclasses.replace(QUICK, sizing=sizing))
    assert engine.blind == []


@pytest.mark.parametrize("policy", ["provision", "throughput:500/s"])
def test_job_that_regulates_itself_gets_no_lanes_before_an_epoch_has_ended(policy: str) -> None:
    engine = Stuttering("one")
    engine.running["one"] = Job("one", PLAIN, Intent(policy=policy))
    run(engine, [[False]] * 100)
    assert engine.grown == []


def test_action_is_not_followed_by_another_before_an_epoch_has_its_lanes() -> None:
    engine = Stuttering("one", at_once=False)
    run(engine, [[True]] * 12)
    assert engine.grown == ["one"]
    run(engine, [[False]] * 60)
    assert engine.grown == ["one"]


def test_job_gets_lanes_once_its_epochs_end() -> None:
    engine = Stuttering("one")
    run(engine, [[False]] * 30)
    assert engine.grown == []
    run(engine, [[True]] * 30)
    assert "one" in engine.grown


# -- silent hosts


@pytest.mark.parametrize(("more", "judged"), [(2, {"elsewhere"}), (1, set())])
def test_jobs_on_a_silent_host_are_not_judged_and_others_are_unless_much_is_silent(more: int, judged: set[str]) -> None:
    engine = Stuttering("there", "elsewhere")
    engine.lanes_on |= {"there": ("b", "b"), "elsewhere": ("c", "c")}
    run(engine, [[True, True]] * 3)
    others = tuple(HostReading(f"d-{number}", 2, 1.0) for number in range(more))
    engine.hosts = (HOSTS[0], silent(HOSTS[1]), HOSTS[2], *others)
    engine.grown.clear()
    controller = run(engine, [[True, True]] * 30)
    policy = controller.policy
    assert isinstance(policy, Headgate)
    assert set(engine.grown) == judged
    told = [alert.sentence for alert in policy.advice(controller.round()[0]) if alert.kind is AlertKind.SILENT_HOST]
    assert told[-1] == "there: not judged and keeps its lanes: host b has been silent for 9 s"
    assert len(told) == 2 - len(judged)


def test_job_is_not_judged_although_its_epochs_have_left_the_host_before_it_is_suspect() -> None:
    engine = Stuttering("there")
    engine.lanes_on["there"] = ("b", "b")
    controller = run(engine, [[True]] * 3)
    engine.lanes_on["there"] = ("a", "c")
    engine.hosts = (HOSTS[0], silent(HOSTS[1]), HOSTS[2])
    engine.turn([True])
    controller.round()
    assert controller.policy.state.quarantined["there"].host == "b"  # type: ignore[attr-defined]


def test_job_stays_unjudged_when_its_epochs_moved_on_and_its_window_begins_when_the_host_is_back() -> None:
    engine = Stuttering("there")
    engine.lanes_on["there"] = ("b", "b")
    controller = run(engine, [[True]] * 10)
    engine.hosts = (HOSTS[0], silent(HOSTS[1]), HOSTS[2])
    for number in range(20):
        engine.lanes_on["there"] = ("b", "b") if number < 3 else ("a", "c")
        engine.turn([True])
        assert controller.round()[1].action is None
    engine.hosts, back_s = HOSTS, engine.at_s
    while "there" in controller.policy.state.quarantined:  # type: ignore[attr-defined]
        engine.turn([True])
        view, decision = controller.round()
        assert decision.action is None
        left = controller.policy.state.quarantined.get("there")  # type: ignore[attr-defined]
        assert left is None or left.reason == "host b was silent; collecting new measurements"
        span = view.jobs["there"].span
        assert span is None or span.first.at_s >= back_s
    assert QUICK.warm_up_s <= engine.at_s - back_s <= QUICK.warm_up_s + QUICK.round_s


def test_job_whose_lanes_may_be_anywhere_counts_as_on_the_silent_host() -> None:
    engine = Stuttering("new")
    engine.turn([False])
    engine.hosts = (HOSTS[0], silent(HOSTS[1]), HOSTS[2])
    engine.lanes_on["new"] = ("", "")
    snapshot = engine.observe()
    reading = snapshot.jobs["new"]
    assert reading is not None
    bare = {name: dataclasses.replace(one, hosts=None) for name, one in reading.operators.items()}
    snapshot = dataclasses.replace(snapshot, jobs={"new": dataclasses.replace(reading, operators=bare)})
    seen = view_of(Windows({}).push(snapshot, 60.0), snapshot, engine.jobs(), {}, QUICK)
    assert quarantined({}, seen, QUICK)["new"].host == "b"
