"""Hosts as all parts of Headgate name them: types that can be leased, and a host while it is leased.

A host is paid per billing time unit (BTU); a BTU that has begun is paid in full (VISP, Hochreiner et al., PeerJ CS 2017, section 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from headgate.errors import HostError

HOUR_S = 3600.0
EXACT_S = 1e-6
"""Times are sums of floats; less than this is no time at all."""

OperatorKey = tuple[str, str]
"""Job and operator."""


@dataclass(frozen=True, slots=True)
class HostType:
    """A kind of host that can be leased.

    >>> HostType("small", cores=3, memory_mb=5120, price=1.0, btu_s=600).price_per_hour
    6.0
    """

    name: str
    cores: float
    memory_mb: float
    price: float
    """Money for each BTU that is begun."""
    btu_s: float
    """Length of a billing time unit."""
    startup_s: float = 45.0
    """How long it usually takes from the lease until it runs lanes."""

    def __post_init__(self) -> None:
        """Refuse a host type that cannot be leased."""
        for what in ("btu_s", "cores", "memory_mb"):
            _check(getattr(self, what) > 0, f'host type "{self.name}"', what, getattr(self, what), "above 0")
        for what in ("price", "startup_s"):
            _check(getattr(self, what) >= 0, f'host type "{self.name}"', what, getattr(self, what), "at least 0")

    @property
    def price_per_hour(self) -> float:
        """What it costs for as long as it is held."""
        return self.price * HOUR_S / self.btu_s


def _check(holds: bool, where: str, what: str, value: float, rule: str) -> None:
    if not holds or not math.isfinite(value):
        raise HostError(f"{where}: {what} is {value:g}; it must be {rule}")


class HostPhase(Enum):
    """Where a leased host stands."""

    STARTING = "starting"
    READY = "ready"
    RELEASING = "releasing"
    """Its lanes go; then it does."""
    FAILED = "failed"
    """It never came up, or it died."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host while it is leased."""

    name: str
    kind: HostType
    leased_s: float
    phase: HostPhase = HostPhase.STARTING
    images: frozenset[OperatorKey] = frozenset()
    """Operators whose image it has already, so that another lane of them starts fast."""
    reason: str = ""
    """Why it failed."""
    address: str = ""
    """What the engine calls it; empty: by its name."""

    @property
    def usable(self) -> bool:
        """Whether lanes may be put on it: as soon as it is leased, until it is to go."""
        return self.phase in (HostPhase.STARTING, HostPhase.READY)

    def remaining_s(self, at_s: float) -> float:
        """Time that is paid for and still to come."""
        return btus_begun(at_s - self.leased_s, self.kind.btu_s) * self.kind.btu_s - (at_s - self.leased_s)


NAME = "leased-"


def host_name(number: int) -> str:
    """The name of the host of a lease, by the number of the lease: no name is given twice."""
    return f"{NAME}{number}"


def lease_number(name: str) -> int:
    """The number in the name of a leased host; 0 for any other name.

    >>> lease_number(host_name(3)), lease_number("db-1")
    (3, 0)
    """
    digits = name.removeprefix(NAME)
    return int(digits) if digits.isdigit() else 0


def btus_begun(held_s: float, btu_s: float) -> int:
    """Billing time units that a host costs which was held for so long.

    >>> btus_begun(0, 600), btus_begun(600, 600), btus_begun(601, 600)
    (1, 1, 2)
    """
    return max(1, math.ceil(held_s / btu_s - EXACT_S))
