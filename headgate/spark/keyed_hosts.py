"""Keyed state on the hosts of a cluster: lanes go where their slices are, and hosts do their duties in Spark tasks of their own.

Spark sends a lane where most of what it reads lies. The routing table lies, cached, on the host that the lane should be on; it is read
twice, so that it outvotes the rows, which come from anywhere.
"""

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

from headgate.config import StateSettings
from headgate.core.duties import Duty
from headgate.errors import EngineError, StateError
from headgate.spark import levers
from headgate.spark.keyed_lanes import Told
from headgate.spark.located import here, located, slots
from headgate.spark.reasons import reason_of
from headgate.state.checkpoint import Life
from headgate.state.copies import Copies
from headgate.state.hosting import Hosting, Layout, Moves
from headgate.state.inspect import OPENS, Opens
from headgate.state.location import Location
from headgate.state.operators import KeyedOperator
from headgate.state.tending import Tended, tend
from headgate.state.upkeep import Background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POOL = "headgate-copies"
"""Duties have a share of the cluster of their own, like one more job."""
PLANNED_ANEW = 2
"""How often in a row an epoch is planned anew on other hosts before the job fails and is started again."""
PATIENCE_S = 120.0
"""Without any host for this long, a job fails."""
LOOK_S = 0.05
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
        asked = [name for batch in batches for name in batch.column("host").to_pylist()]
        if host in asked:
            own = replace(self.copies, folder=folder_of(self.copies.folder, host))
            answer = msgspec.json.encode(tend(own, self.duties[host], self.epoch))
            yield pa.RecordBatch.from_pydict({"host": [host], "answer": [answer]}, schema=_ANSWERS)


@dataclass(frozen=True)
class CopyLane:
    """Stop-copy-start: brings copies of other hosts here, whole. The one place that reads what is not its host's own."""

    copies: Copies
    moves: Moves

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        host = here(tuple(self.moves))
        asked = [name for batch in batches for name in batch.column("host").to_pylist()]
        if host in asked:
            own = replace(self.copies, folder=folder_of(self.copies.folder, host))
            for source, slices in self.moves[host].items():
                own.take_from(folder_of(self.copies.folder, source), slices)
            yield pa.RecordBatch.from_pydict({"host": [host], "answer": [b""]}, schema=_ANSWERS)


def folder_of(store: str, host: str) -> str:
    """Where a host has its copies: a folder that no other host looks into, even where hosts share a disk."""
    return f"{store}/{host}"


def planned_anew(run: Callable[[], None], may_go_on: Callable[[Exception], bool]) -> None:
    """An epoch that lost a host is planned anew at once, on those that are left: its slices come up where their backups are."""
    for _ in range(PLANNED_ANEW):
        try:
            return run()
        except Exception as error:
            if not may_go_on(error):
                raise
    return run()


def _some_slots(spark: SparkSession) -> dict[str, float]:
    """Executors come one by one after Spark has started, and may all be gone for a moment."""
    until_s = time.monotonic() + PATIENCE_S
    while not (found := slots(spark)):
        if time.monotonic() > until_s:
            raise EngineError(f"no host of the cluster has had a slot for {PATIENCE_S:g} s")
        time.sleep(LOOK_S)
    return found


@dataclass
class Hosted:
    """One operator's slices on the hosts of a cluster."""

    spark: SparkSession
    operator: KeyedOperator
    life: Life
    place: Path
    checkpoint: str
    settings: StateSettings
    on_error: Callable[[StateError], None]
    opened: Counter[str] = field(default_factory=Counter)
    """Slices opened since it was started, by origin."""
    lenient: bool = False
    """Lanes go on wherever they are: the epoch was planned anew and was astray again."""
    slots: dict[str, float] = field(default_factory=dict)
    """Of the hosts that the epoch was planned for."""
    avoided: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.hosting = Hosting(Location.of(self.checkpoint), self.life.slices, self.settings, self._tend)
        self._background = Background(self.hosting, self._failed)
        self._tag, self._closing = f"{POOL}-{uuid.uuid4().hex}", False

    def avoid(self, hosts: Collection[str]) -> None:
        """Slices leave these hosts, beside the epochs; those that are avoided no longer may have some again."""
        for host in set(hosts) - self.avoided:
            self.hosting.leave(host)
        for host in self.avoided - set(hosts):
            self.hosting.stay(host)
        self.avoided = set(hosts)

    def layout(self, lanes: int, loads: Sequence[float]) -> Layout:
        """Where the next epoch runs."""
        self.slots = _some_slots(self.spark)
        return self.hosting.boundary(self.slots, lanes, loads)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that the epoch was planned for."""
        return tuple(sorted(self.slots))

    def changed(self) -> bool:
        """Whether a host has gone since the epoch was planned."""
        return not set(self.slots) <= set(slots(self.spark))

    def committed(self, epoch: int, told: Sequence[Told]) -> None:
        """The epoch counts."""
        last = Counter[str]()
        for one in told:
            last.update(one.report.origins)
        self.opened.update(last)
        self.lenient = False
        levers.replace(self.place / OPENS, msgspec.json.encode(Opens(epoch, last, self.opened)))
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

    def copy_whole(self, yes: bool) -> None:
        """Whether slices move by stop-copy-start from now on, instead of being rebuilt beside the epochs."""
        self.hosting.copy = self._copy if yes else None

    def _copy(self, moves: Moves) -> None:
        answers = self._asked(moves, CopyLane(self._copies(), moves))
        if set(answers) != set(moves):
            raise StateError(f"slices could not be copied to {', '.join(sorted(set(moves) - set(answers)))}")

    def _tend(self, wanted: Mapping[str, Duty], epoch: int) -> Mapping[str, Tended]:
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
        self.spark.sparkContext.addJobTag(self._tag)
        answers = self._asked(wanted, TendLane(self._copies(), wanted, epoch))
        return {host: msgspec.json.decode(answer, type=Tended) for host, answer in answers.items()}

    def _copies(self) -> Copies:
        return Copies(self.operator, self.life, str(self.place / "store"), self.checkpoint, self.settings)

    def _asked(self, hosts: Iterable[str], lane: TendLane | CopyLane) -> dict[str, bytes]:
        """What each host answers, if its task came to it."""
        if self._closing:
            return {}
        try:
            asked = located(self.spark, [(host, (host,)) for host in hosts], "host string")
            rows = asked.mapInArrow(lane, "host string, answer binary").collect()
        except Exception as error:  # whatever the gateway raises: a host that died meanwhile, or Spark at its end
            raise StateError(f"the copies of its state could not be tended: {reason_of(error)}") from None
        return {row["host"]: bytes(row["answer"]) for row in rows}
