from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config import Settings
from headgate.core.metrics import View
from headgate.core.model import Action
from headgate.jobfile import read
from headgate.journal import MemoryJournal
from headgate.server.registry import Registry
from headgate.server.service import Loop, Service
from headgate.server.tenants import Tenant
from headgate.spark.jobs.loading import load
from tests.server.fake import FakeEngine, job_file
from tests.server.tenancy import MINE, THEIRS, House, answering

ROUND_S = 10.0


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.rounds: list[tuple[View, str, Action | None]] = []
        self.told: list[tuple[str, str]] = []

    def round(self, view, phase, action, states) -> None:
        self.rounds.append((view, phase, action))

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        self.told.append((job, text))


class Bench:
    """A service in a directory, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes = Notes()
        self.journal = MemoryJournal()
        self.loop = Loop(Settings())
        self.now_s = 1_700_000_000.0
        self.start()

    def start(self, *files: Path, only_these: bool = True, engine: FakeEngine | None = None) -> Service:
        self.engine = engine or FakeEngine(clock=self.clock)
        registry = Registry(self.directory / "jobs.json")
        self.service = Service(self.engine, registry, self.journal, self.loop, self.notes, self.clock)
        requests = [request for file in files for request in read(file).jobs]
        self.service.prepare([(request, load(request)) for request in requests], only_these)
        self.service.jobs.starts.run()
        return self.service

    def clock(self) -> float:
        return self.now_s

    def registry_names(self) -> set[str]:
        return set(self.service.registry.all())

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.now_s += ROUND_S
            self.service.look()
            self.service.round()

    def submit(self, **table: object) -> str:
        return self.service.jobs.submit({"file": str(job_file(self.directory)), **table})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)


@pytest.fixture
def house(bench: Bench) -> Iterator[House]:
    bench.service.tenants.put(Tenant("a"), Tenant("b"))
    bench.submit(name=MINE, tenant="a")
    bench.submit(name=THEIRS, tenant="b")
    bench.rounds(4)
    with answering(bench) as house:
        yield house
