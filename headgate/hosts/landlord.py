"""Leases and releases the hosts of a service or of a scenario as a planner decides, keeps the books, and writes the journal.

A planner decides which hosts are leased and released; the landlord watches the pool and reports events. The landlord writes each lease
and release to the journal before acting. After a kill, a new landlord finds the unfinished actions in the journal and carries them out:
a second lease or release of the same host changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from headgate.core.hosts import Host, HostPhase, lease_number
from headgate.core.metrics import View
from headgate.core.model import Action, ActionKind, Cause, Outcome
from headgate.core.quantities import show_seconds
from headgate.errors import EngineError
from headgate.hosts import actions as host_actions
from headgate.hosts.leases import NO_BILL, Bill, Ledger, Rental, bill
from headgate.hosts.planners import HostsView, Planner
from headgate.hosts.provision import ProvisionState
from headgate.hosts.records import HostNote, HostRecords
from headgate.ports import HostPool, Jobs, Journal, Occupants

BOOKS_KEY = "hosts"
"""Key of the books in the journal."""
BILL_KEY = "bill"
KEPT_NOTES = 20
SMALLER_BUDGET = Cause("the budget is smaller than it was")


@dataclass(frozen=True, slots=True)
class Books:
    """State of the landlord that survives restarts, besides the actions."""

    ledger: Ledger = field(default_factory=Ledger)
    settled: Bill = NO_BILL
    """The bill of leases that have ended."""
    leases: int = 0
    failures: int = 0
    no_lease_until_s: float = 0.0
    written_s: float | None = None


@dataclass(slots=True)
class _Leaving:
    """A host that the landlord releases as soon as no job needs its lanes or state."""

    action: Action
    occupants: Occupants
    address: str
    since_s: float
    released: bool = False


class Landlord:
    """Leases and releases hosts: `begin`, then `look` after every round, then `end`."""

    def __init__(
        self,
        pool: HostPool,
        planner: Planner,
        journal: Journal,
        tell: Callable[[float, str], None] = lambda at_s, text: None,
        observe_only: bool = False,
    ) -> None:
        self._pool, self._planner, self._journal, self._tell = pool, planner, journal, tell
        self._terms, self._settings = planner.terms, planner.settings
        self._observe_only = observe_only
        self._records = HostRecords(journal)
        self._state = ProvisionState()
        self._ledger, self._settled = Ledger(), NO_BILL
        self._notes: deque[HostNote] = deque(maxlen=KEPT_NOTES)
        self._hosts: Mapping[str, Host] = {}
        self._ready_s: dict[str, float] = {}
        """Time at which the landlord first found each host ready."""
        self._leaving: dict[str, _Leaving] = {}
        self.decided_s: float | None = None
        """Time of the planner's last decision."""
        self._decides_s = 0.0
        self._new_hosts = False
        """Whether hosts became ready since a caller last asked."""
        self._engine: Jobs | None = None
        """The engine whose lanes a planner may change; None while nothing runs yet."""
        self.occupants: Occupants | None = None
        """The engine that empties a host before its release; None while nothing runs yet, or where the pool waits for lanes to leave."""

    def serve(self, engine: Jobs) -> None:
        """Set the engine that runs the jobs: the engine empties hosts before their release, and a planner may change its lanes."""
        self.occupants = self._engine = engine

    # -- start and end

    def begin(self, at_s: float) -> None:
        """Continue where the journal ends; without a usable host, lease one at once."""
        books = self._read(at_s)
        self._ledger, self._settled = books.ledger, books.settled
        unfinished, notes = self._records.resume()
        self._notes.extend(notes)
        # A clock that was set back must not make the pause longer than `lease_retry_s`.
        until_s = min(books.no_lease_until_s, at_s + self._terms.settings.lease_retry_s)
        self._state = ProvisionState(failures=books.failures, no_lease_until_s=until_s)
        hosts = self._take_over(unfinished, at_s if books.written_s is None else books.written_s, at_s)
        leases = max([books.leases, *map(lease_number, (*hosts, *(note.host for note in notes)))])
        self._state = dataclasses.replace(self._state, leases=leases)
        self._reconcile(hosts, at_s)
        self._hosts = hosts
        self._ready_s = {name: at_s for name, host in hosts.items() if host.phase is HostPhase.READY}
        self._decide_after(at_s)
        if not any(host.usable for host in hosts.values()):
            self._decide(View(at_s, {}, (), frozenset()))

    def _take_over(self, unfinished: Sequence[Action], written_s: float, at_s: float) -> Mapping[str, Host]:
        """Carry out the unfinished actions of the last landlord, release hosts beyond the current budget, and return the hosts."""
        for action in unfinished:
            if action.kind is ActionKind.RELEASE:
                self._carry_out(action, at_s)
        hosts = self._pool.hosts()
        # A host that disappeared while no landlord ran counts as held until the books were last written.
        self._reconcile(hosts, written_s)
        for host in self._terms.budget.beyond(host for host in hosts.values() if host.usable):
            self._act(host_actions.release(host.name, SMALLER_BUDGET), at_s)
        ledger = self._ledger
        for action in unfinished:
            if (kind := action.host_type) is None:
                continue
            if action.host in hosts or self._terms.budget.allows(ledger, kind, at_s):
                ledger = ledger.leased(action.host, kind, at_s)
                self._carry_out(action, at_s)
            else:
                self._records.confirm(action, Outcome(False, SMALLER_BUDGET.text))
        return self._pool.hosts()

    def end(self, at_s: float) -> None:
        """Settle every lease when the service ends and all hosts are gone."""
        self._reconcile({}, at_s, Cause("the service ended"))
        self._write(at_s)

    # -- after every round

    def look(self, view: View, at_once: bool = False) -> bool:
        """Update the books, and let the planner decide when a decision is due, or `at_once` because lanes found no room.

        Return whether hosts became ready, so that lanes without room can be tried again.
        """
        self._records.see(view)
        self._planner.observe(view, self._hosts)
        self._refresh(view.at_s)
        if at_once or view.at_s >= self._decides_s:
            self._decide_after(view.at_s)
            self._decide(view)
        return self._take_new_hosts()

    def _decide_after(self, at_s: float) -> None:
        self._decides_s = at_s + self._terms.settings.provision_s - self._settings.round_s / 2

    def refresh(self, at_s: float) -> bool:
        """Read the hosts from the pool without a view of the jobs, because a pool repairs itself when its hosts are read.

        Return whether hosts became ready.
        """
        self._refresh(at_s)
        return self._take_new_hosts()

    def _take_new_hosts(self) -> bool:
        came, self._new_hosts = self._new_hosts, False
        return came

    def _refresh(self, at_s: float) -> None:
        hosts = self._hosts_after_releases(at_s)
        for host, use in self._planner.take_use().items():
            self._ledger = self._ledger.used(host, use)
        self._reconcile(hosts, at_s)
        self._note_phases(hosts, at_s)
        self._judge_leases(at_s)

    def _decide(self, view: View) -> None:
        at_s, before = view.at_s, self._state.no_lease_until_s
        self.decided_s = at_s
        now = HostsView(view, self._hosts, self._ledger)
        self._state, steps = self._planner.decide(self._state, now)
        if self._observe_only:
            steps = [one for one in steps if isinstance(one, Action) and _is_needed(one, self._hosts)]
        if self._state.no_lease_until_s > before:
            pause = show_seconds(self._terms.settings.lease_retry_s)
            self._note(at_s, "", f"too many leases in a row failed; none is tried for {pause}")
        self._ledger, over = self._ledger.settled(at_s)
        self._settled = self._settled.plus(over)
        self._write(at_s)
        for one in steps:
            if isinstance(one, Action):
                self._act(one, at_s)
            else:
                self._planner.place(one)
        if steps:
            self._refresh(at_s)
            self._write(at_s)

    # -- one action

    def _act(self, action: Action, at_s: float) -> None:
        if action.concerns_host:
            self._act_on_host(action, at_s)
        elif self._engine is not None:
            self._reconfigure(self._engine, action, at_s)

    def _reconfigure(self, engine: Jobs, action: Action, at_s: float) -> None:
        """Give a job the lanes that the planner reserved slots for."""
        action_id = self._journal.intend(at_s, action)
        outcome = engine.apply(action)
        self._journal.outcome(action_id, outcome)
        if not outcome.applied:
            raise EngineError(f"lanes of {action.job} could not be changed: {outcome.detail}")

    def _act_on_host(self, action: Action, at_s: float) -> None:
        self._records.intend(at_s, action)
        self._note(at_s, action.host, action.sentence)
        self._carry_out(action, at_s)

    def _carry_out(self, action: Action, at_s: float) -> None:
        if action.host_type is None:
            self._begin_release(action, at_s)
            return
        outcome = _try(partial(self._pool.lease, action.host, action.host_type))
        self._records.confirm(action, outcome)
        if not outcome.applied:
            self._note_refusal(action, outcome, at_s)

    def _note_refusal(self, action: Action, outcome: Outcome, at_s: float) -> None:
        """Note that the pool refused a lease, and pause leasing; raise an error if no usable host is left."""
        if not any(host.usable for host in self._hosts.values()):
            raise EngineError(f"{action.host} could not be leased: {outcome.detail}")
        retry_s = self._terms.settings.lease_retry_s
        self._state = dataclasses.replace(self._state, no_lease_until_s=at_s + retry_s)
        text = f"could not be leased: {outcome.detail}; no lease is tried for {show_seconds(retry_s)}"
        self._note(at_s, action.host, text)

    def _begin_release(self, action: Action, at_s: float) -> None:
        """Begin the release of a host; from a ready host, lanes and state first move to other hosts, for at most `lane_drain_s`."""
        host = self._hosts.get(action.host)
        if self.occupants is None or host is None or host.phase is not HostPhase.READY:
            self._records.confirm(action, _try(partial(self._pool.release, action.host)))
            return
        leaving = _Leaving(action, self.occupants, host.address or host.name, at_s)
        self._leaving[host.name] = leaving
        leaving.occupants.vacate(leaving.address)

    def _hosts_after_releases(self, at_s: float) -> Mapping[str, Host]:
        """Release vacant hosts, and return the hosts of the pool."""
        hosts = self._pool.hosts()
        for name in list(self._leaving):
            self._release_if_vacant(name, hosts.get(name), at_s)
        return {
            name: dataclasses.replace(host, phase=HostPhase.RELEASING) if name in self._leaving else host
            for name, host in hosts.items()
        }

    def _release_if_vacant(self, name: str, host: Host | None, at_s: float) -> None:
        one = self._leaving[name]
        if host is None:
            one.occupants.occupy(one.address)  # a later host may get the same address
            del self._leaving[name]
            if not one.released:
                self._records.confirm(one.action, Outcome(True))
        elif not one.released and (
            one.occupants.is_vacant(one.address)
            or host.phase is HostPhase.FAILED
            or at_s >= one.since_s + self._terms.settings.lane_drain_s
        ):
            self._pool.release(name)
            one.released = True
            self._records.confirm(one.action, Outcome(True))

    # -- changes of hosts

    def _reconcile(self, hosts: Mapping[str, Host], at_s: float, why: Cause | None = None) -> None:
        """Match the books with the existing hosts, and judge the release of each missing host by its cost."""
        held = [one.host for one in self._ledger.rentals if one.until_s is None]
        self._ledger = self._ledger.matched(hosts, at_s)
        gone = [one for one in self._ledger.rentals if one.host in held and one.host not in hosts]
        for rental in gone:
            self._judge_release(rental, at_s, why or Cause("it was gone, and the landlord had not released it"))

    def _judge_release(self, rental: Rental, at_s: float, why: Cause) -> None:
        if self._records.is_settled(rental.host):
            return  # the landlord was killed after it judged the release and before it wrote the books
        if not self._records.awaits(ActionKind.RELEASE, rental.host):
            action = host_actions.release(rental.host, why)
            self._records.intend(at_s, action)
            self._records.confirm(action, Outcome(True))
        cost = bill(Ledger((rental,)), at_s).sentence()
        verdict = f"gone after {show_seconds(at_s - rental.from_s)}: {cost}"
        self._records.judge(ActionKind.RELEASE, rental.host, at_s, verdict)
        self._note(at_s, rental.host, verdict)

    def _judge_leases(self, at_s: float) -> None:
        """Judge a lease when its host was ready for a window, or when the host will not become ready."""
        for name, leased_s in self._records.unjudged_leases():
            host, ready_s = self._hosts.get(name), self._ready_s.get(name)
            stays = host is not None and host.usable
            if ready_s is not None and (not stays or at_s >= ready_s + self._settings.window_s):
                verdict = f"ready after {show_seconds(ready_s - leased_s)}"
            elif ready_s is None and not stays:
                verdict = f"failed: {host.reason}" if host is not None and host.reason else "gone before it was ready"
            else:
                continue
            self._records.judge(ActionKind.LEASE, name, at_s, verdict)

    def _note_phases(self, hosts: Mapping[str, Host], at_s: float) -> None:
        """Note hosts that became ready and hosts that failed."""
        came = [host for host in hosts.values() if self._is_now(host, HostPhase.READY)]
        for host in came:
            self._ready_s[host.name] = at_s
            self._note(at_s, host.name, f"ready, {show_seconds(at_s - host.leased_s)} after its lease")
        for host in hosts.values():
            if self._is_now(host, HostPhase.FAILED):
                self._note(at_s, host.name, f"failed: {host.reason}")
        self._hosts = hosts
        self._new_hosts = self._new_hosts or bool(came)

    def _is_now(self, host: Host, phase: HostPhase) -> bool:
        before = self._hosts.get(host.name)
        return host.phase is phase and (before is None or before.phase is not phase)

    # -- figures for people

    def hosts(self) -> Mapping[str, Host]:
        """The hosts as last read from the pool."""
        return self._hosts

    def bill(self, at_s: float) -> Bill:
        """The cost of all hosts so far."""
        return self._settled.plus(bill(self._ledger, at_s))

    def spending_per_hour(self, at_s: float) -> float:
        """The price per hour of all hosts that are paid for now."""
        return self._ledger.spending_per_hour(at_s)

    @property
    def notes(self) -> tuple[HostNote, ...]:
        """The newest notes."""
        return tuple(self._notes)

    def _note(self, at_s: float, host: str, text: str) -> None:
        self._notes.append(HostNote(at_s, host, text))
        self._tell(at_s, f"{host}: {text}" if host else text)

    # -- the books

    def _write(self, at_s: float) -> None:
        """Write the books, and the bill in words for people who read the journal after the run."""
        state = self._state
        books = Books(self._ledger, self._settled, state.leases, state.failures, state.no_lease_until_s, at_s)
        self._journal.set_about(BOOKS_KEY, msgspec.json.encode(books).decode())
        self._journal.set_about(BILL_KEY, self.bill(at_s).sentence())

    def _read(self, at_s: float) -> Books:
        text = self._journal.about().get(BOOKS_KEY)
        try:
            return Books() if text is None else msgspec.json.decode(text, type=Books)
        except msgspec.MsgspecError as error:
            self._tell(at_s, f"what was written down about hosts cannot be read ({error}); the bill begins again")
            return Books()


def _try(step: Callable[[], None]) -> Outcome:
    """Run a step of the pool; an error of the pool becomes an outcome, so that the error does not end the loop."""
    try:
        step()
    except EngineError as error:
        return Outcome(False, str(error))
    return Outcome(True)


def _is_needed(action: Action, hosts: Mapping[str, Host]) -> bool:
    """Whether the landlord takes this step even when it only observes: jobs need one host, and a failed host is useless."""
    if not action.concerns_host:
        return False
    if action.kind is ActionKind.LEASE:
        return not any(host.usable for host in hosts.values())
    return hosts[action.host].phase is HostPhase.FAILED
