"""Labels of rows: numbers that Spark's hash partitioning sends to a certain lane."""

from __future__ import annotations

from functools import lru_cache


@lru_cache
def labels(lanes: int) -> tuple[int, ...]:
    """For each lane the smallest number that Spark's hash partitioning sends to it.

    >>> labels(3)
    (0, 1, 11)
    """
    found: dict[int, int] = {}
    label = 0
    while len(found) < lanes:
        found.setdefault(_murmur3(label) % lanes, label)
        label += 1
    return tuple(found[lane] for lane in range(lanes))


def _murmur3(number: int, seed: int = 42) -> int:
    """Spark's `hash` of an int."""
    mixed = seed ^ (_rotated(number * 0xCC9E2D51 & _ALL, 15) * 0x1B873593 & _ALL)
    mixed = (_rotated(mixed, 13) * 5 + 0xE6546B64 & _ALL) ^ 4
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & _ALL
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & _ALL
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


_ALL = 0xFFFFFFFF


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _ALL
