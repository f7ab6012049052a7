"""The number of rows that were sent to a sink, counted on the sink's own rows: exact even where the counters of operators estimate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headgate.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE_S = 5.0
"""Longest wait in seconds for the count after the action has ended."""
LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows with a count that the next action on them completes."""

    observation: Any

    @staticmethod
    def of(rows: DataFrame) -> tuple[DataFrame, SentRows]:
        """Return the same rows, and the count that the next action on them completes."""
        java = jvm.packages(rows.sparkSession)
        observation = getattr(java, "org.apache.spark.sql.Observation")()
        count = jvm.expression(F.count(F.lit(1)).alias("rows"))
        observed = jvm.dataset(rows).observe(observation, count, java.org.apache.spark.api.python.PythonUtils.toSeq([]))
        return jvm.dataframe(observed, rows.sparkSession), SentRows(observation)

    def read(self) -> int | None:
        """Return the count after the action; None if Spark does not report it in time."""
        until_s = time.monotonic() + LATE_S
        while not self.observation.future().isCompleted():
            if time.monotonic() > until_s:
                return None
            time.sleep(LOOK_S)
        answer = self.observation.getRow()
        return int(answer.getLong(0)) if answer.length() else None
