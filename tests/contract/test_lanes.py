"""What engines promise about single lanes: where they run, what they get, what moves them, and what holds back the sources."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, OperatorReading, spread_evenly
from headgate.loads import Steady
from headgate.sim import constants
from headgate.sim.engine import SimulatedEngine
from headgate.sim.models.keys import lane_shares
from headgate.sim.run import engine_for
from headgate.sim.spec import Event, Generated, HostSpec, JobSpec, OperatorSpec, Scenario
from tests.contract.promises import read

ENGINES = ("epochs", "lanes")


def counting(rate: float = 2000.0, lanes: int = 4, **changes: object) -> JobSpec:
    operators = (
        OperatorSpec("in", cost_s=0.0004, lanes=2),
        OperatorSpec("count", ("in",), cost_s=0.001, lanes=lanes, slices=32, row_kb=1.0),
    )
    job = JobSpec("job", operators, Intent(juice=0.9), {"in": Steady(rate)}, pace_s=1.0)
    return dataclasses.replace(job, **changes)  # type: ignore[arg-type]


def engine(kind: str, job: JobSpec, *events: Event, seed: int = 1) -> SimulatedEngine:
    hosts = tuple(HostSpec(f"host-{number}", 8, 8) for number in (1, 2, 3))
    return engine_for(Scenario("lanes", "", "", kind, 3600.0, 0.0, hosts, (job,), tuple(events)), seed)


def lanes_after(engine_: SimulatedEngine, seconds: float) -> OperatorReading:
    engine_.sleep_until(engine_.now_s() + seconds)
    return read(engine_.observe(), "job").operators["count"]


def apply(engine_: SimulatedEngine, **changes: object) -> None:
    wanted = dataclasses.replace(engine_.observe().allocation["job"], **changes)  # type: ignore[arg-type]
    assert engine_.apply(Action(ActionKind.RECONFIGURE, "job", {"job": wanted}, Cause("a test"))).applied


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_lane_says_where_it_runs_and_what_it_did(kind: str) -> None:
    found = lanes_after(engine(kind, counting()), 120)
    assert found.lane_rows is not None and found.hosts is not None and found.slice_rows is not None
    assert len(found.lane_rows) == len(found.hosts) == len(found.busy_s) == 4
    assert set(found.hosts) == {"host-1", "host-2", "host-3"}
    assert (
        sum(found.lane_rows) == pytest.approx(sum(found.slice_rows)) == pytest.approx(found.processed["in"], rel=0.05)
    )


def test_lanes_are_alike_unless_something_is_wrong(kind: str) -> None:
    found = lanes_after(engine(kind, counting()), 120)
    assert found.lane_rows is not None
    assert max(found.lane_rows) < 1.1 * min(found.lane_rows)
    assert max(found.busy_s) < 1.2 * min(found.busy_s)


def test_slow_lane_takes_longer_for_its_rows_and_gets_as_many(kind: str) -> None:
    found = lanes_after(engine(kind, counting(1000.0), Event(0, "slow-lane", "job", 0.5, "count", 1)), 120)
    assert found.lane_rows is not None
    per_row = [busy / rows for busy, rows in zip(found.busy_s, found.lane_rows, strict=True)]
    assert per_row[1] == pytest.approx(2 * per_row[0], rel=0.15)
    assert found.lane_rows[1] == pytest.approx(found.lane_rows[0], rel=0.1)


def test_slow_lane_is_as_fast_as_the_others_once_it_runs_elsewhere(kind: str) -> None:
    job = engine(kind, counting(1000.0), Event(0, "slow-lane", "job", 0.5, "count", 1))
    slow = (lanes_after(job, 60).hosts or ())[1]
    apply(job, avoided=(slow,))
    before, now = lanes_after(job, 30), lanes_after(job, 60)
    assert now.hosts is not None and slow not in now.hosts
    spent = [b - a for a, b in zip(before.busy_s, now.busy_s, strict=True)]
    assert max(spent) < 1.2 * min(spent)


def test_lanes_have_nowhere_to_go_if_all_hosts_are_avoided(kind: str) -> None:
    job = engine(kind, counting())
    apply(job, avoided=("host-1", "host-2", "host-3"))
    assert set(lanes_after(job, 60).hosts or ()) <= {"host-1", "host-2", "host-3"}


def test_slow_host_slows_the_lanes_on_it(kind: str) -> None:
    found = lanes_after(engine(kind, counting(1000.0), Event(0, "slow-host", "host-2", 0.5)), 120)
    assert found.hosts is not None
    on_it = [busy for busy, host in zip(found.busy_s, found.hosts, strict=True) if host == "host-2"]
    others = [busy for busy, host in zip(found.busy_s, found.hosts, strict=True) if host != "host-2"]
    assert min(on_it) > 1.5 * max(others)


def test_skew_gives_one_lane_more_rows(kind: str) -> None:
    found = lanes_after(engine(kind, counting(1000.0), Event(0, "skew", "job", 0.2, "count")), 120)
    assert found.lane_rows is not None and found.slice_rows is not None
    hot, *others = sorted(found.lane_rows, reverse=True)
    assert hot / (sum(others) / 3) == pytest.approx((0.2 + 0.8 / 4) / (0.8 / 4), rel=0.1)
    assert max(found.slice_rows) / sum(found.slice_rows) == pytest.approx(0.2 + 0.8 / 32, rel=0.1)


def test_reassigned_slices_take_their_rows_along(kind: str) -> None:
    job = engine(kind, counting(1000.0))
    lanes_after(job, 60)
    apply(job, slices={"count": (0,) * 24 + (1,) * 8})
    before, now = lanes_after(job, 30), lanes_after(job, 60)
    assert before.lane_rows is not None and now.lane_rows is not None
    got = [b - a for a, b in zip(before.lane_rows, now.lane_rows, strict=True)]
    assert got[0] == pytest.approx(3 * got[1], rel=0.1)
    assert got[2] == got[3] == 0


def test_assignment_for_another_number_of_lanes_counts_as_none() -> None:
    weights = [0.25] * 4
    assert lane_shares(weights, 2, (0, 1, 2, 3)) == lane_shares(weights, 2, None) == [0.5, 0.5]
    assert lane_shares(weights, 2, (0, 0)) == [0.5, 0.5]
    assert spread_evenly(4, 2) == (0, 1, 0, 1)


# -- backpressure (Heron, as in Dhalion section 3.2)


def held(rate: float, *events: Event, lanes: int = 4) -> tuple[float, OperatorReading]:
    job = engine("lanes", counting(rate, lanes), *events)
    found = lanes_after(job, 1200)
    seconds = read(job.observe(), "job").held_s
    assert seconds is not None
    return seconds / 1200, found


def test_job_that_keeps_up_is_never_held_back() -> None:
    share, found = held(3500.0)
    assert share == 0 == max(found.held_s or (1,))


def test_queue_above_the_high_water_mark_holds_back_the_source_and_stays_bounded() -> None:
    job = engine("lanes", counting(8000.0))
    most = 0.0
    for _ in range(120):
        most = max(most, *(lanes_after(job, 10).queued or ()))
    reading = read(job.observe(), "job")
    high_rows = constants.HIGH_WATER_MB * 1024
    assert reading.held_s is not None and reading.held_s > 0
    assert 0.95 * high_rows <= most < 1.1 * high_rows
    assert reading.operators["count"].processed["in"] == pytest.approx(4000 * 1200, rel=0.1)


def test_one_slow_lane_makes_all_lanes_go_at_its_pace() -> None:
    events = (Event(0, "slow-lane", "job", 0.25, "count", 2),)
    share, found = held(3500.0, *events)
    assert found.held_s is not None and found.lane_rows is not None and found.queued is not None
    assert share > 0.5
    assert [lane for lane, seconds in enumerate(found.held_s) if seconds > 0] == [2]
    assert max(found.lane_rows) < 1.5 * min(found.lane_rows)
    assert found.queued[2] > 5 * max(found.queued[lane] for lane in (0, 1, 3))


def test_generated_rows_are_as_many_as_the_source_has_lanes_for() -> None:
    operators = (OperatorSpec("in", cost_s=0.001, lanes=3), OperatorSpec("count", ("in",), cost_s=0.0001))
    job = JobSpec("job", operators, Intent(policy="provision"), {"in": Generated()})
    made = engine("lanes", job)
    made.sleep_until(600)
    reading = read(made.observe(), "job")
    assert reading.arrived["in"] == reading.operators["in"].processed["*"] == pytest.approx(3000 * 600, rel=0.05)


def test_lanes_that_stay_keep_their_places_when_others_come() -> None:
    job = engine("lanes", counting())
    before = lanes_after(job, 60).hosts
    has = job.observe().allocation["job"]
    apply(job, lanes={**has.lanes, "count": 7})
    now = lanes_after(job, 60).hosts
    assert before is not None and now is not None
    assert now[:4] == before


def test_allocation_of_before_can_still_be_written_without_slices_and_hosts() -> None:
    assert JobAllocation({"in": 1}) == JobAllocation({"in": 1}, None, {}, ())
