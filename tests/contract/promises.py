"""What every engine promises about its readings, whatever time it lives in: the simulator's or ours."""

from __future__ import annotations

import dataclasses

import pytest

from headgate.core.model import OUTSIDE, Action, Job, JobAllocation, JobReading, Snapshot
from headgate.ports import Engine


def read(snapshot: Snapshot, job: str) -> JobReading:
    reading = snapshot.jobs[job]
    assert reading is not None
    return reading


def counters(reading: JobReading) -> dict[str, float]:
    """Everything that only grows while the allocation stays."""
    found = {f"arrived {source}": rows for source, rows in reading.arrived.items()}
    for name, operator in reading.operators.items():
        found |= {f"{parent} > {name}": rows for parent, rows in operator.processed.items()}
        found |= {f"{name} -> {child}": rows for child, rows in operator.sent.items()}
        found |= {f"{name} busy": max(operator.busy_s, default=0.0)}
    if reading.in_epochs_s is not None and reading.epochs is not None:
        found |= {"in epochs": reading.in_epochs_s, "epochs": reading.epochs}
    return found


def counters_only_grow(before: JobReading, now: JobReading) -> None:
    found = counters(now)
    shrunk = {key: (rows, found[key]) for key, rows in counters(before).items() if found[key] < rows - 1e-9}
    if now.version != before.version:
        shrunk = {key: values for key, values in shrunk.items() if not key.endswith(" busy")}
    assert not shrunk, shrunk


def snapshot_is_whole(engine: Engine, snapshot: Snapshot) -> None:
    """All jobs with all their operators, edges and lanes."""
    assert set(snapshot.jobs) == set(snapshot.allocation) == set(engine.jobs())
    assert snapshot.hosts
    for name, job in engine.jobs().items():
        reading = read(snapshot, name)
        assert set(reading.operators) == set(job.graph.operators) >= set(snapshot.allocation[name].lanes)
        assert set(reading.arrived) == set(job.graph.sources)
        for operator, spec in job.graph.operators.items():
            assert set(reading.operators[operator].processed) == set(spec.inputs or (OUTSIDE,))
            assert set(reading.operators[operator].sent) == set(job.graph.children[operator])
        for operator, lanes in snapshot.allocation[name].lanes.items():
            assert len(reading.operators[operator].busy_s) == lanes


def no_row_is_processed_before_it_was_sent(job: Job, reading: JobReading) -> None:
    for source in job.graph.sources:
        assert reading.operators[source].processed[OUTSIDE] <= reading.arrived[source] + 1e-6
    for parent, children in job.graph.children.items():
        for child in children:
            sent, processed = reading.operators[parent].sent, reading.operators[child].processed
            assert processed[parent] <= sent[child] + 1e-6


def backlog_is_what_was_not_processed(reading: JobReading) -> None:
    there = sum(reading.arrived.values()) + sum(sum(o.sent.values()) for o in reading.operators.values())
    done = sum(sum(o.processed.values()) for o in reading.operators.values())
    assert reading.backlog == pytest.approx(there - done)


def unknown_job_is_refused_and_nothing_is_changed(engine: Engine, known: Action) -> None:
    before = engine.observe().allocation
    outcome = engine.apply(dataclasses.replace(known, changes={**known.changes, "nobody": JobAllocation({"in": 1})}))
    assert not outcome.applied
    assert "nobody" in outcome.detail
    assert engine.observe().allocation == before
