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
"""Options of librdkafka as they are written in a job file: secrets are named, not spelled out."""

SERVERS = "bootstrap.servers"
QUIET = {"log_level": "2", "log.connection.close": "false"}
"""librdkafka reports every refused connection on stderr; the client's errors say the same once."""
ISOLATION, COMMITTED, UNCOMMITTED = "isolation.level", "read_committed", "read_uncommitted"
"""Whether rows of open and of aborted transactions are left out, or read too."""
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
"""Options that decide which rows are read and written; they are Headgate's."""
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
"""Errors of a broker that is away, too slow, or moves partitions; the library marks only those of transactions."""
REFUSED = ("_AUTHENTICATION", "_SSL")
"""Errors that librdkafka reports only in a callback: the call itself fails as if the broker were unreachable."""
BROKEN = "Broker transport failure"
"""Message of librdkafka for a login during which the connection broke: the broker refused nothing."""
_refusals: dict[Options, str] = {}
"""The first refusal of a login or certificate since the last failure. Any thread of librdkafka's clients may replace one."""
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


# -- options


def checked_options(servers: str, options: Mapping[str, Any] | None) -> Options:
    """Options for librdkafka, in one order; refuses secrets that are spelled out, and options that are Headgate's."""
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
    """The same options with the secrets that they name; to be given to librdkafka and to nothing else."""
    return all_revealed(dict(options), "Kafka")


def isolation_of(options: Options) -> str:
    """Which rows are read; only the options of an adopted query say so."""
    return dict(options).get(ISOLATION, COMMITTED)


def address(options: Options) -> str:
    """Where Kafka is, for people."""
    return dict(options)[SERVERS]


# -- clients


@cache
def admin(options: Options, patience: KafkaPatience, owner: int) -> AdminClient:
    """Asks for topics and offsets. `owner` is the process that uses it."""
    from confluent_kafka.admin import AdminClient

    settings: dict[str, Any] = {**_common(options, patience), "error_cb": partial(_note_refusal, options)}
    return AdminClient(settings)


def _note_refusal(options: Options, error: Any) -> None:
    if error.name() in REFUSED and BROKEN not in error.str():
        _refusals.setdefault(options, error.str().rstrip("."))  # later ones are of connections that it broke


@contextmanager
def heard(client: AdminClient) -> Iterator[None]:
    """If a call fails in this block, callbacks are run first: they know why."""
    try:
        yield
    except Exception:
        client.poll(0)
        raise


@cache
def consumer(
    options: Options, patience: KafkaPatience, group: str, owner: int, isolation: str | None = None
) -> Consumer:
    """Reads ranges of offsets; never joins a group."""
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
    """Turns an error of Kafka into one sentence with its kind, which says whether it can pass, and the address."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise kafka_failure(error.args[0], options, operator) from error


def kafka_failure(error: Any, options: Options, operator: str = "") -> Exception:
    """One sentence about an error of librdkafka's."""
    reason = _refusals.pop(options, "") or error.str().rstrip(".") or error.name()
    sentence = f"{_kind(error)}: {reason}"
    return failure(f"Kafka at {address(options)} could not be used: {sentence}", operator)


def _kind(error: Any) -> str:
    """A broker that is away, moves partitions or is too slow counts as one that cannot be reached."""
    return "ConnectionError" if is_passing(error) else error.name()


def is_passing(error: Any) -> bool:
    """Whether the same call may work later."""
    return error.retriable() or error.name() in PASSING


def is_fenced(error: Any) -> bool:
    """Whether a newer producer with the same transactional id has taken over."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
