"""Clients of Kafka (librdkafka): options whose secrets stay out of sight, time-outs, and errors that name operator and address.

A client belongs to the process that made it: librdkafka's threads do not survive a fork, so each process makes its own on first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from headgate.errors import GraphError
from headgate.spark.connections.failing import failure
from headgate.spark.connections.patience import KafkaPatience
from headgate.spark.connections.secrets import all_revealed, check_options

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

Options = tuple[tuple[str, str], ...]
"""Options of librdkafka as written in a job file: a secret is a reference, never the value."""

SERVERS = "bootstrap.servers"
QUIET = {"log_level": "2", "log.connection.close": "false"}
"""librdkafka would report every refused connection on stderr; the error of the client says the same once."""
ISOLATION, COMMITTED, UNCOMMITTED = "isolation.level", "read_committed", "read_uncommitted"
"""Values of the isolation level: readers leave out rows of open and of aborted transactions, or read these rows too."""
OWN = frozenset(
    (
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "group.id",
        ISOLATION,
        "transactional.id",
    )
)
"""Options that Headgate sets itself, because they decide which rows are read and written."""
PASSING = frozenset(
    {
        "BROKER_NOT_AVAILABLE",
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_OR_PART",
        "_ALL_BROKERS_DOWN",
        "_DESTROY_BROKER",
        "_MSG_TIMED_OUT",
        "_NOENT",
        "_NO_OFFSET",
        "_RESOLVE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
        "_WAIT_COORD",
    }
)
"""Errors that can pass: the broker is away, too slow or moving partitions; librdkafka marks only errors of transactions as retriable."""
REFUSED = ("_AUTHENTICATION", "_SSL")
"""Errors that librdkafka reports only in a callback: the call itself fails as if the broker were unreachable."""
BROKEN = "Broker transport failure"
"""Message of librdkafka for a login during which the connection broke: the broker refused nothing."""
_refusals: dict[Options, str] = {}
"""The first refusal of a login or certificate since the last failure. Owner: any thread of librdkafka's clients may set an entry."""
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


# -- options


def checked_options(servers: str, options: Mapping[str, Any] | None) -> Options:
    """Return options for librdkafka in a stable order; refuse secrets that are spelled out, and options that Headgate sets itself."""
    if not isinstance(servers, str) or not servers.strip():
        raise GraphError(f'the servers of Kafka are {servers!r}; write them like "host:9092,other:9092"')
    given = {str(name): _text(value) for name, value in (options or {}).items()}
    taken = OWN & given.keys()
    if taken:
        raise GraphError(f'the Kafka option "{min(taken)}" is set by Headgate; leave it out')
    check_options(given, "Kafka")
    return tuple(sorted(({SERVERS: servers} | given).items()))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def resolved(options: Options) -> dict[str, str]:
    """Return the options with revealed secrets; only librdkafka may get the result."""
    return all_revealed(dict(options), "Kafka")


def isolation_of(options: Options) -> str:
    """Return the isolation level of readers; only the options of an adopted query set another level than committed rows."""
    return dict(options).get(ISOLATION, COMMITTED)


def address(options: Options) -> str:
    """The brokers' addresses as shown in messages."""
    return dict(options)[SERVERS]


# -- clients


@cache
def admin(options: Options, patience: KafkaPatience, owner: int) -> AdminClient:
    """Return a client that asks for topics and offsets. `owner` is the id of the process that uses the client."""
    from confluent_kafka.admin import AdminClient

    settings: dict[str, Any] = {**_common(options, patience), "error_cb": partial(_note_refusal, options)}
    return AdminClient(settings)


def _note_refusal(options: Options, error: Any) -> None:
    if error.name() in REFUSED and BROKEN not in error.str():
        _refusals.setdefault(options, error.str().rstrip("."))  # later ones are of connections that it broke


@contextmanager
def heard(client: AdminClient) -> Iterator[None]:
    """Run pending callbacks of the client if a call fails in this block: a callback knows the reason."""
    try:
        yield
    except Exception:
        client.poll(0)
        raise


@cache
def consumer(
    options: Options, patience: KafkaPatience, group: str, owner: int, isolation: str | None = None
) -> Consumer:
    """Return a client that reads ranges of offsets and never joins a consumer group. `owner` is the id of the process that uses it."""
    from confluent_kafka import Consumer

    ours = {
        "group.id": group,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
        ISOLATION: isolation or isolation_of(options),
    }
    # A lane reads one range of offsets: it fetches little beyond the end, and a fetch at the end of a partition returns at once.
    lean = {"fetch.wait.max.ms": "20", "queued.min.messages": "20000", "fetch.queue.backoff.ms": "5"}
    return Consumer(lean | _common(options, patience) | ours)


def producer(options: Options, patience: KafkaPatience, **more: str | bool) -> Producer:
    """A new producer, whose rows are in Kafka once it was flushed."""
    from confluent_kafka import Producer

    fast = {"linger.ms": "5", "queue.buffering.max.messages": "200000", "enable.idempotence": "true"}
    fast["partitioner"] = "murmur2_random"  # as Kafka's own clients: a key stays in its partition whoever writes it
    timed = {"delivery.timeout.ms": str(round(patience.answer_s * 1000))}
    return Producer(fast | timed | _common(options, patience) | more)


def _common(options: Options, patience: KafkaPatience) -> dict[str, str]:
    reconnect = {"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "1000"}
    timed = {"socket.timeout.ms": str(round(patience.answer_s * 1000))}
    return QUIET | reconnect | timed | resolved(options)


# -- errors


@contextmanager
def asking_kafka(options: Options, operator: str = "") -> Iterator[None]:
    """Turn an error of Kafka into one sentence with the address and the kind of the error, which says whether the error can pass."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise kafka_failure(error.args[0], options, operator) from error


def kafka_failure(error: Any, options: Options, operator: str = "") -> Exception:
    """Return an error of librdkafka as one sentence."""
    reason = _refusals.pop(options, "") or error.str().rstrip(".") or error.name()
    sentence = f"{_kind(error)}: {reason}"
    return failure(f"Kafka at {address(options)} could not be used: {sentence}", operator)


def _kind(error: Any) -> str:
    """Return the kind of an error; an error that can pass counts as an unreachable broker."""
    return "ConnectionError" if is_passing(error) else error.name()


def is_passing(error: Any) -> bool:
    """Whether the same call may work later."""
    return error.retriable() or error.name() in PASSING


def is_fenced(error: Any) -> bool:
    """Whether a newer producer with the same transactional id has taken over."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
