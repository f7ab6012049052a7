"""Translates options of Spark's Kafka connector to options of librdkafka; passwords stay references to environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headgate.errors import JobFileError
from headgate.spark.connections.secrets import ENVIRONMENT, FILE

PREFIX, SERVERS = "kafka.", "bootstrap.servers"
READER = frozenset(
    [
        "assign",
        "subscribe",
        "subscribepattern",
        "failondataloss",
        "includeheaders",
        "maxoffsetspertrigger",
        "minpartitions",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "startingtimestamp",
        "minoffsetspertrigger",
        "maxtriggerdelay",
        "maxrecordsperpartition",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "kafkaconsumer.polltimeoutms",
        "groupidprefix",
    ]
)
"""Options of Spark's source other than client options; Headgate takes the start from the checkpoint and the pace from the job."""
SAME = frozenset(
    [
        "acks",
        "batch.size",
        "client.id",
        "client.rack",
        "compression.type",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "isolation.level",
        "linger.ms",
        "max.partition.fetch.bytes",
        "security.protocol",
        "ssl.cipher.suites",
    ]
)
"""Options that librdkafka has under the same name."""
TUNING = frozenset(
    [
        "buffer.memory",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "fetch.max.wait.ms",
        "group.id",
        "heartbeat.interval.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.poll.interval.ms",
        "max.poll.records",
        "max.request.size",
        "metadata.max.age.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "ssl.truststore.password",
    ]
)
"""Options that change no row: Headgate has time-outs and buffers of its own, joins no consumer group, and a PEM file has no password."""
LOGINS = ("PlainLoginModule", "ScramLoginModule")
LOGIN = re.compile(r"\s*(?:[\w.]+\.)?(\w+)\s+required\b(.*);\s*", re.DOTALL)
PART = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options of Spark's Kafka source; option names are case-insensitive."""

    client: dict[str, str]
    """Options of the Kafka client, as librdkafka names them."""
    own: Mapping[str, str]

    def text(self, name: str) -> str | None:
        return self.own.get(name.lower())

    def flag(self, name: str, default: bool) -> bool:
        return (self.text(name) or str(default)).strip().lower() == "true"

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdigit() or int(text) < 1:
            raise JobFileError(f'the option "{name}" of Kafka is "{text}"; write a whole number above 0')
        return int(text)


def options_of_reader(options: Mapping[str, str]) -> ReaderOptions:
    """Split the options of a source into client options and source options; refuse options that have no counterpart."""
    own = {name.lower(): value for name, value in options.items() if not _is_of_client(name)}
    unknown = min((name for name in own if name not in READER), default=None)
    if unknown is not None:
        raise _refusal(unknown)
    return ReaderOptions(client_options(options), own)


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the librdkafka options that correspond to these options of Kafka's Java client."""
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items() if _is_of_client(name)}
    if SERVERS not in given:
        raise JobFileError(f'a query uses Kafka without the option "{PREFIX}{SERVERS}"')
    found = {SERVERS: given.pop(SERVERS)}
    for names, translate in TRANSLATED.items():
        part = {name: given.pop(name) for name in names if name in given}
        found |= translate(part) if part else {}
    for name, value in given.items():
        if name not in SAME | TUNING:
            raise _refusal(PREFIX + name)
        if name in SAME:
            found[name] = value.lower() if name == "security.protocol" else value
    return found


def _is_of_client(name: str) -> bool:
    return name.lower().startswith(PREFIX)


def _refusal(name: str) -> JobFileError:
    return JobFileError(
        f'the option "{name}" of Kafka has no counterpart in Headgate; leave it out, or write a job with sources.kafka'
        " or sources.spark_kafka"
    )


def _login(given: Mapping[str, str]) -> dict[str, str]:
    """Return the user and the password from the Java client's login configuration (`sasl.jaas.config`)."""
    found: dict[str, str] = {}
    if "sasl.mechanism" in given:
        found["sasl.mechanisms"] = given["sasl.mechanism"]
    if "sasl.jaas.config" in given:
        read = LOGIN.fullmatch(given["sasl.jaas.config"])
        if read is None or read[1] not in LOGINS:
            name = read[1] if read is not None else "a login that cannot be read"
            raise JobFileError(
                f'the option "kafka.sasl.jaas.config" has {name}; Headgate logs in with user and password: {" or ".join(LOGINS)}'
            )
        parts = {name: double or single for name, double, single in PART.findall(read[2])}
        found["sasl.username"] = parts.get("username", "")
        found["sasl.password"] = _named(parts.get("password", ""), "the password in kafka.sasl.jaas.config")
    return found


def _named(secret: str, what: str) -> str:
    """Return `env:NAME` for the environment variable that has this value: Spark shows options to everyone who may see a plan."""
    if secret.startswith((ENVIRONMENT, FILE)):
        return secret
    name = min((name for name, value in os.environ.items() if value == secret and secret), default=None)
    if name is None:
        raise JobFileError(
            f"no environment variable has {what}, and Headgate passes passwords on by name only; set one to this value"
            " for headgate adopt and for the service"
        )
    return f"{ENVIRONMENT}{name}"


def _certificates(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for certificate files: librdkafka reads PEM files and PKCS12 key stores, but not JKS."""
    found: dict[str, str] = {}
    if "ssl.truststore.location" in given:
        _expect(given, "ssl.truststore.type", ("PEM",))
        found["ssl.ca.location"] = given["ssl.truststore.location"]
    if "ssl.keystore.location" in given:
        if _expect(given, "ssl.keystore.type", ("PEM", "PKCS12")) == "PEM":
            found |= dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), given["ssl.keystore.location"])
        else:
            found["ssl.keystore.location"] = given["ssl.keystore.location"]
            found["ssl.keystore.password"] = _named(
                given.get("ssl.keystore.password", ""), "kafka.ssl.keystore.password"
            )
    if "ssl.key.password" in given:
        found["ssl.key.password"] = _named(given["ssl.key.password"], "kafka.ssl.key.password")
    return found


def _expect(given: Mapping[str, str], option: str, kinds: tuple[str, ...]) -> str:
    kind = given.get(option, "JKS").upper()
    if kind not in kinds:
        raise JobFileError(
            f'the option "kafka.{option}" is {kind}, which Headgate cannot read; convert the file with keytool, and name'
            f" its type: {' or '.join(kinds)}"
        )
    return kind


def _host_check(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value.lower() or "none" for name, value in given.items()}


TRANSLATED: dict[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, str]]] = {
    ("sasl.mechanism", "sasl.jaas.config"): _login,
    (
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.key.password",
    ): _certificates,
    ("ssl.endpoint.identification.algorithm",): _host_check,
}
