"""Distribution of keys: a hash maps keys to slices, slices belong to lanes, and a scenario can add one hot key."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from headgate.core.model import spread_evenly
from headgate.sim import constants
from headgate.sim.spec import OperatorSpec


def slice_weights(seed: int, job: str, spec: OperatorSpec) -> list[float]:
    """Share of the rows that each slice of an operator gets: nearly even, or as uneven as the scenario says."""
    if not spec.slices:
        return []
    random = np.random.default_rng([seed, number_of(job, spec.name), 3])
    ranks = random.permutation(spec.slices) + 1.0
    spread = np.maximum(0.1, 1 + constants.SLICE_SPREAD * random.standard_normal(spec.slices))
    weights = ranks**-spec.zipf * spread
    return [float(weight) for weight in weights / weights.sum()]


def skew_slices(weights: Sequence[float], share: float, seed: int, job: str, operator: str) -> list[float]:
    """Return the shares of slices with one key that gets this share of all rows, on top of the share of its slice."""
    hot = int(np.random.default_rng([seed, number_of(job, operator), 5]).integers(len(weights)))
    return [weight * (1 - share) + (share if number == hot else 0.0) for number, weight in enumerate(weights)]


def lane_shares(weights: Sequence[float], lanes: int, places: tuple[int, ...] | None) -> list[float]:
    """Return the share of the rows that each lane gets; an assignment of slices that does not fit the lanes is ignored."""
    if not weights:
        return [1 / lanes] * lanes
    fits = places is not None and len(places) == len(weights) and max(places) < lanes
    assigned = places if fits and places is not None else spread_evenly(len(weights), lanes)
    shares = [0.0] * lanes
    for lane, weight in zip(assigned, weights, strict=True):
        shares[lane] += weight
    return shares


def number_of(*names: str) -> int:
    """A number for some names, the same in every process."""
    return zlib.crc32("\0".join(names).encode())
