"""A driver without Spark: runs epochs of a keyed operator over lanes and hosts, and commits them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.config import StateSettings
from headgate.state.aggregate import Aggregate
from headgate.state.checkpoint import Checkpoint, DeltaFile
from headgate.state.hashing import slices_of
from headgate.state.lane import LaneReport, LaneTask, run_lane
from headgate.state.location import Location
from headgate.state.operators import KeyedOperator
from headgate.state.stores import open_store

NUMBERS = pa.int64()
SETTINGS = StateSettings(lock_wait_s=0.2, chunk_items=4, merge_epochs=3, least_free_mb=0)


def counting(key: pa.DataType = NUMBERS, name: str = "visits") -> KeyedOperator:
    return KeyedOperator(
        name, {"user": key}, Aggregate.of({"visits": "count", "total": "sum(amount)"}, whole=["amount"])
    )


def rows(pairs: Sequence[tuple[Any, int]], key: pa.DataType = NUMBERS) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([user for user, _ in pairs], key), pa.array([amount for _, amount in pairs], pa.int64())],
        names=["user", "amount"],
    )


class Driver:
    """What Spark does for a keyed operator: routes rows to lanes, runs each lane on its host, commits the epoch."""

    def __init__(
        self,
        place: Path,
        operator: KeyedOperator | None = None,
        slices: int = 8,
        hosts: int = 1,
        durable: str | Path | None = None,
    ) -> None:
        self.place, self.operator = place, operator or counting()
        self.durable = durable or place / "checkpoint"
        self.checkpoint = Checkpoint(Location.of(self.durable), self.operator.schema)
        self.life = self.checkpoint.begin(0, slices)
        self.lane_of = dict.fromkeys(range(slices), 0)
        self.host_of_lane = {0: "host-0"}
        self.epoch = 0
        self.reports: list[LaneReport] = []
        self.outputs: list[dict[str, Any]] = []

    def folder(self, host: str) -> str:
        return str(self.place / "hosts" / host)

    def route(self, lanes: Mapping[int, Sequence[int]], hosts: Mapping[int, str] | None = None) -> None:
        """Which slices each lane has, and where each lane runs."""
        self.lane_of = {slice_: lane for lane, slices in lanes.items() for slice_ in slices}
        self.host_of_lane = dict(hosts or dict.fromkeys(lanes, "host-0"))

    def task(self, lane: int, watermark_ms: int | None = None) -> LaneTask:
        slices = tuple(slice_ for slice_, of in sorted(self.lane_of.items()) if of == lane)
        return LaneTask(
            self.epoch,
            lane,
            slices,
            self.life,
            self.folder(self.host_of_lane[lane]),
            str(self.durable),
            watermark_ms,
            settings=SETTINGS,
        )

    def run(self, batch: pa.RecordBatch, watermark_ms: int | None = None) -> list[DeltaFile]:
        """The lanes of the epoch, without committing it."""
        columns = self.operator.schema.key_columns(batch)
        routed = defaultdict(list)
        for index, slice_ in enumerate(slices_of(columns, self.life.slices).tolist()):
            routed[self.lane_of[slice_]].append(index)
        self.reports, self.outputs = [], []
        for lane in sorted(set(self.lane_of.values())):
            given = batch.take(pa.array(routed[lane], pa.int64()))
            for output in run_lane(self.operator, self.task(lane, watermark_ms), [given], self.reports.append):
                self.outputs += output.to_pylist()
        return [report.file for report in self.reports]

    def epoch_of(self, batch: pa.RecordBatch, watermark_ms: int | None = None) -> None:
        """An epoch from beginning to end."""
        self.checkpoint.commit(self.epoch, self.run(batch, watermark_ms))
        self.epoch += 1

    def start_at(self, epoch: int) -> None:
        """Go on with this epoch, as a driver does that was started again."""
        self.life = self.checkpoint.start_at(epoch)
        self.epoch = epoch

    def origins(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for report in self.reports:
            for origin, count in report.origins.items():
                found[origin] += count
        return dict(found)

    def store(self, host: str = "host-0"):
        return open_store(self.folder(host), self.operator.schema, self.life.identity(self.operator.schema), SETTINGS)
