"""A removed job that is restored goes on with its offsets, its state and what its sinks know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis import Redis

from headgate.jobfile import JobRequest
from headgate.server.registry import Registered
from headgate.server.removed import PLACE, RemovedJobs
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology

from .builders import column, put_in, topology
from .conftest import Until


def counting(out: Path, url: str) -> Topology:
    job = topology()
    rows = job.source("in", sources.redis("in", schema="id long, user string", url=url))
    job.sink("copy", sinks.redis("out", url=url, name="copy"), rows)
    totals = job.keyed("count", {"n": "count"}, rows, key="user", slices=4)
    job.sink("files", sinks.files(out), totals)
    return job


def add(client: Redis, numbers: range) -> None:
    for number in numbers:
        client.xadd("in", {"id": number, "user": "ann"})


def test_a_restored_job_skips_and_doubles_no_row(
    engine: SparkEngine, out: Path, redis_client: Redis, redis_url: str, until: Until
) -> None:
    home = engine.place_of("job").parents[1]
    removed = RemovedJobs(home, keep_h=1.0)
    add(redis_client, range(20))
    engine.submit(counting(out, redis_url))
    until(lambda: put_in(engine) == 20, "the first rows were put in")
    kept = removed.begin(Registered(JobRequest("job.py", "job")), 1_700_000_000.0)
    engine.remove("job", keep=True)
    removed.move("job", kept)
    assert not engine.place_of("job").exists()

    add(redis_client, range(20, 30))
    path, _ = removed.find("job")
    assert path / PLACE == kept
    removed.bring_back(path, "job")
    engine.submit(counting(out, redis_url))
    until(lambda: put_in(engine) == 30, "the rows that arrived meanwhile were put in")
    removed.done(path)
    found: Any = redis_client.xrange("out")
    assert [int(fields[b"id"]) for _, fields in found] == list(range(30))
    assert max(column(out, "n")) == 30, "the count goes on where it was"
