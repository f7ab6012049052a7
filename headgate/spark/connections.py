"""Connections to Redis, each call with a time-out, and what goes wrong with one in a sentence that names operator and address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headgate.config import SparkSettings
from headgate.errors import EngineError, GraphError
from headgate.spark.lanes import LaneError

if TYPE_CHECKING:
    # Imported where it is used: every process of every job imports this module, and the library takes 0.14 s.
    from redis import Redis

URL = "redis://127.0.0.1:6379"
RETRIES = 2
"""A connection that breaks is made again this often within one call; a call that times out is not repeated."""


@dataclass(frozen=True, slots=True)
class KafkaPatience:
    """How long a call to Kafka may take, and how often new partitions are looked for."""

    answer_s: float = 30.0
    look_s: float = 2.0
    discovery_s: float = 30.0

    def for_a_look(self) -> KafkaPatience:
        """For calls that only measure."""
        return KafkaPatience(min(self.answer_s, self.look_s), self.look_s, self.discovery_s)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call to Redis may take, and one to Kafka."""

    connect_s: float = 3.0
    answer_s: float = 10.0
    look_s: float = 2.0
    """For an answer to a question that is asked in every round."""
    kafka: KafkaPatience = KafkaPatience()

    def for_a_look(self) -> Patience:
        """For calls that only measure: a late answer is as good as none."""
        return Patience(min(self.connect_s, self.look_s), min(self.answer_s, self.look_s), self.look_s)


PATIENCE = Patience()
"""As the settings have it by default."""


def patience_of(settings: SparkSettings) -> Patience:
    """As these settings have it."""
    kafka = KafkaPatience(settings.kafka_answer_s, settings.kafka_look_s, settings.kafka_discovery_s)
    return Patience(settings.redis_connect_s, settings.redis_answer_s, settings.redis_look_s, kafka)


@cache
def connect(url: str, patience: Patience = PATIENCE) -> Redis:
    """One client for each process; it connects when it is first used, and again when it has to."""
    from redis import Redis
    from redis.backoff import ExponentialBackoff
    from redis.exceptions import ConnectionError
    from redis.retry import Retry

    # A call that timed out is not tried again here: the limit is for the call as a whole, and the engine retries the epoch.
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES, (ConnectionError,))
    client: Redis = Redis.from_url(
        url, socket_connect_timeout=patience.connect_s, socket_timeout=patience.answer_s, retry=retry
    )
    return client


@contextmanager
def asking(url: str, operator: str = "") -> Iterator[None]:
    """Turns an error of Redis into one sentence with its kind, which says whether it can pass, and the address.

    With `operator`, which a lane or a planner gives, the sentence begins with it: Spark would blame the sink that runs the lane.
    """
    from redis.exceptions import RedisError

    try:
        yield
    except RedisError as error:
        text = f"Redis at {shown(url)} could not be used: {_kind(error)}: {str(error).rstrip('.')}"
        raise failure(text, operator) from error


def _kind(error: Exception) -> str:
    """What is told of it: a Redis that loads, fails over, runs a long script or is full counts as one that cannot be reached.

    >>> from redis.exceptions import BusyLoadingError, ResponseError
    >>> _kind(BusyLoadingError()), _kind(ResponseError("BUSY Redis is busy")), _kind(ResponseError("wrong kind of value"))
    ('ConnectionError', 'ConnectionError', 'ResponseError')
    """
    from redis import exceptions

    passing = (
        exceptions.ConnectionError,
        exceptions.ReadOnlyError,
        exceptions.MasterDownError,
        exceptions.ClusterDownError,
        exceptions.TryAgainError,
        exceptions.OutOfMemoryError,
    )
    if isinstance(error, passing) and not isinstance(error, exceptions.AuthenticationError):
        return "ConnectionError"
    return "ConnectionError" if str(error).startswith(("BUSY ", "MISCONF ")) else type(error).__name__


def failure(text: str, operator: str) -> Exception:
    """An error that names its operator wherever it is caught; without one, whoever called the sink or source adds the name."""
    return LaneError(f'operator "{operator}": {text}') if operator else EngineError(text)


def shown(url: str) -> str:
    """An address without user, password and options.

    >>> shown("redis://me:secret@cache:6379/0?password=secret")
    'redis://cache:6379/0'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_url(url: str) -> None:
    """Refuses what cannot be the address of a Redis."""
    if not isinstance(url, str) or re.match(r"(redis|rediss|unix)://", url) is None:
        raise GraphError("the url of a Redis does not start with redis://, rediss:// or unix://")
