"""Host types that can be leased, and leased hosts.

A host is billed per billing time unit (BTU); a started BTU is billed in full (VISP, Hochreiner et al., PeerJ CS 2017, section 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from headgate.errors import HostError

HOUR_S = 3600.0
EXACT_S = 1e-6
"""Rounding error that comparisons of times tolerate, in seconds."""

OperatorKey = tuple[str, str]
"""Names of a job and of one of its operators."""


@dataclass(frozen=True, slots=True)
class HostType:
    """A type of host that can be leased.

    >>> HostType("small", cores=3, memory_mb=5120, price=1.0, btu_s=600).price_per_hour
    6.0
    """

    name: str
    cores: float
    memory_mb: float
    price: float
    """Price of each started BTU."""
    btu_s: float
    """Length of a billing time unit (BTU), in seconds."""
    startup_s: float = 45.0
    """Usual time from the lease until the host runs lanes, in seconds."""

    def __post_init__(self) -> None:
        """Refuse a host type that cannot be leased."""
        for what in ("btu_s", "cores", "memory_mb"):
            _check(getattr(self, what) > 0, f'host type "{self.name}"', what, getattr(self, what), "above 0")
        for what in ("price", "startup_s"):
            _check(getattr(self, what) >= 0, f'host type "{self.name}"', what, getattr(self, what), "at least 0")

    @property
    def price_per_hour(self) -> float:
        """Price of one hour, in the currency of `price`."""
        return self.price * HOUR_S / self.btu_s


def _check(holds: bool, where: str, what: str, value: float, rule: str) -> None:
    if not holds or not math.isfinite(value):
        raise HostError(f"{where}: {what} is {value:g}; it must be {rule}")


class HostPhase(Enum):
    """Life cycle of a leased host."""

    STARTING = "starting"
    READY = "ready"
    RELEASING = "releasing"
    """The host drains its lanes before its release."""
    FAILED = "failed"
    """The host never started, or died."""


@dataclass(frozen=True, slots=True)
class Host:
    """A leased host."""

    name: str
    kind: HostType
    leased_s: float
    phase: HostPhase = HostPhase.STARTING
    images: frozenset[OperatorKey] = frozenset()
    """Operators whose image the host has cached; further lanes of these operators start fast."""
    reason: str = ""
    """Why the host failed; empty unless the phase is FAILED."""
    address: str = ""
    """The engine's name for the host; empty if the engine uses `name`."""

    @property
    def usable(self) -> bool:
        """Whether lanes may be placed on the host: from the lease until its release begins."""
        return self.phase in (HostPhase.STARTING, HostPhase.READY)

    def remaining_s(self, at_s: float) -> float:
        """Seconds until the paid billing time units end."""
        return btus_begun(at_s - self.leased_s, self.kind.btu_s) * self.kind.btu_s - (at_s - self.leased_s)


NAME = "leased-"


def host_name(number: int) -> str:
    """Unique host name for a lease number."""
    return f"{NAME}{number}"


def lease_number(name: str) -> int:
    """The lease number in the name of a leased host; 0 for any other name.

    >>> lease_number(host_name(3)), lease_number("db-1")
    (3, 0)
    """
    digits = name.removeprefix(NAME)
    return int(digits) if digits.isdigit() else 0


def btus_begun(held_s: float, btu_s: float) -> int:
    """Number of billing time units billed for a host that was held for `held_s` seconds.

    >>> btus_begun(0, 600), btus_begun(600, 600), btus_begun(601, 600)
    (1, 1, 2)
    """
    return max(1, math.ceil(held_s / btu_s - EXACT_S))


class HostPlace(Enum):
    """Where leased hosts come from: the first part of `--hosts`."""

    LOCAL = "local"
    """Processes of this machine."""
    EXECUTORS = "executors"
    """Executors of the cluster that `--master` names."""
    COMMAND = "command"
    """Machines that an executable leases; the machines join the cluster that `--master` names."""


@dataclass(frozen=True, slots=True)
class HostSource:
    """Where leased hosts come from."""

    place: HostPlace = HostPlace.LOCAL
    command: str = ""
    """Path of the executable; only for `HostPlace.COMMAND`."""
