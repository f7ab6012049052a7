"""What slices cost: 1 to 256 of them on one lane, turn by turn in one run (ChronoStream, fig. 21: 4.69 % at most)."""

from __future__ import annotations

import statistics

import numpy as np
import pyarrow as pa

from headgate.bench import Figure, Result
from headgate.bench.keyed import OneLane, room, some_keys, with_slices
from headgate.sim.bars import Bar
from headgate.state.aggregate import Aggregate
from headgate.state.operators import KeyedOperator

SLICES = (1, 4, 16, 64, 256)
ROWS, KEYS = 200_000, 500_000
WARM_UP, TURNS = 3, 15
WORKLOADS = {"number keys": pa.int64(), "text keys": pa.string()}
MOST = 1.05


def measure() -> Result:
    """Rows per second of count+sum, durable, for each number of slices; time per row against one slice."""
    figures: list[Figure] = []
    bars: list[Bar] = []
    for workload, kind in WORKLOADS.items():
        took_s = _took_s(kind)
        figures += [
            Figure(f"{workload}, {slices} slices: rows per second", ROWS / statistics.median(took_s[slices]), "rows/s")
            for slices in SLICES
        ]
        # Both of a turn ran within a second of each other, so that a noisy neighbour slows neither more than the other.
        worst = max(
            statistics.median(many / one for many, one in zip(took_s[slices], took_s[1], strict=True))
            for slices in SLICES
        )
        bars.append(Bar(f"{workload}: time per row with 4 to 256 slices against 1, the worst", worst, "<=", MOST))
    return Result(tuple(figures), tuple(bars))


def _took_s(kind: pa.DataType) -> dict[int, list[float]]:
    """Seconds per epoch, turn by turn; in each turn every number of slices has its epoch, of the same rows."""
    operator = KeyedOperator("visits", {"user": kind}, Aggregate.of({"visits": "count", "total": "sum(amount)"}))
    with room() as place:
        lanes = {slices: OneLane(place / str(slices), operator, slices) for slices in SLICES}
        found: dict[int, list[float]] = {slices: [] for slices in SLICES}
        for turn in range(WARM_UP + TURNS):
            # The first turn brings every key into the state; afterwards the state's size is the same throughout.
            users = np.arange(KEYS) if turn == 0 else some_keys(turn, ROWS, KEYS)
            amounts = np.random.default_rng(turn).random(len(users))
            key = pa.array(users).cast(kind)
            for slices in SLICES[turn % len(SLICES) :] + SLICES[: turn % len(SLICES)]:
                took_s = lanes[slices].run(with_slices({"user": key, "amount": amounts}, key, slices))
                found[slices] += [took_s] if turn >= WARM_UP else []
    return found
