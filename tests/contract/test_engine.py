"""The contract of an engine, for both execution models of the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise

import pytest

from headgate.core.intents import Intent
from headgate.core.latency import merge
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, Snapshot
from headgate.loads import Steady
from headgate.sim.engine import SimulatedEngine
from headgate.sim.run import engine_for
from headgate.sim.spec import Event, HostSpec, JobSpec, OperatorSpec, Scenario
from tests.contract import promises
from tests.contract.promises import counters, read

ENGINES = ("continuous", "epochs", "lanes")
SEED = 7


def page_load(name: str = "page-load") -> JobSpec:
    operators = (
        OperatorSpec("in"),
        OperatorSpec("parse", ("in",), cost_s=0.0004, selectivity=2.0, lanes=2),
        OperatorSpec("store", ("parse",), cost_s=0.00005, wait_s=0.0001, lanes=2),
    )
    return JobSpec(name, operators, Intent(latency="2s", worth=35), {"in": Steady(1500)}, pace_s=1.0)


def overloaded() -> JobSpec:
    operators = (
        OperatorSpec("left"),
        OperatorSpec("right"),
        OperatorSpec("join", ("left", "right"), cost_s=0.004, split=True),
        OperatorSpec("alerts", ("join",)),
        OperatorSpec("archive", ("join",), weight=0.5),
    )
    loads = {"left": Steady(200), "right": Steady(300)}
    return JobSpec("overloaded", operators, Intent(juice=0.9), loads, pace_s=2.0)


def scenario(engine: str, *events: Event, jobs: tuple[JobSpec, ...] = ()) -> Scenario:
    hosts = (HostSpec("host-1", 2, 8), HostSpec("host-2", 2, 8))
    return Scenario(
        "contract", "", "", engine, 3600.0, 0.0, hosts, jobs or (page_load(), overloaded()), tuple(events)
    )  # fmt: skip


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(kind: str) -> SimulatedEngine:
    return engine_for(scenario(kind), SEED)


def action(lanes: int, job: str = "page-load", pace_s: float | None = None) -> Action:
    allocation = JobAllocation({"in": 1, "parse": lanes, "store": lanes}, pace_s)
    return Action(ActionKind.RECONFIGURE, job, {job: allocation}, Cause("parse was busy"))


def more(engine: SimulatedEngine, lanes: int) -> Action:
    """An action that fits the engine: with a pace where it has epochs."""
    return action(lanes, pace_s=engine.observe().allocation["page-load"].pace_s)


def after(engine: SimulatedEngine, seconds: float) -> Snapshot:
    engine.sleep_until(engine.now_s() + seconds)
    return engine.observe()


def without_latency(snapshot: Snapshot) -> Snapshot:
    jobs = {
        name: None if reading is None else dataclasses.replace(reading, latency=None)
        for name, reading in snapshot.jobs.items()
    }
    return dataclasses.replace(snapshot, jobs=jobs, hosts=())


# -- observe


def test_snapshot_shows_all_jobs_with_their_operators_lanes_and_hosts(engine: SimulatedEngine) -> None:
    snapshot = after(engine, 10)
    promises.snapshot_is_whole(engine, snapshot)
    assert set(snapshot.jobs) == {"page-load", "overloaded"}
    assert {host.name for host in snapshot.hosts} == {"host-1", "host-2"}
    for name, job in engine.jobs().items():
        assert set(snapshot.allocation[name].lanes) == set(job.graph.operators)


def test_observing_takes_no_time_and_reads_the_same_again(engine: SimulatedEngine) -> None:
    first = after(engine, 60)
    again = engine.observe()
    assert again.at_s == first.at_s == engine.now_s() == 60
    assert without_latency(again) == without_latency(first)


@pytest.mark.parametrize(
    "kind",
    [
        "continuous",
        "epochs",
    ],
)
def test_load_of_hosts_reads_the_same_again(engine: SimulatedEngine) -> None:
    first = after(engine, 60)
    assert all(host.load for host in first.hosts)
    assert engine.observe().hosts == first.hosts


def test_observing_often_does_not_change_what_happens(kind: str) -> None:
    often, once = engine_for(scenario(kind), SEED), engine_for(scenario(kind), SEED)
    for _ in range(29):
        after(often, 10)
    left, right = after(often, 10), after(once, 300)
    for name in left.jobs:
        assert counters(read(left, name)) == pytest.approx(counters(read(right, name)), rel=1e-6)


def test_latency_of_each_row_is_told_once(kind: str) -> None:
    often, once = engine_for(scenario(kind), SEED), engine_for(scenario(kind), SEED)
    parts = merge(read(after(often, 10), "page-load").latency for _ in range(30))
    whole = read(after(once, 300), "page-load").latency
    assert parts is not None and whole is not None
    assert (parts.rows, parts.total_s) == pytest.approx((whole.rows, whole.total_s), rel=1e-6)
    assert often.observe().jobs["page-load"] is not None
    assert read(often.observe(), "page-load").latency is None


def test_same_seed_gives_the_same_readings(kind: str) -> None:
    first, second, other = (after(engine_for(scenario(kind), seed), 120) for seed in (SEED, SEED, SEED + 1))
    assert first == second
    assert first != other


def rounds(engine: SimulatedEngine) -> Iterator[Snapshot]:
    for number in range(30):
        yield after(engine, 10)
        if number % 6 == 3:
            engine.apply(more(engine, 2 + number // 6))


def test_counters_never_shrink(engine: SimulatedEngine) -> None:
    for before, now in pairwise(rounds(engine)):
        for name in now.jobs:
            promises.counters_only_grow(read(before, name), read(now, name))


def test_no_row_is_processed_before_it_was_sent(engine: SimulatedEngine) -> None:
    for snapshot in rounds(engine):
        for name, job in engine.jobs().items():
            promises.no_row_is_processed_before_it_was_sent(job, read(snapshot, name))


def test_backlog_is_what_arrived_and_was_sent_but_not_processed(engine: SimulatedEngine) -> None:
    reading = read(after(engine, 300), "overloaded")
    assert reading.backlog is not None and reading.backlog > 1000
    promises.backlog_is_what_was_not_processed(reading)


def test_only_an_engine_with_epochs_counts_them(kind: str, engine: SimulatedEngine) -> None:
    snapshot = after(engine, 60)
    reading, pace_s = read(snapshot, "page-load"), snapshot.allocation["page-load"].pace_s
    if kind == "epochs":
        assert pace_s == 1.0
        assert reading.epochs is not None and 50 <= reading.epochs <= 61
        assert reading.in_epochs_s is not None and 0 < reading.in_epochs_s <= 60
    else:
        assert (reading.epochs, reading.in_epochs_s, pace_s) == (None, None, None)


def test_only_an_engine_with_epochs_tells_how_long_they_took(kind: str, engine: SimulatedEngine) -> None:
    reading = read(after(engine, 60), "page-load")
    found = engine.epochs("page-load")
    if kind != "epochs":
        assert found == ()
        return
    assert reading.epochs is not None and reading.in_epochs_s is not None
    assert [one.number for one in found] == list(range(reading.epochs))[-len(found) :]
    assert 45 <= len(found) <= 50
    assert all(one.started_s + one.took_s <= later.started_s + 1e-6 for one, later in pairwise(found))
    assert sum(one.took_s for one in found) <= reading.in_epochs_s + 1e-6


# -- apply


def test_next_snapshot_shows_what_was_applied(engine: SimulatedEngine) -> None:
    wanted = more(engine, 5)
    assert engine.apply(wanted).applied
    snapshot = after(engine, 10)
    assert snapshot.allocation["page-load"] == wanted.changes["page-load"]
    assert len(read(snapshot, "page-load").operators["parse"].busy_s) == 5


def test_version_grows_with_each_other_allocation_of_the_job_it_is_for(engine: SimulatedEngine) -> None:
    versions = []
    for lanes in (3, 4, 2):
        engine.apply(more(engine, lanes))
        snapshot = after(engine, 20)
        versions.append((read(snapshot, "page-load").version, read(snapshot, "overloaded").version))
    mine, others = zip(*versions, strict=True)
    assert sorted(set(mine)) == list(mine)
    assert len(set(others)) == 1


def test_applying_twice_changes_nothing(kind: str) -> None:
    once, twice = engine_for(scenario(kind), SEED), engine_for(scenario(kind), SEED)
    for engine in (once, twice):
        after(engine, 60)
        assert engine.apply(more(engine, 4)).applied
    assert twice.apply(more(twice, 4)).applied
    assert without_latency(once.observe()) == without_latency(twice.observe())
    after(once, 20), after(twice, 20)
    assert twice.apply(more(twice, 4)).applied
    assert without_latency(after(once, 60)) == without_latency(after(twice, 60))


def test_more_lanes_let_an_overloaded_job_keep_up(engine: SimulatedEngine) -> None:
    before = read(after(engine, 120), "overloaded").backlog
    has = engine.observe().allocation["overloaded"]
    lanes = dataclasses.replace(has, lanes={**has.lanes, "join": 4})
    engine.apply(Action(ActionKind.RECONFIGURE, "overloaded", {"overloaded": lanes}, Cause("join was busy")))
    now = read(after(engine, 900), "overloaded").backlog
    assert before is not None and now is not None
    assert now < before


def test_unknown_job_is_refused_and_nothing_is_changed(engine: SimulatedEngine) -> None:
    before = after(engine, 30)
    promises.unknown_job_is_refused_and_nothing_is_changed(engine, more(engine, 6))
    assert without_latency(engine.observe()) == without_latency(before)


# -- jobs that come, go and change


def test_removed_job_vanishes(kind: str) -> None:
    engine = engine_for(scenario(kind, Event(60, "remove", "page-load")), SEED)
    assert "page-load" in after(engine, 50).jobs
    snapshot = after(engine, 10)
    assert set(snapshot.jobs) == set(snapshot.allocation) == set(engine.jobs()) == {"overloaded"}
    assert not engine.apply(action(4)).applied
    assert set(after(engine, 60).jobs) == {"overloaded"}


@pytest.mark.parametrize(
    "kind",
    [
        "continuous",
        "epochs",
    ],
)
def test_last_job_may_go_and_another_may_come(kind: str) -> None:
    events = (Event(30, "remove", "page-load"), Event(60, "add", job=page_load("new")))
    engine = engine_for(scenario(kind, *events, jobs=(page_load(),)), SEED)
    assert after(engine, 40).jobs == {}
    assert set(after(engine, 40).jobs) == {"new"}


def test_job_that_comes_starts_from_nothing(kind: str) -> None:
    engine = engine_for(scenario(kind, Event(55, "add", job=page_load("new"))), SEED)
    assert "new" not in after(engine, 50).jobs
    reading = read(after(engine, 10), "new")
    assert 0 < reading.arrived["in"] <= 1500 * 1.3 * 5
    assert set(engine.jobs()["new"].graph.operators) == {"in", "parse", "store"}


def test_job_that_comes_back_under_its_name_starts_from_nothing(kind: str) -> None:
    events = (Event(100, "remove", "page-load"), Event(125, "add", job=page_load()))
    engine = engine_for(scenario(kind, *events), SEED)
    assert read(after(engine, 90), "page-load").arrived["in"] > 100_000
    assert read(after(engine, 40), "page-load").arrived["in"] <= 1500 * 1.3 * 5


def test_other_jobs_go_on_when_one_goes(kind: str) -> None:
    engine = engine_for(scenario(kind, Event(60, "remove", "page-load")), SEED)
    before = counters(read(after(engine, 50), "overloaded"))
    now = counters(read(after(engine, 30), "overloaded"))
    assert all(now[key] >= rows for key, rows in before.items())
    assert now["arrived left"] > before["arrived left"]


def test_changed_intent_shows_among_the_jobs(kind: str) -> None:
    wanted = Intent(latency="500ms", worth=90)
    engine = engine_for(scenario(kind, Event(30, "intent", "page-load", intent=wanted)), SEED)
    before = read(after(engine, 20), "page-load").version
    assert engine.jobs()["page-load"].intent != wanted
    now = read(after(engine, 20), "page-load").version
    assert engine.jobs()["page-load"].intent == wanted
    assert now == before


# -- the link


def test_jobs_are_listed_but_not_read_while_the_link_is_down(kind: str) -> None:
    engine = engine_for(scenario(kind, Event(60, "fail-link"), Event(120, "restore-link")), SEED)
    before = after(engine, 50)
    dark = after(engine, 20)
    assert dark.jobs == {"page-load": None, "overloaded": None}
    assert set(dark.allocation) == {"page-load", "overloaded"}
    assert all(host.load is None for host in dark.hosts)
    light = after(engine, 60)
    for name in light.jobs:
        assert sum(read(light, name).arrived.values()) > sum(read(before, name).arrived.values())


def test_outage_of_the_link_does_not_change_what_happens(kind: str) -> None:
    dark = engine_for(scenario(kind, Event(60, "fail-link"), Event(120, "restore-link")), SEED)
    light = engine_for(scenario(kind), SEED)
    left, right = after(dark, 180), after(light, 180)
    for name in left.jobs:
        assert counters(read(left, name)) == pytest.approx(counters(read(right, name)), rel=1e-6)


# -- hosts


def processed(engine: SimulatedEngine, from_s: float, until_s: float) -> float:
    first, last = (read(after(engine, at_s - engine.now_s()), "page-load") for at_s in (from_s, until_s))
    return last.operators["store"].processed["parse"] - first.operators["store"].processed["parse"]


def test_job_goes_on_after_all_hosts_were_dead_for_a_while(kind: str) -> None:
    events = (Event(60, "fail-host"), Event(160, "restore-host"))
    assert processed(engine_for(scenario(kind, *events), 1), 300, 360) > 0


def test_restored_host_takes_lanes_again(kind: str) -> None:
    names = [host.name for host in scenario(kind).hosts]
    events = (Event(60, "fail-host", names[0]), Event(160, "restore-host", names[0]))
    engine = engine_for(scenario(kind, *events), 1)
    assert names[0] not in {host.name for host in after(engine, 120).hosts}
    loads = {host.name: host.load or 0.0 for host in after(engine, 180).hosts}
    assert loads[names[0]] > 0.2 * max(loads.values()), loads
