"""Where rows go: files, the console, Redis, Kafka, tables. Any function that takes a DataFrame and the number of the epoch does too."""

from headgate.spark.sinks.delta import delta
from headgate.spark.sinks.files import files, read_files
from headgate.spark.sinks.iceberg import iceberg
from headgate.spark.sinks.kafka import kafka
from headgate.spark.sinks.pass_through import console, discard, spark_kafka
from headgate.spark.sinks.postgres import postgres
from headgate.spark.sinks.redis import redis, redis_hashes

__all__ = [
    "console",
    "delta",
    "discard",
    "files",
    "iceberg",
    "kafka",
    "postgres",
    "read_files",
    "redis",
    "redis_hashes",
    "spark_kafka",
]
