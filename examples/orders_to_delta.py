"""Writes orders to a Delta table, exactly once; `delta_totals.py` reads this table.

Run it: headgate run examples/orders_to_delta.py
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
    """One order per row number, with its arrival time."""
    return numbers.selectExpr("row AS id", "row % 10 AS customer", "double(row * 37 % 1000) AS amount", "arrived")
