"""The constant parts of a job: topology, directory, settings, and the objects that the job shares with other jobs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.config import SparkSettings
from headgate.core.model import Graph
from headgate.spark.epochs.phases import Phases
from headgate.spark.epochs.places import ONE_HOST, AvailableHosts
from headgate.spark.jobs.admission import Admission
from headgate.spark.measuring.metering import Gateway
from headgate.spark.measuring.tracing import NO_TRACES, Traces
from headgate.state.inspect import place_of
from headgate.topology import Source, Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Shared:
    """The objects that all jobs of an engine share."""

    spark: SparkSession
    gateway: Gateway
    settings: SparkSettings
    askers: ThreadPoolExecutor
    """Threads that ask sources how many rows have arrived."""
    admission: Admission
    """Decides which job may start the processes of its sources."""
    phases: Phases
    """Decides when each job starts its next epoch."""
    traces: Traces = NO_TRACES
    stores: str = ""
    """The folder with the slice stores of all jobs, as `store_folder` takes it; empty: each job has a folder in its own directory."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The topology and the directory of a job, and the objects that it shares with other jobs."""

    shared: Shared
    topology: Topology
    graph: Graph
    place: Path
    """The directory of the job's checkpoint, state and progress."""
    number: int
    """Number of the job, which no other job of the engine has."""
    cluster: Callable[[], AvailableHosts] = lambda: ONE_HOST
    """Returns the available hosts; each epoch calls it once."""

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def spark(self) -> SparkSession:
        return self.shared.spark

    @property
    def settings(self) -> SparkSettings:
        return self.shared.settings

    @property
    def ticks(self) -> Path:
        """The file by which a job with timers asks for an epoch without rows."""
        return self.place / "ticks"

    def source(self, name: str) -> Source:
        source = self.topology.nodes[name].function
        assert isinstance(source, Source)
        return source

    def store_of(self, operator: str) -> str:
        """The folder of an operator's slices on a host, as `store_folder` takes it."""
        stores = self.shared.stores
        return f"{stores}/{self.name}/{operator}" if stores else str(place_of(self.place, operator) / "store")

    def place_of(self, source: str) -> Path:
        """The directory of one source, created if it does not exist."""
        place = self.place / "sources" / source
        place.mkdir(parents=True, exist_ok=True)
        return place
