"""Time limits of calls to outside systems: how long a call to Redis, Kafka or a table may take before the system counts as away."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.config import SparkSettings


@dataclass(frozen=True, slots=True)
class KafkaPatience:
    """How long a call to Kafka may take, and how often new partitions are looked for."""

    answer_s: float = 30.0
    look_s: float = 2.0
    discovery_s: float = 30.0

    def for_a_look(self) -> KafkaPatience:
        """Return shorter limits for calls that only measure."""
        return KafkaPatience(min(self.answer_s, self.look_s), self.look_s, self.discovery_s)


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of calls to Redis, Kafka and tables, in seconds."""

    connect_s: float = 3.0
    answer_s: float = 10.0
    look_s: float = 2.0
    """Limit for calls that are made in every round."""
    kafka: KafkaPatience = KafkaPatience()
    table_s: float = 60.0
    """Limit for one answer of PostgreSQL, an object store or a catalog."""

    def for_a_look(self) -> Patience:
        """Return shorter limits for calls that only measure: a late answer is useless for them."""
        connect_s, answer_s, table_s = (
            min(wait_s, self.look_s) for wait_s in (self.connect_s, self.answer_s, self.table_s)
        )
        return Patience(connect_s, answer_s, self.look_s, self.kafka.for_a_look(), table_s)


PATIENCE = Patience()
"""The time limits of the default settings."""


def patience_of(settings: SparkSettings) -> Patience:
    """Return the time limits of these settings."""
    kafka = KafkaPatience(settings.kafka_answer_s, settings.kafka_look_s, settings.kafka_discovery_s)
    return Patience(
        settings.redis_connect_s, settings.redis_answer_s, settings.redis_look_s, kafka, settings.table_answer_s
    )
