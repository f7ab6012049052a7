"""Benchmark of checkpoints: the slowest epoch with delta checkpoints and with full synchronous checkpoints (ChronoStream, fig. 18).

In favour of full checkpoints, only every fourth epoch writes a full checkpoint, while with deltas every epoch is durable.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.bench import Figure, Result
from headgate.bench.keyed import OneLane, room, some_keys, with_slices
from headgate.sim.reports.bars import Bar
from headgate.state.aggregate import Aggregate
from headgate.state.operators import KeyedOperator

SIZES_MB = (64, 256, 1024)
SLICES, ROWS = 16, 100_000
EPOCHS, FULL_EVERY = 9, 4
"""The number of epochs per way, and of epochs per full checkpoint."""
SENSORS = ("heat", "speed", "load", "noise")
FLAT, FASTER = 3.0, 3.0


@dataclass(frozen=True, slots=True)
class Epochs:
    """The slowest and the mean epoch of one way, in seconds."""

    slowest_s: float
    mean_s: float


def measure() -> Result:
    """Mean and slowest epoch of both ways for each size of state."""
    found = {size_mb: _both(size_mb) for size_mb in SIZES_MB}
    figures = [
        Figure(f"{size_mb} MB of state, {way}: {what} epoch", 1000 * value, "ms")
        for size_mb, ways in found.items()
        for way, epochs in ways.items()
        for what, value in (("mean", epochs.mean_s), ("slowest", epochs.slowest_s))
    ]
    smallest, largest = found[SIZES_MB[0]], found[SIZES_MB[-1]]
    bars = (
        Bar(
            f"slowest epoch at {SIZES_MB[-1]} MB: full against delta, times",
            largest["full"].slowest_s / largest["delta"].slowest_s,
            ">=",
            FASTER,
        ),
        Bar(
            f"slowest epoch with deltas, {SIZES_MB[-1]} MB against {SIZES_MB[0]} MB, times",
            largest["delta"].slowest_s / smallest["delta"].slowest_s,
            "<=",
            FLAT,
        ),
    )
    return Result(figures=tuple(figures), bars=bars)


def _both(size_mb: int) -> dict[str, Epochs]:
    with room() as place:
        lane = OneLane(place, _operator(), SLICES)
        schema = lane.operator.schema
        keys = (size_mb << 20) // (schema.key_type.byte_width + schema.value_type.byte_width)
        lane.fill(keys)
        lane.run(_rows(0, keys))
        deltas = [lane.run(_rows(lane.epoch, keys)) for _ in range(EPOCHS)]
        _make_room(place)
        full = [
            lane.run_without_disk(_rows(lane.epoch, keys), whole=turn % FULL_EVERY == FULL_EVERY - 1)
            for turn in range(EPOCHS)
        ]
    return {way: Epochs(max(times), statistics.mean(times)) for way, times in (("delta", deltas), ("full", full))}


def _operator() -> KeyedOperator:
    """Return an operator with statistics of four sensors per device: 152 bytes per key."""
    measures = {f"{kind}_{name}": f"{kind}({name})" for name in SENSORS for kind in ("sum", "min", "max")}
    return KeyedOperator("devices", {"device": pa.int64()}, Aggregate.of({"n": "count"} | measures))


def _rows(seed: int, keys: int) -> pa.RecordBatch:
    key = pa.array(some_keys(seed, ROWS, keys))
    values = np.random.default_rng(seed).random((len(SENSORS), ROWS))
    return with_slices({"device": key, **dict(zip(SENSORS, values, strict=True))}, key, SLICES)


def _make_room(place: Path) -> None:
    """Delete the deltas, which are measured and not read again."""
    for path in (place / "checkpoint/deltas").glob("*.state"):
        path.unlink()
