"""A proxy in front of librdkafka's mock broker with what that broker lacks: TLS, a password, and partitions that are added later.

The proxy passes Kafka's requests on as they are. It answers SASL itself, offers only versions of Metadata that are easy to read, and puts
its own address and the partitions that may be seen into the answers to Metadata.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 3, 17, 18, 36
AUTHENTICATION_FAILED = 58
FLEXIBLE = 3
"""The version of ApiVersions from which arrays are compact and entries have tags."""


class KafkaProxy(socketserver.ThreadingTCPServer):
    """Everything is passed on, but for a password that is asked for, and partitions that are hidden."""

    daemon_threads = True

    def __init__(self, broker: str, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), self.client())
        host, _, port = broker.rpartition(":")
        self.broker, self.tls, self.login = (host, int(port)), tls, login
        self.offered = {METADATA: (0, 1)} | ({SASL_HANDSHAKE: (0, 1), SASL_AUTHENTICATE: (0, 1)} if login else {})
        """Versions of requests that clients may use, where they differ from those of the broker."""
        self.partitions = 100
        """How many partitions of each topic are seen."""

    def client(self) -> type[Client]:
        """What serves a connection."""
        return Client

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class Client(socketserver.BaseRequestHandler):
    """One connection of a client."""

    server: KafkaProxy

    def handle(self) -> None:
        self.asked: dict[int, tuple[int, int]] = {}
        self.sending = threading.Lock()
        with suppress(OSError), socket.create_connection(self.server.broker) as broker:
            if self.server.tls is not None:
                self.request = self.server.tls.wrap_socket(self.request, server_side=True)
            back = threading.Thread(target=self._answers, args=(broker,), daemon=True)
            back.start()
            try:
                self._requests(broker)
            finally:
                broker.shutdown(socket.SHUT_RDWR)
                back.join()
                self.request.close()

    def _requests(self, broker: socket.socket) -> None:
        while (frame := frame_of(self.request)) is not None:
            key, version, number = struct.unpack_from(">hhi", frame)
            answer = self.own_answer(frame, key, version)
            if answer is not None:
                with self.sending:
                    send(self.request, struct.pack(">i", number) + answer)
            else:
                self.asked[number] = key, version
                send(broker, frame)

    def own_answer(self, request: bytes, key: int, version: int) -> bytes | None:
        """What the proxy answers itself; None if the broker is to answer."""
        if key == SASL_HANDSHAKE:
            return self._handshake()
        return self._authenticate(request, version) if key == SASL_AUTHENTICATE else None

    def _handshake(self) -> bytes:
        return struct.pack(">hi", 0, 1) + text_of("PLAIN")

    def _authenticate(self, frame: bytes, version: int) -> bytes:
        (length,) = struct.unpack_from(">h", frame, 8)
        at = 10 + max(0, length)
        given = tuple(frame[at + 4 :].decode().split("\0")[1:3])
        lifetime = struct.pack(">q", 0) if version else b""
        if given == self.server.login:
            return struct.pack(">hhi", 0, -1, 0) + lifetime
        return (
            struct.pack(">h", AUTHENTICATION_FAILED)
            + text_of("wrong user or password")
            + struct.pack(">i", 0)
            + lifetime
        )

    def _answers(self, broker: socket.socket) -> None:
        with suppress(OSError):
            while (frame := frame_of(broker)) is not None:
                key, version = self.asked.pop(struct.unpack_from(">i", frame)[0])
                changed = self.changed(frame, key, version)
                with self.sending:
                    send(self.request, changed)

    def changed(self, answer: bytes, key: int, version: int) -> bytes:
        """An answer of the broker as the client gets it."""
        if key == API_VERSIONS:
            return self._versions(answer, version)
        return answer[:4] + self._metadata(Fields(answer[4:])) if key == METADATA else answer

    def _versions(self, frame: bytes, version: int) -> bytes:
        if struct.unpack_from(">h", frame, 4)[0]:
            return frame  # the client asks again with an older version
        compact = version >= FLEXIBLE
        size, first = (7, 7) if compact else (6, 10)
        count = frame[6] - 1 if compact else struct.unpack_from(">i", frame, 6)[0]
        parts = [frame[at : at + 6] for at in range(first, first + size * count, size)]
        offered = {key: (low, high) for key, low, high in (struct.unpack(">hhh", part) for part in parts)}
        offered |= self.server.offered
        tag = b"\0" if compact else b""
        entries = b"".join(struct.pack(">hhh", key, *versions) + tag for key, versions in sorted(offered.items()))
        length = bytes([len(offered) + 1]) if compact else struct.pack(">i", len(offered))
        return frame[:6] + length + entries + frame[first + size * count :]

    def _metadata(self, fields: Fields) -> bytes:
        """Version 1: brokers, the controller, and topics with partitions."""
        host, _, port = self.server.address.partition(":")
        for _ in range(fields.number()):
            fields.number()
            fields.skip_text()
            fields.skip(4)
            fields.out += text_of(host) + struct.pack(">i", int(port))
            fields.keep_text()
        fields.number()
        for _ in range(fields.number()):
            fields.number(">h")
            fields.keep_text()
            fields.number(">b")
            self._partitions(fields)
        return bytes(fields.out)

    def _partitions(self, fields: Fields) -> None:
        at, kept = len(fields.out), 0
        for _ in range(fields.number()):
            before = len(fields.out)
            fields.number(">h")
            number = fields.number()
            fields.number()
            for _ in range(2):
                for _ in range(fields.number()):
                    fields.number()
            if number < self.server.partitions:
                kept += 1
            else:
                del fields.out[before:]
        fields.out[at : at + 4] = struct.pack(">i", kept)


class Fields:
    """Reads the fields of an answer, and copies them to `out`."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.out = data, 0, bytearray()

    def skip(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str = ">i") -> int:
        found = self.skip(struct.calcsize(kind))
        self.out += found
        return int(struct.unpack(kind, found)[0])

    def skip_text(self) -> bytes:
        length = self.skip(2)
        return length + self.skip(max(0, struct.unpack(">h", length)[0]))

    def keep_text(self) -> None:
        self.out += self.skip_text()


def text_of(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def frame_of(source: socket.socket) -> bytes | None:
    length = _exactly(source, 4)
    return None if length is None else _exactly(source, struct.unpack(">i", length)[0])


def _exactly(source: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


def send(target: socket.socket, frame: bytes) -> None:
    target.sendall(struct.pack(">i", len(frame)) + frame)


def certificate(place: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that signs itself, and the context of a server that has it."""
    key, signed = place / "key.pem", place / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(signed)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed, key)
    return signed, context
