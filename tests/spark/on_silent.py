"""Two jobs under the control loop on leased hosts, one of which falls silent; each round is printed as JSON.

A process has one Spark session, and that of the other tests is embedded: so this runs by itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate import Intent, Topology
from headgate.config import FAST, Settings, SparkSettings
from headgate.controller import Controller
from headgate.core.metrics import JobView, View
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import Headgate
from headgate.spark import sinks, sources
from headgate.spark.engine import open_engine
from tests.spark.test_keyed import COUNTS, visits

ROWS_S = 100
INTENT = Intent(latency="8s")


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Slow enough that a task is in flight most of the time."""
    for batch in batches:
        time.sleep(0.002 * batch.num_rows)
        yield batch


def copied(out: Path) -> Topology:
    job = Topology("copied", INTENT)
    rows = job.source("in", sources.load(ROWS_S), lanes=2)
    job.sink("out", sinks.files(out), job.batches("work", slowly, rows, schema="row long, arrived timestamp", lanes=4))
    return job


def counted(out: Path) -> Topology:
    job = Topology("counted", INTENT)
    rows = job.transform("visit", visits, job.source("in", sources.load(ROWS_S), lanes=2))
    job.sink("out", sinks.files(out), job.keyed("count", COUNTS, rows, key="user", lanes=2, slices=16))
    return job


def told(view: View, decision: Decision, controller: Controller) -> dict[str, Any]:
    policy = controller.policy
    assert isinstance(policy, Headgate)
    return {
        "silent": {host.name: host.silent_s for host in view.hosts if host.suspect},
        "hosts": sorted(host.name for host in view.hosts),
        "demand": [host.demand for host in view.hosts],
        "action": decision.action.sentence if decision.action is not None else "",
        "decision": decision.cause,
        "unjudged": sorted(policy.state.quarantined),
        "advice": [advice.sentence for advice in policy.advice(view)],
        "jobs": {name: of(job) for name, job in view.jobs.items()},
    }


def of(job: JobView) -> dict[str, Any]:
    reading = job.samples[-1].reading if job.samples else None
    hosts = {host for one in reading.operators.values() for host in one.hosts or ()} if reading is not None else ()
    return {
        "met": job.met,
        "epochs": reading.epochs if reading is not None else None,
        "hosts": sorted(hosts),
        "lanes": dict(job.allocation.lanes),
    }


def main(place: Path, master: str, extra: dict[str, str]) -> None:
    settings = Settings(**FAST)  # type: ignore[arg-type]
    engine = open_engine(
        place / "home", SparkSettings(driver_memory_mb=512, heartbeat_s=2.0, first_pace_s=5.0), master, extra
    )
    try:
        engine.submit(copied(place / "copied"))
        engine.submit(counted(place / "counted"))
        controller = Controller(engine, Headgate(settings), None, settings)
        while not (place / "enough").exists():
            view, decision = controller.round()
            print(json.dumps(told(view, decision, controller)), flush=True)
            time.sleep(settings.round_s)
    finally:
        engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(Path(sys.argv[3]).read_text()))
