"""VISP's algorithms and procedures, with the errata put right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import HostSettings
from headgate.core.hosts import Host, HostPhase, HostType, OperatorKey
from headgate.hosts.leases import (
    Budget,
    LeasedCluster,
    LeaseHost,
    Ledger,
    MoveLane,
    Need,
    ReleaseHost,
    StartLane,
    StopLane,
    apply_step,
)
from headgate.hosts.provision import (
    OperatorDemand,
    ProvisionState,
    ProvisionView,
    Terms,
    best_host,
    lanes_on_hosts,
    needs_lane,
    predict_next,
    spareness,
    step,
    suitability,
    threshold_step,
)

KIND = HostType("small", cores=2, memory_mb=2000, price=1.0, btu_s=600)
TERMS = Terms((KIND,))
A, B, C = ("job", "a"), ("job", "b"), ("job", "c")
NEEDS = {A: Need(1, 500), B: Need(0.5, 1000), C: Need(0.5, 500)}
IDLE = OperatorDemand(expected_s=1.0, duration_s=1.0, queue=0.0, busy_lanes=0.0)
LATE = OperatorDemand(expected_s=1.0, duration_s=3.0, queue=500.0, busy_lanes=1.0)
CALM = OperatorDemand(expected_s=1.0, duration_s=1.0, queue=10.0, busy_lanes=1.0)


def cluster(
    placed: dict[str, dict[OperatorKey, int]], leased_s: float = 0.0, phase: HostPhase = HostPhase.READY
) -> LeasedCluster:
    return LeasedCluster({name: Host(name, KIND, leased_s, phase) for name in placed}, NEEDS, placed)


def view(of: LeasedCluster, demands: dict[OperatorKey, OperatorDemand], at_s: float = 100.0) -> ProvisionView:
    ledger = Ledger()
    for host in of.hosts.values():
        ledger = ledger.leased(host.name, host.kind, host.leased_s)
    return ProvisionView(at_s, of, {A: CALM, B: CALM, C: CALM, **demands}, ledger)


# -- algorithm 1


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=12))
def test_trend_is_that_of_least_squares(durations):
    places = np.arange(1, len(durations) + 1)
    slope, start = np.polyfit(places, durations, 1)
    assert predict_next(durations) == pytest.approx(start + slope * (len(durations) + 1), abs=1e-6, rel=1e-6)


def test_flat_durations_predict_themselves():
    assert predict_next([0.5] * 5) == pytest.approx(
        0.5
    )  # with the listing's product instead of a difference it would not


@pytest.mark.parametrize(
    ("demand", "durations", "needed"),
    [
        (OperatorDemand(1.0, 1.5, 101.0), (), True),
        (OperatorDemand(1.0, 1.5, 100.0), (), False),
        (OperatorDemand(1.0, 0.9, 101.0), (0.5, 0.6, 0.7, 0.8, 0.95), True),
        (OperatorDemand(1.0, 0.9, 101.0), (0.95, 0.9, 0.85, 0.8, 0.75), False),
        (OperatorDemand(1.0, 0.9, 101.0), (0.6, 0.95), False),
        (OperatorDemand(1.0, None, 101.0), (2.0,) * 5, False),
        (OperatorDemand(1.0, 2.0, None), (2.0,) * 5, False),
    ],
    ids=["late", "late but nothing waits", "soon late", "getting better", "no trend yet", "no duration", "no queue"],
)
def test_operator_needs_a_lane_when_it_is_late_or_soon_will_be_and_rows_wait(demand, durations, needed):
    assert needs_lane(demand, durations, HostSettings()) is needed


# -- algorithm 2


def test_host_without_room_is_not_suitable_at_all():
    full = cluster({"h": {A: 2}})
    assert suitability(full, full.hosts["h"], A, HostSettings()) is None


def test_suitability_is_imbalance_over_room():
    empty = cluster({"h": {}})
    # one lane of a leaves 1/2 of the cores and 3/4 of the memory; it fits twice
    assert suitability(empty, empty.hosts["h"], A, HostSettings()) == pytest.approx(0.25 / 2)


def test_host_that_has_the_image_is_preferred():
    both = cluster({"with": {}, "without": {}})
    both = both.with_host(dataclasses.replace(both.hosts["with"], images=frozenset([A])))
    assert best_host(both, A, HostSettings()) == "with"
    assert best_host(both, A, HostSettings(), without=["with"]) == "without"


def test_host_on_its_way_out_takes_no_lanes():
    leaving = cluster({"h": {}}, phase=HostPhase.RELEASING)
    assert best_host(leaving, A, HostSettings()) is None


# -- algorithm 3


def spare(
    of: LeasedCluster, demands: dict[OperatorKey, OperatorDemand], operator: OperatorKey, **scalings: int
) -> float | None:
    state = ProvisionState(scalings={("job", name): count for name, count in scalings.items()})
    return spareness(operator, of, view(of, demands), state, HostSettings())


def test_last_lane_of_an_operator_is_never_spare():
    assert spare(cluster({"h": {A: 1}}), {A: IDLE}, A) is None


def test_where_all_have_as_many_lanes_and_none_was_scaled_the_terms_are_zero():
    found = spare(cluster({"h": {A: 2}, "i": {B: 2}, "j": {C: 2}}), {A: IDLE}, A)
    assert found == pytest.approx(-1.5 + 10)  # delay and empty queue only: 0/0 counts as 0


def test_many_lanes_speak_for_and_delay_and_changes_against_going():
    crowd = cluster({"h": {A: 2}, "i": {A: 1, C: 2}, "j": {B: 1}})
    calm = dataclasses.replace(CALM, busy_lanes=0.0)
    assert spare(crowd, {A: calm}, A) == pytest.approx(2.0 - 1.5)
    assert spare(crowd, {A: calm}, A, a=1, b=1) == pytest.approx(2.0 - 1.5 - 1.25)
    assert spare(crowd, {A: dataclasses.replace(calm, duration_s=2.0)}, A) == pytest.approx(2.0 - 3.0)


def test_lane_is_not_spare_when_the_others_could_not_do_its_work():
    pair = cluster({"h": {A: 2}})
    assert (spare(pair, {A: dataclasses.replace(IDLE, busy_lanes=0.8)}, A) or 0) > 0
    assert spare(pair, {A: dataclasses.replace(IDLE, busy_lanes=0.9)}, A) is None


def test_nothing_is_spare_that_was_not_measured():
    assert spare(cluster({"h": {A: 2}}), {A: OperatorDemand(1.0, None, 0.0)}, A) is None


# -- scaling up (figure 4)


def test_lane_goes_to_a_host_with_room():
    _, steps = step(ProvisionState(), view(cluster({"h": {A: 2}, "i": {C: 1, B: 1}}), {C: LATE}), TERMS)
    assert steps == (StartLane(C, "i"),)


def test_room_is_made_before_a_host_is_leased():
    full = cluster({"h": {A: 2}, "i": {A: 1, B: 1, C: 1}})
    _, steps = step(ProvisionState(), view(full, {A: IDLE, C: LATE}), TERMS)
    assert steps == (StopLane(A, "i"), StartLane(C, "i"))


def test_nothing_is_scaled_down_if_that_would_not_be_enough():
    full = cluster({"h": {A: 1, C: 2}, "i": {B: 1, C: 2}})
    needs = {**NEEDS, B: Need(1.9, 1900)}
    tight = dataclasses.replace(full, needs=needs, placed={"h": {A: 1, C: 2}, "i": {B: 1}})
    spares = {C: dataclasses.replace(IDLE, busy_lanes=0.0), B: LATE}
    _, steps = step(ProvisionState(), view(tight, spares), TERMS)
    assert steps == (LeaseHost("leased-1", KIND), StartLane(B, "leased-1"))


def test_two_lanes_when_very_many_rows_wait_but_none_while_two_are_on_their_way():
    roomy = cluster({"h": {C: 1}, "i": {A: 1, B: 1}})
    flood = dataclasses.replace(LATE, queue=1001.0)
    assert len(step(ProvisionState(), view(roomy, {C: flood}), TERMS)[1]) == 2
    waiting = dataclasses.replace(flood, starting=2)
    assert step(ProvisionState(), view(roomy, {C: waiting}), TERMS)[1] == ()


def test_cheapest_host_type_that_fits_is_leased():
    big = HostType("big", cores=8, memory_mb=8000, price=3.0, btu_s=600)
    tiny = HostType("tiny", cores=0.1, memory_mb=100, price=0.1, btu_s=600)
    full = cluster({"h": {A: 2}, "i": {B: 1, C: 1, A: 1}})
    _, steps = step(ProvisionState(), view(full, {A: LATE}), Terms((KIND, big, tiny)))
    assert steps[0] == LeaseHost("leased-1", big)  # 8 lanes for 3.0 are cheaper than 2 for 1.0


def test_budget_is_never_exceeded_however_late_everything_is():
    terms = Terms((KIND,), Budget(most_hosts=2))
    full = cluster({"h": {A: 2}, "i": {B: 1, C: 1, A: 1}})
    assert step(ProvisionState(), view(full, {A: LATE, B: LATE, C: LATE}), terms)[1] == ()


# -- releasing (figure 5)

ENDING_S = 540.0
"""Hosts leased at 0 have 60 s left of their BTU."""


def test_host_is_kept_as_long_as_it_is_paid():
    spare_host = cluster({"h": {A: 1, B: 1}, "i": {C: 1}})
    assert step(ProvisionState(), view(spare_host, {}, at_s=300.0), TERMS)[1] == ()


def test_at_the_end_of_its_btu_spare_lanes_stop_and_the_others_move():
    hosts = cluster({"h": {A: 1, C: 1}, "i": {B: 1, C: 1}})
    long_paid = hosts.with_host(dataclasses.replace(hosts.hosts["h"], leased_s=500.0))
    demands = {C: IDLE, B: dataclasses.replace(CALM, busy_lanes=0.5)}
    _, steps = step(ProvisionState(), view(long_paid, demands, ENDING_S), TERMS)
    assert set(steps) == {StopLane(C, "i"), MoveLane(B, "i", "h"), ReleaseHost("i")} and steps[-1] == ReleaseHost("i")


def test_host_is_paid_again_when_its_lanes_have_nowhere_to_go():
    full = cluster({"h": {A: 2}, "i": {B: 2}})
    kept = full.with_host(dataclasses.replace(full.hosts["h"], leased_s=500.0))
    assert step(ProvisionState(), view(kept, {}, ENDING_S), TERMS)[1] == ()


def test_last_host_stays():
    alone = dataclasses.replace(cluster({"h": {}}))
    assert step(ProvisionState(), view(alone, {}, ENDING_S), TERMS)[1] == ()


def test_nothing_is_begun_that_cannot_be_done_before_the_next_btu():
    hosts = cluster({"h": {A: 1}, "i": {B: 1}})
    later = hosts.with_host(dataclasses.replace(hosts.hosts["h"], leased_s=500.0))
    assert step(ProvisionState(), view(later, {}, 569.0), TERMS)[1] == (MoveLane(B, "i", "h"), ReleaseHost("i"))
    assert step(ProvisionState(), view(later, {}, 571.0), TERMS)[1] == ()  # a move takes 30 s


def test_lanes_do_not_move_to_a_host_that_is_not_up_yet():
    hosts = cluster({"h": {}, "i": {B: 1}})
    starting = hosts.with_host(dataclasses.replace(hosts.hosts["h"], leased_s=500.0, phase=HostPhase.STARTING))
    assert step(ProvisionState(), view(starting, {}, ENDING_S), TERMS)[1] == ()


# -- hosts that fail


def test_lanes_of_a_failed_host_come_up_elsewhere_and_it_is_no_longer_paid():
    hosts = cluster({"h": {A: 1}, "i": {B: 1}})
    dead = hosts.with_host(dataclasses.replace(hosts.hosts["i"], phase=HostPhase.FAILED))
    _, steps = step(ProvisionState(), view(dead, {}), TERMS)
    assert steps == (StopLane(B, "i"), ReleaseHost("i"), StartLane(B, "h"))


def test_failed_host_is_replaced_when_the_others_are_full():
    hosts = cluster({"h": {A: 2}, "i": {B: 1}})
    dead = hosts.with_host(dataclasses.replace(hosts.hosts["i"], phase=HostPhase.FAILED))
    _, steps = step(ProvisionState(leases=7), view(dead, {}), TERMS)
    assert steps[-2:] == (LeaseHost("leased-8", KIND), StartLane(B, "leased-8"))


def test_pool_is_left_alone_for_a_while_after_too_many_failures():
    state, at_s, leases = ProvisionState(), 100.0, 0
    for _ in range(6):
        hosts = cluster({"h": {A: 2}, f"leased-{state.leases}": {B: 1}})
        dead = hosts.with_host(dataclasses.replace(hosts.hosts[f"leased-{state.leases}"], phase=HostPhase.FAILED))
        state, steps = step(state, view(dead, {}, at_s), TERMS)
        leases += any(isinstance(one, LeaseHost) for one in steps)
        at_s += 20
    assert leases == TERMS.settings.lease_retries
    assert state.no_lease_until_s > at_s


# -- the threshold baseline


@pytest.mark.parametrize(("queue", "lanes"), [(250.0, 0), (251.0, 1), (1000.0, 1), (1001.0, 2)])
def test_threshold_adds_lanes_by_the_length_of_the_queue(queue, lanes):
    roomy = cluster({"h": {A: 1, C: 1}, "i": {B: 1}})
    _, steps = threshold_step(ProvisionState(), view(roomy, {C: OperatorDemand(1.0, 1.0, queue)}), TERMS)
    assert [one for one in steps if isinstance(one, StartLane)] == [StartLane(C, "h"), StartLane(C, "i")][:lanes]


def test_threshold_takes_a_lane_as_soon_as_nothing_waits_and_the_host_when_it_is_empty():
    hosts = cluster({"h": {A: 1, B: 1}, "i": {A: 1}})
    _, steps = threshold_step(ProvisionState(), view(hosts, {A: IDLE}, at_s=60.0), TERMS)
    assert steps == (StopLane(A, "i"), ReleaseHost("i"))


def test_threshold_keeps_the_last_lane_and_the_last_host():
    _, steps = threshold_step(ProvisionState(), view(cluster({"h": {A: 1}}), {A: IDLE}), TERMS)
    assert steps == ()


# -- laws

demand = st.builds(
    OperatorDemand,
    expected_s=st.just(1.0),
    duration_s=st.one_of(st.none(), st.floats(0.1, 10)),
    queue=st.one_of(st.none(), st.floats(0, 3000)),
    busy_lanes=st.one_of(st.none(), st.floats(0, 5)),
    starting=st.integers(0, 3),
)
lanes = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 2), max_size=3)


@given(
    st.lists(lanes, min_size=1, max_size=4),
    st.fixed_dictionaries({A: demand, B: demand, C: demand}),
    st.sampled_from([step, threshold_step]),
    st.floats(0, 1200),
    st.sampled_from([Budget(), Budget(most_hosts=3), Budget(most_per_hour=18)]),
)
def test_no_decision_breaks_a_promise(hosts, demands, decide, at_s, budget):
    placed = {f"h{number}": dict(on_host) for number, on_host in enumerate(hosts)}
    before = cluster(placed)
    if any(before.room(name).memory_mb < 0 or before.room(name).cores < 0 for name in placed):
        return
    seen = view(before, demands, at_s)
    _, steps = decide(ProvisionState(leases=9), seen, Terms((KIND,), budget))
    after, ledger = before, seen.ledger
    for one in steps:
        if isinstance(one, LeaseHost):
            assert budget.allows(ledger, KIND, at_s)
            ledger = ledger.leased(one.host, one.kind, at_s)
        if isinstance(one, StartLane):
            assert after.hosts[one.host].usable
        after = apply_step(after, one, at_s)
    assert after.usable()
    for operator in NEEDS:
        assert after.lanes(operator) >= min(1, before.lanes(operator))
    for host in after.hosts.values():
        assert host.usable or not after.on(host.name)
        assert after.room(host.name).memory_mb >= -1e-9 and after.room(host.name).cores >= -1e-9


def test_fixed_lanes_get_as_many_hosts_as_they_need():
    plan = lanes_on_hosts({A: 2, B: 2}, NEEDS, TERMS)
    assert len(plan.cluster.hosts) == 2
    assert {operator: plan.cluster.lanes(operator) for operator in (A, B)} == {A: 2, B: 2}
