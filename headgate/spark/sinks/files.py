"""Files, one directory per epoch: an epoch that is written again replaces what it wrote before.

A file beside them says which jobs have written here, by their lives. A new job goes on after the last directory of the one before it,
which from then on can write no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from headgate import files as disk
from headgate.errors import EngineError, OutageError
from headgate.spark.sinks.writing import JobStart, Writing, writing_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = "epoch="
WRITERS = "_headgate.json"
"""Spark's readers leave out names that begin like this."""
LOCAL = "file://"


@dataclass(frozen=True, slots=True)
class Files:
    """A directory with a directory per epoch in it."""

    path: str
    format: str = "parquet"
    options: dict[str, Any] = field(default_factory=dict)
    reads_once: bool = True

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        number = self._number(writing_of(rows), epoch)
        writer = rows.write.mode("overwrite").format(self.format).options(**self.options)
        writer.save(f"{self.path}/{EPOCH}{number}")
        _make_durable(Path(self.path.removeprefix(LOCAL)) / f"{EPOCH}{number}")

    @property
    def local_path(self) -> str | None:
        """The directory as a path; None if it is elsewhere than on a disk."""
        path = self.path.removeprefix(LOCAL)
        return None if "://" in path else path

    @property
    def is_file_uri(self) -> bool:
        """Whether the path says that it is on a disk, whatever Hadoop's default file system is."""
        return self.path.startswith(LOCAL)

    def check_rows(self, writing: Writing, epoch: int, wanted: int) -> None:
        """Refuse an epoch whose directory has fewer rows than were sent to it: tasks wrote them where this machine does not see them."""
        if self.local_path is None:
            return
        folder = Path(self.local_path) / f"{EPOCH}{self._number(writing, epoch)}"
        if not Path(self.local_path).is_dir():
            return  # Spark wrote it to its default file system
        found = rows_in(folder, self.format)
        if found is not None and found < wanted:
            raise OutageError(
                f'"{folder}" has {found:,} of the {wanted:,} rows of epoch {epoch}: a host wrote the others to a directory of the same'
                " name that the driver does not see; mount the same storage on every host under this path"
            )

    def _number(self, writing: Writing, epoch: int) -> int:
        """Directories elsewhere than on a disk of this machine go by the epochs of their job alone."""
        if self.local_path is None or not writing.start.life:
            return epoch
        return epoch + claimed(Path(self.local_path), writing, epoch).ahead


def _make_durable(folder: Path) -> None:
    """Spark does not force what it wrote to disk, and the epoch is not run again once it is committed. Elsewhere than on a local disk,
    the storage sees to it."""
    if not folder.is_dir():
        return
    for path in (*folder.rglob("*"), folder, folder.parent):
        disk.sync(path)


def rows_in(folder: Path, format: str) -> int | None:
    """The rows of an epoch's directory; None if they cannot be counted without reading the files whole."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(("_", "."))]
    if not paths:
        return 0
    if format != "parquet":
        return None
    return sum(int(pq.read_metadata(path).num_rows) for path in paths)


@dataclass(frozen=True, slots=True)
class Writer:
    """A job that has written to a directory."""

    start: JobStart
    """The newest one that wrote."""
    ahead: int
    """What its epochs are counted on from."""


def claimed(path: Path, writing: Writing, epoch: int) -> Writer:
    """The writer that may write now, which this start must be of; older starts and older jobs are refused."""
    writers = _writers(path)
    known = next((one for one in writers if one.start.life == writing.start.life), None)
    if known is not None and (known != writers[-1] or known.start.number > writing.start.number):
        raise EngineError(_refusal(path, writing, known == writers[-1]))
    if known is not None and known.start == writing.start:
        return known
    mine = Writer(writing.start, _ahead(path, writers, epoch)) if known is None else replace(known, start=writing.start)
    disk.replace(path / WRITERS, msgspec.json.encode([*(one for one in writers if one is not known), mine]))
    return mine


def _ahead(path: Path, writers: list[Writer], epoch: int) -> int:
    """After the directories of others; a job whose sink was moved to an empty directory goes on with its own numbers."""
    taken = [int(name) for one in path.glob(f"{EPOCH}*") if (name := one.name.removeprefix(EPOCH)).isdecimal()]
    return max(taken) + 1 - epoch if taken and (writers or epoch == 0) else 0


def _refusal(path: Path, writing: Writing, same_job: bool) -> str:
    if same_job:
        return writing.too_late(f'"{path}"')
    return f'"{path}" is written by another job, which was submitted later; give each job a directory of its own'


def _writers(path: Path) -> list[Writer]:
    try:
        return msgspec.json.decode((path / WRITERS).read_bytes(), type=list[Writer])
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineError(
            f'"{path / WRITERS}" is damaged ({error}), and epochs could replace those of another job;'
            " give the sink another directory"
        ) from None


def files(path: str | Path, format: str = "parquet", **options: Any) -> Files:
    """Files of this format below `path`; readers of the directory also see the column `epoch`.

    `job.sink("out", sinks.files("out/alerts"), alerts)`
    """
    return Files(str(path), format, options)


def read_files(spark: SparkSession, path: str | Path, format: str = "parquet") -> DataFrame:
    """Everything that was written there so far."""
    return spark.read.format(format).load(str(path))
