"""A keyed job on a real Spark cluster: a host leaves, returns, and another is killed. What happened is printed as JSON, by chapter.

A process has one Spark session, and that of the other tests is embedded: so this runs by itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.bench.workers import WorkerCluster, cluster, kill_host
from headgate.config import SparkSettings, StateSettings
from headgate.state.inspect import Opens, read_opens
from tests.spark.builders import put_in, start
from tests.spark.on_cluster import until
from tests.spark.test_keyed import counting

ROWS, READ_LIMIT = 20_000, 100
NAMES = ("0", "1", "2")
SETTINGS = SparkSettings(driver_memory_mb=1024, retries=0, state=StateSettings(backup_epochs=2))


class Chapters:
    """The job, and what is told of it."""

    def __init__(self, hosts: WorkerCluster) -> None:
        self.hosts = hosts
        self.told: dict[str, Any] = {}
        self.before: Mapping[str, int] = {}

    def opens(self) -> Opens:
        found = read_opens(self.hosts.engine.place_of("job"), "count")
        assert found is not None
        return found

    def more(self, epochs: int) -> None:
        wanted = self.opens().epoch + epochs
        until(lambda: self.opens().epoch >= wanted)

    def settled(self, *names: str) -> bool:
        """Whether the slices are on these hosts, and their backups as well."""
        placement = self.hosts.hosted("job").hosting.placement
        if placement is None or set(placement.homes()) != self.hosts.addresses(*names):
            return False
        return all(place.migration is None and place.ready == {*place.backups} for place in placement.places)

    def begin(self) -> None:
        self.before = self.opens().all

    def end(self, name: str) -> None:
        """Tell what was opened since it began, and by which epoch."""
        now = self.opens()
        opened = {origin: count - self.before.get(origin, 0) for origin, count in now.all.items()}
        self.told[name] = {"opened": opened, "epoch": now.epoch}


def steady(job: Chapters) -> None:
    until(lambda: job.settled(*NAMES))
    job.more(1)
    job.begin()
    job.more(4)
    job.end("steady")


def leaves(job: Chapters, name: str) -> None:
    (host,) = job.hosts.addresses(name)
    others = [other for other in NAMES if other != name]
    job.begin()
    job.hosts.engine.vacate(host)
    until(lambda: job.hosts.engine.is_vacant(host) and job.settled(*others))
    job.more(2)
    job.end("left")
    job.begin()
    job.hosts.engine.occupy(host)
    until(lambda: job.settled(*NAMES))
    job.more(2)
    job.end("returned")


def is_killed(job: Chapters, name: str) -> None:
    others = [other for other in NAMES if other != name]
    job.begin()
    kill_host(job.hosts, name)
    until(lambda: job.settled(*others))
    job.more(2)
    job.end("lost")


def main(place: Path) -> None:
    with cluster(len(NAMES), SETTINGS) as hosts:
        start(hosts.engine, counting(place / "out", lanes=3, rows=ROWS), READ_LIMIT)
        job = Chapters(hosts)
        until(lambda: read_opens(hosts.engine.place_of("job"), "count") is not None)
        chapters: tuple[Callable[[], None], ...] = (
            lambda: steady(job), lambda: leaves(job, "2"), lambda: is_killed(job, "1"),
        )  # fmt: skip
        for chapter in chapters:
            chapter()
        hosts.engine.set_read_limit("job", ROWS)
        until(lambda: put_in(hosts.engine) == ROWS)
        state = hosts.engine.states()["job"]
        job.told |= {"phase": state.phase.value, "reason": state.reason}
    print(json.dumps(job.told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
