"""Hosts for a service: what is decided is written down first, the books agree with the pool, whoever is killed goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from headgate.config import HostSettings, Settings
from headgate.core.hosts import HostPhase, HostType
from headgate.core.model import Action, ActionKind, Outcome
from headgate.errors import EngineError, JournalError
from headgate.hosts.landlord import BILL_KEY, Landlord
from headgate.hosts.leases import Budget
from headgate.hosts.planners import SharedSlots
from headgate.hosts.provision import Terms
from headgate.journal import MemoryJournal
from headgate.ports import RecordedAction
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
        planner = SharedSlots(self.terms, Settings())
        self.landlord = Landlord(
            self.pool, planner, self.journal, lambda at_s, text: self.told.append(text), self.observe_only
        )
        self.landlord.begin(self.at_s)

    def rounds(self, *seen: Seen, for_s: float = 60.0) -> None:
        for _ in range(round(for_s / ROUND_S)):
            self.at_s += ROUND_S
            self.landlord.look(view(self.at_s, *seen))

    def recorded(self, kind: ActionKind, host: str) -> RecordedAction:
        """The one lease, or the one release, of a host."""
        (found,) = [one for one in self.journal.actions(host) if one.action.kind is kind]
        return found

    def unfinished(self) -> list[tuple[ActionKind, str]]:
        return [(one.action.kind, one.action.host) for one in self.journal.actions() if one.outcome is None]

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
    assert "leased-1: failed: it died" in world.told
    assert "leased-1: gone after 1.33 min: 1 BTUs paid, 1 in money, 8.67 min of it wasted" in world.told
    world.agrees()


def test_leases_that_fail_again_and_again_are_reported_and_left_alone_for_a_while():
    world = World(failures=1.0)
    world.rounds(FINE, for_s=800)
    (text,) = {text for text in world.told if text.startswith("too many leases")}
    assert text == "too many leases in a row failed; none is tried for 5 min"


def test_host_that_died_counts_as_no_failed_lease_however_long_it_takes_to_give_it_back(monkeypatch):
    world = World(most=1)
    world.rounds(FINE, for_s=60)
    dead = dataclasses.replace(world.pool.hosts()["leased-1"], phase=HostPhase.FAILED, reason="it died")
    with monkeypatch.context() as patched:
        patched.setattr(world.pool, "hosts", lambda: {"leased-1": dead})
        world.rounds(FINE, for_s=10 * ROUND_S)
    world.pool.kill("leased-1")
    world.rounds(FINE, for_s=60)
    assert len(world.hosts) == 1 and world.hosts != ["leased-1"]
    assert not [text for text in world.told if text.startswith("too many leases")]


def on_host(world: World, *seen: Seen) -> None:
    """One round in which all lanes of the operator `work` run on the first host."""
    world.at_s += ROUND_S
    now = view(world.at_s, *seen)
    for name, job in now.jobs.items():
        for sample in job.samples:
            operators = dict(sample.reading.operators)
            lanes = next(one.lanes for one in seen if one.name == name)
            operators["work"] = dataclasses.replace(operators["work"], hosts=("leased-1",) * lanes)
            object.__setattr__(sample.reading, "operators", operators)
    world.landlord.look(now)


def test_each_job_pays_for_the_time_its_lanes_were_busy():
    world = World()
    world.rounds(for_s=30)
    on_host(world, FINE, dataclasses.replace(FINE, name="twin", busy=FINE.busy / 3))
    costs = world.landlord.bill(world.at_s).cost_by_job
    assert costs == pytest.approx({"fine": 0.75, "twin": 0.25})


def test_cost_of_a_removed_job_stays_with_its_tenant_over_a_restart_and_a_new_owner_of_the_name():
    world = World()
    world.rounds(for_s=30)
    for _ in range(3):
        on_host(world, dataclasses.replace(FINE, tenant="shop"))
    world.rounds(for_s=60)
    on_host(world, dataclasses.replace(FINE, tenant="ads"))
    world.rounds(for_s=120)
    world.start()
    costs = world.landlord.bill(world.at_s).cost_by_tenant
    assert costs == pytest.approx({"shop": 0.75, "ads": 0.25})


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
    assert world.hosts == ["leased-1", "leased-2"] and world.unfinished() == [(ActionKind.LEASE, "leased-3")]
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
    seen: list[list[tuple[ActionKind, str]]] = []
    lease, release = world.pool.lease, world.pool.release

    def leased(name: str, kind: HostType) -> None:
        seen.append(world.unfinished())
        lease(name, kind)

    def released(name: str) -> None:
        seen.append(world.unfinished())
        release(name)

    world.pool.lease, world.pool.release = leased, released  # type: ignore[method-assign]
    world.rounds(LATE)
    world.rounds(FINE, for_s=1200)
    (gone,) = {"leased-1", "leased-2"} - set(world.hosts)
    assert seen == [[(ActionKind.LEASE, "leased-2")], [(ActionKind.RELEASE, gone)]]
    assert world.unfinished() == []


def test_nothing_is_leased_while_the_journal_cannot_be_written():
    world = World()
    world.rounds(FINE)

    def full(at_s: float, action: Action) -> int:
        raise JournalError("the disk is full")

    world.journal.intend = full  # type: ignore[method-assign]
    with pytest.raises(JournalError):
        world.rounds(LATE)
    assert world.hosts == ["leased-1"] and world.unfinished() == []
    del world.journal.__dict__["intend"]
    world.rounds(LATE)
    assert len(world.hosts) == 2
    world.agrees()


def test_lease_says_for_whom_and_why_and_what_it_did_to_the_job():
    world = World()
    world.rounds(FINE)
    world.rounds(LATE)
    world.rounds(dataclasses.replace(FINE, name="late"), for_s=120)
    recorded = world.recorded(ActionKind.LEASE, "leased-2")
    assert recorded.action.job == "late" and recorded.action.host_type == KIND
    assert recorded.action.cause.text == "late cannot do with the hosts there are (3.2 slots needed, 2 there)"
    assert recorded.applied and recorded.effect is not None
    assert recorded.effect.utility_before == pytest.approx(10.0) and recorded.effect.utility_after == 40.0
    assert recorded.effect.verdict == "ready after 30 s"


def test_release_says_why_and_what_the_host_cost():
    world = World()
    world.rounds(LATE)
    world.rounds(FINE, for_s=1200)
    (gone,) = {"leased-1", "leased-2"} - set(world.hosts)
    recorded = world.recorded(ActionKind.RELEASE, gone)
    assert recorded.action.cause.text == "the others have room for all that runs"
    assert recorded.applied and recorded.effect is not None
    assert recorded.effect.verdict == "gone after 9 min: 1 BTUs paid, 1 in money, 1 min of it wasted"


def test_lease_that_came_to_nothing_says_so():
    world = World(failures=1.0)
    world.rounds(FINE, for_s=100)
    effect = world.recorded(ActionKind.LEASE, "leased-1").effect
    assert effect is not None and effect.verdict == "failed: it never came up"
    assert world.recorded(ActionKind.RELEASE, "leased-1").action.sentence == "given back: it never came up"


def test_lease_that_the_pool_refuses_is_on_record_and_not_tried_again_at_once():
    world = World()
    world.rounds(FINE)

    def refused(name: str, kind: HostType) -> None:
        raise EngineError("no address is left")

    world.pool.lease = refused  # type: ignore[method-assign]
    world.rounds(LATE, for_s=200)
    assert world.recorded(ActionKind.LEASE, "leased-2").outcome == Outcome(False, "no address is left")
    assert len(world.journal.actions()) == 2
    assert "leased-2: could not be leased: no address is left; no lease is tried for 5 min" in world.told
    del world.pool.__dict__["lease"]
    world.rounds(LATE, for_s=200)
    assert world.hosts == ["leased-1", "leased-3"]


def test_first_host_that_the_pool_refuses_is_an_error_and_on_record():
    world = World()
    world.pool, world.journal = SimulatedPool(lambda: world.at_s, 0), MemoryJournal()

    def refused(name: str, kind: HostType) -> None:
        raise EngineError("the disk is full")

    world.pool.lease = refused  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="leased-1 could not be leased: the disk is full"):
        world.start()
    assert world.recorded(ActionKind.LEASE, "leased-1").outcome == Outcome(False, "the disk is full")


def test_host_that_dies_while_it_leaves_is_released_once():
    world, movers = leaving()
    (name,) = [name for name, host in world.landlord.hosts().items() if host.phase is HostPhase.RELEASING]
    world.rounds(FINE, for_s=ROUND_S)
    world.pool.kill(name)  # the next round decides about hosts
    world.rounds(FINE, for_s=60)
    assert name not in world.hosts and movers.vacated == set()
    recorded = world.recorded(ActionKind.RELEASE, name)
    assert recorded.applied and recorded.effect is not None
    world.agrees()


def test_names_are_not_given_again_when_the_books_are_damaged():
    world = World()
    world.rounds(LATE)
    world.rounds(FINE, for_s=1200)
    world.journal.set_about("hosts", "no books at all")
    world.pool = SimulatedPool(lambda: world.at_s, 0)
    world.start()
    assert world.hosts == ["leased-3"]


def test_what_happened_to_hosts_is_known_after_a_restart():
    world = World()
    world.rounds(LATE)
    world.rounds(FINE, for_s=1200)
    before = {note.text for note in world.landlord.notes if "after its lease" not in note.text}
    world.start()
    assert before <= {note.text for note in world.landlord.notes}


def test_effect_of_a_lease_is_recorded_though_its_landlord_was_killed_meanwhile():
    world = World()
    world.rounds(LATE, for_s=20)
    world.start()
    world.rounds(LATE, for_s=200)
    effect = world.recorded(ActionKind.LEASE, "leased-2").effect
    assert effect is not None and effect.verdict.startswith("ready after")


def test_hosts_that_end_with_the_service_are_on_record_with_their_cost():
    world = World()
    world.rounds(FINE)
    world.pool.release("leased-1")
    world.landlord.end(world.at_s)
    recorded = world.recorded(ActionKind.RELEASE, "leased-1")
    assert recorded.action.cause.text == "the service ended" and recorded.applied
    assert recorded.effect is not None and "1 BTUs paid, 1 in money" in recorded.effect.verdict


def test_host_that_went_just_before_a_kill_is_on_record_once():
    world = World()
    world.rounds(LATE)
    books = world.journal.about()["hosts"]
    world.rounds(FINE, for_s=1200)
    world.journal.set_about("hosts", books)  # as if killed before the books were written
    (gone,) = {"leased-1", "leased-2"} - set(world.hosts)
    world.start()
    assert world.recorded(ActionKind.RELEASE, gone).effect is not None
    world.agrees()
