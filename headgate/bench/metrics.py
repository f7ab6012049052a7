"""Benchmark of a scrape of `/metrics` over loopback, for 100 jobs and for more jobs than get series of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import httpx

from headgate.bench import Figure, Result, repeated
from headgate.bench.controller import ReplayingEngine, job_named, snapshot_of
from headgate.config import Settings
from headgate.core.latency import Latency
from headgate.core.model import Action, JobReading, Snapshot
from headgate.journal import MemoryJournal
from headgate.ports import JobPhase, Jobs, JobState
from headgate.server.app import app_of, listen, served
from headgate.server.registry import Registry
from headgate.server.service import Loop, Service
from headgate.server.status import DeclaredJob
from headgate.sim.reports.bars import Bar

FEW, MANY = 100, 1000
ROUNDS = 8
SCRAPES = 21
EPOCHS, POINTS = 10, 12
"""Epochs of a job between two rounds, and the points that each epoch adds to the distribution of latencies, as on Spark."""
LIMIT_MS = 200.0
TOKEN = "bench"
MS = 1000.0


def measure() -> Result:
    """Measure the milliseconds and the size of a scrape."""
    return measured((FEW, MANY))


def measured(counts: Sequence[int]) -> Result:
    """Measure scrapes for each number of jobs; the bar is on the first number."""
    found = {count: _scraped(count) for count in counts}
    figures = [figure for count, (taken_ms, size) in found.items() for figure in _figures(count, taken_ms, size)]
    first = counts[0]
    value = repeated("", found[first][0], "ms").value
    return Result(
        tuple(figures), (Bar(name=f"a scrape of {first} jobs takes so many ms", value=value, op="<=", bar=LIMIT_MS),)
    )


def _figures(count: int, taken_ms: list[float], size: int) -> Iterator[Figure]:
    yield repeated(f"scrape, {count:,} jobs", taken_ms, "ms")
    yield Figure(f"size of a scrape, {count:,} jobs", size / 1000, "KB")


def _scraped(count: int) -> tuple[list[float], int]:
    """Return the milliseconds of scrapes, each after a new round, and the size of a scrape."""
    with TemporaryDirectory() as folder:
        service = _service(count, Path(folder))
        for _ in range(ROUNDS):
            service.round()
        with _connection(service) as connection:
            answers = [_timed(service, connection) for _ in range(SCRAPES)]
    return [taken_ms for taken_ms, _ in answers], answers[0][1]


def _timed(service: Service, connection: httpx.Client) -> tuple[float, int]:
    service.round()
    begun_s = time.perf_counter()
    answer = connection.get("/metrics").raise_for_status()
    return MS * (time.perf_counter() - begun_s), len(answer.content)


@contextmanager
def _connection(service: Service) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        closing(listen()) as listening,
        served(app_of(service, TOKEN), listening) as url,
        httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as connection,
    ):
        yield connection


def _service(count: int, folder: Path) -> Service:
    jobs = {name: job_named(name) for name in (f"job-{index}" for index in range(count))}
    snapshots = [_with_latencies(snapshot_of(jobs, number)) for number in range(ROUNDS + SCRAPES)]
    clock = [0.0]
    engine = cast(Jobs, _Engine(jobs, snapshots, clock=clock))
    service = Service(
        engine, Registry(folder / "jobs.json"), MemoryJournal(), Loop(Settings()), _Nobody(), lambda: clock[0]
    )
    for name, job in jobs.items():
        service.board.declared.put(name, DeclaredJob(job.tenant, job.intent))
    return service


def _with_latencies(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with as many points of latency as a job on Spark has."""
    points = [(0.1 + 0.001 * number, 100.0) for number in range(EPOCHS * POINTS)]
    latency = Latency.weighted(points)
    return replace(snapshot, jobs={name: _replaced(reading, latency) for name, reading in snapshot.jobs.items()})


def _replaced(reading: JobReading | None, latency: Latency) -> JobReading | None:
    return None if reading is None else replace(reading, latency=latency)


@dataclass(slots=True)
class _Engine(ReplayingEngine):
    """An engine that returns snapshots one after another; all jobs run."""

    clock: list[float] | None = None

    def observe(self) -> Snapshot:
        found = ReplayingEngine.observe(self)
        assert self.clock is not None
        self.clock[0] = found.at_s
        return found

    def states(self) -> Mapping[str, JobState]:
        return dict.fromkeys(self.running, JobState(JobPhase.RUNNING))

    def lost(self) -> str:
        return ""


class _Nobody:
    """A watcher that writes nothing."""

    def round(self, view: object, phase: str, action: Action | None, states: object) -> None:
        """Do nothing."""

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        """Do nothing."""
