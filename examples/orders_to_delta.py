"""Orders into a Delta table, each exactly once; `delta_totals.py` follows that table.

headgate run examples/orders_to_delta.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from headgate import Intent, Topology, sinks, sources
from headgate.loads import Load


def topology(rate: float | Load = 200, out: str = "out/lake/orders") -> Topology:
    """`out` is a folder or an address such as s3://lake/orders."""
    job = Topology("orders-to-delta", Intent(latency="10s", worth=20))
    orders = job.transform("orders", made_up, job.source("numbers", sources.load(rate)))
    job.sink("table", sinks.delta(out), orders)
    return job


def made_up(numbers: DataFrame) -> DataFrame:
    """An order for each number; the table keeps the time at which it arrived."""
    return numbers.selectExpr("row AS id", "row % 10 AS customer", "double(row * 37 % 1000) AS amount", "arrived")
