"""How many rows were sent to a sink, counted on the sink's own rows: exact also where the counters of operators estimate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headgate.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE_S = 5.0
"""How long the count may take after the action is done; a later count is not awaited."""
LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows that are counted on their way."""

    observation: Any

    @staticmethod
    def of(rows: DataFrame) -> tuple[DataFrame, SentRows]:
        """The same rows, counted by the next action on them."""
        java = jvm.packages(rows.sparkSession)
        observation = getattr(java, "org.apache.spark.sql.Observation")()
        count = jvm.expression(F.count(F.lit(1)).alias("rows"))
        observed = jvm.dataset(rows).observe(observation, count, java.org.apache.spark.api.python.PythonUtils.toSeq([]))
        return jvm.dataframe(observed, rows.sparkSession), SentRows(observation)

    def read(self) -> int | None:
        """After the action; None if Spark does not report the count soon."""
        until_s = time.monotonic() + LATE_S
        while not self.observation.future().isCompleted():
            if time.monotonic() > until_s:
                return None
            time.sleep(LOOK_S)
        answer = self.observation.getRow()
        return int(answer.getLong(0)) if answer.length() else None
