"""Hosts that left without a release: they died, never came up, or lost their connection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headgate.core.hosts import HostPhase
from headgate.core.model import HostReading
from headgate.server.status import LeasesStatus, LeaseStatus


@dataclass(slots=True)
class LostHosts:
    """Compares the hosts of each round with those of the round before. Owner: the loop."""

    _seen: frozenset[str] = frozenset()
    _releasing: frozenset[str] = frozenset()
    _counted: frozenset[str] = frozenset()
    """Hosts that were already counted as lost, until their leases end."""

    def count(self, hosts: Iterable[HostReading], leases: LeasesStatus | None) -> int:
        """Return the number of hosts lost since the last call; empty `hosts` mean that the hosts could not be read."""
        seen = frozenset(host.name for host in hosts) or self._seen
        leased = leases.hosts if leases is not None else ()
        releasing, failed, held = (
            _in(leased, HostPhase.RELEASING),
            _in(leased, HostPhase.FAILED),
            _in(leased, *HostPhase),
        )
        gone = self._seen - seen - self._releasing - releasing
        lost = (gone | failed) - self._counted
        self._seen, self._releasing = seen, releasing
        self._counted = (self._counted | lost) & (failed | (held - seen))
        return len(lost)


def _in(hosts: Iterable[LeaseStatus], *phases: HostPhase) -> frozenset[str]:
    """Return the names, as in readings, of leased hosts in these phases."""
    values = {phase.value for phase in phases}
    return frozenset(host.address or host.name for host in hosts if host.phase in values)
