"""The power goes at any moment: what was forced to disk is there, of the rest anything may be. Every row counts once all the same.

The operations on files are recorded while a job runs without Spark: its record of epochs, Spark's log (which is never forced to disk), its
state with upkeep, and a sink that knows epochs by their numbers. Then the disk is made up as of some moment, and the job goes on.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headgate import files
from headgate.config import StateSettings
from headgate.errors import HeadgateError
from headgate.spark.epochs.timeline import Timeline
from headgate.state.inspect import read_state
from headgate.state.location import Location
from headgate.state.stores import close_stores
from headgate.state.upkeep import Upkeep
from tests.state.builders import Driver, rows

EPOCHS, POINTS = 14, 100
SETTINGS = StateSettings(merge_epochs=4, kept_snapshots=2)


@dataclass(frozen=True, slots=True)
class Operation:
    """What a program asked of the file system."""

    kind: str
    path: str = ""
    inode: int = -1
    data: bytes = b""


@dataclass
class Disk:
    """Records operations below a folder, and tells what may be left of them."""

    root: Path
    done: list[Operation] = field(default_factory=list)
    _inodes: dict[str, int] = field(default_factory=dict)
    _open: dict[int, str] = field(default_factory=dict)

    def record(self, kind: str, path: Any, data: bytes = b"") -> None:
        text = str(path)
        if not text.startswith(str(self.root)):
            return
        name = os.path.relpath(text, self.root)
        if kind == "create":
            self._inodes[name] = len(self.done)
        self.done.append(Operation(kind, name, self._inodes.get(name, -1), data))

    def rename(self, source: Any, target: Any) -> None:
        names = [os.path.relpath(str(path), self.root) for path in (source, target)]
        self._inodes[names[1]] = self._inodes.pop(names[0], -1)
        self.done.append(Operation("rename", names[1], self._inodes[names[1]], names[0].encode()))

    # -- stands for `os` in headgate.files

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._open[descriptor] = str(path)
        if flags & os.O_CREAT:
            self.record("create", path)
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        self.record("write", self._open[descriptor], bytes(data))
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self.record("sync", self._open[descriptor])

    # -- after a power cut

    def left(self, moment: int, place: Path, chance: random.Random) -> None:
        """Write to `place` what may be on the disk after so many operations."""
        done = self.done[:moment]
        names: dict[str, int] = {}
        folders = {"."}
        content: dict[int, bytes] = {}
        for at, one in enumerate(done):
            later = done[at + 1 :]
            if one.kind == "write":
                synced = any(other.kind == "sync" and other.inode == one.inode for other in later)
                content[one.inode] = content.get(one.inode, b"") + (
                    one.data if synced else one.data[: chance.randrange(len(one.data) + 1)]
                )
            elif one.kind != "sync":
                folder = os.path.dirname(one.path) or "."
                if not any(other == Operation("sync", folder) for other in later) and chance.random() < 0.5:
                    continue
                self._apply(one, names, folders)
        for name, inode in names.items():
            if os.path.dirname(name) in folders:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content.get(inode, b""))

    @staticmethod
    def _apply(one: Operation, names: dict[str, int], folders: set[str]) -> None:
        if one.kind == "mkdir" and (os.path.dirname(one.path) or ".") in folders:
            folders.add(one.path)
        elif one.kind in ("create", "rename"):
            names.pop(one.data.decode(), None)
            names[one.path] = one.inode
        elif one.kind == "unlink":
            names.pop(one.path, None)


class Job:
    """A job without Spark: plans epochs, records them, runs lanes, writes the sink, commits; goes on where the logs end."""

    def __init__(self, place: Path, sink: dict[int, tuple[int, int]], disk: Disk | None = None) -> None:
        self.place, self.sink, self.disk = place, sink, disk
        self.log = place / "checkpoint"
        self.timeline = Timeline(place)
        self.timeline.restore()
        self.driver = Driver(place / "keyed", slices=4)
        self.driver.folder = lambda host: str(place.parent / f"{place.name}-hosts" / host)  # type: ignore[method-assign]
        self.driver.start_at(self.next_epoch())

    def next_epoch(self) -> int:
        """As Spark does: the newest epoch is run again unless it is committed."""
        planned, committed = (self._numbers(folder) for folder in ("offsets", "commits"))
        if not planned:
            return 0
        return planned[-1] + (planned[-1] in committed)

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(path.name) for path in (self.log / folder).glob("[0-9]*") if path.name.isdigit())

    def end(self, epoch: int) -> int:
        path = self.log / "offsets" / str(epoch)
        return 0 if epoch < 0 else int(json.loads(path.read_bytes().split(b"\n")[2])["rows"])

    def run(self, count: int) -> None:
        epoch = self.driver.epoch
        first = self.end(epoch - 1)
        if epoch not in self._numbers("offsets"):
            self.write("offsets", epoch, f'v1\n{{}}\n{{"rows": {first + count}}}'.encode())
        last = self.end(epoch)
        self.timeline.begin(epoch)
        made = self.driver.run(rows([(row, 1) for row in range(first, last)]))
        if epoch > max(self.sink, default=-1):  # a sink that skips what it has
            self.sink[epoch] = first, last
            if self.disk is not None:
                self.disk.done.append(Operation("sink", inode=epoch, data=json.dumps([first, last]).encode()))
        self.driver.checkpoint.commit(epoch, made)
        self.driver.epoch += 1
        self.write("commits", epoch, b"v1\n{}")

    def write(self, folder: str, epoch: int, content: bytes) -> None:
        """As Spark does, without forcing anything to disk."""
        path = self.log / folder / str(epoch)
        files.replace(path, content, durable=False)

    def upkeep(self) -> None:
        Upkeep(self.driver.checkpoint, self.driver.life, SETTINGS, self.place.parent / "scratch").run()


@pytest.fixture
def disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """What runs with it is recorded."""
    root = place / "job"
    root.mkdir()
    disk = Disk(root)
    replace, mkdir, unlink, delete = Path.replace, Path.mkdir, Path.unlink, Location.delete

    def watched_replace(self: Path, target: Any) -> Path:
        disk.rename(self, target)
        return replace(self, target)

    def watched_mkdir(self: Path, *arguments: Any, **options: Any) -> None:
        if not self.exists():
            disk.record("mkdir", self)
        mkdir(self, *arguments, **options)

    def watched_unlink(self: Path, missing_ok: bool = False) -> None:
        disk.record("unlink", self)
        unlink(self, missing_ok)

    def watched_delete(self: Location, name: str) -> None:
        disk.record("unlink", f"{self.base}/{name}")
        delete(self, name)

    monkeypatch.setattr(files, "os", disk)
    monkeypatch.setattr(Path, "replace", watched_replace)
    monkeypatch.setattr(Path, "mkdir", watched_mkdir)
    monkeypatch.setattr(Path, "unlink", watched_unlink)
    monkeypatch.setattr(Location, "delete", watched_delete)
    return disk


def test_every_row_counts_once_whenever_the_power_goes(
    place: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    job = Job(disk.root, {}, disk)
    for epoch in range(EPOCHS):
        job.run(chance.randrange(1, 12))
        if epoch % 5 == 4:
            job.upkeep()
    close_stores()
    monkeypatch.undo()
    outcomes: Counter[str] = Counter()
    for point in range(POINTS):
        moment = chance.randrange(len(disk.done) + 1)
        again = place / f"cut-{point}"
        disk.left(moment, again, random.Random(point))
        sink = {one.inode: tuple(json.loads(one.data)) for one in disk.done[:moment] if one.kind == "sink"}
        outcomes[goes_on(again, sink, random.Random(point), f"moment {moment}")] += 1
        close_stores()
    assert outcomes["exact"] == POINTS, outcomes


def goes_on(place: Path, sink: dict[int, Any], chance: random.Random, what: str) -> str:
    """The job is started again, and reads in other sizes than before."""
    try:
        job = Job(place, sink)
        for _ in range(3):
            job.run(chance.randrange(1, 30))
    except HeadgateError as error:
        assert "\n" not in str(error), what
        return str(error)
    end = job.end(job.driver.epoch - 1)
    put_out = [row for first, last in sink.values() for row in range(first, last)]
    assert Counter(put_out) == Counter(range(end)), f"{what}: the sink"
    counts = {entry.key["user"]: entry.state[":count"] for entry in read_state(place / "keyed" / "checkpoint")}
    assert counts == dict.fromkeys(range(end), 1), f"{what}: the state"
    return "exact"
