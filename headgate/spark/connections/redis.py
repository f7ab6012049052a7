"""Connections to Redis: every call has a time-out, and every error names operator and address in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headgate.errors import GraphError
from headgate.spark.connections.failing import failure
from headgate.spark.connections.patience import PATIENCE, Patience

if TYPE_CHECKING:
    # Imported where it is used: every process of every job imports this module, and the library takes 0.14 s.
    from redis import Redis

URL = "redis://127.0.0.1:6379"
RETRIES = 2
"""Number of reconnections within one call; a call that times out is not repeated."""


@cache
def connect(url: str, patience: Patience = PATIENCE) -> Redis:
    """Return the client of this process; the client connects at its first use, and reconnects if the connection breaks."""
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
    """Turn an error of Redis into one sentence with the address and the kind of the error, which says whether the error can pass.

    A lane or a planner gives `operator`, with which the sentence begins: Spark would blame the sink that runs the lane.
    """
    from redis.exceptions import RedisError

    try:
        yield
    except RedisError as error:
        text = f"Redis at {shown(url)} could not be used: {_kind(error)}: {str(error).rstrip('.')}"
        raise failure(text, operator) from error


def _kind(error: Exception) -> str:
    """The kind of an error in messages: a Redis that loads, fails over, runs a long script or is full counts as unreachable.

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


def shown(url: str) -> str:
    """An address without user, password and options.

    >>> shown("redis://me:secret@cache:6379/0?password=secret")
    'redis://cache:6379/0'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_url(url: str) -> None:
    """Refuse a text that cannot be the address of a Redis server."""
    if not isinstance(url, str) or re.match(r"(redis|rediss|unix)://", url) is None:
        raise GraphError("the url of a Redis does not start with redis://, rediss:// or unix://")
