"""Which host has which slices of an operator, from epoch to epoch: the driver's side of backups, migration and recovery.

    layout = hosting.plan_epoch(cores, wanted)  # before an epoch: homes of the slices, hosts of the lanes
    hosting.committed(epoch)                    # after the epoch
    hosting.run()                               # beside the epochs: hosts reach their targets, migrations advance

The driver writes each placement to the checkpoint location before it acts on it; a driver that replaces a dead one continues from there.
Placement errors cost time, never correctness: a lane that finds a slice elsewhere, or behind, brings the slice up to date first.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from headgate.config import StateSettings
from headgate.errors import StateDamagedError, StateError
from headgate.state.copies import TargetReport
from headgate.state.faults import reach
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
from headgate.state.placement.targets import HostTarget, finished_steps, has_work, host_targets

PLACEMENT = "placement.json"

AskHosts = Callable[[Mapping[str, HostTarget], int], Mapping[str, TargetReport]]
"""Asks each host to reach its target as of an epoch; a host that could not be asked does not answer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lanes that an operator should have in an epoch."""

    lanes: int
    avoided: Collection[str] = ()
    """Hosts that should have no lane of the operator, and so no slice."""
    slices: tuple[int, ...] | None = None
    """The lane of each slice; None spreads the slices evenly."""
    first: int = 0
    """The index of the host that gets the first lane."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The hosts of slices and lanes in an epoch."""

    homes: tuple[str, ...]
    """The host of each slice."""
    lane_hosts: tuple[str, ...]
    """The host of each lane."""


class Hosting:
    """One operator's slices on the hosts of a cluster. A second thread may call `run`."""

    def __init__(self, location: Location, slices: int, settings: StateSettings, ask_hosts: AskHosts) -> None:
        self._location, self._slices, self._settings, self._ask_hosts = location, slices, settings, ask_hosts
        self._lock = threading.RLock()
        self._placement = read_placement(location)
        self._newest: int | None = None
        self._last_turn: tuple[str, ...] = ()
        """The hosts that had lanes in the last epoch, in their order: the next epoch keeps the order."""
        self._epochs_held = 0
        """Epochs for which a slice has waited to change hands."""
        self._problems: tuple[str, ...] = ()

    @property
    def placement(self) -> Placement | None:
        """The placement that is in the checkpoint location."""
        return self._placement

    def is_free(self, host: str) -> bool:
        """Whether the operator needs nothing on this host any more."""
        with self._lock:
            return self._placement is None or free(self._placement, host)

    # -- epochs --------------------------------------------------------------------------------------------------------

    def plan_epoch(self, cores: Mapping[str, float], wanted: Wanted) -> Layout:
        """Plan the next epoch, with the cores of each live host: slices that are ready to move change hosts now."""
        with self._lock:
            turn = self._last_turn = self._in_turn(cores, wanted)
            lanes = lane_hosts(wanted.lanes, cores, turn)
            before = self._placement or Placement.first(self._slices, cores, self._settings.backups, lanes)
            after = _after(before, (*_host_events(before, cores, turn), *self._hand_overs(before)))
            after = _after(after, self._moves(after, lanes, wanted.slices))
            after = _after(after, (HostLeaves(host) for host in sorted(cores) if host not in turn))
            self._save(after)
            homes = after.homes()
            return Layout(homes, lane_hosts(wanted.lanes, cores, turn, set(homes)))

    def _in_turn(self, cores: Mapping[str, float], wanted: Wanted) -> tuple[str, ...]:
        """The hosts of the last epoch come first, or the hosts with most slices: no slice moves only because of the order."""
        able = in_turn(cores, wanted.avoided, wanted.first)
        has = Counter(() if self._placement is None else self._placement.homes())
        known = self._last_turn or [host for host, _ in has.most_common()]
        return tuple(dict.fromkeys(host for host in (*known, *able) if host in able))

    def _moves(self, placement: Placement, lanes: tuple[str, ...], slices: tuple[int, ...] | None) -> Iterable[Event]:
        """Slices move to the hosts of their lanes; slices without an assigned lane spread by the number of lanes per host."""
        if slices is None or len(slices) != self._slices:
            return spread(placement, [1.0] * self._slices, self._settings, Counter(lanes))
        return [MoveAsked(slice_, lanes[lane]) for slice_, lane in enumerate(slices)]

    def _hand_overs(self, placement: Placement) -> list[Event]:
        """The events that complete migrations; these wait for each other, at most `hand_over_epochs`, to save routing tables."""
        phases = Counter(place.migration.phase for place in placement.places if place.migration is not None)
        if not phases[MigrationPhase.REROUTE]:
            self._epochs_held = 0
            return []
        self._epochs_held += 1
        if (
            phases[MigrationPhase.PREPARE] + phases[MigrationPhase.REBUILD]
            and self._epochs_held < self._settings.hand_over_epochs
        ):
            return []
        self._epochs_held = 0
        return list(_phase_done(placement, MigrationPhase.REROUTE))

    def committed(self, epoch: int) -> bool:
        """Note a committed epoch, and the moves before it; return whether the hosts have something to do."""
        with self._lock:
            self._newest = epoch
            if self._placement is None:
                return False
            self._save(_after(self._placement, _phase_done(self._placement, MigrationPhase.RELEASE)))
            return has_work(self._placement) or epoch % self._settings.backup_epochs == 0

    def _save(self, placement: Placement) -> None:
        if placement != self._placement:
            reach("placement: before write")
            self._location.write(PLACEMENT, msgspec.json.encode(placement))
            reach("placement: durable")
            self._placement = placement

    # -- beside the epochs ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Ask the hosts to reach their targets, as long as that advances a migration or a backup."""
        while self._round():
            pass
        if self._problems:
            raise StateError("; ".join(self._problems))

    def _round(self) -> bool:
        with self._lock:
            placement, newest = self._placement, self._newest
        if placement is None or newest is None:
            return False
        answers = self._ask_hosts(host_targets(placement), newest)
        self._problems = tuple(f"{host}: {one.problem}" for host, one in answers.items() if one.problem)
        with self._lock:
            before = self._placement
            assert before is not None
            reached = {host: one.reached for host, one in answers.items() if not one.problem}
            self._save(_after(before, finished_steps(before, reached, newest)))
            further = self._placement != before or any(one.rebuilt for one in answers.values())
            return further and has_work(self._placement or before)


def read_placement(location: Location) -> Placement | None:
    """The last placement; None if there is none or it cannot be read: the driver then distributes the slices again."""
    if not location.exists(PLACEMENT):
        return None
    try:
        return msgspec.json.decode(memoryview(location.read(PLACEMENT)), type=Placement)
    except (msgspec.MsgspecError, ValueError, StateDamagedError):  # ValueError: text that is not UTF-8
        return None


def _after(placement: Placement, events: Iterable[Event]) -> Placement:
    """The placement after all these events."""
    for event in events:
        placement = step(placement, event)
    return placement


def _host_events(placement: Placement, hosts: Collection[str], turn: Collection[str]) -> Iterator[Event]:
    """New hosts come first, because a placement never loses its last host."""
    yield from (HostJoined(host) for host in sorted(hosts) if host not in placement.hosts)
    yield from (HostJoined(host) for host in sorted(placement.leaving) if host in turn)
    yield from (HostLost(host) for host in placement.hosts if host not in hosts)


def _phase_done(placement: Placement, phase: MigrationPhase) -> Iterator[Event]:
    for slice_, place in enumerate(placement.places):
        if place.migration is not None and place.migration.phase is phase:
            yield end_of_phase(slice_, place.migration)
