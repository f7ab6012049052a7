"""What the micro-topologies share: work that costs as much as it is told to, and a load that a cluster file can describe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headgate import sinks, sources
from headgate.loads import load_from
from headgate.spark.sources.load import Generator
from headgate.topology import Writer

ROWS = "row long, arrived timestamp"
Batches = Iterator[pa.RecordBatch]


def work(cost_us: float, wait_us: float = 0.0) -> Callable[[Batches], Batches]:
    """Passes rows on, after so much core time for each, and so much time in which its lane only waits, as for a look-up."""

    def lane(batches: Batches) -> Batches:
        for batch in batches:
            compute(batch.num_rows * cost_us / 1e6)
            time.sleep(batch.num_rows * wait_us / 1e6)
            yield batch

    return lane


def compute(core_s: float) -> None:
    """Keeps a core busy; by the core's time, so that it takes longer where others want the core too."""
    numbers = np.arange(1000.0)
    done_s = time.thread_time() + core_s
    while time.thread_time() < done_s:
        np.sqrt(numbers, out=numbers)


def arriving(load: float | Mapping[str, Any]) -> Generator:
    """Rows per second, or a table: `{pattern = "steps", points = [[0, 500], ["1m", 1500]]}`."""
    return sources.load(load_from(load, "load", Path()) if isinstance(load, Mapping) else load)


def written(out: str | None) -> Writer:
    """To files; without a place for them every row is computed and none is kept."""
    return sinks.discard() if out is None else sinks.files(out)
