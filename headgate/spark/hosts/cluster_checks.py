"""The preflight on Spark: has the hosts of a cluster answer, and removes the stores of jobs that have ended."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.config import StateSettings
from headgate.spark import jvm
from headgate.spark.epochs.places import Places
from headgate.spark.hosts.asking import ask_hosts
from headgate.spark.hosts.host_checks import HostCheck, Leftovers, StoreCheck
from headgate.spark.hosts.preflight import Needs, Preflight, needs_of
from headgate.spark.keyed.hosts import POOL
from headgate.spark.reasons import reason_of
from headgate.state.inspect import KEYED
from headgate.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def stores_of(state_dir: str, service: str, one_machine: bool) -> str:
    """Return the folder for the slice stores of a service, as `store_folder` takes it; empty: each job has its own folder.

    Services that share a disk have folders of their own.

    >>> stores_of("/mnt/disk", "/var/lib/headgate", False)
    '/mnt/disk/headgate-5cb66c84'
    """
    own = f"headgate-{hashlib.sha256(service.encode()).hexdigest()[:8]}"
    if state_dir:
        return f"{state_dir}/{own}"
    return "" if one_machine else own


class ClusterChecks:
    """Asks hosts on a separate thread, so that cancelling an epoch does not cancel the question."""

    def __init__(self, spark: SparkSession, places: Places, stores: str, jobs: Callable[[], frozenset[str]]) -> None:
        self.preflight = Preflight(self._ask)
        self._spark, self._places, self._stores, self._jobs = spark, places, stores, jobs
        self._local_files = jvm.default_file_system(spark).startswith("file:")
        self._thread = ThreadPoolExecutor(1, "headgate-preflight")

    def needs_of(self, topology: Topology, place: str, settings: StateSettings) -> Needs:
        """What a job that keeps its files in `place` needs of each host."""
        store = StoreCheck(self._stores or f"{place}/{KEYED}", settings.least_free_mb)
        return needs_of(topology, settings.checkpoint or place, store, self._local_files)

    def remove_leftovers(self, hosts: Sequence[str]) -> None:
        """Delete the stores of jobs that have ended; a host that does not answer deletes its stores at the next question."""
        if self._stores:
            self._thread.submit(self._remove, hosts)

    def close(self) -> None:
        """Cancel queued questions; a question that is under way ends with Spark."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, hosts: Sequence[str], check: HostCheck) -> Mapping[str, bytes]:
        leftovers = Leftovers(self._stores, self._jobs()) if self._stores else None
        return self._thread.submit(self._asked, hosts, replace(check, leftovers=leftovers)).result()

    def _remove(self, hosts: Sequence[str]) -> None:
        try:
            self._asked(hosts, HostCheck("", (), leftovers=Leftovers(self._stores, self._jobs())))
        except Exception as error:  # whatever Spark raises: what is left costs space until the next preflight
            logging.getLogger(__name__).warning("stores of ended jobs could not be removed: %s", reason_of(error))

    def _asked(self, hosts: Sequence[str], check: HostCheck) -> Mapping[str, bytes]:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
        return ask_hosts(self._spark, self._places, hosts, check)
