"""Files, one directory per epoch: an epoch that is written again replaces what it wrote before."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Files:
    """A directory with a directory per epoch in it."""

    path: str
    format: str = "parquet"
    options: dict[str, Any] = field(default_factory=dict)
    reads_once: bool = True

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        writer = rows.write.mode("overwrite").format(self.format).options(**self.options)
        writer.save(f"{self.path}/epoch={epoch}")


def files(path: str | Path, format: str = "parquet", **options: Any) -> Files:
    """Files of this format below `path`; whoever reads the directory sees the column `epoch` besides.

    `job.sink("out", sinks.files("out/alerts"), alerts)`
    """
    return Files(str(path), format, options)


def read_files(spark: SparkSession, path: str | Path, format: str = "parquet") -> DataFrame:
    """Everything that was written there so far."""
    return spark.read.format(format).load(str(path))
