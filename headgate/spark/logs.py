"""Logs of Spark and its processes: their size limit, and the number of old logs that are kept."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from headgate import files

_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}} [%t]: %m%n%ex{{20}}
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {bytes}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.fileIndex = min
appender.file.strategy.max = {kept}
"""


@dataclass(frozen=True, slots=True)
class Logs:
    """Size of a log in megabytes at which it is rotated, and the number of rotated logs that are kept."""

    largest_mb: float = 10.0
    kept: int = 3

    @property
    def largest_bytes(self) -> int:
        """A file of this size is set aside."""
        return max(1, round(self.largest_mb * 2**20))

    def log4j(self, log: Path) -> str:
        """Return the configuration of Java's logging into this file."""
        return _LOG4J.format(log=log, bytes=self.largest_bytes, kept=max(1, self.kept))

    def executors(self) -> dict[str, str]:
        """Return Spark settings for the output of executors, which workers write to logs."""
        return {
            "spark.executor.logs.rolling.strategy": "size",
            "spark.executor.logs.rolling.maxSize": str(self.largest_bytes),
            # Spark includes the current file in this number.
            "spark.executor.logs.rolling.maxRetainedFiles": str(self.kept + 1),
        }

    def rotate(self, path: Path) -> None:
        """Rotate a log if it is too large, while other processes append to it.

        The log is copied and emptied, so that the processes go on writing to the same file; a line that is written in between is lost.
        """
        try:
            if path.stat().st_size < self.largest_bytes:
                return
            self._set_aside(path)
            os.truncate(path, 0)
        except OSError:
            return  # a failing rotation must not end jobs; the next check tries again

    def _set_aside(self, path: Path) -> None:
        for number in range(self.kept, 1, -1):
            older = _numbered(path, number - 1)
            if older.exists():
                older.replace(_numbered(path, number))
        if self.kept:
            with files.open_private(_numbered(path, 1), "wb") as copy, path.open("rb") as log:
                shutil.copyfileobj(log, copy)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def prune(folders: Path, keep: set[str], most: int) -> None:
    """Remove these folders except the newest ones; folders to keep do not count."""
    if not folders.exists():
        return
    old = sorted((one for one in folders.iterdir() if one.name not in keep), key=lambda one: one.stat().st_mtime)
    for folder in old[: max(0, len(old) - most)]:
        shutil.rmtree(folder, ignore_errors=True)
