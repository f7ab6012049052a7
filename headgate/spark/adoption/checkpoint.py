"""The checkpoint of an existing query: where the query stopped, how its checkpoint is fenced, and how a job takes it over.

Spark plans batch N by writing `offsets/N`, runs the batch, and writes `commits/N`. Spark never replaces an entry of its log. The fence is
the entry `offsets/N+1` with a sentence as its content: a query that still runs fails when it plans its next batch, and a query that is
started again fails when it reads the entry. Both queries show the sentence.

    mark HOME/adopting/JOB -> fence the old checkpoint -> copy it -> rename the copy to HOME/jobs/JOB

A second `headgate adopt` completes an adoption that a crash has interrupted, and is refused once the job has its copy.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from headgate import files
from headgate.errors import InputError
from headgate.spark.epochs import timeline

LOCAL = "file:"
FENCED = "Headgate adopted this query"
ADOPTING = "adopting"
MARK = "adopted.json"
"""File in the directory of the source of an adopted job; names the checkpoint that the job continues."""
SOURCE = "query"
"""Name of the operator that reads the sources of the adopted query."""
NOTHING = "-"
"""Entry of Spark's offset log for a source that had no rows yet."""
LOOK_S = 0.2
BOUND = "transformWithState"
"""State operator whose metadata names files of the old checkpoint by absolute path."""


@dataclass(frozen=True, slots=True)
class StateOperator:
    """State of Spark's own in a checkpoint."""

    name: str
    partitions: int | None


@dataclass(frozen=True, slots=True)
class OldCheckpoint:
    """The checkpoint of an existing query, and the batch at which the query stopped."""

    path: Path
    batch: int
    """The newest batch that the query planned."""
    is_committed: bool
    offsets: tuple[str, ...]
    """End offset of the newest batch for each source, as Spark wrote it."""
    starts: tuple[str | None, ...]
    """Start offset of the job's first batch for each source, as Spark wrote it; None if the checkpoint does not have it."""
    state: tuple[StateOperator, ...]
    fence: str = ""
    """The sentence in the fence; empty if the checkpoint has no fence."""

    @property
    def next_entry(self) -> Path:
        """Path of the offset log entry with which Spark would plan the next batch."""
        return self.path / "offsets" / str(self.batch + 1)


def local_path(location: str) -> Path:
    """The directory of a checkpoint; other storage than a disk or a mounted file system is refused."""
    path = location.removeprefix(LOCAL) if location.startswith(LOCAL) else location
    if ":/" in path:
        raise InputError(
            f'the checkpoint "{location}" is not on a disk or a mounted file system;'
            " copy the checkpoint to a directory, and name this directory in the script"
        )
    return Path("/" + path.lstrip("/") if location.startswith(LOCAL) else path).absolute()


def read(path: Path) -> OldCheckpoint:
    """Read where the query of this checkpoint stopped."""
    planned = _entries(path / "offsets")
    fence = _fence(path / "offsets" / str(planned[-1])) if planned else ""
    planned = planned[:-1] if fence else planned
    if not planned:
        raise InputError(
            f'there is no checkpoint with a batch in "{path}"; run headgate adopt in the directory where the query ran,'
            " or run the script as a job from its first row (see docs/jobs.md)"
        )
    batch, committed = planned[-1], _entries(path / "commits")
    content = (path / "offsets" / str(batch)).read_bytes()
    if not timeline.is_entry(content) or (committed[-1] if committed else -1) not in (batch - 1, batch):
        raise InputError(
            f'the checkpoint "{path}" is damaged: its offset log ends with batch {batch}, its commit log with'
            f" {committed[-1] if committed else 'no batch'}; headgate adopt cannot tell which rows were written"
        )
    offsets, is_committed = _offsets(content), batch in committed
    before = offsets if is_committed else _offsets(_content(path / "offsets" / str(batch - 1)))
    known = [before[number] if number < len(before) else NOTHING for number in range(len(offsets))]
    starts = tuple(_initial(path, number) if one == NOTHING else one for number, one in enumerate(known))
    return OldCheckpoint(path, batch, is_committed, offsets, starts, _state(path / "state"), fence)


def _offsets(entry: bytes) -> tuple[str, ...]:
    """Return the offsets in an entry of the offset log: the lines after the version and the settings."""
    return tuple(line.decode() for line in entry.split(b"\n")[2:])


def _initial(path: Path, source: int) -> str | None:
    """Return the first offset of a source: Spark's Kafka source writes it, after a zero byte, before its first batch. None if not known."""
    content = _content(path / "sources" / str(source) / "0").removeprefix(b"\0")
    return content.partition(b"\n")[2].decode(errors="replace") or None


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _entries(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def _fence(path: Path) -> str:
    content = path.read_bytes()
    return content.decode().strip() if content.startswith(FENCED.encode()) else ""


def _state(folder: Path) -> tuple[StateOperator, ...]:
    numbers = sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())
    return tuple(_operator(folder / str(number)) for number in numbers)


def _operator(folder: Path) -> StateOperator:
    """Describe a state operator from its metadata, which Spark before version 4 did not write."""
    described = sorted((folder / "_metadata").rglob("[!.]*"))
    lines = [line for path in described if path.is_file() for line in path.read_text(errors="replace").splitlines()]
    found = next((line for line in reversed(lines) if line.startswith("{")), None)
    if found is None:
        return StateOperator("state", None)
    table = json.loads(found)
    stores = table.get("stateStoreInfo") or [{}]
    return StateOperator(table["operatorInfo"]["operatorName"], stores[0].get("numPartitions"))


# -- a query that still runs


def refuse_running(script: Path) -> None:
    """Refuse if a process of this machine still runs the script; this command and those that started it do not count."""
    here = psutil.Process()
    own = {here.pid, *(parent.pid for parent in here.parents())}
    for process in psutil.process_iter():
        if process.pid not in own and _runs(process, script):
            raise InputError(f"{script}: process {process.pid} still runs it; stop it first, then adopt its queries")


def _runs(process: psutil.Process, script: Path) -> bool:
    try:
        program, *arguments = process.cmdline() or [""]
        named = (one for one in arguments if one.endswith(script.name))
        is_spark = Path(program).name.startswith(("python", "java"))
        return is_spark and any(Path(process.cwd(), one).resolve() == script for one in named)
    except (psutil.Error, OSError):
        return False


def await_rest(old: OldCheckpoint, quiet_s: float) -> OldCheckpoint:
    """Wait until the newest batch is committed, or has been planned so long ago that its query must have ended."""
    entry = old.path / "offsets" / str(old.batch)
    while not old.is_committed and time.time() - entry.stat().st_mtime < quiet_s:
        time.sleep(LOOK_S)
        old = read(old.path)
    return old


# -- taking it over


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Gives the checkpoint of an existing query to a new job."""

    old: OldCheckpoint
    job: str
    home: Path
    quiet_s: float

    @property
    def place(self) -> Path:
        """The directory of the job."""
        return self.home / "jobs" / self.job

    @property
    def _staged(self) -> Path:
        return self.home / ADOPTING / self.job

    @property
    def _sentence(self) -> str:
        return f'{FENCED} as job "{self.job}" of the service in "{self.home}"'

    def check(self) -> None:
        """Refuse a checkpoint or a name that is taken."""
        was_interrupted = self.old.fence.startswith(self._sentence) and self._staged.exists()
        if self.old.fence and not was_interrupted:
            raise InputError(f'the checkpoint "{self.old.path}" has been adopted already: {self.old.fence}')
        if self.place.exists():
            raise InputError(
                f'there is a job "{self.job}" in "{self.home}" already; give this one another name with --name'
            )
        bound = next((one.name for one in self.old.state if one.name.startswith(BOUND)), None)
        if bound is not None:
            raise InputError(
                f'the checkpoint "{self.old.path}" holds state of {bound}, which names its files by absolute path and cannot be'
                " copied; run the query to its end, and start a job without the old checkpoint"
            )

    def run(self) -> OldCheckpoint:
        """Fence the old checkpoint and give the job a copy; return the old checkpoint as it was when the query stopped."""
        files.make_folder(self._staged)
        if not self.old.fence:
            self._fence()
        old = await_rest(read(self.old.path), self.quiet_s)
        self._copy(old)
        return old

    def _fence(self) -> None:
        """Write the fence to a temporary file and link it: the entry appears whole, and only if Spark has not written the entry."""
        entry = self.old.next_entry
        part = self.old.path / f".headgate-{uuid.uuid4().hex}"
        text = f'{self._sentence}. To run the query from here again, remove the job and delete the file "{entry}".\n'
        files.replace(part, text.encode(), mode=0o644)
        try:
            os.link(part, entry)
        except FileExistsError:
            raise InputError(
                f'the query of the checkpoint "{self.old.path}" still runs: it has just planned batch {self.old.batch + 1};'
                " stop it first"
            ) from None
        finally:
            part.unlink()
        files.sync(entry.parent)

    def _copy(self, old: OldCheckpoint) -> None:
        target = self._staged / timeline.CHECKPOINT
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(old.path, target, ignore=_left_out(old))
        mark = {"checkpoint": str(old.path), "batch": old.batch, "committed": old.is_committed, "starts": old.starts}
        files.replace(self._staged / "sources" / SOURCE / MARK, json.dumps(mark).encode())
        for path in self._staged.rglob("*"):
            files.sync(path)
        files.make_folder(self.place.parent)
        self._staged.rename(self.place)
        files.sync(self.place.parent)
        with suppress(OSError):  # another adoption may be under way
            self._staged.parent.rmdir()


def _left_out(old: OldCheckpoint) -> Callable[[str, list[str]], set[str]]:
    """Return the filter of files that the copy leaves out: the fence, and files of interrupted writes."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        unfinished = {name for name in names if name.endswith(".tmp") or name.startswith(".headgate-")}
        return unfinished | ({old.next_entry.name} if Path(folder) == old.next_entry.parent else set())

    return left_out
