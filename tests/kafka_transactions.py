"""A proxy in front of librdkafka's mock broker that gives it transactions: isolation, atomic commits and fencing.

The proxy keeps the rows of a transaction to itself and confirms them. A commit passes all of them on, also if the producer dies before
it hears of it; an abort, or a newer producer with the same transactional id, drops them. Requests of a producer that a newer one has
replaced are refused as Kafka refuses them. Readers therefore see committed rows only, and no transaction is ever in their way.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing
from dataclasses import dataclass, field

from tests.kafka_proxy import Client, Fields, KafkaProxy, frame_of, send, text_of

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER, END_TRANSACTION = 0, 10, 22, 26
OFFERED = {PRODUCE: (3, 7), FIND_COORDINATOR: (0, 1), INIT_PRODUCER: (0, 1), END_TRANSACTION: (0, 1)}
"""Versions without compact fields, which are easy to read."""
INVALID_PRODUCER_EPOCH = 47
START_OFFSET = 5
"""The version of an answer to rows from which it names the first offset of the partition."""
HALT_S = 60.0
PRODUCER_AT = 43
"""Where a batch of rows names its producer."""

Producer = tuple[int, int]
"""Id and epoch, as the broker gave them."""


@dataclass(slots=True)
class Transactional:
    """What is known of a transactional id. Owner: its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    producer: Producer | None = None
    held: list[bytes] = field(default_factory=list)
    """Requests to write rows, not passed on yet."""


class TransactionProxy(KafkaProxy):
    """Passes rows of transactions on when they are committed."""

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self.offered |= OFFERED
        self._lock = threading.Lock()
        self._known: dict[str, Transactional] = {}
        self.commits = self.dropped = self.refused = 0
        """Transactions with rows that were committed, or that a newer producer ended; requests of producers that were replaced."""

        self.halts_at: int | None = None
        """The next request of this kind is done, but not answered: its producer can be killed meanwhile."""
        self.halted, self.goes_on = threading.Event(), threading.Event()

    def halt(self, key: int) -> None:
        """Wait here if a test wants it."""
        if self.halts_at == key:
            self.halts_at = None
            self.halted.set()
            self.goes_on.wait(HALT_S)

    def client(self) -> type[Client]:
        return TransactionClient

    def of(self, name: str) -> Transactional:
        with self._lock:
            return self._known.setdefault(name, Transactional())

    def begin(self, name: str, producer: Producer) -> None:
        """A new producer: what an earlier one left open is gone."""
        found = self.of(name)
        with found.lock:
            self.dropped += bool(found.held)
            found.producer, found.held = producer, []

    def hold(self, name: str, producer: Producer, request: bytes) -> bool:
        """Keep rows until their transaction ends; False if a newer producer has taken over."""
        found = self.of(name)
        with found.lock:
            if found.producer != producer:
                self.refused += 1
                return False
            found.held.append(request)
            return True

    def end(self, name: str, producer: Producer, is_committed: bool) -> bool:
        """Pass the rows on, or drop them; False if a newer producer has taken over."""
        found = self.of(name)
        with found.lock:
            if found.producer != producer:
                self.refused += 1
                return False
            if is_committed and found.held:
                self._pass_on(found.held)
                self.commits += 1
            found.held = []
            return True

    def _pass_on(self, requests: list[bytes]) -> None:
        with closing(socket.create_connection(self.broker)) as broker:
            for request in requests:
                send(broker, request)
                answer = frame_of(broker)
                assert answer is not None and _is_taken(request, answer), "the broker takes all rows"


class TransactionClient(Client):
    """A connection, of which the proxy answers what concerns rows of transactions."""

    server: TransactionProxy

    def handle(self) -> None:
        self.names: dict[int, str] = {}
        super().handle()

    def own_answer(self, request: bytes, key: int, version: int) -> bytes | None:
        number, fields = struct.unpack_from(">i", request, 4)[0], Fields(request[8:])
        if key not in OFFERED:
            return super().own_answer(request, key, version)
        fields.skip_text()
        name = _name(fields)
        if key == INIT_PRODUCER:
            self.names[number] = name
        elif key == END_TRANSACTION:
            producer = fields.number(">q"), fields.number(">h")
            is_newest = self.server.end(name, producer, bool(fields.number(">b")))
            self.server.halt(key)
            if not is_newest:
                return struct.pack(">ih", 0, INVALID_PRODUCER_EPOCH)
        elif key == PRODUCE and name:
            fields.skip(6)
            parts = _parts(fields)
            is_held = self.server.hold(name, parts[0].producer, request)
            self.server.halt(key)
            return _produced(parts, 0 if is_held else INVALID_PRODUCER_EPOCH, version)
        return None

    def changed(self, answer: bytes, key: int, version: int) -> bytes:
        if key == INIT_PRODUCER:
            number, _, error, *producer = struct.unpack_from(">iihqh", answer)
            name = self.names.pop(number)
            if name and not error:
                self.server.begin(name, (producer[0], producer[1]))
        if key == FIND_COORDINATOR:
            return answer[:4] + self._coordinator(Fields(answer[4:]), version)
        return super().changed(answer, key, version)

    def _coordinator(self, fields: Fields, version: int) -> bytes:
        """The proxy in place of the broker."""
        if version:
            fields.number()
        fields.number(">h")
        if version:
            fields.keep_text()
        fields.number()
        host, _, port = self.server.address.partition(":")
        return bytes(fields.out) + text_of(host) + struct.pack(">i", int(port))


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition in a request."""

    topic: bytes
    number: int
    producer: Producer


def _name(fields: Fields) -> str:
    return fields.skip_text()[2:].decode()


def _parts(fields: Fields) -> list[Part]:
    found = []
    for _ in range(fields.number()):
        topic = fields.skip_text()
        for _ in range(fields.number()):
            number = fields.number()
            rows = fields.skip(fields.number())
            found.append(Part(topic, number, struct.unpack_from(">qh", rows, PRODUCER_AT)))
    return found


def _produced(parts: list[Part], error: int, version: int) -> bytes:
    """The answer to a request to write rows; each partition stands alone."""
    times = struct.pack(">qq", 0, -1) + (struct.pack(">q", 0) if version >= START_OFFSET else b"")
    each = (one.topic + struct.pack(">iih", 1, one.number, error) + times for one in parts)
    return struct.pack(">i", len(parts)) + b"".join(each) + struct.pack(">i", 0)


def _is_taken(request: bytes, answer: bytes) -> bool:
    fields, size = Fields(answer[4:]), 24 if struct.unpack_from(">h", request, 2)[0] >= START_OFFSET else 16
    for _ in range(fields.number()):
        fields.skip_text()
        for _ in range(fields.number()):
            fields.number()
            if fields.number(">h"):
                return False
            fields.skip(size)
    return True
