"""Which hosts hold the backups of each slice: chained over the peers of the slice's host (ChronoStream, III-B).

The chain counts the slices of one host, not all slices: the backups of a host spread over all its peers, whichever slices the host has,
and its peers recover them in parallel. A backup stays where it is unless its host is gone or the peers are no longer even, because a
backup that changes hosts is rebuilt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

Backups = tuple[str, ...]
"""The hosts with the backups of one slice."""


def chained_backups(
    homes: Sequence[str], kept: Sequence[Sequence[str]], hosts: Sequence[str], factor: int
) -> tuple[Backups, ...]:
    """The backups of each slice, `factor` of them where there are so many peers; `kept` names wanted hosts, the best first.

    >>> chained_backups(["a", "a", "a", "b"], [()] * 4, ["a", "b", "c"], 1)
    (('b',), ('c',), ('b',), ('c',))
    """
    found: dict[int, Backups] = {}
    for home in dict.fromkeys(homes):
        mine = [slice_ for slice_, of in enumerate(homes) if of == home]
        found |= _of_one_host({slice_: kept[slice_] for slice_ in mine}, _peers(home, hosts), factor)
    return tuple(found[slice_] for slice_ in range(len(homes)))


def _peers(home: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """The other hosts in the order of a ring, from the host after `home` on: hosts with one slice each back each other up in a circle."""
    after = [host for host in hosts if host > home]
    return tuple(after) + tuple(host for host in hosts if host < home)


def _of_one_host(kept: Mapping[int, Sequence[str]], peers: Sequence[str], factor: int) -> dict[int, Backups]:
    most = min(factor, len(peers))
    chosen = {slice_: [host for host in wanted if host in peers][:most] for slice_, wanted in kept.items()}
    counts = Counter(dict.fromkeys(peers, 0))
    for backups in chosen.values():
        counts.update(backups)
    for index, backups in enumerate(chosen.values()):
        while len(backups) < most:
            backups.append(_next(index, backups, peers, counts))
            counts[backups[-1]] += 1
    while counts and max(counts.values()) - min(counts.values()) > 1:
        _even_out(chosen, peers, counts)
    return {slice_: tuple(backups) for slice_, backups in chosen.items()}


def _next(index: int, backups: Collection[str], peers: Sequence[str], counts: Mapping[str, int]) -> str:
    """The next peer of the chain; peers with fewer backups come first, where kept backups have made them uneven."""
    turn = {host: (place - index) % len(peers) for place, host in enumerate(peers)}
    return min((host for host in peers if host not in backups), key=lambda host: (counts[host], turn[host]))


def _even_out(chosen: Mapping[int, list[str]], peers: Sequence[str], counts: Counter[str]) -> None:
    """Move one backup from the fullest peer to the emptiest: of the slices with that choice, one that wants the backup least."""
    fullest = max(peers, key=lambda host: counts[host])
    emptiest = min(peers, key=lambda host: counts[host])
    movable = [backups for backups in chosen.values() if fullest in backups and emptiest not in backups]
    backups = max(movable, key=lambda backups: backups.index(fullest))
    backups[backups.index(fullest)] = emptiest
    counts.update({fullest: -1, emptiest: 1})
