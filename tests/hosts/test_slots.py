"""Hosts whose slots lanes share: which come and which go, by sums of slots."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.config import HostSettings, Settings
from headgate.core.hosts import Host, HostPhase, HostType
from headgate.core.model import Action, ActionKind
from headgate.hosts.leases import Budget, Ledger
from headgate.hosts.provision import ProvisionState, Terms
from headgate.hosts.slots import SlotsView, Work, measured_work, slots_missing, slots_of, step
from tests.core.builders import Seen, view

KIND = HostType("local", cores=2, memory_mb=1024, price=1.0, btu_s=600)
SETTINGS = Settings()
LATE = Seen("late", latency_s=4.0, worth=40, busy=1.0, lanes=3)
FINE = Seen("fine", latency_s=0.5, worth=40, busy=0.2, lanes=3)
AT_S = 600.0


def hosts(*phases: HostPhase, leased_s: float = AT_S - 100) -> dict[str, Host]:
    return {f"leased-{n}": Host(f"leased-{n}", KIND, leased_s, phase) for n, phase in enumerate(phases, 1)}


READY = HostPhase.READY


def decided(
    *seen: Seen,
    held: dict[str, Host],
    work: Work | None = None,
    price: float = 100.0,
    budget: Budget | None = None,
    kinds: tuple[HostType, ...] = (KIND,),
    state: ProvisionState | None = None,
) -> tuple[Action, ...]:
    now = view(AT_S, *seen)
    terms = Terms(kinds, budget or Budget(9), HostSettings(point_price=price))
    measured = measured_work(now, SETTINGS) if work is None else work
    ledger = Ledger().matched(held, AT_S)
    return step(state or ProvisionState(leases=len(held)), SlotsView(now, held, ledger, measured), terms, SETTINGS)[1]


def leased(number: int, kind: HostType = KIND) -> tuple[ActionKind, str, HostType | None]:
    return (ActionKind.LEASE, f"leased-{number}", kind)


def released(number: int) -> tuple[ActionKind, str, HostType | None]:
    return (ActionKind.RELEASE, f"leased-{number}", None)


def steps(*seen: Seen, **given: Any) -> list[tuple[ActionKind, str, HostType | None]]:
    """What is decided about hosts, without the causes."""
    return [(one.kind, one.host, one.host_type) for one in decided(*seen, **given)]


def test_work_is_busy_lane_seconds_per_second():
    work = measured_work(view(AT_S, FINE), SETTINGS)
    assert abs(work["fine", "work"] - 0.6) < 1e-6


def test_job_that_was_not_measured_for_long_enough_has_no_work_yet():
    assert measured_work(view(AT_S, dataclasses.replace(FINE, span_s=10.0)), SETTINGS) == {}


def test_job_without_input_needs_nothing():
    idle = dataclasses.replace(FINE, rows_s=0.0)
    assert set(measured_work(view(AT_S, idle), SETTINGS).values()) == {0.0}


@pytest.mark.parametrize(("busy", "work"), [(0.0, {0.0}), (1.0, set())])
def test_job_without_a_known_backlog_needs_nothing_only_if_no_lane_works(busy, work):
    """While an epoch is longer than the window, no row is counted, and the work measured before stays."""
    now = view(AT_S, dataclasses.replace(FINE, rows_s=0.0, busy=busy, source_busy=busy))
    job = now.jobs["fine"]
    assert job.span is not None
    unknown = dataclasses.replace(job.span.last.reading, backlog=None)
    span = dataclasses.replace(job.span, last=dataclasses.replace(job.span.last, reading=unknown))
    now = dataclasses.replace(now, jobs={"fine": dataclasses.replace(job, span=span)})
    assert set(measured_work(now, SETTINGS).values()) == work


def test_work_of_fused_operators_leases_hosts():
    """A fused operator has no lanes; its time is that of the operator in whose tasks it runs."""
    fused = [Seen(name, latency_s=4.0, worth=40, source_busy=0.95, busy=0.0, lanes=0) for name in ("one", "two")]
    assert all(measured_work(view(AT_S, one), SETTINGS)[one.name, "work"] == 0.0 for one in fused)
    assert steps(*fused, held=hosts(READY)) == [leased(2)]
    assert steps(fused[0], held=hosts(READY)) == []


def test_host_is_leased_when_a_job_misses_its_intent_for_want_of_slots():
    assert steps(LATE, held=hosts(READY)) == [leased(2), leased(3)]


def test_nothing_is_leased_while_hosts_have_room_or_intents_hold():
    assert steps(LATE, held=hosts(READY, READY, READY)) == []
    assert steps(dataclasses.replace(FINE, busy=1.0), held=hosts(READY)) == []


def test_nothing_is_leased_beyond_what_utility_or_budget_pay_for():
    assert steps(LATE, held=hosts(READY), price=0.01) == []
    assert steps(LATE, held=hosts(READY), budget=Budget(2)) == [leased(2)]


def test_host_that_starts_counts_as_one_that_is_there():
    assert steps(LATE, held=hosts(READY, HostPhase.STARTING, HostPhase.STARTING)) == []


def test_without_any_host_one_is_leased_whatever_it_costs():
    assert steps(held={}, price=0.0) == [leased(1)]


def test_host_that_died_is_given_back_and_replaced_if_the_others_have_no_room():
    held = hosts(READY, HostPhase.FAILED)
    assert steps(LATE, held=held, work={("late", "work"): 1.0}) == [released(2)]
    assert steps(LATE, held=held, work={("late", "work"): 1.5}) == [released(2), leased(3)]


def ending(*phases: HostPhase) -> dict[str, Host]:
    return hosts(*phases, leased_s=AT_S - 560)


def test_host_is_released_at_the_end_of_its_btu_when_the_others_have_room():
    assert steps(FINE, held=ending(READY, READY)) == [released(2)]
    assert steps(FINE, held=hosts(READY, READY)) == []


def test_host_stays_when_the_others_have_no_room():
    assert steps(FINE, held=ending(READY, READY), work={("fine", "work"): 1.3}) == []


def test_host_stays_as_long_as_a_job_misses_its_intent_or_was_never_measured():
    assert steps(dataclasses.replace(LATE, busy=0.1), held=ending(READY, READY)) == []
    assert steps(dataclasses.replace(FINE, span_s=10.0), held=ending(READY, READY)) == []


def test_last_host_stays():
    assert steps(held=ending(READY)) == []


def test_dearer_host_goes_before_a_newer_one():
    dear = dataclasses.replace(KIND, name="dear", price=2.0)
    held = ending(READY, READY, READY)
    held["leased-2"] = dataclasses.replace(held["leased-2"], kind=dear)
    assert steps(FINE, held=held) == [released(2), released(3)]


def test_host_stays_when_tasks_could_not_finish_before_the_next_btu():
    last_s = HostSettings().lane_drain_s
    assert steps(FINE, held=hosts(READY, READY, leased_s=AT_S - 600 + last_s)) == [released(2)]
    assert steps(FINE, held=hosts(READY, READY, leased_s=AT_S - 600 + last_s - 1)) == []


def test_slots_of_a_host_that_only_starts_let_no_other_go():
    held = ending(READY, READY)
    held["leased-2"] = dataclasses.replace(held["leased-2"], phase=HostPhase.STARTING, leased_s=AT_S - 10)
    assert steps(FINE, held=held) == []


def test_cheapest_kind_per_slot_that_the_budget_pays_for_is_leased():
    large = HostType("large", cores=8, memory_mb=4096, price=3.0, btu_s=600)
    assert steps(LATE, held=hosts(READY), kinds=(KIND, large)) == [leased(2, large)]
    tight = Budget(most_per_hour=KIND.price_per_hour * 2)
    assert steps(LATE, held=hosts(READY), kinds=(KIND, large), budget=tight) == [leased(2)]


def test_many_operators_that_do_next_to_nothing_need_next_to_no_slots():
    idle = {("fine", f"operator-{n}"): 0.001 for n in range(100)}
    assert steps(FINE, held=ending(READY, READY), work=idle) == [released(2)]


def test_nothing_is_leased_while_the_pool_is_left_alone():
    assert steps(LATE, held=hosts(READY), state=ProvisionState(leases=1, no_lease_until_s=AT_S + 1)) == []


def test_one_host_is_leased_during_the_pause_when_no_host_is_left():
    paused = ProvisionState(leases=1, no_lease_until_s=AT_S + 1)
    assert steps(LATE, held=hosts(HostPhase.FAILED), state=paused)[1:] == [leased(2)]
    assert steps(LATE, held=hosts(HostPhase.FAILED, HostPhase.STARTING), state=paused)[1:] == []


def test_action_says_for_which_job_and_with_which_figures():
    one, _ = decided(LATE, held=hosts(READY), work={("late", "work"): 3.0})
    assert one.job == "late"
    assert one.sentence == (
        "leased for 1 per 10 min: late cannot do with the hosts there are (5 slots needed, 2 there)"
    )
    assert one.cause.facts == pytest.approx({"slots_needed": 5.0, "slots": 2.0, "points": 20.0, "price_per_hour": 6.0})


def test_action_about_a_host_that_failed_says_why():
    given_back, replaced = decided(LATE, held=hosts(READY, HostPhase.FAILED), work={("late", "work"): 1.5})
    assert given_back.sentence == "given back: it failed"
    assert replaced.cause.text == "leased-2 failed, and the others lack 0.5 slots for the same work"


PHASES = [READY, HostPhase.STARTING, HostPhase.FAILED, HostPhase.RELEASING]


@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=4),
    st.lists(st.sampled_from(PHASES), max_size=4),
    st.sampled_from([LATE, FINE]),
    st.floats(0, 600),
    st.sampled_from([Budget(), Budget(most_hosts=3), Budget(most_per_hour=18)]),
)
@example([0.0], [HostPhase.FAILED] * 4, LATE, 0.0, Budget())
def test_no_decision_breaks_a_promise(
    amounts: list[float], phases: list[HostPhase], like: Seen, age_s: float, budget: Budget
) -> None:
    seen = [dataclasses.replace(like, name=f"job-{n}") for n in range(len(amounts))]
    work = {(one.name, "work"): amount for one, amount in zip(seen, amounts, strict=True)}
    held = hosts(*phases, leased_s=AT_S - age_s)
    needed = sum(amounts) / SETTINGS.target_busy
    ledger, staying = Ledger().matched(held, AT_S), dict(held)
    for one in decided(*seen, held=held, work=work, budget=budget):
        if one.host_type is not None:
            assert budget.allows(ledger, one.host_type, AT_S), "the budget is never exceeded"
            ledger = ledger.leased(one.host, one.host_type, AT_S)
            before = slots_of(host for host in staying.values() if host.usable)
            assert before < needed or before == 0, "no host comes that nothing needs"
            staying[one.host] = Host(one.host, one.host_type, AT_S)
        else:
            host = staying.pop(one.host)
            ready = [other for other in staying.values() if other.phase is READY]
            assert host.phase is HostPhase.FAILED or (ready and slots_of(ready) >= needed - 1e-6)
    usable = any(host.usable for host in staying.values())
    left_alone = phases.count(HostPhase.FAILED) > HostSettings().lease_retries
    assert usable or left_alone or not budget.allows(ledger, KIND, AT_S), "there is always one host, if it can be paid"


@given(st.lists(st.floats(0, 20), min_size=1, max_size=5), st.floats(0, 60))
def test_all_slots_are_either_given_or_missing(amounts: list[float], slots: float) -> None:
    needed = {f"job-{n}": amount for n, amount in enumerate(amounts)}
    missing = slots_missing(needed, slots)
    assert sum(missing.values()) == pytest.approx(max(0.0, sum(amounts) - slots), abs=1e-6)
    short = [n for n in range(len(amounts)) if missing.get(f"job-{n}", 0.0) > 1e-6]
    # The first that lacks slots may have some; all after it have none.
    assert all(missing[f"job-{n}"] == pytest.approx(amounts[n]) for n in short[1:])
