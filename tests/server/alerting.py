"""What the tests of alert rules share: an engine with troubles, a service that turns by itself, and real servers."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.core.model import HostReading, Snapshot
from headgate.server.app import app_of, listen, served
from headgate.server.service import Service
from tests.server.fake import FakeEngine

RULES = Path(__file__).parents[2] / "headgate/server/prometheus/headgate.rules.yml"
GRAFANA = RULES.with_name("headgate.grafana.json")
METRICS_TOKEN = "only-for-metrics"
PATIENCE_S = 120.0
TICK_S = 0.5


class TroubledEngine(FakeEngine):
    """Jobs that cannot be read, and hosts that go."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unread: set[str] = set()
        self.hosts = ["here", "there"]

    def observe(self) -> Snapshot:
        found = super().observe()
        jobs = {name: None if name in self.unread else reading for name, reading in found.jobs.items()}
        hosts = tuple(HostReading(name, 2, 1.0, 0.5) for name in self.hosts)
        return dataclasses.replace(found, jobs=jobs, hosts=hosts)


@contextmanager
def turning(service: Service) -> Iterator[None]:
    """The loop of a service, until the block ends."""
    ended = threading.Event()

    def turn() -> None:
        while not ended.wait(TICK_S):
            service.look()
            service.round()

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def answering(service: Service) -> Iterator[str]:
    """The API of a service; yields host and port."""
    app = app_of(service, "everything", metrics_token=METRICS_TOKEN)
    with closing(listen()) as listening, served(app, listening) as url:
        yield url.removeprefix("http://")


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing (Debian: {package})")
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(command: list[str], url: str, log: Path) -> Iterator[str]:
    """A server, until the block ends; yields its address once it answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        awaited(lambda: process.poll() is not None or answers(f"{url}/-/ready"), f"{command[0]} to answer")
        assert process.poll() is None, log.read_text()
        yield url
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def awaited(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.2)
    return found


class Hook(BaseHTTPRequestHandler):
    """What Alertmanager notifies; the alerts that it was told are in the server's `alerts`."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.alerts.extend(body["alerts"])  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Monitoring:
    """A Prometheus that scrapes services, and an Alertmanager that notifies."""

    prometheus: str
    alertmanager: str
    notified: list[Mapping[str, Any]]

    def query(self, expression: str) -> list[Any]:
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": expression}, trust_env=False).json()
        assert answer["status"] == "success", answer
        found: list[Any] = answer["data"]["result"]
        return found

    def values(self, expression: str) -> list[float]:
        """What a query returns now; a value that is not a number shows nothing, so that the query returns nothing."""
        found = [float(one["value"][1]) for one in self.query(expression)]
        return [] if any(map(math.isnan, found)) else found

    def label_values(self, metric: str, label: str) -> list[str]:
        """What `label_values(metric, label)` of Grafana returns."""
        url = f"{self.prometheus}/api/v1/label/{label}/values"
        found: list[str] = httpx.get(url, params={"match[]": metric}, trust_env=False).json()["data"]
        return found

    def firing(self) -> set[tuple[str, str, str]]:
        """Alert, instance and job of everything that was notified of."""
        labels = [one["labels"] for one in self.notified if one["status"] == "firing"]
        return {(one["alertname"], one.get("instance", ""), one.get("job_name", "")) for one in labels}


@contextmanager
def monitoring(targets: list[str], place: Path) -> Iterator[Monitoring]:
    """Both servers on loopback, with the shipped rules as they are."""
    prometheus = program("prometheus", "prometheus")
    alertmanager = program("prometheus-alertmanager", "prometheus-alertmanager")
    with ExitStack() as stack:
        hook = stack.enter_context(closing_server(HTTPServer(("127.0.0.1", 0), Hook)))
        ports = free_port(), free_port()
        (place / "token").write_text(METRICS_TOKEN)
        (place / "alertmanager.yml").write_text(json.dumps(alertmanager_config(hook.server_port)))
        (place / "prometheus.yml").write_text(json.dumps(prometheus_config(targets, ports[1], place)))
        address = f"--web.listen-address=127.0.0.1:{ports[1]}"
        files = [f"--config.file={place}/alertmanager.yml", f"--storage.path={place}/alerts"]
        manager = stack.enter_context(
            running(
                [alertmanager, *files, address, "--cluster.listen-address="],
                f"http://127.0.0.1:{ports[1]}",
                place / "alertmanager.log",
            )
        )
        files = [f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
        server = stack.enter_context(
            running(
                [prometheus, *files, f"--web.listen-address=127.0.0.1:{ports[0]}"],
                f"http://127.0.0.1:{ports[0]}",
                place / "prometheus.log",
            )
        )
        yield Monitoring(server, manager, hook.alerts)  # type: ignore[attr-defined]


@contextmanager
def closing_server(server: HTTPServer) -> Iterator[HTTPServer]:
    server.alerts = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def alertmanager_config(hook_port: int) -> Mapping[str, Any]:
    hook = {"url": f"http://127.0.0.1:{hook_port}/", "send_resolved": False}
    route = {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    return {"route": route, "receivers": [{"name": "hook", "webhook_configs": [hook]}]}


def prometheus_config(targets: list[str], alertmanager_port: int, place: Path) -> Mapping[str, Any]:
    """JSON is YAML."""
    scrape = {
        "job_name": "headgate",
        "scrape_interval": "1s",
        "authorization": {"credentials_file": str(place / "token")},
        "static_configs": [{"targets": targets}],
    }
    manager = {"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}
    return {"rule_files": [str(RULES)], "scrape_configs": [scrape], "alerting": {"alertmanagers": [manager]}}
