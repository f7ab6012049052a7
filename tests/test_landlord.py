"""Hosts for a service: what is decided is written down first, the books agree with the pool, whoever is killed goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from headgate.config import HostSettings, Settings
from headgate.core.hosts import Budget, HostPhase, HostType, Lease, Release
from headgate.core.provision import Terms
from headgate.journal import MemoryJournal
from headgate.landlord import BILL_KEY, Landlord
from headgate.sim.pool import SimulatedPool
from tests.core.builders import Seen, view

KIND = HostType("local", cores=2, memory_mb=1024, price=1.0, btu_s=600, startup_s=20)
LATE = Seen("late", latency_s=4.0, worth=40, busy=0.9, lanes=2)
FINE = Seen("fine", latency_s=0.5, worth=40, busy=0.2, lanes=2)
ROUND_S = 10.0


class Killed(Exception):
    """Stands for kill -9."""


class World:
    """A landlord on a simulated pool, which can be killed and started again."""

    def __init__(self, most: int = 3, failures: float = 0.0, observe_only: bool = False) -> None:
        self.at_s = 10_000.0
        self.pool = SimulatedPool(lambda: self.at_s, 0, failures=failures)
        self.journal = MemoryJournal()
        self.terms = Terms((KIND,), Budget(most), HostSettings(point_price=10.0))
        self.observe_only = observe_only
        self.told: list[str] = []
        self.start()

    def start(self) -> None:
        self.landlord = Landlord(
            self.pool,
            self.terms,
            self.journal,
            Settings(),
            lambda at_s, text: self.told.append(text),
            self.observe_only,
        )
        self.landlord.begin(self.at_s)

    def rounds(self, *seen: Seen, for_s: float = 60.0) -> None:
        for _ in range(round(for_s / ROUND_S)):
            self.at_s += ROUND_S
            self.landlord.look(view(self.at_s, *seen))

    @property
    def hosts(self) -> list[str]:
        return list(self.pool.hosts())

    def agrees(self) -> None:
        """The books and the pool name the same hosts, each once."""
        held = [one.host for one in self.landlord._ledger.rentals if one.until_s is None]
        assert sorted(held) == sorted(self.hosts)


def test_first_host_is_leased_before_any_job_runs():
    world = World()
    assert world.hosts == ["leased-1"]
    world.agrees()


def test_host_comes_when_load_rises_and_goes_at_the_end_of_its_btu_when_it_falls():
    world = World()
    world.rounds(FINE, for_s=100)
    assert world.hosts == ["leased-1"]
    world.rounds(LATE)
    assert world.hosts == ["leased-1", "leased-2"]
    world.rounds(FINE, for_s=1200)
    assert len(world.hosts) == 1
    bill = world.landlord.bill(world.at_s)
    assert bill.leases == 2 and bill.wasted_s <= 70  # it is looked at from then on
    assert bill.paid_btus <= 4
    world.agrees()


class Movers:
    """Jobs whose state takes a while to leave a host."""

    def __init__(self) -> None:
        self.vacated: set[str] = set()
        self.done = False

    def vacate(self, host: str) -> None:
        self.vacated.add(host)

    def occupy(self, host: str) -> None:
        self.vacated.discard(host)

    def is_vacant(self, host: str) -> bool:
        assert host in self.vacated
        return self.done


def leaving() -> tuple[World, Movers]:
    """A world whose second host has just been told to leave."""
    world, movers = World(), Movers()
    world.landlord.occupants = movers
    world.rounds(LATE)
    while not movers.vacated:
        world.rounds(FINE, for_s=ROUND_S)
    return world, movers


def test_host_goes_when_the_state_on_it_has():
    world, movers = leaving()
    assert len(world.pool.hosts()) == 2 and all(host.usable for host in world.pool.hosts().values())
    assert [host.phase for host in world.landlord.hosts().values()].count(HostPhase.RELEASING) == 1
    movers.done = True
    world.rounds(FINE, for_s=30)
    assert len(world.hosts) == 1
    assert movers.vacated == set(), "another host may have its address"
    world.agrees()


def test_host_does_not_wait_longer_for_state_than_for_lanes():
    world, _ = leaving()
    world.rounds(FINE, for_s=world.terms.settings.lane_drain_s + 3 * ROUND_S)
    assert len(world.hosts) == 1
    world.agrees()


def test_host_that_was_to_leave_when_its_landlord_was_killed_goes_all_the_same():
    world, _ = leaving()
    world.start()
    world.rounds(FINE, for_s=30)
    assert len(world.hosts) == 1
    world.agrees()


def test_scheduler_is_told_when_a_host_has_come():
    world = World()
    came = []
    for _ in range(5):
        world.at_s += ROUND_S
        came.append(world.landlord.look(view(world.at_s, FINE)))
    assert came.count(True) == 1


def test_budget_is_never_exceeded():
    world = World(most=2)
    world.rounds(LATE, dataclasses.replace(LATE, name="later"), for_s=3000)
    assert len(world.hosts) == 2


def test_host_that_dies_is_given_back_and_another_leased():
    world = World()
    world.rounds(FINE)
    world.pool.kill("leased-1")
    world.rounds(FINE)
    assert world.hosts == ["leased-2"]
    assert "leased-1: failed: it died" in world.told and "leased-1: gone" in world.told
    world.agrees()


def test_leases_that_fail_again_and_again_are_reported_and_left_alone_for_a_while():
    world = World(failures=1.0)
    world.rounds(FINE, for_s=800)
    (text,) = {text for text in world.told if text.startswith("too many leases")}
    assert text == "too many leases in a row failed; none is tried for 5 min"


def test_each_job_pays_for_the_time_its_lanes_were_busy():
    world = World()
    world.rounds(for_s=30)

    def on_host(seen: Seen) -> None:
        world.at_s += ROUND_S
        now = view(world.at_s, seen, dataclasses.replace(seen, name="twin", busy=seen.busy / 3))
        for job in now.jobs.values():
            for sample in job.samples:
                operators = dict(sample.reading.operators)
                operators["work"] = dataclasses.replace(operators["work"], hosts=("leased-1",) * seen.lanes)
                object.__setattr__(sample.reading, "operators", operators)
        world.landlord.look(now)

    on_host(FINE)
    costs = world.landlord.bill(world.at_s).cost_by_job
    assert costs == pytest.approx({"fine": 0.75, "twin": 0.25})


def test_who_only_observes_leases_no_more_than_the_first():
    world = World(observe_only=True)
    world.rounds(LATE, for_s=300)
    assert world.hosts == ["leased-1"]


def test_who_only_observes_replaces_the_only_host_when_it_dies():
    world = World(most=1, observe_only=True)
    world.rounds(FINE, for_s=30)
    world.pool.kill("leased-1")
    world.rounds(FINE, for_s=60)
    assert world.hosts == ["leased-2"]
    assert not [text for text in world.told if text.startswith("too many leases")]
    world.agrees()


def test_hosts_beyond_a_budget_that_has_become_smaller_go_and_none_is_leased_beyond_it():
    world = World()
    world.rounds(LATE)
    kill_before(world, "lease")
    with pytest.raises(Killed):
        world.rounds(LATE, dataclasses.replace(LATE, name="later"), for_s=300)
    del world.pool.__dict__["lease"]
    assert world.hosts == ["leased-1", "leased-2"] and world.landlord._read().to_lease
    world.terms = dataclasses.replace(world.terms, budget=Budget(1))
    world.start()
    assert world.hosts == ["leased-1"]
    assert "leased-2: released: the budget is smaller than it was" in world.told
    world.rounds(LATE, for_s=300)
    assert world.hosts == ["leased-1"]
    world.agrees()


def test_hosts_that_ended_while_nobody_kept_books_are_not_paid_for_since():
    world = World()
    world.rounds(FINE, for_s=100)
    world.pool.release("leased-1")  # as whoever asks twice to stop ends them
    world.at_s += 36_000
    world.start()
    bill = world.landlord.bill(world.at_s)
    assert (bill.leases, bill.paid_btus, bill.renewals) == (2, 2, 0)
    assert world.hosts == ["leased-2"]
    world.agrees()


def kill_before(world: World, name: str) -> None:
    def killed(*_: object) -> None:
        raise Killed

    setattr(world.pool, name, killed)


def kill_after(world: World, name: str) -> None:
    act: Callable[..., None] = getattr(world.pool, name)

    def killed(*given: object) -> None:
        act(*given)
        raise Killed

    setattr(world.pool, name, killed)


@pytest.mark.parametrize("kill", [kill_before, kill_after])
def test_who_is_killed_in_the_middle_of_a_lease_leases_neither_twice_nor_never(kill):
    world = World()
    world.rounds(FINE)
    kill(world, "lease")
    with pytest.raises(Killed):
        world.rounds(LATE)
    del world.pool.__dict__["lease"]
    world.start()
    assert world.hosts == ["leased-1", "leased-2"]
    world.agrees()
    world.rounds(LATE, for_s=200)
    assert world.hosts == ["leased-1", "leased-2"]


@pytest.mark.parametrize("kill", [kill_before, kill_after])
def test_who_is_killed_in_the_middle_of_a_release_releases_once(kill):
    world = World()
    world.rounds(LATE)
    kill(world, "release")
    with pytest.raises(Killed):
        world.rounds(FINE, for_s=1200)
    del world.pool.__dict__["release"]
    world.start()
    world.rounds(FINE, for_s=20)
    assert len(world.hosts) == 1
    world.agrees()
    bill = world.landlord.bill(world.at_s)
    assert (bill.leases, bill.releases + bill.early_releases) == (2, 1)


def test_bill_goes_on_after_a_restart_and_settled_leases_stay_on_it():
    world = World()
    world.rounds(LATE)
    world.rounds(FINE, for_s=3000)
    before = world.landlord.bill(world.at_s)
    world.start()
    after = world.landlord.bill(world.at_s)
    assert (after.paid_btus, after.leases, after.releases) == (before.paid_btus, before.leases, before.releases)
    assert before.leases == 2 and len(world.landlord._ledger.rentals) == 1
    assert world.journal.about()[BILL_KEY].startswith(f"{before.paid_btus} BTUs paid")


def test_hosts_that_no_journal_knows_are_taken_over_and_their_names_not_given_again():
    world = World()
    world.rounds(LATE)
    world.journal = MemoryJournal()
    world.start()
    world.agrees()
    world.pool.kill("leased-1")
    world.rounds(LATE, for_s=100)
    assert "leased-3" in world.hosts


def test_steps_are_in_the_journal_before_they_are_taken():
    world = World()
    seen: list[tuple[Lease, ...] | tuple[Release, ...]] = []
    act = world.pool.lease

    def lease(name: str, kind: HostType) -> None:
        seen.append(world.landlord._read().to_lease)
        act(name, kind)

    world.pool.lease = lease  # type: ignore[method-assign]
    world.rounds(LATE)
    assert seen == [(Lease("leased-2", KIND),)]
    assert world.landlord._read().to_lease == ()
