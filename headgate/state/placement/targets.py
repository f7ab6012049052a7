"""What each host has to do for the copies of slices, and what it amounts to once it is done (ChronoStream, III-B and III-C).

A placement says who should have what; a duty says it to one host, as a whole and not as a change. So it may be done twice, late, or
not at all, and the next one makes up for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.state.placement.slices import Act, Done, MigrationPhase, Placement, SliceCopies

COMING = frozenset((MigrationPhase.PREPARE, MigrationPhase.REBUILD, MigrationPhase.REROUTE))
"""Phases in which the destination's copy follows that of the source."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What a host should have of one operator."""

    follow: tuple[int, ...] = ()
    """Slices whose copy there follows the active one: backups, and those that are about to move there."""
    keep: tuple[int, ...] = ()
    """All slices that it has for a purpose; copies of others may go."""


def duties(placement: Placement) -> dict[str, Duty]:
    """By host, for every live one.

    >>> duties(Placement.first(2, ["a", "b"], 1))
    {'a': Duty(follow=(1,), keep=(0, 1)), 'b': Duty(follow=(0,), keep=(0, 1))}
    """
    follow: dict[str, list[int]] = defaultdict(list)
    keep: dict[str, list[int]] = defaultdict(list)
    for slice_, place in enumerate(placement.places):
        for host in sorted(_followers(place)):
            follow[host].append(slice_)
        for host in sorted(_holders(place)):
            keep[host].append(slice_)
    return {host: Duty(tuple(follow[host]), tuple(keep[host])) for host in placement.hosts}


def _followers(place: SliceCopies) -> set[str]:
    moving = place.migration
    coming = {moving.destination} if moving is not None and moving.phase in COMING else set()
    return ({*place.backups} | coming) - {place.active}


def _holders(place: SliceCopies) -> set[str]:
    moving = {place.migration.source, place.migration.destination} if place.migration is not None else set()
    return {place.active, *place.backups} | moving


def waiting(placement: Placement) -> bool:
    """Whether something waits for the hosts to do their duties: a copy that is not there yet."""
    return any(
        place.ready != frozenset(place.backups)
        or (place.migration is not None and place.migration.phase in (MigrationPhase.PREPARE, MigrationPhase.REBUILD))
        for place in placement.places
    )


def achieved(placement: Placement, reached: Mapping[str, Mapping[int, int]], epoch: int) -> tuple[Done, ...]:
    """What is done, if hosts were asked to bring copies to an epoch and came that far, by host and slice."""
    found: list[Done] = []
    for slice_, place in enumerate(placement.places):
        good = {host for host, versions in reached.items() if versions.get(slice_, -1) >= epoch}
        found += [Done(Act.BACK_UP, slice_, host) for host in place.backups if host in good - place.ready]
        if place.migration is not None:
            found += _advances(slice_, place.migration.destination, reached, good)
    return tuple(found)


def _advances(slice_: int, host: str, reached: Mapping[str, object], good: set[str]) -> list[Done]:
    """A host that has answered is prepared; one that has a good copy has rebuilt it."""
    acts = [Act.PREPARE] if host in reached else []
    acts += [Act.REBUILD] if host in good else []
    return [Done(act, slice_, host) for act in acts]
