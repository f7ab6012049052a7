"""Reads orders from Kafka and keeps the newest order of each user in a Delta table, exactly once.

Run it: headgate run examples/kafka_to_delta.py --param servers=127.0.0.1:9092

Producers must write each order with its user as key, so that Kafka keeps the orders of a user in one partition, in order.
"""

from pyspark.sql import DataFrame

from headgate import Intent, Topology, sinks, sources


def topology(
    servers: str = "127.0.0.1:9092", read: str = "orders", out: str = "out/lake/newest-orders", lanes: int = 2
) -> Topology:
    """`out` is a folder or an address such as s3://lake/newest-orders."""
    job = Topology("newest-orders", Intent(latency="10s", juice=0.95, worth=20))
    source = sources.kafka(read, servers=servers, schema="id long, user string, amount double")
    orders = job.transform("in-order", in_order, job.source("orders", source, lanes=lanes), by="user", lanes=lanes)
    job.sink("table", sinks.delta(out, key="user"), orders)
    return job


def in_order(orders: DataFrame) -> DataFrame:
    """The columns of the table; all orders of a user are in one lane, with the newest order last."""
    return orders.select("id", "user", "amount", "arrived").sortWithinPartitions("id")
