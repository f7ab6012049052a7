"""Reads the Delta table of `orders_to_delta.py`, keeps totals per customer in keyed state, and merges them into another table.

Run it: headgate run examples/delta_totals.py --param database=env:SHOP_DATABASE
"""

from __future__ import annotations

from headgate import Intent, Topology, sinks, sources

TOTALS = {"orders": "count", "spent": "sum(amount)"}


def topology(orders: str = "out/lake/orders", out: str = "out/lake/totals", database: str = "") -> Topology:
    """`database` is a PostgreSQL URL, or a reference such as env:NAME; without it, the job writes only the Delta table."""
    job = Topology("delta-totals", Intent(latency="20s", worth=20))
    read = job.source("orders", sources.delta(orders))
    totals = job.keyed("totals", TOTALS, read, key="customer", lanes=2)
    job.sink("table", sinks.delta(out, key="customer"), totals)
    if database:
        job.sink("database", sinks.postgres(database, "totals", key="customer"), totals)
    return job
