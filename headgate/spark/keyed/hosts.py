"""Keyed state on the hosts of a cluster: which slices are where, and the Spark tasks in which hosts reach their targets."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headgate import files
from headgate.errors import OutageError, StateError
from headgate.spark.epochs.places import AvailableHosts, Places
from headgate.spark.hosts.asking import ask_hosts
from headgate.spark.hosts.this_host import store_folder
from headgate.spark.keyed.lanes import KeyedLaneReport
from headgate.spark.reasons import reason_of
from headgate.state.copies import Copies, TargetReport, reach_target
from headgate.state.hosting import Hosting, Layout, Wanted
from headgate.state.inspect import OPENS, Opens
from headgate.state.location import Location
from headgate.state.placement.targets import HostTarget
from headgate.state.upkeep import Background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

POOL = "headgate-copies"
"""Spark pool of tasks that maintain copies, with a share of the cluster like one more job."""
PLANNED_AGAIN = 2
"""Number of times in a row that an epoch is planned again on other hosts before the job fails and is started again."""
PATIENCE_S = 120.0
"""Seconds without any host after which a job fails."""
LOOK_S = 0.05


@dataclass(frozen=True)
class ReachTarget:
    """A function that brings the copies on a host to the host's target."""

    copies: Copies
    """Copies in the folder that has one folder per host."""
    targets: Mapping[str, HostTarget]
    epoch: int

    def __call__(self, host: str) -> bytes:
        own = replace(self.copies, folder=store_folder(self.copies.folder, host))
        return msgspec.json.encode(reach_target(own, self.targets[host], self.epoch))


def run_or_plan_again(run: Callable[[], T], may_go_on: Callable[[Exception], bool]) -> T:
    """Run an epoch, and run it again on the remaining hosts if it lost a host: slices then open where their backups are."""
    for _ in range(PLANNED_AGAIN):
        try:
            return run()
        except Exception as error:
            if not may_go_on(error):
                raise
    return run()


def await_hosts(
    cluster: Callable[[], AvailableHosts], known: Collection[str], until_s: float, patience_s: float = PATIENCE_S
) -> Mapping[str, float]:
    """Wait for a first host, and until `until_s` for all known hosts; return the cores of each host.

    Executors register one by one after Spark has started, and may all be gone for a moment. If all hosts failed the preflight, the wait
    ends with an `OutageError`.
    """
    begun_s = time.monotonic()
    while not (found := cluster()).cores or not set(known) <= set(found.cores):
        now_s = time.monotonic()
        if found.cores and now_s > until_s:
            break
        if found.problems and not found.cores:
            raise OutageError("; ".join(found.problems))
        if not found.cores and now_s - begun_s > patience_s:
            raise OutageError(f"no host of the cluster has had a slot for {patience_s:g} s")
        time.sleep(LOOK_S)
    return found.cores


@dataclass
class Hosted:
    """The slices of one operator on the hosts of a cluster."""

    spark: SparkSession
    places: Places
    cluster: Callable[[], AvailableHosts]
    copies: Copies
    """Copies in the folder that has one folder per host."""
    place: Path
    on_error: Callable[[StateError], None]
    opened: Counter[str] = field(default_factory=Counter)
    """Slices opened since the start of the job, by origin."""
    lenient: bool = False
    """Whether lanes may run on any host: set when an epoch is planned again because Spark ran a lane elsewhere, until the next commit."""
    hosts: tuple[str, ...] = ()
    """Hosts that the epoch was planned for."""

    def __post_init__(self) -> None:
        location, slices = Location.of(self.copies.checkpoint), self.copies.life.slices
        self.hosting = Hosting(location, slices, self.copies.settings, self._ask_hosts)
        self._background = Background(self.hosting, self._report_failure)
        self._tag, self._closing = f"{POOL}-{uuid.uuid4().hex}", False

    def layout(self, wanted: Wanted) -> Layout:
        """Wait for hosts, and plan the hosts of slices and lanes for the next epoch."""
        placement = self.hosting.placement
        known = () if self.hosts or placement is None else placement.hosts
        until_s = self.cluster().started_s + self.copies.settings.hosts_wait_s
        cores = await_hosts(self.cluster, known, until_s)
        self.hosts = tuple(sorted(cores))
        return self.hosting.plan_epoch(cores, wanted)

    def changed(self) -> bool:
        """Whether a host has gone since the epoch was planned."""
        return not set(self.hosts) <= set(self.cluster().cores)

    def note_commit(self, epoch: int, told: Sequence[KeyedLaneReport]) -> None:
        """Note a committed epoch: count the slices that its lanes opened, and start background work that is due."""
        last = Counter[str]()
        for one in told:
            last.update(one.report.origins)
        self.opened.update(last)
        self.lenient = False
        files.replace(self.place / OPENS, msgspec.json.encode(Opens(epoch, last, self.opened)), durable=False)
        if self.hosting.committed(epoch):
            self._background.ask()

    def close(self) -> None:
        """Stop the background work without waiting for a host that does not answer."""
        self._closing = True
        self.spark.sparkContext.cancelJobsWithTag(self._tag)
        self._background.close()

    def _report_failure(self, error: StateError) -> None:
        if not self._closing:
            self.on_error(error)

    def _ask_hosts(self, wanted: Mapping[str, HostTarget], epoch: int) -> Mapping[str, TargetReport]:
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
        self.spark.sparkContext.addJobTag(self._tag)
        if self._closing:
            return {}
        try:
            answers = ask_hosts(self.spark, self.places, tuple(wanted), ReachTarget(self.copies, wanted, epoch))
        except Exception as error:  # any error of the gateway: a host that died meanwhile, or a Spark that is stopping
            raise StateError(f"the copies of its state could not be tended: {reason_of(error)}") from None
        return {host: msgspec.json.decode(answer, type=TargetReport) for host, answer in answers.items()}
