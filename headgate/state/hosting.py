"""Which host has which slices of an operator, from epoch to epoch: the driver's side of backups, migration and recovery.

    layout = hosting.boundary(cores, wanted)    # before an epoch: homes of the slices, hosts of the lanes
    hosting.committed(epoch)                    # after it
    hosting.run()                               # beside the epochs: hosts do their duties, migrations go on

What is decided stands in the checkpoint location before anything is done about it. Whoever dies in between, the next one reads it
there and goes on. No count depends on it: a lane that finds its slices elsewhere, or behind, opens them all the same, only later.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from headgate.config import StateSettings
from headgate.errors import StateDamagedError, StateError
from headgate.state.faults import passing
from headgate.state.location import Location
from headgate.state.placement.routing import in_turn, lane_hosts
from headgate.state.placement.slices import (
    Event,
    HostJoined,
    HostLeaves,
    HostLost,
    MigrationPhase,
    MoveAsked,
    Placement,
    end_of_phase,
    free,
    spread,
    step,
)
from headgate.state.placement.targets import Duty, achieved, duties, waiting
from headgate.state.tending import Tended

PLACEMENT = "placement.json"

Moves = Mapping[str, Mapping[str, tuple[int, ...]]]
"""By destination and source, the slices that move."""

Tend = Callable[[Mapping[str, Duty], int], Mapping[str, Tended]]
"""Has every host do its duty as of an epoch; those that could not be asked do not answer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an operator should have in an epoch."""

    lanes: int
    avoided: Collection[str] = ()
    """Hosts that should have none of its lanes, and so none of its slices."""
    slices: tuple[int, ...] | None = None
    """The lane of each slice; None: evenly."""
    first: int = 0
    """Which host its lanes begin with."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an epoch runs."""

    homes: tuple[str, ...]
    """The host of each slice."""
    lane_hosts: tuple[str, ...]
    """The host of each lane."""


class Hosting:
    """One operator's slices on the hosts of a cluster. `run` may be called beside the rest."""

    def __init__(self, location: Location, slices: int, settings: StateSettings, tend: Tend) -> None:
        self._location, self._slices, self._settings, self._tend = location, slices, settings, tend
        self._lock = threading.RLock()
        self._placement = read_placement(location)
        self._newest: int | None = None
        self._turn: tuple[str, ...] = ()
        """The hosts that lanes went round the last time; they go on with the same ones."""
        self._held = 0
        """Epochs that a slice waits to be handed over."""
        self._troubles: tuple[str, ...] = ()
        self.copy: Callable[[Moves], None] | None = None
        """Stop-copy-start, the classic way, to compare with: copies whole slices while no epoch runs."""

    @property
    def placement(self) -> Placement | None:
        """As it stands in the checkpoint location."""
        return self._placement

    def is_free(self, host: str) -> bool:
        """Whether nothing on this host is needed any more."""
        with self._lock:
            return self._placement is None or free(self._placement, host)

    # -- epochs --------------------------------------------------------------------------------------------------------

    def boundary(self, cores: Mapping[str, float], wanted: Wanted) -> Layout:
        """Before an epoch, with the cores of each live host: slices that are ready to move do so now, all at once."""
        with self._lock:
            turn = self._turn = self._in_turn(cores, wanted)
            lanes = lane_hosts(wanted.lanes, cores, turn)
            before = self._placement or Placement.first(self._slices, cores, self._settings.backups, lanes)
            after = _stepped(before, (*_host_events(before, cores, turn), *self._handed_over(before)))
            after = _stepped(after, self._moves(after, lanes, wanted.slices))
            after = _stepped(after, (HostLeaves(host) for host in sorted(cores) if host not in turn))
            if self.copy is not None:
                after = _copied(after, self.copy)
            self._become(after)
            homes = after.homes()
            return Layout(homes, lane_hosts(wanted.lanes, cores, turn, set(homes)))

    def _in_turn(self, cores: Mapping[str, float], wanted: Wanted) -> tuple[str, ...]:
        """The same hosts as before come first, or those that have most slices: no slice moves for the sake of the order."""
        able = in_turn(cores, wanted.avoided, wanted.first)
        has = Counter(() if self._placement is None else self._placement.homes())
        known = self._turn or [host for host, _ in has.most_common()]
        return tuple(dict.fromkeys(host for host in (*known, *able) if host in able))

    def _moves(self, placement: Placement, lanes: tuple[str, ...], slices: tuple[int, ...] | None) -> Iterable[Event]:
        """To the hosts of the lanes that slices were assigned to, or evenly by the number of lanes."""
        if slices is None or len(slices) != self._slices:
            return spread(placement, [1.0] * self._slices, self._settings, Counter(lanes))
        return [MoveAsked(slice_, lanes[lane]) for slice_, lane in enumerate(slices)]

    def _handed_over(self, placement: Placement) -> list[Event]:
        """Another routing table costs an epoch some time, so migrations wait for each other, but not for long."""
        phases = Counter(place.migration.phase for place in placement.places if place.migration is not None)
        if not phases[MigrationPhase.REROUTE]:
            self._held = 0
            return []
        self._held += 1
        if (
            phases[MigrationPhase.PREPARE] + phases[MigrationPhase.REBUILD]
            and self._held < self._settings.hand_over_epochs
        ):
            return []
        self._held = 0
        return list(_phase_done(placement, MigrationPhase.REROUTE))

    def committed(self, epoch: int) -> bool:
        """An epoch counts: what moved before it has arrived. Says whether the hosts have something to do."""
        with self._lock:
            self._newest = epoch
            if self._placement is None:
                return False
            self._become(_stepped(self._placement, _phase_done(self._placement, MigrationPhase.RELEASE)))
            return waiting(self._placement) or epoch % self._settings.backup_epochs == 0

    def _become(self, placement: Placement) -> None:
        if placement != self._placement:
            passing("placement: before write")
            self._location.write(PLACEMENT, msgspec.json.encode(placement))
            passing("placement: durable")
            self._placement = placement

    # -- beside the epochs ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Have the hosts do their duties, again and again as long as that gets a migration or a backup further."""
        while self._round():
            pass
        if self._troubles:
            raise StateError("; ".join(self._troubles))

    def _round(self) -> bool:
        with self._lock:
            placement, newest = self._placement, self._newest
        if placement is None or newest is None:
            return False
        answers = self._tend(duties(placement), newest)
        self._troubles = tuple(f"{host}: {one.trouble}" for host, one in answers.items() if one.trouble)
        with self._lock:
            before = self._placement
            assert before is not None
            reached = {host: one.reached for host, one in answers.items() if not one.trouble}
            self._become(_stepped(before, achieved(before, reached, newest)))
            further = self._placement != before or any(one.rebuilt for one in answers.values())
            return further and waiting(self._placement or before)


def read_placement(location: Location) -> Placement | None:
    """Who has what, as it was last decided; None if nothing was, or it cannot be read: then slices are distributed again."""
    if not location.exists(PLACEMENT):
        return None
    try:
        return msgspec.json.decode(memoryview(location.read(PLACEMENT)), type=Placement)
    except (msgspec.MsgspecError, ValueError, StateDamagedError):  # ValueError: text that is not UTF-8
        return None


def _stepped(placement: Placement, events: Iterable[Event]) -> Placement:
    """After all these events; what they ask for is read off the placement, as duties."""
    for event in events:
        placement = step(placement, event)
    return placement


def _host_events(placement: Placement, hosts: Collection[str], turn: Collection[str]) -> Iterator[Event]:
    """New hosts first: the last one is never lost."""
    yield from (HostJoined(host) for host in sorted(hosts) if host not in placement.hosts)
    yield from (HostJoined(host) for host in sorted(placement.leaving) if host in turn)
    yield from (HostLost(host) for host in placement.hosts if host not in hosts)


def _copied(placement: Placement, copy: Callable[[Moves], None]) -> Placement:
    """After everything that is about to move was copied; nothing else happens meanwhile."""
    moves: dict[str, dict[str, tuple[int, ...]]] = {}
    for slice_, place in enumerate(placement.places):
        if place.migration is not None and place.migration.phase is not MigrationPhase.RELEASE:
            by_source = moves.setdefault(place.migration.destination, {})
            by_source[place.active] = (*by_source.get(place.active, ()), slice_)
    if moves:
        copy(moves)
    for phase in (MigrationPhase.PREPARE, MigrationPhase.REBUILD, MigrationPhase.REROUTE):
        placement = _stepped(placement, _phase_done(placement, phase))
    return placement


def _phase_done(placement: Placement, phase: MigrationPhase) -> Iterator[Event]:
    for slice_, place in enumerate(placement.places):
        if place.migration is not None and place.migration.phase is phase:
            yield end_of_phase(slice_, place.migration)
