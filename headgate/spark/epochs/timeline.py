"""The durable record of a job's epochs: Spark's plan of an epoch survives a power cut before the epoch has an effect.

Spark replaces the files of its offset and commit log without forcing them to disk, while sinks and keyed state are durable: after a
power cut, Spark's log may be behind sinks and state, or hold empty files. If Spark then planned an epoch again, the epoch would have other
rows than sinks and state already hold under its number. So each epoch begins with a record that holds Spark's own entries unchanged:

    epochs/000000000012.json    offsets of epoch 12, Spark's commit of epoch 11, and the id of the query

Before a query starts, Spark's log is brought to the newest record (`restore`). The newest epoch is then run again with the very same
rows: sinks skip or replace what they wrote for it, and state undoes it.

Spark's log stays in the home of the driver. With the records in a checkpoint location, the log is rebuilt from them on another driver;
what Spark logs per source, such as the files that were read, is then kept beside the records.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headgate import files
from headgate.errors import EngineError, StateDamagedError
from headgate.state.location import Location
from headgate.state.records import seal, unseal

CHECKPOINT = "checkpoint"
RECORDS = "epochs"
SOURCES = "sources"
KEPT = 10
"""Number of records that are kept. Spark reads the entries of the newest epoch and of the one before; older records are for diagnosis."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The entries of Spark's checkpoint when an epoch begins."""

    epoch: int
    offsets: bytes
    """Spark's offsets of the epoch, as Spark wrote them."""
    commit: bytes | None
    """Spark's commit of the epoch before; None for the first one."""
    metadata: bytes | None
    """Spark's metadata with the id of the query, by which sinks identify the job; None without the file."""


class Timeline:
    """The epoch records of one job. Owner: the thread that starts the query, then the thread of the query."""

    def __init__(self, place: Path, durable: str | None = None) -> None:
        """`durable` is the folder of the records; None: the directory of the job."""
        self._log, self._elsewhere = place / CHECKPOINT, durable is not None and durable != str(place)
        self._durable = Location.of(durable or place)
        self._synced: set[Path] = set()
        """Files of Spark's source logs that are durable already."""

    # -- an epoch begins

    def begin(self, epoch: int) -> None:
        """Make what Spark planned for this epoch durable; to be called before the epoch writes to a sink or to state."""
        planned = EpochRecord(
            epoch,
            (self._log / "offsets" / str(epoch)).read_bytes(),
            _content(self._log / "commits" / str(epoch - 1)),
            _content(self._log / "metadata"),
        )
        before = self._readable(epoch)
        if before is not None:
            self._refuse_unless_same(before, planned)
            return
        self._sync_sources()
        self._durable.write(_record(epoch), seal(planned))
        for number in self._numbers():
            if number <= epoch - KEPT:
                self._durable.delete(_record(number))

    def _refuse_unless_same(self, before: EpochRecord, planned: EpochRecord) -> None:
        if _ends(before.offsets) != _ends(planned.offsets):
            raise EngineError(
                f"epoch {planned.epoch} was begun with other rows than Spark now plans for it, and sinks or state may have them; "
                f'put back "{self._log}" as it was, or remove the job and submit it again'
            )

    def _sync_sources(self) -> None:
        """Make durable the logs that Spark keeps per source (files that were read, first offsets), which Spark's offsets refer to."""
        found = {path for path in (self._log / SOURCES).rglob("*") if not path.name.endswith(".tmp")}
        for path in sorted(found - self._synced):
            files.sync(path)
            files.sync(path.parent)
            if self._elsewhere and path.is_file() and not path.name.endswith(".crc"):
                self._durable.write(f"{SOURCES}/{path.relative_to(self._log / SOURCES)}", path.read_bytes())
        self._synced = {path for path in found if path.is_file()}

    # -- a query starts

    def restore(self) -> None:
        """Bring Spark's log to the newest record; to be called while no query of the job runs."""
        self._remove_leftovers()
        self._restore_sources()
        numbers = self._numbers()
        for number in numbers[-2:]:
            self._restore_entry(number)
        self._remove_torn(numbers[-1] if numbers else -1)
        self._remove_checksums()

    def _remove_leftovers(self) -> None:
        Location(self._durable.system, f"{self._durable.base}/{RECORDS}").remove_leftovers()

    def _restore_sources(self) -> None:
        """Restore the source logs of another driver; a file that exists here already is as new."""
        for name in self._durable.names(SOURCES) if self._elsewhere else ():
            path = self._log / SOURCES / name
            if not path.exists():
                files.replace(path, self._durable.read(f"{SOURCES}/{name}"))

    def _remove_torn(self, newest: int) -> None:
        """Remove truncated entries: an epoch beyond the newest record had no effect, and an epoch without a commit runs again. Complete
        entries stay, since Spark would plan the same epoch in another way."""
        known = _content(self._log / "offsets" / str(newest))
        length = None if known is None else len(known.split(b"\n"))
        for path in (self._log / "offsets").glob("*"):
            if path.name.isdigit() and int(path.name) > newest and not is_entry(path.read_bytes(), length):
                path.unlink()
        for path in (self._log / "commits").glob("*"):
            if path.name.isdigit() and not is_entry(path.read_bytes()):
                path.unlink()
        metadata = _content(self._log / "metadata")
        if newest < 0 and metadata is not None and not is_entry(b"v1\n" + metadata):
            (self._log / "metadata").unlink()

    def _restore_entry(self, number: int) -> None:
        try:
            record = self._read(number)
        except StateDamagedError as error:
            if not is_entry(_content(self._log / "offsets" / str(number)) or b""):
                raise EngineError(f"{error}, and Spark's log has no epoch {number} either; remove the job") from None
            return  # Spark's own entry is whole: only the record is damaged
        _put_back(self._log / "offsets" / str(number), record.offsets)
        if record.commit is not None:
            _put_back(self._log / "commits" / str(number - 1), record.commit)
        if record.metadata is not None:
            _put_back(self._log / "metadata", record.metadata)

    def _remove_checksums(self) -> None:
        """Remove checksum files: Hadoop refuses a file with a truncated or outdated checksum file, and reads a file without one."""
        for folder in (self._log, self._log / "offsets", self._log / "commits"):
            for path in (*folder.glob(".*.crc"), *folder.glob(".*.tmp")):
                path.unlink()

    def next_epoch(self) -> int:
        """The epoch that a query begins with: the last one that Spark planned, or the one after if Spark committed it."""
        return max(self._newest("offsets"), self._newest("commits") + 1, 0)

    def committed_s(self, epoch: int) -> float | None:
        """The wall time at which Spark committed an epoch, in seconds; None before the commit. Any thread may ask."""
        try:
            return (self._log / "commits" / str(epoch)).stat().st_mtime
        except OSError:
            return None

    def _newest(self, log: str) -> int:
        return max((int(path.name) for path in (self._log / log).glob("*") if path.name.isdigit()), default=-1)

    # -- files

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._durable.names(RECORDS) if name.endswith(".json"))
        return [int(name) for name in names if name.isdigit()]

    def _read(self, epoch: int) -> EpochRecord:
        name = _record(epoch)
        return unseal(self._durable.read(name), EpochRecord, f"{self._durable.base}/{name}")

    def _readable(self, epoch: int) -> EpochRecord | None:
        try:
            return self._read(epoch)
        except StateDamagedError:
            return None


def _record(epoch: int) -> str:
    return f"{RECORDS}/{epoch:012d}.json"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _put_back(path: Path, content: bytes) -> None:
    if _content(path) != content:
        files.replace(path, content)


def is_entry(content: bytes, length: int | None = None) -> bool:
    """Whether this is a whole entry of Spark's logs: a version, then lines of JSON, or `-` for a source without an offset."""
    version, *lines = content.split(b"\n")
    if length is not None and 1 + len(lines) != length:
        return False
    try:
        for line in lines:
            if line != b"-":
                json.loads(line)
    except ValueError:
        return False
    return version.startswith(b"v") and bool(lines)


def _ends(offsets: bytes) -> list[bytes]:
    """The offsets of the sources: all lines but the version and Spark's own settings and clock."""
    return offsets.split(b"\n")[2:]
