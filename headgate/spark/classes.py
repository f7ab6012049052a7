"""Writes an archive of Spark's classes that every JVM maps into memory (class data sharing): Spark starts in half the time.

`python -m headgate.spark.classes` writes the archive beside the installed packages; set-up does so. Java checks the archive at each start
and ignores one that belongs to another Java or another Spark.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate import files
from headgate.config import SparkSettings
from headgate.core.intents import Intent
from headgate.errors import HeadgateError
from headgate.spark import session, sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.topology import Topology

EPOCHS = 3
"""Epochs of the sample job after which the classes of an epoch are loaded."""
PATIENCE_S = 300.0
QUIET = "-Xlog:disable"
"""Disables Java's log, which has a warning for each class that cannot be in an archive."""


def write(path: Path) -> None:
    """Run a job with state on an embedded Spark, and have Java write an archive of the classes that it loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = files.beside(path)
    part.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="headgate-classes-") as place:
        home, settings = Path(place), SparkSettings(slots=2, exit_s=PATIENCE_S)
        options = {"spark.driver.extraJavaOptions": f"{QUIET} -XX:ArchiveClassesAtExit={shlex.quote(str(part))}"}
        engine = SparkEngine(session.start(home, settings, extra=options), home, settings)
        try:
            engine.submit(_job(home / "out"))
            _await_epochs(engine)
        finally:
            engine.close()
    files.move_into(path)


def _job(out: Path) -> Topology:
    job = Topology("classes", Intent(latency="10s"), pace_s=0.0)
    rows = job.batches(
        "same", _same, job.source("in", sources.load(1000)), schema="row long, arrived timestamp", lanes=2
    )
    keyed = job.keyed("count", {"n": "count"}, rows, key="row", lanes=2)
    job.sink("out", sinks.files(out), keyed)
    return job


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _await_epochs(engine: SparkEngine) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        readings = engine.observe().jobs.values()
        if any(reading is not None and (reading.epochs or 0) >= EPOCHS for reading in readings):
            return
        time.sleep(0.1)
    raise HeadgateError(
        f"Spark ran no {EPOCHS} epochs within {PATIENCE_S:g} s; the archive of its classes is not written"
    )


if __name__ == "__main__":
    try:
        write(session.ARCHIVE)
    except (HeadgateError, OSError) as error:
        sys.exit(f"Spark will start without an archive of its classes, which takes longer: {error}")
