"""Two jobs on a real Spark cluster whose lanes are told to leave a host; what happened is printed as JSON.

A process has one Spark session, and that of the other tests is embedded: so this runs by itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.bench.workers import cluster
from headgate.config import SparkSettings
from headgate.core.model import Action, ActionKind, Cause, JobAllocation, Outcome
from headgate.spark import sinks
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology
from tests.spark.builders import burst, epochs, put_in, reading, start, topology
from tests.spark.test_keyed import COUNTS, visits

HOSTS, ROWS = 3, 20_000
SETTINGS = SparkSettings(longest_epoch_s=2.5)
READ_LIMIT = 200
"""Rows of an epoch, so that they do not come to an end while something is awaited."""
PATIENCE_S = 180.0


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each row with the host on which it was."""
    for batch in batches:
        host = pa.array([os.environ["SPARK_LOCAL_IP"]] * batch.num_rows)
        yield pa.RecordBatch.from_arrays([batch.column("row"), host], ["row", "host"])


def copied(out: Path) -> Topology:
    job = topology("copied")
    rows = job.source("in", burst(ROWS), lanes=2)
    job.sink("out", sinks.files(out), job.batches("work", where, rows, schema="row long, host string", lanes=6))
    return job


def counted(out: Path) -> Topology:
    job = topology("counted")
    rows = job.transform("visit", visits, job.source("in", burst(ROWS), lanes=2))
    job.sink("out", sinks.files(out), job.keyed("work", COUNTS, rows, key="user", lanes=3, slices=16))
    return job


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.05)


def apply(engine: SparkEngine, name: str, wanted: JobAllocation) -> Outcome:
    return engine.apply(Action(ActionKind.RECONFIGURE, name, {name: wanted}, Cause("a test")))


def moved(engine: SparkEngine, name: str) -> dict[str, Any]:
    """Let a job make some epochs, move it off a host, leave it one lane, and let it finish."""
    until(lambda: epochs(engine, name) >= 4 and reading(engine, name).operators["work"].hosts)
    before = reading(engine, name)
    hosts = before.operators["work"].hosts or ()
    query = engine.job(name).query
    has = engine.observe().allocation[name]
    leave = sorted(hosts)[0]
    wanted = replace(has, avoided=(leave,))
    outcome = apply(engine, name, wanted)
    begun = epochs(engine, name) + 1  # the epoch that is under way may still be there
    until(lambda: reading(engine, name).version > before.version and epochs(engine, name) > begun + 2)
    # Lanes with state leave when their slices have, which goes on beside the epochs.
    until(lambda: leave not in (reading(engine, name).operators["work"].hosts or (leave,)))
    after = reading(engine, name).operators["work"].hosts
    apply(engine, name, replace(wanted, lanes={**wanted.lanes, "work": 1}))
    until(lambda: len(reading(engine, name).operators["work"].hosts or ()) == 1)
    alone = reading(engine, name).operators["work"].hosts
    engine.set_read_limit(name, ROWS)
    until(lambda: put_in(engine, name=name) == ROWS)
    return {
        "applied": outcome.applied,
        "left": leave,
        "before": hosts,
        "lane_rows": before.operators["work"].lane_rows,
        "after": after,
        "alone": alone,
        "epochs": begun,
        "restarted": engine.job(name).query is not query,
        "sources": reading(engine, name).operators["in"].hosts,
    }


def main(place: Path) -> None:
    with cluster(HOSTS, SETTINGS) as hosts:
        engine = hosts.engine
        told = {}
        for job in (copied(place / "copied"), counted(place / "counted")):
            start(engine, job, read_limit=READ_LIMIT)
            told[job.name] = moved(engine, job.name)
            engine.pause(job.name)
        everywhere = tuple(sorted(hosts.slots()))
        refused = apply(engine, "copied", replace(engine.job("copied").allocation, avoided=everywhere))
    print(json.dumps({**told, "refused": refused.detail}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
