"""Reads orders from Kafka and writes large orders to another topic, exactly once.

Run it: headgate run examples/kafka.py --param servers=127.0.0.1:9092

For a broker with a login, add --param user=me and put the password into the environment variable KAFKA_PASSWORD.
"""

from pyspark.sql import DataFrame

from headgate import Intent, Topology, sinks, sources


def topology(
    servers: str = "127.0.0.1:9092", read: str = "orders", write: str = "large-orders", user: str = "", lanes: int = 2
) -> Topology:
    """Reads orders; writes orders above 500."""
    job = Topology("large-orders", Intent(latency="2s", juice=0.95, worth=20))
    options = login(user) if user else {}
    source = sources.kafka(read, servers=servers, schema="id long, user string, amount double", options=options)
    orders = job.source("orders", source, lanes=lanes)
    large = job.transform("large", above_500, orders)
    job.sink("alerts", sinks.kafka(write, servers=servers, key="user", options=options), large)
    return job


def above_500(orders: DataFrame) -> DataFrame:
    """Orders above 500, with the columns that the sink writes as JSON."""
    return orders.where("amount > 500").select("id", "user", "amount", "arrived")


def login(user: str) -> dict[str, str]:
    """Options that name the password; only processes that connect read it."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": "env:KAFKA_PASSWORD",
    }
