"""What is told of single lanes and slices on a real Spark, and slices that are assigned anew while the job runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.model import Action, ActionKind, Cause, Outcome
from headgate.core.routing import lane_loads
from headgate.spark import sinks
from headgate.spark.engine import SparkEngine
from headgate.spark.topology import Topology
from headgate.state.hashing import slices_of
from headgate.state.operators import Batches, Changed, KeyedRows

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
    run = engine._job("job")._query
    for wanted in (tuple(2 - number % 3 for number in range(SLICES)), (0,) * 15 + (1,)):
        assert applied(engine, slices={"count": wanted}) == Outcome(True)
        until(lambda wanted=wanted: reading(engine).operators["count"].slice_lanes == wanted, "slices on their lanes")
        since = epochs(engine)
        until(lambda since=since: epochs(engine) > since, "another epoch")
    change(engine, {"count": 2})
    engine.set_read_limit("job", MANY)
    until(lambda: put_in(engine) == MANY, "the end of the load")
    assert newest(out) == expected(MANY)
    assert engine._job("job")._query is run


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
