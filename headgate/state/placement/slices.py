"""Slices to hosts: the host of each slice's active copy, the hosts of its backups, and how slices move (ChronoStream, III-B, III-C, III-E).

`step(placement, event)` returns the next placement; `targets.py` derives the target of each host from a placement. A slice has exactly one
active copy at any time, and the backups of the slice follow the active copy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from headgate.config import StateSettings
from headgate.state.placement.backups import chained_backups


class MigrationPhase(Enum):
    """Phase of a migration."""

    PREPARE = "prepare"
    """The migration was asked for, and the destination is not ready to take a copy yet."""
    REBUILD = "rebuild"
    """The destination brings its copy up to date, while the source continues."""
    REROUTE = "reroute"
    """The copy is current and waits for an epoch boundary: from the next epoch on, the destination is active."""
    RELEASE = "release"
    """The destination is active, and the source has not let go of its copy yet."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A slice that moves from a source host to a destination host."""

    source: str
    destination: str
    phase: MigrationPhase = MigrationPhase.PREPARE


@dataclass(frozen=True, slots=True)
class SliceCopies:
    """The copies of one slice."""

    active: str
    backups: tuple[str, ...] = ()
    """Hosts that hold, or are getting, a backup."""
    ready: frozenset[str] = frozenset()
    """Hosts among `backups` that have the backup."""
    migration: Migration | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """All slices of an operator on the live hosts."""

    hosts: tuple[str, ...]
    """Live hosts, sorted."""
    places: tuple[SliceCopies, ...]
    factor: int = 1
    """Backups that every slice should have."""
    leaving: frozenset[str] = frozenset()
    """Hosts that live but get no more slices."""

    @staticmethod
    def first(slices: int, hosts: Iterable[str], factor: int, lane_hosts: Sequence[str] = ()) -> Placement:
        """Deal slices out in turn: to the hosts of the lanes, or else to all hosts.

        >>> [place.backups for place in Placement.first(3, ["a", "b", "c"], 1).places]
        [('b',), ('c',), ('a',)]
        """
        names = tuple(sorted(hosts))
        homes = lane_hosts or names
        return _with_backups(
            Placement(names, tuple(SliceCopies(homes[slice_ % len(homes)]) for slice_ in range(slices)), factor)
        )

    def homes(self) -> tuple[str, ...]:
        """The host of each slice's active copy."""
        return tuple(place.active for place in self.places)


# -- events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A host may take slices from now on."""

    host: str


@dataclass(frozen=True, slots=True)
class HostLeaves:
    """A host should be free of slices."""

    host: str


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host is gone, with its copies."""

    host: str


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """A slice should be active on another host."""

    slice: int
    destination: str


class Act(Enum):
    """A step on the copy of a slice on a host. A repeated step does no harm."""

    PREPARE = "prepare"
    REBUILD = "rebuild"
    REROUTE = "reroute"
    """Make the copy the active copy, at an epoch boundary."""
    RELEASE = "release"
    BACK_UP = "back up"
    """Make a backup on the host, which follows the active copy."""


@dataclass(frozen=True, slots=True)
class Done:
    """The act on the copy of a slice on a host is done."""

    act: Act
    slice: int
    host: str


Event = HostJoined | HostLeaves | HostLost | MoveAsked | Done


def step(placement: Placement, event: Event) -> Placement:
    """Return the placement after an event. An event that comes again changes nothing."""
    return _with_backups(_evacuated(_HANDLERS[type(event)](placement, event)))


def _joined(placement: Placement, event: HostJoined) -> Placement:
    hosts = tuple(sorted({*placement.hosts, event.host}))
    return replace(placement, hosts=hosts, leaving=placement.leaving - {event.host})


def _leaves(placement: Placement, event: HostLeaves) -> Placement:
    """Mark a host as leaving; the host stays if no other host would stay."""
    if event.host not in placement.hosts or set(placement.hosts) <= placement.leaving | {event.host}:
        return placement
    placement = replace(placement, leaving=placement.leaving | {event.host})
    return _each(placement, lambda place: _not_towards(place, event.host))


def _not_towards(place: SliceCopies, host: str) -> SliceCopies:
    """End a migration to a host that leaves, unless the destination is already active."""
    on_its_way = place.migration
    if on_its_way is None or on_its_way.destination != host or on_its_way.phase is MigrationPhase.RELEASE:
        return place
    return replace(place, migration=None)


def _evacuated(placement: Placement) -> Placement:
    """Ask for a migration of every slice that is active on a leaving host."""
    for slice_, place in enumerate(placement.places):
        if place.active in placement.leaving and place.migration is None:
            placement = _ask_for_move(placement, MoveAsked(slice_, _successor(placement, slice_)))
    return placement


def _lost(placement: Placement, event: HostLost) -> Placement:
    hosts = tuple(host for host in placement.hosts if host != event.host)
    if event.host not in placement.hosts or not hosts:
        return placement
    placement = replace(placement, hosts=hosts, leaving=placement.leaving - {event.host})
    if set(hosts) <= placement.leaving:
        placement = replace(placement, leaving=frozenset())
    for slice_ in range(len(placement.places)):
        placement = _without_host(placement, slice_, event.host)
    return placement


def _without_host(placement: Placement, slice_: int, host: str) -> Placement:
    place = _forgotten_migration(placement.places[slice_], host)
    place = replace(place, ready=place.ready - {host}, backups=tuple(b for b in place.backups if b != host))
    placement = _set_copies(placement, slice_, place)
    if place.active != host:
        return placement
    successor = _successor(placement, slice_)
    return _set_copies(
        placement, slice_, replace(place, active=successor, migration=None, ready=place.ready - {successor})
    )


def _forgotten_migration(place: SliceCopies, host: str) -> SliceCopies:
    """End a migration from or to a lost host: the active copy stays active, unless its host is the lost one."""
    on_its_way = place.migration
    if on_its_way is None or host not in (on_its_way.source, on_its_way.destination):
        return place
    return replace(place, migration=None)


def _successor(placement: Placement, slice_: int) -> str:
    """The host that takes over a slice: a host with a backup of the slice, if there is one; of several, the one with the fewest slices."""
    place = placement.places[slice_]
    hosts = [host for host in placement.hosts if host not in placement.leaving and host != place.active]
    counts = Counter(_future_home(other) for other in placement.places)
    having = (
        [host for host in hosts if host in place.ready] or [host for host in hosts if host in place.backups] or hosts
    )
    return min(having, key=lambda host: (counts[host], host))


def _future_home(place: SliceCopies) -> str:
    return place.active if place.migration is None else place.migration.destination


def _ask_for_move(placement: Placement, event: MoveAsked) -> Placement:
    place = placement.places[event.slice]
    takes = event.destination in placement.hosts and event.destination not in placement.leaving
    if not takes or event.destination == place.active or place.migration is not None:
        return placement
    return _set_copies(placement, event.slice, replace(place, migration=Migration(place.active, event.destination)))


_NEXT = {
    MigrationPhase.PREPARE: MigrationPhase.REBUILD,
    MigrationPhase.REBUILD: MigrationPhase.REROUTE,
    MigrationPhase.REROUTE: MigrationPhase.RELEASE,
}


def end_of_phase(slice_: int, migration: Migration) -> Done:
    """The event that ends the current phase of a migration."""
    host = migration.source if migration.phase is MigrationPhase.RELEASE else migration.destination
    return Done(Act(migration.phase.value), slice_, host)


def _finish_move(placement: Placement, event: Done) -> Placement:
    place = placement.places[event.slice]
    if event.act is Act.BACK_UP and event.host in place.backups:
        return _set_copies(placement, event.slice, replace(place, ready=place.ready | {event.host}))
    if place.migration is not None and event == end_of_phase(event.slice, place.migration):
        return _set_copies(placement, event.slice, _advanced(place, place.migration))
    return placement


def _advanced(place: SliceCopies, migration: Migration) -> SliceCopies:
    if migration.phase is MigrationPhase.RELEASE:
        return replace(place, migration=None)
    following = replace(migration, phase=_NEXT[migration.phase])
    place = replace(place, migration=following)
    if following.phase is not MigrationPhase.RELEASE:
        return place
    # A migration changes the active copy only here.
    ready = (place.ready - {migration.destination}) | {migration.source}
    return replace(place, active=migration.destination, ready=ready)


def _with_backups(placement: Placement) -> Placement:
    """Assign backups as the chain wants; a host that has a copy keeps the copy if the chain allows."""
    able = [host for host in placement.hosts if host not in placement.leaving]
    wanted = chained_backups(
        placement.homes(), [_copies_of(place) for place in placement.places], able, placement.factor
    )
    pairs = zip(placement.places, wanted, strict=True)
    places = (replace(place, backups=backups, ready=place.ready & set(backups)) for place, backups in pairs)
    return replace(placement, places=tuple(places))


def _copies_of(place: SliceCopies) -> list[str]:
    """Hosts with a copy that is ready, then hosts that are getting one."""
    known = dict.fromkeys((*place.backups, *sorted(place.ready)))
    return sorted(known, key=lambda host: host not in place.ready)


def _on_the_way(place: SliceCopies) -> tuple[str, ...]:
    return () if place.migration is None else (place.migration.source, place.migration.destination)


def _set_copies(placement: Placement, slice_: int, place: SliceCopies) -> Placement:
    return replace(placement, places=(*placement.places[:slice_], place, *placement.places[slice_ + 1 :]))


def _each(placement: Placement, change: Callable[[SliceCopies], SliceCopies]) -> Placement:
    return replace(placement, places=tuple(map(change, placement.places)))


_HANDLERS: Mapping[type, Callable[[Placement, Event], Placement]] = {
    HostJoined: _joined,  # type: ignore[dict-item]
    HostLeaves: _leaves,  # type: ignore[dict-item]
    HostLost: _lost,  # type: ignore[dict-item]
    MoveAsked: _ask_for_move,  # type: ignore[dict-item]
    Done: _finish_move,  # type: ignore[dict-item]
}


# -- plans -------------------------------------------------------------------------------------------------------------------


def spread(
    placement: Placement, weights: Sequence[float], settings: StateSettings, shares: Mapping[str, float] | None = None
) -> tuple[MoveAsked, ...]:
    """The moves that even out the load of the hosts: as few as needed, and to hosts with a backup where possible.

    `shares` is the share of the load of each host, in proportion, such as the number of its lanes; a host without a share is emptied. The
    other moves are made only if they reduce the largest load per share by more than the setting `hot_share`.
    """
    taking = [host for host in placement.hosts if host not in placement.leaving]
    loads = _Loads(placement, weights, dict.fromkeys(taking, 1.0) if shares is None else shares)
    emptying = tuple(map(loads.moved, iter(loads.emptying_move, None)))
    before = loads.most()
    evening = tuple(map(loads.moved, islice(iter(loads.evening_move, None), len(placement.places))))
    return emptying + (evening if loads.most() < before * (1 - settings.hot_share) else ())


class _Loads:
    """The load of each host, with planned moves counted as done."""

    def __init__(self, placement: Placement, weights: Sequence[float], shares: Mapping[str, float]) -> None:
        self.placement, self.weights = placement, weights
        able = [host for host in placement.hosts if host not in placement.leaving]
        self.shares = {host: shares.get(host, 0.0) for host in able}
        self.homes = [_future_home(place) for place in placement.places]
        self.loads = dict.fromkeys(placement.hosts, 0.0)
        for slice_, home in enumerate(self.homes):
            self.loads[home] += weights[slice_]

    def moved(self, move: MoveAsked) -> MoveAsked:
        """Count a move as done; return the same move."""
        self.loads[self.homes[move.slice]] -= self.weights[move.slice]
        self.loads[move.destination] += self.weights[move.slice]
        self.homes[move.slice] = move.destination
        return move

    def most(self) -> float:
        """The largest load per share among the hosts with a share."""
        return max((self._relative(host) for host in self._sharing()), default=0.0)

    def emptying_move(self) -> MoveAsked | None:
        """A move of a slice from a host without a share to the host with the least load per share; None if no such slice is left."""
        idlest = min(self._sharing(), key=lambda host: (self._relative(host), host), default=None)
        found = [slice_ for host, share in self.shares.items() if not share for slice_ in self._movable(host)]
        if idlest is None or not found:
            return None
        return MoveAsked(min(found, key=lambda slice_: self._after(slice_, idlest)[1:]), idlest)

    def evening_move(self) -> MoveAsked | None:
        """A move from the host with the largest load per share to the host with the least; None if no move evens out the load."""
        sharing = self._sharing()
        busiest = max(sharing, key=lambda host: (self._relative(host), host), default="")
        idlest = min(sharing, key=lambda host: (self._relative(host), host), default="")
        found = [self._after(slice_, idlest) for slice_ in self._movable(busiest) if self.weights[slice_] > 0]
        if busiest == idlest or not found:
            return None
        load, _, slice_ = min(found)
        return MoveAsked(slice_, idlest) if load < self._relative(busiest) else None

    def _sharing(self) -> list[str]:
        return [host for host, share in self.shares.items() if share > 0]

    def _movable(self, host: str) -> list[int]:
        places = self.placement.places
        return [slice_ for slice_, home in enumerate(self.homes) if home == host and places[slice_].migration is None]

    def _after(self, slice_: int, idlest: str) -> tuple[float, bool, int]:
        """The sort key of a move: the larger load per share of both hosts, whether the state has to be rebuilt, and the slice."""
        weight = self.weights[slice_]
        load = max(self._relative(self.homes[slice_], -weight), self._relative(idlest, weight))
        return load, idlest not in self.placement.places[slice_].ready, slice_

    def _relative(self, host: str, more: float = 0.0) -> float:
        share = self.shares[host]
        return (self.loads[host] + more) / share if share else math.inf


def free(placement: Placement, host: str) -> bool:
    """Whether no active copy and no migration needs the host."""
    busy = (place for place in placement.places if host in {place.active, *_on_the_way(place)})
    return next(busy, None) is None
