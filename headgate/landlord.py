"""Hosts for a service that runs: leased and released by what its jobs' intents are worth, each step written down before it is taken.

The decision is `core/leasing.py`; this watches the pool, keeps the books and tells what happened. Killed at any moment, it finds on
its return the steps it had intended and takes them: leasing or releasing twice is doing it once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headgate.config import Settings
from headgate.core import leasing
from headgate.core.hosts import NO_BILL, Bill, Cluster, Host, HostPhase, Lease, Ledger, OperatorKey, Release, bill
from headgate.core.leasing import LeaseView
from headgate.core.metrics import View, span_of
from headgate.core.provision import ProvisionState, Terms
from headgate.core.quantities import show_seconds
from headgate.core.slots import cluster_of, measured_work
from headgate.ports import HostPool, Journal, Occupants

BOOKS_KEY = "hosts"
"""Where the journal has the books."""
BILL_KEY = "bill"
KEPT_STEPS = 20
NAME = "leased-"

Step = Lease | Release


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was done about hosts, or that happened to one."""

    at_s: float
    host: str
    text: str


@dataclass(frozen=True, slots=True)
class Books:
    """What must not be forgotten."""

    ledger: Ledger = field(default_factory=Ledger)
    settled: Bill = NO_BILL
    """What leases came to that are over."""
    leases: int = 0
    failures: int = 0
    no_lease_until_s: float = 0.0
    to_lease: tuple[Lease, ...] = ()
    """Intended, and perhaps not done yet."""
    to_release: tuple[Release, ...] = ()
    notes: tuple[Note, ...] = ()
    written_s: float | None = None


@dataclass(slots=True)
class Leaving:
    """A host that goes as soon as nobody needs what is on it."""

    address: str
    since_s: float
    released: bool = False


class Landlord:
    """Leases and releases hosts: `begin`, then `look` after every round, then `end`."""

    def __init__(
        self,
        pool: HostPool,
        terms: Terms,
        journal: Journal,
        settings: Settings,
        tell: Callable[[float, str], None] = lambda at_s, text: None,
        observe_only: bool = False,
    ) -> None:
        self.pool, self.terms = pool, terms
        self._journal, self._settings, self._tell = journal, settings, tell
        self._observe_only = observe_only
        self._state = ProvisionState()
        self._ledger, self._settled = Ledger(), NO_BILL
        self._notes: deque[Note] = deque(maxlen=KEPT_STEPS)
        self._work: dict[OperatorKey, float] = {}
        """As it was measured last."""
        self._hosts: Mapping[str, Host] = {}
        self._leaving: dict[str, Leaving] = {}
        self._decides_s = 0.0
        self.occupants: Occupants | None = None
        """Who is asked to leave a host before it goes; None while nothing runs yet."""

    # -- start and end

    def begin(self, at_s: float) -> None:
        """Go on where the journal ends; the first host is leased at once."""
        books = self._read()
        self._ledger, self._settled = books.ledger, books.settled
        self._notes.extend(books.notes)
        hosts = self._taken_over(books, at_s)
        leases = max([books.leases, *(_number(name) for name in hosts)])
        self._state = ProvisionState(leases=leases, failures=books.failures, no_lease_until_s=books.no_lease_until_s)
        self._ledger, self._hosts = self._ledger.matched(hosts, at_s), hosts
        if not any(host.usable for host in hosts.values()):
            self._decide(View(at_s, {}, (), frozenset()), hosts)

    def _taken_over(self, books: Books, at_s: float) -> Mapping[str, Host]:
        """Hosts of before, once what was intended is done; as far as today's budget goes, which may be another one."""
        self._take(books.to_release, at_s)
        hosts = self.pool.hosts()
        # Those that are gone went when nobody kept books: nothing was paid for them from then on.
        self._ledger = self._ledger.matched(hosts, at_s if books.written_s is None else books.written_s)
        for host in self.terms.budget.beyond(host for host in hosts.values() if host.usable):
            self._note(at_s, host.name, "released: the budget is smaller than it was")
            self.pool.release(host.name)
        ledger = self._ledger
        for one in books.to_lease:
            if self.terms.budget.allows(ledger, one.kind, at_s):
                ledger = ledger.leased(one.host, one.kind, at_s)
                self.pool.lease(one.host, one.kind)
        return self.pool.hosts()

    def end(self, at_s: float) -> None:
        """All hosts are gone: what was leased is settled."""
        self._ledger = self._ledger.matched({}, at_s)
        self._write((), at_s)

    # -- after every round

    def look(self, view: View) -> bool:
        """Keep the books; decide when it is time to. Returns whether hosts came: what found no room before may find it now."""
        hosts, came = self.tend(view.at_s)
        self._note_use(view, hosts)
        self._work = {key: amount for key, amount in self._work.items() if key[0] in view.jobs}
        self._work |= measured_work(view, self._settings)
        if view.at_s >= self._decides_s:
            self._decides_s = view.at_s + self.terms.settings.provision_s - self._settings.round_s / 2
            self._decide(view, hosts)
        return came

    def tend(self, at_s: float) -> tuple[Mapping[str, Host], bool]:
        """See to the hosts, whether or not anything is known of the jobs: a pool mends itself when it is looked at."""
        hosts = self._seen_off(at_s)
        self._ledger = self._ledger.matched(hosts, at_s)
        return hosts, self._note_phases(hosts, at_s)

    def _decide(self, view: View, hosts: Mapping[str, Host]) -> None:
        before = self._state.no_lease_until_s
        cluster, unplaced = cluster_of(view, hosts, self._work, self._settings)
        now = LeaseView(view, cluster, self._ledger, unplaced, shared=True)
        self._state, planned = leasing.step(self._state, now, self.terms, self._settings)
        steps = tuple(one for one in planned if isinstance(one, Lease | Release))
        if self._observe_only:
            steps = tuple(one for one in steps if _is_needed(one, cluster))
        for one in steps:
            self._note(view.at_s, one.host, _why(one, unplaced, hosts, view.at_s))
        if self._state.no_lease_until_s > before:
            pause = show_seconds(self.terms.settings.lease_retry_s)
            self._note(view.at_s, "", f"too many leases in a row failed; none is tried for {pause}")
        self._settle(view.at_s)
        self._write(steps, view.at_s)
        self._take(steps, view.at_s)
        if steps:
            self._note_phases(self._seen_off(view.at_s), view.at_s)
            self._ledger = self._ledger.matched(self._hosts, view.at_s)
            self._write((), view.at_s)

    def _take(self, steps: Sequence[Step], at_s: float) -> None:
        for one in steps:
            if isinstance(one, Lease):
                self.pool.lease(one.host, one.kind)
            else:
                self._begin_release(one.host, at_s)

    def _begin_release(self, name: str, at_s: float) -> None:
        """State moves to other hosts first, as long as there is time for it."""
        host = self._hosts.get(name)
        if self.occupants is None or host is None or host.phase is not HostPhase.READY:
            self.pool.release(name)
            return
        self._leaving[name] = Leaving(host.address or name, at_s)
        self.occupants.vacate(host.address or name)

    def _seen_off(self, at_s: float) -> Mapping[str, Host]:
        """The hosts of the pool; those that leave go now if they can."""
        hosts = self.pool.hosts()
        for name in list(self._leaving):
            self._see_off(name, hosts.get(name), at_s)
        return {
            name: replace(host, phase=HostPhase.RELEASING) if name in self._leaving and host.usable else host
            for name, host in hosts.items()
        }

    def _see_off(self, name: str, host: Host | None, at_s: float) -> None:
        assert self.occupants is not None
        one = self._leaving[name]
        if host is None:
            self.occupants.occupy(one.address)  # by another host that may come to have it
            del self._leaving[name]
        elif not one.released and (
            self.occupants.is_vacant(one.address)
            or host.phase is HostPhase.FAILED
            or at_s >= one.since_s + self.terms.settings.lane_drain_s
        ):
            one.released = True
            self.pool.release(name)

    # -- what is known

    def hosts(self) -> Mapping[str, Host]:
        """As of the last look at the pool."""
        return self._hosts

    def bill(self, at_s: float) -> Bill:
        """What all hosts have cost so far."""
        return self._settled.plus(bill(self._ledger, at_s))

    def spending_per_hour(self, at_s: float) -> float:
        """Price of all that is paid for at this moment."""
        return self._ledger.spending_per_hour(at_s)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What happened lately."""
        return tuple(self._notes)

    def _note(self, at_s: float, host: str, text: str) -> None:
        self._notes.append(Note(at_s, host, text))
        self._tell(at_s, f"{host}: {text}" if host else text)

    def _note_phases(self, hosts: Mapping[str, Host], at_s: float) -> bool:
        """Tell what became of hosts; returns whether some came."""
        came = [host for host in hosts.values() if self._is_now(host, HostPhase.READY)]
        for host in came:
            self._note(at_s, host.name, f"ready, {show_seconds(at_s - host.leased_s)} after its lease")
        for host in hosts.values():
            if self._is_now(host, HostPhase.FAILED):
                self._note(at_s, host.name, f"failed: {host.reason}")
        for name in sorted(self._hosts.keys() - hosts.keys()):
            self._note(at_s, name, "gone")
        self._hosts = hosts
        return bool(came)

    def _is_now(self, host: Host, phase: HostPhase) -> bool:
        before = self._hosts.get(host.name)
        return host.phase is phase and (before is None or before.phase is not phase)

    def _note_use(self, view: View, hosts: Mapping[str, Host]) -> None:
        """Each job pays for the time that its lanes were busy on a host."""
        named = {host.address or name: name for name, host in hosts.items()}
        for job, seen in view.jobs.items():
            span = span_of(seen.samples[-2:])
            for operator in seen.job.graph.operators if span is not None else ():
                assert span is not None
                places = span.last.reading.operators[operator].hosts or ()
                for place, busy_s in zip(places, span.busy_s(operator), strict=False):
                    if place in named:
                        self._ledger = self._ledger.used(named[place], {job: busy_s})

    # -- the journal

    def _settle(self, at_s: float) -> None:
        self._ledger, over = self._ledger.settled(at_s)
        self._settled = self._settled.plus(over)

    def _write(self, steps: Sequence[Step], at_s: float) -> None:
        """The bill in words as well, for whoever reads the journal when nothing runs any more."""
        books = Books(
            self._ledger,
            self._settled,
            self._state.leases,
            self._state.failures,
            self._state.no_lease_until_s,
            tuple(one for one in steps if isinstance(one, Lease)),
            (*(one for one in steps if isinstance(one, Release)), *map(Release, self._leaving)),
            self.notes,
            at_s,
        )
        self._journal.set_about(BOOKS_KEY, msgspec.json.encode(books).decode())
        self._journal.set_about(BILL_KEY, self.bill(at_s).sentence())

    def _read(self) -> Books:
        text = self._journal.about().get(BOOKS_KEY)
        return Books() if text is None else msgspec.json.decode(text, type=Books)


def _is_needed(step: Step, cluster: Cluster) -> bool:
    """Whether it is done even by who only observes: something must run somewhere, and what failed is no host."""
    if isinstance(step, Lease):
        return not cluster.usable()
    return cluster.hosts[step.host].phase is HostPhase.FAILED


def _number(name: str) -> int:
    """Of a host that was leased here; 0 of any other."""
    digits = name.removeprefix(NAME)
    return int(digits) if digits.isdigit() else 0


def _why(step: Step, unplaced: Mapping[OperatorKey, int], hosts: Mapping[str, Host], at_s: float) -> str:
    if isinstance(step, Lease):
        jobs = sorted({job for (job, _), parts in unplaced.items() if parts and job})
        cause = f"{', '.join(jobs)} cannot do with the hosts there are" if jobs else "there is no other that works"
        return f"leased for {step.kind.price:g} per {show_seconds(step.kind.btu_s)}: {cause}"
    host = hosts[step.host]
    if host.phase is HostPhase.FAILED:
        return "given back"
    return f"released with {show_seconds(host.remaining_s(at_s))} of its BTU to come: the others have room for all that runs"
