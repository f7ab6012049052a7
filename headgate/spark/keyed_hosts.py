"""Keyed state on the hosts of a cluster: which slices are where, and duties that hosts do in Spark tasks of their own."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headgate import files
from headgate.errors import EngineError, StateError
from headgate.spark.keyed_lanes import KeyedLaneReport, here
from headgate.spark.labels import labels
from headgate.spark.places import AvailableHosts, Places
from headgate.spark.reasons import reason_of
from headgate.state.copies import Copies
from headgate.state.hosting import Hosting, Layout, Wanted
from headgate.state.inspect import OPENS, Opens
from headgate.state.location import Location
from headgate.state.placement.targets import Duty
from headgate.state.tending import Tended, tend
from headgate.state.upkeep import Background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POOL = "headgate-copies"
"""Duties have a share of the cluster of their own, like one more job."""
PLANNED_ANEW = 2
"""How often in a row an epoch is planned again on other hosts before the job fails and is started again."""
PATIENCE_S = 120.0
"""Without any host for this long, a job fails."""
LOOK_S = 0.05
NUMBER = "number"
_ANSWERS = pa.schema([("host", pa.string()), ("answer", pa.binary())])


@dataclass(frozen=True)
class TendLane:
    """Has the host that it runs on do its duty; on another host than it should be, it does nothing."""

    copies: Copies
    """Of the folder that has one folder per host."""
    duties: Mapping[str, Duty]
    epoch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        host = here(tuple(self.duties))
        if host in _asked(batches, self.duties):
            own = replace(self.copies, folder=folder_of(self.copies.folder, host))
            answer = msgspec.json.encode(tend(own, self.duties[host], self.epoch))
            yield pa.RecordBatch.from_pydict({"host": [host], "answer": [answer]}, schema=_ANSWERS)


def _asked(batches: Iterable[pa.RecordBatch], hosts: Iterable[str]) -> list[str]:
    """The hosts that this task is for: they are told by their numbers."""
    names = tuple(hosts)
    return [names[number] for batch in batches for number in batch.column(NUMBER).to_pylist()]


def folder_of(store: str, host: str) -> str:
    """Where a host has its copies: a folder that no other host looks into, even where hosts share a disk."""
    return f"{store}/{host}"


def planned_anew(run: Callable[[], None], may_go_on: Callable[[Exception], bool]) -> None:
    """An epoch that lost a host is planned again at once on the remaining hosts: its slices come up where their backups are."""
    for _ in range(PLANNED_ANEW):
        try:
            return run()
        except Exception as error:
            if not may_go_on(error):
                raise
    return run()


def awaited(
    cores: Callable[[], Mapping[str, float]], known: Collection[str], until_s: float, patience_s: float = PATIENCE_S
) -> Mapping[str, float]:
    """The cores of hosts, once there is one, and those that are known are there or have been waited for until then.

    Executors come one by one after Spark has started, and may all be gone for a moment.
    """
    begun_s = time.monotonic()
    while not (found := cores()) or not set(known) <= set(found):
        now_s = time.monotonic()
        if found and now_s > until_s:
            break
        if now_s - begun_s > patience_s:
            raise EngineError(f"no host of the cluster has had a slot for {patience_s:g} s")
        time.sleep(LOOK_S)
    return found


@dataclass
class Hosted:
    """One operator's slices on the hosts of a cluster."""

    spark: SparkSession
    places: Places
    cluster: Callable[[], AvailableHosts]
    copies: Copies
    """Of the folder that has one folder per host."""
    place: Path
    on_error: Callable[[StateError], None]
    opened: Counter[str] = field(default_factory=Counter)
    """Slices opened since it was started, by origin."""
    lenient: bool = False
    """Lanes go on wherever they are: the epoch was planned again, and its lanes ran on other hosts again."""
    hosts: tuple[str, ...] = ()
    """Those that the epoch was planned for."""

    def __post_init__(self) -> None:
        location, slices = Location.of(self.copies.checkpoint), self.copies.life.slices
        self.hosting = Hosting(location, slices, self.copies.settings, self._tend)
        self._background = Background(self.hosting, self._failed)
        self._tag, self._closing = f"{POOL}-{uuid.uuid4().hex}", False

    def layout(self, wanted: Wanted) -> Layout:
        """Where the next epoch runs."""
        placement = self.hosting.placement
        known = () if self.hosts or placement is None else placement.hosts
        until_s = self.cluster().started_s + self.copies.settings.hosts_wait_s
        cores = awaited(lambda: self.cluster().cores, known, until_s)
        self.hosts = tuple(sorted(cores))
        return self.hosting.boundary(cores, wanted)

    def changed(self) -> bool:
        """Whether a host has gone since the epoch was planned."""
        return not set(self.hosts) <= set(self.cluster().cores)

    def committed(self, epoch: int, told: Sequence[KeyedLaneReport]) -> None:
        """The epoch counts."""
        last = Counter[str]()
        for one in told:
            last.update(one.report.origins)
        self.opened.update(last)
        self.lenient = False
        files.replace(self.place / OPENS, msgspec.json.encode(Opens(epoch, last, self.opened)), durable=False)
        if self.hosting.committed(epoch):
            self._background.ask()

    def close(self) -> None:
        """Stop what goes on beside the epochs; a host that does not answer is not waited for."""
        self._closing = True
        self.spark.sparkContext.cancelJobsWithTag(self._tag)
        self._background.close()

    def _failed(self, error: StateError) -> None:
        if not self._closing:
            self.on_error(error)

    def _tend(self, wanted: Mapping[str, Duty], epoch: int) -> Mapping[str, Tended]:
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
        self.spark.sparkContext.addJobTag(self._tag)
        answers = self._ask(tuple(wanted), TendLane(self.copies, wanted, epoch))
        return {host: msgspec.json.decode(answer, type=Tended) for host, answer in answers.items()}

    def _ask(self, hosts: Sequence[str], lane: TendLane) -> dict[str, bytes]:
        """What each host answers, if its task came to it."""
        if self._closing:
            return {}
        numbers = list(zip(labels(len(hosts)), range(len(hosts)), strict=True))
        try:
            asked = self.places.marks(self.spark, f"label int, {NUMBER} int", numbers, hosts)
            rows = asked.mapInArrow(lane, "host string, answer binary").collect()
        except Exception as error:  # whatever the gateway raises: a host that died meanwhile, or Spark at its end
            raise StateError(f"the copies of its state could not be tended: {reason_of(error)}") from None
        return {row["host"]: bytes(row["answer"]) for row in rows}
