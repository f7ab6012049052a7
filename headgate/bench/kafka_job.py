"""A job that copies one Kafka topic to another, in a process that may be killed: it prints how many rows it is done with."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.ports import JobPhase
from headgate.spark import sinks, sources
from headgate.spark.engine import open_engine
from headgate.topology import Topology

PATIENT = {"fetch.wait.max.ms": 500}
"""The gateway of SeaweedFS returns no rows if a read from its disks takes longer than this time."""
JOB, IN, OUT = "copy", "orders", "copies"
SETTINGS = SparkSettings(
    slots=4, read_limit=150, stop_s=20, back_off_s=0.3, outage_retry_s=1.0, retries=20, kafka_answer_s=10.0
)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield every row unchanged."""
    yield from batches


def topology(servers: str) -> Topology:
    """Return a job that reads 2 partitions in 3 lanes, passes the rows through 2 lanes, and writes to another topic."""
    job = Topology(JOB, Intent(latency="30s"), pace_s=0.0)
    rows = job.source("in", sources.kafka(IN, servers=servers, options=PATIENT), lanes=3)
    values = job.transform("values", lambda frame: frame.select("value"), rows)
    copied = job.batches("copied", same, values, schema="value binary", lanes=2)
    job.sink("out", sinks.kafka(OUT, servers=servers, delivery="read-back", options=PATIENT), copied)
    return job


def main(place: Path, servers: str) -> None:
    """Run the job until the process is killed."""
    engine = open_engine(place, SETTINGS)
    try:
        engine.submit(topology(servers))
        while True:
            print(_line(engine), flush=True)
            time.sleep(0.1)
    finally:
        engine.close()


def _line(engine: object) -> str:
    """Return the number of rows copied since the first start of the job, or the reason if the job has failed for good."""
    from headgate.spark.engine import SparkEngine

    assert isinstance(engine, SparkEngine)
    state = engine.states()[JOB]
    if state.phase is JobPhase.FAILED:
        return f"failed {state.reason}"
    reading = engine.observe().jobs.get(JOB)
    return str(int(reading.operators["in"].processed["*"]) if reading is not None else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
