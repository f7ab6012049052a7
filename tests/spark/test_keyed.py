"""Keyed operators on a real Spark: exact state through other lanes, pauses and replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate import Intent
from headgate.errors import EngineError, GraphError
from headgate.spark import sinks
from headgate.spark.engine import SparkEngine
from headgate.state.inspect import checkpoint_of, read_state
from headgate.state.library import Items, Value
from headgate.state.operators import Batches, Changed, Events, KeyedRows
from headgate.topology import Stream, Topology

from .builders import burst, change, epochs, put_in, reading, start, topology, written
from .conftest import Until

ROWS, USERS = 3000, 20
COUNTS = {"n": "count", "total": "sum(amount)"}


def visits(rows: DataFrame) -> DataFrame:
    return rows.select((F.col("row") % USERS).alias("user"), F.col("row").alias("amount"), "arrived")


def source(job: Topology, rows: int = ROWS) -> Stream:
    return job.transform("visit", visits, job.source("in", burst(rows), lanes=2))


def counting(out: Path, lanes: int = 2, rows: int = ROWS, **options: Any) -> Topology:
    job = topology()
    counted = job.keyed("count", COUNTS, source(job, rows), key="user", lanes=lanes, slices=16, **options)
    job.sink("out", sinks.files(out), counted)
    return job


def newest(out: Path, key: str = "user") -> dict[Any, dict[str, Any]]:
    """What was last put out of each key."""
    return {row[key]: row for epoch in sorted(written(out)) for row in written(out)[epoch].to_pylist()}


def expected(rows: int = ROWS) -> dict[int, dict[str, int]]:
    return {
        user: {"user": user, "n": len(range(user, rows, USERS)), "total": sum(range(user, rows, USERS))}
        for user in range(USERS)
    }


def state_of(engine: SparkEngine, operator: str = "count", job: str = "job") -> dict[Any, Mapping[str, Any]]:
    found = read_state(checkpoint_of(engine.place_of(job), operator))
    return {next(iter(entry.key.values())): entry.state for entry in found}


# -- counts


def test_counts_are_exact_through_other_numbers_of_lanes(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, counting(out), read_limit=250)
    for lanes in (1, 4, 3):
        since = epochs(engine) if engine.observe().jobs.get("job") else 0
        until(lambda since=since: epochs(engine) >= since + 2, "two epochs")
        change(engine, {"count": lanes})
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    assert newest(out) == expected()
    assert {user: state[":count"] for user, state in state_of(engine).items()} == {
        user: row["n"] for user, row in expected().items()
    }
    assert reading(engine).operators["count"].processed == {"visit": ROWS}


KINDS = {
    "n": "count",
    "known": "count(worth)",
    "sum": "sum(worth)",
    "low": "min(worth)",
    "high": "max(worth)",
    "mean": "mean(worth)",
    "whole": "sum(row)",
    "least": "min(row)",
}


def gappy(rows: DataFrame) -> DataFrame:
    """One key is null, one never has a worth, the others not always; one worth is no number."""
    user, row = F.col("row") % USERS, F.col("row")
    worth = F.when(row % 60 == 5, F.lit(float("nan"))).when((row % 3 > 0) & (user != 7), row.cast("double") - 1000)
    return rows.select(F.when(user > 0, F.concat(F.lit("u"), user)).alias("a user"), worth.alias("worth"), row)


def kinds_of(rows: range) -> dict[str, Any]:
    known = [row - 1000.0 for row in rows if row % 3 and row % USERS != 7 and row % 60 != 5]
    odd = any(row % 60 == 5 for row in rows)
    told = bool(known) or odd
    return {
        "n": len(rows),
        "known": len(known) + sum(row % 60 == 5 for row in rows),
        "sum": "nan" if odd else sum(known) if told else None,
        "low": min(known) if told else None,
        "high": "nan" if odd else max(known) if told else None,
        "mean": "nan" if odd else sum(known) / len(known) if told else None,
        "whole": sum(rows),
        "least": min(rows),
    }


def test_few_rows_are_not_combined_on_their_way(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = job.transform("one-key", lambda rows: rows.selectExpr("1 AS user", "row"), job.source("in", burst(200)))
    job.sink("out", sinks.files(out), job.keyed("count", {"n": "count"}, rows, key="user", lanes=1))
    start(engine, job, read_limit=50)
    until(lambda: put_in(engine) == 200, "the end of the load")
    keyed = engine._jobs["job"].keyed
    assert keyed is not None and not keyed._states["count"].combining
    assert newest(out, "user")[1]["n"] == 200


def test_rows_that_meet_by_key_on_their_way_give_what_lanes_make_of_them(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    job = topology()
    rows = job.transform("gappy", gappy, job.source("in", burst(ROWS), lanes=2))
    job.sink("out", sinks.files(out), job.keyed("count", KINDS, rows, key="a user", lanes=3, slices=16))
    start(engine, job, read_limit=1000)
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    keyed = engine._jobs["job"].keyed
    assert keyed is not None and keyed._states["count"].combining
    found = {
        name: {kind: "nan" if row[kind] != row[kind] else row[kind] for kind in KINDS}
        for name, row in newest(out, "a user").items()
    }
    users = range(USERS)
    assert found == {f"u{user}" if user else None: kinds_of(range(user, ROWS, USERS)) for user in users}
    # The first epoch's rows, then one per key and epoch: what is read on the way to the lanes is not theirs.
    keys = [table.num_rows for epoch, table in written(out).items() if epoch > 0]
    marks = sum(reading(engine).operators["count"].lane_rows or ()) - 1000 - sum(keys)
    assert marks in (0, 3, 6), "a lane also reads its row of the routing table while that is put in place"


def test_state_outlives_pause_and_resume(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, counting(out), read_limit=500)
    until(lambda: epochs(engine) >= 2, "two epochs")
    engine.pause("job")
    engine.resume("job")
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    assert newest(out) == expected()


@pytest.mark.parametrize("lost", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_epochs_that_sparks_log_lost_in_a_power_cut_are_neither_lost_nor_counted_twice(
    engine: SparkEngine, out: Path, until: Until, lost: int
) -> None:
    """Spark does not force its log to disk; here it ends some epochs before what sinks and state have."""
    start(engine, counting(out), read_limit=200)
    until(lambda: epochs(engine) >= 6, "six epochs")
    engine.pause("job")
    log = engine.place_of("job") / "checkpoint"
    last = max(int(path.name) for path in (log / "offsets").glob("[0-9]*"))
    for epoch in range(last - lost + 1, last + 1):
        (log / "offsets" / str(epoch)).unlink()
        (log / "commits" / str(epoch)).unlink(missing_ok=True)
    (log / "offsets" / str(last + 1)).touch()
    engine.set_read_limit("job", 330)
    engine.resume("job")
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    assert {last, last + 1} <= written(out).keys()
    assert newest(out) == expected()
    assert {user: state[":count"] for user, state in state_of(engine).items()} == {
        user: row["n"] for user, row in expected().items()
    }


def test_epoch_that_failed_after_its_lanes_ran_counts_once(
    engine: SparkEngine, out: Path, tmp_path: Path, until: Until
) -> None:
    flag, good = tmp_path / "broken", sinks.files(out)

    def write(rows: DataFrame, epoch: int) -> None:
        rows.collect()
        if epoch == 2 and not flag.exists():
            flag.touch()
            raise OSError("the disk is full")
        good(rows, epoch)

    job = topology()
    job.sink("out", write, job.keyed("count", COUNTS, source(job), key="user", lanes=3))
    start(engine, job, read_limit=500)
    until(lambda: "job" in engine.observe().jobs and put_in(engine) == ROWS, "the end of the load")
    assert flag.exists()
    assert newest(out) == expected()


def test_lanes_that_nobody_reads_to_the_end_keep_their_state_all_the_same(
    engine: SparkEngine, out: Path, until: Until
) -> None:
    job = topology()
    counted = job.keyed("count", COUNTS, source(job), key="user", lanes=3)
    job.sink("out", sinks.files(out), job.transform("some", lambda rows: rows.coalesce(1).limit(1), counted))
    start(engine, job, read_limit=1000)
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    assert {user: state[":count"] for user, state in state_of(engine).items()} == {
        user: row["n"] for user, row in expected().items()
    }


def test_two_keyed_operators_in_a_row_whose_rows_meet_again(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    rows = source(job, 900)
    by_user = job.keyed("by-user", {"n": "count"}, rows, key="user", lanes=3)
    even = job.transform("even", lambda rows: rows.select((F.col("user") % 2 == 0).alias("even"), "n"), by_user)
    again = job.keyed("again", {"most": "max(n)", "updates": "count"}, even, key="even", lanes=2)
    named = job.transform("named", lambda rows: rows.select(F.col("even").cast("string").alias("name"), "most"), again)
    users = job.transform(
        "users", lambda rows: rows.select(F.col("user").cast("string").alias("name"), F.col("n").alias("most")), by_user
    )
    job.sink("out", sinks.files(out), job.merge("both", users, named))
    start(engine, job, read_limit=300)
    until(lambda: put_in(engine) == 900, "the end of the load")
    found = {name: row["most"] for name, row in newest(out, "name").items()}
    assert found == {str(user): 900 // USERS for user in range(USERS)} | {"true": 45, "false": 45}


# -- processors


def on_event(user: int, event: Mapping[str, Any], state: Any, emit: Any) -> None:
    state.count.set(state.count.get() + 1)
    if state.count.get() % 10 == 0:
        emit({"user": user, "n": state.count.get()})


def test_events_meet_the_state_of_their_key(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    tens = Events({"count": Value(0)}, on_event)
    job.sink(
        "out",
        sinks.files(out),
        job.keyed("ten", tens, source(job, 600), key="user", schema="user long, n long", lanes=2),
    )
    start(engine, job, read_limit=170)
    until(lambda: put_in(engine) == 600, "the end of the load")
    rows = Counter((row["user"], row["n"]) for table in written(out).values() for row in table.to_pylist())
    assert rows == Counter((user, n) for user in range(USERS) for n in (10, 20, 30))
    shares = engine.hot_keys("job")["ten"]
    assert {int(key) for key in shares} <= set(range(USERS))
    assert 0 < sum(shares.values()) <= 1


def largest(rows: KeyedRows) -> Changed:
    amounts = rows.rows.column("amount").to_numpy()
    now = np.maximum(np.maximum.reduceat(amounts, rows.starts), rows.state["largest"])
    return Changed(
        {"largest": now}, pa.RecordBatch.from_arrays([rows.keys.column(0), pa.array(now)], ["user", "largest"])
    )


def test_batches_meet_the_state_of_all_their_keys(engine: SparkEngine, out: Path, until: Until) -> None:
    job = topology()
    most = job.keyed(
        "most",
        Batches({"largest": "int64"}, largest),
        source(job),
        key="user",
        schema="user long, largest long",
        lanes=2,
    )
    job.sink("out", sinks.files(out), most)
    start(engine, job, read_limit=700)
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    assert newest(out) == {user: {"user": user, "largest": ROWS - USERS + user} for user in range(USERS)}


WINDOW_MS = 10_000


def collect(user: int, event: Mapping[str, Any], state: Any, emit: Any) -> None:
    end_ms = (round(event["at"].timestamp() * 1000) // WINDOW_MS + 1) * WINDOW_MS
    state.seen.append(event["row"])
    state.wake_at(end_ms)


def close_window(user: int, at_ms: int, state: Any, emit: Any) -> None:
    inside = [row for row in state.seen if 1000 * row < at_ms]
    left = [row for row in state.seen if 1000 * row >= at_ms]
    state.seen.clear()
    for row in left:
        state.seen.append(row)
    emit({"user": user, "end_ms": at_ms, "rows": len(inside)})


def test_windows_close_once_time_has_passed_them(engine: SparkEngine, out: Path, until: Until) -> None:
    """Row i is of second i: a window of ten seconds holds five rows of each of two users."""
    job = topology()
    timed = job.transform(
        "timed",
        lambda rows: rows.select("row", (F.col("row") % 2).alias("user"), F.timestamp_seconds("row").alias("at")),
        job.source("in", burst(200)),
    )
    windows = Events({"seen": Items()}, collect, on_timer=close_window)
    closed = job.keyed(
        "window",
        windows,
        timed,
        key="user",
        schema="user long, end_ms long, rows long",
        time="at",
        lateness="5s",
        follows_clock=False,
        lanes=2,
    )
    job.sink("out", sinks.files(out), closed)
    start(engine, job, read_limit=30)
    # An epoch without rows follows the last one, and has its watermark: row 199, less 5 s.
    due = Counter({(user, end): 1 for user in (0, 1) for end in range(WINDOW_MS, 194_001, WINDOW_MS)})
    until(lambda: len(put_out(out)) == len(due), "the windows of all rows")
    rows = put_out(out)
    assert {row["rows"] for row in rows} == {5}
    assert Counter((row["user"], row["end_ms"]) for row in rows) == due
    assert put_in(engine) == 200


def put_out(out: Path) -> list[dict[str, Any]]:
    return [row for table in written(out).values() for row in table.to_pylist()]


def test_timer_fires_although_nothing_arrives_any_more(engine: SparkEngine, out: Path, until: Until) -> None:
    """All rows come at once, and each user is to be called half a second after its last."""

    def on_event(user: int, event: Mapping[str, Any], state: Any, emit: Any) -> None:
        state.seen.append(event["amount"])
        state.wake_at(round(event["arrived"].timestamp() * 1000) + 500)

    def on_timer(user: int, at_ms: int, state: Any, emit: Any) -> None:
        if len(state.seen):
            emit({"user": user, "rows": len(state.seen)})
        state.seen.clear()

    job = topology()
    silent = Events({"seen": Items()}, on_event, on_timer=on_timer)
    job.sink(
        "out",
        sinks.files(out),
        job.keyed(
            "silent",
            silent,
            source(job, 40),
            key="user",
            schema="user long, rows long",
            time="arrived",
            lanes=2,
            slices=4,
        ),
    )
    engine.submit(job)
    until(lambda: sum(row["rows"] for row in put_out(out)) == 40, "all timers")
    assert put_in(engine) == 40
    assert {row["user"] for row in put_out(out)} == set(range(USERS))


# -- refusals


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": "usr"}, 'operator "count": its key column is "usr", but its input has user, amount, arrived only'),
        ({"key": "user", "time": "amount"}, 'its time column "amount" is of type long; it may be timestamp'),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_the_job_starts(
    engine: SparkEngine, out: Path, options: Mapping[str, Any], sentence: str
) -> None:
    job = topology()
    job.sink("out", sinks.files(out), job.keyed("count", COUNTS, source(job), **options))
    with pytest.raises(EngineError) as refused:
        engine.submit(job)
    assert sentence in str(refused.value)


def test_state_of_another_schema_is_refused_with_a_sentence(engine: SparkEngine, out: Path, until: Until) -> None:
    start(engine, counting(out), read_limit=1000)
    until(lambda: put_in(engine) == ROWS, "the end of the load")
    engine.pause("job")
    job = engine._jobs["job"]
    job.context.topology.nodes["count"] = counting(out, version=2).nodes["count"]
    with pytest.raises(EngineError) as refused:
        engine.resume("job")
    assert 'the state of operator "count" was written with version 1, and the operator now declares 2' in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"processor": {"n": "median(x)"}}, 'operator "count": aggregation is "median"'),
        ({"processor": {}}, "it has no aggregations"),
        ({"processor": len}, "its processor is <built-in function len>"),
        ({"processor": COUNTS, "schema": "n long"}, "its aggregations say what it puts out; leave out schema"),
        ({"processor": Events({"n": Value(0)}, on_event)}, "its schema must name the columns it puts out"),
        ({"processor": COUNTS, "key": ()}, "its key names no columns"),
        ({"processor": COUNTS, "key": ("user", "user")}, "its key names a column twice"),
        ({"processor": COUNTS, "slices": 4, "lanes": 8, "max_lanes": 8}, "it may have 8 lanes but has 4 slices"),
        ({"processor": COUNTS, "slices": 0}, "slices is 0"),
        ({"processor": COUNTS, "lateness": "soon"}, 'lateness is "soon"'),
    ],
)
def test_mistakes_are_refused_while_the_topology_is_written(options: dict[str, Any], sentence: str) -> None:
    job = Topology("job", Intent(latency="2s"))
    rows = job.source("in", burst(10))
    arguments = {"key": "user", **options}
    processor = arguments.pop("processor")
    with pytest.raises(GraphError) as refused:
        job.keyed("count", processor, rows, **arguments)
    assert str(refused.value).startswith('job "job": operator "count": ')
    assert sentence in str(refused.value)
