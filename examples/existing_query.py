"""Runs an existing streaming query, with a watermark and Spark's own state, as a job; only the end of the query changes.

Run it: headgate run examples/existing_query.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Intent, Topology, sinks


def orders_by_shop(spark: SparkSession, rate: int, window: str, late: str) -> DataFrame:
    """Orders per shop and window. Spark keeps the state and outputs each window once, after its end."""
    orders = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    return (
        orders.withColumn("shop", F.col("value") % 3)
        .withWatermark("timestamp", late)
        .groupBy(F.window("timestamp", window), "shop")
        .agg(F.count("*").alias("orders"), F.max("timestamp").alias("timestamp"))
    )


# Before:
#
#     counts = orders_by_shop(spark, 100, "10 seconds", "5 seconds")
#     query = counts.writeStream.option("checkpointLocation", "checkpoint").start("out/orders")
#     query.awaitTermination()
#
# Now Headgate manages the checkpoint, the restarts and the resources:


def topology(rate: int = 100, window: str = "10 seconds", late: str = "5 seconds", out: str = "out/orders") -> Topology:
    """Writes the same rows, with an intent of 30 s: the length of a window, the wait for late rows, and some time to process."""
    job = Topology("orders", Intent(latency="30s", worth=20))
    counts = job.source("counts", lambda spark: orders_by_shop(spark, rate, window, late), arrival="timestamp")
    job.sink("files", sinks.files(out), counts)
    return job
