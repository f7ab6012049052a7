"""Shared by several examples, not a job: work of a given cost per row, and loads that a cluster file can describe."""

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
    """Passes rows on after `cost_us` of core time per row and `wait_us` of waiting per row, as for a look-up."""

    def lane(batches: Batches) -> Batches:
        for batch in batches:
            compute(batch.num_rows * cost_us / 1e6)
            time.sleep(batch.num_rows * wait_us / 1e6)
            yield batch

    return lane


def compute(core_s: float) -> None:
    """Uses this much core time; takes longer where other threads share the core."""
    numbers = np.arange(1000.0)
    done_s = time.thread_time() + core_s
    while time.thread_time() < done_s:
        np.sqrt(numbers, out=numbers)


def arriving(load: float | Mapping[str, Any]) -> Generator:
    """A source of `load` rows per second, or of a pattern: `{pattern = "steps", points = [[0, 500], ["1m", 1500]]}`."""
    return sources.load(load_from(load, "load", Path()) if isinstance(load, Mapping) else load)


def written(out: str | None) -> Writer:
    """A sink that writes files to `out`, or discards all rows if `out` is None."""
    return sinks.discard() if out is None else sinks.files(out)
