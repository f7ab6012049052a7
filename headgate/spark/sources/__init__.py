"""Sources of rows: a load generator, Redis, files, Kafka and Delta tables; or any function that returns a streaming DataFrame.

Each source fulfils the protocol `headgate.topology.nodes.Source`.
"""

from headgate.loads import Diurnal, Load, Ramp, Sine, Spike, Steady, Steps, Trace
from headgate.spark.sources.delta import delta
from headgate.spark.sources.kafka import kafka
from headgate.spark.sources.load import load
from headgate.spark.sources.pass_through import files, spark_kafka
from headgate.spark.sources.redis import redis

__all__ = [
    "Diurnal",
    "Load",
    "Ramp",
    "Sine",
    "Spike",
    "Steady",
    "Steps",
    "Trace",
    "delta",
    "files",
    "kafka",
    "load",
    "redis",
    "spark_kafka",
]
