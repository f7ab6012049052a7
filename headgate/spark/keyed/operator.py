"""Keyed operators on Spark: each row goes to the lane of its slice, and the state of an epoch is committed before Spark commits.

A row's slice is `pmod(xxhash64(key), slices)`, computed in the JVM; the routing table maps the slice to a lane. An exchange partitions rows
by a label that hashes to the number of the lane. Each lane's task begins with a mark, a row of the routing table, which has one partition
per lane. Spark puts marks and rows side by side without another exchange, so that every lane knows its number even without rows. On a
cluster, the mark lies on the lane's host, and Spark therefore prefers that host for the lane's task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.config import StateSettings
from headgate.errors import EngineError, StateError
from headgate.spark.jobs.context import JobContext
from headgate.spark.keyed.columns import operator_for
from headgate.spark.keyed.event_time import EventTime
from headgate.spark.keyed.hosts import Hosted
from headgate.spark.keyed.lanes import (
    ASTRAY,
    LABEL,
    Collected,
    KeyedLane,
    KeyedLaneReport,
    Reports,
    as_text,
    property_of,
)
from headgate.spark.keyed.routing import RoutingTable, marks_of
from headgate.spark.measuring.counters import Slices
from headgate.spark.quoting import column_of
from headgate.spark.session import PARTITIONS
from headgate.state.aggregate import Aggregate, identity
from headgate.state.checkpoint import NO_CLOCK, Checkpoint, DeltaFile, EpochWatermark, Life
from headgate.state.copies import Copies
from headgate.state.hosting import Layout, Wanted
from headgate.state.hot_keys import HotKeys
from headgate.state.inspect import durable_checkpoint, place_of
from headgate.state.lane import LaneTask
from headgate.state.location import Location
from headgate.state.operators import KeyedOperator
from headgate.state.placement.routing import Routing, at_home, route_slices, slice_count
from headgate.state.split import refuse_while_splitting
from headgate.state.upkeep import Background, Upkeep
from headgate.topology import Keyed, Node

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

HERE = "here"
"""Host of all lanes on the embedded Spark."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows and tasks of a keyed operator in the plan of an epoch."""

    rows: DataFrame
    """Output rows of the operator."""
    lanes: int
    """Number of lanes: more than the allocation has while slices are on more hosts."""
    combining: int
    """Number of tasks that combine rows by key before the exchange; 0 if no rows are combined."""


class KeyedStates:
    """The keyed operators of one job, from its start to its end."""

    def __init__(self, context: JobContext, nodes: Sequence[Node], on_trouble: Callable[[StateError], None]) -> None:
        spark = self._spark = context.spark
        self._on_trouble = on_trouble
        self._reports: Any = spark.sparkContext.accumulator(Reports(), Collected()) if nodes else None
        self._states = {node.name: KeyedState(node, context) for node in nodes}
        self._lanes: dict[str, int] = {}

    def declare(self, node: Node, rows: DataFrame) -> Any:
        """Return the columns of the operator's output for these input rows; refuse state that was written with another schema."""
        self._states[node.name].declare(rows)
        return self._states[node.name].schema

    def begin(self, node: Node, epoch: int, wanted: Wanted) -> None:
        """Begin an attempt of an epoch: decide which lane has which slices, and pass the task of the epoch to the lanes."""
        state = self._states[node.name]
        # Reports of lanes of a failed attempt do not count, even for lanes that this attempt does not have.
        self._reports.value = {lane: report for lane, report in self._reports.value.items() if lane[0] != node.name}
        state.begin(epoch, self._on_trouble)
        self._lanes[node.name] = state.route(wanted)
        self._spark.sparkContext.setLocalProperty(property_of(node.name), as_text(state.task(epoch)))

    def routed(self) -> tuple[Any, ...]:
        """Everything that the plan of an epoch depends on: the routing, the hosts, and whether rows are combined."""
        return tuple(state.routed() for state in self._states.values())

    def rows(self, node: Node, rows: DataFrame) -> Planned:
        """The plan of the operator's output, for every epoch with this routing."""
        return self._states[node.name].plan(rows, self._reports)

    def may_go_on(self, error: BaseException) -> bool:
        """Whether to plan a failed epoch again at once, because a host was lost or Spark ran a lane on another host."""
        hosted = [state.hosted for state in self._states.values() if state.hosted is not None]
        astray = ASTRAY in str(error) and not any(one.lenient for one in hosted)
        for one in hosted:
            one.lenient = one.lenient or astray
        return astray or any(one.changed() for one in hosted)

    def hosted(self) -> dict[str, Hosted]:
        """The operators whose slices are on hosts of a cluster."""
        return {name: state.hosted for name, state in self._states.items() if state.hosted is not None}

    def slices(self) -> dict[str, Slices]:
        """For each operator that has run: the rows of each slice so far, and the lane of each slice."""
        return {name: state.slices for name, state in self._states.items() if state.slices is not None}

    def hot_keys(self) -> dict[str, Mapping[str, float]]:
        """For each operator, the shares of the keys with the most rows."""
        return {name: state.hot_keys.shares for name, state in self._states.items()}

    def missing(self, epoch: int) -> list[str]:
        """Operators with lanes that have not reported on this epoch, because no reader has read the lanes' output to the end."""
        reports = self._reports.value if self._states else {}
        return [
            name
            for name in self._states
            if any((name, epoch, lane) not in reports for lane in range(self._lanes[name]))
        ]

    def commit(self, epoch: int) -> None:
        """Commit the epoch's state with the reports of all lanes; to be called before Spark's own commit."""
        for name, state in self._states.items():
            reports = self._reports.value
            state.commit(epoch, [reports[name, epoch, lane] for lane in range(self._lanes[name])], self._on_trouble)
        if self._states:
            self._reports.value = {}

    def wait_s(self) -> float | None:
        """Seconds until an epoch must run because a timer is due; None without a timer, or if the timer waits for another row."""
        times = [state.event_time for state in self._states.values() if state.event_time is not None]
        waits = [wait_s for one in times if (wait_s := one.wait_s(time.monotonic())) is not None]
        return min(waits, default=None)

    def close(self) -> None:
        """Stop the background work of a job that has stopped; the job's state stays where it is."""
        for state in self._states.values():
            state.close()


@dataclass
class KeyedState:
    """The driver's part of one keyed operator: checkpoint, routing and event time."""

    node: Node
    context: JobContext
    operator: KeyedOperator | None = None
    checkpoint: Checkpoint | None = None
    life: Life | None = None
    event_time: EventTime | None = None
    """None if the operator has no column of event times."""
    routing: Routing | None = None
    slices: Slices | None = None
    """Rows of each slice so far, and the lane of each slice; None before the first epoch."""
    hot_keys: HotKeys = field(default_factory=HotKeys)
    _begun: bool = False
    _newest: int | None = None
    """The last epoch committed since the start of the job; None before the first commit."""
    _assigned: bool = False
    """Whether the controller assigned a lane to each slice in the current routing."""
    committed: tuple[DeltaFile, ...] | None = None
    upkeep: Background | None = None
    hosted: Hosted | None = None
    combining: bool = False
    """Whether combining rows by key before the exchange saves work."""
    _combines: bool = False
    """Whether rows are combined in the epoch that has begun."""
    _tables: dict[bool, RoutingTable] = field(default_factory=dict)
    """Tables of the current routing, by whether rows are combined."""
    _combined: int = 0
    """Number of consecutive epochs with combined rows."""

    @property
    def settings(self) -> StateSettings:
        return self.context.settings.state

    @property
    def place(self) -> Path:
        """The directory of the operator on the driver's disk."""
        return place_of(self.context.place, self.node.name)

    @property
    def store(self) -> str:
        """The folder of the operator's slices, as `store_folder` takes it."""
        return self.context.store_of(self.node.name)

    @cached_property
    def durable(self) -> str:
        """The folder of the operator's checkpoint, as a path or a URI; the same throughout a start of the job."""
        return durable_checkpoint(self.context.place, self.node.name)

    @property
    def keyed(self) -> Keyed:
        assert self.node.keyed is not None
        return self.node.keyed

    @cached_property
    def schema(self) -> StructType:
        """The columns of the operator's output."""
        from pyspark.sql.pandas.types import from_arrow_schema

        assert self.operator is not None
        return from_arrow_schema(self.operator.output_schema)

    @cached_property
    def partial(self) -> list[Column]:
        """Aggregates that combine rows by key into partial state, which a lane merges with its own state."""
        assert self.operator is not None and isinstance(self.operator.processor, Aggregate)
        return [_reduced(name, kind) for name, kind in self.operator.processor.fields().items()]

    # -- life ----------------------------------------------------------------------------------------------------------

    def declare(self, rows: DataFrame) -> None:
        """Create the operator of the node for these rows; refuse state that was written with another schema."""
        if self.operator is not None:
            return
        operator = operator_for(self.node, rows)
        refuse_while_splitting(self.context.place)
        checkpoint = Checkpoint(Location.of(self.durable), operator.schema)
        if checkpoint.exists():
            self.life = checkpoint.life(self.keyed.slices)
        self.operator, self.checkpoint = operator, checkpoint

    def begin(self, epoch: int, on_trouble: Callable[[StateError], None]) -> None:
        """Begin a life of the state with this epoch, or continue the existing life; a committed epoch may run again."""
        if self._begun and (self._newest is None or epoch > self._newest):
            return
        assert self.checkpoint is not None
        if self.life is None:
            self.life = self.checkpoint.begin(epoch, self.keyed.slices or self._slices())
        self.life = self.checkpoint.start_at(epoch)
        self._go_on(self.checkpoint, epoch)
        if self._begun:
            return
        self._upkeep().remove_leftovers()
        places = self.context.cluster().places
        if places is not None:
            assert self.operator is not None
            copies = Copies(self.operator, self.life, self.store, self.durable, self.settings)
            self.hosted = Hosted(self.context.spark, places, self.context.cluster, copies, self.place, on_trouble)
        self._begun = True

    def _slices(self) -> int:
        """The number of slices for `max_lanes`, or for all slots of the cluster or of the settings, whichever are more."""
        slots = max(self.context.settings.slots, round(sum(self.context.cluster().cores.values())))
        return slice_count(self.node.max_lanes or slots, self.settings)

    def _go_on(self, checkpoint: Checkpoint, epoch: int) -> None:
        epochs = checkpoint.epochs()
        if epochs and epochs[-1] < epoch - 1:
            raise EngineError(
                f"its state ends with epoch {epochs[-1]}, and the job is at {epoch}: it was not part of the job in between;"
                " give it a new name so that it starts without state"
            )
        if self.keyed.time is not None:
            self.event_time = self._event_time(checkpoint, epoch)
        self.committed = None

    def _event_time(self, checkpoint: Checkpoint, epoch: int) -> EventTime:
        """The event time in the record of this epoch, which then runs again, or in the record of the epoch before."""
        found = EventTime(self.keyed.lateness_ms, self.keyed.follows_clock)
        record = checkpoint.record(epoch) or checkpoint.record(epoch - 1)
        if record is not None:
            found.resume(record.epoch, record.clock, time.monotonic())
        return found

    def _upkeep(self) -> Upkeep:
        assert self.checkpoint is not None and self.life is not None
        store = Path(self.store)  # relative, it is on other machines
        live = (store,) if self.hosted is None else tuple(path for path in store.glob("*") if path.is_dir())
        return Upkeep(self.checkpoint, self.life, self.settings, self.place / "scratch", live)

    def close(self) -> None:
        """Stop the background work of the operator."""
        if self.upkeep is not None:
            self.upkeep.close()
        if self.hosted is not None:
            self.hosted.close()
        self.upkeep = self.hosted = None
        self._forget_tables()

    def _forget_tables(self) -> None:
        for table in self._tables.values():
            table.marks.unpersist()
        self._tables = {}

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def route(self, wanted: Wanted) -> int:
        """Decide which lane has which slices in the epoch that begins; returns the number of lanes."""
        assert self.life is not None
        self.routing = self._routed(wanted, self.life.slices)
        # Spark chooses the hosts of combining tasks, and does not know the hosts that the job should leave.
        self._combines = self.combining and not wanted.avoided
        return len(self.routing.host_of)

    def routed(self) -> tuple[Any, ...]:
        """Everything that the plan depends on: the routing, whether rows are combined, and the hosts."""
        hosts = () if self.hosted is None else (self.hosted.hosts, self.hosted.lenient)
        return self.routing, self._combines, hosts

    def plan(self, rows: DataFrame, reports: Any) -> Planned:
        """Plan the exchange of rows into lanes, and the processor in each lane."""
        assert self.operator is not None and self.life is not None and self.routing is not None
        routing, lanes = self.routing, len(self.routing.host_of)
        if self._combines:
            rows = rows.groupBy(*map(column_of, self.keyed.key)).agg(*self.partial)
        table = self._table_for(rows, routing, self.life.slices, self._combines)
        laned = rows.select(*table.columns).repartition(lanes, LABEL)
        lane = KeyedLane(self.operator, routing.lane_of, self.keyed.time, reports)
        if self.hosted is not None:
            lane = replace(lane, hosts=self.hosted.hosts, host_of=routing.host_of, lenient=self.hosted.lenient)
        put_out = table.beside(laned).mapInArrow(lane, self.schema)
        combining = int(str(rows.sparkSession.conf.get(PARTITIONS))) if self._combines else 0
        return Planned(put_out, lanes, combining)

    def task(self, epoch: int) -> LaneTask:
        """The task of the epoch for all lanes, without the number and the slices of a lane."""
        assert self.life is not None
        return LaneTask(
            epoch,
            -1,
            (),
            self.life,
            self.store,
            self.durable,
            watermark_ms=self._watermark(epoch),
            committed=self.committed,
            settings=self.settings,
        )

    def _routed(self, wanted: Wanted, slices: int) -> Routing:
        """Assign slices to lanes on their hosts: to the lanes that the controller assigned, else evenly and with few changes."""
        here = Layout((HERE,) * slices, (HERE,) * wanted.lanes)
        layout = here if self.hosted is None else self.hosted.layout(wanted)
        before, even = None if self._assigned else self.routing, [1.0] * slices
        self._assigned = wanted.slices is not None and len(wanted.slices) == slices
        if wanted.slices is not None and self._assigned:
            return at_home(even, layout.homes, layout.lane_hosts, Routing(wanted.slices, layout.lane_hosts))
        return route_slices(even, layout.homes, layout.lane_hosts, self.settings, before)

    def _table_for(self, rows: DataFrame, routing: Routing, slices: int, combining: bool) -> RoutingTable:
        if any(table.routing != routing for table in self._tables.values()):
            self._forget_tables()
        if combining not in self._tables:
            marks = marks_of(rows.sparkSession, routing, None if self.hosted is None else self.hosted.places)
            self._tables[combining] = RoutingTable.of(rows, self.keyed.key, routing, slices, marks)
        return self._tables[combining]

    def commit(self, epoch: int, reports: Sequence[KeyedLaneReport], on_error: Callable[[StateError], None]) -> None:
        """Commit the epoch with the files that the lanes reported."""
        assert self.checkpoint is not None and self.life is not None
        files = tuple(one.report.file for one in reports)
        self.checkpoint.commit(epoch, files, self._clock_after(epoch, reports))
        self._newest = epoch
        if self.hosted is not None:
            self.hosted.note_commit(epoch, reports)
        self.committed = files
        self._add_rows(reports, self.life.slices)
        if not self.combining:  # combined rows do not tell how many rows a key had
            self.hot_keys.add((one.report.hot_keys for one in reports), sum(one.report.rows for one in reports))
        self.combining = self._worth_combining(reports)
        if self.upkeep is None:
            self.upkeep = Background(self._upkeep(), on_error)
        if epoch % self.settings.upkeep_epochs == 0:
            self.upkeep.ask()

    def _watermark(self, epoch: int) -> int | None:
        if self.event_time is None:
            return None
        if self.event_time.begin(epoch, time.monotonic()):
            self._write_clock(epoch - 1, self.event_time.clock)
        return self.event_time.watermark_ms(epoch)

    def _write_clock(self, epoch: int, clock: EpochWatermark) -> None:
        """Write the clock into the record of this epoch, so that the next epoch has the same watermark when it runs again."""
        assert self.checkpoint is not None
        self.checkpoint.commit(epoch, self.checkpoint.files(epoch) or (), clock)

    def _clock_after(self, epoch: int, reports: Sequence[KeyedLaneReport]) -> EpochWatermark:
        if self.event_time is None:
            return NO_CLOCK
        timers = [one.report.next_timer_ms for one in reports if one.report.next_timer_ms is not None]
        latest = [one.latest_ms for one in reports if one.latest_ms is not None]
        self.event_time.end(epoch, latest, min(timers, default=None))
        return self.event_time.clock

    def _worth_combining(self, reports: Sequence[KeyedLaneReport]) -> bool:
        """Whether many rows share a key; measured again after `combine_epochs` epochs, in an epoch without combined rows."""
        assert self.operator is not None
        if not isinstance(self.operator.processor, Aggregate) or self.keyed.time is not None:
            return False
        if self.combining:
            self._combined += 1
            return self._combined < self.settings.combine_epochs
        self._combined = 0
        rows, keys = sum(one.report.rows for one in reports), sum(one.report.changed for one in reports)
        return rows >= max(self.settings.combine_rows, self.settings.combine_ratio * max(1, keys))

    def _add_rows(self, reports: Sequence[KeyedLaneReport], slices: int) -> None:
        assert self.routing is not None
        rows = list(self.slices[0]) if self.slices is not None else [0.0] * slices
        for slice_, count in (found for one in reports for found in one.report.slice_rows.items()):
            rows[slice_] += count
        self.slices = tuple(rows), self.routing.lane_of


# -- rows combined before the exchange ---------------------------------------------------------------------------------------


def _reduced(name: str, kind: str) -> Column:
    """Spark's aggregate for a state field of a key: the same value as a lane would compute from the rows."""
    from pyspark.sql import functions as F

    column, _, what = name.rpartition(":")
    value = column_of(column) if column else F.lit(1)
    if what == "count":
        return F.count(value).alias(name)
    type_ = "long" if kind == "int64" else "double"
    nothing = F.lit(identity(what, kind)).cast(type_)
    return F.coalesce(getattr(F, what)(value.cast(type_)), nothing).alias(name)
