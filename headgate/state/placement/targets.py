"""The copies of slices that each host should have, and the steps that are finished once it has them (ChronoStream, III-B and III-C).

The driver sends each host its full target state, not a diff. A host may reach a target twice, late or not at all: the next target makes
up for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.state.placement.slices import Act, Done, MigrationPhase, Placement, SliceCopies

COMING = frozenset((MigrationPhase.PREPARE, MigrationPhase.REBUILD, MigrationPhase.REROUTE))
"""Phases in which the destination's copy follows that of the source."""


@dataclass(frozen=True, slots=True)
class HostTarget:
    """The copies of one operator's slices that a host should have."""

    follow: tuple[int, ...] = ()
    """Slices whose copy on the host follows the active copy: backups, and slices that are about to move to the host."""
    keep: tuple[int, ...] = ()
    """All slices that the host needs; the host may delete copies of other slices."""


def host_targets(placement: Placement) -> dict[str, HostTarget]:
    """The target of each live host.

    >>> host_targets(Placement.first(2, ["a", "b"], 1))
    {'a': HostTarget(follow=(1,), keep=(0, 1)), 'b': HostTarget(follow=(0,), keep=(0, 1))}
    """
    follow: dict[str, list[int]] = defaultdict(list)
    keep: dict[str, list[int]] = defaultdict(list)
    for slice_, place in enumerate(placement.places):
        for host in sorted(_followers(place)):
            follow[host].append(slice_)
        for host in sorted(_holders(place)):
            keep[host].append(slice_)
    return {host: HostTarget(tuple(follow[host]), tuple(keep[host])) for host in placement.hosts}


def _followers(place: SliceCopies) -> set[str]:
    moving = place.migration
    coming = {moving.destination} if moving is not None and moving.phase in COMING else set()
    return ({*place.backups} | coming) - {place.active}


def _holders(place: SliceCopies) -> set[str]:
    moving = {place.migration.source, place.migration.destination} if place.migration is not None else set()
    return {place.active, *place.backups} | moving


def has_work(placement: Placement) -> bool:
    """Whether a backup or the copy of a migration is still missing."""
    return any(
        place.ready != frozenset(place.backups)
        or (place.migration is not None and place.migration.phase in (MigrationPhase.PREPARE, MigrationPhase.REBUILD))
        for place in placement.places
    )


def finished_steps(placement: Placement, reached: Mapping[str, Mapping[int, int]], epoch: int) -> tuple[Done, ...]:
    """The steps that are finished once hosts have brought their copies to the epochs `reached`; the driver asked the hosts for `epoch`."""
    found: list[Done] = []
    for slice_, place in enumerate(placement.places):
        good = {host for host, versions in reached.items() if versions.get(slice_, -1) >= epoch}
        found += [Done(Act.BACK_UP, slice_, host) for host in place.backups if host in good - place.ready]
        if place.migration is not None:
            found += _advances(slice_, place.migration.destination, reached, good)
    return tuple(found)


def _advances(slice_: int, host: str, reached: Mapping[str, object], good: set[str]) -> list[Done]:
    """A host that has answered is prepared; a host with a current copy has rebuilt the slice."""
    acts = [Act.PREPARE] if host in reached else []
    acts += [Act.REBUILD] if host in good else []
    return [Done(act, slice_, host) for act in acts]
