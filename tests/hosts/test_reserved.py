"""VISP's provisioners on hosts whose slots lanes share: lanes reserve slots in the books, and the engine is given their number."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.config import HostSettings, Settings
from headgate.core.hosts import Host, HostPhase, HostType
from headgate.core.model import Action, ActionKind, Outcome
from headgate.errors import EngineError
from headgate.explain.actions import action_lines
from headgate.explain.lines import JobRounds
from headgate.hosts.landlord import Landlord
from headgate.hosts.leases import Budget, Ledger
from headgate.hosts.planners import HostsView
from headgate.hosts.provision import ProvisionerName, ProvisionState, Terms
from headgate.hosts.reserved import ReservedSlots, demands_of
from headgate.journal import MemoryJournal
from headgate.sim.pool import SimulatedPool
from tests.core.builders import Seen, view

KIND = HostType("local", cores=2, memory_mb=1024, price=1.0, btu_s=600, startup_s=5)
LATE = Seen("late", latency_s=4.0, waiting=600.0, lanes=2)
CALM = Seen("late", latency_s=0.5, lanes=2, busy=0.2)
BTU, THRESHOLD, FIXED = ProvisionerName.BTU, ProvisionerName.THRESHOLD, ProvisionerName.FIXED


class Lanes:
    """An engine that takes whatever lanes it is given."""

    def __init__(self, refusal: str = "") -> None:
        self.given: list[dict[str, int]] = []
        self.refusal = refusal

    def apply(self, action: Action) -> Outcome:
        self.given += [dict(one.lanes) for one in action.changes.values()]
        return Outcome(not self.refusal, self.refusal)

    def vacate(self, host: str) -> None:
        """Lanes run in any slot."""

    def occupy(self, host: str) -> None:
        """Lanes run in any slot."""

    def is_vacant(self, host: str) -> bool:
        return True


class Story:
    """A baseline that is shown one view after another on a simulated pool, by way of a landlord."""

    def __init__(
        self, name: ProvisionerName, most: int = 3, engine: Lanes | None = None, observe_only: bool = False
    ) -> None:
        self.at_s, self.engine = 600.0, engine or Lanes()
        self.planner = ReservedSlots(name, Terms((KIND,), Budget(most), HostSettings()), Settings())
        self.pool = SimulatedPool(lambda: self.at_s, 0)
        self.journal = MemoryJournal()
        self.landlord = Landlord(self.pool, self.planner, self.journal, observe_only=observe_only)
        self.landlord.begin(self.at_s)
        self.landlord.serve(self.engine)  # type: ignore[arg-type]

    def see(self, *seen: Seen, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.at_s += 20.0
            now = [dataclasses.replace(one, lanes=self.lanes(one)) for one in seen]
            self.landlord.look(view(self.at_s, *now))

    def lanes(self, seen: Seen) -> int:
        return self.engine.given[-1]["work"] if self.engine.given else seen.lanes

    @property
    def hosts(self) -> int:
        return len(self.landlord.hosts())


@pytest.mark.parametrize("name", ProvisionerName)
def test_there_is_one_host_before_any_job_runs(name: ProvisionerName) -> None:
    assert list(Story(name).landlord.hosts()) == ["leased-1"]


def test_threshold_adds_lanes_by_the_queue_and_leases_hosts_for_them() -> None:
    story = Story(THRESHOLD)
    story.see(LATE)
    assert story.engine.given == [{"in": 1, "work": 3}]
    assert story.hosts == 2


def test_journal_holds_the_lanes_that_a_baseline_changed_and_explain_tells_why() -> None:
    story = Story(THRESHOLD)
    story.see(LATE)
    (changed,) = story.journal.actions("late")[:1]
    assert changed.action.what == "work 2 → 3 lanes" and changed.outcome == Outcome(True)
    told = [line.text for line in action_lines(JobRounds("late", ()), story.journal.actions("late"))]
    assert "the provisioner threshold reserves these slots: set in to 1 lane and set work to 3 lanes" in told


def test_observer_changes_no_lanes() -> None:
    story = Story(THRESHOLD, observe_only=True)
    story.see(LATE)
    assert story.engine.given == [] and story.journal.actions("late") == []


def test_threshold_removes_lanes_of_an_empty_queue_and_releases_the_empty_host() -> None:
    story = Story(THRESHOLD)
    story.see(LATE, rounds=2)
    most = story.hosts
    story.see(CALM, rounds=8)
    assert story.lanes(CALM) == 1
    assert most == 2 and story.hosts == 1


def test_btu_keeps_a_host_until_its_billing_time_unit_ends() -> None:
    story = Story(BTU)
    story.see(LATE, rounds=8)
    assert story.hosts == 3 and story.lanes(LATE) > 2
    leased = story.landlord.hosts().values()
    story.see(CALM, rounds=5)
    assert story.hosts == 3, "paid for until the end of the BTU"
    story.see(CALM, rounds=60)
    assert story.hosts < 3
    bill = story.landlord.bill(story.at_s)
    assert bill.releases and bill.early_releases == 0, leased


def test_fixed_leases_for_the_lanes_of_the_job_and_never_changes_them() -> None:
    wide = dataclasses.replace(LATE, lanes=6)
    story = Story(FIXED)
    story.see(wide)
    assert story.hosts == 3
    story.see(dataclasses.replace(CALM, lanes=6), rounds=60)
    assert story.hosts == 3 and story.engine.given == []


def test_budget_holds_whatever_the_queue() -> None:
    story = Story(THRESHOLD, most=1)
    story.see(LATE, rounds=10)
    assert story.hosts == 1 and story.lanes(LATE) == 2


def test_lanes_that_were_changed_otherwise_are_the_lanes_that_slots_are_reserved_for() -> None:
    story = Story(FIXED)
    story.see(CALM)
    story.see(dataclasses.replace(CALM, lanes=4))
    assert story.hosts == 2


def test_rows_that_wait_for_an_epoch_queue_at_the_busiest_operator() -> None:
    epochs = Seen("late", latency_s=4.0, pace_s=0.5, epoch_s=0.4, waiting=600.0, busy=0.9)
    found = demands_of(view(600.0, epochs).jobs["late"])
    assert {name: demand.queue for (_, name), demand in found.items()} == {"in": 0.0, "work": 600.0}
    assert found["late", "work"].expected_s == 1.0 and found["late", "work"].duration_s == pytest.approx(4.0)


def test_host_that_failed_is_replaced_and_lanes_keep_their_number() -> None:
    planner = ReservedSlots(FIXED, Terms((KIND,), Budget(3), HostSettings()), Settings())
    hosts = {"leased-1": Host("leased-1", KIND, 0.0, HostPhase.FAILED)}
    now = HostsView(view(600.0, CALM), hosts, Ledger().matched(hosts, 600.0))
    _, steps = planner.decide(ProvisionState(leases=1), now)
    assert [(one.kind, one.host) for one in steps if isinstance(one, Action)] == [
        (ActionKind.RELEASE, "leased-1"),
        (ActionKind.LEASE, "leased-2"),
    ]


def test_refused_lanes_are_one_sentence() -> None:
    story = Story(THRESHOLD, engine=Lanes("no slots"))
    with pytest.raises(EngineError, match="lanes of late could not be changed: no slots"):
        story.see(LATE)
