"""Slices to hosts: who has the active copy of each, who holds backups, and how they move (ChronoStream, III-B, III-C, III-E).

`step(placement, event)` returns the next placement; `targets.py` derives from it what each host has to do. A slice has exactly one active
copy at any time, and its backups follow it.
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
    """Where a migration stands; each edge is taken when ..."""

    PREPARE = "prepare"
    """... it was asked for, until the destination is ready to take a copy."""
    REBUILD = "rebuild"
    """... the destination brings its copy up to date, while the source goes on."""
    REROUTE = "reroute"
    """... the copy is current, until an epoch boundary: from the next epoch on the destination is active."""
    RELEASE = "release"
    """... the destination is active, until the source has let go."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A slice on its way."""

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
    """Those of them that have it."""
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
        """Slices dealt out in turn: to the hosts of the lanes, or else to all.

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
    """What can be done to a copy of a slice on a host. Doing it twice does no harm."""

    PREPARE = "prepare"
    REBUILD = "rebuild"
    REROUTE = "reroute"
    """At an epoch boundary."""
    RELEASE = "release"
    BACK_UP = "back up"
    """Make a backup there, and let it follow."""


@dataclass(frozen=True, slots=True)
class Done:
    """Something was done for a slice on a host."""

    act: Act
    slice: int
    host: str


Event = HostJoined | HostLeaves | HostLost | MoveAsked | Done


def step(placement: Placement, event: Event) -> Placement:
    """The next placement. Every event may come again: it then changes nothing."""
    return _with_backups(_evacuated(_HANDLERS[type(event)](placement, event)))


def _joined(placement: Placement, event: HostJoined) -> Placement:
    hosts = tuple(sorted({*placement.hosts, event.host}))
    return replace(placement, hosts=hosts, leaving=placement.leaving - {event.host})


def _leaves(placement: Placement, event: HostLeaves) -> Placement:
    """Without another host it stays."""
    if event.host not in placement.hosts or set(placement.hosts) <= placement.leaving | {event.host}:
        return placement
    placement = replace(placement, leaving=placement.leaving | {event.host})
    return _each(placement, lambda place: _not_towards(place, event.host))


def _not_towards(place: SliceCopies, host: str) -> SliceCopies:
    """A migration to a host that leaves ends, unless the slice has changed hands already."""
    on_its_way = place.migration
    if on_its_way is None or on_its_way.destination != host or on_its_way.phase is MigrationPhase.RELEASE:
        return place
    return replace(place, migration=None)


def _evacuated(placement: Placement) -> Placement:
    """Slices on leaving hosts migrate to where they go best."""
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
    """A migration from or to a lost host ends: what was active stays so, unless it was lost itself."""
    on_its_way = place.migration
    if on_its_way is None or host not in (on_its_way.source, on_its_way.destination):
        return place
    return replace(place, migration=None)


def _successor(placement: Placement, slice_: int) -> str:
    """Who takes a slice over: a host that has its backup, if there is one; of several, the one with the fewest slices."""
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
    """What ends the phase that a migration is in."""
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
    # The one moment at which it changes hands.
    ready = (place.ready - {migration.destination}) | {migration.source}
    return replace(place, active=migration.destination, ready=ready)


def _with_backups(placement: Placement) -> Placement:
    """Backups as the chain wants them; a host that has a copy keeps it if it may."""
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
    """Moves that even out the load of the hosts: as few as needed, to hosts with a backup where there is a choice.

    `shares` says how much of the load each host should have, in proportion, such as its lanes; a host without a share is emptied. The
    other moves are made if all of them together leave the busiest host with so much less to do that it is worth it.
    """
    taking = [host for host in placement.hosts if host not in placement.leaving]
    loads = _Loads(placement, weights, dict.fromkeys(taking, 1.0) if shares is None else shares)
    emptying = tuple(map(loads.moved, iter(loads.emptying_move, None)))
    before = loads.most()
    evening = tuple(map(loads.moved, islice(iter(loads.evening_move, None), len(placement.places))))
    return emptying + (evening if loads.most() < before * (1 - settings.hot_share) else ())


class _Loads:
    """What each host has to do, while moves are thought out."""

    def __init__(self, placement: Placement, weights: Sequence[float], shares: Mapping[str, float]) -> None:
        self.placement, self.weights = placement, weights
        able = [host for host in placement.hosts if host not in placement.leaving]
        self.shares = {host: shares.get(host, 0.0) for host in able}
        self.homes = [_future_home(place) for place in placement.places]
        self.loads = dict.fromkeys(placement.hosts, 0.0)
        for slice_, home in enumerate(self.homes):
            self.loads[home] += weights[slice_]

    def moved(self, move: MoveAsked) -> MoveAsked:
        """The same move, thought of as done."""
        self.loads[self.homes[move.slice]] -= self.weights[move.slice]
        self.loads[move.destination] += self.weights[move.slice]
        self.homes[move.slice] = move.destination
        return move

    def most(self) -> float:
        """What the busiest of the hosts with a share has to do for it."""
        return max((self._relative(host) for host in self._sharing()), default=0.0)

    def emptying_move(self) -> MoveAsked | None:
        """A slice from a host without a share to the one that has least to do; None if there is none."""
        idlest = min(self._sharing(), key=lambda host: (self._relative(host), host), default=None)
        found = [slice_ for host, share in self.shares.items() if not share for slice_ in self._movable(host)]
        if idlest is None or not found:
            return None
        return MoveAsked(min(found, key=lambda slice_: self._after(slice_, idlest)[1:]), idlest)

    def evening_move(self) -> MoveAsked | None:
        """From the host with the most for its share to the one with the least; None if that evens out nothing."""
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
        """What the busier of both hosts then has for its share; whether the state has to be rebuilt for it; the slice."""
        weight = self.weights[slice_]
        load = max(self._relative(self.homes[slice_], -weight), self._relative(idlest, weight))
        return load, idlest not in self.placement.places[slice_].ready, slice_

    def _relative(self, host: str, more: float = 0.0) -> float:
        share = self.shares[host]
        return (self.loads[host] + more) / share if share else math.inf


def free(placement: Placement, host: str) -> bool:
    """Whether a leaving host holds nothing that is needed."""
    busy = (place for place in placement.places if host in {place.active, *_on_the_way(place)})
    return next(busy, None) is None
