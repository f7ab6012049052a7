"""The inside of a keyed lane: passes rows from Spark to the state of its slices, and reports to the driver.

Everything here runs in Spark's Python workers.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from headgate.errors import StateAwayError, StateBusyError, StateError, StateFullError
from headgate.spark.epochs.lanes import BatchLane, LaneError, TransientLaneError
from headgate.spark.hosts.this_host import here, store_folder
from headgate.state.aggregate import SLICE
from headgate.state.copies import Copies
from headgate.state.lane import LaneReport, LaneTask, run_lane
from headgate.state.operators import KeyedOperator

ASTRAY = "a lane whose slices are elsewhere was put on"
LABEL = "_label"
"""Column that rows are brought to their lanes by."""


@dataclass(frozen=True, slots=True)
class KeyedLaneReport:
    """The report of a lane to the driver."""

    report: LaneReport
    latest_ms: int | None
    """The latest event time among its rows."""


Reports = dict[tuple[str, int, int], KeyedLaneReport]
"""Reports by operator, epoch and lane: a lane that ran twice reports twice, and the last report counts."""


class Collected(AccumulatorParam[Reports]):
    """Reports of lanes, collected by Spark: those of tasks that failed never arrive."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        value1.update(value2)
        return value1


@dataclass(frozen=True)
class KeyedLane:
    """Any lane of a keyed operator in any epoch; the first row says which lane it is, and a property of Spark's the rest."""

    operator: KeyedOperator
    lane_of: tuple[int, ...]
    time: str | None
    reports: Any
    """Accumulator of `Reports`."""
    hosts: tuple[str, ...] = ()
    """Of the cluster, if it runs on one."""
    host_of: tuple[str, ...] = ()
    """Where each lane should be."""
    lenient: bool = True
    """Whether a lane goes on where its slices are not, and has to rebuild them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lane, rows = _marked(iter(batches))
        slices = tuple(slice_ for slice_, of in enumerate(self.lane_of) if of == lane)
        task = replace(_task_of(self.operator.name), lane=lane, slices=slices)
        if self.hosts:
            task = self._here(task)
        checked = BatchLane(self.operator.name, lambda batches: self._run(task, batches), self.operator.output_schema)
        yield from checked(rows)

    def _here(self, task: LaneTask) -> LaneTask:
        host = here(self.hosts)
        task = replace(task, store=store_folder(task.store, host))
        begun = task.epoch > task.life.first_epoch
        if begun and not self.lenient and host != self.host_of[task.lane] and not self._present(task):
            raise LaneError(f'operator "{self.operator.name}": {ASTRAY} {host}, not on {self.host_of[task.lane]}')
        return task

    def _present(self, task: LaneTask) -> bool:
        """Whether this host has copies of all slices of the lane, of any age."""
        copies = Copies(self.operator, task.life, task.store, task.checkpoint, task.settings)
        return None not in copies.versions(task.slices).values()

    def _run(self, task: LaneTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        latest = Latest(self.time)

        def tell(report: LaneReport) -> None:
            lane_report = KeyedLaneReport(report, latest.at_ms)
            self.reports.add({(self.operator.name, task.epoch, task.lane): lane_report})

        try:
            yield from run_lane(self.operator, task, latest.of(batches), tell)
        except StateError as error:
            raise lane_error(self.operator.name, error) from error


def lane_error(operator: str, error: StateError) -> LaneError:
    """What keyed state refuses, as the error of a lane: Spark does not pass on what led to it."""
    kind = TransientLaneError if isinstance(error, StateBusyError | StateFullError | StateAwayError) else LaneError
    return kind(f'operator "{operator}": {error}')


def property_of(operator: str) -> str:
    """The property by which Spark tells the lanes of an operator about the epoch."""
    return f"headgate.epoch.{operator}"


def as_text(task: LaneTask) -> str:
    """A task as the value of a property: for every lane alike, without its number and its slices."""
    return b64encode(pickle.dumps(task)).decode()


def _task_of(operator: str) -> LaneTask:
    """The task of this lane, as the driver set it for the epoch."""
    context = TaskContext.get()
    assert context is not None
    found: LaneTask = pickle.loads(b64decode(str(context.getLocalProperty(property_of(operator)))))
    return found


class Latest:
    """The latest event time of the batches that pass."""

    def __init__(self, column: str | None) -> None:
        self._column = column
        self.at_ms: int | None = None

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        for batch in batches:
            if self._column is not None and batch.num_rows:
                self._look(batch.column(self._column))
            yield batch

    def _look(self, times: pa.Array) -> None:
        latest = pc.max(times.cast(pa.timestamp("us", times.type.tz))).cast(pa.int64()).as_py()
        if latest is not None:
            self.at_ms = max(latest // 1000, -(1 << 62) if self.at_ms is None else self.at_ms)


def _marked(batches: Iterator[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """The number of the lane, by the mark that comes before its rows, and the rows."""
    first = next((batch for batch in batches if batch.num_rows), None)
    mark: int = 0 if first is None else first.column(SLICE)[0].as_py()
    if first is None or mark >= 0:
        raise LaneError("a lane does not know which one it is: Spark has not put the routing table beside its rows")
    rest = (batch.drop_columns([LABEL]) for batch in chain([first.slice(1)], batches))
    return -1 - mark, rest
