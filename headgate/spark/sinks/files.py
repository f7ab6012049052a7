"""Files, one directory per epoch: an epoch that is written again replaces what it wrote before.

A file beside the directories says which jobs have written, by their lives. A new job continues after the last directory of the previous
job, which from then on can write no more.
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
"""File with the writers of a directory; Spark's readers ignore names with this prefix."""
LOCAL = "file://"


@dataclass(frozen=True, slots=True)
class Files:
    """A sink that writes a directory per epoch below one directory."""

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
        """The directory as a path; None if it is not on a disk of this machine."""
        path = self.path.removeprefix(LOCAL)
        return None if "://" in path else path

    @property
    def is_file_uri(self) -> bool:
        """Whether the path names a disk of the machine, whatever Hadoop's default file system is."""
        return self.path.startswith(LOCAL)

    def check_rows(self, writing: Writing, epoch: int, wanted: int) -> None:
        """Refuse an epoch if its directory has fewer rows than were sent: tasks then wrote rows where this machine does not see them."""
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
        """Return the number of an epoch's directory; directories that are not on a local disk use the epoch of their job alone."""
        if self.local_path is None or not writing.start.life:
            return epoch
        return epoch + claimed(Path(self.local_path), writing, epoch).ahead


def _make_durable(folder: Path) -> None:
    """Force a directory to a local disk, which Spark does not do: Spark never runs a committed epoch again. Other storage is durable."""
    if not folder.is_dir():
        return
    for path in (*folder.rglob("*"), folder, folder.parent):
        disk.sync(path)


def rows_in(folder: Path, format: str) -> int | None:
    """The number of rows in an epoch's directory; None if counting them would require reading the files completely."""
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
    """The newest start of the job that wrote."""
    ahead: int
    """Added to the job's epoch to get the number of its directory."""


def claimed(path: Path, writing: Writing, epoch: int) -> Writer:
    """Return the current writer, which must be of this start's job; refuse older starts and older jobs."""
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
    """Return the offset that puts the new job's directories after existing ones; 0 if its sink was moved to an empty directory."""
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
    """Read all rows that were written to the directory."""
    return spark.read.format(format).load(str(path))
