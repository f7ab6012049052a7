"""Hosts for intents: a host must earn its price."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.config import HostSettings, Settings
from headgate.core.hosts import Host, HostPhase, HostType
from headgate.hosts.leases import Budget, LeasedCluster, LeaseHost, Ledger, Need, ReleaseHost, StartLane, StopLane
from headgate.hosts.provision import ProvisionState, Terms
from headgate.hosts.worth import at_stake, points_gained
from headgate.sim.lane_leasing import LeaseView, lanes_needed, spare_lanes, step
from tests.core.builders import Seen, job_view, view

KIND = HostType("small", cores=4, memory_mb=4000, price=1.0, btu_s=600)
NEED = Need(1, 1000)
LATE = Seen("late", latency_s=4.0, worth=40, busy=1.0, lanes=3)
FINE = Seen("fine", latency_s=0.5, worth=40, busy=0.2, lanes=3)
SETTINGS = Settings()


def lease_view(*seen: Seen, unplaced: dict[tuple[str, str], int], at_s: float = 600.0, hosts: int = 2) -> LeaseView:
    """One host per job, with all its lanes."""
    placed = {f"h{n}": {(one.name, "in"): 1, (one.name, "work"): one.lanes} for n, one in enumerate(seen)}
    placed |= {f"h{n}": {} for n in range(len(seen), hosts)}
    leased = {name: Host(name, KIND, at_s - 100, HostPhase.READY) for name in placed}
    needs = {(one.name, operator): NEED for one in seen for operator in ("in", "work")}
    ledger = Ledger()
    for name in leased:
        ledger = ledger.leased(name, KIND, at_s - 100)
    return LeaseView(view(at_s, *seen), LeasedCluster(leased, needs, placed), ledger, unplaced)


def decide(now: LeaseView, point_price: float = 1.0, budget: Budget | None = None) -> tuple[object, ...]:
    terms = Terms((KIND,), budget or Budget(), HostSettings(point_price=point_price))
    return step(ProvisionState(leases=5), now, terms, SETTINGS)[1]


WANTED = {("late", "work"): 2}


def test_host_is_leased_for_lanes_without_room_if_it_earns_its_price():
    now = lease_view(LATE, unplaced=WANTED, hosts=1)  # 30 points missed, a host costs 6 an hour
    assert decide(now, point_price=0.2) == (LeaseHost("leased-6", KIND), *[StartLane(("late", "work"), "leased-6")] * 2)
    assert decide(now, point_price=0.199) == ()


def test_nothing_is_leased_while_the_scheduler_asks_for_nothing():
    assert decide(lease_view(LATE, unplaced={}, hosts=1), point_price=100.0) == ()


def test_nothing_is_leased_beyond_the_budget():
    now = lease_view(LATE, unplaced=WANTED, hosts=1)
    assert decide(now, 100.0, Budget(most_hosts=1)) == ()
    assert decide(now, 100.0, Budget(most_per_hour=11.9)) == ()
    assert len(decide(now, 100.0, Budget(most_per_hour=12.0))) == 3


def test_spare_lanes_of_others_make_room_before_a_host_is_leased():
    now = lease_view(FINE, LATE, unplaced={("late", "work"): 1})
    assert decide(now, point_price=100.0) == (StopLane(("fine", "work"), "h0"), StartLane(("late", "work"), "h0"))


def test_job_that_was_set_aside_gets_the_lanes_that_its_input_needs():
    now = lease_view(LATE, unplaced={}, hosts=1)
    aside = dataclasses.replace(now, set_aside=frozenset(["late"]))
    assert decide(aside, point_price=100.0)[0] == LeaseHost("leased-6", KIND)


def test_host_is_released_when_the_intents_hold_without_it():
    now = lease_view(FINE, dataclasses.replace(FINE, name="idle", busy=0.01), unplaced={})
    ending = {name: dataclasses.replace(host, leased_s=now.view.at_s - 540) for name, host in now.cluster.hosts.items()}
    now = dataclasses.replace(now, cluster=dataclasses.replace(now.cluster, hosts=ending))
    steps = decide(now)
    assert sum(isinstance(one, ReleaseHost) for one in steps) == 1


def test_host_stays_when_a_job_misses_its_intent():
    now = lease_view(LATE, dataclasses.replace(LATE, name="late too"), unplaced={})
    ending = {name: dataclasses.replace(host, leased_s=now.view.at_s - 540) for name, host in now.cluster.hosts.items()}
    assert decide(dataclasses.replace(now, cluster=dataclasses.replace(now.cluster, hosts=ending))) == ()


def test_lanes_beyond_what_the_input_needs_are_spare_but_never_the_last():
    now = lease_view(FINE, unplaced={})
    spare = spare_lanes(now.view, Terms((KIND,)), SETTINGS)
    assert spare(("fine", "work"), now.cluster) == 2  # 3 lanes, 0.6 of one at work
    assert spare(("fine", "in"), now.cluster) == 0
    assert spare_lanes(view(600.0, LATE), Terms((KIND,)), SETTINGS)(("late", "work"), now.cluster) is None


def test_lanes_needed_follow_the_work_and_are_those_it_has_where_nothing_was_measured():
    busy = job_view(dataclasses.replace(FINE, busy=0.9))
    assert lanes_needed(busy, "work", 0.85, SETTINGS) == 4
    assert lanes_needed(dataclasses.replace(busy, span=None), "work", 0.85, SETTINGS) == 3


def test_growing_backlog_puts_more_at_stake_than_is_lost_now():
    calm, growing = job_view(LATE), job_view(dataclasses.replace(LATE, waiting=9000, draining_rows_s=-100))
    assert at_stake(calm, 300.0, SETTINGS) == pytest.approx(30.0)
    assert at_stake(growing, 300.0, SETTINGS) > 35.0
    assert at_stake(growing, 0.0, SETTINGS) == pytest.approx(30.0)


def test_gain_is_in_proportion_to_the_lanes_that_find_room():
    late = view(600.0, LATE)
    assert points_gained({"late": 4}, {"late": 3}, late, 0.0, SETTINGS) == pytest.approx(30.0 / 4)
    assert points_gained({"late": 4}, {}, late, 0.0, SETTINGS) == pytest.approx(30.0)
