"""What is told of single lanes and slices on a real Spark, and slices that are assigned anew while the job runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headgate.config import FAST
from headgate.config.settings import settings_from
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.model import Action, ActionKind, Cause, Outcome
from headgate.health.policies import Late
from headgate.health.records import DiagnosisKind, observed_job
from headgate.health.resolving import ResolverName
from headgate.scheduler.policies import policy_named
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.state.hashing import slices_of
from headgate.state.operators import Batches, Changed, KeyedRows
from headgate.state.placement.routing import lane_loads
from headgate.topology import Topology
from tests.health.observed_jobs import looked_at

from .builders import change, epochs, put_in, reading, start, topology, written
from .conftest import Until
from .test_keyed import ROWS, USERS, counting, expected, newest, source

SLICES, LANES = 16, 3
MANY = 10 * ROWS
"""Rows that do not come to an end while something is awaited."""
PER_SLICE = np.bincount(slices_of([pa.array(np.arange(ROWS) % USERS)], SLICES), minlength=SLICES)


def seen(rows: KeyedRows) -> Changed:
    counts = np.diff(np.append(rows.starts, rows.rows.num_rows)) + rows.state["n"]
    return Changed({"n": counts}, pa.RecordBatch.from_arrays([rows.keys.column(0), pa.array(counts)], ["user", "n"]))


def uncombined(out: Path) -> Topology:
    """Every row travels to its lane by itself."""
    job = topology()
    counted = job.keyed(
        "count",
        Batches({"n": "int64"}, seen),
        source(job),
        key="user",
        schema="user long, n long",
        lanes=LANES,
        slices=SLICES,
    )
    job.sink("out", sinks.files(out), counted)
    return job


FEW_KEYS, FEW_LANES, RATE = 2, 3, 800


def few_keys() -> Topology:
    """Two keys on three lanes: one lane has nothing to do, and no assignment of slices changes that."""
    job = Topology("job", Intent(latency="20s", juice=0.5), pace_s=0.5)
    keyed = job.transform(
        "key", lambda rows: rows.selectExpr(f"row % {FEW_KEYS} as user"), job.source("in", sources.load(RATE))
    )
    counting_ = Batches({"n": "int64"}, seen)
    counted = job.keyed(
        "count", counting_, keyed, key="user", schema="user long, n long", lanes=FEW_LANES, slices=SLICES
    )
    job.sink("out", sinks.discard(), counted)
    return job


@pytest.mark.slow
def test_healthy_job_with_few_keys_gets_no_diagnosis_from_its_cold_start_on(engine: SparkEngine, until: Until) -> None:
    """Examined in every round as if it missed its intent."""
    settings = settings_from({**FAST, "window_s": 12.0, "warm_up_s": 4.0})
    controller = Controller(engine, policy_named("headgate", settings), None, settings)
    engine.submit(few_keys())
    found: list[str] = []
    known: set[bool] = set()

    def examined() -> bool:
        view, decision = controller.round()
        job = view.jobs["job"]
        told = [] if job.span is None else looked_at(observed_job(job, view, settings), Late())[2]
        found.extend(one.kind for one in told if one.kind != DiagnosisKind.TOO_FEW_LANES)
        known.add(job.span is not None and job.span.last.reading.operators["count"].slice_rows is not None)
        assert decision.action is None or decision.action.remedy in ("", ResolverName.SCALE_UP)
        return job.span is not None and job.span.seconds >= 10 and (job.span.last.reading.epochs or 0) >= 8

    until(examined, "ten seconds of measurements")
    last = controller.engine.observe().jobs["job"]
    assert last is not None and len(set(last.operators["count"].hosts or ())) == 1
    assert known == {False, True}
    assert found == []


def applied(engine: SparkEngine, **wanted: object) -> Outcome:
    has = engine.observe().allocation["job"]
    changes = {"job": replace(has, **wanted)}  # type: ignore[arg-type]
    return engine.apply(Action(ActionKind.RECONFIGURE, "job", changes, Cause("a test")))


def test_rows_of_every_lane_and_slice_are_told(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, uncombined(out), read_limit=1000)
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    told = reading(engine).operators["count"]
    assert told.slice_rows == tuple(PER_SLICE) and told.slice_lanes is not None
    of_lanes = lane_loads(told.slice_rows, told.slice_lanes, LANES)
    until(lambda: sum(reading(engine).operators["count"].lane_rows or ()) >= 0.9 * ROWS, "the record of all tasks")
    lane_rows = reading(engine).operators["count"].lane_rows
    assert lane_rows == pytest.approx(tuple(of_lanes), rel=0.15)
    assert max(of_lanes) > 1.2 * min(of_lanes)  # else they could be told in any order


def test_slices_change_lanes_live_and_counts_stay_exact(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, counting(out, lanes=LANES, rows=MANY), read_limit=250)
    until(lambda: epochs(engine) >= 2, "two epochs")
    run = engine.job("job").query
    for wanted in (tuple(2 - number % 3 for number in range(SLICES)), (0,) * 15 + (1,)):
        assert applied(engine, slices={"count": wanted}) == Outcome(True)
        until(lambda wanted=wanted: reading(engine).operators["count"].slice_lanes == wanted, "slices on their lanes")
        since = epochs(engine)
        until(lambda since=since: epochs(engine) > since, "another epoch")
    change(engine, {"count": 2})
    engine.set_read_limit("job", MANY)
    until(lambda: put_in(engine) == MANY, "the end of the load")
    assert newest(out) == expected(MANY)
    assert engine.job("job").query is run


def test_slices_that_nobody_assigns_are_spread_evenly_again(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, counting(out, lanes=2, rows=MANY), read_limit=250)
    until(lambda: epochs(engine) >= 1, "an epoch")
    applied(engine, slices={"count": (0,) * 15 + (1,)})
    until(lambda: reading(engine).operators["count"].slice_lanes == (0,) * 15 + (1,), "slices on their lanes")
    applied(engine, slices={})
    until(lambda: reading(engine).operators["count"].slice_lanes == (0, 1) * 8, "an even spread")


def test_what_cannot_be_done_is_refused_and_nothing_changes(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, counting(out), read_limit=250)
    until(lambda: epochs(engine) >= 1, "an epoch")
    has = engine.observe().allocation["job"]
    moved = applied(engine, avoided=("localhost",))
    assert moved == Outcome(False, 'job "job": there is no host besides localhost that its lanes could run on')
    assert not applied(engine, slices={"visit": (0, 1)}).applied
    assert engine.observe().allocation["job"] == has


def test_read_limit_that_was_raised_holds_until_a_person_sets_another(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    start(engine, counting(out), read_limit=50)
    until(lambda: epochs(engine) >= 1, "an epoch")
    assert applied(engine, read_limit=400).applied
    until(lambda: any(table.column("n").to_pylist() for table in written(out).values()), "rows")
    until(lambda: _largest(out) > 50 / USERS, "a larger epoch")
    assert (reading(engine).read_limit, engine.states()["job"].read_limit) == (400, 400)
    engine.set_read_limit("job", 100)
    assert (reading(engine).read_limit, engine.observe().allocation["job"].read_limit) == (100, None)


def _largest(out: Path) -> float:
    """Rows of the first user in the largest epoch."""
    counts = [next((row["n"] for row in table.to_pylist() if row["user"] == 0), 0) for table in written(out).values()]
    return float(max(np.diff(sorted({0, *counts})), default=0))
