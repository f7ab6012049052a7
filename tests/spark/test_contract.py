"""The contract of an engine, on a real Spark: the same promises as in `tests/contract`, in real time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headgate import Intent
from headgate.core.model import OUTSIDE, Action, ActionKind, Cause, JobAllocation, Snapshot
from headgate.spark import sinks, sources
from headgate.spark.engine import SparkEngine
from headgate.spark.sources.load import Generator
from headgate.topology import Topology
from tests.contract import promises
from tests.contract.promises import read

from .builders import ROWS, burst, epochs, latency_until, same, start, topology
from .conftest import Until


def page_load(name: str = "page-load", load: Generator | None = None) -> Topology:
    job = topology(name, pace_s=0.2)
    rows = job.source("in", load or sources.load(200))
    parsed = job.batches("parse", same, rows, schema=ROWS, lanes=2)
    job.sink("store", sinks.discard(), parsed, lanes=2)
    job.sink("archive", sinks.discard(), job.transform("large", lambda rows: rows.where("row % 2 = 0"), parsed))
    return job


def action(engine: SparkEngine, lanes: int, name: str = "page-load") -> Action:
    has = engine.observe().allocation[name]
    allocation = replace(has, lanes={**has.lanes, "parse": lanes, "store": lanes})
    return Action(ActionKind.RECONFIGURE, name, {name: allocation}, Cause("parse was busy"))


@pytest.fixture
def busy(engine: SparkEngine, until: Until) -> SparkEngine:
    """With a job that has made an epoch."""
    engine.submit(page_load())
    until(lambda: epochs(engine, "page-load") >= 1, "an epoch")
    return engine


def rounds(engine: SparkEngine, until: Until) -> Iterator[Snapshot]:
    """A snapshot after every epoch; in between, lanes come and go."""
    for lanes in (2, 3, 3, 1, 1):
        engine.apply(action(engine, lanes))
        snapshot = engine.observe()
        yield snapshot
        since = read(snapshot, "page-load").epochs or 0
        until(lambda since=since: epochs(engine, "page-load") > since, "another epoch")


def test_readings_keep_their_promises_while_lanes_come_and_go(busy: SparkEngine, until: Until) -> None:
    before = busy.observe()
    for now in rounds(busy, until):
        reading, job = read(now, "page-load"), busy.jobs()["page-load"]
        promises.counters_only_grow(read(before, "page-load"), reading)
        promises.no_row_is_processed_before_it_was_sent(job, reading)
        promises.backlog_is_what_was_not_processed(reading)
        before = now


def test_snapshot_shows_all_jobs_with_their_operators_lanes_and_hosts(busy: SparkEngine) -> None:
    promises.snapshot_is_whole(busy, busy.observe())


def test_latency_of_each_row_is_told_once(engine: SparkEngine) -> None:
    start(engine, page_load("job", burst(600)), read_limit=200)
    told = latency_until(engine, lambda now: now.operators["in"].processed[OUTSIDE] == 600)
    assert told.rows == pytest.approx(600 + 300)
    assert read(engine.observe(), "job").latency is None


def test_version_grows_with_each_other_allocation_of_the_job_it_is_for(busy: SparkEngine, until: Until) -> None:
    busy.submit(page_load("other"))
    until(lambda: epochs(busy, "other") >= 1, "an epoch of the other")
    versions = [read(busy.observe(), "page-load").version]
    others = {read(busy.observe(), "other").version}
    for lanes in (3, 1):
        assert busy.apply(action(busy, lanes)).applied
        until(lambda: read(busy.observe(), "page-load").version > versions[-1], "another version")
        snapshot = busy.observe()
        versions.append(read(snapshot, "page-load").version)
        others.add(read(snapshot, "other").version)
        promises.snapshot_is_whole(busy, snapshot)
    assert len(others) == 1


def test_applying_twice_changes_nothing(busy: SparkEngine, until: Until) -> None:
    wanted = action(busy, 3)
    before = read(busy.observe(), "page-load").version
    assert busy.apply(wanted).applied
    until(lambda: read(busy.observe(), "page-load").version > before, "another version")
    once, since = read(busy.observe(), "page-load").version, epochs(busy, "page-load")
    assert busy.apply(wanted).applied
    until(lambda: epochs(busy, "page-load") >= since + 2, "two epochs")
    snapshot = busy.observe()
    assert read(snapshot, "page-load").version == once
    assert snapshot.allocation["page-load"] == wanted.changes["page-load"]


def test_unknown_job_is_refused_and_nothing_is_changed(busy: SparkEngine) -> None:
    promises.unknown_job_is_refused_and_nothing_is_changed(busy, action(busy, 4))


def test_removed_job_vanishes_and_comes_back_from_nothing(busy: SparkEngine, until: Until) -> None:
    gone = action(busy, 4)
    busy.remove("page-load")
    snapshot = busy.observe()
    assert not any((snapshot.jobs, snapshot.allocation, busy.jobs(), busy.states()))
    assert not busy.apply(gone).applied
    busy.submit(page_load())
    until(lambda: epochs(busy, "page-load") >= 1, "an epoch")
    reading = read(busy.observe(), "page-load")
    assert reading.epochs is not None and reading.epochs <= 3
    promises.backlog_is_what_was_not_processed(reading)


def test_paused_job_is_listed_but_neither_runs_nor_is_read(busy: SparkEngine) -> None:
    busy.pause("page-load")
    assert not any((busy.jobs(), busy.observe().jobs))
    assert busy.apply(
        Action(ActionKind.RECONFIGURE, "page-load", {"page-load": JobAllocation({}, 1.0)}, Cause(""))
    ).applied
    assert set(busy.states()) == {"page-load"}


def test_changed_intent_shows_among_the_jobs(busy: SparkEngine) -> None:
    wanted = Intent(latency="500ms", worth=90)
    before = read(busy.observe(), "page-load").version
    busy.set_intent("page-load", wanted)
    assert busy.jobs()["page-load"].intent == wanted
    assert read(busy.observe(), "page-load").version == before
