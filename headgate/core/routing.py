"""Slices to lanes: how many slices there are, and which lane processes which in an epoch (ChronoStream, III-D and III-F).

The table changes freely between two epochs: another number of lanes is another grouping of the same slices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headgate.config import StateSettings


def slice_count(most_cores: int, settings: StateSettings) -> int:
    """Slices of an operator that may one day use so many cores.

    >>> slice_count(16, StateSettings())
    64
    """
    return max(1, most_cores) * settings.slices_per_core


def slice_of(key_hash: int, slices: int) -> int:
    """The slice of a key, from its 64-bit hash; the same as Spark's `pmod(hash, slices)`.

    >>> slice_of(-1, 16)
    15
    """
    return key_hash % slices


# -- slices to lanes ---------------------------------------------------------------------------------------------------------


def lane_hosts(lanes: int, slots: Mapping[str, float], needed: Collection[str] = ()) -> tuple[str, ...]:
    """The host of each lane: by the slots of the hosts, and one at least on each that is `needed`, even if that makes more lanes.

    >>> lane_hosts(4, {"a": 2, "b": 1})
    ('a', 'a', 'a', 'b')
    >>> lane_hosts(1, {"a": 2, "b": 1}, needed=["a", "b"])
    ('a', 'b')
    """
    counts = {host: int(host in needed) for host in slots}
    for _ in range(lanes - sum(counts.values())):
        following = min(slots, key=lambda host: ((counts[host] + 1) / max(slots[host], 1e-9), host))
        counts[following] += 1
    return tuple(host for host in sorted(slots) for _ in range(counts[host]))


@dataclass(frozen=True, slots=True)
class Routing:
    """Which lane has each slice, and on which host each lane is."""

    lane_of: tuple[int, ...]
    host_of: tuple[str, ...]

    def slices(self, lane: int) -> tuple[int, ...]:
        """The slices of a lane."""
        return tuple(slice_ for slice_, of in enumerate(self.lane_of) if of == lane)

    def loads(self, weights: Sequence[float]) -> list[float]:
        """What each lane has to do."""
        loads = [0.0] * len(self.host_of)
        for slice_, lane in enumerate(self.lane_of):
            loads[lane] += weights[slice_]
        return loads


def routed(
    weights: Sequence[float],
    homes: Sequence[str],
    lane_hosts: Sequence[str],
    settings: StateSettings,
    before: Routing | None = None,
) -> Routing:
    """Slices to lanes: on the host that has them, even by load, and with few changes against what was before.

    `weights` is the load of each slice as measured (all 1 if nothing is known), `homes` the host of each slice, `lane_hosts` that of
    each lane. A slice whose host has no lane goes to the least busy one.

    >>> routed([9, 1, 1, 1], ["a"] * 4, ["a", "a"], StateSettings()).lane_of
    (0, 1, 1, 1)
    """
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
    _even_out(placed, loads, weights, choices, settings.hot_share)
    return Routing(tuple(placed), tuple(lane_hosts))


def _lanes_for(home: str, lane_hosts: Sequence[str]) -> tuple[int, ...]:
    local = tuple(lane for lane, host in enumerate(lane_hosts) if host == home)
    return local or tuple(range(len(lane_hosts)))


def _kept(slice_: int, choices: tuple[int, ...], before: Routing | None) -> int | None:
    lane = None if before is None or slice_ >= len(before.lane_of) else before.lane_of[slice_]
    return lane if lane in choices else None


def _even_out(
    placed: list[int],
    loads: list[float],
    weights: Sequence[float],
    choices: Sequence[tuple[int, ...]],
    worth: float,
) -> None:
    """Move slices from busy lanes to idle ones of the same host, one by one, while a move is worth it."""
    for _ in range(len(placed)):
        busiest_first = sorted(range(len(loads)), key=lambda lane: (-loads[lane], lane))
        moves = (_best_move(lane, placed, loads, weights, choices, worth) for lane in busiest_first)
        move = next((move for move in moves if move is not None), None)
        if move is None:
            return
        slice_, lane = move
        loads[placed[slice_]] -= weights[slice_]
        loads[lane] += weights[slice_]
        placed[slice_] = lane


def _best_move(
    lane: int,
    placed: list[int],
    loads: list[float],
    weights: Sequence[float],
    choices: Sequence[tuple[int, ...]],
    worth: float,
) -> tuple[int, int] | None:
    """The move that leaves the busier of both lanes with least; None unless that is less than before by the share `worth`."""
    found = [
        (max(loads[lane] - weights[slice_], loads[other] + weights[slice_]), slice_, other)
        for slice_, of in enumerate(placed)
        if of == lane and weights[slice_] > 0
        for other in choices[slice_]
        if other != lane
    ]
    if not found:
        return None
    load, slice_, other = min(found)
    return (slice_, other) if load < loads[lane] * (1 - worth) else None
