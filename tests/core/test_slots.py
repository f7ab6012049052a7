"""Work on hosts whose slots lanes share: how much fits, and what is left over."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from headgate.config import HostSettings, Settings
from headgate.core import leasing
from headgate.core.hosts import Budget, Host, HostPhase, HostType, Lease, Ledger, Release
from headgate.core.leasing import LeaseView
from headgate.core.provision import ProvisionState, Terms
from headgate.core.slots import PART, SERVICE, Work, cluster_of, measured_work
from tests.core.builders import Seen, view

KIND = HostType("local", cores=2, memory_mb=1024, price=1.0, btu_s=600)
SETTINGS = Settings()
LATE = Seen("late", latency_s=4.0, worth=40, busy=1.0, lanes=3)
FINE = Seen("fine", latency_s=0.5, worth=40, busy=0.2, lanes=3)
AT_S = 600.0


def hosts(*phases: HostPhase, leased_s: float = AT_S - 100) -> dict[str, Host]:
    return {f"leased-{n}": Host(f"leased-{n}", KIND, leased_s, phase) for n, phase in enumerate(phases, 1)}


READY = HostPhase.READY


def steps(
    *seen: Seen, held: dict[str, Host], work: Work | None = None, price: float = 100.0, most: int = 9
) -> list[Lease | Release]:
    """What is decided about hosts; where work goes is up to Spark."""
    now = view(AT_S, *seen)
    cluster, unplaced = cluster_of(now, held, measured_work(now, SETTINGS) if work is None else work, SETTINGS)
    terms = Terms((KIND,), Budget(most), HostSettings(point_price=price))
    ledger = Ledger().matched(held, AT_S)
    planned = leasing.step(
        ProvisionState(leases=len(held)), LeaseView(now, cluster, ledger, unplaced, shared=True), terms, SETTINGS
    )[1]
    return [one for one in planned if isinstance(one, Lease | Release)]


def test_work_is_busy_lane_seconds_per_second():
    work = measured_work(view(AT_S, FINE), SETTINGS)
    assert abs(work["fine", "work"] - 0.6) < 1e-6


def test_job_that_was_not_measured_for_long_enough_has_no_work_yet():
    assert measured_work(view(AT_S, dataclasses.replace(FINE, span_s=10.0)), SETTINGS) == {}


def test_job_without_input_needs_nothing():
    idle = dataclasses.replace(FINE, rows_s=0.0)
    assert set(measured_work(view(AT_S, idle), SETTINGS).values()) == {0.0}


def test_host_is_leased_when_a_job_misses_its_intent_for_want_of_slots():
    assert steps(LATE, held=hosts(READY)) == [Lease("leased-2", KIND), Lease("leased-3", KIND)]


def test_nothing_is_leased_while_hosts_have_room_or_intents_hold():
    assert steps(LATE, held=hosts(READY, READY, READY)) == []
    assert steps(dataclasses.replace(FINE, busy=1.0), held=hosts(READY)) == []


def test_nothing_is_leased_beyond_what_utility_or_budget_pay_for():
    assert steps(LATE, held=hosts(READY), price=0.01) == []
    assert steps(LATE, held=hosts(READY), most=2) == [Lease("leased-2", KIND)]


def test_host_that_starts_counts_as_one_that_is_there():
    assert steps(LATE, held=hosts(READY, HostPhase.STARTING, HostPhase.STARTING)) == []


def test_without_any_host_one_is_leased_whatever_it_costs():
    assert steps(held={}, price=0.0) == [Lease("leased-1", KIND)]


def test_host_that_died_is_given_back_and_replaced_if_the_others_have_no_room():
    held = hosts(READY, HostPhase.FAILED)
    assert steps(LATE, held=held, work={("late", "work"): 1.0}) == [Release("leased-2")]
    assert steps(LATE, held=held, work={("late", "work"): 1.5}) == [Release("leased-2"), Lease("leased-3", KIND)]


def ending(*phases: HostPhase) -> dict[str, Host]:
    return hosts(*phases, leased_s=AT_S - 560)


def test_host_is_released_at_the_end_of_its_btu_when_the_others_have_room():
    assert steps(FINE, held=ending(READY, READY)) == [Release("leased-2")]
    assert steps(FINE, held=hosts(READY, READY)) == []


def test_host_stays_when_the_others_have_no_room():
    assert steps(FINE, held=ending(READY, READY), work={("fine", "work"): 1.3}) == []


def test_host_stays_as_long_as_a_job_misses_its_intent_or_was_never_measured():
    assert steps(dataclasses.replace(LATE, busy=0.1), held=ending(READY, READY)) == []
    assert steps(dataclasses.replace(FINE, span_s=10.0), held=ending(READY, READY)) == []


def test_last_host_stays():
    assert steps(held=ending(READY)) == []


@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=4),
    st.lists(st.sampled_from([READY, HostPhase.STARTING, HostPhase.FAILED, HostPhase.RELEASING]), max_size=4),
)
def test_all_work_is_either_on_a_host_or_left_over(amounts: list[float], phases: list[HostPhase]):
    seen = [dataclasses.replace(LATE, name=f"job-{n}") for n in range(len(amounts))]
    work = {(one.name, "work"): amount for one, amount in zip(seen, amounts, strict=True)}
    cluster, unplaced = cluster_of(view(AT_S, *seen), hosts(*phases), work, SETTINGS)
    for key, amount in work.items():
        parts = cluster.lanes(key) + unplaced[key]
        assert (parts - 1) * PART < amount / SETTINGS.target_busy + 1e-6
        assert parts * PART >= amount / SETTINGS.target_busy - 1e-6
    assert cluster.lanes(SERVICE) + unplaced[SERVICE] == 1
    for name, host in cluster.hosts.items():
        crowded = sum(cluster.on(name).values()) * PART - len(work) * PART
        assert host.phase is not HostPhase.RELEASING or not cluster.on(name)
        assert crowded <= KIND.cores + PART + 1e-6
