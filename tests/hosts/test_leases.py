from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.hosts import Host, HostType, btus_begun
from headgate.errors import HostError
from headgate.hosts.leases import Budget, LeasedCluster, Ledger, Need, bill, check_needs

SMALL = HostType("small", cores=3, memory_mb=5120, price=2.0, btu_s=600)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"btu_s": 0}, 'host type "small": btu_s is 0; it must be above 0'),
        ({"btu_s": -60}, 'host type "small": btu_s is -60; it must be above 0'),
        ({"btu_s": math.inf}, 'host type "small": btu_s is inf; it must be above 0'),
        ({"btu_s": math.nan}, 'host type "small": btu_s is nan; it must be above 0'),
        ({"cores": 0}, 'host type "small": cores is 0; it must be above 0'),
        ({"memory_mb": -1}, 'host type "small": memory_mb is -1; it must be above 0'),
        ({"price": -1}, 'host type "small": price is -1; it must be at least 0'),
        ({"startup_s": -1}, 'host type "small": startup_s is -1; it must be at least 0'),
    ],
)
def test_host_type_that_cannot_be_is_refused_with_a_sentence(values, sentence):
    with pytest.raises(HostError, match=sentence):
        HostType(**{"name": "small", "cores": 3, "memory_mb": 5120, "price": 1, "btu_s": 600, **values})


def test_lane_that_fits_on_no_host_type_is_refused_with_a_sentence():
    with pytest.raises(HostError) as refusal:
        check_needs({("oee", "parse"): Need(4, 100)}, [SMALL])
    assert str(refusal.value) == (
        'job "oee": a lane of operator "parse" needs 4 cores and 100 MB, which fits on no host type;'
        ' the closest, "small", has 3 cores and 5120 MB'
    )
    check_needs({("oee", "parse"): Need(3, 5120)}, [SMALL])


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (Budget(most_hosts=0), "the budget allows 0 hosts; jobs need at least 1"),
        (Budget(most_per_hour=11), 'the budget is 11 per hour, but one host of the cheapest type, "small", costs 12'),
    ],
)
def test_budget_below_one_host_is_refused_with_a_sentence(budget, sentence):
    with pytest.raises(HostError, match=sentence):
        budget.check([SMALL])


def test_budget_counts_what_is_paid_even_if_it_is_not_used():
    budget = Budget(most_per_hour=12)
    held = Ledger().leased("a", SMALL, 0)
    given_back = held.released("a", 60)
    assert not budget.allows(held, SMALL, 60)
    assert not budget.allows(given_back, SMALL, 60)
    assert budget.allows(given_back, SMALL, 600)


def test_budget_of_hosts_counts_those_that_are_held():
    ledger = Ledger().leased("a", SMALL, 0).leased("b", SMALL, 0)
    assert not Budget(most_hosts=2).allows(ledger, SMALL, 10)
    assert Budget(most_hosts=2).allows(ledger.released("b", 5), SMALL, 10)


prices = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(prices, st.integers(1, 8), st.integers(0, 40))
def test_hosts_that_are_not_beyond_a_budget_are_within_it_and_the_oldest_stays(prices, most_hosts, most_per_hour):
    kinds = [HostType(f"at-{price}", cores=1, memory_mb=512, price=price, btu_s=3600) for price in prices]
    hosts = [Host(str(number), kind, 0.0) for number, kind in enumerate(kinds)]
    beyond = Budget(most_hosts, most_per_hour).beyond(hosts)
    kept = [host for host in hosts if host not in beyond]
    assert kept[0] is hosts[0] and len(kept) <= most_hosts
    assert sum(host.kind.price_per_hour for host in kept) <= max(most_per_hour, prices[0]) + 1e-6


def test_no_host_is_beyond_a_budget_without_limits():
    assert not Budget().beyond([Host(name, SMALL, 0.0) for name in "abc"])


def test_begun_btu_is_paid_in_full():
    ledger = Ledger().leased("a", SMALL, 0).leased("b", SMALL, 100).released("a", 590).released("b", 701)
    found = bill(ledger, 1000)
    assert (found.paid_btus, found.leases, found.renewals) == (3, 2, 1)
    assert found.cost == 6.0
    assert found.wasted_s == pytest.approx(10 + 599)
    assert (found.releases, found.early_releases) == (1, 1)


def test_host_that_is_held_is_paid_until_the_end_of_its_btu():
    host = Host("a", SMALL, leased_s=100)
    assert host.remaining_s(100) == 600
    assert host.remaining_s(700) == 0
    assert host.remaining_s(701) == 599


def test_cost_is_split_by_use_and_what_nobody_used_is_nobodys():
    ledger = (
        Ledger().leased("a", SMALL, 0).used("a", {("t", "x"): 30.0}).used("a", {("t", "x"): 30.0, ("t", "y"): 20.0})
    )
    found = bill(ledger.leased("idle", SMALL, 0), 600)
    assert found.cost_by_job == {"x": pytest.approx(1.5), "y": pytest.approx(0.5)}
    assert found.cost == 4.0


def test_cost_stays_with_the_tenant_that_had_the_job_when_another_tenant_takes_its_name():
    ledger = Ledger().leased("a", SMALL, 0).used("a", {("shop", "x"): 60.0}).used("a", {("ads", "x"): 20.0})
    settled, over = ledger.released("a", 600).settled(1200)
    assert settled == Ledger()
    later = settled.leased("b", SMALL, 1200).used("b", {("ads", "x"): 5.0})
    found = over.plus(bill(later, 1800))
    assert found.cost_by_tenant == {"shop": pytest.approx(1.5), "ads": pytest.approx(0.5 + 2.0)}
    assert found.cost_by_job == {"x": pytest.approx(4.0)}


def test_same_lease_twice_is_paid_once():
    ledger = Ledger().leased("a", SMALL, 0)
    assert ledger.leased("a", SMALL, 50) == ledger


@given(st.floats(0, 1e6), st.floats(1, 1e5))
def test_paid_time_covers_held_time_and_by_less_than_a_btu(held_s, btu_s):
    paid_s = btus_begun(held_s, btu_s) * btu_s
    assert paid_s >= held_s - 1e-3 * btu_s
    assert paid_s - held_s <= btu_s * (1 + 1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 5000)), max_size=10),
    st.floats(2e4, 3e4),
)
def test_bill_adds_up_whatever_was_leased(leases, at_s):
    ledger = Ledger()
    for number, (from_s, length_s) in enumerate(leases):
        name = f"host-{number}"
        ledger = ledger.leased(name, SMALL, from_s).used(name, {("t", "x"): 1.0}).released(name, from_s + length_s)
    found = bill(ledger, at_s)
    assert found.paid_btus == found.leases + found.renewals
    assert found.leases == found.releases + found.early_releases == len(leases)
    assert found.cost == pytest.approx(found.paid_btus * SMALL.price)
    assert sum(found.cost_by_job.values()) == pytest.approx(found.cost)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y"]), st.integers(0, 3)), max_size=12))
def test_room_and_lanes_follow_every_change(changes):
    needs = {("job", "x"): Need(0.5, 100), ("job", "y"): Need(0.1, 900)}
    cluster = LeasedCluster({name: Host(name, SMALL, 0) for name in "ab"}, needs)
    for host, operator, lanes in changes:
        cluster = cluster.changed(("job", operator), host, lanes)
    assert cluster.lanes(("job", "x")) == sum(lanes for _, operator, lanes in changes if operator == "x")
    used = sum(needs[("job", operator)].memory_mb * lanes for _, operator, lanes in changes)
    assert sum(SMALL.memory_mb - cluster.room(name).memory_mb for name in "ab") == pytest.approx(used)
