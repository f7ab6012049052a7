"""Lines of the log that are about a job on Spark name the job and the epoch that is meant."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from headgate.cli.json_log import JsonLog
from headgate.ports import JobPhase
from headgate.spark import sinks
from headgate.spark.engine import SparkEngine

from .builders import burst, epochs, start, topology
from .conftest import Until

FAILS_AT = 2


class Failing:
    """A sink that logs each epoch, and raises in one epoch as long as there is a file."""

    def __init__(self, out: Path, flag: Path) -> None:
        self._write, self._flag = sinks.files(out), flag

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        logging.getLogger("shop").warning("epoch %d", epoch)
        if epoch == FAILS_AT and self._flag.exists():
            raise LookupError("no such tier")
        self._write(rows, epoch)


def test_lines_of_a_job_name_the_epoch_that_is_in_flight_fails_or_begins(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    flag, texts = tmp_path / "broken", list[str]()
    flag.touch()
    job, log = topology(), JsonLog(texts.append)
    job.sink("out", Failing(out, flag), job.source("in", burst(600)))
    with log.taking_over():
        start(engine, job, read_limit=100)
        until(lambda: engine.states()["job"].phase is JobPhase.FAILED, "the failure")
        assert engine.states()["job"].epoch == FAILS_AT
        assert "[stream execution thread for job [" in (engine.place_of("job").parents[1] / "spark.log").read_text()
        flag.unlink()
        engine.resume("job")
        assert (engine.states()["job"].epoch or 0) >= FAILS_AT, "a job goes on with the epoch that failed"
        until(lambda: epochs(engine) >= 2, "two more epochs")
    lines: list[dict[str, Any]] = [json.loads(text) for text in texts]
    own = [line for line in lines if line.get("logger") == "shop"]
    assert {int(line["message"].removeprefix("epoch ")) for line in own} >= {0, 1, FAILS_AT, FAILS_AT + 1}
    assert all(line["job"] == "job" and line["message"] == f"epoch {line['epoch']}" for line in own)


def test_next_epoch_is_known_before_it_begins(engine: SparkEngine, out: Path, tmp_path: Path, until: Until) -> None:
    job = topology()
    job.sink("out", Failing(out, tmp_path / "none"), job.source("in", burst(600)))
    start(engine, job, read_limit=100)
    until(lambda: epochs(engine) >= 2, "two epochs")
    engine.pause("job")
    next_epoch = engine.states()["job"].epoch
    assert next_epoch == len(list(out.glob("epoch=*/_SUCCESS")))
    engine.resume("job")
    assert (engine.states()["job"].epoch or 0) >= next_epoch
