"""Which host has which slices of an operator, from epoch to epoch: the driver's side of backups, migration and recovery.

    layout = hosting.boundary(slots, lanes, loads)    # before an epoch: homes of the slices, hosts of the lanes
    hosting.committed(epoch)                          # after it
    hosting.run()                                     # beside the epochs: hosts do their duties, migrations go on

What is decided stands in the checkpoint location before anything is done about it. Whoever dies in between, the next one reads it
there and goes on. No count depends on it: a lane that finds its slices elsewhere, or behind, opens them all the same, only later.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headgate.config import StateSettings
from headgate.core.duties import Duty, achieved, duties, waiting
from headgate.core.routing import lane_hosts
from headgate.core.slices import (
    Act,
    Action,
    Done,
    Event,
    HostJoined,
    HostLeaves,
    HostLost,
    Phase,
    Place,
    Placement,
    free,
    spread,
    step,
)
from headgate.errors import StateDamagedError, StateError
from headgate.state.faults import passing
from headgate.state.location import Location
from headgate.state.tending import Tended

PLACEMENT = "placement.json"
SPARE = 1e-6
"""Slots of a host that should have no lanes: one that it needs, and no other, goes there."""

Moves = Mapping[str, Mapping[str, tuple[int, ...]]]
"""By destination and source, the slices that move."""

Tend = Callable[[Mapping[str, Duty], int], Mapping[str, Tended]]
"""Has every host do its duty as of an epoch; those that could not be asked do not answer."""


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
        self._leaving = frozenset[str]() if self._placement is None else self._placement.leaving
        self._newest: int | None = None
        self._wanted: tuple[str, ...] = ()
        """The hosts of the lanes, if slices were where they should be."""
        self._since = self._held = 0
        """Epochs since slices were last spread; epochs that a slice waits to be handed over."""
        self._troubles: tuple[str, ...] = ()
        self.copy: Callable[[Moves], None] | None = None
        """Stop-copy-start, the classic way, to compare with: copies whole slices while no epoch runs."""

    @property
    def placement(self) -> Placement | None:
        """As it stands in the checkpoint location."""
        return self._placement

    def leave(self, host: str) -> None:
        """From the next epoch on, its slices move away from this host."""
        with self._lock:
            self._leaving |= {host}

    def stay(self, host: str) -> None:
        """It may have slices after all."""
        with self._lock:
            self._leaving -= {host}

    def is_free(self, host: str) -> bool:
        """Whether nothing on this host is needed any more."""
        with self._lock:
            return self._placement is None or free(self._placement, host)

    # -- epochs --------------------------------------------------------------------------------------------------------

    def boundary(self, slots: Mapping[str, float], lanes: int, loads: Sequence[float]) -> Layout:
        """Before an epoch, with the slots of each live host: slices that are ready to move do so now, all at once."""
        with self._lock:
            able = {host: SPARE if host in self._leaving else count for host, count in slots.items()}
            wanted = lane_hosts(lanes, able)
            before = self._placement or Placement.first(self._slices, slots, self._settings.backups, wanted)
            after = _stepped(before, (*_host_events(before, slots, self._leaving), *self._handed_over(before)))
            if wanted != self._wanted or self._since >= self._settings.balance_epochs:
                after = _stepped(after, spread(after, loads, self._settings, Counter(wanted)))
                self._wanted, self._since = wanted, 0
            if self.copy is not None:
                after = _copied(after, self.copy)
            self._become(after)
            homes = after.homes()
            return Layout(homes, lane_hosts(lanes, able, {home for home in homes if home in able}))

    def _handed_over(self, placement: Placement) -> list[Event]:
        """Another routing table costs an epoch some time, so migrations wait for each other, but not for long."""
        phases = Counter(place.migration.phase for place in placement.places if place.migration is not None)
        if not phases[Phase.REROUTE]:
            self._held = 0
            return []
        self._held += 1
        if phases[Phase.PREPARE] + phases[Phase.REBUILD] and self._held < self._settings.balance_epochs:
            return []
        self._held = 0
        return list(_phase_done(placement, Phase.REROUTE))

    def committed(self, epoch: int) -> bool:
        """An epoch counts: what moved before it has arrived. Says whether the hosts have something to do."""
        with self._lock:
            self._newest = epoch
            self._since += 1
            if self._placement is None:
                return False
            self._become(_stepped(self._placement, _phase_done(self._placement, Phase.RELEASE)))
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
    """Who has what, as it was last decided; None if nothing was, or it cannot be read: then slices are dealt out anew."""
    if not location.exists(PLACEMENT):
        return None
    try:
        return msgspec.json.decode(memoryview(location.read(PLACEMENT)), type=Placement)
    except (msgspec.MsgspecError, StateDamagedError):
        return None


def _stepped(placement: Placement, events: Iterable[Event]) -> Placement:
    """After all these events; what they ask for is read off the placement, as duties."""
    for event in events:
        placement, _ = step(placement, event)
    return placement


def _host_events(placement: Placement, slots: Mapping[str, float], leaving: frozenset[str]) -> Iterator[Event]:
    """New hosts first: the last one is never lost."""
    if not slots:
        return
    yield from (HostJoined(host) for host in sorted(slots) if host not in placement.hosts)
    yield from (HostJoined(host) for host in sorted(placement.leaving - leaving) if host in slots)
    yield from (HostLost(host) for host in placement.hosts if host not in slots)
    yield from (HostLeaves(host) for host in sorted(leaving - placement.leaving) if host in slots)


def _copied(placement: Placement, copy: Callable[[Moves], None]) -> Placement:
    """After everything that is about to move was copied; nothing else happens meanwhile."""
    moves: dict[str, dict[str, tuple[int, ...]]] = {}
    for slice_, place in enumerate(placement.places):
        if place.migration is not None and place.migration.phase is not Phase.RELEASE:
            by_source = moves.setdefault(place.migration.destination, {})
            by_source[place.active] = (*by_source.get(place.active, ()), slice_)
    if moves:
        copy(moves)
    for phase in (Phase.PREPARE, Phase.REBUILD, Phase.REROUTE):
        placement = _stepped(placement, _phase_done(placement, phase))
    return placement


def _phase_done(placement: Placement, phase: Phase) -> Iterator[Event]:
    for slice_, place in enumerate(placement.places):
        if place.migration is not None and place.migration.phase is phase:
            yield Done(_end_of(slice_, place))


def _end_of(slice_: int, place: Place) -> Action:
    """What ends the phase that a slice's migration is in."""
    assert place.migration is not None
    phase = place.migration.phase
    host = place.migration.source if phase is Phase.RELEASE else place.migration.destination
    return Action(Act(phase.value), slice_, host)
