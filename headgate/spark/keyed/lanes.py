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
"""Column by which rows are partitioned into lanes."""


@dataclass(frozen=True, slots=True)
class KeyedLaneReport:
    """The report of a lane to the driver."""

    report: LaneReport
    latest_ms: int | None
    """The latest event time among the lane's rows, in milliseconds; None if no row has one."""


Reports = dict[tuple[str, int, int], KeyedLaneReport]
"""Reports by operator, epoch and lane: a lane that ran twice reports twice, and the last report counts."""


class Collected(AccumulatorParam[Reports]):
    """Accumulator of the reports of lanes; reports of failed tasks never arrive."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        value1.update(value2)
        return value1


@dataclass(frozen=True)
class KeyedLane:
    """The function of every lane of a keyed operator in every epoch: the first row names the lane, and a Spark property holds the task."""

    operator: KeyedOperator
    lane_of: tuple[int, ...]
    time: str | None
    reports: Any
    """Accumulator of `Reports`."""
    hosts: tuple[str, ...] = ()
    """Hosts of the cluster; empty on the embedded Spark."""
    host_of: tuple[str, ...] = ()
    """The planned host of each lane."""
    lenient: bool = True
    """Whether a lane also runs on a host without copies of its slices, and rebuilds the slices there."""

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
    """Convert an error of keyed state to an error of a lane with the same text: Spark does not pass on causes."""
    kind = TransientLaneError if isinstance(error, StateBusyError | StateFullError | StateAwayError) else LaneError
    return kind(f'operator "{operator}": {error}')


def property_of(operator: str) -> str:
    """The name of the Spark property that passes the task of an epoch to the lanes of an operator."""
    return f"headgate.epoch.{operator}"


def as_text(task: LaneTask) -> str:
    """Encode a task as the value of a Spark property: the same for every lane, without lane number and slices."""
    return b64encode(pickle.dumps(task)).decode()


def _task_of(operator: str) -> LaneTask:
    """Decode the task that the driver set for all lanes of the operator in this epoch."""
    context = TaskContext.get()
    assert context is not None
    found: LaneTask = pickle.loads(b64decode(str(context.getLocalProperty(property_of(operator)))))
    return found


class Latest:
    """Tracks the latest event time of the batches that pass."""

    def __init__(self, column: str | None) -> None:
        self._column = column
        self.at_ms: int | None = None

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the batches on unchanged, and track the latest event time."""
        for batch in batches:
            if self._column is not None and batch.num_rows:
                self._look(batch.column(self._column))
            yield batch

    def _look(self, times: pa.Array) -> None:
        latest = pc.max(times.cast(pa.timestamp("us", times.type.tz))).cast(pa.int64()).as_py()
        if latest is not None:
            self.at_ms = max(latest // 1000, -(1 << 62) if self.at_ms is None else self.at_ms)


def _marked(batches: Iterator[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """The number of the lane, read from the mark before the lane's rows, and the rows."""
    first = next((batch for batch in batches if batch.num_rows), None)
    mark: int = 0 if first is None else first.column(SLICE)[0].as_py()
    if first is None or mark >= 0:
        raise LaneError("a lane does not know which one it is: Spark has not put the routing table beside its rows")
    rest = (batch.drop_columns([LABEL]) for batch in chain([first.slice(1)], batches))
    return -1 - mark, rest
