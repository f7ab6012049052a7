"""Slices to lanes, and lanes to hosts: which lane processes which slices in an epoch (ChronoStream, III-D and III-F), and where it runs.

The routing table may change between two epochs: another number of lanes is another grouping of the same slices. Both the engine, which
gives every slice a lane on its host, and the health pipeline, which answers skew, assign slices with this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.config import StateSettings
from headgate.core.model import spread_evenly

SliceLanes = tuple[int, ...]
"""The lane of each slice."""
EVEN_ENOUGH = 1.1
"""Slices are spread by number unless the busiest lane then has more than this many times the mean load."""
LEAST_GAIN = 0.01
"""A change must bring two lanes closer by at least this share."""


def slice_count(most_cores: int, settings: StateSettings) -> int:
    """The number of slices of an operator that may use this many cores.

    >>> slice_count(16, StateSettings())
    64
    """
    return max(1, most_cores) * settings.slices_per_core


# -- by load -----------------------------------------------------------------------------------------------------------------


def lane_loads(loads: Sequence[float], places: SliceLanes, lanes: int) -> list[float]:
    """The load of each lane.

    >>> lane_loads((1.0, 2.0, 4.0), (0, 1, 0), 2)
    [5.0, 2.0]
    """
    total = [0.0] * lanes
    for load, lane in zip(loads, places, strict=True):
        total[lane] += load
    return total


def imbalance(values: Sequence[float]) -> float:
    """The largest value over the mean; 1 without values.

    >>> imbalance((1.0, 1.0, 4.0))
    2.0
    """
    mean = sum(values) / len(values) if values else 0.0
    return max(values) / mean if mean > 0 else 1.0


def best_places(loads: Sequence[float], lanes: int) -> SliceLanes:
    """The lane of each slice: spread by number if that is even enough, else by load."""
    even = spread_evenly(len(loads), lanes)
    if imbalance(lane_loads(loads, even, lanes)) <= EVEN_ENOUGH:
        return even
    return rebalance(loads, even, lanes)


def rebalance(
    loads: Sequence[float], places: SliceLanes, lanes: int, allowed: Sequence[Sequence[int]] | None = None
) -> SliceLanes:
    """The lane of each slice after as few moves as needed to relieve the busiest lane.

    `allowed` are the lanes that each slice may have.

    >>> rebalance((5.0, 5.0, 1.0, 1.0), (0, 0, 1, 1), 2)
    (1, 0, 0, 1)
    """
    anywhere = tuple(range(lanes))
    choices = [anywhere] * len(places) if allowed is None else [tuple(found) for found in allowed]
    board = _Board(loads, list(places), lane_loads(loads, places, lanes), choices)
    for _ in range(len(places)):
        change = board.best_change()
        if change is None:
            break
        for slice_, lane in change:
            board.put(slice_, lane)
    return tuple(board.places)


_Change = tuple[tuple[int, int], ...]
"""Slices with their new lanes."""


@dataclass(slots=True)
class _Board:
    """An assignment of slices to lanes while `rebalance` improves it."""

    loads: Sequence[float]
    places: list[int]
    totals: list[float]
    choices: Sequence[SliceLanes]
    """The lanes that each slice may have."""
    calm: dict[SliceLanes, int] = field(default_factory=dict)
    """The least loaded lane of each group of lanes that was looked up."""

    def put(self, slice_: int, lane: int) -> None:
        self.calm.clear()
        self.totals[self.places[slice_]] -= self.loads[slice_]
        self.totals[lane] += self.loads[slice_]
        self.places[slice_] = lane

    def best_change(self) -> _Change | None:
        """The change for the busiest lane that brings both lanes closest: one slice moved, or if no move helps, two slices exchanged."""
        busiest = sorted(range(len(self.totals)), key=lambda lane: (-self.totals[lane], lane))
        tied = len(set(self.choices)) > 1
        for lane in busiest if tied else busiest[:1]:
            for changes in (self._moves(lane), self._swaps(lane)):
                _, change = min(changes, default=(0.0, ()))
                if change:
                    return change
        return None

    def _moves(self, lane: int) -> Iterator[tuple[float, _Change]]:
        for slice_ in self._slices(lane):
            other = self._calmest(self.choices[slice_])
            gap, load = self.totals[lane] - self.totals[other], self.loads[slice_]
            if 0 < load < gap * (1 - LEAST_GAIN):
                yield abs(gap / 2 - load), ((slice_, other),)

    def _swaps(self, lane: int) -> Iterator[tuple[float, _Change]]:
        """The exchanges of two slices with the least loaded lane."""
        other = self._calmest(tuple(range(len(self.totals))))
        gap = self.totals[lane] - self.totals[other]
        if gap <= LEAST_GAIN * self.totals[lane]:
            return
        back = [slice_ for slice_ in self._slices(other) if lane in self.choices[slice_]]
        for slice_ in self._slices(lane):
            if other in self.choices[slice_]:
                for less, found in ((self.loads[slice_] - self.loads[found], found) for found in back):
                    if LEAST_GAIN * gap < less < gap * (1 - LEAST_GAIN):
                        yield abs(gap / 2 - less), ((slice_, other), (found, lane))

    def _slices(self, lane: int) -> list[int]:
        return [slice_ for slice_, of in enumerate(self.places) if of == lane]

    def _calmest(self, lanes: SliceLanes) -> int:
        if lanes not in self.calm:
            self.calm[lanes] = min(lanes, key=lambda lane: (self.totals[lane], lane))
        return self.calm[lanes]


# -- on hosts ----------------------------------------------------------------------------------------------------------------


def in_turn(hosts: Collection[str], avoided: Collection[str] = (), first: int = 0) -> tuple[str, ...]:
    """The hosts in the order in which they get lanes; without avoided hosts as long as there are others.

    `first` is the index of the first host, so that the single lanes of many jobs do not all run on one host.

    >>> in_turn(["a", "b", "c"], avoided=["c"], first=1)
    ('b', 'a')
    """
    kept = [host for host in sorted(hosts) if host not in avoided] or sorted(hosts)
    return tuple(kept[(first + number) % len(kept)] for number in range(len(kept)))


def lane_hosts(
    lanes: int, cores: Mapping[str, float], turn: Sequence[str], needed: Collection[str] = ()
) -> tuple[str, ...]:
    """The host of each lane: by the cores of the hosts in `turn`, and at least one lane on each needed host.

    There may be more lanes than asked for. One more lane leaves the lanes before it where they are.

    >>> lane_hosts(3, {"a": 2, "b": 1}, ["a", "b"])
    ('a', 'b', 'a')
    >>> lane_hosts(3, {"a": 2, "b": 2, "c": 2}, ["a", "b"], needed=["c"])
    ('a', 'b', 'c')
    """
    chosen: list[str] = []
    missing = [host for host in sorted(needed) if host in cores]
    while turn and (missing or len(chosen) < lanes):
        if lanes - len(chosen) > len(missing):
            host = min(turn, key=lambda host: ((chosen.count(host) + 1) / cores[host], chosen.count(host)))
        else:
            host = missing[0]
        chosen.append(host)
        missing = [name for name in missing if name != host]
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class Routing:
    """The lane of each slice, and the host of each lane."""

    lane_of: SliceLanes
    host_of: tuple[str, ...]

    def loads(self, weights: Sequence[float]) -> list[float]:
        """The load of each lane."""
        return lane_loads(weights, self.lane_of, len(self.host_of))


def route_slices(
    weights: Sequence[float],
    homes: Sequence[str],
    lane_hosts: Sequence[str],
    settings: StateSettings,
    before: Routing | None = None,
) -> Routing:
    """Assign slices to lanes on their hosts, evenly by load, with few changes against the routing before.

    `weights` is the measured load of each slice (all 1 if nothing is known), `homes` the host of each slice, `lane_hosts` the host of
    each lane. A slice whose host has no lane goes to the least busy lane.

    >>> route_slices([9, 1, 1, 1], ["a"] * 4, ["a", "a"], StateSettings()).lane_of
    (0, 1, 1, 1)
    """
    now = at_home(weights, homes, lane_hosts, before)
    choices = [_lanes_for(home, lane_hosts) for home in homes]
    even = Routing(rebalance(weights, now.lane_of, len(lane_hosts), choices), now.host_of)
    worth = max(even.loads(weights)) < max(now.loads(weights)) * (1 - settings.hot_share)
    return even if worth else now


def at_home(
    weights: Sequence[float], homes: Sequence[str], lane_hosts: Sequence[str], before: Routing | None = None
) -> Routing:
    """Assign slices to lanes on their hosts; every slice stays in its lane if it may, however uneven the loads are."""
    if not lane_hosts:
        raise ValueError("an operator needs at least one lane")
    choices = [_lanes_for(home, lane_hosts) for home in homes]
    lanes = [_kept(slice_, choices[slice_], before) for slice_ in range(len(homes))]
    loads = [0.0] * len(lane_hosts)
    for slice_, lane in enumerate(lanes):
        if lane is not None:
            loads[lane] += weights[slice_]
    homeless = [slice_ for slice_, lane in enumerate(lanes) if lane is None]
    placed = [-1 if lane is None else lane for lane in lanes]
    for slice_ in sorted(homeless, key=lambda slice_: (-weights[slice_], slice_)):
        placed[slice_] = min(choices[slice_], key=lambda lane: (loads[lane], lane))
        loads[placed[slice_]] += weights[slice_]
    return Routing(tuple(placed), tuple(lane_hosts))


def _lanes_for(home: str, lane_hosts: Sequence[str]) -> tuple[int, ...]:
    local = tuple(lane for lane, host in enumerate(lane_hosts) if host == home)
    return local or tuple(range(len(lane_hosts)))


def _kept(slice_: int, choices: tuple[int, ...], before: Routing | None) -> int | None:
    lane = None if before is None or slice_ >= len(before.lane_of) else before.lane_of[slice_]
    return lane if lane in choices else None
