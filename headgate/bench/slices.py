"""Benchmark of the costs of slices: 1 to 256 slices on one lane, turn by turn in one run (ChronoStream, fig. 21: 4.69 % at most).

The benchmark shows wall time and core time. Wall time counts, but includes the effects of other load on the machine; core time is the
cost of the slices alone.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headgate.bench import Figure, Result
from headgate.bench.keyed import OneLane, room, some_keys, with_slices
from headgate.sim.reports.bars import Bar
from headgate.state.aggregate import Aggregate
from headgate.state.operators import KeyedOperator

SLICES = (1, 4, 16, 64, 256)
ROWS, KEYS = 200_000, 500_000
WARM_UP, TURNS = 3, 20
WORKLOADS = {"number keys": pa.int64(), "text keys": pa.string()}
MOST = 1.05


@dataclass(frozen=True, slots=True)
class SliceTurns:
    """The times of epochs with one number of slices, by turn."""

    wall_s: list[float] = field(default_factory=list)
    core_s: list[float] = field(default_factory=list)

    @property
    def fastest_s(self) -> float:
        """The fastest epoch, because other load of the machine only makes an epoch slower."""
        return min(self.wall_s)


def measure() -> Result:
    """Rows per second of count+sum, durable, for each number of slices; time per row against one slice."""
    figures: list[Figure] = []
    bars: list[Bar] = []
    for workload, kind in WORKLOADS.items():
        found = _turns(kind)
        for slices, turns in found.items():
            name = f"{workload}, {slices} {'slice' if slices == 1 else 'slices'}"
            figures += [
                Figure(f"{name}: rows per second", ROWS / turns.fastest_s, "rows/s"),
                Figure(f"{name}: core seconds per million rows", 1e6 * statistics.median(turns.core_s) / ROWS, "s"),
            ]
        wall = max(turns.fastest_s / found[1].fastest_s for turns in found.values())
        cores = max(_paired(turns, found[1]) for turns in found.values())
        bars += [
            Bar(f"{workload}: time with 4 to 256 slices against 1, the worst", wall, "<=", MOST),
            Bar(f"{workload}: core seconds with 4 to 256 slices against 1, the worst", cores, "<=", MOST),
        ]
    return Result(tuple(figures), tuple(bars))


def _paired(many: SliceTurns, one: SliceTurns) -> float:
    """Return the median ratio of core seconds in the same turn; both epochs of a turn run within a second of each other."""
    return statistics.median(a / b for a, b in zip(many.core_s, one.core_s, strict=True))


def _turns(kind: pa.DataType) -> dict[int, SliceTurns]:
    """Run one epoch per number of slices in each turn, on the same rows; each turn begins with another number."""
    operator = KeyedOperator("visits", {"user": kind}, Aggregate.of({"visits": "count", "total": "sum(amount)"}))
    found = {slices: SliceTurns() for slices in SLICES}
    with room() as place:
        lanes = {slices: OneLane(place / str(slices), operator, slices) for slices in SLICES}
        for turn in range(WARM_UP + TURNS):
            # The first turn brings every key into the state; afterwards the size of the state is constant.
            users = np.arange(KEYS) if turn == 0 else some_keys(turn, ROWS, KEYS)
            amounts = np.random.default_rng(turn).random(len(users))
            key = pa.array(users).cast(kind)
            for slices in SLICES[turn % len(SLICES) :] + SLICES[: turn % len(SLICES)]:
                batch = with_slices({"user": key, "amount": amounts}, key, slices)
                begun_s = time.process_time()
                wall_s = lanes[slices].run(batch)
                if turn >= WARM_UP:
                    found[slices].wall_s.append(wall_s)
                    found[slices].core_s.append(time.process_time() - begun_s)
    return found
