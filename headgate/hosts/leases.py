"""Leases and money: the lanes on each leased host, the steps that change lanes and hosts, the budget, and the bill (VISP, section 3.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headgate.core.hosts import EXACT_S, Host, HostPhase, HostType, OperatorKey, btus_begun
from headgate.core.quantities import show_seconds
from headgate.errors import HostError

# -- needs of lanes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Need:
    """Cores and memory that are kept for one lane of an operator."""

    cores: float
    memory_mb: float

    def times_in(self, room: Need) -> float:
        """How many times the need fits into the room."""
        by_cores = room.cores / self.cores if self.cores > 0 else math.inf
        by_memory = room.memory_mb / self.memory_mb if self.memory_mb > 0 else math.inf
        return min(by_cores, by_memory)

    def plus(self, other: Need, times: float = 1.0) -> Need:
        """The sum of this need and `times` times the other need; negative `times` subtract."""
        return Need(self.cores + times * other.cores, self.memory_mb + times * other.memory_mb)


def check_needs(needs: Mapping[OperatorKey, Need], kinds: Iterable[HostType]) -> None:
    """Raise an error if one lane of an operator fits on no host type."""
    kinds = tuple(kinds)
    for (job, operator), need in needs.items():
        if not any(need.times_in(Need(kind.cores, kind.memory_mb)) >= 1 for kind in kinds):
            largest = max(kinds, key=lambda kind: need.times_in(Need(kind.cores, kind.memory_mb)))
            raise HostError(
                f'job "{job}": a lane of operator "{operator}" needs {need.cores:g} cores and {need.memory_mb:g} MB, which fits on no'
                f' host type; the closest, "{largest.name}", has {largest.cores:g} cores and {largest.memory_mb:g} MB'
            )


# -- leased hosts ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeasedCluster:
    """Leased hosts and the lanes on them. Lanes that are stopping are not counted, because their cores and memory become free soon."""

    hosts: Mapping[str, Host]
    needs: Mapping[OperatorKey, Need]
    placed: Mapping[str, Mapping[OperatorKey, int]] = field(default_factory=dict)
    """Lanes of each operator, by host."""

    def lanes(self, operator: OperatorKey) -> int:
        """All lanes of an operator."""
        return sum(on_host.get(operator, 0) for on_host in self.placed.values())

    def on(self, host: str) -> Mapping[OperatorKey, int]:
        """The lanes of one host."""
        return self.placed.get(host, {})

    def room(self, host: str) -> Need:
        """Cores and memory of a host that no lane has reserved."""
        kind = self.hosts[host].kind
        room = Need(kind.cores, kind.memory_mb)
        for operator, lanes in self.on(host).items():
            room = room.plus(self.needs[operator], -lanes)
        return room

    def changed(self, operator: OperatorKey, host: str, lanes: int) -> LeasedCluster:
        """The cluster with more or fewer lanes of an operator on a host."""
        on_host = {**self.on(host), operator: self.on(host).get(operator, 0) + lanes}
        left = {key: count for key, count in on_host.items() if count > 0}
        return dataclasses.replace(self, placed={**self.placed, host: left})

    def with_host(self, host: Host) -> LeasedCluster:
        """The cluster with an added or replaced host."""
        return dataclasses.replace(self, hosts={**self.hosts, host.name: host})

    def usable(self) -> list[Host]:
        """Hosts that take lanes."""
        return [host for host in self.hosts.values() if host.usable]


# -- steps -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartLane:
    """Start one more lane of an operator on a host."""

    operator: OperatorKey
    host: str


@dataclass(frozen=True, slots=True)
class StopLane:
    """Remove one lane of an operator from a host; the lane finishes its current rows."""

    operator: OperatorKey
    host: str


@dataclass(frozen=True, slots=True)
class MoveLane:
    """Move a lane to another host; the old lane works until the new lane does."""

    operator: OperatorKey
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """Lease a host; the name is chosen here, so that a repeated lease has no further effect."""

    host: str
    kind: HostType


@dataclass(frozen=True, slots=True)
class ReleaseHost:
    """Release a host after its lanes have stopped."""

    host: str


LaneStep = StartLane | StopLane | MoveLane
PlanStep = LaneStep | LeaseHost | ReleaseHost


def apply_step(cluster: LeasedCluster, step: PlanStep, at_s: float) -> LeasedCluster:
    """The cluster after the step."""
    match step:
        case StartLane(operator, host):
            return cluster.changed(operator, host, 1)
        case StopLane(operator, host):
            return cluster.changed(operator, host, -1)
        case MoveLane(operator, source, target):
            return cluster.changed(operator, source, -1).changed(operator, target, 1)
        case LeaseHost(name, kind):
            return cluster.with_host(Host(name, kind, at_s))
        case ReleaseHost(name):
            return cluster.with_host(dataclasses.replace(cluster.hosts[name], phase=HostPhase.RELEASING))


# -- the budget ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on leased hosts and on spending per hour, which no lease may exceed; None: no limit."""

    most_hosts: int | None = None
    most_per_hour: float | None = None

    def check(self, kinds: Iterable[HostType]) -> None:
        """Refuse a budget that does not pay for one host."""
        if self.most_hosts is not None and self.most_hosts < 1:
            raise HostError(f"the budget allows {self.most_hosts} hosts; jobs need at least 1")
        cheapest = min(kinds, key=lambda kind: kind.price_per_hour)
        if self.most_per_hour is not None and self.most_per_hour < cheapest.price_per_hour:
            raise HostError(
                f"the budget is {self.most_per_hour:g} per hour, but one host of the cheapest type,"
                f' "{cheapest.name}", costs {cheapest.price_per_hour:g}; give at least that'
            )

    def allows(self, ledger: Ledger, kind: HostType, at_s: float) -> bool:
        """Whether the budget allows one more host now; a paid BTU counts as spending until the BTU ends, used or not."""
        held = [rental for rental in ledger.rentals if rental.until_s is None]
        spending = ledger.spending_per_hour(at_s)
        return (self.most_hosts is None or len(held) < self.most_hosts) and (
            self.most_per_hour is None or spending + kind.price_per_hour <= self.most_per_hour + EXACT_S
        )

    def beyond(self, hosts: Iterable[Host]) -> list[Host]:
        """The hosts, given oldest first, that exceed the budget; the oldest host is never among them, because jobs need one host."""
        kept = 0.0
        over: list[Host] = []
        for number, host in enumerate(hosts):
            too_many = self.most_hosts is not None and number - len(over) >= self.most_hosts
            too_dear = self.most_per_hour is not None and kept + host.kind.price_per_hour > self.most_per_hour + EXACT_S
            if number and (too_many or too_dear):
                over.append(host)
            else:
                kept += host.kind.price_per_hour
        return over


# -- the ledger and the bill -----------------------------------------------------------------------------------------------------


TenantJob = tuple[str, str]
"""Names of a tenant and of one of its jobs."""


@dataclass(frozen=True, slots=True)
class Rental:
    """One lease from its beginning to its end."""

    host: str
    kind: HostType
    from_s: float
    until_s: float | None = None
    """End of the lease, in seconds; None while the host is held."""
    use: Mapping[str, float] = field(default_factory=dict)
    """Use of the host by each job: busy seconds on Spark; in the simulator, reserved core seconds, or reserved memory if scarcer."""
    use_by_tenant: Mapping[str, float] = field(default_factory=dict)
    """Use of the host by each tenant, in the unit of `use`; a use counts for the tenant that owned the job at that time."""

    def btus(self, at_s: float) -> int:
        """Billing time units paid so far."""
        return btus_begun(self._end_s(at_s) - self.from_s, self.kind.btu_s)

    def paid_until_s(self, at_s: float) -> float:
        """Time until which the lease is paid, in seconds; while the host is held, at least `at_s`."""
        return self.from_s + self.btus(at_s) * self.kind.btu_s

    def cost(self, at_s: float) -> float:
        """Money paid so far."""
        return self.btus(at_s) * self.kind.price

    def wasted_s(self, at_s: float) -> float:
        """Paid seconds that were left when the host was released; 0 while the host is held."""
        return 0.0 if self.until_s is None else self.paid_until_s(at_s) - self.until_s

    def _end_s(self, at_s: float) -> float:
        return at_s if self.until_s is None else self.until_s


@dataclass(frozen=True, slots=True)
class Ledger:
    """All leases, in order."""

    rentals: tuple[Rental, ...] = ()

    def spending_per_hour(self, at_s: float) -> float:
        """Price per hour of all hosts that are held, or released but still paid for, at `at_s`."""
        paid = (one for one in self.rentals if one.until_s is None or one.paid_until_s(at_s) > at_s + EXACT_S)
        return sum(rental.kind.price_per_hour for rental in paid)

    def leased(self, host: str, kind: HostType, at_s: float) -> Ledger:
        """Add a lease; a lease that exists already is left unchanged."""
        if any(rental.host == host and rental.until_s is None for rental in self.rentals):
            return self
        return Ledger((*self.rentals, Rental(host, kind, at_s)))

    def released(self, host: str, at_s: float) -> Ledger:
        """The ledger after the end of a lease."""
        return self._with(host, lambda rental: dataclasses.replace(rental, until_s=at_s))

    def matched(self, hosts: Mapping[str, Host], at_s: float) -> Ledger:
        """The ledger matched with the hosts of the pool: unknown hosts count as leased, missing hosts as released."""
        ledger = self
        for host in hosts.values():
            ledger = ledger.leased(host.name, host.kind, host.leased_s)
        gone = [one.host for one in self.rentals if one.until_s is None and one.host not in hosts]
        for name in gone:
            ledger = ledger.released(name, at_s)
        return ledger

    def settled(self, at_s: float) -> tuple[Ledger, Bill]:
        """The ledger without leases that ended and are no longer paid for, and the bill of these leases."""
        over = tuple(one for one in self.rentals if one.until_s is not None and one.paid_until_s(at_s) <= at_s)
        return Ledger(tuple(one for one in self.rentals if one not in over)), bill(Ledger(over), at_s)

    def used(self, host: str, use: Mapping[TenantJob, float]) -> Ledger:
        """The ledger after adding the use of a host by each job."""
        by_job: dict[str, float] = {}
        by_tenant: dict[str, float] = {}
        for (tenant, job), amount in use.items():
            by_job, by_tenant = _sum(by_job, {job: amount}), _sum(by_tenant, {tenant: amount})

        def added(rental: Rental) -> Rental:
            tenants = _sum(rental.use_by_tenant, by_tenant)
            return dataclasses.replace(rental, use=_sum(rental.use, by_job), use_by_tenant=tenants)

        return self._with(host, added)

    def _with(self, host: str, change: Callable[[Rental], Rental]) -> Ledger:
        return Ledger(tuple(change(one) if one.host == host and one.until_s is None else one for one in self.rentals))


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost of leased hosts, with counts of billing time units (BTUs), leases and releases."""

    paid_btus: int
    leases: int
    renewals: int
    releases: int
    """Number of releases near the end of a BTU."""
    early_releases: int
    wasted_s: float
    cost: float
    cost_by_job: Mapping[str, float]
    """Cost by job, in proportion to the use of each host; the cost of a host without use is not attributed to a job."""
    cost_by_tenant: Mapping[str, float] = field(default_factory=dict)
    """Cost by tenant; the cost of a removed job stays with its tenant."""

    def plus(self, other: Bill) -> Bill:
        """The sum of both bills."""
        return Bill(
            self.paid_btus + other.paid_btus,
            self.leases + other.leases,
            self.renewals + other.renewals,
            self.releases + other.releases,
            self.early_releases + other.early_releases,
            self.wasted_s + other.wasted_s,
            self.cost + other.cost,
            _sum(self.cost_by_job, other.cost_by_job),
            _sum(self.cost_by_tenant, other.cost_by_tenant),
        )

    def sentence(self) -> str:
        """The bill in one sentence."""
        return f"{self.paid_btus} BTUs paid, {self.cost:.4g} in money, {show_seconds(self.wasted_s)} of it wasted"


NO_BILL = Bill(0, 0, 0, 0, 0, 0.0, 0.0, {})


def bill(ledger: Ledger, at_s: float, late_share: float = 0.1) -> Bill:
    """Add up the leases; a release with more than the share `late_share` of its BTU left counts as early."""
    over = [rental for rental in ledger.rentals if rental.until_s is not None]
    early = sum(rental.wasted_s(at_s) > late_share * rental.kind.btu_s for rental in over)
    paid = sum(rental.btus(at_s) for rental in ledger.rentals)
    by_job: dict[str, float] = {}
    by_tenant: dict[str, float] = {}
    for rental in ledger.rentals:
        by_job = _sum(by_job, _shares(rental.cost(at_s), rental.use))
        by_tenant = _sum(by_tenant, _shares(rental.cost(at_s), rental.use_by_tenant))
    return Bill(
        paid_btus=paid,
        leases=len(ledger.rentals),
        renewals=paid - len(ledger.rentals),
        releases=len(over) - early,
        early_releases=early,
        wasted_s=sum(rental.wasted_s(at_s) for rental in over),
        cost=sum(rental.cost(at_s) for rental in ledger.rentals),
        cost_by_job=by_job,
        cost_by_tenant=by_tenant,
    )


def _shares(cost: float, use: Mapping[str, float]) -> dict[str, float]:
    total = sum(use.values())
    return {name: cost * amount / total for name, amount in use.items()} if total > 0 else {}
